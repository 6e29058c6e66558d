"""Every number of a run, documented and checked; ``made_of`` says how a run is named by those that it reads."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from scope_lite import MAX_SEED
from scope_lite.method.recipes import recipe_settings
from scope_lite.store.errors import ScopeError, closest
from scope_lite.store.paths import name_fault
from scope_lite.store.plain_yaml import flat, read_yaml
from scope_lite.store.settings import Name, Place, Settings, checked, merged

SCHEMA = 1
"""of the keys below and of their defaults: where one changes its meaning or its default, this grows"""
MOST_ROWS = 100_000
"""dialogues that are played at once: what the largest machine might hold"""
TEXT_WORLDS = ("p4g", "tau2-retail", "tau2-airline", "cooperbench")
"""worlds whose dialogues are real text between language models; every other name is a nano world"""


Estimator = Literal["z", "centred", "raw", "batch"]
"""what a rollout's reward becomes; ``grpo.group_advantages`` says what each stands for"""


class SimulatorConfig(Settings):
    """Who plays the user in training."""

    kind: Literal["frozen", "persona", "verbalized", "trained", "self"] = "frozen"
    """frozen: one or several fixed simulators; persona: prompted with a type; verbalized: the nano model of VS;
    trained: a second trainable seat that starts as the first member; self: the policy's own adapter in both seats"""
    members: tuple[Name, ...] = Field(default=("sim-a",), max_length=64)
    """panel members that play, in cyclic rotation; a simulator that learns starts as the first"""
    start: Literal["member", "policy"] = "member"
    """what a simulator that learns starts as: that member (Single's simulator), or a copy of the policy's own base at
    T = .7, as in the public launchers"""
    sharpness: float | None = Field(default=None, gt=0, le=1000)
    """gamma at every reply; null takes what the panel's file says of the member (in self-play: 1; of a copy of the
    policy's base: 1/.7)"""
    outcome: Literal["simulator", "world", "judge"] | None = None
    """who says how a training dialogue ended: the simulator's last word; the world, from what was said (nobody's to
    learn); or a frozen judge that takes every user for the simulator's favourite type. null: as the world has it"""
    draw: Literal["step", "group", "dialogue"] = "group"
    """what one simulator of several plays: a whole step, a group, or a dialogue; paper: an ensemble rotates over
    dialogues (Table 5); of a pool one is drawn for each (C.1, Table 5), and one is active at any step (C.4)"""
    persona: Literal["says", "as"] = "says"
    """says: the prompt changes what the user claims to be; as: it changes how the user reacts, too"""
    k: int = Field(default=5, ge=1, le=100)
    """replies that a verbalized simulator lists (K_VS)"""
    noise: float = Field(default=0.3, ge=0, le=1000)
    """error of the stated probabilities, standard deviation in nats"""
    eta: float = Field(default=0.0, ge=0, le=1)
    """how far the listed distribution is moved off P (Prop. 3.7)"""
    direction: Literal["mode", "wrong"] = "mode"
    """where eta moves it: onto P's own mode, or onto an unlikely reply"""
    vs_draw: Literal["stated", "uniform"] = "stated"
    """how one of the distinct replies listed is drawn: by its stated probability, or uniformly (the public launchers,
    which ask for no probabilities)"""
    reward: Literal[
        "curriculum_credit", "curriculum_group", "adversarial", "cooperative", "disagreement", "zero", "random"
    ] = "curriculum_credit"
    """what a trained simulator is paid for (rewards.py). The paper has adversarial on P4G, on tau2-bench
    curriculum_group: one score for a whole group (Table 9); curriculum_credit is our share of it for each rollout; zero
    and random are controls"""
    advantages: Estimator | None = None
    """how its rewards become advantages; null: as the policy's. A score that a group shares needs batch or raw"""
    kl_coef: float = Field(default=0.1, ge=0, le=1e6)
    """weight of the KL term to the simulator that it started from, nats a token, by the policy's kl_gradient; in
    self-play the policy's own counts; paper: .005 (Table 6)"""
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    pool_size: int = Field(default=1, ge=1, le=1000)
    """K: selves that play; 1 is plain Co-Training; paper: 5"""
    present: bool = True
    """whether the present self is one of the K; false: K past ones, at first the start alone"""
    behaviour: Literal["sampled", "current"] = "sampled"
    """what the clipped ratio of the simulator's tokens is against: the entry that spoke, or the current weights, which
    makes it 1 and corrects nothing (the public launchers)"""
    cadence: int = Field(default=4, ge=1, le=10**9)
    """steps between two snapshots"""
    head_start: int = Field(default=0, ge=0, le=10**9)
    """steps at the start in which only the simulator learns: a test of whether the two are in a race"""
    pool_sampling: Literal["uniform", "newest", "distinct"] = "uniform"
    """how an entry is drawn from the pool; newest: the weight halves with age; distinct: uniformly from
    those whose replies differ from every newer one's"""

    @model_validator(mode="after")
    def _fits_together(self) -> SimulatorConfig:
        if not self.members and self.kind != "self":
            raise ValueError(f"a simulator of kind {self.kind!r} needs at least one member")
        if twice := {name for name in self.members if self.members.count(name) > 1}:
            raise ValueError(f"members are listed once each, {min(twice)} is there twice")
        if self.reward == "disagreement" and not self.has_past:
            raise ValueError("the reward 'disagreement' compares with past selves: it needs a pool_size of 2 or more")
        return self

    @property
    def has_past(self) -> bool:
        """Whether past selves play."""
        return self.pool_size > 1 or not self.present


_LEARNS = {"reward", "advantages", "pool_size", "present", "behaviour", "cadence", "pool_sampling"}
READS: dict[str, set[str]] = {
    "frozen": set(),
    "persona": {"persona"},
    "verbalized": {"k", "noise", "eta", "direction", "vs_draw"},
    "trained": _LEARNS | {"start", "kl_coef", "learning_rate", "head_start"},
    "self": _LEARNS,
}
"""What each kind of simulator reads besides READ_BY_ALL; its run's name holds nothing of the rest."""
START_SHARPNESS = 1 / 0.7
"""gamma of a copy of the policy's base as a simulator: the paper's simulators that learn speak at T = .7"""
READ_BY_ALL = {"kind", "members", "sharpness", "outcome", "draw"}


class TextConfig(Settings):
    """What only dialogues in text need; a nano world reads nothing of it, and its runs' names hold nothing of it."""

    turns: int = Field(default=4, ge=1, le=1000)
    """messages of the policy in a dialogue, at most; paper: 10 turns for P4G (Table 6), of both sides together in the
    public launchers, so 5 here"""
    max_new_tokens: int = Field(default=48, ge=1, le=100_000)
    """a message of the policy is cut here"""
    reply_tokens: int = Field(default=40, ge=1, le=100_000)
    """a simulator's reply is cut here; a verbalized list may have as many, and its marks, for each candidate"""
    context: int | None = Field(default=None, ge=64, le=10**7)
    """tokens that the policy's transcript may hold; a dialogue that outgrows it ends, with outcome "context"; null: as
    many as the model was made for"""
    micro_batch: int = Field(default=4, ge=1, le=MOST_ROWS)
    """dialogues whose gradient is computed at once: memory, not meaning (the gradients add up to the batch's)"""
    closing_question: bool = True
    """p4g: ask the persuadee at the end how much it is, as the payment form of the study does"""
    simulator_model: Place | None = None
    """model behind the simulators: "smollm2", a folder, "smollm2+FOLDER" with an adapter ("smollm2+persuadee": one
    that is shipped), or "openai:NAME@URL"; null: the policy's own base"""
    training_engine: Literal["hf", "unsloth"] = "hf"
    """what holds the policy and trains it: transformers, or Unsloth (a GPU's, or its slow CPU build)"""
    four_bit: bool = False
    """with Unsloth on a GPU: the base in 4 bits (QLoRA); false: 16 bits"""
    device: Literal["cpu", "auto"] = "cpu"
    """where the policy and local simulators compute; auto: on a GPU if there is one"""
    number_format: Literal["auto", "float32", "bfloat16"] = "auto"
    """what they compute in; auto: what SCOPE_LITE_NUMBER_FORMAT says, else bfloat16 where the hardware has it, else
    float32"""
    rollout_engine: Literal["hf", "vllm"] = "hf"
    """what samples the dialogues: transformers, or vLLM beside the trainer (a GPU's, or `make vllm-cpu`)"""
    vllm_share: float = Field(default=0.4, gt=0, lt=1)
    """of a GPU's memory that vLLM may take; the trainer needs the rest"""
    grammar: bool | None = None
    """hold a verbalized list to its format by a grammar; null: where the simulator's model is local"""
    retries: int = Field(default=3, ge=0, le=1000)
    """times that a verbalized list which cannot be read is asked for again; then the dialogue does not count"""
    prices: tuple[Annotated[float, Field(ge=0)], ...] = Field(default=(), max_length=2)
    """of an endpoint, dollars for a million tokens read and written"""
    budget: float | None = Field(default=None, gt=0)
    """the most to spend on an endpoint, dollars"""


NO_CONTENT = {"prices", "budget", "vllm_share"}
"""what changes memory or money, not what is sampled"""


class RunConfig(Settings):
    """One training run."""

    version: int = SCHEMA
    """version of this list of keys"""
    method: Name = "single"
    """the method's name, for labels and colours: one of METHODS, or one's own beside a simulator.kind"""
    world: Name = "persuasion"
    model: Place = "qwen3-tiny"
    """base model of the policy, a folder of the world's models; in text as text.simulator_model, but no endpoint; where
    an adapter is named, training starts from it"""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    steps: int = Field(default=100, ge=0, le=10**6)
    """optimizer steps; paper: 250 (Table 6)"""
    groups: int = Field(default=16, ge=1, le=MOST_ROWS)
    """groups a step; a group is one task with one simulator"""
    tasks: int | None = Field(default=None, ge=1, le=10**6)
    """training tasks that are drawn from, the world's first ones; null: all (retail, persuasion: there is one)"""
    group_size: int = Field(default=8, ge=2, le=MOST_ROWS)
    """rollouts a group (G in Eq. 2)"""
    temperature: float = Field(default=1.0, gt=0, le=1000)
    """at which the policy speaks in training, and is trained; paper: .7 (Table 6). A simulator's is 1 / its gamma"""
    eval_temperature: float | None = Field(default=None, ge=0, le=1000)
    """at which it speaks to the panel; 0: always the most likely token, as in the paper; null: as in training"""
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    """of AdamW on the adapter; the paper's 1e-6 is for full weights of a 4B model"""
    lora_rank: int = Field(default=8, ge=1, le=1024)
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """decay of AdamW's mean square; paper: .98 (Table 6), with a weight decay of .1, which is none here: at a rate of
    1e-6 it takes .0025 % of a weight in 250 steps"""
    clip_range: float = Field(default=0.2, gt=0, le=1e6)
    """how far the ratio to the weights that spoke may fall below 1, and rise above it if clip_range_high is null"""
    clip_range_high: float | None = Field(default=None, gt=0, le=1e6)
    """how far it may rise above 1; paper: .28 (Table 6)"""
    loss_mean: Literal["token", "dialogue"] = "token"
    """whether each token of a batch weighs the same, or each dialogue, whatever its length (the public launchers)"""
    kl_coef: float = Field(default=0.0, ge=0, le=1e6)
    """weight of the KL term to the base, nats a token; paper: .005 (Table 6)"""
    kl_gradient: Literal["forward", "reverse"] = "forward"
    """which divergence both seats' KL terms descend. forward: KL(base || policy), by k3 as a loss, as in the public
    launchers (low_var_kl); reverse: KL(policy || base), by k2 as a loss (Schulman 2020)"""
    advantages: Estimator = "z"
    """how rewards become advantages: centred in the group and divided by its standard deviation (z, Eq. 2), centred
    only, the raw reward (the public launchers), or centred over the batch"""
    updates_per_step: int = Field(default=1, ge=1, le=1000)
    """optimizer steps on one batch of rollouts"""
    max_grad_norm: float = Field(default=1.0, gt=0, le=1e9)
    eval_every: int = Field(default=10, ge=1, le=10**9)
    """steps between two evaluations on the panel"""
    eval_dialogues: int = Field(default=32, ge=1, le=MOST_ROWS)
    """dialogues a panel member, during training"""
    final_dialogues: int = Field(default=256, ge=1, le=MOST_ROWS)
    """dialogues a panel member, after the last step"""
    checkpoint_every: int = Field(default=50, ge=1, le=10**9)
    simulator: SimulatorConfig = SimulatorConfig()
    text: TextConfig = TextConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> RunConfig:
        if not self.is_text and (fault := name_fault(self.model)):
            raise ValueError(f"model {self.model!r} is no folder of the world's models: {fault}")
        if len(self.text.prices) == 1:
            raise ValueError("text.prices are two numbers, for a million tokens read and written")
        if self.groups * self.group_size > MOST_ROWS:
            raise ValueError(f"groups x group_size is at most {MOST_ROWS:,} (got {self.groups * self.group_size:,})")
        self._pays_a_signal()
        return self

    def _pays_a_signal(self) -> None:
        if self.simulator.kind not in ("trained", "self"):
            return
        reward, estimator = self.simulator.reward, self.simulator_advantages
        if reward == "curriculum_credit" and self.group_size < 3 and estimator in ("z", "centred"):
            # of two, each is as far from the mean as the other: equal credit, no signal
            raise ValueError(f"the reward {reward!r} tells rollouts apart from a group_size of 3 on")
        if reward == "curriculum_group" and estimator in ("z", "centred"):
            raise ValueError(
                f"the reward {reward!r} is one score for a group, of which advantages {estimator!r} leave nothing: set "
                "simulator.advantages to batch or raw"
            )

    @property
    def simulator_advantages(self) -> Estimator:
        """How the rewards of a simulator that learns become advantages."""
        return self.simulator.advantages or self.advantages

    @property
    def is_text(self) -> bool:
        return self.world in TEXT_WORLDS

    @property
    def adapters(self) -> int:
        """Adapters that are trained: the policy's, and a simulator's of its own."""
        return 2 if self.simulator.kind == "trained" else 1

    def run_name(self) -> str:
        return f"{self.world}-{self.method}-seed{self.seed}"

    def read(self) -> dict[str, Any]:
        """The settings that this run reads, by dotted key: those of its kind of simulator, and text's only in text."""
        simulator = self.simulator.model_dump(mode="json", include=READ_BY_ALL | READS[self.simulator.kind])
        text = self.text.model_dump(mode="json", exclude=NO_CONTENT) if self.is_text else {}
        rest = self.model_dump(mode="json", exclude={"simulator", "text"})
        return flat({**rest, "simulator": simulator, "text": text})


METHODS: dict[str, dict[str, Any]] = {
    "base": {"steps": 0},
    "single": {"simulator": {"kind": "frozen"}},
    "persona": {"simulator": {"kind": "persona"}},
    "verbalized": {"simulator": {"kind": "verbalized"}},
    "ensemble": {"simulator": {"kind": "frozen", "members": ["sim-a", "sim-b", "sim-c"]}},
    "cotraining": {"simulator": {"kind": "trained"}},
    "population": {"simulator": {"kind": "trained", "pool_size": 5}},
    "selfplay": {"simulator": {"kind": "self", "members": [], "reward": "cooperative"}},
    "selfplay_population": {"simulator": {"kind": "self", "members": [], "reward": "cooperative", "pool_size": 5}},
    "unsharpened": {"simulator": {"kind": "frozen", "sharpness": 1.0}},
}
"""What each method's name stands for; 'unsharpened' trains on P itself and is a control, not a method."""

TEXT_DEFAULTS: dict[str, Any] = {
    "model": "smollm2",
    "steps": 20,
    "groups": 4,
    "learning_rate": 1e-4,
    "eval_every": 5,
    "eval_dialogues": 4,
    "final_dialogues": 16,
    "checkpoint_every": 1,
    "simulator": {"learning_rate": 1e-4},
}
"""Where a text world's defaults differ: a step there takes minutes on a CPU, and a real model a smaller step."""
WORLD_DEFAULTS: dict[str, dict[str, Any]] = {"cooperbench": {"text": {"max_new_tokens": 256, "reply_tokens": 256}}}
"""Where a world's differ from those: a patch is longer than a sentence."""


def method_config(method: str, **overrides: Any) -> RunConfig:
    """The config of a method by name; ``overrides`` are keys of RunConfig, ``simulator`` a dict that is merged, and
    ``recipe`` the paper's (``recipes``).

    Raises:
        ScopeError: for a method, key or value that does not exist.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise ScopeError(closest(str(method), list(METHODS), "method"))
    return parse_config(_with_presets({**overrides, "method": method}))


def _with_presets(content: dict[str, Any]) -> dict[str, Any]:
    """A short config, completed by what its method's name, its world and its recipe stand for."""
    method, world = content.get("method", "single"), content.get("world", RunConfig.model_fields["world"].default)
    is_text = isinstance(world, str) and world in TEXT_WORLDS
    layers = merged(TEXT_DEFAULTS, WORLD_DEFAULTS.get(str(world), {})) if is_text else {}
    layers = merged(layers, METHODS[method])
    if "recipe" in content:
        rates = merged(RunConfig().model_dump(mode="json"), layers)
        layers = merged(layers, recipe_settings(content["recipe"], method, str(world), rates))
    return merged(layers, {key: value for key, value in content.items() if key != "recipe"})


def parse_config(content: Any, where: str = "config") -> RunConfig:
    """Check a mapping and make a RunConfig of it.

    A method is one of METHODS, or a label of one's own beside a ``simulator.kind`` that says what it stands for.

    Raises:
        ScopeError: one line that names the key and what is wrong with it.
    """
    if not isinstance(content, dict):
        raise ScopeError(f"{where}: expected a mapping of keys to values, got {type(content).__name__}")
    if content.get("version", SCHEMA) != SCHEMA:
        version = reprlib.repr(content["version"])
        raise ScopeError(f"{where}: written for config version {version}, this is version {SCHEMA}; update it")
    config: RunConfig = checked(RunConfig, content, where)
    simulator = content.get("simulator")
    has_kind = "kind" in simulator if isinstance(simulator, dict) else simulator is not None
    if config.method not in METHODS and not has_kind:
        raise ScopeError(f"{where}: {closest(config.method, list(METHODS), 'method')}")
    if "method" not in content and config.simulator.kind != "frozen":
        raise ScopeError(f"{where}: a simulator.kind of {config.simulator.kind!r} needs a method, the run's name")
    return config


def load_config(path: Path) -> RunConfig:
    """Read a YAML config; a short one is completed by its method's presets (``single``'s, where it names none), and by
    the recipe that it names.

    Raises:
        ScopeError: one line on whatever is wrong with the file.
    """
    content = read_yaml(path)
    if isinstance(content, dict) and set(content) <= {*RunConfig.model_fields, "recipe"}:
        method = content.get("method", "single")
        if isinstance(method, str) and method in METHODS:
            content = _with_presets(content)
    return parse_config(content, str(path))
