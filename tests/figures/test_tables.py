"""The tables as Markdown and LaTeX: numbers by hand, and LaTeX that looks as if it compiles."""

import re
from typing import get_args

import pandas as pd
import pytest
import yaml

from scope_lite.figures import tables
from scope_lite.figures.paper import paper_settings, paper_table
from scope_lite.method.config import METHODS, RunConfig, SimulatorConfig, TextConfig
from scope_lite.method.rewards import TARGET_VARIANCE
from scope_lite.store.paths import NANO_MODELS


def summaries(**rewards):
    """Three seeds of each variant around its reward: mean +- .01, so a half-width of .0248; Base has seen nobody."""
    rows = [
        {
            "variant": variant,
            "seed": seed,
            "summary": summary,
            "panel/seen/reward": float("nan") if variant == "base" else reward,
            "panel/unseen/reward": reward + 0.01 * (seed - 1),
            "panel/real/reward": reward,
        }
        for variant, reward in rewards.items()
        for seed in range(3)
        for summary in ("end", "auc", "best")
    ]
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def every_table():
    panels = {
        path.parent.name: yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in sorted(NANO_MODELS.glob("*/panel.yaml"))
    }
    settings = {"persuasion_hard": summaries(base=0.2, single=0.15), "retail": summaries(single=0.3, population=0.95)}
    return {
        "table01": (tables.results_table(settings), None),
        "table06": (tables.hyperparameters(), "meaning"),
        "table06_methods": (tables.method_presets(), "sets"),
        "table07": (tables.panel_table(panels), "population"),
        "table01_paper": (paper_table(**tables.PAPER_TABLES["table01_paper"].paper), None),
        "table04": (tables.frameworks(), "scope_lite"),
        "table05": (tables.methods_compared(), None),
        "table08": (tables.compute(), None),
        "table09": (tables.simulator_rewards(), "here, of rollout i"),
    }


def test_results_are_means_with_half_a_t_interval(every_table):
    table = every_table["table01"][0]
    assert table.loc[("retail", "Population Co-Training"), ("unseen simulators", "end")] == ".95 ± .02"
    assert table.loc[("persuasion_hard", "Base"), ("training simulators", "AUC")] == "–"
    assert table.loc[("retail", "RL (Single)"), ("real users", "best")] == ".30 ± .00"
    one = tables.results_table({"retail": summaries(single=0.3).query("seed == 0")})
    assert one.loc[("retail", "RL (Single)"), ("real users", "end")] == ".30"


def test_hyperparameters_show_every_key_with_its_default(every_table):
    table = every_table["table06"][0]
    keys = {*RunConfig.model_fields, *(f"simulator.{k}" for k in SimulatorConfig.model_fields)}
    assert keys - set(table.index) == {"version", "method", "seed", "simulator", "text"}
    assert set(tables.text_settings().index) == {f"text.{k}" for k in TextConfig.model_fields}
    assert table.loc["group_size", ["here", "the paper's"]].tolist() == ["8", "8"]
    assert table.loc["learning_rate", "here"] == "0.001" and "1e-6" in table.loc["learning_rate", "the paper's"]
    assert float(table.loc["target variance", "here"]) == TARGET_VARIANCE
    assert set(paper_settings()) - {"text.turns"} <= set(table.index)
    assert table.loc[["clip_range", "clip_range_high"], "the paper's"].tolist() == ["0.2", "0.28"]


def test_every_method_says_what_its_name_sets(every_table):
    table = every_table["table06_methods"][0]
    assert set(table.index) == set(METHODS)
    assert table.loc["ensemble", "sets"] == "simulator.kind = frozen, simulator.members = sim-a sim-b sim-c"


def test_the_panel_table_has_every_member_of_every_world(every_table):
    table = every_table["table07"][0]
    assert table.loc[("persuasion", "sim-a"), "γ"] == "8"
    assert table.loc[("persuasion", "real"), "model"].startswith("none")
    assert table.loc["persuasion", "population"]["broad"].count("0.20") == 5


def balanced(text):
    """Whether the braces of a LaTeX text close as they open, escaped ones aside."""
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def test_beside_the_papers_columns_stand_ours(every_table):
    """No row of the paper's tables 4, 5 and 8 lacks what it is here, and table 9 has every value of the key."""
    for name in ("table04", "table05", "table08"):
        table = every_table[name][0]
        assert table.notna().all(axis=None) and len(table) >= 6
    assert every_table["table08"][0].loc["Population Co-Training"].tolist()[2:] == ["500 s", "2", "4"]
    rewards = every_table["table09"][0]
    assert set(rewards.index) == set(get_args(SimulatorConfig.model_fields["reward"].annotation))
    assert rewards.loc["adversarial"].tolist()[:2] == ["−R", "Persuasion for Good"]


NAMES = [
    "table01",
    "table01_paper",
    "table04",
    "table05",
    "table06",
    "table06_methods",
    "table07",
    "table08",
    "table09",
]


@pytest.mark.parametrize("name", NAMES)
def test_latex_has_rules_balanced_braces_and_no_bare_special_characters(every_table, name, tmp_path):
    table, wide = every_table[name]
    markdown, latex = tables.write_table(table, name, "100 % of γ_0 & more.", tmp_path, wide)
    text = latex.read_text(encoding="utf-8")
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    assert balanced(text) and text.isascii()
    assert r"\caption{100 \% of $\gamma$\_0 \& more.}" in text
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    assert not re.search(r"(?<!\\)[%#_]", body) and "||" not in body
    columns = table.index.nlevels + table.shape[1]
    plain_rows = [line for line in body.splitlines() if line.endswith(r"\\") and r"\multicolumn" not in line]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in plain_rows} == {columns - 1}
    rows = markdown.read_text(encoding="utf-8").splitlines()[2:]
    assert len(rows) == len(table) + 2
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {columns + 1}


def test_a_brace_that_does_not_close_is_found():
    assert balanced(r"\a{b\}}") and not balanced(r"\a{b") and not balanced("}{")


def test_special_characters_are_escaped_once():
    assert tables.latex_text(r"a_b & 5 % {x} \ ~ γ") == (
        r"a\_b \& 5 \% \{x\} \textbackslash{} \textasciitilde{} $\gamma$"
    )
