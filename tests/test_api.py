"""Replies from an endpoint: a real HTTP server on loopback that answers, refuses, stalls and breaks as endpoints do."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_lite import collapse, prompts
from scope_lite.engines.api import Account, ApiSampler, most_tokens, open_sampler
from scope_lite.engines.budget import Budget
from scope_lite.engines.endpoint import NO_KEY, UNTRUNCATED, Endpoint, parse_endpoint
from scope_lite.engines.generate import SamplingConfig, TextSampler
from scope_lite.engines.reply_cache import ReplyCache
from scope_lite.errors import ScopeError
from tests.test_text_generate import byte_tokenizer, tiny

KEY = "sk-secret-0123456789abcdef"
CHATS = [[{"role": "system", "content": "be a customer"}, {"role": "user", "content": f"line {i}"}] for i in range(3)]
CONFIG = SamplingConfig(max_new_tokens=10)
USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}

Answer = tuple[int, dict[str, str], Any]
"""Status, headers, and a body: an object to be sent as JSON, or bytes as they are."""


class Server(ThreadingHTTPServer):
    """Behaves like an endpoint: ``answer(body, number)`` decides what request ``number`` gets."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.answer: Callable[[dict[str, Any], int], Answer] = lambda body, number: ok(body)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.active = self.most_active = 0
        self.lock = threading.Lock()
        self.closing = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            number = len(self.server.bodies)
            self.server.bodies.append(body)
            self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.server.active += 1
            self.server.most_active = max(self.server.most_active, self.server.active)
        status, headers, payload = self.server.answer(body, number)
        content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        with self.server.lock:  # before the answer: the client may send its next request at once
            self.server.active -= 1
        with suppress(OSError):  # the client may have stopped waiting
            self.send_response(status)
            for name, value in (
                {"content-type": "application/json", "content-length": str(len(content))} | headers
            ).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


def choice(text: str | None, reason: str = "stop", **more: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason, **more}


def ok(
    body: dict[str, Any], choices: list[dict[str, Any]] | None = None, usage: dict[str, int] | None = USAGE
) -> Answer:
    """A chat completion; by default each choice repeats the last line and its own number."""
    if choices is None:
        choices = [choice(f"{body['messages'][-1]['content']} reply {i}") for i in range(body.get("n", 1))]
    return 200, {}, {"id": "x", "object": "chat.completion", "created": 1, "model": "served-2026", "choices": choices,
                     "usage": usage}  # fmt: skip


def refusal(status: int, message: str = "no", **headers: str) -> Answer:
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, {"error": {"message": message}}


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.closing.set()
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_ADMIN_KEY", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between tries, noted instead of slept."""
    noted: list[float] = []
    monkeypatch.setattr(time, "sleep", noted.append)
    return noted


def sampler(server: Server, cache: Path | None = None, **changes: Any) -> ApiSampler:
    endpoint = Endpoint("small-model", server.url)
    return ApiSampler(endpoint, ReplyCache(cache) if cache else None, **changes)


def texts(replies: list[list[Any]]) -> list[list[str]]:
    return [[reply.text for reply in drawn] for drawn in replies]


def on_disk(folder: Path) -> str:
    return "\n".join(str(path) + path.read_text() for path in folder.rglob("*") if path.is_file())


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


def test_parts_of_one_history_keep_their_order_too(server: Server, tmp_path: Path) -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        if body["n"] == 2:
            return ok(body, [choice("d"), choice("e")])
        while not on_disk(tmp_path) and not server.closing.is_set():  # until the second part has been recorded
            server.closing.wait(0.01)
        return ok(body, [choice("a"), choice("b"), choice("c")])

    server.answer = answer
    drawn = sampler(server, tmp_path, replies_per_request=3).sample(CHATS[:1], 5, CONFIG)
    assert texts(drawn) == [["a", "b", "c", "d", "e"]]
    assert texts(drawn) == texts(sampler(server, tmp_path, replay_only=True).sample(CHATS[:1], 5, CONFIG))


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


def test_extra_fields_are_sent_and_are_part_of_the_record(server: Server, tmp_path: Path) -> None:
    for extra in ({"reasoning_effort": "low"}, {"reasoning_effort": "high"}):
        ApiSampler(Endpoint("m", server.url, extra=extra), ReplyCache(tmp_path)).sample(CHATS[:1], 1, CONFIG)
    assert [body["reasoning_effort"] for body in server.bodies] == ["low", "high"]
    assert "top_k" not in server.bodies[0]


def test_openais_own_address_is_given_the_length_field_that_its_models_accept() -> None:
    assert Endpoint("m").length_limit(7) == {"max_completion_tokens": 7}
    assert Endpoint("m", "https://host.example/v1").length_limit(7) == {"max_tokens": 7}
    assert Endpoint("m", length_field="limit").length_limit(7) == {"limit": 7}


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
    assert one.account.finish_reasons == {"length": 1, "content_filter": 1}


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


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_429_is_repeated_after_the_wait_that_it_asks_for(server: Server, waits: list[float]) -> None:
    server.answer = lambda body, number: refusal(429, "slow down", retry_after="17") if number == 0 else ok(body)
    assert texts(sampler(server).sample(CHATS[:1], 1, CONFIG)) == [["line 0 reply 0"]]
    assert waits == [17.0] and len(server.bodies) == 2


def test_errors_of_the_server_are_repeated_with_growing_waits_until_it_gives_up(
    server: Server, waits: list[float]
) -> None:
    server.answer = lambda body, number: refusal(500, "out of\nmemory")
    with pytest.raises(ScopeError, match=r"HTTP 500, 4 times: .*out of memory") as caught:
        sampler(server, retries=3).sample(CHATS[:1], 1, CONFIG)
    assert "\n" not in str(caught.value)
    assert len(server.bodies) == 4 and waits == sorted(waits) and waits[2] > 1.4 * waits[0]


def test_a_timeout_is_told_after_the_last_try(server: Server, waits: list[float]) -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        server.closing.wait(20)
        return ok(body)

    server.answer = answer
    budget = Budget(10, (1e6, 0))
    with pytest.raises(ScopeError, match=r"no answer within 0.1 s, 2 times"):
        sampler(server, timeout=0.1, retries=1, budget=Budget(1e9, (1e6, 0))).sample(CHATS[:1], 1, CONFIG)
    with pytest.raises(ScopeError, match="budget"):
        sampler(server, timeout=0.1, retries=1, budget=budget).sample(CHATS[:1], 1, CONFIG)


def test_an_address_where_nobody_listens_is_told(waits: list[float]) -> None:
    gone = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port = gone.server_port
    gone.server_close()
    with pytest.raises(ScopeError, match=f"no connection to http://127.0.0.1:{port}/v1 .*refused") as caught:
        ApiSampler(Endpoint("m", f"http://127.0.0.1:{port}/v1"), retries=1).sample(CHATS[:1], 1, CONFIG)
    assert "\n" not in str(caught.value) and len(waits) == 1


@pytest.mark.parametrize(
    "payload",
    [b'{"choices": [', b"<html>busy</html>", b"[]", {}, {"choices": None}, {"choices": []}, {"choices": ["text"]},
     {"choices": [{"message": None}]}, {"choices": [{"message": {"content": ["a"]}}]},
     {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": "many"}}],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["application/json", "text/html"])
def test_what_is_no_chat_completion_is_told_and_never_recorded(
    server: Server, tmp_path: Path, payload: Any, kind: str
) -> None:
    server.answer = lambda body, number: (200, {"content-type": kind}, payload)
    budget = Budget(1, (0.0, 1.0))
    with pytest.raises(ScopeError, match="no chat completion") as caught:
        sampler(server, tmp_path, budget=budget).sample(CHATS[:1], 1, CONFIG)
    assert "\n" not in str(caught.value) and not on_disk(tmp_path)
    assert budget.spent == budget.unconfirmed == pytest.approx(10e-6), "it may have been billed"


def test_a_redirect_is_not_followed(server: Server) -> None:
    server.answer = lambda body, number: refusal(307, "moved", location=f"{server.url}/elsewhere")
    with pytest.raises(ScopeError, match="HTTP 307"):
        sampler(server, retries=0).sample(CHATS[:1], 1, CONFIG)
    assert len(server.bodies) == 1


def test_what_arrived_before_a_failure_is_recorded_and_not_asked_again(server: Server, tmp_path: Path) -> None:
    server.answer = lambda body, number: ok(body) if number < 2 else refusal(404, "no such model")
    with pytest.raises(ScopeError, match=r"HTTP 404: .*no such model"):
        sampler(server, tmp_path, concurrency=1).sample(CHATS, 2, CONFIG)
    assert len(server.bodies) == 3
    server.answer = lambda body, number: ok(body)
    seen: list[tuple[int, int]] = []
    drawn = sampler(server, tmp_path, concurrency=1).sample(CHATS, 2, CONFIG, lambda *at: seen.append(at))
    assert len(server.bodies) == 4 and seen == [(3, 3)] and len(texts(drawn)[2]) == 2


@pytest.mark.parametrize("change", [{"concurrency": 0}, {"timeout": 0}, {"retries": -1}, {"replies_per_request": 0}])
def test_numbers_out_of_range_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ScopeError):
        ApiSampler(Endpoint("m"), **change)
    with pytest.raises(ScopeError):
        ApiSampler(Endpoint("m")).sample(CHATS, 0)


# -- concurrency -----------------------------------------------------------------------------------------------------


def test_the_server_sees_as_many_requests_at_once_as_allowed_and_no_more(server: Server) -> None:
    together = threading.Barrier(3)

    def answer(body: dict[str, Any], number: int) -> Answer:
        together.wait(20)  # passes only when three requests are here at the same time
        server.closing.wait(0.1)  # a fourth one would be seen meanwhile
        return ok(body)

    server.answer = answer
    chats = [[{"role": "user", "content": f"line {i}"}] for i in range(12)]
    drawn = sampler(server, concurrency=3).sample(chats, 1, CONFIG)
    assert server.most_active == 3 and len(server.bodies) == 12
    assert texts(drawn) == [[f"line {i} reply 0"] for i in range(12)]


# -- budget ----------------------------------------------------------------------------------------------------------


def worst(chat: list[dict[str, str]], budget: Budget) -> float:
    return budget.cost(most_tokens(chat), CONFIG.max_new_tokens)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_request_that_could_exceed_the_budget_is_never_sent(server: Server, tmp_path: Path, concurrency: int) -> None:
    chats = [[{"role": "user", "content": f"line {i}"}] for i in range(6)]
    prices = (2.0, 8.0)
    limit = 2.5 * worst(chats[0], Budget(prices=prices))
    server.answer = lambda body, number: ok(body, usage=None)  # tells no usage: the worst case counts
    budget = Budget(limit, prices)
    with pytest.raises(ScopeError, match="budget") as caught:
        sampler(server, tmp_path, budget=budget, concurrency=concurrency).sample(chats, 1, CONFIG)
    assert "\n" not in str(caught.value)
    assert len(server.bodies) == 2 and budget.spent <= limit
    assert len([path for path in tmp_path.rglob("*.json")]) == 2, "what was paid for is kept"


@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_answers_really_cost_is_charged_so_cheap_ones_leave_room(server: Server, concurrency: int) -> None:
    chats = [[{"role": "user", "content": f"line {i}"}] for i in range(6)]
    budget = Budget(2.5 * worst(chats[0], Budget(prices=(2.0, 8.0))), (2.0, 8.0))
    one = sampler(server, budget=budget, concurrency=concurrency)
    one.sample(chats, 1, CONFIG)
    assert budget.spent == pytest.approx(6 * (20 * 2.0 + 5 * 8.0) / 1e6) and budget.unconfirmed == 0
    assert (one.account.requests, one.account.tokens_read, one.account.tokens_written) == (6, 120, 30)
    assert "6 requests, 120 tokens read, 30 written" in one.spending() and "served-2026" in one.spending()


def test_tries_without_an_answer_count_and_refused_ones_do_not(server: Server, waits: list[float]) -> None:
    answers = {0: refusal(429), 1: refusal(500), 2: refusal(504)}
    server.answer = lambda body, number: answers.get(number) or ok(body)
    budget = Budget(prices=(1.0, 1.0))
    sampler(server, budget=budget).sample(CHATS[:1], 1, CONFIG)
    assert budget.unconfirmed == pytest.approx(worst(CHATS[0], budget))  # the 504
    assert budget.spent == pytest.approx(budget.unconfirmed + 25e-6)


def test_an_endpoint_that_ignores_the_length_limit_stops_a_run_with_a_budget(server: Server) -> None:
    server.answer = lambda body, number: ok(body, usage=USAGE | {"completion_tokens": 11})
    with pytest.raises(ScopeError, match="11 tokens where 10 were allowed"):
        sampler(server, budget=Budget(1, (1, 1))).sample(CHATS[:1], 1, CONFIG)
    assert sampler(server).sample(CHATS[:1], 1, CONFIG)


def test_no_chat_has_more_tokens_than_reserved() -> None:
    tokenizer = byte_tokenizer()  # one token a byte, the most that byte-level vocabularies ever need

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.text(max_size=40), min_size=1, max_size=5))
    def check(lines: list[str]) -> None:
        chat = [{"role": "user", "content": line.replace("\r", "")} for line in lines]
        ids = tokenizer.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
        assert len(ids) <= most_tokens(chat)

    check()


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1) | st.none()), max_size=30), st.floats(0, 10))
def test_a_budget_is_never_exceeded(requests: list[tuple[float, float | None]], limit: float) -> None:
    """One at a time, against plain sums: admitted exactly while the worst case fits."""
    budget, spent = Budget(limit), 0.0
    for worst_case, share in requests:
        if spent + worst_case > limit:
            with pytest.raises(ScopeError):
                budget.reserve(worst_case)
            continue
        budget.reserve(worst_case)
        budget.close(worst_case, None if share is None else share * worst_case)
        spent += worst_case if share is None else share * worst_case
    assert budget.spent == pytest.approx(spent) and spent <= limit * (1 + 1e-12)


def test_a_request_waits_for_those_under_way_before_it_is_refused() -> None:
    budget = Budget(1.0)
    budget.reserve(0.8)
    admitted = threading.Event()
    waiting = threading.Thread(target=lambda: (budget.reserve(0.8), admitted.set()))
    waiting.start()
    assert not admitted.wait(0.05)
    budget.close(0.8, 0.1)
    assert admitted.wait(20)
    waiting.join()
    with pytest.raises(ScopeError, match=r"0\.1 of the budget of 1 are spent"):
        budget.reserve(0.95)


@pytest.mark.parametrize(
    ("limit", "prices"), [(-1, (1, 1)), (math.nan, (1, 1)), (1, (1,)), (1, (-1, 1)), (1, (math.inf, 1))]
)
def test_a_budget_without_meaning_is_refused(limit: float, prices: tuple[float, ...]) -> None:
    with pytest.raises(ScopeError):
        Budget(limit, prices)  # type: ignore[arg-type]


# -- record and replay, and the key ----------------------------------------------------------------------------------


def test_a_recorded_evaluation_is_read_without_server_and_key(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sampler(server, tmp_path).sample(CHATS, 3, CONFIG)
    server.answer = lambda body, number: refusal(500)
    monkeypatch.delenv("OPENAI_API_KEY")
    for changes in ({"replay_only": True}, {}):
        again = sampler(server, tmp_path, **changes)
        assert texts(again.sample(CHATS, 3, CONFIG)) == texts(first)
        assert texts(again.sample(CHATS, 2, CONFIG)) == [line[:2] for line in texts(first)]
        assert again.account == Account() and again.budget.spent == 0
    assert len(server.bodies) == 3


def test_more_replies_later_keep_the_first_ones(server: Server, tmp_path: Path) -> None:
    few = sampler(server, tmp_path).sample(CHATS[:1], 2, CONFIG)
    many = sampler(server, tmp_path).sample(CHATS[:1], 5, CONFIG)
    assert many[0][:2] == few[0] or texts(many)[0][:2] == texts(few)[0]
    assert [body["n"] for body in server.bodies] == [2, 3]


def test_replay_names_the_missing_entry_and_sends_nothing(server: Server, tmp_path: Path) -> None:
    sampler(server, tmp_path).sample(CHATS[:2], 3, CONFIG)
    with pytest.raises(
        ScopeError, match=r"history 2 has 0 recorded replies of small-model, not 3 \(.+\.json\)"
    ) as caught:
        sampler(server, tmp_path, replay_only=True).sample(CHATS, 3, CONFIG)
    assert "\n" not in str(caught.value)
    with pytest.raises(ScopeError, match="history 0 has 3 recorded replies"):
        sampler(server, tmp_path, replay_only=True).sample(CHATS[:2], 4, CONFIG)
    assert len(server.bodies) == 2


@pytest.mark.parametrize("change", ["model", "address", "temperature", "length", "seed", "history"])
def test_another_question_is_another_entry(server: Server, tmp_path: Path, change: str) -> None:
    sampler(server, tmp_path).sample(CHATS[:1], 1, CONFIG)
    url = server.url.replace("127.0.0.1", "localhost") if change == "address" else server.url
    endpoint = Endpoint("other" if change == "model" else "small-model", url)
    config = {
        "temperature": SamplingConfig(0.9, 10),
        "length": SamplingConfig(1.0, 11),
        "seed": SamplingConfig(1.0, 10, 1),
    }
    asked = ApiSampler(endpoint, ReplyCache(tmp_path), replay_only=True)
    with pytest.raises(ScopeError, match="0 recorded"):
        asked.sample(CHATS[1:2] if change == "history" else CHATS[:1], 1, config.get(change, CONFIG))


def test_the_key_is_never_on_disk_in_logs_or_in_messages(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, waits: list[float]
) -> None:
    caplog.set_level(logging.DEBUG)
    one = sampler(server, tmp_path, retries=1)
    one.sample(CHATS, 2, CONFIG)
    said = [repr(one), repr(vars(one)), repr(one.endpoint), one.spending()]
    for status in (400, 401, 403, 404, 429, 500):
        server.answer = lambda body, number, status=status: refusal(status, f"what is {KEY}? or {KEY[:12]}...?")
        with pytest.raises(ScopeError) as caught:
            one.sample(CHATS, 3, CONFIG)
        assert caught.value.__cause__ is None and caught.value.__suppress_context__
        said.append(str(caught.value))
    assert server.headers[0]["authorization"].endswith(KEY), "it was used"
    assert "OPENAI_API_KEY (HTTP 401)" in said[5]
    for text in [*said, caplog.text, on_disk(tmp_path)]:
        assert KEY not in text
    assert "sk-" not in on_disk(tmp_path) and "small-model" not in on_disk(tmp_path)


def test_the_key_is_read_from_the_variable_that_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", " sk-other ")
    ApiSampler(Endpoint("m", server.url, "OTHER_KEY")).sample(CHATS[:1], 1, CONFIG)
    ApiSampler(Endpoint("m", server.url, "UNSET_KEY")).sample(CHATS[:1], 1, CONFIG)
    assert [headers["authorization"] for headers in server.headers] == ["Bearer sk-other", f"Bearer {NO_KEY}"]


@pytest.mark.parametrize(
    ("key", "said"), [(None, "set the environment variable OPENAI_API_KEY"), ("sk-a\nb", "characters")]
)
def test_a_missing_or_broken_key_is_told_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, key: str | None, said: str
) -> None:
    if key is None:
        monkeypatch.delenv("OPENAI_API_KEY")
    else:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ScopeError, match=said) as caught:
        ApiSampler(Endpoint("m")).sample(CHATS, 1)
    assert "sk-a" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/v1", "http://localhost/v1", "http://[::1]:8000/v1", "https://a.example/v1"]
)
def test_loopback_may_be_plain_http(url: str) -> None:
    assert Endpoint("m", url).is_local == url.startswith("http:")


@pytest.mark.parametrize("url", ["http://host.example/v1", "http://10.0.0.7:8000/v1", "http://localhost.example/v1"])
def test_plain_http_to_another_machine_is_refused_unless_asked_for(url: str) -> None:
    with pytest.raises(ScopeError, match="is not this machine"):
        Endpoint("m", url)
    assert not Endpoint("m", url, plain_http=True).is_local


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host/v1",
        "ftp://a.example",
        "https://",
        "https://a.example:port",
        "https://u:p@a.example",
        "https://a.example?k=1",
    ],
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused(url: str) -> None:
    with pytest.raises(ScopeError) as caught:
        Endpoint("m", url)
    assert "u:p" not in str(caught.value)
    with pytest.raises(ScopeError):
        parse_endpoint("openai:")
