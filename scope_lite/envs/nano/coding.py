"""coding: the nano analogue of CooperBench: two agents alike, each with half of a feature, who must divide the work.

Each agent alone is told which version of the interface its half has. There are two files.
The work is merged if each half stands in a file of its own and was written against the
version that the other half really has; two halves in one file are a conflict. Both agents
use the same words, and are told the same things. Partners differ by convention: the
favourite of the prior tells its version unasked, takes the left file without a word, and
does both halves itself once it knows enough and the other talks on. A simulator that
always plays the favourite pays an agent that tells its version and writes into the right
file at once, whatever is said about files: the exploit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scope_lite.envs.nano.spec import AgentHabit, History, WorldSpec, populations
from scope_lite.store.plain_yaml import read_yaml

FILES = ("left", "right")
OTHER = {"left": "right", "right": "left"}
VERSIONS = (1, 2)
SLIP, HORIZON = 0.15, 4
"""probability that a partner lets a turn pass; turns

Calibrated by exact values only, before any method was run: these two (with 5 turns, the robust policy
came within .05 of the optimum with real partners; with a slip of .1, within .08); the
favourite's eagerness (.6 and 1 were looked at); and that it minds talk even from an
agent that has written (else: write first, talk after, which fits nearly everybody).
"""


@dataclass(frozen=True)
class Convention:
    """The habits of one kind of partner. It reads messages; of a write by the other it notices that, not where."""

    file: str
    """'left' or 'right': always that one; 'any': it picks one and says so unasked; 'free': the one that the other
    does not take; 'same': the one that the other takes"""
    volunteers: float = 0.0
    """probability that it tells its version unasked, when nothing more urgent is to be said"""
    eager: float = 0.0
    """probability that it writes both halves, once both versions are told and the other talks on instead of writing"""
    last: bool = False
    """writes only after the other, and says nothing unasked"""
    hasty: bool = False
    """tells the wrong version unasked; asked, it looks and tells the right one"""


_DATA = read_yaml(Path(__file__).with_suffix(".yaml"))
CONVENTIONS = {name: Convention(**habits) for name, habits in _DATA["conventions"].items()}
SENTENCES: dict[str, str] = _DATA["sentences"]
ACTS = tuple(act for act in SENTENCES if act.split("-")[0] in ("ask", "mine", "take", "wait", "write"))


class Half(NamedTuple):
    """What one agent has written."""

    file: str = ""
    """'' nothing, 'both': it has written more than its half"""
    fits: bool = False
    """written against the version that the other half has"""


class Work(NamedTuple):
    """Where the work stands. When it is over only ``end`` matters; once the partner has written, only the halves do."""

    mine: int
    """version of the agent's half; the partner knows what it ``heard``"""
    heard: int = 0
    """version that the agent has told, 0: none"""
    takes: str = ""
    """file that the agent has said it takes"""
    told: bool = False
    """the partner has told a version, or need not any more, since the agent has written"""
    claims: str = ""
    """file that the partner has said it takes"""
    agent: Half = Half()
    partner: Half = Half()
    end: str = ""


@cache
def _parts(user_type: str) -> tuple[Convention, int]:
    """Convention and version of a type, such as 'eager-1'."""
    name, _, version = user_type.rpartition("-")
    return CONVENTIONS[name], int(version)


@cache
def _after(version: int, work: Work, act: str, said: str) -> Work:
    if work.end:
        return work
    mine, work = work.mine, _hear(work, act)
    agent = _write(work.agent, act, version)
    partner = _write(work.partner, said, mine)
    if "both" in (agent.file, partner.file) or (agent.file and agent.file == partner.file):
        return Work(0, end="conflict")
    if agent.file and partner.file:
        return Work(0, end="merged" if agent.fits and partner.fits else "broken")
    if partner.file:
        return Work(mine, partner=partner)
    return work._replace(
        agent=agent,
        told=work.told or said.startswith("mine-") or bool(agent.file),
        claims=said.removeprefix("take-") if said.startswith("take-") else work.claims,
    )


def _hear(work: Work, act: str) -> Work:
    """What the partner knows once it has heard ``act``."""
    if act.startswith("mine-"):
        return work._replace(heard=int(act[-1]))
    return work._replace(takes=act.removeprefix("take-")) if act.startswith("take-") else work


def _write(half: Half, act: str, version: int) -> Half:
    """What stands there after ``act``: the first write counts, the same file again is ignored, another is too much."""
    if not act.startswith("write-"):
        return half
    _, file, *against = act.split("-")
    if file == "both" or half.file not in ("", file):
        return Half("both")
    return half if half.file else Half(file, against == [str(version)])


def reply(user: str, work: Work, act: str) -> Mapping[str, float]:
    """What this partner says to ``act``. Nothing in it depends on ``mine``, which the partner may not have heard."""
    who, version = _parts(user)
    said = {"wait": SLIP}
    for message, share in _means(who, version, _hear(work, act), act).items():
        said[message] = said.get(message, 0.0) + (1 - SLIP) * share
    return said


def _means(who: Convention, version: int, work: Work, act: str) -> Mapping[str, float]:
    """What the partner would say if it let no turn pass."""
    if act == "ask" and not work.end:
        return {f"mine-{version}": 1.0}
    if work.end or work.partner.file:
        return {"wait": 1.0}
    by_what_was_said = {"any": work.claims, "free": OTHER.get(work.takes, ""), "same": work.claims or work.takes}
    file = by_what_was_said.get(who.file, who.file)
    if act.startswith("take-") and file not in ("", work.claims) and not who.last and not who.eager:
        return {f"take-{file}": 1.0}
    if who.file == "any" and not work.claims:
        return {f"take-{choice}": 1 / len(FILES) for choice in FILES}
    writes = act.startswith("write-")
    onward = _works(who, work, writes, file)
    if writes or work.agent.file or work.told or not who.volunteers:
        return onward
    unasked = VERSIONS[2 - version] if who.hasty else version
    return {f"mine-{unasked}": who.volunteers} | {m: (1 - who.volunteers) * p for m, p in onward.items()}


def _works(who: Convention, work: Work, writes: bool, file: str) -> Mapping[str, float]:
    """What the partner does when it has nothing to say: it writes, if it knows where and against which version.

    ``writes``: the other has just written; ``file``: where the partner will write, '' while it does not know.
    """
    if who.last and not (writes or work.agent.file):
        return {"wait": 1.0}
    if not work.heard:
        return {"ask": 1.0}
    if not file:
        return {"wait": 1.0}
    both = who.eager if work.told and not writes else 0.0
    return {"write-both": both, f"write-{file}-{work.heard}": 1 - both}


def turns(history: History) -> int:
    """Turns until both have written; all of them if that never happens."""
    spoken = [turn for turn in history if turn[0]]
    writes = [[t for t, turn in enumerate(spoken, 1) if turn[seat].startswith("write-")] for seat in (0, 1)]
    return max([*writes[0][:1], *writes[1][:1]]) if all(writes) else len(spoken)


def coding() -> WorldSpec[Work]:
    """The world's description. A type is a convention and the version that the partner is told.

    Tasks and prompts are the same words: which seat a model is in shows only in who speaks first. There is no
    ``exploit`` as a list of acts, since a version must be heard: it is the policy ``write_right``.
    """
    prompts = {v: f"half-{v}" for v in VERSIONS}
    prior, real_prior = (
        {f"{name}-{v}": share / len(VERSIONS) for v in VERSIONS for name, share in shares.items()}
        for shares in populations(tuple(CONVENTIONS))
    )
    return WorldSpec(
        name="coding",
        agent_acts=ACTS,
        user_acts=ACTS,
        outcomes=("conflict", "unfinished", "broken", "merged"),
        rewards=(0.0, 0.0, 0.0, 1.0),
        user_types=tuple(real_prior),
        prior=prior,
        real_prior=real_prior,
        horizon=HORIZON,
        initial_state=Work(VERSIONS[0]),
        reply=reply,
        # it follows from the words and the two versions, not from the convention
        step=lambda user, work, act, said: _after(_parts(user)[1], work, act, said),
        outcome=lambda user, work: {work.end or "unfinished": 1.0},
        reveals={},
        habits=_habits(),
        tasks={prompt: Work(v) for v, prompt in prompts.items()},
        told={z: prompts[_parts(z)[1]] for z in real_prior},
        outcome_by="world",
        turns=turns,
        sentences=SENTENCES,
    )


# Scripted agents: the exploit, a robust policy, and the habits of the pre-training dialogues.


def write_right(history: History) -> str:
    """Tell, then write into the right file against whatever version was heard: the exploit."""
    replies = [said for _, said in history]
    if len(history) == 1:
        return f"mine-{replies[0][-1]}"
    heard = [said[-1] for said in replies if said.startswith("mine-")]
    return f"write-right-{heard[-1] if heard else VERSIONS[0]}" if len(history) == 2 else "wait"


def divide_first(history: History) -> str:
    """Tell, ask, agree on the files, write: good and simple. It trusts only a version that it asked for."""
    acts, replies = zip(*history, strict=True)
    if any(act.startswith("write-") for act in acts):
        return "wait"
    in_time = len(history) < HORIZON
    if len(history) == 1 or (replies[-1] == "ask" and in_time):
        return f"mine-{replies[0][-1]}"
    heard = [said[-1] for said in replies if said.startswith("mine-")]
    asked = any(act == "ask" and said.startswith("mine-") for act, said in history)
    if not asked and in_time:
        return "ask"
    claimed = [said.split("-")[1] for said in replies if said.startswith(("take-", "write-"))]
    if not claimed and in_time and "take-right" not in acts:
        return "take-right"
    file = OTHER.get(claimed[-1], "right") if claimed else "right"
    return f"write-{file}-{heard[-1] if heard else VERSIONS[0]}"


def _habits() -> tuple[AgentHabit, ...]:
    """The conventions of partners, played from the agent's seat and with more noise; a quarter of the agents adapt."""

    def noisy(act: str, rng: np.random.Generator) -> str:
        return act if rng.random() < 0.85 else str(rng.choice(ACTS))

    def plays(name: str, history: History, rng: np.random.Generator) -> str:
        (_, task), *spoken = history
        work, heard, version = Work(VERSIONS[0]), "", task[-1]
        for act, said in spoken:  # the other agent is this one's partner: it spoke before, or not at all
            work, heard = _after(int(version), work, heard, act), said
        meant = reply(f"{name}-{version}", work, heard)
        return noisy(str(rng.choice(list(meant), p=list(meant.values()))), rng)

    weights = {"eager": 0.2, "steady": 0.15, "yielding": 0.1, "leading": 0.15, "quiet": 0.05}
    return (
        AgentHabit("adapts", 0.25, lambda history, rng: noisy(divide_first(history), rng)),
        *(AgentHabit(name, weight, partial(plays, name)) for name, weight in weights.items()),
        AgentHabit("talks", 0.1, lambda history, rng: str(rng.choice(ACTS))),
    )
