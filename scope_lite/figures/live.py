"""A figure that draws itself while a run trains: what the reader of notebook 00 watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display

from scope_lite.figures.training import curve_panels


class LiveCurves:
    """Collects metrics step by step and redraws one figure in place at every evaluation."""

    def __init__(self, metrics: Sequence[str], colours: Mapping[str, str], labels: Mapping[str, str]):
        self.metrics, self.colours, self.labels = metrics, colours, labels
        self.rows: list[dict[str, Any]] = []
        self._handle: Any = None

    def follow(self, variant: str, world: str, seed: int) -> Callable[[int, int, dict[str, Any]], None]:
        """A callback for ``train(..., on_step=...)`` that draws this run under the name ``variant``."""

        def on_step(step: int, steps: int, metrics: dict[str, Any]) -> None:
            if "panel/real/reward" in metrics:
                self.rows.append({"variant": variant, "world": world, "seed": seed, **metrics})
                self._draw(final=step == steps)

        return on_step

    def _draw(self, final: bool) -> None:
        fig = curve_panels(pd.DataFrame(self.rows), self.metrics, self.colours, self.labels)
        # a redraw every few seconds is sent at screen resolution, or the notebook grows by megabytes
        fig.set_dpi(110 if final else 60)
        if self._handle is None:
            self._handle = display(fig, display_id=True)
        else:
            self._handle.update(fig)
        plt.close(fig)
