"""Replies from an endpoint: what is asked, in which order it comes, and what the notebook does with it."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from scope_lite.envs import prompts
from scope_lite.measure import replies as collapse
from scope_lite.models.api import ApiSampler, open_sampler
from scope_lite.models.endpoint import UNTRUNCATED, Endpoint, parse_endpoint
from scope_lite.models.generate import TextSampler
from scope_lite.models.replies import SamplingConfig
from scope_lite.store.errors import ScopeError
from tests.standins.endpoint_server import (
    CHATS,
    CONFIG,
    KEY,
    Answer,
    Server,
    choice,
    ok,
    on_disk,
    recorded,
    refusal,
    sampler,
    texts,
)
from tests.standins.tiny_models import tiny

# -- replies ---------------------------------------------------------------------------------------------------------


def test_replies_come_in_the_order_of_histories_whatever_order_the_endpoint_answers_in(server: Server) -> None:
    last = threading.Event()

    def answer(body: dict[str, Any], number: int) -> Answer:
        if body["messages"][-1]["content"] == "line 2":
            last.set()
        else:
            assert last.wait(20)
        return ok(body)

    server.answer = answer
    drawn = sampler(server, concurrency=3).sample(CHATS, 2, CONFIG)
    assert texts(drawn) == [[f"line {h} reply {i}" for i in range(2)] for h in range(3)]


def test_a_history_of_more_replies_than_a_request_may_ask_for_is_asked_again(server: Server, tmp_path: Path) -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        assert number == 0 or '"abc"' in on_disk(tmp_path), "each answer is recorded before the next request"
        return ok(body, [choice(text) for text in (["abc", "b", "c"], ["d", "e"])[number]])

    server.answer = answer
    drawn = sampler(server, tmp_path, replies_per_request=3).sample(CHATS[:1], 5, CONFIG)
    assert texts(drawn) == [["abc", "b", "c", "d", "e"]] and [body["n"] for body in server.bodies] == [3, 2]
    assert texts(drawn) == texts(recorded(server, tmp_path).sample(CHATS[:1], 5, CONFIG))


def test_equal_histories_are_asked_once(server: Server) -> None:
    drawn = sampler(server).sample([CHATS[0], CHATS[1], CHATS[0]], 2, CONFIG)
    assert len(server.bodies) == 2 and texts(drawn)[0] == texts(drawn)[2]


def test_a_request_says_what_the_config_says(server: Server) -> None:
    sampler(server).sample(CHATS[:1], 3, SamplingConfig(temperature=0.7, max_new_tokens=33))
    body = server.bodies[0]
    assert body["messages"] == CHATS[0] and body["model"] == "small-model" and body["n"] == 3
    assert body["temperature"] == 0.7 and body["max_tokens"] == 33 and body["top_p"] == 1
    assert "seed" not in body, "equal seeds would make separate requests give equal replies"
    assert UNTRUNCATED.items() <= body.items(), "a local server must not cut the distribution by its own defaults"
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_openais_own_address_is_given_the_length_field_that_its_models_accept() -> None:
    assert Endpoint("m").length_field == "max_completion_tokens"
    assert Endpoint("m", "https://host.example/v1").length_field == "max_tokens"


@pytest.mark.parametrize("how", ["ignored", "refused"])
def test_an_endpoint_without_n_is_asked_one_reply_at_a_time(server: Server, how: str) -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        if how == "refused" and body.get("n", 1) > 1:
            return refusal(400, "n must be 1")
        return ok(body, [choice(f"reply {number}")])

    server.answer = answer
    one = sampler(server, concurrency=1)
    drawn = one.sample(CHATS[:1], 4, CONFIG)[0]
    assert len({reply.text for reply in drawn}) == 4
    assert [body.get("n", 1) for body in server.bodies] == ([4, 1, 1, 1] if how == "ignored" else [4, 1, 1, 1, 1])
    assert one.sample(CHATS[1:2], 2, CONFIG) and [body.get("n", 1) for body in server.bodies[-2:]] == [1, 1]


def test_a_cut_reply_is_unfinished_and_an_empty_one_stays(server: Server) -> None:
    server.answer = lambda body, number: ok(body, [choice("cut of", "length"), choice(None, "content_filter")])
    one = sampler(server)
    cut, empty = one.sample(CHATS[:1], 2, CONFIG)[0]
    assert (cut.text, cut.finished, empty.text, empty.finished) == ("cut of", False, "", False)


# -- what the notebook does with them --------------------------------------------------------------------------------


def with_logprobs(body: dict[str, Any], top: float = math.log(0.75)) -> Answer:
    tokens = [{"token": "a", "logprob": math.log(0.25), "top_logprobs": [{"token": "b", "logprob": top}]},
              {"token": "c", "logprob": -0.5, "top_logprobs": [{"token": "c", "logprob": -0.5}]}]  # fmt: skip
    given = {"logprobs": {"content": tokens}} if body.get("logprobs") else {}
    return ok(body, [choice("ac", **given) for _ in range(body.get("n", 1))])


def test_first_token_epsilon_comes_from_logprobs_at_temperature_1_only(server: Server) -> None:
    server.answer = lambda body, number: with_logprobs(body)
    one = sampler(server)
    plain, cool = (one.sample(CHATS[:1], 2, SamplingConfig(t, 10)) for t in (1.0, 0.7))
    assert plain[0][0].logprobs == pytest.approx([math.log(0.25), -0.5], rel=1e-5)
    assert [row["first_token_epsilon"] for row in collapse.direct_rows("T = 1", plain)] == pytest.approx([0.25] * 2)
    assert all(math.isnan(row["first_token_epsilon"]) for row in collapse.direct_rows("T = 0.7", cool))
    assert "logprobs" in server.bodies[0] and "logprobs" not in server.bodies[1]


@pytest.mark.parametrize("message", ["logprobs are not supported by this model", "unsupported field"])
def test_an_endpoint_that_refuses_logprobs_gives_replies_without(server: Server, message: str) -> None:
    server.answer = lambda body, number: refusal(400, message) if "logprobs" in body else ok(body)
    one = sampler(server, concurrency=1)
    drawn = one.sample(CHATS, 2, CONFIG)
    assert texts(drawn)[2] and all(math.isnan(reply.top_probs[0]) for replies in drawn for reply in replies)
    assert sum("logprobs" in body for body in server.bodies) == (1 if message.startswith("logprobs") else 2)


def test_the_first_token_of_a_thought_is_not_that_of_the_reply(server: Server) -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        status, headers, payload = with_logprobs(body)
        payload["choices"][0]["message"]["reasoning_content"] = "hm"
        return status, headers, payload

    server.answer = answer
    assert math.isnan(sampler(server).sample(CHATS[:1], 1, CONFIG)[0][0].top_probs[0])


def test_verbalized_lists_of_five_run_as_with_a_local_model(server: Server) -> None:
    five = json.dumps([{"text": f"hello {i}", "probability": 0.2} for i in range(5)])
    server.answer = lambda body, number: ok(
        body, [choice(five if "JSON list of 5" in body["messages"][-1]["content"] else "direct")] * body.get("n", 1)
    )
    one = open_sampler(f"openai:small-model@{server.url}")
    outputs = one.sample([prompts.with_verbalized_block(chat, 5) for chat in CHATS], 4, SamplingConfig(0.7, 99))
    rows = collapse.verbalized_rows("VS, free", outputs, 5, 0)
    assert len(rows) == 12 and all(row["failure"] == "" and row["text"].startswith("hello") for row in rows)
    assert texts(one.sample(CHATS[:1], 1, CONFIG)) == [["direct"]]


def test_a_grammar_is_refused_rather_than_ignored(server: Server) -> None:
    with pytest.raises(ScopeError, match="grammar"):
        sampler(server).sample(CHATS, 1, SamplingConfig(grammar='root ::= "a"'))
    assert not server.bodies


def test_a_local_model_and_an_endpoint_are_told_apart_by_the_name(tmp_path: Path) -> None:
    assert parse_endpoint("smollm2") is None and parse_endpoint("/models/openai") is None
    assert parse_endpoint("openai:gpt@2026") == Endpoint("gpt@2026")
    there = parse_endpoint("openai:Qwen/Qwen3-4B@https://host.example:8000/v1#HOST_KEY")
    assert there == Endpoint("Qwen/Qwen3-4B", "https://host.example:8000/v1", "HOST_KEY")
    with pytest.raises(ScopeError, match="prices"):
        open_sampler("openai:gpt")
    with pytest.raises(ScopeError, match="no model"):
        open_sampler(str(tmp_path))
    priced = open_sampler("openai:gpt", prices=[1, 4], budget=2)
    assert isinstance(priced, ApiSampler) and priced.budget.cost(1_000_000, 500_000) == 3 and priced.name == "gpt"
    assert TextSampler(tiny()).name == "tiny-qwen3"
