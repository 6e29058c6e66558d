"""The nano worlds: one word a message, users that are known exactly, and simulators that are small models of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from scope_lite.envs.nano import World, get_world
from scope_lite.envs.nano.episode import CLOSE, NanoEpisode
from scope_lite.envs.nano.users import BeliefUsers, ScriptedUsers, draw, told_prior
from scope_lite.method.config import RunConfig, SimulatorConfig
from scope_lite.method.dialogue import Seat
from scope_lite.method.panel_file import COLLAPSED_SHARPNESS, PanelMember, read_panel
from scope_lite.method.partner import draw_tasks
from scope_lite.method.sampling import Direct, SamplingRule, VerbalizedModel
from scope_lite.method.scene import Scene, Split
from scope_lite.method.seats import KnowsItsLaw, ModelSeat, RoutedSeat
from scope_lite.models.hf import SeatModel, load_base
from scope_lite.models.records import Rollout, Transcript
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.paths import model_folder

OutcomeRule = Literal["simulator", "world", "judge"]
PROBE = RowKeys(0, 0, np.zeros(1, dtype=int), np.zeros(1, dtype=int))
"""one dialogue that no training step plays"""


def nano_episodes(world: World, systems: Sequence[str], told: Sequence[str] = ()) -> list[NanoEpisode]:
    """A batch of dialogues at their beginning, one for each of the policy's ``systems``; ``told``: the simulators'."""
    prompts = told or world.prompts[:1] * len(systems)
    return [NanoEpisode(world, {"policy": s, "simulator": t}) for s, t in zip(systems, prompts, strict=True)]


# -- seats whose law is known -----------------------------------------------------------------------------------------


class ScriptedSeat:
    """The world's own users: with a hidden type a row, or the exact simulator that mixes and may sharpen them.

    All rows speak at once, as they do at nano.
    """

    max_new_tokens = 0

    def __init__(self, world: World, users: BeliefUsers, keys: RowKeys):
        self.world, self.users, self.keys = world, users, keys
        self.transcripts: list[Transcript | None] = [None] * len(keys)
        self._acts: Int[np.ndarray, " b"] = np.zeros(len(keys), dtype=int)
        self._distributions: list[Float[np.ndarray, "b n"]] = []

    def hear(self, messages: Sequence[str | None]) -> None:
        self._acts = acts_heard(self.world, messages, self._acts)

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str]:
        uniforms = self.keys.uniforms(turn, "simulator")[:, 0]
        if kind == "outcome":
            probabilities = self.users.outcome_probabilities()
            said = [self.world.spec.outcomes[o] for o in draw(probabilities, uniforms)]
        else:
            probabilities = self.users.reply_probabilities(self._acts)
            replies = draw(probabilities, uniforms)
            self.users.observe(self._acts, replies)
            said = [self.world.spec.user_acts[r] for r in replies]
        self._distributions.append(probabilities)
        return said

    def distributions(self) -> list[Float[np.ndarray, "b n"]]:
        return self._distributions


class OutcomeSeat:
    """A simulator that speaks, and a world that says how it ended: by what was said, not by the simulator's last word.

    ``users`` holds, for each row, the belief over the types that the simulator may have been.
    """

    max_new_tokens = 1

    def __init__(self, seat: Seat, users: BeliefUsers, keys: RowKeys):
        self.seat, self.users, self.keys = seat, users, keys
        self._acts: Int[np.ndarray, " b"] = np.zeros(len(keys), dtype=int)
        self._outcome: list[Float[np.ndarray, "b n"]] = []

    @property
    def transcripts(self) -> Sequence[Transcript | None]:
        return self.seat.transcripts

    def hear(self, messages: Sequence[str | None]) -> None:
        self._acts = acts_heard(self.users.world, messages, self._acts)
        if CLOSE not in messages:
            self.seat.hear(messages)

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str]:
        world = self.users.world
        if kind == "outcome":
            self._outcome = [self.users.outcome_probabilities()]
            drawn = draw(self._outcome[0], self.keys.uniforms(turn, "simulator")[:, 0])
            return [world.spec.outcomes[o] for o in drawn]
        said = [str(reply) for reply in self.seat.speak(turn, kind)]
        self.users.observe(self._acts, np.array([world.user_index[reply] for reply in said]))
        return said

    def distributions(self) -> list[Float[np.ndarray, "b n"]]:
        own = self.seat.distributions() if isinstance(self.seat, KnowsItsLaw) else []
        return [*own, *self._outcome]


def acts_heard(world: World, messages: Sequence[str | None], before: Int[np.ndarray, " b"]) -> Int[np.ndarray, " b"]:
    """The acts that these messages are, by number; at the close those that were heard ``before``.

    Raises:
        KeyError: for a message that is no act of this world.
    """
    return before if CLOSE in messages else np.array([world.agent_index[message or ""] for message in messages])


# -- models, and what is drawn for them -------------------------------------------------------------------------------


def choice_sets(world: World, tokenizer: Any) -> dict[str, list[int]]:
    """The token ids that each kind of message is drawn from: act, reply, outcome."""
    spec = world.spec
    names = {"act": spec.agent_acts, "reply": spec.user_acts, "outcome": spec.outcomes}
    return {kind: tokenizer.convert_tokens_to_ids(list(words)) for kind, words in names.items()}


class Library:
    """Loads each nano model of a world once, and hands it out as a seat model."""

    def __init__(self, world: World, folder: Path | None = None):
        self.world = world
        self.folder = folder / world.name if folder else model_folder(world.name)
        self._bases: dict[str, tuple[Any, Any]] = {}

    def seat_model(self, name: str, sharpness: float = 1.0) -> SeatModel:
        """A frozen seat model on the (shared) weights of the model ``name``.

        Raises:
            ScopeError: if the world has no such model.
        """
        if name not in self._bases:
            self._bases[name] = load_base(self.folder / name)
        model, tokenizer = self._bases[name]
        return SeatModel(model, tokenizer, choice_sets(self.world, tokenizer), sharpness)


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
) -> ModelSeat | OutcomeSeat:
    """A model in the simulator's seat, with whoever says how the dialogue ended.

    Args:
        population: the users that it speaks for, which the world believes in at the start.
        shared: keys of what is drawn once for a group, or for a row: its task and what the simulator is told.
        outcome: "simulator": its own last word; "world": what follows from what was said; "judge": a frozen
            judge that takes every user for the favourite type of ``population``.
        systems: system prompts; by default what the world tells its users.
    """
    prior = world.prior_vector(population)
    drawn = draw_prompts(world, prior, shared)
    seat = ModelSeat(model, keys, "simulator", list(systems) or [world.prompts[i] for i in drawn], rule)
    if outcome == "simulator":
        return seat
    believed = told_prior(world, prior, drawn)
    if outcome == "judge":
        believed = np.eye(len(prior))[believed.argmax(axis=1)]
    users = BeliefUsers(world, believed, len(keys), tasks=draw_tasks(len(world.tasks), shared))
    return OutcomeSeat(seat, users, keys)


# -- the scene --------------------------------------------------------------------------------------------------------


class NanoScene(Scene[PanelMember]):
    """A nano world: models that speak in dialogue acts, from the world's library."""

    threads = 1  # at this size a second costs more than it gives
    number_format = "float32"

    def __init__(self, config: RunConfig, library: Library | None = None):
        """``library``: by default that of the world's shipped or built models.

        Raises:
            ScopeError: for the first name of the config that does not exist.
        """
        self.config, self.library = config, library or Library(get_world(config.world))
        self.world = self.library.world
        settings = config.simulator
        if settings.kind == "persona" and self.world.spec.told:
            raise ScopeError(f"world {config.world!r} tells its users what to do: there is no persona prompt for them")
        self.members = read_panel(self.world.name, self.library.folder.parent)
        for name in settings.members:
            self.member(name)
        if not (self.library.folder / config.model / "config.json").exists():
            there = sorted(p.parent.name for p in self.library.folder.glob("*/config.json"))
            raise ScopeError(closest(config.model, there, "model"))
        self.outcome = outcome_rule(self.world, settings)
        self.rule: SamplingRule = Direct()
        if settings.kind == "verbalized":
            self.rule = VerbalizedModel(settings.k, settings.noise, settings.eta, settings.direction)
        self._frozen: dict[tuple[str, float], SeatModel] = {}

    def member(self, name: str) -> PanelMember:
        """The member of that name, as one to train with; a base model's name is a simulator of P on that model.

        Raises:
            ScopeError: if the panel has none, or it is a scripted user.
        """
        panel = {m.name: m for m in self.members}
        if name not in panel and (self.library.folder / name / "config.json").exists():
            return PanelMember(name, name, COLLAPSED_SHARPNESS, "collapsed", dict(self.world.spec.prior))
        if name not in panel:
            raise ScopeError(closest(name, list(panel), "simulator"))
        if panel[name].model is None:
            raise ScopeError(f"{name!r} is a scripted user: it can be evaluated against, not trained with")
        return panel[name]

    def in_both_seats(self) -> PanelMember:
        return PanelMember("self", self.config.model, 1.0, "collapsed", dict(self.world.spec.prior))

    def policy_model(self) -> SeatModel:
        return self.library.seat_model(self.config.model, self.policy_sharpness)

    def simulator_model(self, member: PanelMember) -> SeatModel:
        assert member.model is not None
        return self.library.seat_model(member.model, self.config.simulator.sharpness or member.sharpness)

    def prepare(self, members: Sequence[PanelMember], split: Split) -> None:
        for member in members:
            if member.model is not None:
                self._model(member, split)

    def _model(self, member: PanelMember, split: Split) -> SeatModel:
        """The frozen model of a member that has one; in training with the sharpness that the config says."""
        assert member.model is not None
        sharpness = (self.config.simulator.sharpness if split == "train" else None) or member.sharpness
        key = member.model, sharpness
        if key not in self._frozen:
            self._frozen[key] = self.library.seat_model(*key)
        return self._frozen[key]

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
            prior = self.world.prior_vector(member.population)
            prompts[rows] = draw_prompts(self.world, prior, shared[rows])
        return [self.world.prompts[i] for i in prompts]

    def episode(self, task: int, split: Split, told: str) -> NanoEpisode:
        return NanoEpisode(self.world, {"policy": self.world.tasks[task], "simulator": told})

    def seat_model(self, model: SeatModel, keys: RowKeys, systems: Sequence[str]) -> ModelSeat:
        return ModelSeat(model, keys, "policy", list(systems))

    def seat_learner(self, member: PanelMember, model: SeatModel, keys: RowKeys, systems: Sequence[str]) -> Seat:
        shared = keys.by_group()
        return seat_simulator(self.world, model, member.population, keys, shared, self.outcome, systems=systems)

    def seat_members(
        self, playing: Sequence[PanelMember], keys: RowKeys, systems: Sequence[str], split: Split
    ) -> RoutedSeat:
        parts = [(rows, self._seat(m, keys[rows], [systems[i] for i in rows], split)) for m, rows in rows_of(playing)]
        return RoutedSeat(parts)

    def _seat(self, member: PanelMember, keys: RowKeys, systems: list[str], split: Split) -> Seat:
        """A member's seat: its model's, or that of the world's own users."""
        if member.model is None:
            return ScriptedSeat(self.world, self._own_users(member, keys), keys)
        model = self._model(member, split)
        if split == "test":
            by = self.world.spec.outcome_by
            return seat_simulator(self.world, model, member.population, keys, keys, by, systems=systems)
        shared = keys.by_group()
        return seat_simulator(self.world, model, member.population, keys, shared, self.outcome, self.rule, systems)

    def _own_users(self, member: PanelMember, keys: RowKeys) -> BeliefUsers:
        """Scripted users, or (a member with another sharpness than 1) the exact simulator of its population."""
        prior, tasks = self.world.prior_vector(member.population), draw_tasks(len(self.world.tasks), keys)
        if member.kind == "scripted":
            return ScriptedUsers.sample(self.world, prior, keys.once("user"), tasks)
        known = told_prior(self.world, prior, draw_prompts(self.world, prior, keys))
        return BeliefUsers(self.world, known, len(keys), member.sharpness, tasks)

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
        return exploit_metrics(rollouts, self.world.spec.exploit)


def rows_of(playing: Sequence[PanelMember]) -> list[tuple[PanelMember, Int[np.ndarray, " r"]]]:
    """Each member that plays, and the rows that it plays in."""
    names = np.array([member.name for member in playing])
    members = {member.name: member for member in playing}
    return [(member, np.flatnonzero(names == name)) for name, member in members.items()]


def outcome_rule(world: World, config: SimulatorConfig) -> OutcomeRule:
    """Who says how a training dialogue ended: the config, or what the world has it.

    Raises:
        ScopeError: if the world cannot leave it to the simulator.
    """
    if config.outcome == "simulator" and world.spec.outcome_by == "world":
        raise ScopeError(
            f"in world {world.name!r} the simulator does not say how a dialogue ended; leave outcome at null"
        )
    return config.outcome or world.spec.outcome_by


def exploit_metrics(rollouts: Sequence[Rollout], exploit: tuple[str, ...]) -> dict[str, float | None]:
    """How likely the policy follows the world's exploit, and what it earns there; None if no dialogue followed it.

    Returns:
        ``odds_exploit``: its odds under the policy that played (Cor. 3.5), from its own log probabilities, and
        ``reward_exploit``: the mean reward of the dialogues that followed it.
    """
    followed = [r for r in rollouts if r.policy and tuple(r.acts) == exploit]
    if not followed:
        return {"odds_exploit": None, "reward_exploit": None}
    logprobs = np.array([sum(r.policy.logprobs) for r in followed if r.policy])
    return {
        "odds_exploit": odds_from_logprobs(logprobs),
        "reward_exploit": float(np.mean([r.reward for r in followed])),
    }


def collapse_error(distributions: Sequence[Float[np.ndarray, "rows replies"]]) -> float:
    """Mean collapse error a turn on visited histories, one array of exact reply distributions a turn (Def. 3.1)."""
    return float(np.mean([(1 - np.asarray(p, dtype=float).max(axis=-1)).mean() for p in distributions]))


def odds_from_logprobs(log_probs: Float[np.ndarray, "dialogues"]) -> float:
    """Odds of one act sequence, from the policy's log probability of its acts in the dialogues that followed it.

    Counts cannot exceed 2n + 1; these odds can. With w the product of act probabilities in a dialogue, dialogues that
    follow the sequence come with weight w, so the mean of 1/w over them is 1/P, and the odds are 1 / mean(1/w − 1).

    Args:
        log_probs: ``Σ_t log π(a_t|s_t)`` in nats, one for each dialogue of the batch whose acts are the sequence.

    Returns:
        The odds; NaN if no dialogue followed the sequence.
    """
    if not len(log_probs):
        return float("nan")
    excess = float(np.mean(np.expm1(-np.asarray(log_probs, dtype=np.float64))))
    return 1.0 / max(excess, 1e-12)
