"""The key and what else is secret: taken out of what an endpoint sends, so that nothing we write or print has it."""

# ruff: noqa: F811  (a fixture is imported, and is a test's argument, under one name)
from __future__ import annotations

import base64
import json
import logging
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scope_lite import cli
from scope_lite.models.client import NO_KEY, hider
from scope_lite.store.errors import ScopeError
from tests.method.test_text_training import model  # noqa: F401  (fixture)
from tests.standins.endpoint_server import CHATS, CONFIG, KEY, Answer, Server, choice, ok, on_disk, sampler, texts

FORMS = {
    "plain": KEY,
    "upper case": KEY.upper(),
    "zero-width characters": "\u200b".join(KEY),
    "spaced out": " ".join(KEY),
    "in quoted pieces": f'"{KEY[:9]}" + "{KEY[9:]}"',
    "on two lines": f"{KEY[:14]}\n{KEY[14:]}",
    "the first part": KEY[:14],
    "the last part": KEY[-12:],
    "percent-encoded": urllib.parse.quote(KEY),
    "percent-encoded, all of it": "".join(f"%{ord(c):02X}" for c in KEY),
    "escaped": "".join(f"\\u{ord(c):04x}" for c in KEY),
    "as entities": "".join(f"&#{ord(c)};" for c in KEY),
    "hexadecimal": KEY.encode().hex(),
    "base64": base64.b64encode(KEY.encode()).decode(),
    "base64 of more": base64.b64encode(f"Bearer {KEY}".encode()).decode(),
    "base64 of a pair": base64.urlsafe_b64encode(f"me:{KEY}\n".encode()).decode(),
}


def traces(text: str) -> list[str]:
    """Pieces of the key, or of it in another writing, that a text holds: eight letters and digits in a row."""
    letters = "".join(c for c in text if c.isascii() and c.isalnum()).lower()
    forms = [KEY, KEY.encode().hex(), base64.b64encode(KEY.encode()).decode()[:-4]]
    flat = ["".join(c for c in form if c.isalnum()).lower() for form in forms]
    return [form[i : i + 8] for form in flat for i in range(len(form) - 7) if form[i : i + 8] in letters]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_secret_is_found_in_every_writing(form: str) -> None:
    shown = hider((f"Bearer {KEY}",))(f"Yes, 50 cents: {form}. Anything else?")
    assert shown.startswith("Yes, 50 cents: ") and shown.endswith(". Anything else?") and "[key]" in shown
    assert not traces(shown) and len(shown) < 70


@pytest.mark.parametrize(
    "key", [KEY, NO_KEY, "EMPTY", "x", "not-needed", "sk-no-key-required", "token-abc123", "a1" * 80]
)
def test_words_are_no_secrets(key: str) -> None:
    said = "The token is not needed, no key required: an empty 100% sure thing \\x &#; %zz, call 0800 1234, or EMPT 1."
    assert hider((f"Bearer {key}",))(said) == said


def test_a_key_without_digits_is_hidden_whole() -> None:
    assert hider(("Bearer not-needed",))("I was given NOT-needed.") == "I was given [key]."


def quoting(body: dict[str, Any], number: int, key: str) -> Answer:
    """Everything that an answer holds quotes the key, one way or another."""
    forms = list(FORMS.values())
    headers = {"x-request-id": key, "set-cookie": f"key={key}", "openai-organization": key, "retry-after": key}
    if number == 0:
        return 500, headers, {"error": {"message": f"what is {key}?", "code": key, key: key}}
    chosen = [choice(f"I give {forms[(number + i) % len(forms)]}", key) for i in range(body.get("n", 1))]
    return 200, headers, ok(body, chosen, model=f"Bearer {key}", system_fingerprint=key)[2]


@pytest.mark.parametrize(
    "where", ["reply", "error 400", "error 401", "error 500", "error in a 200", "no JSON", "status line", "reason"]
)
def test_a_quoted_key_reaches_no_reply_record_log_or_message(
    server: Server, tmp_path: Path, waits: list[float], caplog: pytest.LogCaptureFixture, where: str
) -> None:
    caplog.set_level(logging.DEBUG)
    quoted = " ".join(FORMS.values())
    told = {"error": {"message": quoted, "code": 500}}
    answers: dict[str, Answer] = {
        "error in a 200": (200, {}, told),
        "no JSON": (200, {"content-type": "text/plain"}, quoted.encode()),
        "status line": (0, {}, iter([f"HTTP/1.1 {KEY}\r\nx: {KEY}\r\n\r\n".encode()])),
        "reason": (0, {}, iter([f"HTTP/1.1 404 {KEY}\r\nx: {KEY}\r\ncontent-length: 0\r\n\r\n".encode()])),
    }
    one = sampler(server, tmp_path, retries=0)
    said = []
    if where == "reply":
        server.answer = lambda body, number: quoting(body, number + 1, KEY)
        said = [*texts(one.sample(CHATS, 8, CONFIG))[0], one.spending()]
        assert "[key]" in said[0] and "answered by Bearer [key]" in one.spending() and "[key]" in on_disk(tmp_path)
    else:
        server.answer = lambda body, number: (
            answers.get(where) or (int(where.split()[1]), {"www-authenticate": KEY}, told)
        )
        with pytest.raises(ScopeError) as caught:
            one.sample(CHATS[:1], 1, CONFIG)
        said = [str(caught.value)]
    assert KEY in server.headers[0]["authorization"]
    for text in [*said, caplog.text, on_disk(tmp_path)]:
        assert not traces(text)


def test_other_headers_of_the_environment_are_kept_as_secret(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-gateway-token: gate-7777-abcdef\nx-title: pizza shop 12345")
    server.answer = lambda body, number: ok(body, [choice("gate-7777-abcdef, pizza shop 12345")])
    assert texts(sampler(server).sample(CHATS[:1], 1, CONFIG)) == [["[key], pizza shop 12345"]]
    assert server.headers[0]["x-gateway-token"] == "gate-7777-abcdef"


def test_no_file_and_no_line_of_a_run_or_a_report_holds_the_key(
    server: Server, model: Path, tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCOPE_LITE_CACHE", str(tmp_path / "cache"))
    server.answer = lambda body, number: quoting(body, number, KEY)
    name, out = f"openai:stub@{server.url}", ["--out", str(tmp_path / "out")]
    small = {"model": model, "groups": 1, "group_size": 2, "text.turns": 2, "text.max_new_tokens": 5,
             "text.reply_tokens": 20, "eval_every": 1, "eval_dialogues": 1, "final_dialogues": 1,
             "text.simulator_model": name}  # fmt: skip
    sets = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    commands = [
        ["train", "--world", "p4g", "--method", "single", "--steps", "1", *sets, *out],
        ["simulator", "report", name, "--scenarios", "p4g", "--dialogues", "1", "--replies", "2", *out],
    ]
    for words in commands:
        asked = len(server.bodies)
        done = CliRunner().invoke(cli.app, words)
        assert done.exit_code == 0, done.output
        assert len(server.bodies) > asked and not traces(done.output)
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"provenance.json", "rollouts.jsonl", "replies.csv"} <= {path.name for path in made}
    assert any(path.is_relative_to(tmp_path / "cache") and b"[key]" in path.read_bytes() for path in made)
    for path in made:
        assert not traces(str(path) + path.read_bytes().decode("utf-8", "replace")) or path.suffix in (".png", ".pdf")
        assert KEY.encode() not in path.read_bytes()
    assert all(
        json.dumps(KEY)[1:-1] not in path.read_text(encoding="utf-8")
        for path in made
        if path.suffix in (".json", ".jsonl")
    )
