"""Which figure is drawn by which function from which table, and the gallery page that shows them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from joblib import Parallel, delayed
from matplotlib.figure import Figure

from scope_lite.figures import cooperation, cotraining, paper, paper_tables, prompts, schematic, sidecar, training
from scope_lite.figures.style import save_figure, use_style
from scope_lite.store.errors import ScopeError

WORTH_IT = 4
"""figures from which on a second process pays for its start"""


@dataclass(frozen=True)
class Entry:
    """One figure of the gallery."""

    number: str
    """the paper's figure number; a word for a figure that the paper does not have"""
    name: str
    table: str
    """the experiment whose table it is drawn from; empty: from no table"""
    draw: Callable[[pd.DataFrame], Figure]
    paper: str
    """what the paper's figure shows, in our words"""
    ours: str
    """what ours shows, and where it differs"""
    also: tuple[str, ...] = ()
    """further experiments, drawn along where their tables are there (below ``table`` in what ``draw`` gets)"""
    interval: str = "95 % t-interval over seeds"
    """empty: the figure shows none"""

    @property
    def title(self) -> str:
        """What it is called over a picture."""
        return f"Figure {self.number}" if self.number.isdigit() else f"A figure of ours: {self.number}"


GALLERY = (
    Entry(
        "1",
        "fig01_overfitting",
        "methods",
        training.figure_1,
        "(a) held-out success and (b) policy entropy of single-simulator RL against the fixes; (c) a human study.",
        "(a, b) in the nano world `persuasion`: reward with simulators that the run has not seen, and entropy at act "
        "positions. The single run peaks and falls, as in the paper. Entropy falls for Verbalized Sampling too, only "
        "later: any policy that becomes good loses entropy here. (c) needs people and is not drawn.",
    ),
    Entry(
        "2",
        "fig02_problem_and_fixes",
        "methods",
        schematic.figure_2,
        "A schematic of the problem and the two fixes.",
        "No schematic, but the three distributions themselves, in `persuasion`: what the simulator answers to the most "
        "open question, and what the policy earns in the end. Verbalized Sampling is a model of itself here.",
        interval="",
    ),
    Entry(
        "3",
        "fig03_three_simulators",
        "single_by_simulator",
        training.figure_3,
        "Training reward, held-out reward and entropy of three runs, each against one simulator.",
        "The same against `sim-a`, `sim-b` and `sim-c`, which differ in their favourite user type.",
    ),
    Entry(
        "4",
        "fig04_methods",
        "methods",
        training.figure_4,
        "(a) evaluation reward on Persuasion for Good, (b) success on τ²-bench retail, (c) entropy.",
        "(a) reward with the real users of `persuasion`, whose types are spread wider than any simulator's; (b) the "
        "same in `retail`, where a dialogue succeeds or not; (c) entropy in `persuasion`. The un-sharpened control "
        "(black) is ours and trains on P itself, here and below.",
        also=("methods_retail",),
    ),
    Entry(
        "5",
        "fig05_persuader_prompt",
        "",
        prompts.figure_5,
        "The prompt of the persuader.",
        "Ours, in our words. At nano scale no prompt is needed: an act is one token.",
    ),
    Entry(
        "6",
        "fig06_persuadee_prompt",
        "",
        prompts.figure_6,
        "The prompt of the persuadee, a simulated user.",
        "Ours; `$persona` is empty for the plain simulator and holds background and traits for Persona-Guided.",
    ),
    Entry(
        "7",
        "fig07_verbalized_prompt",
        "",
        prompts.figure_7,
        "The block that asks for Verbalized Sampling.",
        "Ours: it stands last, because a small model follows what it read last, and gives no example texts, because it "
        "would copy them.",
    ),
    Entry(
        "8",
        "fig08_user_simulator_prompt",
        "",
        prompts.figure_8,
        "The prompt of the user simulator of τ²-bench.",
        "Ours; `$scenario` is the benchmark's own text. Episodes of the real benchmark use its own guidelines.",
    ),
    Entry(
        "9",
        "fig09_cooperation_prompt",
        "",
        prompts.figure_9,
        "The prompt of an agent in CooperBench.",
        "Ours: a message to the partner, a command in a shell, or a patch, with which an agent hands in.",
    ),
    Entry(
        "17",
        "fig17_pool_size",
        "pool_sizes",
        cotraining.figure_17,
        "Pool size K of Population Co-Training on Persuasion for Good and τ²-bench retail; 5 and 10 lead, 5 slightly.",
        "`persuasion`, from γ = 4, with the curriculum reward; the paper's P4G has the adversarial (Table 9). K = 1 "
        "is plain Co-Training. Left, reward at the end with unseen simulators and real users; right, not in the paper: "
        "how far the answer to the open question has moved, at the end and on average. Dashed: the paper's best K.",
    ),
    Entry(
        "18",
        "fig18_retail_larger",
        "larger_retail",
        training.figure_18,
        "τ²-bench retail with a larger policy (Qwen3-8B).",
        "`retail` with `qwen3-small`, a larger base model, in the policy's seat: unseen simulators, real users, "
        "entropy. The simulators are the same as before.",
    ),
    Entry(
        "19",
        "fig19_signal",
        "methods",
        training.figure_19,
        "τ²-bench retail: groups without variance, of only successes, of only failures, and entropy, over training.",
        "The same fractions in `persuasion`, where a reward is one of five levels: a group without signal may have all "
        "rewards at one middle level, so the second and third fractions do not add up to the first.",
    ),
    Entry(
        "20",
        "fig20_persuasion",
        "methods",
        training.figure_20,
        "Persuasion for Good, six methods.",
        "Training reward, reward with the training simulators, with unseen ones and with real users, every method.",
    ),
    Entry(
        "21",
        "fig21_retail",
        "methods_retail",
        training.figure_20,
        "τ²-bench retail, seven methods.",
        "The same four panels in `retail`.",
    ),
    Entry(
        "22",
        "fig22_retail_larger_all",
        "larger_retail",
        training.figure_20,
        "τ²-bench retail with the larger policy, further curves.",
        "The runs of figure 18 with training reward and training simulators beside unseen ones and real users.",
    ),
    Entry(
        "23",
        "fig23_cooperation",
        "cooperation",
        cooperation.figure_23,
        "CooperBench, the smaller model: training, evaluation, entropy and conversation turns, by kind of partner.",
        "The same in `coding`. The runs met different partners in training, so (b) is on those that none of them met, "
        "and (c) on real ones. A turn counts until both have written; 4 is also never.",
    ),
    Entry(
        "24",
        "fig24_cooperation_larger",
        "cooperation_small",
        cooperation.figure_23,
        "CooperBench, the larger model.",
        "The same with `qwen3-small`, our larger base model, in the policy's seat (in self-play: in both).",
    ),
    Entry(
        "25",
        "fig25_single_and_verbalized",
        "methods",
        training.figure_25,
        "RL (Single) with and without Verbalized Sampling on one simulator: training, held-out reward, entropy.",
        "The same in `persuasion`, on `sim-a`. Verbalized Sampling is a model of itself here.",
    ),
    Entry(
        "26",
        "fig26_stronger_simulator",
        "stronger_simulator",
        training.figure_26,
        "The comparison of figure 25 on a stronger simulator.",
        "RL (Single) and Verbalized Sampling in `persuasion`, against `sim-a` and against a larger model of the same "
        "users (`qwen3-small`, closer to P before both are sharpened by γ = 8).",
    ),
    Entry(
        "27",
        "fig27_simulator_rewards",
        "simulator_rewards",
        cotraining.reward_ablation,
        "Ablation of the simulator's reward on τ²-bench retail: agent reward, opponent reward, evaluation, entropy.",
        "The same four curves in `persuasion`, from γ = 4. It is modelled on Persuasion for Good, where the paper "
        "uses the adversarial reward (Table 9). Zero and random are controls. Each reward has its own unit, so "
        "the simulator's pay cannot be compared across lines. Disagreement needs a pool: see notebook 05.",
    ),
    Entry(
        "28",
        "fig28_persuasion_olmo3",
        "family_persuasion",
        training.figure_20,
        "Persuasion for Good with another model family in the policy's seat (Olmo-3-7B).",
        "`persuasion` with `olmo3-tiny`, a small Olmo 3 architecture, in the policy's seat.",
    ),
    Entry(
        "29",
        "fig29_retail_olmo3",
        "family_retail",
        training.figure_20,
        "τ²-bench retail with another model family in the policy's seat (Olmo-3-7B).",
        "`retail` with `olmo3-tiny` in the policy's seat.",
    ),
    Entry(
        "airline",
        "methods_airline",
        "methods_airline",
        training.figure_20,
        "None: airline is in Table 1 only.",
        "`airline`, after τ²-bench's other domain, where a policy has to be enforced against what the user wants: the "
        "four panels of figure 20, every method.",
    ),
)

REPORT = "report"
"""name of the picture of the HTML report, which is no figure"""
STUDY_PAGES = "it shows a page of the human-study app. The app is not built, and a drawing of a page would be none."
STUDY_TABLES = "it shows results of the human study. There are no such data here, and we do not make any up."
LEFT_OUT = {**dict.fromkeys(("10", "11", "12", "13", "14"), STUDY_PAGES), "15": STUDY_TABLES, "16": STUDY_TABLES}
"""figure number -> why it is not drawn"""


@dataclass(frozen=True)
class Missing:
    """A figure or table that is not drawn."""

    what: str
    why: str
    command: str
    """what makes its data; empty where no command does"""

    def __str__(self) -> str:
        remedy = f"; make it with '{self.command}'" if self.command else ""
        return f"{self.what} is not drawn: {self.why}{remedy}"


def missing(results: Path) -> list[Missing]:
    """Every figure and table of the paper that cannot be drawn from the tables in ``results``."""
    gone = [
        Missing(f"figure {entry.number}", f"no table {entry.table}.csv", f"scope-lite results build {entry.table}")
        for entry in GALLERY
        if not has_table(entry, results)
    ]
    gone += [Missing(f"figure {number}", why, "") for number, why in LEFT_OUT.items()]
    there = {path.stem for path in results.glob("*.csv")}
    for table in paper_tables.PAPER_TABLES:
        if not paper_tables.has_data(table, there):
            names = " ".join(table.needs)
            gone.append(Missing(table.name, f"no table of {names}", f"scope-lite results build {names}"))
    return gone


def has_table(entry: Entry, results: Path) -> bool:
    """Whether the table is there that a figure is drawn from; so it is for a figure of texts."""
    return not entry.table or (results / f"{entry.table}.csv").exists()


def chosen(only: Sequence[str], results: Path) -> list[Entry]:
    """The figures with these numbers; all that have a table if there are no numbers.

    Raises:
        ScopeError: for a number that no figure has or that is left out, or one whose table is missing.
    """
    known = {entry.number: entry for entry in GALLERY}
    lacking = {gone.what: gone for gone in missing(results)}
    for number in only:
        if number not in known and number not in LEFT_OUT:
            raise ScopeError(f"no figure {number!r}; there are {', '.join(known)}")
        if gone := lacking.get(f"figure {number}"):
            raise ScopeError(str(gone))
    return [known[number] for number in only] or [entry for entry in GALLERY if has_table(entry, results)]


def draw(entry: Entry, results: Path, out: Path, svg: bool = False) -> list[Path]:
    """Draw one figure and write it, and beside it what it was drawn from (``sidecar.describe``); returns the paths."""
    tables, rows = read_tables(entry, results)
    fig = entry.draw(rows)
    drawn = save_figure(fig, entry.name, out, svg)
    plt.close(fig)
    description = sidecar.describe(entry.number, tables, rows, drawn, entry.interval)
    return [*drawn, sidecar.write(out / f"{entry.name}.json", description)]


def draw_all(entries: Sequence[Entry], results: Path, out: Path, svg: bool = False) -> Iterator[list[Path]]:
    """Draw figures side by side, one a core; yields the paths of each (as ``draw`` returns them), in order."""
    if len(entries) < WORTH_IT:
        yield from (draw(entry, results, out, svg) for entry in entries)
        return
    yield from Parallel(n_jobs=-1, return_as="generator")(
        delayed(_draw_elsewhere)(entry, results, out, svg) for entry in entries
    )


def _draw_elsewhere(entry: Entry, results: Path, out: Path, svg: bool) -> list[Path]:
    use_style()  # of this process
    return draw(entry, results, out, svg)


def build(only: list[str] | None, results: Path, out: Path, svg: bool = False) -> list[Path]:
    """Redraw the figures and tables from the tables in ``results``, without a model, and write the gallery page.

    Args:
        only: figure numbers; None draws all that have a table, writes the tables, too, and says what has no data.
        svg: write each as SVG, too.

    Raises:
        ScopeError: as ``chosen`` does.
    """
    use_style()
    written = [path for paths in draw_all(chosen(only or [], results), results, out, svg) for path in paths]
    if not only:
        found = paper_tables.read(results)
        for table in paper_tables.PAPER_TABLES:
            written += paper_tables.write(table, found, out) if paper_tables.has_data(table, found) else []
        for gone in missing(results):
            print(gone)
    write_page(out)
    return written


def read_tables(entry: Entry, results: Path) -> tuple[list[Path], pd.DataFrame]:
    """The tables of a figure that are there, and their rows below each other."""
    paths = [results / f"{name}.csv" for name in (entry.table, *entry.also) if name]
    paths = [path for path in paths if path.exists()]
    return paths, pd.concat(map(pd.read_csv, paths), ignore_index=True) if paths else pd.DataFrame()


def write_page(out: Path) -> None:
    """``figures/README.md``: the paper's figure in our words, ours, what differs, and which are not drawn yet."""
    out.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Gallery",
        "",
        "Every figure is drawn from a table, by `make figures` (live, 3 seeds) or `scope-lite figures` (from the",
        "shipped tables in `data/results`). The line below each picture says scale, world, seeds and interval.",
    ]
    for entry in GALLERY:
        lines += ["", f"## {entry.title}", "", f"*The paper's:* {entry.paper}", "", f"*Ours:* {entry.ours}", ""]
        picture = out / f"{entry.name}.png"
        first = f"**Not drawn yet.** First: `scope-lite results build {entry.table}`"
        lines.append(f"![{entry.title}]({picture.name})" if picture.exists() else first)
        # a notebook may have drawn it since from other runs: then the file beside it tells of another picture
        if sidecar.tells_of(picture):
            lines += ["", f"{sidecar.caption(picture)} [More]({entry.name}.json)."]
    lines += ["", *paper.page_lines()]
    lines += ["", "## Left out", "", *(f"*Figure {number}:* {why}" for number, why in LEFT_OUT.items())]
    others = sorted(p.stem for p in out.glob("*.png") if p.stem not in {REPORT, *(e.name for e in GALLERY)})
    if others:
        lines += ["", "## Figures that the paper does not have", ""]
        lines += [f"![{name}]({name}.png)\n" for name in others]
    if (out / f"{REPORT}.png").exists():
        lines += [
            "",
            "## To look around in",
            "",
            "`scope-lite report` writes a page that opens offline in a browser (pictured with toy runs of four steps):",
            "",
        ]
        lines += [f"![the HTML report]({REPORT}.png)"]
    tables = sorted(out.glob("tables/*.md"))
    if tables:
        lines += ["", "## Tables", "", "Each as Markdown and, beside it, as LaTeX.", ""]
        lines += [f"- [{p.stem}](tables/{p.name}): {p.read_text(encoding='utf-8').splitlines()[0]}" for p in tables]
    (out / "README.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
