"""How collapsed a reply distribution is: exactly (Def. 3.1), and estimated from sampled replies.

Two replies are the same if their normalised strings are equal, or, more coarsely, if they share most of their wording
(:func:`cluster_labels`, without an embedding model).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from jaxtyping import Float

from scope_lite.store.errors import ScopeError

NGRAMS = (3, 5)
"""Lengths of the character n-grams within words: short enough that "donate" and "donating" share most of theirs."""
LIKENESS = 0.5
"""Two groups of replies are one if their members' mean cosine is at least this. Fixed by hand on invented pairs
("I would like to donate" / "I'd like to donate a dollar": .7; two greetings with other words: below .3)."""


def epsilon(probs: Float[np.ndarray, "*batch replies"]) -> Float[np.ndarray, "*batch"]:
    """Per-turn collapse error of exact reply distributions: 1 - max probability along the last axis (Def. 3.1)."""
    return 1.0 - np.asarray(probs, dtype=float).max(axis=-1)


# -- what counts as the same reply ------------------------------------------------------------------------------------


def normalise_reply(text: str, first_words: int | None = None) -> str:
    """Reduce a reply to what must agree for two replies to count as the same string.

    Unicode compatibility forms, letter case, punctuation and spacing are removed; digits stay. With ``first_words``,
    only that many opening words are kept. An empty string means that nothing was said.
    """
    plain = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    return " ".join(re.findall(r"\w+(?:'\w+)*", plain)[:first_words])


def likeness(texts: Sequence[str]) -> Float[np.ndarray, "texts texts"]:
    """Cosine of the texts' character n-gram counts (damped by a logarithm), from 0 to 1.

    No weights by rarity: those would make the likeness of two replies depend on which others were drawn.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    hashed = HashingVectorizer(analyzer="char_wb", ngram_range=NGRAMS, norm=None, alternate_sign=False)
    counts = hashed.transform([normalise_reply(text) for text in texts])
    counts.data = np.log1p(counts.data)
    lengths = np.sqrt(np.asarray(counts.multiply(counts).sum(axis=1)).ravel())
    silent = lengths == 0
    lengths[silent] = 1.0
    cosines = (counts @ counts.T).toarray() / np.outer(lengths, lengths)
    cosines[np.ix_(silent, silent)] = 1.0  # two who say nothing say the same
    return np.clip(cosines, 0.0, 1.0)


def cluster_labels(texts: Sequence[str], threshold: float = LIKENESS) -> list[int]:
    """A number for each text; texts with the same number count as the same reply.

    Agglomerative clustering with average linkage; strings that are equal after normalisation always share a number.
    """
    if len(texts) < 2:
        return [0] * len(texts)
    from sklearn.cluster import AgglomerativeClustering

    distances = np.round(1.0 - likeness(texts), 12)  # equal strings lie at 0 exactly
    np.fill_diagonal(distances, 0.0)
    groups = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage="average", distance_threshold=1.0 - threshold
    )
    return groups.fit_predict(distances).tolist()


# -- how varied -------------------------------------------------------------------------------------------------------


def mode_share(labels: Sequence[Hashable]) -> float:
    """Share of the most common label: the plug-in estimate of 1 - epsilon. Its floor is 1/n, its bias upward.

    Raises:
        ScopeError: no labels.
    """
    return float(_counts(labels).max()) / len(labels)


def cross_validated_mode_share(labels: Sequence[Hashable]) -> float:
    """Share of labels that equal the most common one of the *others* (ties shared out): the bias goes the other way.

    Its expectation is the probability of a mode guessed from n - 1 samples, so at most 1 - epsilon, while the plug-in's
    is at least that: together they enclose the truth.

    Raises:
        ScopeError: fewer than two labels.
    """
    if len(labels) < 2:
        raise ScopeError("one reply cannot be compared with the others: draw at least two")
    hits, counts = 0.0, _counts(labels).tolist()
    for i, count in enumerate(counts):
        rest = [*counts[:i], *counts[i + 1 :]]
        top = max(rest, default=0)
        if count - 1 >= top:
            hits += count / (1 + (rest.count(top) if count - 1 == top else 0))
    return hits / len(labels)


def plug_in_entropy(labels: Sequence[Hashable]) -> float:
    """Entropy of the observed shares, in nats; too low for few samples, and never above log n."""
    shares = _counts(labels) / len(labels)
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
    counts, n = _counts(labels), len(labels)
    singles = min(int((counts == 1).sum()), n - 1)  # all single would be no coverage at all
    shares = (1 - singles / n) * counts / n
    return float(-(shares * np.log(shares) / (1 - (1 - shares) ** n)).sum()) + 0.0


def at_smaller_sizes(
    labels: Sequence[Hashable], sizes: Sequence[int], measure: Callable[[Sequence[Hashable]], float]
) -> list[float]:
    """What ``measure`` gives on average with fewer labels: the mean over disjoint blocks of each size, in order.

    NaN for a size above the number of labels. The labels of one history are independent draws, so their order is none.
    """
    blocks = [[labels[i : i + size] for i in range(0, len(labels) - size + 1, size)] for size in sizes]
    return [float(np.mean([measure(block) for block in some])) if some else math.nan for some in blocks]


def _counts(labels: Sequence[Hashable]) -> Float[np.ndarray, " distinct"]:
    if not labels:
        raise ScopeError("no replies to measure: draw at least one")
    return np.array(list(Counter(labels).values()), dtype=float)
