"""The claims C1 to C8 as data: what each says, in which tables, and by which contrasts it stands or falls.

They are the paper's (arXiv 2608.12253 v1) in our words; C7 is ours. Each names its place in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scope_lite.experiments.contrasts import COMMON

UNSEEN, REAL, ENTROPY = "panel/unseen/reward", "panel/real/reward", "entropy"
# Members apart: "unseen" is another set of members for the ensemble (three seen), Base and self-play (none seen).
HELD_OUT, NOT_OWN = COMMON, "all members but sim-a"
LACKED, LACKED_MINUS_OWN = "members whose mode it lacks", "members whose mode it lacks − its own"
RELATED = "twin and half, whose modes it has"
ENSEMBLE = ("sim-a", "sim-b", "sim-c")
NAMES = {UNSEEN: "unseen", REAL: "real users", HELD_OUT: "members that none trained with"}

Rule = Literal["above", "at or above", "below", "at or below", "same"]
SETTINGS = {
    "methods": ("persuasion", "qwen3-tiny"),
    "methods_hard": ("persuasion_hard", "qwen3-tiny"),
    "methods_retail": ("retail", "qwen3-tiny"),
    "methods_airline": ("airline", "qwen3-tiny"),
    "larger_retail": ("retail", "qwen3-small"),
    "family_persuasion": ("persuasion", "olmo3-tiny"),
    "family_retail": ("retail", "olmo3-tiny"),
    "no_exploit": ("persuasion_plain", "qwen3-tiny"),
    "phases": ("persuasion", "qwen3-tiny"),
    "phases_world": ("persuasion", "qwen3-tiny"),
    "pool_sizes": ("persuasion", "qwen3-tiny"),
    "simulator_rewards": ("persuasion", "qwen3-tiny"),
    "cooperation": ("coding", "qwen3-tiny"),
    "cooperation_small": ("coding", "qwen3-small"),
    "multiverse": ("multiverse", "qwen3-tiny"),
}
"""experiment -> its world and the policy's base model"""
METHODS = (
    "methods",
    "methods_hard",
    "methods_retail",
    "methods_airline",
    "larger_retail",
    "family_persuasion",
    "family_retail",
)


@dataclass(frozen=True)
class Contrast:
    """One comparison that a claim stands or falls with."""

    text: str
    rule: Rule
    a: str
    """variant"""
    b: str | None = None
    """the variant that is subtracted; None: nothing is"""
    columns: tuple[str, ...] = (UNSEEN, REAL)
    b_summary: str = "end"
    """what of b is subtracted: its end of training, or its best checkpoint"""
    where: tuple[str, ...] = ()
    """experiments; empty: those of the claim"""
    context: bool = False
    """reported, and not counted in the claim's verdict"""


@dataclass(frozen=True)
class Claim:
    """A claim, in our words."""

    id: str
    statement: str
    experiments: tuple[str, ...]
    contrasts: tuple[Contrast, ...]
    caveat: str = ""
    """what a reader must know before believing the verdict"""


PLAIN = ("no_exploit",)
PHASES = ("phases", "phases_world")


def _from_sharpness(a: str, b: str, rule: Rule) -> tuple[Contrast, ...]:
    """Context: the same comparison of trained simulators by how collapsed they start."""
    contrasts = []
    for start in (2, 3, 4, 8):
        text = f"{a} − {b}, both from γ = {start}"
        variants = (f"{a}, sharpness={start}", f"{b}, sharpness={start}")
        contrasts.append(Contrast(text, rule, *variants, where=PHASES, context=True))
    return tuple(contrasts)


CLAIMS = (
    Claim(
        "C1",
        "RL (Single) collapses: it ends below its own best and below the un-sharpened control on unseen simulators, "
        "entropy near zero; not where the world has no exploit (Figures 3, 4 and 19 to 21)",
        (*METHODS, "multiverse"),
        (
            Contrast("RL (Single), end − own best", "below", "single", "single", (UNSEEN,), "best"),
            Contrast("RL (Single) − un-sharpened", "below", "single", "unsharpened"),
            Contrast("RL (Single), entropy in nats", "at or below", "single", columns=(ENTROPY,)),
            Contrast("RL (Single) − un-sharpened, entropy", "below", "single", "unsharpened", (ENTROPY,), context=True),
            Contrast("RL (Single) − Base", "at or below", "single", "base", (NOT_OWN, REAL), context=True),
            Contrast("RL (Single), end − own best", "same", "single", "single", (UNSEEN,), "best", PLAIN),
            Contrast("RL (Single) − un-sharpened", "same", "single", "unsharpened", where=PLAIN),
        ),
        "the control and the world without an exploit are ours; the paper's entropy falls from 1.9 to .4 nats (F.3), "
        "and its collapse is milder on P4G",
    ),
    Claim(
        "C2",
        "Verbalized Sampling recovers: it ends above RL (Single) (Table 1, Figure 25)",
        (*METHODS, "multiverse"),
        (
            Contrast("Verbalized − RL (Single)", "above", "verbalized", "single"),
            Contrast("Verbalized − un-sharpened", "same", "verbalized", "unsharpened", context=True),
        ),
        "by construction: at nano Verbalized Sampling is a model of itself that lists replies drawn from P",
    ),
    Claim(
        "C3",
        "Co-Training ends at or above Verbalized Sampling (Table 1: on τ²-bench; on P4G Verbalized Sampling is ahead)",
        (*METHODS, "multiverse"),
        (
            Contrast("Co-Training − Verbalized", "at or above", "cotraining", "verbalized"),
            Contrast("Co-Training − RL (Single)", "above", "cotraining", "single", context=True),
            *_from_sharpness("Co-Training", "zero reward", "above"),
        ),
        "`retail` and `airline` are modelled on τ²-bench, the `persuasion` worlds on P4G; the rival has P by "
        "construction; Co-Training starts from the collapsed simulator (γ = 8; other starts: notebook 06), and its "
        "simulator has the curriculum reward in every world, which the paper uses on τ²-bench only (Table 9)",
    ),
    Claim(
        "C4",
        "Population Co-Training ends at or above Co-Training (Table 1: in every cell, mostly within one standard "
        "deviation of the panel)",
        METHODS,
        (
            Contrast("Population − Co-Training", "at or above", "population", "cotraining"),
            Contrast("Population − RL (Single)", "above", "population", "single", context=True),
            *_from_sharpness("Population", "Co-Training", "at or above"),
        ),
        "both start from the collapsed simulator (γ = 8; other starts: notebook 06) and have the curriculum reward in "
        "every world, which the paper uses on τ²-bench only (Table 9); a tie at the floor, as in `airline`, says "
        "nothing",
    ),
    Claim(
        "C5",
        "a pool of K = 5 is best: clearly above K = 1, slightly above K = 10 (F.1, Figure 17)",
        ("pool_sizes",),
        (
            Contrast("K = 5 − K = 1", "above", "K=5", "K=1"),
            Contrast("K = 5 − K = 10", "above", "K=5", "K=10"),
        ),
        "measured with the curriculum reward, where the paper's P4G has the adversarial one (Table 9); from a starting "
        "sharpness of γ = 4, chosen after one seed of Co-Training was seen at 2 and 4",
    ),
    Claim(
        "C6",
        "of the simulator's rewards only the curriculum works, adversarial and cooperative do not (F.8, Figure 27: on "
        "τ²-bench retail, against the ensemble of three)",
        ("simulator_rewards",),
        (
            Contrast("curriculum − zero reward", "above", "curriculum", "zero"),
            Contrast("adversarial − zero reward", "at or below", "adversarial", "zero"),
            Contrast("cooperative − zero reward", "at or below", "cooperative", "zero"),
            Contrast("random reward − zero reward", "same", "random", "zero", context=True),
        ),
        "measured in `persuasion`, against a simulator without reward; on P4G, which that world is modelled on, the "
        "paper itself uses the adversarial reward (Table 9), so this is no test of F.8; from a starting sharpness of "
        "γ = 4, chosen after one seed of Co-Training was seen at 2 and 4",
    ),
    Claim(
        "C7",
        "an ensemble helps less on unseen families than on its own members",
        METHODS,
        (
            # sim-a is RL (Single)'s own: the gain on its own members is read off the other two
            Contrast("gain of Ensemble over RL (Single)", "below", "ensemble", "single", (LACKED_MINUS_OWN,)),
            Contrast("Ensemble − un-sharpened", "below", "ensemble", "unsharpened", (LACKED,), context=True),
            Contrast("Ensemble − un-sharpened", "same", "ensemble", "unsharpened", (RELATED,), context=True),
            Contrast("Ensemble − RL (Single)", "above", "ensemble", "single", (HELD_OUT, REAL), context=True),
        ),
        "ours, not the paper's; built in as far as it is a matter of modes: the panel has members whose favourite the "
        "ensemble lacks; with unseen members whose mode it has, the context contrasts show what is left",
    ),
    Claim(
        "C8",
        "in cooperation, population self-play is at or above self-play, that at or above play with an ensemble, "
        "and that at or above play with a fixed partner (Table 2)",
        ("cooperation", "cooperation_small"),
        (
            Contrast(
                "population self-play − self-play",
                "at or above",
                "selfplay_population",
                "selfplay",
                (HELD_OUT, REAL),
            ),
            Contrast("self-play − ensemble", "at or above", "selfplay", "ensemble", (HELD_OUT, REAL)),
            Contrast("ensemble − fixed partner", "at or above", "ensemble", "single", (HELD_OUT, REAL)),
            Contrast("fixed partner − un-sharpened", "below", "single", "unsharpened", (HELD_OUT, REAL), context=True),
        ),
    ),
)
