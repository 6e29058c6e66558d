"""Notebook 10 and the scale ``full``: every run that they describe is valid and fits its card, and the cells run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest

from scope_lite.cli.notebook_runner import chosen_notebooks, load_scale, make_plans
from scope_lite.store.paths import HOME
from tests.method.test_text_training import model  # noqa: F401  (a fixture: a tiny random chat model)

NOTEBOOK = HOME / "notebooks" / "10_single_gpu.ipynb"
FULL = load_scale(NOTEBOOK.parent, "full").sections["10_single_gpu"]


def test_the_scale_full_is_this_notebook_and_nano_leaves_it_out() -> None:
    assert chosen_notebooks(NOTEBOOK.parent, "full") == [NOTEBOOK]
    for everything in (False, True):
        usual = chosen_notebooks(NOTEBOOK.parent, "nano", everything=everything)
        assert NOTEBOOK not in usual and len(usual) > 5
    assert chosen_notebooks(NOTEBOOK.parent, "nano", only=["10"]) == [NOTEBOOK]
    (planned,) = make_plans([NOTEBOOK], "full", {"gpu": "48"})
    assert planned.parameters["gpu"] == "48" and planned.parameters["model"] == FULL["model"]


@pytest.mark.parametrize("gpu", ["24", "48", "80"])
def test_every_run_of_the_scale_full_is_valid_and_fits_its_card(gpu: str) -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    setup = next(c.source for c in cells if "def config" in c.source)
    plans = next(c.source for c in cells if "require_fit(" in c.source and "import" not in c.source)
    for benchmark in FULL["benchmarks"]:
        session: dict[str, Any] = {**FULL, "gpu": gpu, "benchmark": benchmark}
        exec(setup, session)
        made = [session["config"](method, 0) for method in FULL["methods"]]
        assert [c.method for c in made] == list(FULL["methods"]) and {c.world for c in made} == {benchmark}
        assert {c.text.training_engine for c in made} == {"unsloth"} and all(c.steps in (0, 200) for c in made)
        exec(plans, session)
        assert not session["planned"].short


def test_the_cells_run_on_a_cpu_with_a_tiny_model(
    model: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "data").symlink_to(HOME / "data")
    monkeypatch.setenv("SCOPE_LITE_HOME", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    tiny = {
        "steps": 1, "groups": 2, "group_size": 2, "eval_dialogues": 1, "final_dialogues": 1, "checkpoint_every": 1,
        "text": {"turns": 2, "max_new_tokens": 5, "reply_tokens": 5, "micro_batch": 2},
    }  # fmt: skip
    settings = {"gpu": "cpu", "model": str(model), "smoke_steps": 1, "methods": {"base": {}, "single": {}},
                "benchmarks": {"p4g": tiny}}  # fmt: skip
    papermill.execute_notebook(
        NOTEBOOK, tmp_path / "out.ipynb", settings, cwd=NOTEBOOK.parent, execution_timeout=600, start_timeout=120,
        progress_bar=False,
    )  # fmt: skip
    outputs = [o for c in nbformat.read(tmp_path / "out.ipynb", as_version=4).cells for o in c.get("outputs", [])]
    assert any("image/png" in o.get("data", {}) for o in outputs)
    assert len(list((tmp_path / "runs").glob("p4g-*"))) == 2 and not (tmp_path / "figures").exists()
