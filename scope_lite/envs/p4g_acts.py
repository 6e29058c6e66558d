"""Which dialogue act a sentence is: TF-IDF and logistic regression, learned from annotated P4G sentences.

A sample: "How much of it reaches the children?", after "Would you like to donate?", is ask-org-info. A persuadee has 23
acts, a persuader 27, each role its own classifier. About half of the readings agree with the annotators
(``data/README.md`` has the numbers), so never hold read acts against annotated ones: ``data/p4g/act_pairs.csv`` has the
human acts as this same classifier reads them, out of sample. The shipped weights are plain arrays (``acts.npz``, no
pickle), so acts are read without the raw data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score
from sklearn.model_selection import GroupKFold

from scope_lite.envs.p4g import (
    ROLES,
    TABLES,
    Dialogue,
    act_pairs,
    donations,
    exchanges,
    load_dialogues,
    table_of,
    write_table,
)
from scope_lite.store.errors import ScopeError

FEATURES = 4000
PENALTY = 5.0
"""Inverse strength C of the squared penalty; 2, 5 and 10 were tried, 5 had the best accuracy."""
FOLDS = 5

ACT_GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "persuadee": {
        "gives": ("agree-donation", "provide-donation-amount", "confirm-donation"),
        "refuses": ("disagree-donation", "disagree-donation-more", "negative-reaction-to-donation"),
        "reacts": ("positive-reaction-to-donation", "neutral-reaction-to-donation", "acknowledgement"),
        "asks": (
            "ask-org-info", "ask-donation-procedure", "ask-persuader-donation-intention", "task-related-inquiry",
            "personal-related-inquiry",
        ),
        "answers": ("positive-to-inquiry", "negative-to-inquiry", "neutral-to-inquiry"),
        "is polite": ("greeting", "closing", "thank", "you-are-welcome"),
        "other": ("other", "off-task"),
    },
    "persuader": {
        "appeals": (
            "logical-appeal", "emotion-appeal", "credibility-appeal", "foot-in-the-door", "self-modeling",
            "personal-story", "donation-information",
        ),
        "inquires": ("source-related-inquiry", "task-related-inquiry", "personal-related-inquiry"),
        "asks to donate": (
            "proposition-of-donation", "ask-donation-amount", "ask-donate-more", "ask-not-donate-reason",
            "confirm-donation",
        ),
        "answers": ("positive-to-inquiry", "negative-to-inquiry", "neutral-to-inquiry"),
        "is polite": (
            "greeting", "closing", "thank", "you-are-welcome", "praise-user", "acknowledgement", "comment-partner",
        ),
        "other": ("other", "off-task"),
    },
}  # fmt: skip
"""The 23 acts of a persuadee and the 27 of a persuader in upstream's scheme, in groups (ours), which the classifiers
tell apart more surely."""
GROUP_OF = {role: {act: group for group, acts in groups.items() for act in acts} for role, groups in ACT_GROUPS.items()}

Example = tuple[str, str]
"""A sentence, and the last one that the partner said before it."""


def first_sentence(reply: str) -> str:
    """The first sentence of a reply, whose act stands for the reply; annotators' sentences end at ".", "!" or "?"."""
    return re.split(r"(?<=[.!?])\s+", reply.strip(), maxsplit=1)[0]


def features(example: Example) -> list[str]:
    """The words and word pairs of the sentence, its first and last word, and the words that it answers."""
    said, heard = (re.findall(r"\w+(?:'\w+)*|[?!$%]", text.lower().replace("’", "'")) for text in example)
    own = [*said, *map(" ".join, pairwise(said))]
    ends = [f"first:{said[0]}", f"last:{said[-1]}"] if said else []
    return own + ends + [f"heard:{word}" for word in dict.fromkeys(heard)]


@dataclass(frozen=True)
class ActClassifier:
    """The learned weights; the same whether just trained or loaded."""

    acts: tuple[str, ...]
    vocabulary: tuple[str, ...]
    idf: Float[np.ndarray, " features"]
    weights: Float[np.ndarray, "acts features"]
    bias: Float[np.ndarray, " acts"]

    def probabilities(self, examples: Sequence[Example]) -> Float[np.ndarray, "examples acts"]:
        """Probability of each act, in the order of ``acts``; rows sum to 1."""
        vectorizer = _vectorizer(vocabulary=self.vocabulary)
        vectorizer.idf_ = self.idf
        logits = vectorizer.transform(examples) @ self.weights.T + self.bias
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    def read(self, examples: Sequence[Example]) -> list[str]:
        """The most probable act of each example; none for none."""
        if not examples:
            return []
        return [self.acts[i] for i in self.probabilities(examples).argmax(axis=1)]

    def save(self, path: Path) -> None:
        """Write the arrays, the weights in half precision, which changes no reading of the annotated sentences."""
        np.savez_compressed(
            path,
            acts=np.array(self.acts),
            vocabulary=np.array(self.vocabulary),
            idf=self.idf.astype(np.float32),
            weights=self.weights.astype(np.float16),
            bias=self.bias.astype(np.float32),
        )


def weights_path(role: str, folder: Path = TABLES) -> Path:
    return folder / f"{table_of('acts', role)}.npz"


def load_classifier(role: str = "persuadee", folder: Path = TABLES) -> ActClassifier:
    """The shipped classifier of what ``role`` says, trained on all annotated sentences.

    Raises:
        ScopeError: the file is absent or is none of :meth:`ActClassifier.save`.
    """
    path = weights_path(role, folder)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            acts, vocabulary = (tuple(arrays[name].tolist()) for name in ("acts", "vocabulary"))
            idf, weights, bias = (arrays[name].astype(float) for name in ("idf", "weights", "bias"))
    except (OSError, ValueError, KeyError) as error:
        raise ScopeError(f"could not read the act classifier {path}: {error}") from error
    return ActClassifier(acts, vocabulary, idf, weights, bias)


def sentences(dialogues: Sequence[Dialogue], role: str = "persuadee") -> pd.DataFrame:
    """The annotated sentences with which ``role`` answers.

    Columns: dialogue (number), turn, first (whether it opens the answer), said, heard, act.
    """
    return pd.DataFrame(
        {"dialogue": number, "turn": turn, "first": i == 0, "said": said, "heard": asked.sentences[-1], "act": act}
        for number, dialogue in enumerate(dialogues)
        for turn, (asked, answered) in enumerate(exchanges(dialogue, role))
        for i, (said, act) in enumerate(zip(answered.sentences, answered.acts, strict=True))
    )


def train(table: pd.DataFrame) -> ActClassifier:
    """Fit on sentences (columns said, heard, act); seconds, and the same weights every time."""
    vectorizer = _vectorizer(max_features=FEATURES, min_df=2)
    inputs = vectorizer.fit_transform(_examples(table))
    model = LogisticRegression(C=PENALTY, max_iter=500).fit(inputs, table["act"])
    names = tuple(vectorizer.get_feature_names_out().tolist())
    return ActClassifier(tuple(model.classes_.tolist()), names, vectorizer.idf_, model.coef_, model.intercept_)


def cross_read(table: pd.DataFrame, folds: int = FOLDS) -> pd.Series:
    """Each sentence's act as read by a classifier that saw no sentence of its dialogue (grouped cross-validation)."""
    read = pd.Series("", index=table.index)
    for seen, held_out in GroupKFold(folds).split(table, groups=table["dialogue"]):
        read.iloc[held_out] = train(table.iloc[seen]).read(_examples(table.iloc[held_out]))
    return read


def scores(act: pd.Series, read: pd.Series, role: str = "persuadee") -> pd.DataFrame:
    """How the readings agree with the annotators: for the acts of ``role`` and for their groups.

    Columns: kinds (how many), accuracy, macro_f1, and majority, the accuracy of always saying the most common.
    """
    rows, group_of = [], GROUP_OF[role]
    for level, a, b in (("act", act, read), ("group", act.map(group_of), read.map(group_of))):
        macro_f1 = f1_score(a, b, average="macro", zero_division=0)
        majority = a.value_counts(normalize=True).max()
        rows.append({"level": level, "kinds": a.nunique(), "accuracy": accuracy_score(a, b), "macro_f1": macro_f1,
                     "majority": majority})  # fmt: skip
    return pd.DataFrame(rows).set_index("level")


def confusion(act: pd.Series, read: pd.Series, role: str = "persuadee") -> pd.DataFrame:
    """Counts, annotated act by read act, both in the order of :data:`ACT_GROUPS`."""
    order = [name for name in GROUP_OF[role] if name in set(act) | set(read)]
    return pd.DataFrame(confusion_matrix(act, read, labels=order), index=order, columns=order)


def build_tables(raw: Path | None = None, folder: Path = TABLES) -> None:
    """Make everything of ``data/p4g`` that comes from the raw files, in half a minute: tables, weights.

    ``donations``, and for each role ``act_pairs`` (with ``read``, the act as the classifier reads it out of sample),
    ``act_confusion`` (all annotated sentences, out of sample) and ``acts.npz``; the persuader's have it in their name.

    Raises:
        ScopeError: the raw files are absent or not in their format.
    """
    annotated = load_dialogues(raw, annotated=True)
    write_table(donations(load_dialogues(raw)), "donations", folder)
    for role in ROLES:
        table = sentences(annotated, role)
        read = cross_read(table)
        opening = read[table["first"]].to_numpy()
        confused = confusion(table["act"], read, role).rename_axis("annotated").reset_index()
        write_table(act_pairs(annotated, role).assign(read=opening), table_of("act_pairs", role), folder)
        write_table(confused, table_of("act_confusion", role), folder)
        train(table).save(weights_path(role, folder))


def _vectorizer(**options: object) -> TfidfVectorizer:
    return TfidfVectorizer(analyzer=features, sublinear_tf=True, **options)


def _examples(table: pd.DataFrame) -> list[Example]:
    return list(zip(table["said"], table["heard"], strict=True))
