"""Which OpenAI-compatible endpoint to ask for which model, and the client that asks it.

The key is read from an environment variable when the first request is sent. It stays inside the SDK's client: it is no
field of anything here, and ``transport`` takes it out of what an endpoint quotes: no record, message or log shows it.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scope_lite.store.errors import ScopeError

if TYPE_CHECKING:
    import openai

OPENAI_URL = "https://api.openai.com/v1"
NO_KEY = "no-key-needed"
"""Sent where none is set: the SDK insists on something."""
UNTRUNCATED = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""What a local server (vLLM, SGLang, llama.cpp) must be told: it otherwise cuts or penalises tokens by its own defaults
or the model's generation_config.json, and a simulator looks more collapsed than its model is."""


@dataclass(frozen=True)
class Endpoint:
    """One model behind one address."""

    model: str
    """the name that the endpoint knows the model by; different weights need different names, or share their record"""
    base_url: str = OPENAI_URL
    """up to and including ``/v1``"""
    key_variable: str = "OPENAI_API_KEY"
    """the environment variable that holds the key; a server on this machine may need none"""
    plain_http: bool = False
    """allow ``http://`` to another machine: prompts, replies and the key then cross the network readable"""
    length_field: str | None = None
    """the request's field that limits a reply; None: "max_completion_tokens" for OpenAI, "max_tokens" elsewhere"""
    extra: Mapping[str, Any] | None = None
    """further fields of every request; None: none, but :data:`UNTRUNCATED` for a server on this machine"""

    def __post_init__(self) -> None:
        try:
            url = urlsplit(self.base_url)
            host, _ = url.hostname, url.port
        except ValueError:
            host = None
        if not self.model or not host or url.scheme not in ("http", "https"):
            raise ScopeError("an endpoint needs a model's name and an address such as http://localhost:8000/v1")
        if url.username or url.password or url.query or url.fragment:
            raise ScopeError(
                "an endpoint's address holds no password, '?' or '#': put the key in an environment variable"
            )
        if url.scheme == "http" and not (self.is_local or self.plain_http):
            raise ScopeError(
                f"{host} is not this machine, and over http everyone on the way can read the key: use https, or say "
                "plain_http=True"
            )

    @property
    def is_local(self) -> bool:
        """Whether the address is this machine's own (loopback)."""
        host = urlsplit(self.base_url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @property
    def fixed_fields(self) -> dict[str, Any]:
        """The fields that every request carries besides the usual ones; part of the record."""
        return dict(self.extra if self.extra is not None else UNTRUNCATED if self.is_local else {})

    def length_limit(self, max_new_tokens: int) -> dict[str, int]:
        """The field that limits a reply; OpenAI's newer models refuse the older name, other servers know only that."""
        is_openai = self.base_url.rstrip("/") == OPENAI_URL
        return {self.length_field or ("max_completion_tokens" if is_openai else "max_tokens"): max_new_tokens}

    def client(self, timeout: float, retries: int, hooks: Mapping[str, list[Any]]) -> openai.OpenAI:
        """A client for this endpoint.

        Raises:
            ScopeError: the key is missing or no key at all, or the environment names a proxy or certificates in vain.
        """
        import httpx2
        import openai

        from scope_lite.models.transport import WholeAnswers

        key = os.environ.get(self.key_variable, "").strip()
        if not key and not self.is_local:
            raise ScopeError(f"no key for {self.base_url}: set the environment variable {self.key_variable}")
        if not re.fullmatch(r"[!-~]*", key):  # it would be quoted in the HTTP library's complaint
            raise ScopeError(f"the environment variable {self.key_variable} holds characters that no key has")
        tls = urlsplit(self.base_url).scheme == "https"
        try:
            # A redirect would carry prompts to an address that nobody checked.
            http = openai.DefaultHttpxClient(
                transport=WholeAnswers(timeout, tls), event_hooks=hooks, follow_redirects=False, timeout=timeout
            )
            return openai.OpenAI(
                api_key=key or NO_KEY, base_url=self.base_url, timeout=timeout, max_retries=retries, http_client=http
            )
        except (OSError, ValueError, ImportError, httpx2.InvalidURL, openai.OpenAIError) as error:
            # Its message is left out: a proxy's address may hold a password.
            raise ScopeError(
                f"no client for {self.base_url} ({type(error).__name__}): correct the address, or the environment's "
                "proxies (HTTPS_PROXY, ALL_PROXY), certificates (SSL_CERT_FILE, SSL_CERT_DIR) and OPENAI_ variables"
            ) from None


def parse_endpoint(text: str) -> Endpoint | None:
    """Read ``openai:NAME``, ``openai:NAME@URL`` or ``openai:NAME@URL#KEY_VARIABLE``; None if it names a local model.

    Raises:
        ScopeError: no name, or an address that :class:`Endpoint` refuses.
    """
    if not text.startswith("openai:"):
        return None
    found = re.fullmatch(r"openai:([^#]+?)(?:@(https?://[^#]*))?(?:#(\w+))?", text)
    if not found or "://" in found[1]:
        raise ScopeError("an endpoint is written openai:NAME, openai:NAME@URL or openai:NAME@URL#KEY_VARIABLE")
    return Endpoint(found[1], found[2] or OPENAI_URL, found[3] or Endpoint.key_variable)
