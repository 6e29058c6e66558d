"""The notebooks: clean as committed, built alike, and running top to bottom on a small setting."""

import ast
import re
import shutil
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import papermill
import pytest

import scope_lite.figures.notebook
from scope_lite.envs.nano import get_world
from scope_lite.figures.gallery import GALLERY, tells_of
from scope_lite.figures.tables import PAPER_TABLES, read_tables
from scope_lite.store.paths import HOME, RESULTS
from tests.standins.geometry import problems

NOTEBOOKS = sorted((HOME / "notebooks").glob("*.ipynb"))
SETTINGS = {
    "00_start_here": {"steps": 3},
    "02_simulator_collapse": {"source": "frozen"},
    "03_one_frozen_simulator": {"source": "frozen"},
    "04_verbalized_sampling": {"source": "frozen"},
    "05_co_training": {"source": "frozen"},
    "06_seven_methods": {"source": "frozen"},
    "07_cooperation": {"source": "frozen"},
    "08_referee": {"source": "frozen"},
    "11_figures": {"only": ["3", "9"]},
}


# Run before the solutions: what they train does one step on few dialogues. The rest of them is run as it stands.
ONE_STEP = """
import scope_lite.method.train

whole_train = scope_lite.method.train.train
few = {"groups": 2, "group_size": 4, "eval_dialogues": 4, "final_dialogues": 4}
scope_lite.method.train.train = lambda config, root: whole_train(config.model_copy(update={"steps": 1, **few}), root)
"""


# Run before a notebook: every figure that it shows is looked at, too. Those of the gallery have a test of their own.
LOOK = f"""
import sys

sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import matplotlib.pyplot as plt
import scope_lite.figures.notebook
from tests.standins.geometry import problems

ill_laid_out, whole_show, whole_show_figure = {{}}, plt.show, scope_lite.figures.notebook.show_figure


def look(figure, name):
    if found := problems(figure):
        ill_laid_out[name] = found


def look_and_show(figure, name):
    look(figure, name)
    whole_show_figure(figure, name)


def look_and_show_all():
    for number in plt.get_fignums():
        look(plt.figure(number), f"figure {{number}}")
    whole_show()


scope_lite.figures.notebook.show_figure, plt.show = look_and_show, look_and_show_all
"""
LOOKED = "assert not ill_laid_out, ill_laid_out"
DRAWS_THE_GALLERY = ("06_seven_methods", "11_figures")
FEW_INSTANCES = {"instances_per_result": 60, "adversarial": 4, "grpo_steps": 40, "grpo_seeds": 2}


def cells(path: Path) -> list:
    return nbformat.read(path, as_version=4).cells


# The same code over fewer values, for time.
FEWER = {"(0.02, 0.05, 0.10)": "(0.02,)", "(0.75, 0.95, 0.99, 0.999)": "(0.75, 0.999)", "seeds=20": "seeds=2"}


def solutions(path: Path) -> list[str]:
    """The code of the folded solutions, in order."""
    text = "\n".join(c.source for c in cells(path) if c.cell_type == "markdown")
    folded = re.findall(r"<details>.*?</details>", text, re.S)
    blocks = [block for answer in folded for block in re.findall(r"```python\n(.*?)```", answer, re.S)]
    for many, few in FEWER.items():
        blocks = [block.replace(many, few) for block in blocks]
    return blocks


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_committed_without_outputs_and_with_stable_ids(path):
    assert all(not c.get("outputs") and c.get("execution_count") is None for c in cells(path))
    ids = [c["id"] for c in cells(path)]
    assert len(set(ids)) == len(ids)
    nbformat.validate(nbformat.read(path, as_version=4))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_has_goals_parameters_checks_exercises_and_a_footer(path):
    text = "\n".join(c.source for c in cells(path))
    assert "ou will see" in cells(path)[0].source  # goals first
    tagged = [c for c in cells(path) if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1
    assert all(isinstance(node, ast.AnnAssign) for node in ast.parse(tagged[0].source).body)
    assert text.count("<details>") >= 3 and re.search(r"\d+ min", text)
    assert re.search(r"^\s*assert ", text, re.M)
    assert cells(path)[-1].cell_type == "code"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_folded_solutions_are_valid_python(path):
    for cell in cells(path):
        for block in re.findall(r"```python\n(.*?)```", cell.source, re.S):
            ast.parse(block)


@pytest.mark.parametrize("stem", sorted(SETTINGS))
def test_a_notebook_and_its_solutions_run_from_top_to_bottom(stem, tmp_path, monkeypatch):
    (tmp_path / "data").symlink_to(HOME / "data")
    shutil.copytree(HOME / "notebooks", tmp_path / "notebooks")
    monkeypatch.setenv("SCOPE_LITE_HOME", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    source = tmp_path / "notebooks" / f"{stem}.ipynb"
    answers = [ONE_STEP, *solutions(source)] if solutions(source) else []
    notebook = nbformat.read(source, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(LOOK))
    answers.insert(0, LOOKED)
    notebook.cells += [nbformat.v4.new_code_cell(code) for code in answers]
    nbformat.write(notebook, source)
    papermill.execute_notebook(
        source, tmp_path / "out.ipynb", SETTINGS[stem], cwd=source.parent, execution_timeout=600, start_timeout=120
    )
    executed = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    executed = executed[: len(executed) - len(answers)]
    assert any("image/png" in out.get("data", {}) for c in executed for out in c.get("outputs", []))
    for table in PAPER_TABLES.values():  # those that it wrote are those that `scope-lite figures` writes
        for written in (tmp_path / "figures" / "tables").glob(f"{table.name}.*"):
            table.write(read_tables(RESULTS), tmp_path / "again")
            assert written.read_bytes() == (tmp_path / "again" / "tables" / written.name).read_bytes()
    pictures = [tmp_path / "figures" / f"{entry.name}.png" for entry in GALLERY]
    pictures = [picture for picture in pictures if picture.exists()]
    if stem in DRAWS_THE_GALLERY:  # by the function that `scope-lite figures` calls: it writes what it drew from, too
        assert len(pictures) >= 2 and all(map(tells_of, pictures))


def test_every_notebook_that_draws_is_looked_at():
    draw = {
        path.stem for path in NOTEBOOKS if any(re.search(r"show_figure\(|plt\.show\(", c.source) for c in cells(path))
    }
    # 01: below, in this process; 10 needs a GPU, and its memory plan is in test_figures_geometry.py
    assert draw - set(SETTINGS) == {"01_theory", "10_single_gpu"} and len(draw) >= 9


def test_a_figure_that_is_ill_laid_out_fails_its_notebook(monkeypatch):
    monkeypatch.setattr(scope_lite.figures.notebook, "show_figure", lambda figure, name: None)
    monkeypatch.setattr(plt, "show", lambda: None)
    session: dict = {}
    exec(LOOK, session)
    exec(LOOKED, session)
    wide = plt.figure(figsize=(9, 2))
    wide.text(0.5, 0.5, "small in a column")
    for show, name in (
        (lambda: scope_lite.figures.notebook.show_figure(wide, "a"), "'a'"),
        (plt.show, f"figure {wide.number}"),
    ):
        show()
        with pytest.raises(AssertionError, match=name):
            exec(LOOKED, session)
        session["ill_laid_out"].clear()
    plt.close(wide)


def test_the_figures_of_the_theory_notebook_are_readable_in_a_column(monkeypatch):
    """It takes a minute to run as a whole; its figures are drawn here from few instances."""
    ill_laid_out, shown = {}, []

    def look(figure, name):
        shown.append(name)
        if found := problems(figure):
            ill_laid_out[name] = found
        plt.close(figure)

    monkeypatch.setattr(scope_lite.figures.notebook, "show_figure", look)
    session: dict = {}
    for cell in cells(HOME / "notebooks/01_theory.ipynb"):
        # 21 makes the odds that are drawn next
        draws = "show_figure" in cell.source or cell["id"] in ("theory-01", "theory-21")
        if cell.cell_type == "code" and draws:
            exec(cell.source, session)
            session |= FEW_INSTANCES
    assert len(shown) == 11 and ill_laid_out == {}


def test_the_solutions_of_the_theory_notebook_run():
    """It takes a minute to run as a whole; its solutions need two cells of imports and a world."""
    path = HOME / "notebooks/01_theory.ipynb"
    imports = {
        c["id"]: re.sub(r"(?m)^(?!from|import).*\n?", "", c.source) for c in cells(path) if c.cell_type == "code"
    }
    session: dict = {"world": get_world("persuasion")}
    for name in ("theory-02", "theory-21"):
        exec(imports[name], session)
    answers = solutions(path)
    assert len(answers) == 3
    for answer in answers:
        exec(answer, session)
    assert session["end"].odds_exploit.gt(0).all()
