"""The figures of the gallery: readable at 9 cm, no text cut off or on another, no legend on data, no empty panel.

Those that only notebooks draw are looked at by the same helpers when the notebooks run: see test_notebooks.py.
"""

import matplotlib.pyplot as plt
import pytest

from scope_lite.cli.planner import GIB
from scope_lite.figures.gallery import GALLERY, rows_of
from scope_lite.figures.schematic import memory_bars
from scope_lite.figures.style import use_style
from scope_lite.store.paths import RESULTS
from tests.standins.geometry import problems
from tests.standins.planner_models import made

DRAWN = [e for e in GALLERY if not e.table or (RESULTS / f"{e.table}.csv").exists()]


@pytest.fixture(autouse=True)
def house_style():
    use_style()
    yield
    plt.close("all")


@pytest.mark.parametrize("entry", DRAWN, ids=lambda e: e.number)
def test_a_figure_of_the_gallery_is_well_laid_out(entry):
    assert problems(entry.draw(rows_of(entry, RESULTS)[1])) == []


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct", "Qwen3-4B-Instruct-2507"])
@pytest.mark.parametrize("gpu", ["24", "80"])
def test_the_memory_plan_of_the_gpu_notebook_is_well_laid_out(name, gpu):
    planned = made(name, gpu)
    fig = memory_bars(planned.table(), planned.card.memory / GIB, f"{planned.shape.name} on {planned.card.name}")
    assert problems(fig) == []


def test_letters_too_small_for_a_column_are_found():
    fig, ax = plain()
    ax.text(0.5, 0.2, "tiny", fontsize=4.9)
    assert problems(fig) == ["4.9 points at 9 cm: 'tiny'"]
    fig.set_size_inches(9, 2)  # everything is scaled down, then
    assert len(problems(fig)) > 5


def plain():
    fig, ax = plt.subplots(figsize=(3, 2))
    ax.plot([0, 1], [0, 1], label="a line")
    return fig, ax


def test_a_plain_figure_has_no_problem():
    fig, ax = plain()
    ax.set(title="title", xlabel="x", ylabel="y")
    fig.legend(loc="outside upper center")
    assert problems(fig) == []


def test_rotated_labels_side_by_side_do_not_overlap_though_their_boxes_do():
    fig, ax = plain()
    ax.set_xticks([0.2, 0.3, 0.4], ["a long label"] * 3, rotation=45, ha="right")
    assert problems(fig) == []
    ax.set_xticks([0.2, 0.3, 0.4], ["a long label"] * 3, rotation=0, ha="center")
    assert "lies on 'a long label'" in problems(fig)[0]


@pytest.mark.parametrize(
    "spoil, told",
    [
        (lambda fig, ax: fig.text(0.95, 0.5, "far too long for this"), "cut off: 'far too long"),
        (lambda fig, ax: ax.text(0.9, 0.5, "beyond the panel", clip_on=True), "cut off: 'beyond the panel"),
        (lambda fig, ax: (ax.text(0.5, 0.2, "one"), ax.text(0.52, 0.22, "two")), "'one' lies on 'two'"),
        (lambda fig, ax: ax.legend(loc="center"), "lies on the data"),
        (lambda fig, ax: fig.legend(loc="center"), "lies on the data"),
        (lambda fig, ax: (ax.set_title("title"), fig.legend(loc=(0.1, 0.85))), "lies on 'title'"),
        (lambda fig, ax: ax.lines[0].set_data([0, 1], [float("nan")] * 2), "empty panel"),
        (lambda fig, ax: ax.lines[0].remove(), "empty panel"),
    ],
)
def test_what_spoils_a_figure_is_found(spoil, told):
    fig, ax = plain()
    spoil(fig, ax)
    assert any(told in line for line in problems(fig)), problems(fig)


def test_what_is_not_drawn_is_not_looked_at():
    fig, ax = plain()
    ax.text(0.5, 0.5, "hidden", visible=False)
    ax.text(0.5, 0.5, "hidden too").set_visible(False)
    ax.set_xticks([0, 0.001, 0.002])
    ax.axis("off")
    assert problems(fig) == []
