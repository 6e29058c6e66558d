"""The matrix of claims and worlds in words and as a picture."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from scope_lite.experiments import claims
from scope_lite.experiments.claims import CLAIMS, ELSEWHERE, JUDGED, LATER, UNTESTABLE, WORLDS
from scope_lite.figures import verdicts
from scope_lite.figures.paper import paper_numbers, paper_value
from scope_lite.figures.style import STYLE, use_style
from scope_lite.figures.verdicts import BEGIN, END, fill_page, matrix, page, paper_values, sentence
from scope_lite.store.errors import ScopeError
from scope_lite.store.paths import HOME
from tests.standins.geometry import problems

C3, C7 = CLAIMS[2], CLAIMS[6]


def with_verdicts(told: dict[tuple[str, str], str]) -> pd.DataFrame:
    """A matrix in which these cells say this, and all others are not claimed."""
    rows = []
    for claim in CLAIMS:
        for world in WORLDS:
            verdict = told.get((claim.id, world), ELSEWHERE)
            row = {"claim": claim.id, "world": world, "kind": "primary", "verdict": verdict, "why": "+0.10"}
            rows.append({**row, "contrast": "a − b", "estimate": 0.1, "n_seeds": 10})
    return pd.DataFrame(rows, columns=claims.COLUMNS)


@pytest.fixture(scope="module")
def shipped():
    return claims.read_claims()


def test_a_sentence_says_where_a_claim_holds_and_where_not():
    told = {("C3", "persuasion"): "holds", ("C3", "retail"): "does not", ("C3", "airline"): "vacuous"}
    text = sentence(C3, with_verdicts(told))
    assert text == "It holds in `persuasion`; it does not hold in `retail`; it is vacuous in `airline`."
    assert sentence(C3, with_verdicts({**told, ("C3", "retail"): "open"})) == text.replace(
        "does not hold in `retail`", "is open in `retail`"
    )
    three = dict.fromkeys([("C7", world) for world in list(WORLDS)[:3]], "holds")
    assert sentence(C7, with_verdicts(three)).startswith("It holds in `persuasion`, `retail` and `airline` (by constr")
    # every verdict has a clause, so that no cell goes missing from its sentence
    assert set(verdicts.CLAUSES) == {*JUDGED, LATER, UNTESTABLE}


def test_the_papers_numbers_stand_in_their_world_and_in_the_papers_order():
    model = "Qwen3-4B-Instruct-2507"
    retail = [
        paper_value("Table 1", "success, best checkpoint", benchmark="τ²-bench retail", model=model, method=method)
        for method in ("Verbalized Sampling", "Co-Training")
    ]
    assert paper_values(C3)["retail"] == " / ".join(map(str, retail)) == "55.5 / 60.5"
    assert list(paper_values(C3)) == ["persuasion", "retail", "airline"] and paper_values(C7) == {}
    by_id = {claim.id: paper_values(claim) for claim in CLAIMS}
    assert by_id["C8"] == {"coding": "28.8 / 29.8 / 32.8 / 33.6"} and by_id["C6"] == {"retail": "0.07 / 0.17 / 0.40"}
    assert "persuasion" not in by_id["C9"], "half of a comparison is none"


def test_the_papers_numbers_are_named_in_the_order_in_which_they_stand():
    for claim in CLAIMS:
        if not claim.paper:
            continue
        numbers = paper_numbers()
        for column in claim.paper.keys() - {"of"}:
            told = claim.paper[column]
            assert set(told if isinstance(told, list) else [told]) <= set(numbers[column]), claim.id
        methods = claim.paper.get("method", [])
        in_file = numbers[numbers["where"] == claim.paper["where"]]["method"].drop_duplicates().tolist()
        assert methods == sorted(methods, key=in_file.index)
        assert len(claim.paper["of"].split(" / ")) == max(len(v.split(" / ")) for v in paper_values(claim).values())


def test_the_matrix_has_a_row_a_claim_and_says_what_decides(shipped):
    shown = matrix(shipped)
    assert len(shown) == len(CLAIMS) and list(shown)[1:] == [f"`{w}` ↔ {b}" for w, b in WORLDS.items()]
    assert shown.iloc[7, 4].startswith("**does not**: self-play − ensemble, -0.53 [")
    exploratory = with_verdicts({("C3", "retail"): "open"}).assign(kind="exploratory")
    assert matrix(exploratory).iloc[2, 2] == "**open** (exploratory): a − b, +0.10"


def test_the_page_is_filled_between_its_markers_only(shipped):
    text = fill_page(f"before\n{BEGIN}\nstale\n{END}\nafter\n", shipped)
    assert text.startswith("before\n") and text.endswith(f"{END}\nafter\n") and "stale" not in text
    assert fill_page(text, shipped) == text
    for broken in ("no markers", BEGIN, END + BEGIN, f"{BEGIN}{END}{BEGIN}{END}"):
        with pytest.raises(ScopeError, match="around its verdicts"):
            fill_page(broken, shipped)


def test_each_claim_has_three_sentences_and_the_head_what_is_built_in(shipped):
    text = page(shipped)
    for claim in CLAIMS:
        for told in (claim.says, sentence(claim, shipped), claim.mind):
            assert told in text and told.endswith(".") and told.count(". ") == 0, told
    head = text.partition("\n")[0]
    assert [c.id for c in CLAIMS if f"{c.id}, since" in head] == ["C2", "C7", "C8"]


def test_the_shipped_page_agrees_with_the_shipped_verdicts(shipped):
    text = (HOME / "docs" / "results.md").read_text(encoding="utf-8")
    assert fill_page(text, shipped) == text, "run 'scope-lite results claims'"


@pytest.mark.parametrize("verdict", [*JUDGED, LATER, ELSEWHERE, UNTESTABLE])
def test_every_verdict_has_its_word_and_colour_and_fits_its_cell(verdict):
    use_style()
    told = dict.fromkeys([(c.id, w) for c in CLAIMS for w in WORLDS], verdict)
    fig = verdicts.claims_matrix(with_verdicts(told).assign(kind="exploratory"))
    assert problems(fig) == []
    words = [text.get_text().replace("\n", " ").removesuffix("*") for text in fig.axes[0].texts]
    assert words.count(verdict) == len(CLAIMS) * len(WORLDS)
    faces = np.array([patch.get_facecolor() for patch in fig.axes[0].patches])
    assert len(np.unique(faces, axis=0)) == 1 and len({*STYLE["colours"]["verdicts"].values()}) == 7
    plt.close(fig)
