"""A user's own worlds: what is refused, where they are found, where their models go."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from scope_lite import cli
from scope_lite.envs.nano import SHIPPED, WORLDS, check_spec, compile_world, get_world, load_files, register
from scope_lite.envs.nano.coding import coding
from scope_lite.envs.nano.persuasion import persuasion
from scope_lite.experiments import nano_models as nano
from scope_lite.experiments.nano_models import panel_members
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError

OWN = replace(persuasion(), name="own_world")
FILE = """
from dataclasses import replace
from scope_lite.envs.nano import register
from scope_lite.envs.nano.persuasion import persuasion

register(lambda: replace(persuasion(), name="own_world", horizon=2))
"""


@pytest.fixture(autouse=True)
def shipped_worlds_only():
    yield
    for name in set(WORLDS) - SHIPPED:
        del WORLDS[name]
    get_world.cache_clear()


def test_a_registered_world_is_found_and_registering_again_replaces_it():
    assert "own_world" not in WORLDS
    register(lambda: OWN)
    assert get_world("own_world").horizon == OWN.horizon
    register(lambda: replace(OWN, horizon=2))
    assert get_world("own_world").horizon == 2


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"name": "persuasion"}, "has a world of that name"),
        ({"name": "persuasion_12"}, "has a world of that name"),
        ({"name": "../models"}, "small letters"),
        ({"user_acts": (*OWN.user_acts, "no way")}, "without spaces.*no way"),
        ({"rewards": (0.0, 1.0)}, "one reward for each outcome"),
        ({"rewards": (0.0, 0.5, 1.0, 1.5, 2.0)}, r"\[0, 1\]"),
        ({"habits": ()}, "at least one habit"),
        ({"prior": {"heart": 0.5, "facts": 0.5}}, "3 types or more"),
        ({"prior": {}}, "3 types or more"),
        ({"real_prior": dict(OWN.prior)}, "real_prior needs a type"),
        ({"reveals": {}}, "reveals must name"),
        ({"prior": {**OWN.prior, "heart": 0.9}}, "sum to 1"),
        ({"outcome": lambda user, state: {"nothing": 1.0}}, "unknown"),
    ],
)
def test_a_world_that_cannot_work_is_refused_in_one_line(changes, message):
    with pytest.raises(ScopeError, match=message) as told:
        register(lambda: replace(OWN, **changes))
    assert "\n" not in str(told.value)
    assert set(WORLDS) == SHIPPED and get_world("persuasion").spec.name == "persuasion"


def test_the_shipped_worlds_would_pass_under_another_name():
    for name in SHIPPED:
        check_spec(replace(WORLDS[name](), name="own_world"))


def test_what_is_asked_of_the_types_is_what_the_panel_needs():
    three = {"heart": 0.5, "facts": 0.3, "trust": 0.2}
    spec = replace(OWN, prior=three)
    check_spec(spec)
    for member in panel_members(compile_world(spec)):
        assert sum(member.population.values()) == pytest.approx(1), member.name
    with pytest.raises(IndexError):  # and with two there is no panel
        panel_members(compile_world(replace(OWN, prior={"heart": 0.5, "facts": 0.5})))


def test_users_who_are_told_things_need_as_many_types_for_each_prompt():
    spec = replace(coding(), name="own_world")
    uneven = {z: p for z, p in spec.prior.items() if z != "quiet-2"}
    with pytest.raises(ScopeError, match="as many for each prompt"):
        check_spec(replace(spec, prior=uneven))


def test_a_file_named_in_the_environment_is_there_in_a_new_process(tmp_path):
    file = tmp_path / "my world.py"
    file.write_text(FILE, encoding="utf-8")
    code = (
        "import sys; from scope_lite.envs.nano import get_world; print(get_world('own_world').horizon, *"
        "(m for m in ('torch', 'transformers') if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, paths.WORLDS_VARIABLE: str(file)},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.stdout.strip() == "2", done.stderr


def test_a_file_that_is_missing_or_broken_is_named_in_one_line(tmp_path):
    load_files([])
    with pytest.raises(ScopeError, match=r"nowhere\.py is no Python file"):
        load_files([tmp_path / "nowhere.py"])
    text = tmp_path / "world.yaml"
    text.write_text("name: x", encoding="utf-8")
    with pytest.raises(ScopeError, match="is no Python file"):
        load_files([text])
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0", encoding="utf-8")
    with pytest.raises(ScopeError, match=r"broken\.py: ZeroDivisionError"):
        load_files([broken])
    broken.write_text(FILE.replace("own_world", "retail"), encoding="utf-8")
    with pytest.raises(ScopeError, match="has a world of that name"):
        load_files([broken])
    good = tmp_path / "good.py"
    good.write_text(FILE, encoding="utf-8")
    load_files([good, good])
    assert get_world("own_world").horizon == 2


def test_models_of_an_own_world_go_to_the_cache_and_those_of_a_shipped_one_do_not(tmp_path, monkeypatch):
    monkeypatch.setenv("SCOPE_LITE_CACHE", str(tmp_path))
    register(lambda: OWN)
    asked = []
    monkeypatch.setattr(nano, "build", lambda world, model, out: asked.append(out))
    for world in ("own_world", "retail"):
        result = CliRunner().invoke(cli.app, ["nano", "build", "--world", world])
        assert result.exit_code == 0, result.output
    assert asked == [tmp_path / "nano", paths.NANO_MODELS]
    assert paths.model_folder("own_world") == asked[0] / "own_world"
    with pytest.raises(ScopeError, match="nano build --world own_world"):
        nano.ensure_models(["own_world"])
