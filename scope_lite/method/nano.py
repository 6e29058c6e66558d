"""The nano worlds: one word a message, users that are known exactly, and simulators that are small models of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from scope_lite.envs.nano import World, get_world
from scope_lite.envs.nano.episode import CLOSE, NanoEpisode
from scope_lite.envs.nano.users import BeliefUsers, ScriptedUsers, draw, told_prior
from scope_lite.method.config import RunConfig
from scope_lite.method.dialogue import Seat
from scope_lite.method.panel_file import COLLAPSED_SHARPNESS, PanelMember, read_panel
from scope_lite.method.sampling import Direct, SamplingRule, VerbalizedModel
from scope_lite.method.scene import Scene, SeatOf, Split, draw_tasks
from scope_lite.method.seats import KnowsItsLaw, RoutedSeat, WordSpeaker
from scope_lite.method.words import WordSeat, run_words
from scope_lite.models.hf import SeatModel, load_base
from scope_lite.models.records import Rollout, Transcript
from scope_lite.models.rng import RowKeys
from scope_lite.models.texts import Reads
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.paths import model_folder

OutcomeRule = Literal["simulator", "world", "judge"]
PROBE = RowKeys(0, 0, np.zeros(1, dtype=int), np.zeros(1, dtype=int))
"""one dialogue that no training step plays"""


# -- seats whose law is known -----------------------------------------------------------------------------------------


class WorldSeat:
    """The world's own users, or a simulator of whose dialogues the world says how they ended.

    All rows speak at once, as they do at nano.
    """

    max_new_tokens = 1

    def __init__(self, users: BeliefUsers, keys: RowKeys, speaker: Seat | None = None):
        """``users``: with a hidden type a row, or with a belief over the types that each row's simulator may have been.
        ``speaker``: who says the replies; None: these users."""
        self.users, self.keys, self.speaker = users, keys, speaker
        self._words = speaker if isinstance(speaker, WordSpeaker) else None
        self._acts: Int[np.ndarray, " b"] = np.zeros(len(keys), dtype=int)
        self._distributions: list[Float[np.ndarray, "b n"]] = []

    @property
    def transcripts(self) -> Sequence[Transcript | None]:
        return self.speaker.transcripts if self.speaker else [None] * len(self.keys)

    def hear(self, messages: Sequence[str | None]) -> None:
        """Raises KeyError for a message that is no act of this world."""
        if CLOSE not in messages:
            self._acts = np.array([self.users.world.agent_index[message or ""] for message in messages])
            if self.speaker:
                self.speaker.hear(messages)

    def told(self, words: Sequence[str], said: Int[np.ndarray, " b"]) -> None:
        if CLOSE not in words:
            self._acts = said
            if self._words:
                self._words.told(words, said)

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str]:
        spec = self.users.world.spec
        return [(spec.outcomes if kind == "outcome" else spec.user_acts)[word] for word in self.say(turn, kind)]

    def say(self, turn: int, kind: str) -> Int[np.ndarray, " b"]:
        if kind == "outcome" or self.speaker is None:
            ends = kind == "outcome"
            law = self.users.outcome_probabilities() if ends else self.users.reply_probabilities(self._acts)
            self._distributions.append(law)
            said = draw(law, self.keys.uniforms(turn, "simulator")[:, 0])
        elif self._words:
            said = self._words.say(turn, kind)
        else:  # a person
            said = np.array([self.users.world.user_index[str(reply)] for reply in self.speaker.speak(turn, kind)])
        if kind != "outcome":
            self.users.observe(self._acts, said)
        return said

    def reads(self, kind: str) -> list[Reads]:
        return self._words.reads(kind) if self._words and kind != "outcome" else []

    def distributions(self) -> list[Float[np.ndarray, "b n"]]:
        own = self._distributions
        return [*self.speaker.distributions(), *own] if isinstance(self.speaker, KnowsItsLaw) else own


# -- models, and what is drawn for them -------------------------------------------------------------------------------


def choice_sets(world: World, tokenizer: Any) -> dict[str, list[int]]:
    """The token ids that each kind of message is drawn from: act, reply, outcome."""
    spec = world.spec
    names = {"act": spec.agent_acts, "reply": spec.user_acts, "outcome": spec.outcomes}
    return {kind: tokenizer.convert_tokens_to_ids(list(words)) for kind, words in names.items()}


@lru_cache(maxsize=64)
def _base(folder: Path, files: tuple[tuple[str, int, int], ...]) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model by its folder and what is in there; runs of one process share it."""
    return load_base(folder)


class Library:
    """Loads each nano model of a world once, and hands it out as a seat model."""

    def __init__(self, world: World, folder: Path | None = None):
        self.world = world
        self.folder = folder / world.name if folder else model_folder(world.name)

    def has(self, name: str) -> bool:
        return (self.folder / name / "config.json").exists()

    def seat_model(self, name: str, sharpness: float = 1.0, act_sharpness: float = 1.0) -> SeatModel:
        """A frozen seat model on the (shared) weights of the model ``name``; acts have a sharpness of their own.

        Raises:
            ScopeError: if the world has no such model.
        """
        files = sorted((self.folder / name).glob("*"))
        model, tokenizer = _base(
            self.folder / name, tuple((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in files)
        )
        return SeatModel(model, tokenizer, choice_sets(self.world, tokenizer), sharpness, act_sharpness)


def draw_prompts(world: World, prior: Float[np.ndarray, " Z"], keys: RowKeys) -> Int[np.ndarray, " b"]:
    """What the simulator of each row is told, by the shares of the types that are told it."""
    shares = np.broadcast_to(world.knows @ prior, (len(keys), len(world.prompts)))
    return draw(shares, keys.once("prompt"))


def seat_simulator(
    world: World,
    model: SeatModel,
    population: Mapping[str, float],
    keys: RowKeys,
    shared: RowKeys,
    outcome: OutcomeRule,
    rule: SamplingRule | None = None,
    systems: Sequence[str] = (),
    tasks: Int[np.ndarray, " b"] | None = None,
) -> WordSeat | WorldSeat:
    """A model in the simulator's seat, with whoever says how the dialogue ended.

    Args:
        population: the users that it speaks for, which the world believes in at the start.
        shared: keys of what is drawn once for a group, or for a row: its task and what the simulator is told.
        outcome: "simulator": its own last word; "world": what follows from what was said; "judge": a frozen
            judge that takes every user for the favourite type of ``population``.
        systems: system prompts; by default what the world tells its users.
        tasks: of each row; by default as ``shared`` draws them from all.
    """
    prior = world.prior_vector(population)
    drawn = draw_prompts(world, prior, shared)
    seat = WordSeat(model, keys, "simulator", systems or [world.prompts[i] for i in drawn], rule)
    if outcome == "simulator":
        return seat
    believed = told_prior(world, prior, drawn)
    if outcome == "judge":
        believed = np.eye(len(prior))[believed.argmax(axis=1)]
    tasks = draw_tasks(len(world.tasks), shared) if tasks is None else tasks
    return WorldSeat(BeliefUsers(world, believed, len(keys), tasks=tasks), keys, seat)


# -- the scene --------------------------------------------------------------------------------------------------------


class NanoScene(Scene):
    """A nano world: models that speak in dialogue acts, from the world's library."""

    threads = 1  # at this size a second costs more than it gives
    number_format = "float32"

    def __init__(self, config: RunConfig, library: Library | None = None):
        """``library``: by default that of the world's shipped or built models.

        Raises:
            ScopeError: for the first name of the config that does not exist.
        """
        self.config, self.library = config, library or Library(get_world(config.world))
        self.world, settings = self.library.world, config.simulator
        if settings.kind == "persona" and self.world.spec.told:
            raise ScopeError(f"world {config.world!r} tells its users what to do: there is no persona prompt for them")
        self.members = read_panel(self.world.name, self.library.folder.parent)
        for name in settings.members:
            self.member(name)
        if not self.library.has(config.model):
            there = sorted(p.parent.name for p in self.library.folder.glob("*/config.json"))
            raise ScopeError(closest(config.model, there, "model"))
        self.outcome: OutcomeRule = settings.outcome or self.world.spec.outcome_by
        if self.outcome == "simulator" and self.world.spec.outcome_by == "world":
            raise ScopeError(
                f"in world {self.world.name!r} the simulator does not say how a dialogue ended; leave outcome at null"
            )
        self.rule: SamplingRule = Direct()
        if settings.kind == "verbalized":
            self.rule = VerbalizedModel(settings.k, settings.noise, settings.eta, settings.direction, settings.vs_draw)
        self._frozen = cache(self.library.seat_model)

    def member(self, name: str) -> PanelMember:
        """A base model's name is a simulator of P on that model; nobody trains with a scripted user (ScopeError)."""
        if self.library.has(name) and name not in {member.name for member in self.members}:
            return PanelMember(name, name, COLLAPSED_SHARPNESS, "collapsed", dict(self.world.spec.prior))
        found = super().member(name)
        if found.model is None:
            raise ScopeError(f"{name!r} is a scripted user: it can be evaluated against, not trained with")
        return found

    @property
    def in_both_seats(self) -> PanelMember:
        return PanelMember("self", self.config.model, 1.0, "collapsed", dict(self.world.spec.prior))

    def policy_model(self) -> SeatModel:
        return self.library.seat_model(self.config.model, self.policy_sharpness, 1 / self.config.temperature)

    def simulator_model(self, member: PanelMember) -> SeatModel:
        return self.library.seat_model(str(member.model), self.config.simulator.sharpness or member.sharpness)

    def prepare(self, members: Sequence[PanelMember], split: Split) -> None:
        for member in members:
            if member.model is not None:
                self._model(member, split)

    def _model(self, member: PanelMember, split: Split) -> SeatModel:
        """The frozen model of a member that has one; in training with the sharpness that the config says."""
        asked = self.config.simulator.sharpness if split == "train" else None
        return self._frozen(str(member.model), asked or member.sharpness)

    def tasks(self, split: Split) -> int:
        return len(self.world.tasks)

    def told(self, playing: Sequence[PanelMember], shared: RowKeys, split: Split) -> list[str]:
        """What each row's simulator is told: in training a persona, or what the world tells its population's users."""
        if split == "train" and self.config.simulator.kind == "persona":
            types = list(self.world.spec.prior)
            drawn = (shared.once("persona") * len(types)).astype(int)
            return [f"user-{self.config.simulator.persona}-{types[i]}" for i in drawn]
        prompts = np.zeros(len(playing), dtype=int)
        for member, rows in rows_of(playing):
            prompts[rows] = draw_prompts(self.world, self.world.prior_vector(member.population), shared[rows])
        return [self.world.prompts[i] for i in prompts]

    def run(
        self,
        policy: SeatModel,
        keys: RowKeys,
        names: Sequence[str],
        seat: SeatOf,
        tasks: Sequence[int],
        told: Sequence[str],
        split: Split,
    ) -> tuple[list[Rollout], Seat]:
        prompts = [self.world.tasks[task] for task in tasks]
        agents, simulators = self.seat_model(policy, keys, prompts, split), seat(keys, told)
        assert isinstance(simulators, RoutedSeat)
        return run_words(self.world, prompts, agents, simulators, keys, names), simulators

    def episode(self, task: int, split: Split, told: str) -> NanoEpisode:
        return NanoEpisode(self.world, {"policy": self.world.tasks[task], "simulator": told})

    def seat_model(self, model: SeatModel, keys: RowKeys, systems: Sequence[str], split: Split) -> WordSeat:
        return WordSeat(model, keys, "policy", systems, self.policy_rule(split))

    def seat_learner(self, member: PanelMember, model: SeatModel, keys: RowKeys, systems: Sequence[str]) -> Seat:
        shared = keys.by_group()
        tasks = self.draw_tasks(shared, "train")
        return seat_simulator(
            self.world, model, member.population, keys, shared, self.outcome, systems=systems, tasks=tasks
        )

    def seat_members(
        self, playing: Sequence[PanelMember], keys: RowKeys, systems: Sequence[str], split: Split
    ) -> RoutedSeat:
        parts = [(rows, self._seat(m, keys[rows], [systems[i] for i in rows], split)) for m, rows in rows_of(playing)]
        return RoutedSeat(parts)

    def _seat(self, member: PanelMember, keys: RowKeys, systems: list[str], split: Split) -> Seat:
        """A member's seat: its model's, or that of the world's own users."""
        world = self.world
        if member.model:
            training = split == "train"
            shared, outcome = (keys.by_group(), self.outcome) if training else (keys, world.spec.outcome_by)
            rule, model = self.rule if training else None, self._model(member, split)
            tasks = self.draw_tasks(shared, split)
            return seat_simulator(world, model, member.population, keys, shared, outcome, rule, systems, tasks)
        prior, tasks = world.prior_vector(member.population), draw_tasks(len(world.tasks), keys)
        if member.kind == "scripted":
            return WorldSeat(ScriptedUsers.sample(world, prior, keys.once("user"), tasks), keys)
        # a member with another sharpness than 1 is the exact simulator of its population
        known = told_prior(world, prior, draw_prompts(world, prior, keys))
        return WorldSeat(BeliefUsers(world, known, len(keys), member.sharpness, tasks), keys)

    def epsilon(self, simulators: Seat) -> float | None:
        assert isinstance(simulators, KnowsItsLaw)
        return collapse_error(simulators.distributions()[: self.world.horizon])

    def answers(self, member: PanelMember, model: SeatModel) -> dict[str, float]:
        """Where the simulator's mode stands: its replies to the world's most open question, asked first.

        Returns:
            ``simulator/answer/<reply>``: the probability of each reply, under the current weights.
        """
        seat = seat_simulator(self.world, model, member.population, PROBE, PROBE, self.outcome)
        seat.hear([self.world.spec.agent_acts[self.world.open_question]])
        seat.speak(0, "reply")
        replies = zip(self.world.spec.user_acts, seat.distributions()[0][0], strict=True)
        return {f"simulator/answer/{reply}": float(p) for reply, p in replies}

    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float | None]:
        """How likely the policy follows the world's exploit, and what it earns there; None if no dialogue followed it.

        Returns:
            ``odds_exploit``: its odds under the policy that played (Cor. 3.5), from its own log probabilities, and
            ``reward_exploit``: the mean reward of the dialogues that followed it.
        """
        followed = [r for r in rollouts if r.policy and tuple(r.acts) == self.world.spec.exploit]
        if not followed:
            return {"odds_exploit": None, "reward_exploit": None}
        odds = odds_from_logprobs(np.array([sum(r.policy.logprobs) for r in followed if r.policy]))
        return {"odds_exploit": odds, "reward_exploit": float(np.mean([r.reward for r in followed]))}


def rows_of(playing: Sequence[PanelMember]) -> list[tuple[PanelMember, Int[np.ndarray, " r"]]]:
    """Each member that plays, and the rows that it plays in."""
    names = np.array([member.name for member in playing])
    return [(member, np.flatnonzero(names == name)) for name, member in {m.name: m for m in playing}.items()]


def collapse_error(distributions: Sequence[Float[np.ndarray, "rows replies"]]) -> float:
    """Mean collapse error a turn on visited histories, one array of exact reply distributions a turn (Def. 3.1)."""
    return float(np.mean([(1 - np.asarray(p, dtype=float).max(axis=-1)).mean() for p in distributions]))


def odds_from_logprobs(log_probs: Float[np.ndarray, "dialogues"]) -> float:
    """Odds of one act sequence, from ``Σ_t log π(a_t|s_t)`` (nats) in each dialogue whose acts are the sequence.

    Counts cannot exceed 2n + 1; these odds can. With w the product of act probabilities in a dialogue, dialogues that
    follow the sequence come with weight w, so the mean of 1/w over them is 1/P, and the odds are 1 / mean(1/w − 1).
    NaN if no dialogue followed it.
    """
    if not len(log_probs):
        return float("nan")
    excess = float(np.mean(np.expm1(-np.asarray(log_probs, dtype=np.float64))))
    return 1.0 / max(excess, 1e-12)
