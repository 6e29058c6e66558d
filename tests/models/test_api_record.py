"""What an endpoint said is on record, and its key nowhere; which addresses are asked at all."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from scope_lite.models.api import ApiSampler
from scope_lite.models.client import NO_KEY
from scope_lite.models.endpoint import Endpoint, parse_endpoint
from scope_lite.models.replies import ReplyCache, SamplingConfig
from scope_lite.store.errors import ScopeError
from tests.standins.endpoint_server import CHATS, CONFIG, KEY, Server, on_disk, recorded, refusal, sampler, texts


def test_a_recorded_evaluation_is_read_without_server_and_key(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sampler(server, tmp_path).sample(CHATS, 3, CONFIG)
    server.answer = lambda body, number: refusal(500)
    monkeypatch.delenv("OPENAI_API_KEY")
    for again in (recorded(server, tmp_path), sampler(server, tmp_path)):
        assert texts(again.sample(CHATS, 3, CONFIG)) == texts(first)
        assert texts(again.sample(CHATS, 2, CONFIG)) == [line[:2] for line in texts(first)]
        assert not again.budget.served and again.budget.spent == again.budget.tokens_read == 0
    assert len(server.bodies) == 3


def test_more_replies_later_keep_the_first_ones(server: Server, tmp_path: Path) -> None:
    few = sampler(server, tmp_path).sample(CHATS[:1], 2, CONFIG)
    many = sampler(server, tmp_path).sample(CHATS[:1], 5, CONFIG)
    assert many[0][:2] == few[0] or texts(many)[0][:2] == texts(few)[0]
    assert [body["n"] for body in server.bodies] == [2, 3]


def test_the_record_says_how_much_of_a_request_it_holds(server: Server, tmp_path: Path) -> None:
    sampler(server, tmp_path).sample(CHATS[:2], 3, CONFIG)
    assert recorded(server, tmp_path).recorded(CHATS, CONFIG) == [3, 3, 0]
    assert sampler(server).recorded(CHATS, CONFIG) == [0, 0, 0] and len(server.bodies) == 2


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
    asked = ApiSampler(endpoint, ReplyCache(tmp_path))
    chats = CHATS[1:2] if change == "history" else CHATS[:1]
    assert asked.recorded(chats, config.get(change, CONFIG)) == [0]


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
def test_plain_http_to_another_machine_is_refused(url: str) -> None:
    with pytest.raises(ScopeError, match="is not this machine"):
        Endpoint("m", url)


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
