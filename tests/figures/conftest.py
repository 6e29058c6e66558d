"""Figures are tested in the house style, as they are drawn."""

import pytest

from scope_lite.figures.style import use_style


@pytest.fixture(autouse=True)
def house_style():
    use_style()
