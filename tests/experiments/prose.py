"""The numbers in the prose of README, docs and notebooks: how they are read off a page, and what ``prose.txt`` names.

``prose.txt`` has words of each page, with the values of their numbers from a table, a setting or the paper. A test
compares them at the digits shown, and finds every number that stands in no such words. Whoever writes a number into a
page adds its words there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import numpy as np
import pandas as pd
from scipy.stats import binomtest, linregress, t

from scope_lite.envs import p4g
from scope_lite.envs.nano import get_world
from scope_lite.envs.nano.exact import ask_then_match, optimal_value, policy_value, repeat
from scope_lite.experiments.claims import evaluate
from scope_lite.experiments.contrasts import COMMON, MARGIN, UNSEEN, like_for_like
from scope_lite.experiments.summaries import run_summaries
from scope_lite.experiments.text_models.align import AGREES
from scope_lite.figures.cooperation import TRAINED_WITH
from scope_lite.figures.cotraining import FOUND_AT, add_mode, when_found
from scope_lite.figures.paper import paper_value
from scope_lite.measure import human_baseline as people
from scope_lite.measure import replies
from scope_lite.measure.stats import Interval, paired_interval
from scope_lite.method import alarm
from scope_lite.method.config import RunConfig, SimulatorConfig
from scope_lite.method.rewards import SCORE_WIDTH, TARGET_VARIANCE
from scope_lite.store.paths import HOME, RESULTS

RESCUED = 0.3
"""unseen reward of a run that has escaped, in the words of README and results.md"""
OWN = "the model's own replies at T = 1"
CLAIMED = [
    paper_value("abstract", f"gain of {m} over RL (Single), at most") for m in ("Verbalized Sampling", "Co-Training")
]
BENCHMARKS = {"p4g": "Persuasion for Good", "retail": "τ²-bench retail", "airline": "τ²-bench airline"}


# -- reading a page ---------------------------------------------------------------------------------------------------

WORDS = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
WORD = "|".join(["not one", *WORDS])
NUMBER = rf"[+-]?(?:\d{{1,3}}(?:,\d{{3}})+|\d+\.\d+|\.\d+|\d+)(?: %)?|(?i:{WORD})"
WRITTEN = re.compile(
    r"<!-- (claims|measured):.*?<!-- /\1 -->|^```.*?^```|^ {4}[^\n]*$|\$\$.*?\$\$", re.DOTALL | re.MULTILINE
)
"""what a function writes, blocks of code, formulas"""
CODE = re.compile(r"\$[^$\n]+\$|`[^`\n]*`|\]\([^)]*\)|https?://\S+")
"""what a sentence may contain, but for its digits"""
PLACES = (
    r"(?i:sections?|eqs?\.|props?\.|proposition|def\.|definition|theorem|thm|lemma|lem|cor\.?|corollary|remark|tables?|"
    r"fig\.?|figures?|notebooks?|python|arxiv|apache-)"
)
NAMED = re.compile(
    rf"{PLACES} ?(?:[A-F]?\.?\d[\d.]*(?: \([a-c, ]+\))?(?:, | and | to | or )?)+"  # a place in a text, a version
    r"|(?<=[(, ])[A-F]?\.?\d\.\d+(?=[,);:])|95 % (?:t-)?interval"
    r"|(?:γ₀?|η|[KkTGHβ]|KL weight of) ?=? ?(?:[\d.]+(?:, | and | or | to )?)+"  # a setting, by its symbol
)
MEASURED = re.compile(
    r"(?<![\w.#-])(?:[+-]?(?:\d+\.\d+|\.\d+)(?: %)?|\d+ %|[+-]\d+|\d+(?= (?:points|per cent))"
    rf"|(?i:{WORD}|\d+)(?= of (?:the )?(?:{WORD}|\d)))(?![\w#])"
)
"""decimals, shares, signed numbers, points, and the first of "n of m"; other integers are seeds, steps, minutes"""


class Said(NamedTuple):
    """Words of a page, ``{}`` for each of its numbers; without an expression they are by hand."""

    page: str
    text: str
    values: str = ""


def read_sentences(path: Path) -> list[Said]:
    """``prose.txt``: a page's name, words, and below them indented what their numbers are."""
    found: list[Said] = []
    page = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            page = line[3:]
        elif line.startswith("    "):
            found[-1] = found[-1]._replace(values=line.strip())
        elif line and not line.startswith("#"):
            found.append(Said(page, line))
    return found


def one_line(text: str) -> str:
    """Text with a hyphen for a minus, single spaces, and no digits in code."""
    text = CODE.sub(lambda code: re.sub(r"\d", "#", code[0]), text.replace("−", "-"))
    return re.sub(r"\s+", " ", text)


def prose(page: str) -> str:
    """A page's text; of a notebook, its Markdown."""
    path = HOME / page
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n\n".join(cell.source for cell in nbformat.reads(text, 4).cells if cell.cell_type == "markdown")
    return one_line(WRITTEN.sub(" ", text)).partition("## Verdict rules")[2 if page == "docs/experiments.md" else 0]


def number(token: str) -> tuple[float, float]:
    """What a token of a page says, and half a unit of its last digit."""
    word = token.lower().replace("not one", "none")
    if word in WORDS:
        return WORDS.index(word), 0.0
    plain, scale = token.removesuffix(" %").replace(",", ""), 100 if token.endswith("%") else 1
    return float(plain) / scale, 0.5 * 10.0 ** -len(plain.partition(".")[2]) / scale


def places(text: str, entry: Said) -> list[re.Match[str]]:
    """Where the words stand."""
    return list(re.finditer(f"({NUMBER})".join(map(re.escape, one_line(entry.text).split("{}"))), text))


def wrong(text: str, entry: Said, values: Sequence[float]) -> list[str]:
    """Where the words say what the values do not; or that they do not stand in the text."""
    found = places(text, entry)
    if not found:
        return [f"{entry.page} does not say {entry.text!r}"]
    return [
        f"{entry.page} says {token}, its table {value:.4g}: {entry.text!r}"
        for match in found
        for token, value in zip(match.groups(), values, strict=True)
        if abs(number(token)[0] - value) > number(token)[1] + 1e-9
    ]


def unheld(text: str, entries: Sequence[Said]) -> Iterator[str]:
    """Numbers of a text that look measured and stand in none of the words."""
    spans = [match.span() for entry in entries for match in places(text, entry)]
    spans += [match.span() for match in NAMED.finditer(text)]
    for match in MEASURED.finditer(text):
        if not any(low <= match.start() < high for low, high in spans):
            yield f"{match[0]!r} in ...{text[max(0, match.start() - 50) : match.end() + 30]}..."


def flat(values: Any) -> list[float]:
    """Numbers in order; an interval stands for its mean, low and high."""
    if isinstance(values, Interval):
        return [values.mean, values.low, values.high]
    if isinstance(values, (pd.Series, np.ndarray, list, tuple)):
        return [number for value in values for number in flat(value)]
    return [float(values)]


# -- what the numbers are ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tables:
    """The shipped tables of a folder."""

    results: Path = RESULTS

    @cache  # noqa: B019 (lives as long as the test)
    def summaries(self, name: str) -> pd.DataFrame:
        return run_summaries(pd.read_csv(self.results / f"{name}.csv"))

    def _of(self, name: str, arm: str, column: str, summary: str = "end") -> pd.Series:
        runs = self.summaries(name).query("summary == @summary and variant == @arm")
        return runs.set_index("seed")[column].sort_index()

    def end(self, name: str, arm: str, column: str = UNSEEN) -> pd.Series:
        """What an arm's runs end with, by seed."""
        return self._of(name, arm, column)

    def mean(self, name: str, arm: str, column: str = UNSEEN) -> float:
        return float(self.end(name, arm, column).mean())

    def fall(self, name: str, arm: str) -> float:
        """Mean of the end minus the run's own best."""
        return float((self.end(name, arm) - self._of(name, arm, UNSEEN, "best")).mean())

    def first(self, name: str, arm: str, column: str) -> float:
        """Mean of the first value of each run."""
        runs = pd.read_csv(self.results / f"{name}.csv").query("variant == @arm").sort_values("step")
        return float(runs.dropna(subset=column).groupby("seed")[column].first().mean())

    def gap(self, name: str, a: str, b: str) -> Interval:
        return paired_interval(self.end(name, a), self.end(name, b))

    def saved(self, name: str, arm: str) -> np.ndarray:
        """How many runs end above ``RESCUED``, and of how many."""
        runs = self.end(name, arm)
        return np.array([(runs > RESCUED).sum(), len(runs)])

    def lost(self, name: str, arm: str) -> int:
        return int((self.end(name, arm) <= RESCUED).sum())

    def mcnemar(self, name: str, a: str, b: str) -> float:
        """p of the exact test on which runs are saved, paired by seed."""
        one, other = (self.end(name, arm) > RESCUED for arm in (a, b))
        return float(binomtest(int((one & ~other).sum()), int((one != other).sum())).pvalue)

    def _common(self, name: str, arm: str, met: Sequence[str]) -> pd.Series:
        """What an arm's runs end with, with the members that none of the compared trained with."""
        runs = like_for_like(self.summaries(name).query("summary == 'end'"), met)
        return runs[runs["variant"] == arm].set_index("seed")[COMMON].sort_index()

    def partners(self, a: str, b: str) -> Interval:
        return paired_interval(*(self._common("cooperation", arm, TRAINED_WITH) for arm in (a, b)))

    @cache  # noqa: B019
    def _cell(self, claim: str, world: str) -> pd.Series:
        """What decides a claim in a world."""
        rows = evaluate(self.results).query("claim == @claim and world == @world and kind != 'context'")
        return rows.iloc[0]

    def contrast(self, claim: str, world: str) -> np.ndarray:
        """Its mean and interval."""
        return self._cell(claim, world)[["estimate", "low", "high"]].to_numpy(float)

    def rescued(self, claim: str, world: str) -> np.ndarray:
        """How many runs of its first and of its second arm are rescued, and of how many."""
        return self._cell(claim, world)[["count_a", "count_b", "n_seeds"]].to_numpy(float)

    def anew(self, arm: str) -> float:
        return float(self._common("controls", arm, [f"sim-{letter}" for letter in "abcde"]).mean())

    def losing_worlds(self) -> int:
        """Random worlds in which RL (Single) ends below the control by more than the margin."""
        ends = self.summaries("multiverse").query("summary == 'end'")
        found = ends.pivot_table(index="world", columns="variant", values=UNSEEN)
        return int((found["single"] - found["unsharpened"] < -MARGIN).sum())

    def pays(self, lost: bool) -> pd.Series:
        """What the exploit pays when a policy finds it, in the runs of five interventions (notebook 05)."""
        names = ("head_starts", "simulator_rates", "policy_rates", "clip_ranges", "pool_rules")
        every = pd.concat([add_mode(pd.read_csv(self.results / f"{name}.csv")) for name in names], ignore_index=True)
        kinds = every["kind"].where(every["kind"].isin(["zero reward", "Co-Training"]), "Population")
        found = when_found(every.assign(kind=kinds))
        found = found[~found["variant"].str.startswith("un-sharpened")]
        return found.loc[(found["end"] > 0.5) == lost, "pays"]

    def text(self, name: str, arm: str) -> pd.DataFrame:
        """A run in real text, by step."""
        return pd.read_csv(self.results / f"{name}.csv").query("variant == @arm").sort_values("step")

    def moved(self, name: str, arm: str) -> list[float]:
        """Unseen reward of a run in text, at its first and last evaluation."""
        seen = self.text(name, arm)[UNSEEN].dropna()
        return [seen.iloc[0], seen.iloc[-1]]

    def rise(self, name: str, arm: str) -> list[float]:
        """What its training reward gains along its straight line, with a 95 % interval."""
        run = self.text(name, arm).iloc[1:]
        line, steps = linregress(run["step"], run["reward"]), len(run) - 1
        half = steps * line.stderr * t.ppf(0.975, steps - 1)
        return [steps * line.slope, steps * line.slope - half, steps * line.slope + half]


@dataclass(frozen=True)
class Users:
    """Replies of a real model, and people's, at the same histories (notebook 02)."""

    results: Path = RESULTS
    others: tuple[str, ...] = ()
    base: str = "02_replies"
    pairs: str = "act_pairs"

    @cached_property
    def table(self) -> pd.DataFrame:
        base, *others = (
            replies.read_replies(self.results / f"{name}.csv")
            for name in (self.base, *(f"{self.base}_{other}" for other in self.others))
        )
        return people.side_by_side(base, dict(zip(self.others, others, strict=True))) if others else base

    @cached_property
    def varied(self) -> pd.DataFrame:
        return people.acts_beside_people(self.table, p4g.load_table(self.pairs))

    @cached_property
    def far(self) -> pd.DataFrame:
        return people.reference_recovery(self.table, p4g.load_table(self.pairs)).set_index(["reference", "condition"])

    @cached_property
    def agree(self) -> pd.DataFrame:
        agrees = self.table.assign(agrees=self.table["act"].isin(AGREES))
        return agrees.pivot_table("agrees", "history", "condition")

    def nats(self, condition: str) -> Interval:
        return _interval(self.varied.set_index("condition").loc[condition], "entropy")

    def gap(self, condition: str) -> Interval:
        """Nats of acts from people."""
        return _interval(people.against_people(self.varied).set_index("condition").loc[condition], "gap")

    def distance(self, condition: str, reference: str = people.PEOPLE) -> float:
        return float(self.far.loc[(reference, condition), "distance"])

    def change(self, condition: str, reference: str = people.PEOPLE) -> Interval:
        return _interval(self.far.loc[(reference, condition)], "change")

    def common(self, condition: str) -> Interval:
        """Share of the most common reply, word for word."""
        found = replies.summarise(replies.by_history(self.table, ["string"]))
        return _interval(found.set_index("condition").loc[condition], "mode_share")

    def asked(self, condition: str) -> int:
        return int((self.table["condition"] == condition).sum())

    def read(self, condition: str) -> int:
        return int(((self.table["condition"] == condition) & (self.table["failure"] == "")).sum())


def _interval(row: pd.Series, name: str) -> Interval:
    return Interval(row[name], row[f"{name}_low"], row[f"{name}_high"], 2)


def exact(policy: str, sharpness: float = 1.0) -> float:
    """What a policy is worth in ``persuasion``, every dialogue enumerated."""
    world = get_world("persuasion")
    if policy == "optimum":
        return float(optimal_value(world, world.prior, sharpness))
    acts = {"exploit": repeat("appeal-heart"), "asks": ask_then_match}[policy]
    return float(policy_value(world, world.prior, acts, sharpness))


def paper(method: str, benchmark: str) -> float:
    """Table 1 of the paper, Qwen3-4B."""
    name, model = f"{'reward' if benchmark == 'p4g' else 'success'}, best checkpoint", "Qwen3-4B-Instruct-2507"
    return paper_value("Table 1", name, method=method, benchmark=BENCHMARKS[benchmark], model=model)


def lift(method: str, benchmark: str) -> float:
    return paper(method, benchmark) - paper("RL (Single)", benchmark)


def lag(pool: int, cadence: int) -> float:
    """Steps by which a pool is behind, on average: the present self 0, the newest snapshot (cadence - 1) / 2."""
    return sum((cadence - 1) / 2 + cadence * age for age in range(pool - 1)) / pool


def values_of(results: Path = RESULTS) -> Callable[[Said], list[float]]:
    """What makes the numbers of words from the tables in ``results``."""
    made = Tables(results)
    names = {name: getattr(made, name) for name in dir(made) if not name.startswith("_") and name != "results"}
    names |= {
        "smollm": Users(results), "adapted": Users(results, ("persuadee", "typicality", "agreement")),
        "persuaders": Users(results, ("persuader",), "02_replies_as_persuader", "act_pairs_persuader"),
        "RUN": RunConfig(), "SIMULATOR": SimulatorConfig(), "alarm": alarm, "paired_interval": paired_interval,
        "exact": exact, "paper": paper, "lift": lift, "lag": lag, "paper_value": paper_value, "MARGIN": MARGIN,
        "FOUND_AT": FOUND_AT, "RESCUED": RESCUED, "OWN": OWN, "CLAIMED": CLAIMED,
        "TARGET_VARIANCE": TARGET_VARIANCE, "SCORE_WIDTH": SCORE_WIDTH,
    }  # fmt: skip
    return lambda entry: flat(eval(entry.values, names))
