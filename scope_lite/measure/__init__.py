"""How collapsed a simulator is: epsilon for exact distributions, and its estimates from sampled replies.

For a known distribution, epsilon = 1 - max probability (Def. 3.1). For text only samples are at hand, so "the same
reply" needs a definition (``replies.LEVELS``: equal strings, alike in wording, one dialogue act), estimates need a bias
correction, and an interval must treat one history, not one reply, as the independent unit. ``production`` draws the
replies of a large setting; it loads models and is imported by its full name only.
"""

from scope_lite.measure.clusters import LIKENESS, cluster_labels, likeness
from scope_lite.measure.intervals import Interval, clustered_interval, jackknife_interval
from scope_lite.measure.replies import (
    ESTIMATORS,
    HISTORY,
    LEVELS,
    OPENING_TOKENS,
    OPENING_WORDS,
    ReplyMeasures,
    by_history,
    direct_rows,
    labels_of,
    measure_replies,
    read_replies,
    size_curve,
    summarise,
    token_level,
    verbalized_rows,
    write_replies,
)
from scope_lite.measure.samples import (
    at_smaller_sizes,
    chao_shen_entropy,
    cross_validated_mode_share,
    distinct_n,
    epsilon,
    miller_madow_entropy,
    mode_share,
    normalise_reply,
    plug_in_entropy,
)

__all__ = [
    "ESTIMATORS",
    "HISTORY",
    "LEVELS",
    "LIKENESS",
    "OPENING_TOKENS",
    "OPENING_WORDS",
    "Interval",
    "ReplyMeasures",
    "at_smaller_sizes",
    "by_history",
    "chao_shen_entropy",
    "cluster_labels",
    "clustered_interval",
    "cross_validated_mode_share",
    "direct_rows",
    "distinct_n",
    "epsilon",
    "jackknife_interval",
    "labels_of",
    "likeness",
    "measure_replies",
    "miller_madow_entropy",
    "mode_share",
    "normalise_reply",
    "plug_in_entropy",
    "read_replies",
    "size_curve",
    "summarise",
    "token_level",
    "verbalized_rows",
    "write_replies",
]
