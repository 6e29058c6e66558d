"""A batch of growing texts in one piece of memory, against each text read whole and alone.

The fault that it guards: a row that reads its neighbour's padding, another row's keys, or a token twice looks like a
model that is a little worse, and nothing else tells.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from scope_lite.models import rows
from scope_lite.models.hf import RowSession, SeatModel, Session
from scope_lite.models.rows import RowCache, common, row_attention
from tests.standins.tiny_models import byte_tokenizer, tiny

RAGGED = [[[5, 6, 7], [8], [9, 10, 11, 12]], [[13], [], [14, 15]], [[], [16, 17], []], [[18], [19], [20]]]
"""what three rows read, piece by piece: of different lengths, and sometimes nothing"""


@pytest.fixture(scope="module", params=[("qwen3", 2), ("llama", 1), ("llama", 4)], ids=lambda p: f"{p[0]}-{p[1]}")
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    kind, kv_heads = request.param
    return tiny(kind, num_key_value_heads=kv_heads).model.requires_grad_(False)


def reading(model: PreTrainedModel, cache: RowCache, pieces: list[list[int]]) -> Tensor:
    with torch.no_grad(), row_attention(model):
        return cache.append(lambda ids, **o: model.model(input_ids=ids, **o).last_hidden_state, pieces)


def alone(model: PreTrainedModel, text: list[int]) -> Tensor:
    with torch.no_grad():
        return model.model(torch.tensor([text])).last_hidden_state[0, -1]


def test_rows_that_grow_unevenly_read_what_each_would_alone(model: PreTrainedModel) -> None:
    cache, texts = RowCache(3), [[], [], []]
    for pieces in RAGGED:
        hidden = reading(model, cache, pieces)
        for row, piece in enumerate(pieces):
            texts[row] = texts[row] + piece
            if piece:
                torch.testing.assert_close(hidden[row], alone(model, texts[row]), atol=1e-4, rtol=1e-4)
    assert cache.lengths.tolist() == [len(text) for text in texts]


def test_a_row_that_begins_later_than_the_others_reads_its_own_text(model: PreTrainedModel) -> None:
    cache = RowCache(2)
    reading(model, cache, [[5, 6, 7, 8], []])
    hidden = reading(model, cache, [[], [9, 10]])
    torch.testing.assert_close(hidden[1], alone(model, [9, 10]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rest", [[[], [], []], [[30], [31, 32], [33, 34, 35]]], ids=["all alike", "then apart"])
def test_what_all_rows_begin_with_is_read_once(
    model: PreTrainedModel, rest: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "WORTH_SHARING", 4)
    texts, seen = [[*range(10, 22), *end] for end in rest], []
    handle = model.model.register_forward_pre_hook(
        lambda _, args, options: seen.append(options["input_ids"].shape), with_kwargs=True
    )
    hidden = reading(model, RowCache(3), texts)
    handle.remove()
    assert seen[0][0] == 1 and seen[0][1] >= 11, "the beginning is read by one row"
    for row, text in enumerate(texts):
        torch.testing.assert_close(hidden[row], alone(model, text), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dropped", [(0,), (2,), (0, 1), (1, 2), ()])
def test_rows_that_stay_go_on_as_they_were(model: PreTrainedModel, dropped: tuple[int, ...]) -> None:
    cache, texts = RowCache(3), [[*RAGGED[0][row], *RAGGED[1][row]] for row in range(3)]
    for pieces in RAGGED[:2]:
        reading(model, cache, pieces)
    kept = cache.drop(set(dropped))
    assert sorted(kept) == [row for row in range(3) if row not in dropped]
    hidden = reading(model, cache, [[40 + row] for row in kept])
    for place, row in enumerate(kept):
        torch.testing.assert_close(hidden[place], alone(model, [*texts[row], 40 + row]), atol=1e-4, rtol=1e-4)


def test_texts_taken_out_and_put_together_again_go_on(model: PreTrainedModel) -> None:
    """Of different lengths, one of them empty, and one cut short: the keys of a position do not know what follows."""
    cache, whole = RowCache(2), [[5, 6, 7, 8, 9], [10, 11]]
    reading(model, cache, whole)
    first, second = cache.text(0), cache.text(1)
    cut = [(keys[:, :3], values[:, :3]) for keys, values in first]
    empty = [(keys[:, :0], values[:, :0]) for keys, values in first]
    again = RowCache.of([first, second, cut, empty])
    assert again.lengths.tolist() == [5, 2, 3, 0]
    hidden = reading(model, again, [[50], [51, 52], [53], [54]])
    for row, text in enumerate([[*whole[0], 50], [10, 11, 51, 52], [5, 6, 7, 53], [54]]):
        torch.testing.assert_close(hidden[row], alone(model, text), atol=1e-4, rtol=1e-4)


def test_room_is_made_as_texts_grow(model: PreTrainedModel) -> None:
    cache, text = RowCache(2), [[60], [61]]
    reading(model, cache, text)
    for token in range(70, 110):
        hidden = reading(model, cache, [[token], [token]])
        text = [[*row, token] for row in text]
    torch.testing.assert_close(hidden[1], alone(model, text[1]), atol=1e-4, rtol=1e-4)
    assert cache.room < 2 * cache.width


def test_the_model_reads_by_its_own_attention_outside() -> None:
    model = tiny("llama").model
    before = model.config._attn_implementation
    with pytest.raises(KeyError), row_attention(model):
        raise KeyError
    assert model.config._attn_implementation == before


def test_a_session_of_rows_draws_what_a_plain_one_would(model: PreTrainedModel) -> None:
    """The same numbers give the same tokens: an independent session in double precision is the oracle."""
    seat = SeatModel(copy.deepcopy(model), byte_tokenizer(), sharpness=1.4)
    quick, plain = seat.session(3), Session(seat, 3)
    assert isinstance(quick, RowSession)
    uniforms = np.random.default_rng(0).random((20, 3))
    pieces = [[5, 6, 7], [8], [9, 10]]
    for numbers in uniforms:
        quick.append(pieces)
        plain.append(pieces)
        tokens, logprobs = quick.sample(np.arange(3), numbers)
        probabilities = plain.next_probabilities(0)
        expected = (probabilities.cumsum(1) <= numbers[:, None]).sum(1)
        assert tokens.tolist() == expected.tolist()
        np.testing.assert_allclose(logprobs, np.log(probabilities[np.arange(3), expected]), atol=1e-4)
        pieces = [[int(token)] for token in tokens]


@pytest.mark.parametrize(
    ("texts", "length"), [([[1, 2, 3], [1, 2]], 2), ([[1], [2]], 0), ([[4, 5], [4, 5], [4, 5]], 2), ([[1], []], 0)]
)
def test_the_common_beginning_of_texts(texts: list[list[int]], length: int) -> None:
    assert common(texts) == length
