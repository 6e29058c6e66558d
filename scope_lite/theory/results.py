"""All results in the order of the paper, and the one table that says how each of them fared."""

from __future__ import annotations

import pandas as pd

from scope_lite.theory.concentration import COROLLARY_3_5, PROPOSITION_3_4
from scope_lite.theory.gradients import PROPOSITION_3_7, PROPOSITION_B_8, THEOREM_3_2
from scope_lite.theory.inequality import Inequality, batches, largest_ratio, mutation_ratio, paper_ratio
from scope_lite.theory.leads import LEMMA_B_5
from scope_lite.theory.population import LEMMA_B_7, LEMMA_B_9
from scope_lite.theory.regret import PROPOSITION_3_6
from scope_lite.theory.sharpening import PROPOSITION_B_2, PROPOSITION_F_1, PROPOSITION_F_1_VERBALIZED
from scope_lite.theory.variance import LEMMA_3_3

RESULTS: tuple[Inequality, ...] = (
    THEOREM_3_2,
    LEMMA_3_3,
    PROPOSITION_3_4,
    COROLLARY_3_5,
    PROPOSITION_3_6,
    PROPOSITION_3_7,
    PROPOSITION_B_2,
    LEMMA_B_5,
    LEMMA_B_7,
    PROPOSITION_B_8,
    LEMMA_B_9,
    PROPOSITION_F_1,
    PROPOSITION_F_1_VERBALIZED,
)


def check_table(n: int = 10_000, n_adversarial: int = 200, seed: int = 0) -> pd.DataFrame:
    """One row per result: instances checked, largest left/right for both forms, tightest instance, what breaks it."""
    return pd.DataFrame([_row(result, n, n_adversarial, seed) for result in RESULTS])


def _row(result: Inequality, n: int, n_adversarial: int, seed: int) -> dict[str, object]:
    instances = batches(result, n, n_adversarial, seed)
    sharp = {kind: largest_ratio(result, batch) for kind, batch in instances.items()}
    return {
        "result": result.title,
        "instances": n + n_adversarial + 1,
        "paper: max ratio": max(paper_ratio(result, batch) for batch in instances.values()),
        "sharp: max ratio": max(sharp.values()),
        "sharp, random": sharp["random"],
        "sharp, ascent": sharp["gradient ascent"],
        "tightest instance": result.tight_text,
        "broken by": "; ".join(f"{m.name} ({mutation_ratio(result, m):.3g})" for m in result.mutations),
    }
