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
from itertools import pairwise
from pathlib import Path
from typing import Any

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
from scope_lite.store.plain_yaml import read_yaml

FEATURES = 4000
PENALTY = 5.0
"""Inverse strength C of the squared penalty; 2, 5 and 10 were tried, 5 had the best accuracy."""
FOLDS = 5

ACT_GROUPS: dict[str, dict[str, list[str]]] = read_yaml(Path(__file__).with_suffix(".yaml"))
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


class ActClassifier:
    """A pipeline of scikit-learn, TF-IDF and logistic regression; the same whether just trained or loaded."""

    def __init__(self, **options: Any):
        """Not fitted yet; ``options`` are those of the vectorizer."""
        self.vectorizer = TfidfVectorizer(analyzer=features, sublinear_tf=True, **options)
        self.regression = LogisticRegression(C=PENALTY, max_iter=500)

    @property
    def acts(self) -> tuple[str, ...]:
        return tuple(self.regression.classes_.tolist())

    def probabilities(self, examples: Sequence[Example]) -> Float[np.ndarray, "examples acts"]:
        """Probability of each act, in the order of ``acts``; rows sum to 1."""
        return self.regression.predict_proba(self.vectorizer.transform(examples))

    def read(self, examples: Sequence[Example]) -> list[str]:
        """The most probable act of each example; none for none."""
        return [self.acts[i] for i in self.probabilities(examples).argmax(axis=1)] if examples else []

    def save(self, path: Path) -> None:
        """Write the arrays, the weights in half precision, which changes no reading of the annotated sentences."""
        np.savez_compressed(
            path,
            acts=np.array(self.acts),
            vocabulary=self.vectorizer.get_feature_names_out().astype(str),
            idf=self.vectorizer.idf_.astype(np.float32),
            weights=self.regression.coef_.astype(np.float16),
            bias=self.regression.intercept_.astype(np.float32),
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
            classifier = ActClassifier(vocabulary=arrays["vocabulary"].tolist())
            classifier.vectorizer.idf_ = arrays["idf"].astype(float)
            regression = classifier.regression
            regression.classes_ = arrays["acts"]
            regression.coef_, regression.intercept_ = arrays["weights"].astype(float), arrays["bias"].astype(float)
    except (OSError, ValueError, KeyError) as error:
        raise ScopeError(f"could not read the act classifier {path}: {error}") from error
    return classifier


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
    classifier = ActClassifier(max_features=FEATURES, min_df=2)
    classifier.regression.fit(classifier.vectorizer.fit_transform(_examples(table)), table["act"])
    return classifier


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


def _examples(table: pd.DataFrame) -> list[Example]:
    return list(zip(table["said"], table["heard"], strict=True))
