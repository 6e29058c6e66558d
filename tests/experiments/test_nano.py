"""The shipped models: small, ordinary, close to the exact users; and the build that makes them."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from scope_lite.envs.nano import get_world
from scope_lite.envs.nano.users import BeliefUsers
from scope_lite.experiments import nano_models as nano
from scope_lite.method.config import method_config
from scope_lite.method.nano import NanoScene
from scope_lite.method.panel_file import PanelMember, read_panel
from scope_lite.method.train import train
from scope_lite.models.rng import RowKeys
from scope_lite.store import load_metrics
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import NANO_MODELS

WORLD = get_world("persuasion")
SHIPPED = sorted(p.parent for p in NANO_MODELS.glob("*/*/model.safetensors"))


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_shipped_model_is_small_ordinary_and_close_to_its_users(folder):
    assert (folder / "model.safetensors").stat().st_size < 1_000_000
    world = get_world(folder.parent.name)
    populations = {m.model: m.population for m in read_panel(world.name) if m.model}
    prior = world.prior_vector(populations.get(folder.name, dict(world.spec.prior)))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    render = nano.Renderer(world, tokenizer)
    assert nano.user_kl(model.eval(), world, prior, render, n=500) < 0.02


def test_the_three_families_are_shipped():
    assert {p.name for p in SHIPPED if p.parent.name == "persuasion"} >= set(nano.FAMILIES)


def test_the_panel_has_every_kind_of_member():
    members = read_panel("persuasion")
    assert {m.kind for m in members} == {"collapsed", "broad", "outside", "scripted"}
    modes = {max(m.population, key=m.population.get) for m in members if m.kind == "collapsed"}
    assert modes == set(WORLD.spec.prior)
    outside = next(m for m in members if m.kind == "outside")
    assert sum(share for z, share in outside.population.items() if z not in WORLD.spec.prior) >= 0.5


def test_taught_distributions_are_those_of_the_exact_users():
    rng = np.random.default_rng(0)
    dialogues = nano.sample_dialogues(WORLD, WORLD.prior, 50, rng)
    np.testing.assert_allclose(dialogues.reply_probs.sum(-1), 1, atol=1e-9)
    batch = nano.Renderer(WORLD, nano.build_tokenizer(WORLD)).user(dialogues)
    taught = batch.targets[batch.taught].view(50, WORLD.horizon + 1, -1)
    torch.testing.assert_close(taught.sum(-1), torch.ones(50, WORLD.horizon + 1))
    words = nano.build_tokenizer(WORLD).convert_tokens_to_ids(list(WORLD.spec.user_acts))
    np.testing.assert_allclose(taught[:, :-1, words].numpy(), dialogues.reply_probs, atol=1e-6)


def test_building_twice_gives_the_same_weights_and_keeps_what_is_there(tmp_path):
    for out in ("a", "b"):
        nano.build("persuasion", ["qwen3-tiny"], tmp_path / out, base_steps=2, member_steps=1, report=lambda line: None)
    a, b = (load_file(tmp_path / out / "persuasion/sim-b/model.safetensors") for out in ("a", "b"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    before = (tmp_path / "a/persuasion/sim-b/model.safetensors").stat().st_mtime_ns
    nano.build("persuasion", ["qwen3-tiny"], tmp_path / "a", base_steps=2, member_steps=1, report=pytest.fail)
    assert (tmp_path / "a/persuasion/sim-b/model.safetensors").stat().st_mtime_ns == before


def test_an_unknown_family_is_named_in_one_line(tmp_path):
    with pytest.raises(ScopeError, match="unknown model 'gpt-7'"):
        nano.build("persuasion", ["gpt-7"], tmp_path)


def test_a_random_worlds_model_is_adapted_from_the_base_and_its_panel_is_exact(tmp_path, monkeypatch):
    monkeypatch.setenv("SCOPE_LITE_CACHE", str(tmp_path))
    nano.adapt("persuasion_1000", steps=2)
    panel = {m.name: m for m in read_panel("persuasion_1000")}
    assert [name for name, m in panel.items() if m.model] == ["sim-a"]
    config = method_config(
        "cotraining", world="persuasion_1000", steps=1, groups=2, group_size=4, eval_dialogues=64, final_dialogues=256
    )
    last = load_metrics([train(config, tmp_path)]).iloc[-1]
    assert 0 <= last["panel/sim-b/reward"] <= 1 and last["panel/unseen/reward"] >= 0
    nano.ensure_models(["persuasion_1000", "persuasion"])  # both are there: nothing is made
    monkeypatch.setattr("scope_lite.store.paths.NANO_MODELS", tmp_path)
    with pytest.raises(ScopeError, match="nano build --world airline"):
        nano.ensure_models(["airline"])


def test_an_exact_panel_member_speaks_the_sharpened_distribution():
    member = PanelMember("sim-b", None, 8.0, "collapsed", {"facts": 0.6, "heart": 0.4})
    keys = RowKeys.grid(0, 0, 1, 2000)
    seat = NanoScene(method_config("base")).seat_members([member] * len(keys), keys, ["user"] * len(keys), "test")
    seat.hear(["ask"] * len(keys))
    said = seat.speak(0, "reply")
    exact = BeliefUsers(WORLD, WORLD.prior_vector(member.population), 1, 8.0)
    odds = exact.reply_probabilities(np.array([WORLD.agent_index["ask"]]))[0]
    assert abs(said.count("reveal-facts") / len(said) - odds[WORLD.user_index["reveal-facts"]]) < 0.02


def test_a_world_that_tells_its_users_what_to_do_has_no_persona_prompts():
    with pytest.raises(ScopeError, match="persona"):
        NanoScene(method_config("persona", world="coding"))
