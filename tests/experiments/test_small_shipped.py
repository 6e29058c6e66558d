"""The shipped adapters on SmolLM2: whole, small, and nearer to what their seat says than SmolLM2 as it comes."""

from __future__ import annotations

import hashlib
import json

import pytest

from scope_lite.envs.p4g import Dialogue, Person, Turn
from scope_lite.experiments.text_models.data import encode
from scope_lite.experiments.text_models.finetune import perplexity
from scope_lite.models import adapters
from scope_lite.models.hf import SeatModel
from scope_lite.models.pretrained import load_model
from scope_lite.store.paths import SMALL_MODELS

NAMES = ("persuadee", "persuader", "typicality", "agreement")
TALK = (
    "Hi there! Have you heard of Save the Children?",
    "Hello, no, I have not. What do they do?",
    "They bring food and school to children in poor countries. Every little bit helps!",
    "That sounds like a good cause. How do I know that the money gets there?",
    "You can read about it on their site. Would you like to give some of your payment today?",
    "Sure, I think I can give 50 cents.",
    "Thank you so much! That is very kind of you.",
    "You're welcome. Have a nice day!",
)
"""Ours, in the manner of Persuasion for Good."""


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_is_whole_and_small_and_says_where_it_comes_from(name: str) -> None:
    manifest = json.loads((SMALL_MODELS / name / "manifest.json").read_text(encoding="utf-8"))
    weights = SMALL_MODELS / name / adapters.WEIGHTS
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == manifest["sha256"]
    assert weights.stat().st_size < 12e6
    assert (
        json.loads((SMALL_MODELS / name / adapters.CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
        == "smollm2"
    )
    assert manifest["command"].startswith("scope-lite small ")


@pytest.mark.parametrize("role", ["persuadee", "persuader"])
def test_a_tuned_adapter_expects_what_its_seat_says(role: str) -> None:
    """A dialogue that it never saw: the perplexity of the seat's own turns falls by a quarter at least."""
    nobody = Person("", 0.0)
    turns = tuple(Turn(("persuader", "persuadee")[i % 2], (text,)) for i, text in enumerate(TALK))
    models = [load_model(name, "cpu") for name in ("smollm2", f"smollm2+{role}")]
    base, tuned = (SeatModel(loaded.model, loaded.tokenizer) for loaded in models)
    example = [encode(Dialogue("ours", turns, nobody, nobody), role, base.format, 1024)]
    assert perplexity(tuned, example) < 0.75 * perplexity(base, example)
