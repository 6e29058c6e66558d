"""One dialogue with a policy, message by message: the loop and the seats of evaluation, with you in one if you like.

``dialogue.run_dialogues`` plays it; its two seats show every message as it is said, at nano with the distribution that
it was drawn from. Randomness is keyed by (seed, number of the talk, message): the same seed and replies give the same
talk. After an undo it is played again: what was said until then is read out, not sampled.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import numpy as np
from jaxtyping import Int

from scope_lite.envs.nano import WORLDS, random_seed
from scope_lite.envs.nano.users import BeliefUsers, told_prior
from scope_lite.method.config import TEXT_WORLDS, RunConfig, load_config, method_config
from scope_lite.method.cotraining import open_partner
from scope_lite.method.dialogue import CONTEXT, Seat, Unsaid, run_dialogues
from scope_lite.method.learner import Learner
from scope_lite.method.made_of import made_of
from scope_lite.method.nano import NanoScene, WorldSeat, draw_prompts
from scope_lite.method.panel_file import PanelMember
from scope_lite.method.partner import Partner
from scope_lite.method.prompted import PromptedSeat
from scope_lite.method.scene import Scene, draw_tasks
from scope_lite.method.seats import KnowsItsLaw, ModelSeat
from scope_lite.method.text import TextScene, draw_personas
from scope_lite.method.train import in_format, open_scene
from scope_lite.method.words import WordSeat
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import FAILED, Rollout, Transcript
from scope_lite.models.rng import RowKeys
from scope_lite.store import Checkpoint, find
from scope_lite.store.checkpoints import load_newest
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.folder import changed_since
from scope_lite.store.paths import RUNS, checked_place

BASE = "base:"
"""before a world's name: its base model, untrained"""
YOU, TRAINING = "you", "training"
"""partners beside the panel's members: a person, and whoever a run trained with, drawn as in training"""
AGENT, FORM, TOOL, OUTCOME, TOLD = "agent", "form", "tool", "outcome", "you are told"
"""who is shown to speak, beside a partner: the policy, whoever asks when the chat is over (p4g), what a tool answers
(tau2), whoever says how it ended, and what you know before it begins"""
ENDINGS = {
    "given": "a donation above 0 was stated",
    "nothing": "a donation of 0 was stated",
    "unread": "no amount that could be read was stated",
    "stop": "the customer ended it",
    "transfer": "the customer was handed over to a person",
    "out-of-scope": "the customer was asked for what the scenario does not hold",
    "max-turns": "the agent had said all that it may say",
    CONTEXT: "the talk outgrew what the model can read at once",
    FAILED: "the simulator said nothing that can be used, however often it was asked; this talk does not count",
}
"""what each outcome of an episode in text means"""
TALK_ENGINES = {"rollout_engine": "hf", "training_engine": "hf", "four_bit": False}
"""A talk needs no engine that is made for many dialogues at once, whatever the run had: transformers will do."""


class Again(Exception):
    """The talk is to be played again, after an undo or a restart."""


@dataclass(frozen=True)
class Message:
    """What was said, by whom, and at nano what else it was drawn from."""

    speaker: str
    said: str
    """the name of an act or outcome; in text the words themselves"""
    sentence: str
    """the same, to read"""
    probability: float | None = None
    """in text the geometric mean over its tokens; None for what was not sampled, or where nobody tells it"""
    probabilities: Mapping[str, float] = field(default_factory=dict)
    """at nano, of every message of its kind, in the world's order"""
    transcript: Transcript | None = field(default=None, compare=False, repr=False)
    """of the seat that said it, with the message"""

    def options(self, least: float = 0.005) -> dict[str, float]:
        """Likeliest first, without those below ``least``, but with the one that was said."""
        ranked = sorted(self.probabilities.items(), key=lambda option: -option[1])
        return {name: p for name, p in ranked if p >= least or name == self.said}

    @property
    def line(self) -> str:
        """The message with its name, where that is another than the sentence, and its probability."""
        name = self.said if self.said != self.sentence else ""
        unit = "" if self.probabilities else " a token"
        chance = "" if self.probability is None else f"{self.probability:.3f}{unit}"
        label = ", ".join(part for part in (name, chance) if part)
        return f"{self.speaker}: {self.sentence}" + (f" ({label})" if label else "")


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy, and who can talk to it."""

    name: str
    step: int
    """optimizer steps it has had"""
    scene: Scene
    model: SeatModel
    trained_with: Partner | None
    """None for a policy that was not trained"""

    @property
    def partners(self) -> list[str]:
        """Names of those who can answer it: you, the panel's members, and who it trained with."""
        return [YOU, *(m.name for m in self.scene.members), *([TRAINING] if self.trained_with else [])]

    @property
    def about(self) -> str:
        """What to know before a talk begins, to read."""
        config, trained = self.scene.config, f"trained for {self.step} steps" if self.step else "untrained"
        if not config.is_text:
            return f"a policy of world {config.world}, {trained}"
        model = Path(config.model).name  # a run may name a folder
        return f"a policy of world {config.world} ({model}), {trained}; it has at most {config.text.turns} messages"


# -- seats ------------------------------------------------------------------------------------------------------------


class PersonSeat:
    """A person in the simulator's seat, who is asked for each reply."""

    max_new_tokens = 0

    def __init__(self, ask: Callable[[], str]):
        self.ask = ask
        self.transcripts: list[Transcript | None] = [None]

    def hear(self, messages: Sequence[str | None]) -> None:
        pass

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> list[str]:
        return [self.ask()]


class ShownSeat:
    """A seat of one row, whose messages the talk shows as they are said, with what it hears from neither side."""

    def __init__(self, talk: Talk, name: str, seat: Seat):
        self.talk, self.name, self.seat = talk, name, seat

    @property
    def max_new_tokens(self) -> int:
        return self.seat.max_new_tokens

    @property
    def transcripts(self) -> Sequence[Transcript | None]:
        return self.seat.transcripts

    def hear(self, messages: Sequence[str | None]) -> None:
        (words,) = messages
        last = self.talk.record[-1].speaker if self.talk.record else None
        from_neither = last == self.name or (last is None and self.name != AGENT)
        if words is not None and from_neither and not self.talk.world:
            speaker = TOOL if self.name == AGENT else FORM if last else AGENT
            self.talk.show(Message(speaker, words, words))
        self.seat.hear(messages)

    def speak(self, turn: int, kind: str, rows: Int[np.ndarray, " r"] | None = None) -> Sequence[str | Unsaid]:
        known = self.talk.kept[0] if self.talk.kept else None
        if known and known.transcript and isinstance(self.seat, ModelSeat | WordSeat):
            self.seat.resume([known.transcript])  # it goes on from where its transcript then ended
            self.talk.take(known)
            return [known.said]
        said = self.seat.speak(turn, kind, rows)
        if not isinstance(said[0], Unsaid):
            message = self._message(said[0], kind)
            self.talk.take(replace(message, transcript=copy.deepcopy(self.transcripts[0])))
        return said

    def _message(self, said: str, kind: str) -> Message:
        world = self.talk.world
        if world is None:
            return Message(self.name, said, said, mean_probability(self.seat))
        words = {"act": world.spec.agent_acts, "reply": world.spec.user_acts, "outcome": world.spec.outcomes}[kind]
        laws = self.seat.distributions() if isinstance(self.seat, KnowsItsLaw) else []
        drawn = dict(zip(words, laws[-1][0].tolist(), strict=True)) if laws else {}
        return Message(OUTCOME if kind == "outcome" else self.name, said, world.say(said), drawn.get(said), drawn)


def mean_probability(seat: Seat) -> float | None:
    """Of the newest message in text: the geometric mean over its tokens, its end among them; None where not known."""
    if isinstance(seat, PromptedSeat):  # of a verbalized list it would be that of the list
        logprobs: Sequence[float] = seat.newest[0].logprobs if seat.voices[0].candidates is None else ()
    else:
        transcript = seat.transcripts[0]
        logprobs = transcript.logprobs[transcript.newest] if transcript else ()
    chance = math.exp(math.fsum(logprobs) / len(logprobs)) if logprobs else math.nan
    return None if math.isnan(chance) else chance


# -- the talk ---------------------------------------------------------------------------------------------------------


class Talk:
    """A talk with a policy: you answer it yourself, or a simulator does.

    With you it ends as the world says: a nano world weighs which of its real users (P_real) would have said what you
    said. In text you are told what a simulator in your place would be told.
    """

    def __init__(self, policy: LoadedPolicy, partner: str = YOU, seed: int = 0):
        """``partner``: who answers, a name out of ``policy.partners``.

        Raises:
            ScopeError: for a partner that does not exist.
        """
        if partner not in policy.partners:
            raise ScopeError(closest(partner, policy.partners, "partner"))
        self.policy, self.partner, self.seed, self.number = policy, partner, seed, 0
        self.world = policy.scene.world if isinstance(policy.scene, NanoScene) else None
        self.replies: tuple[str, ...] = self.world.spec.user_acts if self.world else ()
        """what a person can say; empty where that is anything"""
        self.record: list[Message] = []
        self.kept: list[Message] = []
        """what was said before an undo, and is still to be read out"""

    def play(self, ask: Callable[[], str], show: Callable[[Message], None]) -> Rollout:
        """Play it to its end.

        Args:
            ask: gives a person's next reply, one of ``replies`` if there are any; may call ``undo`` and ``restart``.
            show: gets each message as it is said.

        Raises:
            Again: after an undo or a restart; play it again.
            ScopeError: if the model cannot read even the first message.
        """
        self.record, self.turn, self._ask, self._show = [], 0, ask, show
        scene, keys = self.policy.scene, RowKeys(self.seed, 0, np.array([self.number]), np.array([0]))
        task = int(scene.draw_tasks(keys, "test")[0])  # as in evaluation
        episode = scene.episode(task, "test", self._told(keys))
        systems = episode.systems
        agent = ShownSeat(self, AGENT, scene.seat_model(self.policy.model, keys, [systems["policy"]], "test"))
        partner = ShownSeat(self, self.partner, self._seat(keys, systems["simulator"]))
        if self.partner == YOU and (self.world is None or self.world.spec.told):
            told = systems["simulator"]
            self.show(Message(TOLD, told, self.sentence(told)))
        context = scene.context(self.policy.model)
        (rollout,) = run_dialogues([episode], agent, partner, keys, [self.partner], context)
        if self.world is None:
            self.show(Message(OUTCOME, rollout.outcome, ENDINGS.get(rollout.outcome, rollout.outcome)))
        return rollout

    def undo(self) -> NoReturn:
        """Take back your last reply.

        Raises:
            Again: the act that it answered is open again.
            ScopeError: if there is none, or a simulator answers (it would say the same again).
        """
        if self.partner != YOU:
            raise ScopeError(f"{self.partner} would say the same again; restart begins another talk")
        own = [i for i, message in enumerate(self.record) if message.speaker == YOU]
        if not own:
            raise ScopeError("nothing to take back")
        self.kept = self.record[: own[-1]]
        raise Again

    def restart(self) -> NoReturn:
        """Begin another talk, with draws of its own: raises Again."""
        self.number += 1
        raise Again

    def expected_reward(self) -> float | None:
        """Of a talk that is over: mean over the outcomes that it could have had; None in text, where none are known."""
        if self.world is None:
            return None
        value = dict(zip(self.world.spec.outcomes, self.world.spec.rewards, strict=True))
        return sum(value[name] * p for name, p in self.record[-1].probabilities.items())

    def sentence(self, said: str) -> str:
        """A message that might be said, to read."""
        return self.world.say(said) if self.world else said

    def heading(self, message: Message) -> str:
        """What stands above a message; nothing above a reply."""
        if message.speaker in (AGENT, FORM):
            of = f" of {self.world.horizon}" if self.world else ""
            return f"turn {self.turn}{of}"
        return "the end" if message.speaker == OUTCOME else ""

    def revealed(self, task: str) -> str:
        """What is told of the task when the talk is over; empty where that is nothing."""
        if self.world:
            return f"the agent was told: {self.sentence(task)}" if self.world.spec.tasks else ""
        return f"task {task}" if self.policy.scene.tasks("test") > 1 else ""

    def show(self, message: Message) -> None:
        """Show a message, if nothing is left to be read out after it."""
        self.turn += message.speaker in (AGENT, FORM)
        if not self.kept:
            self._show(message)

    def take(self, message: Message) -> None:
        """A seat has said this."""
        self.record.append(message)
        self.kept = self.kept[1:]
        self.show(message)

    def _reply(self) -> str:
        return self.kept[0].said if self.kept else self._ask()

    def _told(self, keys: RowKeys) -> str:
        """What the partner is told of itself, as in training or on the panel."""
        scene, training = self.policy.scene, self.policy.trained_with
        if self.partner == YOU and isinstance(scene, TextScene):
            return draw_personas(scene.task.personas["test"], keys)[0]
        if self.partner == YOU and self.world:
            return self.world.prompts[draw_prompts(self.world, self.world.real_prior, keys)[0]]
        if self.partner == TRAINING and training:
            return scene.told(training.playing(keys), keys.by_group(), "train")[0]
        return scene.told(self._members(), keys, "test")[0]

    def _seat(self, keys: RowKeys, system: str) -> Seat:
        """The partner's seat, as the panel or the training step has it."""
        if self.partner == TRAINING and self.policy.trained_with:
            return self.policy.trained_with.seat(keys, [system])
        if self.partner != YOU:
            return self.policy.scene.seat_members(self._members(), keys, [system], "test")
        person, world = PersonSeat(self._reply), self.world
        if world is None:
            return person
        # the world weighs which of its real users would have said what you said
        believed = told_prior(world, world.real_prior, draw_prompts(world, world.real_prior, keys))
        users = BeliefUsers(world, believed, 1, tasks=draw_tasks(len(world.tasks), keys))
        return WorldSeat(users, keys, person)

    def _members(self) -> list[PanelMember]:
        return [m for m in self.policy.scene.members if m.name == self.partner]


# -- what there is to talk to -----------------------------------------------------------------------------------------


def load_policy(run: str | Path, root: Path = RUNS) -> LoadedPolicy:
    """The policy of a run (its name, the beginning of it, or its folder), or of "base:<world>".

    Raises:
        ScopeError: if there is no such run or world, it has no checkpoint yet, or its models are not the ones that it
            trained on.
    """
    name, checkpoint = str(run), None
    if name.startswith(BASE):
        world, known = name.removeprefix(BASE), [*WORLDS, *TEXT_WORLDS]
        if world not in known and random_seed(world) is None:
            raise ScopeError(closest(world, known, "world"))
        config = method_config("base", world=world)
    else:
        try:
            folder = find(root, checked_place(name, "run"))
        except ScopeError as error:
            raise ScopeError(f"{error} (an untrained policy is {BASE}<world>, such as {BASE}persuasion)") from None
        name, (config, checkpoint) = folder.name, _read(folder)
    scene = open_scene(config)
    learner = Learner(scene.policy_model(), config, seed=config.seed)
    partner: Partner | None = None
    if checkpoint is not None:
        learner.load_state(checkpoint.tensors["policy"])
        partner = open_partner(scene, learner)
        partner.load_state(checkpoint.tensors)
    return LoadedPolicy(name, checkpoint.step if checkpoint else 0, scene, learner.model, partner)


def _read(folder: Path) -> tuple[RunConfig, Checkpoint | None]:
    """A run's configuration and newest checkpoint (None for a run without a step: its policy is the base model)."""
    config = load_config(folder / "config.yaml")
    # an adapter on other weights would talk, and mean nothing
    if changed := changed_since(folder, made_of(config)):
        told = f"{folder.name} was trained on models or settings that are not the present ones"
        raise ScopeError(f"{told} ({', '.join(changed[:3])}); train again")
    checkpoint = load_newest(folder / "checkpoints")
    if checkpoint is None and config.steps:
        raise ScopeError(f"{folder.name} has no checkpoint yet; train on, or talk to {BASE}{config.world}")
    if config.is_text:
        config = in_format(config, folder)
        config = config.model_copy(update={"text": config.text.model_copy(update=TALK_ENGINES)})
    return config, checkpoint
