"""What an endpoint refuses: fields that can be spared, chats that are too long, and failures told with status 200."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scope_lite.models.endpoint import Budget
from scope_lite.models.replies import OUTGROWN, SamplingConfig
from scope_lite.store.errors import ScopeError
from tests.standins.endpoint_server import CHATS, CONFIG, Answer, Server, choice, ok, refusal, sampler, texts


def refuses(*fields: str, message: str = "Unsupported parameter: '{}'", status: int = 400) -> Any:
    """An endpoint that refuses each of ``fields`` by name, one after the other."""

    def answer(body: dict[str, Any], number: int) -> Answer:
        there = [field for field in fields if field in body]
        return refusal(status, message.format(there[0])) if there else ok(body)

    return answer


# -- fields that can be spared -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    "field", ["top_p", "temperature", "n", "logprobs", "top_logprobs", "top_k", "min_p", "repetition_penalty"]
)
def test_a_field_that_says_nothing_is_left_out_once_it_is_refused(server: Server, field: str, status: int) -> None:
    server.answer = refuses(field, status=status)
    one = sampler(server, concurrency=1)
    assert texts(one.sample(CHATS, 2, CONFIG))[2]
    assert sum(field in body for body in server.bodies) == 1, "it is remembered"
    assert f"refused and left out: {field}" in one.spending()
    kept = {"top_p", "temperature", "n", "logprobs", "top_logprobs", "top_k"} - {field}
    assert kept - ({"top_logprobs"} if field == "logprobs" else set()) <= server.bodies[1].keys()


@pytest.mark.parametrize(
    "told",
    [{"detail": [{"loc": ["body", "top_p"], "msg": "extra fields not permitted"}]},
     {"error": {"message": "unsupported", "param": "top_p"}}, {"error": {"message": "topP is not known"}},
     {"error": "Top-P?"}, b"top p is unknown here"],
)  # fmt: skip
def test_a_field_is_named_in_many_ways(server: Server, told: Any) -> None:
    server.answer = lambda body, number: (400, {}, told) if "top_p" in body else ok(body)
    sampler(server).sample(CHATS[:1], 2, CONFIG)
    assert len(server.bodies) == 2 and {"n", "logprobs"} <= server.bodies[1].keys()


def test_of_temperature_and_top_p_refused_together_top_p_goes(server: Server) -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        both = {"temperature", "top_p"} <= body.keys()
        return refusal(400, "temperature and top_p cannot both be specified for this model") if both else ok(body)

    server.answer = answer
    for temperature in (1.0, 0.7):
        sampler(server).sample(CHATS[:1], 1, SamplingConfig(temperature, 10))
        assert server.bodies[-1]["temperature"] == temperature and "top_p" not in server.bodies[-1]


def test_all_of_them_may_be_refused(server: Server) -> None:
    server.answer = refuses(
        "logprobs", "top_p", "n", "temperature", "max_tokens", "top_k", "min_p", "repetition_penalty"
    )
    one = sampler(server, concurrency=1)
    assert len(texts(one.sample(CHATS[:1], 3, CONFIG))[0]) == 3
    assert server.bodies[-1].keys() == {"model", "messages", "max_completion_tokens"}
    assert len(server.bodies) == 8 + 3


def test_many_requests_under_way_are_refused_together(server: Server) -> None:
    server.answer = refuses("top_p", "max_tokens")
    chats = [[{"role": "user", "content": f"line {i}"}] for i in range(12)]
    assert texts(sampler(server, concurrency=4).sample(chats, 1, CONFIG)) == [[f"line {i} reply 0"] for i in range(12)]


@pytest.mark.parametrize(("field", "temperature"), [("temperature", 0.7), ("model", 1.0)])
def test_a_field_that_means_something_is_not_left_out(server: Server, field: str, temperature: float) -> None:
    server.answer = refuses(field)
    with pytest.raises(ScopeError, match=f"HTTP 400: Unsupported parameter: '{field}'") as caught:
        sampler(server).sample(CHATS[:1], 1, SamplingConfig(temperature, 10))
    assert "\n" not in str(caught.value)


def test_a_temperature_that_was_spared_at_1_is_sent_when_it_means_something(server: Server) -> None:
    server.answer = lambda body, number: refusal(400, "temperature must be 1") if "temperature" in body else ok(body)
    one = sampler(server)
    one.sample(CHATS[:1], 1, CONFIG)
    with pytest.raises(ScopeError, match="temperature must be 1"):
        one.sample(CHATS[:1], 1, SamplingConfig(0.7, 10))


def test_the_limit_of_a_reply_is_never_left_out(server: Server) -> None:
    server.answer = refuses("max_tokens", "max_completion_tokens")
    with pytest.raises(ScopeError, match="max_completion_tokens"):
        sampler(server).sample(CHATS[:1], 1, CONFIG)
    assert len(server.bodies) == 2


def test_a_refusal_without_a_reason_costs_few_tries(server: Server) -> None:
    server.answer = lambda body, number: refusal(400, "bad request")
    with pytest.raises(ScopeError, match="HTTP 400: bad request"):
        sampler(server).sample(CHATS[:1], 2, CONFIG)
    assert [("n" in body, "logprobs" in body) for body in server.bodies] == [
        (True, True),
        (False, True),
        (False, False),
    ]


# -- chats that are too long -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        (400, {}, {"error": {"message": "too much", "code": "context_length_exceeded"}}),
        refusal(400, "'max_tokens' is too large: 10. This model's maximum context length is 230 tokens and your "
                     "request has 225 input tokens"),
        refusal(400, "the request exceeds the available context size, try increasing it"),
        refusal(400, "prompt is too long: 208310 tokens > 200000 maximum"),
        refusal(400, "The input token count (1050000) exceeds the maximum number of tokens allowed (1048576)."),
        refusal(422, "`inputs` tokens + `max_new_tokens` must be <= 4096"),
        refusal(413, "Input is too long for requested model."),
        (200, {}, {"error": {"message": "maximum context length is 230 tokens", "code": 400}}),
        (200, {}, {"object": "error", "message": "too much", "code": "context_length_exceeded"}),
    ],
)  # fmt: skip
def test_a_chat_that_outgrew_the_model_ends_alone(server: Server, tmp_path: Path, answer: Answer) -> None:
    server.answer = lambda body, number: answer if body["messages"][-1]["content"] == "line 1" else ok(body)
    budget = Budget(1, (1.0, 1.0))
    drawn = sampler(server, tmp_path, budget=budget).sample(CHATS, 2, CONFIG)
    assert [[reply.failure for reply in replies] for replies in drawn] == [["", ""], ["context"] * 2, ["", ""]]
    assert drawn[1] == [OUTGROWN] * 2
    assert len(server.bodies) == 3 and budget.spent == pytest.approx(50e-6), "no second try, and a refusal is free"
    again = sampler(server, tmp_path).sample(CHATS, 2, CONFIG)
    assert [reply.failure for reply in again[1]] == ["context"] * 2 and texts(again) == texts(drawn)
    assert len(server.bodies) == 4, "what failed is no reply: it alone is asked for again"


@pytest.mark.parametrize("message", ["max_tokens is too large: 10, at most 5 may be written", "no such model", "no"])
def test_another_refusal_is_no_chat_that_is_too_long(server: Server, message: str) -> None:
    server.answer = lambda body, number: refusal(400, message)
    with pytest.raises(ScopeError, match="HTTP 400"):
        sampler(server).sample(CHATS[:1], 1, CONFIG)


# -- failures told with status 200 -------------------------------------------------------------------------------------

BAD_GATEWAY = {"error": {"message": "Provider returned error", "code": 502}, "choices": None}
BROKEN_OFF = [choice("half of"), choice("", "error", error={"message": "Provider broke off", "code": 503})]


@pytest.mark.parametrize(
    ("payload", "status", "told"),
    [(BAD_GATEWAY, 502, "Provider returned error"), ({"error": {"message": "slow", "code": "429"}}, 429, "slow"),
     ({"error": "overloaded"}, 502, "overloaded"), ({"choices": BROKEN_OFF}, 503, "Provider broke off"),
     ({"choices": [choice("half", "error")]}, 502, "broke off"), ({"error": {"message": "x", "code": 7}}, 502, "x"),
     ({"object": "error", "message": "no worker", "code": 50001}, 502, "no worker")],
)  # fmt: skip
def test_an_error_with_status_200_is_repeated_as_one_and_told_if_it_stays(
    server: Server, tmp_path: Path, waits: list[float], payload: Any, status: int, told: str
) -> None:
    server.answer = lambda body, number: (200, {}, payload) if number == 0 else ok(body)
    assert texts(sampler(server).sample(CHATS[:1], 2, CONFIG)) == [["line 0 reply 0", "line 0 reply 1"]]
    assert len(waits) == 1
    server.answer = lambda body, number: (200, {}, payload)
    with pytest.raises(ScopeError, match=f"HTTP {status}, 3 times: .*{told}") as caught:
        sampler(server, tmp_path, retries=2).sample(CHATS[:1], 2, CONFIG)
    assert "\n" not in str(caught.value) and len(waits) == 3 and not list(tmp_path.rglob("*.json"))


def test_a_wait_that_such_an_error_asks_for_is_kept(server: Server, waits: list[float]) -> None:
    busy = {"error": {"message": "slow down", "code": 429}}
    server.answer = lambda body, number: (200, {"retry-after": "17"}, busy) if number == 0 else ok(body)
    sampler(server).sample(CHATS[:1], 1, CONFIG)
    assert waits == [17.0]


@pytest.mark.parametrize("kind", [{"code": "invalid_value"}, {"type": "invalid_request_error"}, {"code": 404}])
def test_such_an_error_of_ours_is_not_repeated(server: Server, waits: list[float], kind: dict[str, Any]) -> None:
    server.answer = lambda body, number: (200, {}, {"error": {"message": "no such model", **kind}})
    with pytest.raises(ScopeError, match=r"HTTP 40[04]: no such model"):
        sampler(server).sample(CHATS[:1], 1, CONFIG)
    assert not waits


def test_an_empty_error_beside_choices_is_none(server: Server) -> None:
    server.answer = lambda body, number: ok(body, [choice("a", error=None)], error=None)
    assert texts(sampler(server).sample(CHATS[:1], 1, CONFIG)) == [["a"]]
