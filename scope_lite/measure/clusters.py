"""The middle level of "the same reply": texts that share most of their wording, without an embedding model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from scope_lite.measure.samples import normalise_reply

NGRAMS = (3, 5)
"""Lengths of the character n-grams within words: short enough that "donate" and "donating" share most of theirs."""
LIKENESS = 0.5
"""Two groups of replies are one if their members' mean cosine is at least this. Fixed by hand on invented pairs
("I would like to donate" / "I'd like to donate a dollar": .7; two greetings with other words: below .3)."""


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
