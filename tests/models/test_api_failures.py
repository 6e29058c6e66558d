"""An endpoint that fails: waits, timeouts, broken answers, and how many requests are under way."""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scope_lite.models.api import ApiSampler
from scope_lite.models.endpoint import Budget, Endpoint
from scope_lite.store.errors import ScopeError
from tests.standins.endpoint_server import CHATS, CONFIG, Answer, Handler, Server, ok, on_disk, refusal, sampler, texts


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
    ("sent", "told"),
    [(b"", "disconnected"), (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", "closed connection"),
     (b"hello\r\n\r\n", "illegal status line"),
     (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc", "decompressing")],
)  # fmt: skip
def test_a_connection_that_breaks_is_tried_again_and_told_with_its_reason(
    server: Server, waits: list[float], sent: bytes, told: str
) -> None:
    server.answer = lambda body, number: (0, {}, iter([sent])) if number == 0 else ok(body)
    assert texts(sampler(server).sample(CHATS[:1], 1, CONFIG)) == [["line 0 reply 0"]]
    server.answer = lambda body, number: (0, {}, iter([sent]))
    with pytest.raises(ScopeError, match=f"no connection to .*{told}"):
        sampler(server, retries=1).sample(CHATS[:1], 1, CONFIG)


@pytest.mark.parametrize(
    "payload",
    [b'{"choices": [', b"<html>busy</html>", b"[]", {}, {"choices": None}, {"choices": []}, {"choices": ["text"]},
     {"choices": [{"message": None}]}, {"choices": [{"message": {"content": ["a"]}}]},
     {"choices": {"0": "a"}}, {"choices": [{"message": {"content": 7}}]}, b"[" * 100_000, b""],
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
