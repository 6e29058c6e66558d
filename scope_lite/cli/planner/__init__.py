"""The memory of a run on one GPU, from its configuration and its model's shape, before anything is loaded."""

from __future__ import annotations

from scope_lite.cli.planner.plan import CARDS, GIB, Card, Plan, card, plan, require_fit
from scope_lite.cli.planner.shapes import ModelShape, from_config, shape_of

__all__ = ["CARDS", "GIB", "Card", "ModelShape", "Plan", "card", "from_config", "plan", "require_fit", "shape_of"]
