"""Persuasion for Good (Wang et al. 2019): 1,017 human dialogues in which one person asks another for a donation.

One row, as a sample: the persuader writes "Would you like to donate?" (act: proposition-of-donation), the persuadee
"How much of it reaches them?" (act: ask-org-info). Both were paid and could give up to 2 dollars of it; 300 dialogues
are annotated sentence by sentence. Texts are not shipped: they come from a folder of the user's (the environment
variable ``SCOPE_LITE_P4G``) or from a pinned, hash-checked download. Shipped are the count tables that the figures
need; ``p4g_acts.build_tables`` makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from scope_lite.envs.donation import read_donation
from scope_lite.store.errors import ScopeError
from scope_lite.store.escaping import for_csv
from scope_lite.store.paths import DATA, path_in
from scope_lite.store.paths import P4G_VARIABLE as FOLDER_VARIABLE

COMMIT = "3fbc0df7bd2a081413cad6e6092e7c712efc26c4"
UPSTREAM = f"https://raw.githubusercontent.com/ohyj1002/persuasionforgood/{COMMIT}/data/"
FILES = {
    "AnnotatedData/300_dialog.xlsx": "48e292ceb4b5574694e82581eb2a25883ce9ef75817193820dfe3c5621c62767",
    "AnnotatedData/300_info.xlsx": "5d07b790f7794cba6c1cb96f680ccb38053fac133077b613fa121c2588172f2f",
    "FullData/full_dialog.csv": "3ecaa3e9f0577170b91c3306d2439c910150cf010b76e7637ef3bab724075a9f",
    "FullData/full_info.csv": "93be6f62d41f4925e8be21534c23cd75444e1a5d5384abe13b15eda2b37838b4",
}
"""The files, by their place under ``data/`` upstream, and their SHA-256."""

TABLES = DATA / "p4g"
ROLES = ("persuader", "persuadee")  # upstream's 0 and 1

_ANNOTATED, _ANNOTATED_PEOPLE, _ALL, _PEOPLE = FILES
_BIG_FIVE = {"extrovert": "outgoing", "agreeable": "agreeable", "conscientious": "conscientious",
             "neurotic": "easily worried", "open": "open to new experiences"}  # fmt: skip
_BACKGROUND = {"sex": "Sex", "edu": "Education", "marital": "Family", "employment": "Work", "religion": "Religion",
               "ideology": "Politics"}  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """What one person wrote before the other answered."""

    role: str
    """"persuader" or "persuadee" """
    sentences: tuple[str, ...]
    acts: tuple[str, ...] = ()
    """the most salient act of each sentence; empty where the dialogue is not annotated"""

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


@dataclass(frozen=True)
class Person:
    """One participant, as the questionnaire and the payment know them."""

    user: str
    donation: float
    """dollars given after the dialogue, as recorded: above 2 for 35 persuadees"""
    pledge: float | None = None
    """dollars that annotators found promised in the dialogue (annotated dialogues, persuadee); None if none"""
    answers: dict[str, float | str] = field(default_factory=dict)
    """questionnaire, by upstream's column name without ".x"; what was not answered is absent"""

    def as_text(self) -> str:
        """A persona in labelled lines for a prompt: background, and traits scored 4 and above or 2 and below of 5.

        Race is left out: no prompt here needs it. Ages below 18 are typing errors and are left out too.
        """
        a = self.answers
        age = a.get("age")
        lines = {"Age": f"{age:.0f}" if isinstance(age, float) and age >= 18 else ""}
        lines |= {label: str(a.get(name, "")) for name, label in _BACKGROUND.items()}
        scores = {word: float(a[name]) for name, word in _BIG_FIVE.items() if name in a}
        traits = [word for word, score in scores.items() if score >= 4]
        traits += [f"not {word}" for word, score in scores.items() if score <= 2]
        lines["Character"] = ", ".join(traits)
        return "\n".join(f"{label}: {text}" for label, text in lines.items() if text)


@dataclass(frozen=True)
class Dialogue:
    """One conversation. The persuader begins and turns alternate (but for a lost turn in one annotated dialogue)."""

    name: str
    turns: tuple[Turn, ...]
    persuader: Person
    persuadee: Person


_REMEDY = f"set {FOLDER_VARIABLE} to a folder with {', '.join(Path(name).name for name in FILES)}"


def raw_folder(path: Path | None = None, download: bool = True) -> Path:
    """The folder of the raw files: ``path``, else that of ``SCOPE_LITE_P4G``, else the download, fetched at need.

    Raises:
        ScopeError: a file is missing in a given folder, or nothing is given and the download is off or fails.
    """
    if (given := path or path_in(FOLDER_VARIABLE)) is not None:
        for name in FILES:
            _find(given, name)
        return given
    import pooch  # only who downloads pays for its import

    pinned = {name: f"sha256:{digest}" for name, digest in FILES.items()}
    files = pooch.create(pooch.os_cache("scope_lite") / "p4g", UPSTREAM, registry=pinned)
    if not download and not all((files.abspath / name).is_file() for name in FILES):
        raise ScopeError(f"no Persuasion for Good data here: {_REMEDY}")
    try:
        for name in FILES:
            files.fetch(name)
    except (OSError, ValueError) as error:  # no network, or another hash than the pinned one
        raise ScopeError(f"could not download Persuasion for Good ({str(error).splitlines()[0]}): {_REMEDY}") from error
    return files.abspath


def load_dialogues(path: Path | None = None, annotated: bool = False) -> tuple[Dialogue, ...]:
    """Load the dialogues, in upstream's order.

    Args:
        path: the folder of the raw files, as upstream's ``data/`` or flat; default see :func:`raw_folder`.
        annotated: the 300 dialogues with acts and pledges instead of all 1,017.

    Raises:
        ScopeError: files absent, or not in upstream's format.
    """
    folder = raw_folder(path)
    # By turn number, not by neighbouring rows: in five annotated dialogues the rows of a turn are torn apart.
    said: dict[str, dict[tuple[int, int], list[tuple[str, str]]]] = {}
    for row in _read(folder, _ANNOTATED if annotated else _ALL, "B2", "B4", "Turn", "Unit").itertuples():
        act = str((row.er_label_1, row.ee_label_1)[row.B4] if annotated else "")
        place = int(row.Turn), int(row.B4)
        said.setdefault(str(row.B2), {}).setdefault(place, []).append((str(row.Unit).strip(), act))
    people, dialogues = _people(folder, annotated), []
    for name, places in said.items():
        turns = tuple(
            Turn(ROLES[role], tuple(text for text, _ in own), tuple(act for _, act in own) if annotated else ())
            for (_, role), own in sorted(places.items())
        )
        if not {(name, 0), (name, 1)} <= set(people):
            raise ScopeError(f"the files in {folder} do not belong together: no participants of {name}")
        dialogues.append(Dialogue(name, turns, people[name, 0], people[name, 1]))
    return tuple(dialogues)


def load_unannotated(path: Path | None = None) -> tuple[Dialogue, ...]:
    """The 717 dialogues without acts, from the folder as in :func:`load_dialogues`.

    What a model may learn from: at the other 300 it is asked, and their people are what it is held against.
    """
    yardstick = {dialogue.name for dialogue in load_dialogues(path, annotated=True)}
    return tuple(d for d in load_dialogues(path) if d.name not in yardstick)


def _people(folder: Path, annotated: bool) -> dict[tuple[str, int], Person]:
    """Everybody, by dialogue and role."""
    told = _read(folder, _ANNOTATED_PEOPLE, "B2", "B4", "B5") if annotated else pd.DataFrame(columns=["B2", "B4", "B5"])
    pledges = {str(row.B2): float(row.B5) for row in told.itertuples() if row.B5 != "" and row.B4 == 1}
    people = {}
    for row in _read(folder, _PEOPLE, "B2", "B3", "B4", "B6").to_dict("records"):
        name, role = str(row["B2"]), int(row["B4"])
        answers = {c.removesuffix(".x"): _value(v) for c, v in row.items() if str(c).endswith(".x") and v != ""}
        pledge = pledges.get(name) if role == 1 else None
        people[name, role] = Person(str(row["B3"]), float(row["B6"]), pledge, answers)
    return people


def _value(cell: object) -> float | str:
    try:
        return float(str(cell))
    except ValueError:
        return str(cell)


def _find(folder: Path, name: str) -> Path:
    for place in (folder / name, folder / "data" / name, folder / Path(name).name):
        if place.is_file():
            return place
    raise ScopeError(f"{folder} holds no {Path(name).name}: {_REMEDY}")


def _read(folder: Path, name: str, *columns: str) -> pd.DataFrame:
    """One raw table; empty cells are "" and a person who writes "None" or "NA" is taken at their word."""
    path = _find(folder, name)
    try:
        table = (pd.read_excel if path.suffix == ".xlsx" else pd.read_csv)(path, keep_default_na=False)
    except (OSError, ValueError, KeyError) as error:
        raise ScopeError(f"could not read {path}: {str(error).splitlines()[0]}") from error
    if missing := [column for column in columns if column not in table]:
        raise ScopeError(f"{path} is no table of Persuasion for Good: it has no column {missing[0]}")
    return table


# -- the count tables that are shipped ---------------------------------------------------------------------------------


def act_pairs(dialogues: Sequence[Dialogue], role: str = "persuadee") -> pd.DataFrame:
    """The partner's last act and the answer of ``role``, one row an answered turn of the annotated dialogues.

    Columns: dialogue (number, from 0), turn (from 0), after (the partner's act), act (the first of the answer), stated
    (the donation that the answer states, in dollars, by :func:`~scope_lite.envs.donation.read_donation`; NaN if none).
    No text, no names.
    """
    rows = [
        (number, turn, asked.acts[-1], answered.acts[0], read_donation(answered.text))
        for number, dialogue in enumerate(dialogues)
        for turn, (asked, answered) in enumerate(exchanges(dialogue, role))
        if asked.acts and answered.acts
    ]
    return pd.DataFrame(rows, columns=["dialogue", "turn", "after", "act", "stated"]).astype({"stated": float})


def exchanges(dialogue: Dialogue, role: str = "persuadee") -> list[tuple[Turn, Turn]]:
    """The partner's turns with the answers of ``role``; a last word without answer is left out."""
    pairs = zip(dialogue.turns, dialogue.turns[1:], strict=False)
    return [(a, b) for a, b in pairs if a.role != role == b.role]


def donations(dialogues: Sequence[Dialogue]) -> pd.DataFrame:
    """How many persuadees gave how much. Columns: donation (dollars, as recorded), persuadees (count)."""
    donation = pd.Series([d.persuadee.donation for d in dialogues], name="donation", dtype=float)
    return donation.value_counts().sort_index().rename("persuadees").reset_index()


def write_table(table: pd.DataFrame, name: str, folder: Path = TABLES) -> Path:
    """Write one shipped table as ``<name>.csv``; the same data gives the same bytes."""
    path = folder / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(for_csv(table, "%g"), encoding="utf-8", newline="")
    return path


def table_of(name: str, role: str) -> str:
    """The name of the persuadee's table, or of the persuader's of the same kind."""
    return name if role == "persuadee" else f"{name}_{role}"


def load_table(name: str, folder: Path = TABLES) -> pd.DataFrame:
    """A shipped table by name: ``act_pairs``, ``act_confusion`` (both also ``_persuader``) or ``donations``.

    Raises:
        ScopeError: no such table.
    """
    path = folder / f"{name}.csv"
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise ScopeError(f"could not read {path}: {str(error).splitlines()[0]}") from error
