"""How figures are saved: which formats, and the same bytes for the same data."""

import pytest
from matplotlib.figure import Figure

from scope_lite.figures.style import save_figure, use_style


def drawn() -> Figure:
    use_style()
    fig = Figure(figsize=(2, 1.5))
    ax = fig.subplots()
    ax.plot([0, 1], [0, 1])
    # a clip path gets an id in SVG and a marker one in PDF: both would be random without a salt
    ax.plot([0.5], [0.5], "o")
    return fig


@pytest.mark.parametrize("svg", [False, True])
def test_the_same_data_gives_the_same_bytes_in_every_format(tmp_path, svg):
    first, second = (save_figure(drawn(), "a", tmp_path / folder, svg) for folder in ("first", "second"))
    assert [p.suffix for p in first] == [".png", ".pdf"] + [".svg"] * svg
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_an_svg_holds_no_date(tmp_path):
    text = save_figure(drawn(), "a", tmp_path, svg=True)[-1].read_text()
    assert "<svg" in text and "dc:date" not in text
