"""The shipped LaTeX tables compile, and say what the shipped runs say."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as t_distribution

from scope_lite.figures.style import METHOD_LABELS
from scope_lite.figures.tables import PAPER_TABLES, read_tables
from scope_lite.figures.training import REAL, UNSEEN
from scope_lite.store.paths import FIGURES, RESULTS

SHIPPED = sorted((FIGURES / "tables").glob("*.tex"))
COMMANDS = set(
    "begin end centering scriptsize footnotesize caption label toprule midrule bottomrule cline multicolumn "
    "pm gamma varepsilon eta pi phi sigma ge le times textbackslash textasciitilde textasciicircum textless "
    "textgreater textbar setlength tabcolsep tau textsuperscript".split()
)
TWO_LEVELS = ("table01", "table01_models", "table01_paper", "table02", "table07")
"""tables whose rows have two names"""
PREAMBLE = r"\documentclass{article}\usepackage[margin=1cm]{geometry}\usepackage{booktabs}\begin{document}"


def complaints(text: str) -> list[str]:
    """What keeps a table from compiling: a strict reading of the little LaTeX that these tables consist of."""
    found = [f"not ASCII: {c!r}" for c in sorted(set(text)) if not c.isascii()]
    found += [f"unknown command \\{name}" for name in re.findall(r"\\([A-Za-z]+)", text) if name not in COMMANDS]
    found += [f"cannot be escaped: \\{c}" for c in re.findall(r"\\([^A-Za-z\\&%$#_{}\s])", text)]
    bare = re.sub(r"\\\\|\\[&%$#_{}]", "", text)  # line ends and escaped characters are no markup
    found += [f"bare {c}" for c in re.findall(r"[%#~^]", bare)]
    maths = bare.split("$")
    if len(maths) % 2 == 0:
        found.append("an odd number of $")
    found += ["_ outside of maths" for part in maths[::2] if "_" in re.sub(r"\\label\{[^}]*\}", "", part)]
    found += [
        f"\\{name} outside of maths"
        for part in maths[::2]
        for name in re.findall(r"\\(pm|gamma|eta|tau|ge|le)\b", part)
    ]
    if "&" in "".join(maths[1::2]):
        found.append("& in maths")
    return found + unbalanced(bare) + uneven_rows(text)


def unbalanced(bare: str) -> list[str]:
    found, depth, open_environments = [], 0, []
    for brace in re.findall(r"[{}]", bare):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return ["} without {"]
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", bare):
        if kind == "begin":
            open_environments.append(name)
        elif not open_environments or open_environments.pop() != name:
            found.append(f"\\end{{{name}}} closes another environment")
    return found + ["{ without }"] * (depth > 0) + [f"{name} is not closed" for name in open_environments]


def uneven_rows(text: str) -> list[str]:
    """Rows with another number of cells than the tabular has columns; rows that do not end."""
    whole = re.search(r"\\begin\{tabular\}\{((?:[^{}]|\{[^{}]*\})*)\}(.*)\\end\{tabular\}", text, re.S)
    if whole is None:
        return ["no tabular"]
    columns = len(re.sub(r"\{[^{}]*\}", "", whole[1]))
    lines = [line.strip() for line in whole[2].strip().splitlines()]
    rows = [line for line in lines if not re.match(r"\\(toprule|midrule|bottomrule|cline\{\d+-\d+\})$", line)]
    found = [] if rows else ["no rows"]
    for row in rows:
        if not row.endswith(r"\\"):
            found.append(f"does not end: {row[:40]}")
        spanned = sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", row))
        cells = len(re.findall(r"(?<!\\)&", row)) + 1 + spanned
        if cells != columns:
            found.append(f"{cells} cells in {columns} columns: {row[:40]}")
    return found


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_table_is_correct_latex(path: Path) -> None:
    assert complaints(path.read_text(encoding="utf-8")) == []


def test_every_table_that_has_data_is_shipped() -> None:
    found = read_tables(RESULTS)
    with_data = {name for name, table in PAPER_TABLES.items() if table.has_data(found)}
    assert {path.stem for path in SHIPPED} >= with_data and len(with_data) >= 5


@pytest.mark.parametrize(
    "right, wrong, told",
    [
        (r"\toprule", r"\toprul", "unknown command"),
        (r"\%", "%", "bare %"),
        (r"\_", "_", "_ outside of maths"),
        (r"$\pm$", r"\pm", "outside of maths"),
        (r"$\pm$", r"$\pm", "odd number"),
        (" & b", " & b & c", "3 cells in 2 columns"),
        (r"\&", "&", "3 cells in 2 columns"),
        (r"b \\", "b", "does not end"),
        (r"\end{table}", "", "table is not closed"),
        (r"\caption{x}", r"\caption{x", "{ without }"),
        (r"\caption{x}", r"\caption{x}}", "} without {"),
        ("x", "π", "not ASCII"),
    ],
)
def test_the_check_finds_what_does_not_compile(right: str, wrong: str, told: str) -> None:
    sound = (
        "\\begin{table}\n\\caption{x}\n\\begin{tabular}{lp{7cm}}\n\\toprule\na & b \\\\\n\\midrule\n"
        "5 \\% \\& 1\\_2 & 1 $\\pm$ 2 \\\\\n\\bottomrule\n\\end{tabular}\n\\end{table}\n"
    )
    assert complaints(sound) == []
    assert right in sound and any(told in line for line in complaints(sound.replace(right, wrong)))


def test_latex_itself_compiles_every_shipped_table(tmp_path: Path) -> None:
    if not shutil.which("pdflatex"):
        pytest.skip("pdflatex is not installed")
    if subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True).returncode:
        pytest.skip("LaTeX has no booktabs.sty here")
    assert len(SHIPPED) >= 5
    tables = "\n".join(path.read_text(encoding="utf-8") for path in SHIPPED)
    (tmp_path / "all.tex").write_text(f"{PREAMBLE}\n{tables}\n\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout[-2000:]
    too_wide = [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt", done.stdout)]
    assert max(too_wide, default=0.0) < 1, "wider than a page with margins of 1 cm"
    assert (tmp_path / "all.pdf").stat().st_size > 10_000


def cells_of(path: Path) -> list[list[str]]:
    """The rows below a shipped table's head, a list of cells each, without the index."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        lines = text.splitlines()[4:]
        return [re.split(r"(?<!\\)\|", line.strip("|"))[-columns(path) :] for line in lines]
    body = text[text.index(r"\midrule") + len(r"\midrule") : text.index(r"\bottomrule")]
    rows = [line for line in body.strip().splitlines() if line.endswith(r"\\")]
    return [re.split(r"(?<!\\)&", row.removesuffix(r"\\"))[-columns(path) :] for row in rows]


def columns(path: Path) -> int:
    """How many columns a table has beside its index."""
    head = path.with_suffix(".md").read_text(encoding="utf-8").splitlines()[2]
    return head.count("|") - 1 - (2 if path.stem in TWO_LEVELS else 1)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_the_latex_has_the_numbers_of_the_markdown(path: Path) -> None:
    latex, markdown = (
        [
            [re.findall(r"\d*\.?\d+", cell.replace("²", "2")) for cell in row]
            for row in cells_of(path.with_suffix(suffix))
        ]
        for suffix in (".tex", ".md")
    )
    assert latex == markdown and len(markdown) >= 4


@pytest.mark.parametrize("column, head", [(UNSEEN, "unseen simulators"), (REAL, "real users")])
@pytest.mark.parametrize("world, experiment", list(PAPER_TABLES["table01"].settings.items()))
def test_table_1_has_the_numbers_of_the_runs(world: str, experiment: str, column: str, head: str) -> None:
    """By hand, from the last rows of the shipped table."""
    runs = pd.read_csv(RESULTS / f"{experiment}.csv")
    end = runs[runs["step"] == runs.groupby("run")["step"].transform("max")]
    lines = (FIGURES / "tables" / "table01.md").read_text(encoding="utf-8").splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    shown = {row[1]: row[rows[0].index(f"{head}, end")] for row in rows[2:] if row[0] == world}
    assert set(shown) == {METHOD_LABELS[v] for v in end["variant"].unique()}
    for variant, own in end.groupby("variant"):
        values = own[column].to_numpy()
        half = t_distribution.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
        mean, width = map(float, shown[METHOD_LABELS[str(variant)]].split(" ± "))
        assert mean == pytest.approx(values.mean(), abs=0.0051) and width == pytest.approx(half, abs=0.0051)
