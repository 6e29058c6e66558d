"""What an endpoint may do to us with an answer: swell, drip, lie about its tokens, and send JSON of any shape."""

from __future__ import annotations

import copy
import gzip
import itertools
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scope_lite.models import client
from scope_lite.models.api import ApiSampler
from scope_lite.models.completion import MOST_TOKENS
from scope_lite.models.endpoint import Budget, Endpoint
from scope_lite.store.errors import ScopeError
from tests.standins.endpoint_server import (
    CHATS,
    CONFIG,
    USAGE,
    Server,
    choice,
    ok,
    recorded,
    sampler,
    texts,
)

# -- size and time -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gzip", "gzip twice", "plain", "with an error"])
def test_an_answer_that_swells_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 2**20)
    headers: dict[str, str] = {}
    payload: Any = itertools.repeat(b" " * 2**16, 2**9)
    if how.startswith("gzip"):
        layers = 2 if how.endswith("twice") else 1
        headers, payload = {"content-encoding": ", ".join(["gzip"] * layers)}, b" " * 2**24
        for _ in range(layers):
            payload = gzip.compress(payload)
    server.answer = lambda body, number: (500 if how == "with an error" else 200, headers, payload)
    budget = Budget(1, (0.0, 1.0))
    with pytest.raises(ScopeError, match="more than 1,048,576 bytes") as caught:
        sampler(server, budget=budget).sample(CHATS[:1], 1, CONFIG)
    assert "\n" not in str(caught.value) and len(server.bodies) == 1 and budget.spent == budget.unconfirmed > 0


def test_an_answer_may_be_compressed(server: Server) -> None:
    def answer(body: dict[str, Any], number: int) -> Any:
        return 200, {"content-encoding": "gzip"}, gzip.compress(json.dumps(ok(body)[2]).encode())

    server.answer = answer
    assert texts(sampler(server).sample(CHATS[:1], 1, CONFIG)) == [["line 0 reply 0"]]


def dripping(server: Server, *parts: bytes) -> Iterator[bytes]:
    """Some bytes, the last of them again and again, for some seconds."""
    for part in itertools.chain(parts, itertools.repeat(parts[-1], 100)):
        if server.closing.wait(0.05):
            return
        yield part


@pytest.mark.parametrize("what", ["body", "headers", "interim answers"])
def test_an_answer_that_drips_is_given_up_in_time(server: Server, waits: list[float], what: str) -> None:
    parts = {"body": b" ", "headers": b"x", "interim answers": b"HTTP/1.1 103 Early Hints\r\n\r\n"}
    start = b"HTTP/1.1 200 OK\r\nx-slow: " if what == "headers" else parts[what]
    server.answer = lambda body, number: (200 if what == "body" else 0, {}, dripping(server, start, parts[what]))
    with pytest.raises(ScopeError, match=r"no answer within 0.3 s, 2 times: raise timeout"):
        sampler(server, timeout=0.3, retries=1).sample(CHATS[:1], 1, CONFIG)
    assert len(server.bodies) == 2 == 1 + len(waits)


# -- an account of tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["prompt_tokens", "completion_tokens"])
@pytest.mark.parametrize(
    "count", [math.nan, math.inf, -5, True, 2.5, "5", None, [5], {}, 10**400, MOST_TOKENS + 1, 0, "missing"],
    ids=lambda count: str(count)[:9],
)  # fmt: skip
def test_an_account_that_cannot_be_true_is_charged_at_the_worst(server: Server, part: str, count: Any) -> None:
    usage = {name: n for name, n in USAGE.items() if name != part} | ({} if count == "missing" else {part: count})
    server.answer = lambda body, number: ok(body, usage=usage)
    budget = Budget(1, (1.0, 1.0))
    one = sampler(server, budget=budget)
    assert texts(one.sample(CHATS[:1], 1, CONFIG)) == [["line 0 reply 0"]]
    assert 0 < budget.spent == budget.unconfirmed < 1 and one.budget.tokens_read == one.budget.tokens_written == 0


@pytest.mark.parametrize("usage", [[], "much", 7, True, {"prompt_tokens": {}}])
def test_an_account_of_another_shape_is_none(server: Server, usage: Any) -> None:
    server.answer = lambda body, number: ok(body, usage=usage)
    budget = Budget(1, (1.0, 1.0))
    sampler(server, budget=budget).sample(CHATS[:1], 1, CONFIG)
    assert budget.spent == budget.unconfirmed > 0


def test_an_empty_reply_may_have_cost_no_tokens(server: Server) -> None:
    server.answer = lambda body, number: ok(body, [choice("")], usage=USAGE | {"completion_tokens": 0})
    budget = Budget(1, (1.0, 1.0))
    sampler(server, budget=budget).sample(CHATS[:1], 1, CONFIG)
    assert budget.spent == pytest.approx(20e-6) and not budget.unconfirmed


# -- texts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": None, "reasoning_content": "I play a miser."}, ""),
        ({"content": "", "reasoning": "I play a miser."}, ""),
        ({"content": None, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]}, ""),
        ({"content": None, "refusal": "I won't."}, "I won't."),
        ({"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}, "a b"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}, ""),
    ],
)
def test_only_what_is_said_becomes_text(server: Server, message: dict[str, Any], text: str) -> None:
    server.answer = lambda body, number: ok(body, [choice("", "length") | {"message": message}])
    one = sampler(server)
    reply = one.sample(CHATS[:1], 1, CONFIG)[0][0]
    assert (reply.text, reply.finished, reply.failure) == (text, False, "")
    assert one.budget.tokens_written == 5


def test_half_a_character_is_recorded_and_may_be_said_again(server: Server, tmp_path: Path) -> None:
    half = b'"I can give 50 cents \\ud83d"'
    server.answer = lambda body, number: (
        200,
        {},
        json.dumps(ok(body, [choice("HALF")])[2]).encode().replace(b'"HALF"', half),
    )
    drawn = sampler(server, tmp_path).sample(CHATS[:1], 1, CONFIG)
    assert texts(drawn) == [["I can give 50 cents \ud83d"]]
    assert texts(recorded(server, tmp_path).sample(CHATS[:1], 1, CONFIG)) == texts(drawn)
    sampler(server).sample([[{"role": "user", "content": drawn[0][0].text}]], 1, CONFIG)
    assert server.bodies[-1]["messages"][0]["content"] == "I can give 50 cents ?"


@pytest.mark.parametrize(
    "logprob", [math.nan, math.inf, -math.inf, 1e308, 5, 10**400, "a", None, True, [1]], ids=lambda p: str(p)[:9]
)
def test_a_log_probability_that_cannot_be_one_is_unknown(server: Server, logprob: Any) -> None:
    token = {"token": "a", "logprob": logprob, "top_logprobs": [{"token": "a", "logprob": logprob}]}
    server.answer = lambda body, number: ok(body, [choice("a", logprobs={"content": [token]})])
    reply = sampler(server).sample(CHATS[:1], 1, CONFIG)[0][0]
    assert reply.text == "a" and math.isnan(reply.logprobs[0]) and math.isnan(reply.top_probs[0])


def test_log_probabilities_are_kept_where_the_largest_are_not_told(server: Server) -> None:
    told = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1, "top_logprobs": None}]}
    server.answer = lambda body, number: ok(body, [choice("ab", logprobs=told)])
    reply = sampler(server).sample(CHATS[:1], 1, CONFIG)[0][0]
    assert reply.logprobs == (-0.5, -1.0) and len(reply.top_probs) == 2 and math.isnan(reply.top_probs[0])


def test_what_an_endpoint_calls_its_model_and_its_end_stays_on_one_short_line(server: Server) -> None:
    loud = "a\nb\x1b[31m\u202e" + "c" * 10_000
    server.answer = lambda body, number: ok(body, [choice("a", loud)], model=loud)
    one = sampler(server)
    one.sample(CHATS[:1], 1, CONFIG)
    said = [one.spending(), *one.budget.served]
    assert all(line.isprintable() and len(line) < 400 and "a b" in line for line in said)


@pytest.mark.parametrize(
    "loud",
    [b'"no\\n\\u001b[2Jsuch \\u202emodel"', b'"' + b"x" * 10**5 + b'"', b'{"a": ["\\u001b"]}', b"[" * 900 + b"]" * 900],
)  # fmt: skip
@pytest.mark.parametrize("status", [200, 400, 404])
def test_what_an_endpoint_complains_of_stays_on_one_short_line(server: Server, loud: bytes, status: int) -> None:
    server.answer = lambda body, number: (status, {}, b'{"error": {"code": 404, "message": ' + loud + b"}}")
    with pytest.raises(ScopeError, match=r"HTTP 40[04]: |no chat completion") as caught:
        sampler(server).sample(CHATS[:1], 1, CONFIG)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


# -- JSON of any shape -------------------------------------------------------------------------------------------------


def deep(levels: int) -> Any:
    value: Any = "x"
    for i in range(levels):
        value = [value] if i % 2 else {"content": value}
    return value


ODD = [None, True, False, 0, -1, 2**63, 10**400, 1e308, math.nan, -math.inf, "", "x", "\ud83d", "\0", [], [None], {},
       {"message": None}, [[]], [{}], {"0": {}}, deep(30), deep(400)]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def mutated(answer: Any, draw: random.Random) -> Any:
    """The answer with one to three of its parts replaced, taken out, or moved."""
    answer = copy.deepcopy(answer)
    for _ in range(draw.randint(1, 3)):
        *way, last = draw.choice(list(places(answer)))
        holder = answer
        for key in way:
            holder = holder[key]
        if draw.random() < 0.25:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(draw.choice(ODD)) if draw.random() < 0.8 else copy.deepcopy(answer)
        if not answer:
            break
    return answer


def test_no_answer_of_any_shape_ends_in_a_traceback_or_another_meaning(
    server: Server, tmp_path: Path, waits: list[float]
) -> None:
    """Each ends in replies of text, which are recorded as they are, or in one line."""
    draw, replies, lines = random.Random(0), 0, set()
    token = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -0.5}]}
    chosen = [choice(f"reply {i}", logprobs={"content": [token]}) for i in range(2)]
    whole = ok({}, chosen)[2] | {"error": None}
    for i in range(200):
        answer = mutated(whole, draw)
        server.answer = lambda body, number, answer=answer: (200, {}, answer)
        budget, folder = Budget(1, (1.0, 1.0)), tmp_path / str(i)
        try:
            drawn = sampler(server, folder, budget=budget, retries=0, concurrency=1).sample(CHATS[:1], 2, CONFIG)
        except ScopeError as error:
            assert str(error).isprintable() and len(str(error)) < 300
            lines.add(str(error))
        else:
            replies += 1
            said = {reply.text for reply in drawn[0]}
            assert said <= {"reply 0", "reply 1", "", "x", "\ud83d", "\0"}, said
            assert all(-100 < p <= 0 or math.isnan(p) for reply in drawn[0] for p in reply.logprobs)
            assert texts(recorded(server, folder).sample(CHATS[:1], 2, CONFIG)) == texts(drawn)
        assert 0 <= budget.spent < 1 and budget.spent == pytest.approx(budget.spent)
    assert replies > 50 and len(lines) > 3


def test_bytes_of_any_kind_end_in_one_line(server: Server, waits: list[float]) -> None:
    draw, whole = random.Random(1), json.dumps(ok({}, [choice("a")])[2]).encode()
    for i in range(100):
        at = draw.randrange(len(whole))
        noise = draw.choice([b"", b"\xff", b"\0", b"[" * 5000, b"9" * 5000, b'"', draw.randbytes(9)])
        sent = whole[:at] + noise + whole[at + draw.randrange(3) :]
        head = draw.choice(
            [
                b"HTTP/1.1 200 OK\r\n\r\n",
                b"HTTP/1.1 200\r\ncontent-length: 7\r\n\r\n",
                b"HTTP/1.1 999 \xff\r\n\r\n",
                b"\xff",
            ]
        )
        raw = iter([head + sent])
        server.answer = lambda body, number, i=i, sent=sent, raw=raw: (200, {}, sent) if i % 2 else (0, {}, raw)
        try:
            sampler(server, retries=0).sample(CHATS[:1], 1, CONFIG)
        except ScopeError as error:
            assert str(error).isprintable() and len(str(error)) < 300


# -- what the environment says -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTPS_PROXY", "what://u:pass-1234567@proxy"),
        ("ALL_PROXY", "http://[::1"),
        ("SSL_CERT_FILE", "/no/such/file.pem"),
    ],
)
def test_a_broken_setting_of_the_environment_is_told_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ScopeError, match=name) as caught:
        ApiSampler(Endpoint("m"), retries=0).sample(CHATS, 1)
    assert "\n" not in str(caught.value) and "pass-1234567" not in str(caught.value)


def test_variables_that_are_set_but_empty_are_as_if_unset(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS",
             "OPENAI_ADMIN_KEY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")  # fmt: skip
    for name in empty:
        monkeypatch.setenv(name, "")
    assert texts(sampler(server).sample(CHATS[:1], 1, CONFIG)) == [["line 0 reply 0"]]
    with pytest.raises(ScopeError, match="set the environment variable OPENAI_API_KEY"):
        ApiSampler(Endpoint("m")).sample(CHATS, 1)
