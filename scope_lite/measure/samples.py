"""How collapsed a reply distribution is: exactly (Def. 3.1), and estimated from sampled labels or texts."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from jaxtyping import Float

from scope_lite.store.errors import ScopeError


def epsilon(probs: Float[np.ndarray, "*batch replies"]) -> Float[np.ndarray, "*batch"]:
    """Per-turn collapse error of exact reply distributions: 1 - max probability along the last axis (Def. 3.1)."""
    return 1.0 - np.asarray(probs, dtype=float).max(axis=-1)


def normalise_reply(text: str, first_words: int | None = None) -> str:
    """Reduce a reply to what must agree for two replies to count as the same string.

    Unicode compatibility forms, letter case, punctuation and spacing are removed; digits stay. With ``first_words``,
    only that many opening words are kept. An empty string means that nothing was said.
    """
    plain = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    words = re.findall(r"\w+(?:'\w+)*", plain)
    return " ".join(words[:first_words])


def mode_share(labels: Sequence[Hashable]) -> float:
    """Share of the most common label: the plug-in estimate of 1 - epsilon. Its floor is 1/n, its bias upward.

    Raises:
        ScopeError: no labels.
    """
    return max(_counts(labels)) / len(labels)


def cross_validated_mode_share(labels: Sequence[Hashable]) -> float:
    """Share of labels that equal the most common one of the *others* (ties shared out): the bias goes the other way.

    Its expectation is the probability of a mode guessed from n - 1 samples, so at most 1 - epsilon, while the plug-in's
    is at least that: together they enclose the truth.

    Raises:
        ScopeError: fewer than two labels.
    """
    counts = Counter(labels)
    if counts.total() < 2:
        raise ScopeError("one reply cannot be compared with the others: draw at least two")
    hits = 0.0
    for label, count in counts.items():
        rest = [c for other, c in counts.items() if other != label]
        top = max(rest, default=0)
        if count - 1 >= top:
            hits += count / (1 + (rest.count(top) if count - 1 == top else 0))
    return hits / counts.total()


def plug_in_entropy(labels: Sequence[Hashable]) -> float:
    """Entropy of the observed shares, in nats; too low for few samples, and never above log n."""
    shares = np.array(_counts(labels)) / len(labels)
    return float(-(shares * np.log(shares)).sum()) + 0.0


def miller_madow_entropy(labels: Sequence[Hashable]) -> float:
    """Plug-in entropy plus (distinct labels - 1) / 2n, in nats: its first-order bias removed (Miller 1955)."""
    return plug_in_entropy(labels) + (len(_counts(labels)) - 1) / (2 * len(labels))


def chao_shen_entropy(labels: Sequence[Hashable]) -> float:
    """Entropy in nats, with an allowance for labels that were not seen (Chao and Shen 2003).

    Labels seen once tell how much probability is still unseen (Good's coverage, C = 1 - singles / n): shares are
    scaled by C, and each term is divided by the chance that its label shows up among n at all. Where every label is
    single no sample can tell the entropy; the estimate is then near 2 log n and says "large".
    """
    counts = np.array(_counts(labels), dtype=float)
    n = len(labels)
    singles = min(int((counts == 1).sum()), n - 1)  # all single would be no coverage at all
    shares = (1 - singles / n) * counts / n
    return float(-(shares * np.log(shares) / (1 - (1 - shares) ** n)).sum()) + 0.0


def distinct_n(texts: Sequence[str], n: int = 1) -> float:
    """Distinct word n-grams over all word n-grams of the normalised texts; NaN if there are none (Li et al. 2016)."""
    grams = [tuple(words[i : i + n]) for words in map(_words, texts) for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else math.nan


def at_smaller_sizes(
    labels: Sequence[Hashable], sizes: Sequence[int], measure: Callable[[Sequence[Hashable]], float]
) -> list[float]:
    """What ``measure`` gives on average with fewer labels: the mean over disjoint blocks of each size, in order.

    NaN for a size above the number of labels. The labels of one history are independent draws, so their order is none.
    """
    means = []
    for size in sizes:
        blocks = [labels[i : i + size] for i in range(0, len(labels) - size + 1, size)]
        means.append(float(np.mean([measure(block) for block in blocks])) if blocks else math.nan)
    return means


def _counts(labels: Sequence[Hashable]) -> list[int]:
    if not labels:
        raise ScopeError("no replies to measure: draw at least one")
    return list(Counter(labels).values())


def _words(text: str) -> list[str]:
    return normalise_reply(text).split()
