"""Models in the seats of a tau2-bench episode, without the package: masks, transcripts, batches, contexts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scope_lite.envs.tau2.episode import Said
from scope_lite.envs.tau2.prompt import agent_system
from scope_lite.method.dialogue import run_dialogues, seat_systems
from scope_lite.method.grpo import clipped_loss
from scope_lite.method.seats import ModelSeat
from scope_lite.models.hf import SeatModel
from scope_lite.models.records import collate
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError
from tests.standins.tau2_shop import LOOK_UP, SCHEMAS, Shop, episode
from tests.standins.tiny_models import byte_tokenizer

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def model() -> SeatModel:
    """A random transformer that reads and writes bytes."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=4096,
                         initializer_range=0.3, attn_implementation="sdpa")  # fmt: skip
    network = LlamaForCausalLM(config).eval().requires_grad_(False)
    return SeatModel(network, tokenizer)


class ByHeart:
    """A sampling rule under which the model of each row says prepared messages, token by token."""

    sharpness = None

    def __init__(self, model: SeatModel, messages: Sequence[Sequence[str]]):
        stop = model.tokenizer.eos_token_id
        self.left = [[[*model.tokenizer(m)["input_ids"], stop] for m in row] for row in messages]

    def __call__(
        self, probabilities: np.ndarray, keys: RowKeys, turn: int, seat: str, token: int
    ) -> tuple[np.ndarray, np.ndarray]:
        said = [self.left[row][0].pop(0) for row in keys.member.tolist()]
        for row in keys.member.tolist():
            if not self.left[row][0]:
                self.left[row].pop(0)
        return np.array(said), probabilities


AGENTS = [[LOOK_UP, "Pending."], [], ["Yes?", '{"nom"', LOOK_UP, "Then goodbye, and thank you very much."]]
USERS = [["My lamp?", "Ok ###STOP###"], ["Never mind ###STOP###"], ["Hi", "I wait.", "###STOP###"]]


def play_models(model: SeatModel, rows: Sequence[int], **options: Any) -> tuple[list, list, ModelSeat]:
    episodes = [episode() for _ in rows]
    keys = RowKeys.grid(0, 1, 1, len(rows))
    seats = []
    for seat, words in (("policy", AGENTS), ("simulator", USERS)):
        rule = ByHeart(model, [words[row] for row in rows])
        seats.append(ModelSeat(model, keys, seat, seat_systems(episodes, seat), rule, max_new_tokens=120))
    return run_dialogues(episodes, *seats, keys, ["model"] * len(rows), **options), episodes, seats[0]


@pytest.fixture(scope="module")
def played(model: SeatModel) -> tuple[list, list]:
    rollouts, episodes, _ = play_models(model, [0, 1, 2])
    return rollouts, episodes


def runs(transcript: Any, generated: bool) -> list[list[int]]:
    """The stretches of a transcript that the seat did, or did not, sample."""
    out: list[list[int]] = []
    previous = not generated
    for token, own in zip(transcript.ids, transcript.generated, strict=True):
        if own == generated:
            if previous != generated:
                out.append([])
            out[-1].append(token)
        previous = own
    return out


def test_exactly_the_policys_tokens_are_trained(model: SeatModel, played: tuple[list, list]) -> None:
    rollouts, _ = played
    decode = model.tokenizer.decode
    for rollout, said in zip(rollouts, AGENTS, strict=True):
        if rollout.policy.ids:
            assert [decode(run) for run in runs(rollout.policy, True)] == [f"{message}</s>" for message in said]
            heard = "".join(decode(run) for run in runs(rollout.policy, False))
            words = [reply for reply in rollout.replies if "###" not in reply]
            assert all(reply in heard for reply in words) and not any(message in heard for message in said)
    batch = collate([r.policy for r in rollouts], pad=0)
    wanted = [
        i for row in AGENTS for m in row for i in [*model.tokenizer(m)["input_ids"], model.tokenizer.eos_token_id]
    ]
    assert batch.targets.tolist() == wanted


def test_transcripts_equal_the_chat_template_rendered_once(model: SeatModel, played: tuple[list, list]) -> None:
    rollouts, episodes = played
    for rollout, one in zip(rollouts, episodes, strict=True):
        agent = [("system", one.systems["policy"])]
        for said, reply in zip([None, *rollout.acts[1:]], rollout.replies, strict=True):
            agent += [("assistant", said)] * (said is not None) + [("user", reply)]
        del agent[-1]  # the customer's last words end it: the agent does not hear them
        user = [("system", one.systems["simulator"])]
        spoken = [e for e in one.events if isinstance(e, Said)]
        user += [("user" if e.who == "agent" else "assistant", e.text) for e in spoken]
        for messages, transcript in ((agent, rollout.policy), (user, rollout.simulator_transcript)):
            if not transcript.ids:  # a customer who ended it at once
                continue
            turns = [{"role": role, "content": content} for role, content in messages]
            whole = model.tokenizer.apply_chat_template(turns, tokenize=False)
            assert whole == model.tokenizer.decode(transcript.ids) + "\n"


def test_a_batch_gives_what_one_row_at_a_time_gives(model: SeatModel, played: tuple[list, list]) -> None:
    for row, whole in enumerate(played[0]):
        ((alone,), _, _) = play_models(model, [row])
        for a, b in ((alone.policy, whole.policy), (alone.simulator_transcript, whole.simulator_transcript)):
            assert (a.ids, a.generated) == (b.ids, b.generated)
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


def test_sampled_logprobs_equal_recomputed_ones(model: SeatModel, played: tuple[list, list]) -> None:
    batch = collate([r.policy for r in played[0]], pad=0)
    logprobs, _ = model.token_logprobs(batch)
    torch.testing.assert_close(logprobs.double(), batch.sampled_logprobs.double(), atol=1e-4, rtol=0)


def test_an_agent_that_never_spoke_leaves_the_gradient_finite(model: SeatModel, played: tuple[list, list]) -> None:
    batch = collate([r.policy for r in played[0]], pad=0)
    assert 1 not in batch.row
    weight = model.model.model.layers[0].self_attn.q_proj.weight.requires_grad_(True)
    logprobs, _ = model.token_logprobs(batch)
    loss = clipped_loss(logprobs, logprobs.detach(), torch.tensor([1.0, -1.0, 0.5]), batch.row).loss
    (gradient,) = torch.autograd.grad(loss, [weight])
    weight.requires_grad_(False)
    assert torch.isfinite(gradient).all() and gradient.abs().sum() > 0


def test_a_row_that_joins_late_is_what_it_is_alone(model: SeatModel) -> None:
    """Row 0 hears and speaks first while row 1 is silent, then the other way round; both freely sampled."""
    keys = RowKeys.grid(3, 1, 1, 2)
    both = ModelSeat(model, keys, "policy", ["a", "system b"], max_new_tokens=6)
    both.hear(["hello", None])
    said = both.speak(0, "", np.array([0]))
    both.hear([None, "good day"])
    said += both.speak(0, "", np.array([1]))
    for row, (system, heard) in enumerate((("a", "hello"), ("system b", "good day"))):
        alone = ModelSeat(model, keys[np.array([row])], "policy", [system], max_new_tokens=6)
        alone.hear([heard])
        assert alone.speak(0, "") == [said[row]]
        assert alone.transcripts[0].ids == both.transcripts[row].ids
        np.testing.assert_allclose(alone.transcripts[0].logprobs, both.transcripts[row].logprobs, atol=1e-5)
    assert len(set(map(tuple, (t.ids[-6:] for t in both.transcripts)))) == 2


def test_an_episode_that_outgrows_the_context_says_so(model: SeatModel) -> None:
    prompt = len(model.tokenizer(agent_system(Shop.policy, SCHEMAS))["input_ids"])
    rollouts, _, seat = play_models(model, [0, 2], context=prompt + 200)
    assert [(r.outcome, r.reward) for r in rollouts] == [("context", 0.0), ("context", 0.0)]
    assert all(len(t.ids) > prompt for t in seat.transcripts)
    with pytest.raises(ScopeError, match=r"prompt in shop/0 has \d+ tokens.*longer context"):
        play_models(model, [0], context=prompt)
