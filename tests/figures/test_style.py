"""How figures are saved: which formats, and the same bytes for the same data."""

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from scope_lite.figures.style import save_figure, use_style

HOSTILE = {
    "text.usetex": True, "axes.facecolor": "red", "savefig.facecolor": "black", "savefig.bbox": "tight",
    "lines.linewidth": 9, "image.cmap": "jet", "axes.prop_cycle": mpl.cycler(color="k"), "font.family": "serif",
    "path.simplify": False, "pdf.compression": 0, "svg.fonttype": "none", "axes.autolimit_mode": "round_numbers",
}  # fmt: skip


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


def test_a_users_own_style_changes_nothing(tmp_path):
    plain = save_figure(drawn(), "a", tmp_path / "plain", svg=True)
    with mpl.rc_context(HOSTILE):
        hostile = save_figure(drawn(), "a", tmp_path / "hostile", svg=True)
    assert [p.read_bytes() for p in hostile] == [p.read_bytes() for p in plain]


def test_an_svg_holds_no_date(tmp_path):
    text = save_figure(drawn(), "a", tmp_path, svg=True)[-1].read_text(encoding="utf-8")
    assert "<svg" in text and "dc:date" not in text
