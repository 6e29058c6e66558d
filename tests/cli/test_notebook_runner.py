"""The runner refuses wrong parameters early, tells failures plainly, and never computes twice what still stands."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import nbformat
import pytest
import yaml
from filelock import FileLock
from nbformat import v4
from rich.console import Console

from scope_lite.cli import notebook_runner as runner
from scope_lite.cli.notebook_runner import ledger, parameters, progress
from scope_lite.cli.notebook_runner.execute import NotebookFailed
from scope_lite.store.errors import ScopeError

PARAMETERS = "seeds: int = 3  # how many\nrate: float = 0.1\nname: str = 'a'\nsteps: list[int] = [1, 2]\nquick = False"
DRAW = "from pathlib import Path\nPath('../figures/{0}.png').write_text(f'{0} {{seeds}}')"


def notebook(home: Path, stem: str, *cells: str, declare: str = PARAMETERS) -> Path:
    """A notebook with a title, a parameters cell and ``cells``."""
    parts = [v4.new_markdown_cell(f"# {stem}"), v4.new_code_cell(declare, metadata={"tags": ["parameters"]})]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    book = v4.new_notebook(cells=[*parts, *map(v4.new_code_cell, cells)], metadata=kernel)
    path = home / "notebooks" / f"{stem}.ipynb"
    nbformat.write(book, path)
    return path


def scale_file(home: Path, **content) -> None:
    (home / "notebooks" / "parameters" / "nano.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


@pytest.fixture
def home(tmp_path) -> Path:
    for folder in ("notebooks/parameters", "figures", "data/results", "data/models", "runs"):
        (tmp_path / folder).mkdir(parents=True)
    scale_file(tmp_path)
    return tmp_path


def run(home: Path, *notebooks: Path, fresh: bool = False, **options) -> tuple[list[str], str]:
    """Run notebooks; what became of each notebook, and what was shown."""
    console = Console(file=io.StringIO(), force_terminal=False)
    try:
        plans = runner.make_plans(notebooks, "nano", options.pop("parameters", {}), **options)
        outcomes = runner.run_notebooks(plans, home / "runs" / "series", fresh, home, console)
    except ScopeError as exc:
        exc.shown = console.file.getvalue()
        raise
    return outcomes, console.file.getvalue()


def plan_of(path: Path, **overrides) -> dict:
    return runner.make_plans([path], "nano", overrides)[0].parameters


# -- parameters -----------------------------------------------------------------------------------------------------


def test_values_come_from_the_file_then_from_the_command_line(home):
    path = notebook(home, "03_one", declare=PARAMETERS + "\nscale: str = 'nano'")
    other = notebook(home, "04_two", declare="gamma: float = 8.0")
    scale_file(home, all={"seeds": 5, "gamma": 2}, **{"03_one": {"rate": 1}})
    assert plan_of(path) == {"seeds": 5, "rate": 1.0, "scale": "nano"}
    assert plan_of(path, seeds="7")["seeds"] == 7
    assert plan_of(other) == {"gamma": 2.0}


def test_remake_lays_its_section_over_the_rest_only_on_demand(home):
    path = notebook(home, "03_one")
    scale_file(home, all={"seeds": 2}, remake={"all": {"seeds": 10}, "settings": {"execution_timeout": 9}})
    usual, full = (runner.make_plans([path], "nano", {}, remake=remake)[0] for remake in (False, True))
    assert (usual.parameters["seeds"], usual.execution_timeout) == (2, 3600)
    assert (full.parameters["seeds"], full.execution_timeout) == (10, 9)


@pytest.mark.parametrize(
    "name, text, value",
    [("seeds", "4", 4), ("rate", "1e-3", 0.001), ("rate", "2", 2.0), ("name", "3", "3"), ("quick", "true", True),
     ("steps", "[3, 4]", [3, 4])],
)  # fmt: skip
def test_text_from_the_command_line_takes_the_declared_type(home, name, text, value):
    result = plan_of(notebook(home, "03_one"), **{name: text})[name]
    assert result == value and type(result) is type(value)


@pytest.mark.parametrize(
    "name, text",
    [("seeds", "many"), ("seeds", "1.5"), ("seeds", "true"), ("rate", "x"), ("quick", "2"), ("steps", "3")],
)
def test_a_value_of_the_wrong_type_is_refused_in_one_line(home, name, text):
    with pytest.raises(ScopeError, match=f"parameter {name} takes .*'{text}'") as caught:
        plan_of(notebook(home, "03_one"), **{name: text})
    assert "\n" not in str(caught.value)


def test_an_optional_parameter_takes_null(home):
    assert plan_of(notebook(home, "03_one", declare="top: int | None = 3"), top="null") == {"top": None}


def test_a_value_derived_in_the_parameters_cell_is_refused(home):
    with pytest.raises(ScopeError, match="total is derived from seeds"):
        plan_of(notebook(home, "03_one", declare="seeds: int = 3\ntotal = 2 * seeds"))


def test_a_parameters_cell_that_is_no_python_is_one_line(home):
    with pytest.raises(ScopeError, match="parameters cell, line 1"):
        plan_of(notebook(home, "03_one", declare="seeds: int = = 3"))


def test_an_unknown_parameter_is_refused_before_anything_runs(home):
    first, second = notebook(home, "00_a"), notebook(home, "03_one")
    with pytest.raises(ScopeError, match="unknown parameter 'seedz'; did you mean 'seeds'"):
        run(home, first, second, parameters={"seedz": 3})
    assert not (home / "runs" / "series").exists()


@pytest.mark.parametrize(
    "content, message",
    [
        ({"03_one": {"seedz": 1}}, r"nano.yaml \(03_one\): unknown parameter 'seedz'"),
        ({"all": {"nothing": 1}}, r"nano.yaml \(all\): unknown parameter 'nothing'"),
        ({"03_on": {"seeds": 1}}, "unknown section '03_on'; did you mean '03_one'"),
        ({"settings": {"timeout": 1}}, "unknown key 'timeout'"),
        ({"all": 3}, "expected 'name: value' pairs"),
        ({"all": {"seeds": "x"}}, "parameter seeds takes int"),
    ],
)
def test_a_mistake_in_the_parameter_file_names_the_file_or_the_parameter(home, content, message):
    path = notebook(home, "03_one")
    scale_file(home, **content)
    with pytest.raises(ScopeError, match=message):
        plan_of(path)


def test_a_yaml_tag_is_refused_and_runs_nothing(home):
    path = notebook(home, "03_one")
    (home / "notebooks/parameters/nano.yaml").write_text(
        "all: !!python/object/apply:os.system ['touch pwned']\n", encoding="utf-8"
    )
    with pytest.raises(ScopeError, match="not plain YAML") as caught:
        plan_of(path)
    assert "\n" not in str(caught.value) and not Path("pwned").exists()


def test_unknown_scales_and_notebooks_name_the_closest(home):
    path = notebook(home, "03_one_frozen_simulator")
    with pytest.raises(ScopeError, match="unknown scale 'nanoo'; did you mean 'nano'"):
        runner.make_plans([path], "nanoo", {})
    assert runner.chosen_notebooks(path.parent, "nano", ["03"]) == [path]
    with pytest.raises(ScopeError, match="unknown notebook '03_one_frozn"):
        runner.chosen_notebooks(path.parent, "nano", ["03_one_frozn"])


def test_without_any_parameter_file_the_folder_is_named(home):
    path = notebook(home, "03_one")
    (home / "notebooks/parameters/nano.yaml").unlink()
    with pytest.raises(ScopeError, match=r"no parameter files in .*parameters; nano\.yaml"):
        plan_of(path)


@pytest.mark.parametrize("cells", [0, 2])
def test_a_notebook_needs_exactly_one_parameters_cell(home, cells):
    path = home / "notebooks" / "03_one.ipynb"
    tagged = [v4.new_code_cell("a: int = 1", metadata={"tags": ["parameters"]}) for _ in range(cells)]
    nbformat.write(v4.new_notebook(cells=tagged), path)
    with pytest.raises(ScopeError, match=f"has {cells} cells tagged"):
        plan_of(path)


def test_a_file_that_is_no_notebook_is_one_line(home):
    path = home / "notebooks" / "03_one.ipynb"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ScopeError, match="not a readable notebook"):
        plan_of(path)


# -- running --------------------------------------------------------------------------------------------------------


def test_two_notebooks_run_in_order_and_an_unchanged_second_run_is_skipped(home):
    first = notebook(home, "00_a", DRAW.format("one"))
    second = notebook(home, "01_b", "assert Path('../figures/one.png').exists()", declare="from pathlib import Path")
    outcomes, shown = run(home, first, second, parameters={"seeds": 5})
    assert outcomes == ["ran", "ran"]
    assert (home / "figures" / "one.png").read_text(encoding="utf-8") == "one 5"
    assert "[1/2] 00_a: started" in shown and "[2/2] 01_b: done" in shown
    executed = nbformat.read(home / "runs" / "series" / "00_a.ipynb", as_version=4)
    assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code")
    outcomes, shown = run(home, first, second, parameters={"seeds": 5})
    assert outcomes == ["unchanged", "unchanged"] and "unchanged, figures kept" in shown
    (home / "figures" / "one.png").unlink()
    assert run(home, first, second, parameters={"seeds": 5})[0] == ["ran", "unchanged"]
    assert run(home, first, parameters={"seeds": 6})[0] == ["ran"]


def test_what_a_user_lets_ipython_run_at_its_start_is_not_run(home, monkeypatch):
    profile = home / "ipython" / "profile_default"
    (profile / "startup").mkdir(parents=True)
    (profile / "startup" / "00.py").write_text("seen = ['startup file']", encoding="utf-8")
    (profile / "ipython_config.py").write_text(
        "get_config().InteractiveShellApp.exec_lines = ['seen = [1]']", encoding="utf-8"
    )
    (home / "mine.py").write_text("seen = ['PYTHONSTARTUP']", encoding="utf-8")
    monkeypatch.setenv("IPYTHONDIR", str(home / "ipython"))
    monkeypatch.setenv("PYTHONSTARTUP", str(home / "mine.py"))
    monkeypatch.setenv("MPLBACKEND", "TkAgg")
    shown = "import matplotlib; assert 'inline' in matplotlib.get_backend()"
    assert run(home, notebook(home, "03_one", "assert 'seen' not in globals(), seen", shown))[0] == ["ran"]


def test_a_failing_cell_is_named_and_the_executed_copy_is_left(home):
    bad = notebook(home, "00_a", "x = 1", "assert x > 1, 'gap should be positive'")
    later = notebook(home, "01_b")
    with pytest.raises(NotebookFailed) as caught:
        run(home, bad, later)
    message = str(caught.value)
    assert "00_a failed in cell 4, In [3] (`assert x > 1, 'gap should be positive'`)" in message
    assert "AssertionError: gap should be positive" in message and "\n" not in message
    copy = home / "runs" / "series" / "00_a.ipynb"
    assert str(copy) in message and "AssertionError" in copy.read_text(encoding="utf-8")
    assert "stopped in cell 4" in caught.value.shown and not (copy.parent / "01_b.ipynb").exists()
    # what failed is never taken for done
    with pytest.raises(NotebookFailed):
        run(home, bad)


def test_a_killed_kernel_ends_within_a_bound(home):
    bad = notebook(home, "00_a", "import os, signal, time\nos.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)")
    start = time.monotonic()
    with pytest.raises(NotebookFailed, match=r"00_a failed in cell 3 \(`import os.*kernel was killed"):
        run(home, bad)
    assert time.monotonic() - start < 60, "it hung; the bound is generous because machines differ"
    assert (home / "runs" / "series" / "00_a.ipynb").exists()


def test_a_cell_that_takes_too_long_is_stopped(home):
    bad = notebook(home, "00_a", "import time\ntime.sleep(600)")
    with pytest.raises(NotebookFailed, match="took longer than 1 s"):
        run(home, bad, execution_timeout=1)


def test_a_missing_kernel_is_one_line(home):
    path = notebook(home, "00_a")
    book = nbformat.read(path, as_version=4)
    book.metadata.kernelspec.name = "no-such-kernel"
    nbformat.write(book, path)
    with pytest.raises(ScopeError, match="'no-such-kernel', which is not installed"):
        run(home, path)


def test_two_runs_into_one_folder_are_refused(home):
    path = notebook(home, "00_a")
    out = home / "runs" / "series"
    out.mkdir(parents=True)
    with FileLock(out / ".lock"), pytest.raises(ScopeError, match="another run of the notebooks"):
        run(home, path)


# -- ledger ---------------------------------------------------------------------------------------------------------


class Record:
    """A ledger in which notebooks "run" without a kernel."""

    def __init__(self, home: Path):
        self.home, self.path = home, home / "series.json"

    def plan(self, stem: str, **values):
        return parameters.Plan(self.home / "notebooks" / f"{stem}.ipynb", "nano", values, 60)

    def run(self, stem: str, **writes: str) -> None:
        with ledger.Ledger(self.path, self.home).watch(self.plan(stem)):
            for name, text in writes.items():
                path = self.home / name.replace("__", "/").replace("_dot_", ".")
                path.write_text(text, encoding="utf-8")

    def stands(self, stem: str, **values) -> bool:
        return ledger.Ledger(self.path, self.home).is_unchanged(self.plan(stem, **values))


@pytest.fixture
def record(home) -> Record:
    for stem in ("00_a", "01_b"):
        notebook(home, stem)
    return Record(home)


def test_outputs_and_execution_counts_in_the_notebook_do_not_count_as_a_change(record):
    record.run("00_a")
    path = record.plan("00_a").notebook
    book = nbformat.read(path, as_version=4)
    book.cells[1].execution_count = 7
    nbformat.write(book, path)
    assert record.stands("00_a")
    book.cells[1].source += "\nnew = 1"
    nbformat.write(book, path)
    assert not record.stands("00_a")


def test_parameters_data_source_and_versions_count_as_a_change(record, monkeypatch):
    record.run("00_a")
    assert record.stands("00_a") and not record.stands("00_a", seeds=4)
    (record.home / "data" / "models" / "weights.bin").write_text("new", encoding="utf-8")
    assert not record.stands("00_a")
    record.run("00_a")
    for name, stand_in in (("package_version", lambda name: "9"), ("_digest_all", lambda files, root: "other")):
        with monkeypatch.context() as patch:
            patch.setattr(ledger, name, stand_in)
            assert not record.stands("00_a")
    assert record.stands("00_a")


def test_a_changed_or_missing_figure_counts_as_a_change_but_the_gallery_page_does_not(record):
    record.run("00_a", figures__one_dot_png="1", figures__README_dot_md="gallery")
    (record.home / "figures" / "README.md").write_text("rewritten", encoding="utf-8")
    assert record.stands("00_a")
    (record.home / "figures" / "one.png").write_text("2", encoding="utf-8")
    assert not record.stands("00_a")


def test_a_table_counts_as_input_if_it_was_there_before_and_only_from_earlier_notebooks(record):
    (record.home / "data/results/frozen.csv").write_text("1", encoding="utf-8")
    record.run("00_a", data__results__live_dot_csv="1")
    record.run("01_b", data__results__late_dot_csv="1", figures__both_dot_png="1")
    assert record.stands("00_a") and record.stands("01_b")
    # written again by its maker, with other content: the maker stands, the reader does not
    record.run("00_a", data__results__live_dot_csv="2")
    assert record.stands("00_a") and not record.stands("01_b")
    record.run("01_b", data__results__late_dot_csv="2")
    assert record.stands("00_a") and record.stands("01_b")
    (record.home / "data/results/frozen.csv").write_text("2", encoding="utf-8")
    assert not record.stands("00_a") and not record.stands("01_b")


def test_a_figure_drawn_again_by_a_later_notebook_keeps_both(record):
    record.run("00_a", figures__one_dot_png="1")
    record.run("01_b", figures__one_dot_png="2")
    assert record.stands("00_a") and record.stands("01_b")


def test_a_notebook_that_failed_is_forgotten_and_a_damaged_record_is_no_obstacle(record, caplog):
    record.run("00_a")
    with pytest.raises(ValueError), ledger.Ledger(record.path, record.home).watch(record.plan("00_a")):
        raise ValueError
    assert not record.stands("00_a")
    record.path.write_text("{", encoding="utf-8")
    assert not record.stands("00_a") and "cannot be read" in caplog.text
    record.run("00_a")
    assert record.stands("00_a")


# -- progress -------------------------------------------------------------------------------------------------------


def test_the_line_names_notebook_cell_training_step_and_time_left(home):
    folder = home / "runs" / "persuasion-single-seed0-12345678"
    folder.mkdir()
    (folder.parent / ".locks").mkdir()
    status = {"state": "running", "step": 60, "steps": 150, "pid": os.getpid()}
    (folder / "status").write_text(json.dumps(status), encoding="utf-8")
    shown = progress.Progress([3600.0, 60.0], home / "runs", Console(file=io.StringIO()))
    with FileLock(folder.parent / ".locks" / f"{folder.name}.lock"), shown.running("03_one"):
        shown.cell(5, 14)
        assert shown.line() == (
            "[1/2] 03_one · cell 5/14 · step 60/150 (persuasion-single-seed0) · 0:00 · about 1:01:00 left"
        )
    (folder / "status").write_text(json.dumps({**status, "state": "finished"}), encoding="utf-8")
    assert progress.training_line(home / "runs") == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_gets_a_live_line_and_a_log_gets_a_heartbeat(home, monkeypatch, terminal):
    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.01)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    with progress.Progress([None], home / "runs", console) as shown, shown.running("03_one"):
        shown.cell(1, 2)
        while "cell 1/2" not in console.file.getvalue():
            time.sleep(0.01)
    assert "done in" in console.file.getvalue()
    assert ("started" in console.file.getvalue()) is not terminal
