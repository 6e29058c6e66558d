"""The guides and pages: their Python runs, their commands exist, their links lead somewhere, and they can be read."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

import scope_lite.method.train
from scope_lite import cli
from scope_lite.envs.nano import SHIPPED, WORLDS, get_world
from scope_lite.experiments import nano_models as nano
from scope_lite.experiments.claims import read_claims
from scope_lite.models import api
from scope_lite.store.paths import HOME
from tests.standins.tiny_models import tiny

GUIDES = sorted((HOME / "notebooks").glob("*.md"))
OWN = HOME / "notebooks" / "bring_your_own.md"
PAGES = [HOME / "README.md", HOME / "data" / "README.md", *sorted((HOME / "docs").glob("*.md")), *GUIDES]
EVERY_PAGE = pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(HOME)))
SMALL = {"steps": 1, "groups": 2, "group_size": 4, "eval_dialogues": 4, "final_dialogues": 4}


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.S | re.M)


@pytest.fixture
def smaller(tmp_path, monkeypatch):
    """Everything that trains does one step, and nothing is written but under a folder of this test."""
    monkeypatch.setenv("SCOPE_LITE_CACHE", str(tmp_path / "cache"))
    build, train = nano.build, scope_lite.method.train.train
    quick = {"base_steps": 1, "member_steps": 1, "report": lambda line: None}
    monkeypatch.setattr(nano, "build", lambda *args: build(*args, **quick))
    monkeypatch.setattr(api, "load_model", lambda *asked: tiny(max_position_embeddings=1024))
    monkeypatch.setattr(
        scope_lite.method.train, "train", lambda config, root: train(config.model_copy(update=SMALL), tmp_path / "runs")
    )
    families = set(nano.FAMILIES)
    yield tmp_path
    for name in set(WORLDS) - SHIPPED:
        del WORLDS[name]
    for name in set(nano.FAMILIES) - families:
        del nano.FAMILIES[name]
    get_world.cache_clear()


def test_the_guide_to_ones_own_parts_runs_from_top_to_bottom(smaller, capsys):
    session: dict = {}
    for block in blocks(OWN, "python"):
        exec(compile(block, OWN.name, "exec"), session)
    exact = session["exact"]
    assert exact["collapsed, γ = 8"]["exploit"] > exact["collapsed, γ = 8"]["ask, then offer"] + 0.2
    assert exact["real users"]["exploit"] < exact["real users"]["ask, then offer"] - 0.2
    assert all(max(values.values()) == values["optimum"] for values in exact.values())
    assert (smaller / "cache/nano/library/panel.yaml").exists()
    assert session["epsilon"][1] == 0 < session["epsilon"][2] < session["epsilon"][5]
    assert session["last"]["panel/unseen/reward"].between(0, 1).all()
    assert (session["folder"] / "status").exists() and "mild" in capsys.readouterr().out
    assert len(session["texts"]) == 16


def test_what_the_guide_changes_in_the_package_is_there_to_be_changed():
    (diff,) = blocks(OWN, "diff")
    source = ""
    for line in diff.splitlines():
        if line.startswith("--- "):
            source = (HOME / line.removeprefix("--- ")).read_text(encoding="utf-8")
        elif not line.startswith("+"):
            assert source.count(f"\n{line[1:]}\n") == 1, line


@pytest.mark.parametrize("path", GUIDES, ids=lambda p: p.stem)
def test_a_guides_commands_are_commands(path):
    app = get_command(cli.app)
    for line in "".join(blocks(path, "bash")).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["scope-lite"]:
            continue
        command, rest = app.commands[words[1]], words[2:]
        while hasattr(command, "commands"):
            command, rest = command.commands[rest[0]], rest[1:]
        known = {name for option in command.params for name in option.opts}
        assert {word for word in rest if word.startswith("--")} <= known, line


@EVERY_PAGE
def test_no_cell_of_a_table_is_too_long_to_read(path):
    rows = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert [cell for row in rows for cell in re.split(r"(?<!\\)\|", row) if len(cell.split()) > 40] == []


def test_the_readme_is_short_and_names_the_paper():
    text = (HOME / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1500 and "(https://arxiv.org/abs/2608.12253)" in text


@EVERY_PAGE
def test_a_pages_links_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        if name.startswith("http"):
            continue
        file = path.parent / name if name else path
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
            assert anchor in {anchor_of(title) for title in titles}, target


def anchor_of(title: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_the_glossary_points_at_what_it_names():
    text = (HOME / "notebooks/README.md").read_text(encoding="utf-8").partition("## Glossary")[2]
    named = re.findall(r"\[`(\w+)`\]\(\.\./(scope_lite/[\w/]+\.py)\)", text)
    assert len(named) > 40
    for name, file in named:
        source = (HOME / file).read_text(encoding="utf-8")
        stands = rf"\b(?:class|def) {name}\b|^ *\"?{name}\"? *[:=]|\"{name}\"" if name != Path(file).stem else r"\A"
        assert re.search(stands, source, re.M) or name == Path(file).parent.name, (name, file)


def test_the_claims_that_the_instructors_notes_call_doubtful_do_not_simply_hold():
    text = (HOME / "notebooks/README.md").read_text(encoding="utf-8")
    notes = text.partition("**Where the results contradict the paper.**")[2].partition("**Marking.**")[0]
    doubtful = set(re.findall(r"\*\*(C\d)\*\*", notes))
    decided = read_claims().query("kind != 'context' and verdict != 'not claimed there'")
    holds = {claim: (rows["verdict"] == "holds").all() for claim, rows in decided.groupby("claim")}
    assert len(doubtful) >= 5 and not any(holds[claim] for claim in doubtful)
