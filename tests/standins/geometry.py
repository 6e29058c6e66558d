"""What is wrong with how a figure is laid out, found from matplotlib's own boxes: a helper for tests."""

from __future__ import annotations

from itertools import combinations
from unittest import mock

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Affine2D, Bbox

COLUMN = 9 / 2.54
"""inches"""
SMALLEST = 5.0
"""points; what publishers ask for at least"""
SLACK = 0.1
"""part of a font's size that two boxes may share: a box is a little larger than the letters in it"""


def problems(fig: Figure) -> list[str]:
    """One line for each text that is cut off, lies on another or is too small, legend that hides, and empty panel."""
    texts = drawn_texts(fig)
    found = cut_texts(fig, texts) + overlapping_texts(texts) + small_texts(fig, texts)
    for ax in fig.axes:
        if is_empty(ax):
            found.append(f"empty panel {ax.get_title(loc='left')!r}")
    legends = [legend for legend in [*fig.legends, *(ax.get_legend() for ax in fig.axes)] if legend]
    return found + [line for legend in legends for line in hidden_by(legend, fig, texts)]


def small_texts(fig: Figure, texts: list[Text]) -> list[str]:
    """The texts that are smaller than SMALLEST points once the figure is scaled down to a journal's column."""
    scale = min(1.0, COLUMN / fig.get_size_inches()[0])
    sizes = {text.get_text(): text.get_fontsize() * scale for text in texts}
    return [f"{size:.1f} points at 9 cm: {text!r}" for text, size in sizes.items() if size < SMALLEST]


def drawn_texts(fig: Figure) -> list[Text]:
    """The texts that matplotlib really draws: no hidden tick labels, none beyond the limits of an axis."""
    seen: dict[Text, None] = {}
    draw = Text.draw

    def note(text: Text, renderer, *args, **kwargs):
        if text.get_visible() and text.get_text().strip():
            seen[text] = None
        return draw(text, renderer, *args, **kwargs)

    with mock.patch.object(Text, "draw", note):
        fig.draw_without_rendering()
    return list(seen)


def cut_texts(fig: Figure, texts: list[Text]) -> list[str]:
    found = []
    for text in texts:
        box, slack = text.get_window_extent(), SLACK * font_pixels(text)
        edges = fig.bbox.padded(slack)
        clip = text.get_clip_box() if text.get_clip_on() else None
        inside = contains(edges, box) and (clip is None or contains(clip.padded(slack), box))
        if not inside:
            found.append(f"cut off: {text.get_text()!r}")
    return found


def overlapping_texts(texts: list[Text]) -> list[str]:
    boxes = [text.get_window_extent() for text in texts]
    outlines = [outline(text) for text in texts]
    return [
        f"{texts[i].get_text()!r} lies on {texts[j].get_text()!r}"
        for i, j in combinations(range(len(texts)), 2)
        if boxes[i].overlaps(boxes[j]) and outlines[i].intersects_path(outlines[j], filled=True)
    ]


def outline(text: Text) -> Path:
    """The rectangle around a text, rotated as the text is, a little smaller than its box."""
    around, angle = text.get_window_extent(), text.get_rotation()
    text.set_rotation(0)
    flat = text.get_window_extent()
    text.set_rotation(angle)
    slack = SLACK * font_pixels(text)
    width, height = max(flat.width - 2 * slack, 1), max(flat.height - 2 * slack, 1)
    # the box around a rotated rectangle has the same centre
    middle = (around.x0 + around.x1) / 2, (around.y0 + around.y1) / 2
    place = Affine2D().translate(-0.5, -0.5).scale(width, height).rotate_deg(angle).translate(*middle)
    return place.transform_path(Path.unit_rectangle())


def hidden_by(legend: Legend, fig: Figure, texts: list[Text]) -> list[str]:
    box, own = legend.get_window_extent(), set(legend.get_texts()) | {legend.get_title()}
    name = f"legend ({', '.join(t.get_text() for t in legend.get_texts())})"
    found = [
        f"{name} lies on {text.get_text()!r}"
        for text in texts
        if text not in own and shrunk(box, text).overlaps(text.get_window_extent())
    ]
    if not contains(fig.bbox.padded(1), box):
        found.append(f"cut off: {name}")
    for ax in fig.axes:
        if legend in fig.legends:
            hides = box.padded(-1).overlaps(ax.get_window_extent())
        else:
            # what lies beyond the panel's limits is not drawn, so only the part inside can hide anything
            inside = Bbox.intersection(box, ax.get_window_extent())
            hides = inside is not None and crossed_by_data(inside, ax)
        if hides:
            found.append(f"{name} lies on the data of {ax.get_title(loc='left')!r}")
    return found


def crossed_by_data(box: Bbox, ax: Axes) -> bool:
    """Whether a line of a panel goes through a box or a point lies in it; bars of errors are not looked at."""
    clouds = [c.get_offset_transform().transform(c.get_offsets()) for c in ax.collections if len(c.get_offsets())]
    for line in ax.lines:
        path = line.get_transform().transform_path(line.get_path()).cleaned(remove_nans=True)
        if line.get_linestyle() == "None":
            clouds.append(path.vertices)
        elif path.intersects_bbox(box, filled=False):
            return True
    return any(box.count_contains(cloud) for cloud in clouds)


def is_empty(ax: Axes) -> bool:
    """Whether a panel shows nothing: no finite point of a line, no area, no picture, no text."""
    line = any(np.isfinite(line.get_xydata()).all(axis=1).any() for line in ax.lines)
    return not (line or ax.collections or ax.patches or ax.images or ax.texts)


def contains(outer: Bbox, inner: Bbox) -> bool:
    return outer.x0 <= inner.x0 and outer.y0 <= inner.y0 and inner.x1 <= outer.x1 and inner.y1 <= outer.y1


def shrunk(box: Bbox, text: Text) -> Bbox:
    return box.padded(-SLACK * font_pixels(text))


def font_pixels(text: Text) -> float:
    return text.get_fontsize() * text.get_figure(root=True).dpi / 72
