"""Draw the reply table of a large setting: histories x replies x ways to ask, in pieces that survive a stop.

Every batch goes to the reply cache the moment it is done, so the same call after a kill decodes only what is missing.
Histories of Persuasion for Good end at a turn of an annotated dialogue and are named "dialogue/turn", as in
``data/p4g/act_pairs.csv``; the table holds no word of theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Literal

import pandas as pd

from scope_lite.envs import p4g, prompts, tau2
from scope_lite.envs.p4g_acts import first_sentence, load_classifier
from scope_lite.envs.prompts import persuadee, scripted_agent, user_simulator
from scope_lite.measure.replies import direct_rows, verbalized_rows
from scope_lite.models.api import ApiSampler
from scope_lite.models.generate import TextSampler
from scope_lite.models.replies import Message, Reply, SamplingConfig
from scope_lite.models.verbalized import grammar
from scope_lite.store.errors import ScopeError

ACTS = 5
"""Histories end with one of the so many most common acts of the partner ("other" is none): a few acts with several
histories each, since what people do is known given the act, and one history is not the act."""
PROBE_TOKENS = 8


@dataclass(frozen=True)
class History:
    """Everything said before the simulator speaks."""

    task: str
    """"p4g" or "retail" """
    name: str
    turns: tuple[str, ...]
    """partner first, alternating, partner last"""
    after: str = ""
    """the act that the history ends with (annotators'; P4G only)"""
    heard: str = ""
    """the partner's last sentence, which the act classifier reads along"""
    scenario: str = ""
    """the user's scenario (retail only)"""
    role: str = "persuadee"
    """who is to speak: "persuadee" or "persuader" (P4G only)"""

    @property
    def speaker(self) -> str:
        return "customer" if self.scenario else "participant"

    def chat(self, persona: str = "") -> list[Message]:
        """The chat that the model reads, in persona if one is given (persuadee only)."""
        if self.scenario:
            return prompts.user_simulator_chat(self.scenario, self.turns)
        if self.role == "persuader":
            return prompts.persuader_chat(self.turns)
        return prompts.persuadee_chat(self.turns, persona)


@dataclass(frozen=True)
class Condition:
    """One way to get replies out of a model."""

    name: str
    temperature: float
    kind: Literal["direct", "personas", "VS"] = "direct"
    with_grammar: bool = False
    uniform: bool = False
    """VS: draw from the different candidates of a list whatever probabilities it states"""

    @property
    def asks(self) -> tuple[object, ...]:
        """What is asked of the model: conditions that agree in it read the same outputs."""
        return self.temperature, self.kind, self.with_grammar


CONDITIONS = (
    *(Condition(f"direct, T = {t:g}", t) for t in (1.3, 1.0, 0.7, 0.4)),
    Condition("personas, T = 1", 1.0, "personas"),
    Condition("VS, free", 0.7, "VS"),
    Condition("VS, free, uniform", 0.7, "VS", uniform=True),
    Condition("VS, grammar", 0.7, "VS", with_grammar=True),
    Condition("VS, grammar, uniform", 0.7, "VS", with_grammar=True, uniform=True),
)
"""Direct sampling at four temperatures; eight personas in turn; Verbalized Sampling at the usual temperature of a chat
model, since at 1 a small one breaks the format even more often. Its two draws are from the same lists; the public
launchers' is the uniform one, and they ask for no probabilities."""


@dataclass(frozen=True)
class Setting:
    """How much to draw."""

    replies: int = 64
    """at each history, per condition"""
    max_new_tokens: int = 40
    """a direct reply is cut here"""
    list_tokens: int | None = None
    """a verbalized list is cut here; None: four and a half times ``max_new_tokens``, which many lists outgrow (a
    grammar then gives a candidate 60 characters, which cuts sentences)"""
    candidates: int = 5
    seed: int = 0
    only: tuple[str, ...] = ()
    """draw just the conditions of these names, or whose names begin so ("direct", "VS"); all if empty"""


def p4g_histories(dialogues: Sequence[p4g.Dialogue], count: int, role: str = "persuadee") -> list[History]:
    """``count`` histories at which ``role`` is to speak, from annotated dialogues, each dialogue at most once.

    They end with the :data:`ACTS` most common acts of the partner in turn; for each act, turns evenly spaced over all
    turns that end with it.

    Raises:
        ScopeError: fewer dialogues than histories.
    """
    pairs = p4g.act_pairs(dialogues, role)
    acts = [act for act in pairs["after"].value_counts().index if act != "other"][:ACTS]
    histories: list[History] = []
    used: set[int] = set()
    for number, act in enumerate(acts):
        wanted = (count - number + len(acts) - 1) // len(acts)
        places = pairs.loc[pairs["after"] == act, ["dialogue", "turn"]].to_numpy().tolist()
        for i in range(wanted):
            start = i * len(places) // wanted
            for dialogue, turn in places[start:] + places[:start]:
                said = dialogues[dialogue].turns[: 2 * turn + (1 if role == "persuadee" else 2)]
                alternates = all(t.role == p4g.ROLES[k % 2] for k, t in enumerate(said))
                if dialogue not in used and alternates:
                    used.add(dialogue)
                    texts, heard = tuple(t.text for t in said), said[-1].sentences[-1]
                    histories.append(History("p4g", f"{dialogue}/{turn}", texts, act, heard, role=role))
                    break
    if len(histories) < count:
        raise ScopeError(f"asked for {count} histories, but the dialogues give {len(histories)}")
    return histories


def retail_histories(scenarios: Sequence[tau2.Scenario]) -> list[History]:
    """One history a scenario: after the agent's opening line, or, every second time, after one exchange more."""
    talk = (scripted_agent.SUPPORT[0], user_simulator.USER_OPENING, scripted_agent.SUPPORT[1])
    return [
        History("retail", f"task {s.task_id}", talk if i % 2 else talk[:1], scenario=s.as_text())
        for i, s in enumerate(scenarios)
    ]


@dataclass(frozen=True)
class Piece:
    """What some conditions ask of a sampler, all the same, at the histories of one task."""

    conditions: Sequence[Condition]
    histories: Sequence[History]
    chats: list[list[Message]]
    """with personas, every history once in each of them"""
    replies: int
    """to each chat"""
    config: SamplingConfig

    @property
    def name(self) -> str:
        return f"{self.histories[0].task}: {self.conditions[0].name}"


def piece(conditions: Sequence[Condition], histories: Sequence[History], setting: Setting) -> Piece:
    """What conditions that ask the same ask at these histories."""
    condition = conditions[0]
    config = SamplingConfig(condition.temperature, setting.max_new_tokens, setting.seed)
    if condition.kind == "VS":
        chats = [prompts.with_verbalized_block(h.chat(), setting.candidates, h.speaker) for h in histories]
        longest = setting.list_tokens or 9 * setting.max_new_tokens // 2
        # a third of a list's tokens as characters: five candidates, four characters a token, and room for the marks
        room = {"characters": setting.list_tokens // 3} if setting.list_tokens else {}
        rules = grammar(setting.candidates, **room) if condition.with_grammar else None
        config = replace(config, max_new_tokens=longest, grammar=rules)
        return Piece(conditions, histories, chats, setting.replies, config)
    personas = persuadee.PERSONAS if condition.kind == "personas" else ("",)
    chats = [history.chat(persona) for history in histories for persona in personas]
    return Piece(conditions, histories, chats, -(-setting.replies // len(personas)), config)


def pieces(sampler: TextSampler | ApiSampler, histories: Sequence[History], setting: Setting) -> list[Piece]:
    """All that is to be drawn, a task and a condition at a time: personas are persuadees', a grammar a local model's.

    Raises:
        ScopeError: ``setting.only`` has a beginning that no condition has.
    """
    names = [condition.name for condition in CONDITIONS]
    if unknown := [start for start in setting.only if not any(name.startswith(start) for name in names)]:
        raise ScopeError(f"no condition begins with {unknown[0]!r}: there are {'; '.join(names)}")
    # "direct, T = 1" means itself, not "direct, T = 1.3" as well
    begun = tuple(start for start in setting.only if start not in names)
    wanted = [c for c in CONDITIONS if not setting.only or c.name in setting.only or c.name.startswith(begun)]
    work = []
    for task in dict.fromkeys(history.task for history in histories):
        part = [history for history in histories if history.task == task]
        in_persona = (task, part[0].role) == ("p4g", "persuadee")
        asked: dict[tuple[object, ...], list[Condition]] = {}
        for condition in wanted:
            possible = in_persona if condition.kind == "personas" else True
            if possible and (isinstance(sampler, TextSampler) or not condition.with_grammar):
                asked.setdefault(condition.asks, []).append(condition)
        work += [piece(conditions, part, setting) for conditions in asked.values()]
    return work


def missing(sampler: TextSampler | ApiSampler, work: Sequence[Piece]) -> tuple[int, int]:
    """What is not in the cache yet: chats to be read, and the most tokens to be written."""
    lacking = [
        (part.replies - known, part.config.max_new_tokens)
        for part in work
        for known in sampler.recorded(part.chats, part.config)
        if known < part.replies
    ]
    return len(lacking), sum(replies * tokens for replies, tokens in lacking)


def expected_hours(sampler: TextSampler, work: Sequence[Piece]) -> float:
    """Hours that the missing part takes at most, from a probe of a minute or less: replies mostly end before the limit.

    The probe reads one history and then writes a few tokens of a full batch, past the cache.
    """
    chats, tokens = missing(sampler, work)
    if not tokens:
        return 0.0
    probe, seconds = TextSampler(sampler.loaded, rows=sampler.rows), []
    for rows, length in ((1, 1), (sampler.rows, PROBE_TOKENS)):
        start = time.perf_counter()
        probe.sample([work[0].histories[-1].chat()], rows, SamplingConfig(max_new_tokens=length))
        seconds.append(time.perf_counter() - start)
    reading, writing = seconds  # the history has been read when the batch is written
    return (chats * reading + tokens * writing / (sampler.rows * PROBE_TOKENS)) / 3600


def produce(
    sampler: TextSampler | ApiSampler,
    histories: Sequence[History],
    setting: Setting,
    progress: Callable[[str, int, int], None] = lambda name, done, of: None,
) -> pd.DataFrame:
    """The whole reply table, as in ``replies``; resumable through the sampler's cache.

    Args:
        progress: called with a piece's name, and its chats done and in all.

    Raises:
        ScopeError: what the sampler raises; batches that were done are kept.
    """
    tables = []
    for part in pieces(sampler, histories, setting):
        tell = partial(progress, part.name)
        drawn = sampler.sample(part.chats, part.replies, part.config, tell)
        tables += [_rows(part, condition, sampler.name, drawn, setting) for condition in part.conditions]
        tell(len(part.chats), len(part.chats))
    return pd.concat(tables, ignore_index=True)


def _rows(
    part: Piece, condition: Condition, model: str, drawn: Sequence[Sequence[Reply]], setting: Setting
) -> pd.DataFrame:
    """One condition's rows of the reply table, for what a piece's chats were answered."""
    name, tokens = condition.name, setting.max_new_tokens
    if condition.kind == "VS":
        made = verbalized_rows(name, drawn, setting.candidates, setting.seed, tokens, condition.uniform)
        table = pd.DataFrame(made)
    else:  # of one history in one list: the first reply to each of its chats, then the second to each, ...
        each = len(drawn) // len(part.histories)
        groups = [zip(*drawn[start : start + each], strict=True) for start in range(0, len(drawn), each)]
        table = pd.DataFrame(direct_rows(name, [list(chain(*group)) for group in groups], tokens))
    table = table[table["reply"] < setting.replies]
    where = [part.histories[h] for h in table.pop("history")]
    for place, column in enumerate(("task", "name", "after")):
        table.insert(place, "history" if column == "name" else column, [getattr(h, column) for h in where])
    table.insert(0, "model", model)
    return table.assign(act=_acts(table["text"].tolist(), where) if part.histories[0].task == "p4g" else "")


def _acts(texts: Sequence[str | None], where: Sequence[History]) -> list[str]:
    """The act of each reply's first sentence as the shipped classifier reads it; "" where nothing could be read."""
    spoken = {i: (first_sentence(text), where[i].heard) for i, text in enumerate(texts) if isinstance(text, str)}
    read = dict(zip(spoken, load_classifier(where[0].role).read(list(spoken.values())), strict=True))
    return [read.get(i, "") for i in range(len(texts))]
