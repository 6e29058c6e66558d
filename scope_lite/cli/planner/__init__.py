"""Memory and time of a run on one GPU, from its configuration and its model's shape, before anything is loaded."""

from __future__ import annotations

from scope_lite.cli.planner.cards import CARDS, GIB, Card, card
from scope_lite.cli.planner.plan import Plan, plan, require_fit
from scope_lite.cli.planner.shapes import KNOWN, ModelShape, shape_of
from scope_lite.cli.planner.workload import Workload

__all__ = ["CARDS", "GIB", "KNOWN", "Card", "ModelShape", "Plan", "Workload", "card", "plan", "require_fit", "shape_of"]
