"""The client of an endpoint: the openai SDK, and below it answers that come in whole, paid for and without secrets.

The SDK repeats what failed on the way (429, 5xx, time-outs, lost connections) with growing waits and heeds Retry-After.
``WholeAnswers`` stands between it and the network, so that this holds for what the SDK does not look for: an answer
that drips or swells, a router that tells of a failure with status 200, an endpoint that quotes the key. The key stays
inside the SDK, and nothing that leaves here holds a header's secret: no record, message, log or table can.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache
from itertools import groupby
from typing import Any

import httpx2
import openai

from scope_lite.models.completion import error_in, one_line
from scope_lite.models.endpoint import Budget, Endpoint
from scope_lite.store.errors import ScopeError

NO_KEY = "no-key-needed"
"""Sent where none is set: the SDK insists on something."""
WORST_CASE: ContextVar[float] = ContextVar("worst case")
"""What each try of the request that a thread has under way may cost."""
MAYBE_BILLED = (408, 502, 504, 524)
"""A gateway gave up waiting; the model behind it may have answered all the same. Other errors cost nothing."""
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


def connect(endpoint: Endpoint, timeout: float, retries: int, budget: Budget) -> openai.OpenAI:
    """A client for this endpoint, whose every try of a request is reserved in the budget (:data:`WORST_CASE`).

    Raises:
        ScopeError: the key is missing or no key at all, or the environment names a proxy or certificates in vain.
    """
    key, tls = os.environ.get(endpoint.key_variable, "").strip(), endpoint.base_url.lower().startswith("https:")
    if not key and not endpoint.is_local:
        raise ScopeError(f"no key for {endpoint.base_url}: set the environment variable {endpoint.key_variable}")
    if not re.fullmatch(r"[!-~]*", key):  # it would be quoted in the HTTP library's complaint
        raise ScopeError(f"the environment variable {endpoint.key_variable} holds characters that no key has")
    try:
        return openai.OpenAI(
            api_key=key or NO_KEY,
            base_url=endpoint.base_url,
            timeout=timeout,
            max_retries=retries,
            # a redirect would carry prompts to an address that nobody checked
            http_client=openai.DefaultHttpxClient(
                transport=WholeAnswers(timeout, tls, budget), follow_redirects=False, timeout=timeout
            ),
        )
    except (OSError, ValueError, ImportError, httpx2.InvalidURL, openai.OpenAIError) as error:
        # Its message is left out: a proxy's address may hold a password.
        raise ScopeError(
            f"no client for {endpoint.base_url} ({type(error).__name__}): correct the address, or the environment's "
            "proxies (HTTPS_PROXY, ALL_PROXY), certificates (SSL_CERT_FILE, SSL_CERT_DIR) and OPENAI_ variables"
        ) from None


def complaint(error: openai.OpenAIError, endpoint: Endpoint, timeout: float) -> ScopeError:
    """The SDK's error in one line."""
    where, status = endpoint.base_url, getattr(error, "status_code", None)
    tries = 1 + int(error.request.headers["x-stainless-retry-count"]) if isinstance(error, openai.APIError) else 1
    times = f", {tries} times" if tries > 1 else ""
    if isinstance(error, openai.APITimeoutError):
        return ScopeError(f"{where} gave no answer within {timeout:g} s{times}: raise timeout")
    if isinstance(error, openai.APIConnectionError):
        reason = one_line(error.__cause__ or error)
        return ScopeError(f"no connection to {where} ({reason}): check the address, and that it is running")
    if status in (401, 403):  # its message is left out: endpoints like to quote a part of the key
        return ScopeError(f"{where} refused the key in {endpoint.key_variable} (HTTP {status})")
    body = getattr(error, "body", None) or error
    told = body.get("message") if isinstance(body, dict) else None
    return ScopeError(f"{where} answered HTTP {status}{times}: {one_line(told or body)}")


class WholeAnswers(httpx2.BaseTransport):
    """Sends a request and reads its answer to the end before it says anything."""

    def __init__(self, timeout: float, tls: bool, budget: Budget) -> None:
        """``timeout`` is for all of an answer, from the name's lookup to the last byte, seconds.

        Raises:
            OSError, ValueError, ImportError: certificates or a proxy that the environment names cannot be used.
        """
        # A proxy would carry plain http off this machine. Reading certificates takes a quarter of a second: once.
        verify = httpx2.create_ssl_context() if tls else False
        self.timeout, self.budget, self._settings = timeout, budget, {"verify": verify, "trust_env": tls}
        httpx2.AsyncClient(**self._settings)  # type: ignore[arg-type]  # what it refuses is told before anything is sent

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        secret = re.compile("auth|key|token|secret|cookie", re.IGNORECASE)
        hide = hider(tuple(value for name, value in request.headers.items() if secret.search(name)))
        self.budget.reserve(WORST_CASE.get())
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
        if status // 100 != 2:
            self.budget.close(None if status in MAYBE_BILLED else 0.0)
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
        known = [i for i in range(len(letters)) if letters[i : i + PIECE] in pieces]
        hidden = {at for i in known for at in range(found[i][0], found[i + PIECE - 1][1])}
        runs = groupby(range(len(text)), hidden.__contains__)
        return "".join("[key]" if secret else "".join(text[at] for at in run) for secret, run in runs)

    return hide
