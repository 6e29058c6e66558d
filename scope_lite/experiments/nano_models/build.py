"""Make the nano models: the shipped worlds' from nothing, a random world's from the base of ``persuasion``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel

from scope_lite.envs.nano import WORLDS, get_world
from scope_lite.experiments.nano_models.panels import panel_members
from scope_lite.experiments.nano_models.teach import (
    DEFAULT_FAMILY,
    FAMILIES,
    Renderer,
    build_tokenizer,
    pretrain,
    save_model,
    user_kl,
)
from scope_lite.method.panel_file import read_panel, write_panel
from scope_lite.models.hf import load_base
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import NANO_MODELS, model_folder

ADAPT_STEPS = 100
"""steps by which the base of ``persuasion`` becomes that of a random world"""


def build(
    world_name: str,
    families: list[str] | None = None,
    out: Path = NANO_MODELS,
    base_steps: int = 1600,
    member_steps: int = 500,
    report: Callable[[str], None] = print,
) -> None:
    """Build the base models and the panel of one world; what is built already is kept.

    Deterministic on one machine: one thread, fixed seeds.

    Raises:
        ScopeError: for an unknown world or family.
    """
    world = get_world(world_name)
    unknown = set(families or []) - set(FAMILIES)
    if unknown:
        raise ScopeError(f"unknown model {sorted(unknown)[0]!r}; known: {', '.join(FAMILIES)}")
    torch.set_num_threads(1)
    tokenizer, folder = build_tokenizer(world), out / world_name
    render = Renderer(world, tokenizer)

    def make(name: str, model: PreTrainedModel, prior: np.ndarray, steps: int, **how: Any) -> None:
        for step, loss in enumerate(pretrain(model, world, prior, render, steps, **how), 1):
            if step % 100 == 0:
                report(f"{world_name}/{name}: step {step}/{steps}, loss {loss:.4f}")
        report(f"{world_name}/{name}: mean KL(exact || model) {user_kl(model, world, prior, render):.4f} nats a turn")
        save_model(model, tokenizer, folder / name)

    def base(family: str) -> None:
        if not (folder / family / "model.safetensors").exists():
            torch.manual_seed(list(FAMILIES).index(family))
            fresh = AutoModelForCausalLM.from_config(FAMILIES[family](len(tokenizer)))
            personas = not world.spec.told
            make(family, fresh, world.prior, base_steps, agent=True, personas=personas, learning_rate=4e-3)

    base(DEFAULT_FAMILY)  # the members of the panel start from it
    members = panel_members(world)
    for member in members:
        if member.model and not (folder / member.model / "model.safetensors").exists():
            model, _ = load_base(folder / DEFAULT_FAMILY)
            make(member.model, model, world.prior_vector(member.population), member_steps, agent=False)
    write_panel(folder / "panel.yaml", members)
    for family in families or FAMILIES:
        base(family)


def adapt(world_name: str, steps: int = ADAPT_STEPS) -> None:
    """Make the base model of a random world from that of ``persuasion``, and a panel of exact simulators.

    A world of the multiverse says the same words with other odds, so the model only has
    to learn the odds; the panel's members need no model at all. Only what is trained with
    is one: the base is both the policy's and the simulator's.
    """
    world, folder = get_world(world_name), model_folder(world_name)
    torch.set_num_threads(1)
    model, tokenizer = load_base(NANO_MODELS / "persuasion" / DEFAULT_FAMILY)
    render = Renderer(world, tokenizer)
    for _ in pretrain(model, world, world.prior, render, steps, agent=True):
        pass
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    save_model(model, tokenizer, scratch / DEFAULT_FAMILY)
    members = [replace(m, model=m.model if m.name == "sim-a" else None) for m in panel_members(world)]
    write_panel(scratch / "panel.yaml", members)
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)


def ensure_models(worlds: Iterable[str], workers: int | None = None) -> None:
    """Make the models of the random worlds among ``worlds`` that have none yet, side by side, with a bar.

    Raises:
        ScopeError: if a world that is not random has none.
    """
    missing = [w for w in dict.fromkeys(worlds) if not (model_folder(w) / "panel.yaml").exists()]
    for name in missing:
        if name in WORLDS:
            raise ScopeError(f"no models for world {name!r}; run 'scope-lite nano build --world {name}'")
    if missing:
        made = Parallel(n_jobs=workers or -1, return_as="generator_unordered")(delayed(adapt)(name) for name in missing)
        for _ in tqdm(made, total=len(missing), desc="models of random worlds", unit="world"):
            pass


def kl_table(world_name: str) -> list[tuple[str, float]]:
    """(model, mean KL in nats a turn) for every model of a world: the table in data/README.md."""
    world, folder = get_world(world_name), model_folder(world_name)
    rows: dict[str, dict[str, float]] = {}
    for member in read_panel(world_name):
        if member.model:
            rows.setdefault(member.model, member.population)
    rows |= {family: dict(world.spec.prior) for family in FAMILIES}
    table = []
    for name, population in rows.items():
        if (folder / name).exists():
            model, tokenizer = load_base(folder / name)
            render = Renderer(world, tokenizer)
            table.append((name, user_kl(model, world, world.prior_vector(population), render)))
    return table
