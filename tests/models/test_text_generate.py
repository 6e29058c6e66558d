"""Sampling from a tiny random model: the shared-prefix path against plain decoding, random streams, and the cache."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_lite.models import draw, generate, shared_prefix, verbalized
from scope_lite.models.chat import FIXED_DATE
from scope_lite.models.constrained import compile_grammar
from scope_lite.models.generate import TextSampler, reply_uniforms
from scope_lite.models.pretrained import LoadedModel
from scope_lite.models.replies import Reply, ReplyCache, SamplingConfig
from scope_lite.models.rows import RowCache
from scope_lite.models.shared_prefix import Readings
from scope_lite.store.errors import ScopeError
from tests.standins.tiny_models import TEMPLATE, tiny

CHATS = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "you are a customer"}, {"role": "user", "content": "how can I help?"}],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "name?"}],
]
CONFIG = SamplingConfig(max_new_tokens=12, seed=5)


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return tiny(request.param)


@torch.inference_mode()
def plainly(
    loaded: LoadedModel, prompt: list[int], config: SamplingConfig, number: int
) -> tuple[list[int], list[float]]:
    """One reply without cache, batch or shared prefix: the whole text is read again for every token."""
    ids, logprobs = list(prompt), []
    for uniform in reply_uniforms(config, prompt, number):
        logits = loaded.model(torch.tensor([ids])).logits[0, -1].double() / config.temperature
        probs = logits.softmax(-1)
        token = int((probs.cumsum(-1) <= uniform).sum())
        ids.append(token)
        logprobs.append(float(probs[token].log()))
        if token == 2:
            break
    return ids[len(prompt) :], logprobs


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_shared_prefix_batches_give_the_samples_of_plain_one_by_one_decoding(
    loaded: LoadedModel, temperature: float
) -> None:
    config = dataclasses.replace(CONFIG, temperature=temperature)
    sampler = TextSampler(loaded)
    lengths = set()
    for chat, replies in zip(CHATS, sampler.sample(CHATS, 6, config), strict=True):
        prompt = sampler.prompt_ids(chat, 0)
        for number, reply in enumerate(replies):
            ids, logprobs = plainly(loaded, prompt, config, number)
            assert list(reply.token_ids) == ids
            assert reply.logprobs == pytest.approx(logprobs, abs=1e-4)
            assert reply.finished == (ids[-1] == 2)
            lengths.add((len(ids), reply.finished))
    assert any(done for _, done in lengths) and any(not done for _, done in lengths), "the case must hold both kinds"


@pytest.mark.parametrize("rows", [1, 2, 5, 64])
def test_the_batch_size_changes_nothing_that_is_sampled(loaded: LoadedModel, rows: int) -> None:
    expected = [[r.token_ids for r in g] for g in TextSampler(loaded).sample(CHATS, 5, CONFIG)]
    assert [[r.token_ids for r in g] for g in TextSampler(loaded, rows=rows).sample(CHATS, 5, CONFIG)] == expected


def test_rows_are_fewer_where_what_they_write_would_not_fit(loaded: LoadedModel, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    sampler = TextSampler(loaded)
    one, _ = sampler.readings.read([sampler.prompt_ids(CHATS[1], 0)])
    held = sum(2 * keys.nbytes for keys, _ in one.text(0)) // one.width
    assert shared_prefix.bytes_a_token(loaded.model) == held
    monkeypatch.setattr(generate, "OWN_BYTES", 5 * CONFIG.max_new_tokens * held + 1)
    assert sampler._rows(CONFIG) == 5
    assert sampler._rows(dataclasses.replace(CONFIG, max_new_tokens=10**6)) == 1


def test_a_dropped_row_leaves_the_others_as_they_were(loaded: LoadedModel) -> None:
    """Whatever is dropped and when: every row's logits stay those of reading its whole text alone."""
    prompts = [[5, 6, 7, 8], [9, 10], [11, 12, 13, 14, 15, 16]]
    read = Readings(loaded.model).read(prompts)[0]
    with torch.inference_mode(), shared_prefix.shared_prefix_attention(loaded.model):
        shared = shared_prefix.SharedPrefix([read.text(row) for row in range(3)], 3, 6)
        texts = [list(p) for p in prompts for _ in range(3)]
        for fed, dropped in enumerate([(), (8,), (0, 1, 2), (), (0, 4), (1,)]):  # all of one history, too
            texts = [texts[row] for row in shared.drop(set(dropped))]
            for row, text in enumerate(texts):
                text.append(20 + 7 * fed + row)
            logits = shared_prefix.step(loaded.model, shared, torch.tensor([text[-1] for text in texts]))
            for text, got in zip(texts, logits, strict=True):
                torch.testing.assert_close(got, loaded.model(torch.tensor([text])).logits[0, -1], atol=1e-4, rtol=1e-4)
    assert len(texts) == 2


@pytest.mark.parametrize("temperature", [1.0, 1e-3])
def test_what_has_been_read_before_is_not_read_again_and_changes_nothing(
    loaded: LoadedModel, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(CONFIG, temperature=temperature)
    chat = [{"role": "system", "content": "you are a customer"}, {"role": "user", "content": "how can I help?"}]
    sibling = [chat[0], {"role": "user", "content": "who are you?"}]
    grown = [*chat, {"role": "assistant", "content": "tea!"}, {"role": "user", "content": "how much?"}]
    calls = [[chat], [sibling, grown], [[*grown, *grown[2:]]], [chat], [sibling]]
    keeping, forgetful = TextSampler(loaded), TextSampler(loaded)
    forgetful.readings.most = 0
    read: dict[str, list[int]] = {}
    read_all = Readings.read
    for name, sampler in (("keeping", keeping), ("forgetful", forgetful)):
        seen = read.setdefault(name, [])

        def count(self: Readings, prompts: list[list[int]], seen: list[int] = seen) -> tuple[RowCache, torch.Tensor]:
            seen.extend(len(prompt) - self._beginning(tuple(prompt))[1] for prompt in prompts)
            return read_all(self, prompts)

        monkeypatch.setattr(Readings, "read", count)
        drawn = [reply for call in calls for group in sampler.sample(call, 2, config) for reply in group]
        if name == "keeping":
            expected = drawn
    assert [r.token_ids for r in drawn] == [r.token_ids for r in expected]
    for one, other in zip(drawn, expected, strict=True):
        tolerance = max(1e-4, 1e-5 / temperature)  # which stretches the logits, and their rounding
        assert one.logprobs == pytest.approx(other.logprobs, abs=tolerance)
        assert one.entropies == pytest.approx(other.entropies, abs=tolerance)
    lengths = [len(keeping.prompt_ids(c, 0)) for call in calls for c in call]
    assert read["forgetful"] == lengths
    # the grown chat reads its new turn, the last two only what decides the next token
    assert read["keeping"][0] == lengths[0] and read["keeping"][2] == lengths[2] - lengths[0]
    assert read["keeping"][3] == lengths[3] - lengths[2] and read["keeping"][1] < lengths[1]
    assert read["keeping"][4:] == [1, 1], "a prompt that another one begins with is read for its last token only"


def test_readings_are_kept_within_their_bytes_and_forgotten_on_demand(loaded: LoadedModel) -> None:
    sampler = TextSampler(loaded)
    sampler.sample(CHATS, 1, CONFIG)
    assert len(sampler.readings._known) == len(CHATS)
    sampler.readings.most = sampler.readings._bytes() - 1
    sampler.sample([[{"role": "user", "content": "z"}]], 1, CONFIG)
    assert 0 < sampler.readings._bytes() <= sampler.readings.most
    sampler.readings.forget()
    assert sampler.readings._bytes() == 0


def test_a_prompt_is_what_the_template_renders_without_todays_date() -> None:
    loaded = tiny()
    prompt = TextSampler(loaded).prompt_ids(CHATS[1], 0)
    assert prompt == loaded.tokenizer.apply_chat_template(CHATS[1], add_generation_prompt=True, return_dict=False)
    loaded.tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }} " + TEMPLATE
    assert loaded.tokenizer.decode(TextSampler(loaded).prompt_ids(CHATS[1], 0)).startswith(FIXED_DATE)


def test_replies_of_one_history_differ_and_another_seed_gives_others(loaded: LoadedModel) -> None:
    first = TextSampler(loaded).sample(CHATS[:1], 8, CONFIG)[0]
    assert len({reply.token_ids for reply in first}) > 1
    other = TextSampler(loaded).sample(CHATS[:1], 8, dataclasses.replace(CONFIG, seed=6))[0]
    assert [r.token_ids for r in first] != [r.token_ids for r in other]


def test_the_model_keeps_its_attention_after_sampling(loaded: LoadedModel) -> None:
    before = loaded.model.config._attn_implementation
    TextSampler(loaded).sample(CHATS[:1], 1, CONFIG)
    assert loaded.model.config._attn_implementation == before


def test_recorded_statistics_are_those_of_the_sampled_distribution(loaded: LoadedModel) -> None:
    sampler = TextSampler(loaded)
    reply = sampler.sample(CHATS[:1], 1, CONFIG)[0][0]
    with torch.inference_mode():
        logits = loaded.model(torch.tensor([sampler.prompt_ids(CHATS[0], 0)])).logits[0, -1].double()
    probs = logits.softmax(-1)
    assert reply.top_probs[0] == pytest.approx(float(probs.max()), abs=1e-5)
    assert reply.entropies[0] == pytest.approx(float(-(probs * probs.log()).sum()), abs=1e-4)


# -- drawing one token ---------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(2, 700), st.floats(0, 1, exclude_max=True), st.integers(0, 10**6))
def test_a_draw_is_the_inverse_of_the_cumulative_distribution_and_never_a_forbidden_token(
    vocab: int, uniform: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(1, vocab, generator=generator) * 4
    scores[torch.rand(1, vocab, generator=generator) < 0.7] = -torch.inf
    scores[0, seed % vocab] = 0.0
    tokens, numbers = draw.draw(scores, torch.tensor([uniform], dtype=torch.float64))
    token = int(tokens[0])
    assert torch.isfinite(scores[0, token]) and torch.isfinite(numbers).all()
    cumulative = scores[0].double().softmax(-1).cumsum(-1)
    assert cumulative[token] >= uniform - 1e-6
    assert token == 0 or cumulative[token - 1] <= uniform + 1e-6


def test_many_rows_at_a_temperature_are_drawn_as_one_by_one_from_the_scaled_scores() -> None:
    scores = torch.randn(2 * draw.ROWS_IN_CACHE + 3, 500, generator=torch.Generator().manual_seed(1)) * 3
    uniforms = torch.rand(len(scores), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    tokens, numbers = draw.draw(scores, uniforms, 0.4)
    probs = (scores.double() / 0.4).softmax(-1)
    assert tokens.tolist() == [int((p.cumsum(-1) <= u).sum()) for p, u in zip(probs, uniforms, strict=True)]
    logp = probs.gather(-1, tokens[:, None])[:, 0].log()
    wanted = torch.stack([logp, -(probs * probs.log()).sum(-1), probs.amax(-1)], -1)
    torch.testing.assert_close(numbers, wanted, atol=1e-5, rtol=1e-5, check_dtype=False)


def test_draws_have_the_right_frequencies() -> None:
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2])
    uniforms = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    tokens, _ = draw.draw(probs.log().repeat(1000, 1), uniforms)
    assert torch.bincount(tokens, minlength=4).tolist() == [500, 0, 300, 200]


def test_a_longer_reply_continues_the_same_random_stream() -> None:
    long = reply_uniforms(dataclasses.replace(CONFIG, max_new_tokens=30), [1, 2], 3)
    np.testing.assert_array_equal(long[:12], reply_uniforms(CONFIG, [1, 2], 3))
    assert not np.array_equal(long[:12], reply_uniforms(CONFIG, [1, 2], 4))


# -- grammar -------------------------------------------------------------------------------------------------


def test_a_grammar_makes_even_a_random_model_write_a_readable_list() -> None:
    pytest.importorskip("xgrammar")
    config = SamplingConfig(max_new_tokens=150, grammar=verbalized.grammar(3, characters=5))
    outputs = [reply for group in TextSampler(tiny()).sample(CHATS, 4, config) for reply in group]
    assert all(reply.finished for reply in outputs)
    _, account = verbalized.read_outputs([reply.text for reply in outputs], 3)
    assert account.failures.keys() <= {"zero_mass", "bad_text", "markup"}
    assert account.calls - account.failed >= 8 and account.repaired == 0


def test_the_grammar_of_a_list_takes_amounts_as_people_write_them_and_nothing_that_json_escapes() -> None:
    xgrammar = pytest.importorskip("xgrammar")
    model = TextSampler(tiny())
    rules = compile_grammar(verbalized.grammar(2, characters=80), model.loaded, model.stop_ids)

    def accepts(text: str) -> bool:
        output = f'[{{"text": "{text}", "probability": 0.50}}, {{"text": "No", "probability": 0.50}}]'
        accepted = xgrammar.GrammarMatcher(rules).accept_string(output)
        if accepted:
            assert not verbalized.parse(output, 2).repairs  # it raises what it cannot read
        return accepted

    assert accepts("$2, i.e. 50% of my $4 (I'd rather keep the rest; ok?)") and accepts("10 cents") and accepts("yes")
    assert all(accepts(f"a{chr(code)}") for code in range(32, 127) if chr(code) not in '"\\')
    assert not any(accepts(text) for text in ('a"', "a\\", "a\n", "é", " a", "a"))


def test_a_grammar_that_does_not_parse_is_one_line() -> None:
    pytest.importorskip("xgrammar")
    with pytest.raises(ScopeError, match="grammar") as caught:
        TextSampler(tiny()).sample(CHATS[:1], 1, SamplingConfig(grammar='root ::= "a'))
    assert "\n" not in str(caught.value)


# -- cache ---------------------------------------------------------------------------------------------------


class Counting(TextSampler):
    """Counts the replies that are really decoded."""

    decoded = 0

    def _decode(self, prompts, start, stop, config):  # type: ignore[no-untyped-def]
        self.decoded += len(prompts) * (stop - start)
        return super()._decode(prompts, start, stop, config)


@pytest.fixture
def counting(tmp_path) -> Counting:  # type: ignore[no-untyped-def]
    return Counting(tiny(), ReplyCache(tmp_path / "replies"))


def test_a_second_run_decodes_nothing_and_gives_equal_replies(counting: Counting) -> None:
    first = counting.sample(CHATS, 3, CONFIG)
    assert counting.decoded == 9
    assert counting.sample(CHATS, 3, CONFIG) == first
    assert counting.decoded == 9


def test_asking_for_more_keeps_the_first_replies_and_for_fewer_decodes_nothing(counting: Counting) -> None:
    first = counting.sample(CHATS, 2, CONFIG)
    more = counting.sample(CHATS, 5, CONFIG)
    assert [group[:2] for group in more] == first
    assert counting.decoded == 15
    assert counting.sample(CHATS, 1, CONFIG) == [group[:1] for group in first]
    assert counting.decoded == 15
    afresh = TextSampler(tiny()).sample(CHATS, 5, CONFIG)
    assert [[r.token_ids for r in group] for group in more] == [[r.token_ids for r in group] for group in afresh]


def test_equal_histories_are_decoded_once(counting: Counting) -> None:
    groups = counting.sample([CHATS[0], CHATS[0]], 3, CONFIG)
    assert counting.decoded == 3 and groups[0] == groups[1]


@pytest.mark.parametrize("change", [{"temperature": 0.9}, {"seed": 1}, {"max_new_tokens": 11}])
def test_other_settings_are_other_entries(counting: Counting, change: dict[str, float]) -> None:
    counting.sample(CHATS[:1], 1, CONFIG)
    counting.sample(CHATS[:1], 1, dataclasses.replace(CONFIG, **change))
    assert counting.decoded == 2


def test_another_model_is_another_entry(counting: Counting) -> None:
    counting.sample(CHATS[:1], 1, CONFIG)
    other = Counting(dataclasses.replace(tiny(), fingerprint="other weights"), counting.cache)
    other.sample(CHATS[:1], 1, CONFIG)
    assert other.decoded == 1


def damaged(text: str) -> list[str]:
    edited = json.loads(text)
    edited["replies"][0]["text"] = "something that was never said"
    extra = json.loads(text)
    extra["replies"][0]["surprise"] = 1
    return ["", text[: len(text) // 2], text[:-1], "[]", "null", '{"sha256": 1}', json.dumps(edited), json.dumps(extra)]


@pytest.mark.parametrize("case", range(8))
def test_a_damaged_entry_is_computed_again(counting: Counting, case: int) -> None:
    first = counting.sample(CHATS[:1], 2, CONFIG)
    (entry,) = counting.cache.folder.glob("*/*.json")
    entry.write_text(damaged(entry.read_text(encoding="utf-8"))[case], encoding="utf-8")
    assert counting.sample(CHATS[:1], 2, CONFIG) == first
    assert counting.decoded == 4
    assert counting.sample(CHATS[:1], 2, CONFIG) == first
    assert counting.decoded == 4, "the entry was not repaired"


def test_an_entry_under_another_name_is_not_trusted(tmp_path) -> None:  # type: ignore[no-untyped-def]
    cache = ReplyCache(tmp_path)
    cache.put("aa11", [Reply("x", (1,), (0.0,), (0.0,), (1.0,), True)])
    cache.path("bb22").parent.mkdir()
    cache.path("aa11").rename(cache.path("bb22"))
    assert cache.get("bb22") == []


def test_a_cache_that_cannot_be_written_is_one_line_and_leaves_nothing_behind(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("scope_lite.store.files.os.replace", full)
    with pytest.raises(ScopeError, match="No space left") as caught:
        ReplyCache(tmp_path).put("aa11", [])
    assert "\n" not in str(caught.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# -- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: SamplingConfig(temperature=0),
        lambda: SamplingConfig(max_new_tokens=0),
        lambda: TextSampler(tiny()).sample(CHATS, 0),
        lambda: TextSampler(tiny()).sample(CHATS, 1, SamplingConfig(max_new_tokens=1000)),
        lambda: TextSampler(tiny(layer_types=["full_attention", "sliding_attention"], sliding_window=8,
                                 use_sliding_window=True)),
    ],
)  # fmt: skip
def test_a_users_mistake_is_one_line(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ScopeError) as caught:
        call()
    assert "\n" not in str(caught.value)
