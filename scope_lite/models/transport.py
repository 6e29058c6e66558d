"""How an answer comes in from an endpoint: whole, in one time and one size, without secrets, an error as an error.

It stands between the SDK and the network, so that the SDK's retries, waits and kinds of error hold for what it does not
look for itself: an answer that drips or swells, a router that tells of a failure with status 200, and an endpoint that
quotes the key. Nothing that leaves here holds a header's secret, so no record, message or table can.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import httpx2

from scope_lite.models.endpoint import NO_KEY
from scope_lite.store.errors import ScopeError

MOST_BYTES = 2**26
"""Of an answer, decompressed; 16 replies of 4,000 tokens with their log-probabilities take a quarter of it."""
KEPT_HEADERS = ("content-type", "retry-after", "retry-after-ms", "x-should-retry")
"""What the SDK acts on; the others may quote anything."""
PIECE = 8
"""Letters and digits in a row by which a part of a secret is known; keys have 20 and more."""
LETTER = re.compile(r"(?:%|\\x|\\u00|&#x0*)([0-9a-f]{2});?|&#0*([0-9]{2,3});|([0-9a-z])", re.IGNORECASE | re.ASCII)
"""A letter or digit, or how URLs, JSON and HTML write one."""

for _name in ("httpx2", "httpcore2"):  # their lines below a warning hold an answer's headers as they came
    logging.getLogger(_name).setLevel(logging.WARNING)


class WholeAnswers(httpx2.BaseTransport):
    """Sends a request and reads its answer to the end before it says anything."""

    def __init__(self, timeout: float, tls: bool) -> None:
        """``timeout`` is for all of an answer, from the name's lookup to the last byte, seconds.

        Raises:
            OSError, ValueError, ImportError: certificates or a proxy that the environment names cannot be used.
        """
        # A proxy would carry plain http off this machine. Without TLS an empty context saves a quarter of a second.
        verify = httpx2.create_ssl_context() if tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.timeout, self._settings = timeout, {"verify": verify, "trust_env": tls}
        httpx2.AsyncClient(**self._settings)  # type: ignore[arg-type]  # what it refuses is told before anything is sent

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        secret = re.compile("auth|key|token|secret|cookie", re.IGNORECASE)
        hide = hider(tuple(value for name, value in request.headers.items() if secret.search(name)))
        try:
            # A loop of its own, as only there a request can be stopped wherever it is; sockets count from byte to byte.
            status, headers, body = asyncio.run(self._fetch(request))
        except (TimeoutError, httpx2.TimeoutException):
            raise httpx2.ReadTimeout("no whole answer in time", request=request) from None
        except (httpx2.HTTPError, OSError, UnicodeError) as broken:
            raise httpx2.RequestError(hide(_reason(broken)), request=request) from None
        kept = {name: hide(headers[name]) for name in KEPT_HEADERS if name in headers}
        try:
            said = _everywhere(hide, json.loads(body))
            error_status, error = error_in(said) if status // 100 == 2 else (0, None)
            status, content = error_status or status, json.dumps({"error": error} if error_status else said)
        except ValueError:
            content = hide(body.decode(errors="replace"))
        except RecursionError:
            content = "JSON nested too deeply"
        return httpx2.Response(status, headers=kept, content=content.encode())

    async def _fetch(self, request: httpx2.Request) -> tuple[int, httpx2.Headers, bytes]:
        body = bytearray()
        async with asyncio.timeout(self.timeout), httpx2.AsyncClient(**self._settings) as http:  # type: ignore[arg-type]
            response = await http.send(request, stream=True)
            try:
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MOST_BYTES:
                        where = f"{request.url.scheme}://{request.url.netloc.decode()}"
                        raise ScopeError(f"{where} answered with more than {MOST_BYTES:,} bytes: it is no endpoint")
            finally:
                await response.aclose()
        return response.status_code, response.headers, bytes(body)


def _reason(error: BaseException | None) -> str:
    """Why there is no answer: "Connection refused" rather than that all attempts failed."""
    chain: list[BaseException] = []
    while error:
        chain += [error, *getattr(error, "exceptions", ())]
        error = error.__cause__ or error.__context__
    system = (os.strerror(e.errno) for e in chain if isinstance(e, ConnectionError) and e.errno)
    return next(system, None) or next((str(e) for e in chain if str(e)), type(chain[0]).__name__)


def error_in(said: Any) -> tuple[int, Any]:
    """The error that an answer of status 200 tells of, with the status that it should have had; (0, None) if none."""
    if not isinstance(said, dict):
        return 0, None
    error = said.get("error") or (said.get("object") == "error" and said)
    choices = said.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            broken = choice.get("finish_reason") == "error" and "the reply broke off with an error"
            error = error or choice.get("error") or broken
    if not error:
        return 0, None
    kind = f"{error.get('code')} {error.get('type')}" if isinstance(error, dict) else ""
    if code := re.match(r"[45]\d\d\b", kind):
        return int(code[0]), error
    # A bad gateway is repeated, and may have been billed: the worst is assumed of what says nothing of itself.
    return 400 if re.search("invalid|context_length", kind) else 502, error


def _everywhere(hide: Callable[[str], str], value: Any) -> Any:
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, list):
        return [_everywhere(hide, part) for part in value]
    if isinstance(value, dict):
        return {hide(name): _everywhere(hide, part) for name, part in value.items()}
    return value


@lru_cache
def hider(values: tuple[str, ...]) -> Callable[[str], str]:
    """A function that replaces the secrets of these header values in a text by ``[key]``.

    A secret is found whole in any case, and in pieces of :data:`PIECE` letters and digits whatever stands between them
    (spaces, quotes, zero-width characters), percent-encoded, escaped, in hexadecimal or in base64. Words that stand in
    for a key ("EMPTY", "not-needed") are short or have no digit; of those only the whole is hidden, from six letters.
    """
    secrets = [word for value in values for word in value.split() if len(word) >= 6 and word not in (NO_KEY, "Bearer")]
    whole = re.compile("|".join(map(re.escape, secrets)) or r"(?!)", re.IGNORECASE)
    pieces: set[str] = set()
    for secret in secrets:
        if re.search(r"\d", secret) or len(secret) >= 24:
            coded = [base64.b64encode(b"\0" * i + secret.encode())[(0, 2, 3)[i] :].decode() for i in range(3)]
            for form in (secret, secret.encode().hex(), *coded):
                letters = re.sub(r"[\W_]", "", form).lower()
                pieces |= {letters[i : i + PIECE] for i in range(len(letters) - PIECE + 1)}

    def hide(text: str) -> str:
        text = whole.sub("[key]", text)
        plain = re.sub(r"[^0-9a-z]+", "", text.lower())
        if not re.search(r"%|\\|&#", text) and not any(plain[i : i + PIECE] in pieces for i in range(len(plain))):
            return text  # ten times faster than to look closely
        found = [(m.start(), m.end(), m[3] or chr(int(m[1], 16) if m[1] else int(m[2]))) for m in LETTER.finditer(text)]
        found = [place for place in found if place[2].isascii() and place[2].isalnum()]
        letters = "".join(letter for _, _, letter in found).lower()
        spans: list[tuple[int, int]] = []
        for i in (i for i in range(len(letters)) if letters[i : i + PIECE] in pieces):
            first, last = found[i][0], found[i + PIECE - 1][1]
            joined = spans.pop()[0] if spans and first <= spans[-1][1] else first
            spans.append((joined, last))
        for first, last in reversed(spans):
            text = text[:first] + "[key]" + text[last:]
        return text

    return hide
