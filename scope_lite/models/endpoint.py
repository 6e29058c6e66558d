"""Which OpenAI-compatible endpoint to ask for which model, and what it may cost.

The key lies in an environment variable and is read when the first request is sent (``client``); it is no field of
anything here.
"""

from __future__ import annotations

import ipaddress
import math
import re
import threading
from collections import Counter
from dataclasses import dataclass
from urllib.parse import urlsplit

from scope_lite.store.errors import ScopeError

OPENAI_URL = "https://api.openai.com/v1"
UNTRUNCATED: dict[str, float] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
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
        if url.scheme == "http" and not self.is_local:
            raise ScopeError(
                f"{host} is not this machine, and over http everyone on the way can read the key: use https"
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
    def fixed_fields(self) -> dict[str, float]:
        """The fields that every request carries besides the usual ones; part of the record."""
        return UNTRUNCATED if self.is_local else {}

    @property
    def length_field(self) -> str:
        """The field that limits a reply; OpenAI's newer models refuse the older name, other servers know only that."""
        return "max_completion_tokens" if self.base_url.rstrip("/") == OPENAI_URL else "max_tokens"


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


class Budget:
    """What an endpoint was asked for, gave and cost, in the currency of the prices; safe to share between threads.

    Its limit is kept beforehand: each try reserves its worst case, and is refused if that does not fit. Checking the
    bill afterwards would be too late for the request that exceeds the limit, and with many under way for all of them.
    Replies read from the record count nothing.
    """

    def __init__(self, limit: float = math.inf, prices: tuple[float, float] = (0.0, 0.0)) -> None:
        """``prices`` are for one million tokens read and one million tokens written.

        Raises:
            ScopeError: a negative or missing number.
        """
        if not limit >= 0:
            raise ScopeError(f"a budget must be 0 or more, got {limit}")
        if len(prices) != 2 or not all(0 <= price < math.inf for price in prices):
            raise ScopeError(f"prices are two numbers, per million tokens read and written, got {list(prices)}")
        self.limit, self.prices = limit, prices
        self.spent = 0.0
        self.unconfirmed = 0.0
        """the part of it that no report confirms: answers that never came, charged at their worst case"""
        self.tokens_read = self.tokens_written = 0
        self.served: Counter[str] = Counter()
        """answered requests by the model's name in the answer: an alias may move between two runs"""
        self._open: dict[int, float] = {}
        """what is reserved, by the thread that has it under way"""
        self._changed = threading.Condition()

    def cost(self, read: int, written: int) -> float:
        """The price of so many tokens."""
        return (read * self.prices[0] + written * self.prices[1]) / 1e6

    def reserve(self, amount: float) -> None:
        """Set ``amount`` aside for this thread's next try; one that it left open may have been billed.

        Waits while only requests under way, which may turn out cheaper, stand against it.

        Raises:
            ScopeError: it would exceed the limit, whatever the requests under way cost.
        """
        self.close(None)
        with self._changed:
            while self.spent + math.fsum(self._open.values()) + amount > self.limit:
                if self.spent + amount > self.limit:
                    raise ScopeError(
                        f"the next request could cost {amount:.6g}, and {self.spent:.6g} of the budget of "
                        f"{self.limit:.6g} are spent; answers so far are kept: raise the budget to go on"
                    )
                self._changed.wait()
            self._open[threading.get_ident()] = amount

    def close(self, spent: float | None) -> None:
        """Turn this thread's reservation, if any, into what was ``spent``; None: nobody knows, so all of it."""
        with self._changed:
            amount = self._open.pop(threading.get_ident(), None)
            if amount is not None:
                self.spent += amount if spent is None else spent
                self.unconfirmed += amount if spent is None else 0.0
                self._changed.notify_all()

    def book(self, served: str, tokens: tuple[int, int] | None) -> None:
        """Count an answer, and charge what it says of its tokens, or the worst case if it says nothing."""
        self.close(self.cost(*tokens) if tokens else None)
        with self._changed:
            self.served[served] += 1
            self.tokens_read += tokens[0] if tokens else 0
            self.tokens_written += tokens[1] if tokens else 0
