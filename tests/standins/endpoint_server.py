"""A real HTTP server on loopback that answers, refuses, stalls and breaks as endpoints do: a helper for tests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scope_lite.models.api import ApiSampler
from scope_lite.models.endpoint import Endpoint
from scope_lite.models.replies import ReplyCache, SamplingConfig

KEY = "sk-secret-0123456789abcdef"
CHATS = [[{"role": "system", "content": "be a customer"}, {"role": "user", "content": f"line {i}"}] for i in range(3)]
CONFIG = SamplingConfig(max_new_tokens=10)
USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}

Answer = tuple[int, dict[str, str], Any]
"""Status, headers, and a body: an object to be sent as JSON, bytes as they are, or an iterator of bytes to be sent one
after the other; with status 0 the body is all that is sent."""


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
        if isinstance(payload, Iterator):
            parts, length = payload, {"connection": "close"}
            self.close_connection = True
        else:
            content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            parts, length = iter([content]), {"content-length": str(len(content))}
        with self.server.lock:  # before the answer: the client may send its next request at once
            self.server.active -= 1
        with suppress(OSError):  # the client may have stopped waiting
            if status:
                self.send_response(status)
                for name, value in ({"content-type": "application/json"} | length | headers).items():
                    self.send_header(name, value)
                self.end_headers()
            for part in parts:
                self.wfile.write(part)

    def log_message(self, *args: Any) -> None:
        pass


def choice(text: str | None, reason: str = "stop", **more: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason, **more}


def ok(body: dict[str, Any], choices: list[dict[str, Any]] | None = None, usage: Any = USAGE, **more: Any) -> Answer:
    """A chat completion; by default each choice repeats the last line and its own number."""
    if choices is None:
        choices = [choice(f"{body['messages'][-1]['content']} reply {i}") for i in range(body.get("n", 1))]
    return 200, {}, {"id": "x", "object": "chat.completion", "created": 1, "model": "served-2026", "choices": choices,
                     "usage": usage, **more}  # fmt: skip


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


def recorded(server: Server, cache: Path) -> ApiSampler:
    """A sampler that has the record alone: whatever it would send is an error."""
    one = sampler(server, cache)
    one._client = None  # type: ignore[assignment]
    return one


def texts(replies: list[list[Any]]) -> list[list[str]]:
    return [[reply.text for reply in drawn] for drawn in replies]


def on_disk(folder: Path) -> str:
    return "\n".join(str(path) + path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file())
