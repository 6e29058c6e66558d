"""Sampled replies from any OpenAI-compatible endpoint: the counterpart of ``generate.TextSampler``.

Every answer is recorded on disk, by content, the moment it arrives: a second run asks for nothing, needs no key, and
gives the same replies. That record is what makes a result repeatable. Endpoints do not keep a seed's promise across
batches, so none is sent. The SDK repeats what failed on the way (429, 5xx, timeouts, lost connections) with growing
waits, and heeds Retry-After. What the endpoint says of itself is believed only as far as it can be true
(``completion``); what comes in at all, ``transport`` says.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scope_lite.models.budget import Budget
from scope_lite.models.completion import (
    LENGTH_FIELDS,
    TOO_LONG,
    can_spare,
    most_tokens,
    one_line,
    read_completion,
    spare_field,
)
from scope_lite.models.endpoint import Endpoint, parse_endpoint
from scope_lite.models.generate import TextSampler
from scope_lite.models.pretrained import load_model
from scope_lite.models.replies import OUTGROWN, Message, Reply, ReplyCache, Sampler, SamplingConfig
from scope_lite.store.errors import ScopeError

if TYPE_CHECKING:
    import openai

FORMAT = "api 1"
"""Part of every record's name; raise it when what is asked for changes."""
MAYBE_BILLED = (408, 502, 504, 524)
"""A gateway gave up waiting; the model behind it may have answered all the same. Other errors cost nothing."""


@dataclass
class Account:
    """What an endpoint was asked for and gave; replies read from the record count nothing."""

    requests: int = 0
    """answered ones"""
    tokens_read: int = 0
    tokens_written: int = 0
    served: Counter[str] = field(default_factory=Counter)
    """requests by the model's name in the answer: an alias may move between two runs"""


class _Try(threading.local):
    """The try that this thread has under way: its worst cost, its number, and whether that cost is still reserved."""

    worst = 0.0
    count = 0
    open = False


class ApiSampler(Sampler):
    """Samples replies from one endpoint.

    An endpoint tells no token ids and no entropies (NaN), and log-probabilities and largest probabilities only at
    temperature 1, if at all: at others endpoints disagree on whether they report before or after it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        cache: ReplyCache | None = None,
        budget: Budget | None = None,
        concurrency: int = 8,
        timeout: float = 60.0,
        retries: int = 4,
        replies_per_request: int = 16,
    ) -> None:
        """``concurrency`` is the most requests under way, ``timeout`` the seconds after which a try without a whole
        answer counts as failed. What an endpoint refuses and replies can do without is left out from then on; one that
        refuses or ignores several replies per request is asked for one at a time.

        Raises:
            ScopeError: a number out of range.
        """
        if concurrency < 1 or replies_per_request < 1 or retries < 0 or not timeout > 0:
            raise ScopeError(
                "concurrency, replies_per_request and timeout must be positive, and retries not negative, got "
                f"{concurrency}, {replies_per_request}, {timeout} and {retries}"
            )
        super().__init__(endpoint.model, cache)
        self.endpoint, self.budget = endpoint, budget or Budget()
        self.concurrency, self.timeout, self.retries = concurrency, timeout, retries
        self.replies_per_request = replies_per_request
        self.account = Account()
        self._left_out: set[str] = set()
        """fields that the endpoint refused"""
        self._try, self._books = _Try(), threading.Lock()

    def spending(self) -> str:
        """One line on what was asked for, read, written and paid."""
        a, b = self.account, self.budget
        served = ", ".join(sorted(a.served)) or "nobody: all replies were recorded"
        left_out = f"; refused and left out: {', '.join(sorted(self._left_out))}" if self._left_out else ""
        unsure = f", of it {b.unconfirmed:.4g} for requests without a report" if b.unconfirmed else ""
        return (
            f"{a.requests} requests, {a.tokens_read} tokens read, {a.tokens_written} written, cost {b.spent:.4g}"
            f"{unsure}; answered by {served[:200]}{left_out}"
        )

    def _check(self, config: SamplingConfig) -> None:
        if config.grammar is not None:
            raise ScopeError("an endpoint can't be held to a grammar: leave text.grammar out, or set it to false")

    def _prompt(self, history: Sequence[Message]) -> list[Message]:
        return list(history)

    def _key(self, prompt: list[Message], config: SamplingConfig) -> str:
        e = self.endpoint
        content = [FORMAT, e.base_url.rstrip("/"), e.model, e.fixed_fields, prompt, asdict(config)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _draw(
        self, todo: dict[str, list[Message]], known: dict[str, list[Reply]], replies: int, config: SamplingConfig
    ) -> Iterator[dict[str, list[Reply]]]:
        """As answers arrive; after a failure nothing new is sent, and what is under way still counts."""
        if not todo:
            return
        self._client  # noqa: B018  a missing key is told once, before any thread starts
        failure: ScopeError | None = None
        most = self.replies_per_request
        with ThreadPoolExecutor(self.concurrency) as pool:
            parts = {
                key: [
                    pool.submit(self._ask, messages, min(most, replies - start), config)
                    for start in range(len(known[key]), replies, most)
                ]
                for key, messages in todo.items()
            }
            key_of = {part: key for key, asked in parts.items() for part in asked}

            def stop() -> None:
                for part in key_of:
                    part.cancel()

            try:
                for part in as_completed(key_of):
                    drawn, error = ([], None) if part.cancelled() else part.result()
                    if drawn:
                        # in the order in which they were asked for, whatever order they come in
                        here = [p for p in parts[key_of[part]] if p.done() and not p.cancelled()]
                        yield {key_of[part]: known[key_of[part]] + [reply for p in here for reply in p.result()[0]]}
                    if error:
                        failure = failure or error
                        stop()
            finally:
                stop()
        if failure:
            raise failure

    @cached_property
    def _client(self) -> openai.OpenAI:
        return self.endpoint.client(
            self.timeout, self.retries, {"request": [self._before_try], "response": [self._after_try]}
        )

    def _before_try(self, request: Any) -> None:
        """Called before each try, the SDK's repeats too: a try that got no answer may have been billed."""
        self._end_try(None)
        self.budget.reserve(self._try.worst)
        self._try.open = True
        self._try.count += 1

    def _after_try(self, response: Any) -> None:
        if not response.is_success:
            self._end_try(None if response.status_code in MAYBE_BILLED else 0.0)

    def _end_try(self, spent: float | None) -> None:
        if self._try.open:
            self._try.open = False
            self.budget.close(self._try.worst, spent)

    def _ask(
        self, messages: list[Message], replies: int, config: SamplingConfig
    ) -> tuple[list[Reply], ScopeError | None]:
        """So many replies, or as many as came before the error."""
        drawn: list[Reply] = []
        try:
            while len(drawn) < replies:
                most = 1 if "n" in self._left_out else self.replies_per_request
                drawn += self._request(messages, min(most, replies - len(drawn)), config)
        except ScopeError as error:
            return drawn, error
        return drawn, None

    def _request(self, messages: list[Message], wanted: int, config: SamplingConfig) -> list[Reply]:
        """At most ``wanted`` replies by one request; none if it was refused for something that we can leave out."""
        import openai

        fields = self._fields(wanted, config)
        # half a character, as JSON may hold one, can't be sent
        whole = [{name: said.encode(errors="replace").decode() for name, said in m.items()} for m in messages]
        self._try.worst, self._try.count = self.budget.cost(most_tokens(messages), wanted * config.max_new_tokens), 0
        try:
            # The SDK's typed answer would make a number of "5" or true, and we look at every part ourselves.
            request = {"model": self.endpoint.model, "messages": whole, **fields}
            answer = self._client.post("/chat/completions", cast_to=object, body=request)
            replies, served, tokens = read_completion(answer, wanted, config.temperature == 1)
            self._book(served, tokens, wanted * config.max_new_tokens)
            if len(replies) < wanted:
                self._left_out.add("n")
            return replies
        except openai.APIStatusError as error:
            # A refusal costs nothing.
            said = f"{error.message} {error.body}"
            if error.status_code in (400, 413, 422, 500) and TOO_LONG.search(said):
                return [OUTGROWN] * wanted
            spare = spare_field(said, fields, self._left_out) if error.status_code in (400, 422) else None
            if spare is None:
                raise self._complaint(error) from None  # the SDK's error holds the request, and that the key
            self._left_out.add(spare)
            return []
        except openai.OpenAIError as error:
            raise self._complaint(error) from None
        except (ValueError, RecursionError):
            raise ScopeError(f"{self.endpoint.base_url} answered with something that is no chat completion") from None
        finally:
            self._end_try(None)

    def _fields(self, wanted: int, config: SamplingConfig) -> dict[str, Any]:
        """What is asked for beside model and messages, without what was refused before."""
        length = self.endpoint.length_limit(config.max_new_tokens)
        fields = {LENGTH_FIELDS[name] if name in self._left_out else name: most for name, most in length.items()}
        fields |= {"temperature": config.temperature, "top_p": 1.0} | self.endpoint.fixed_fields
        if wanted > 1:
            fields["n"] = wanted
        if config.temperature == 1 and "logprobs" not in self._left_out:
            fields |= {"logprobs": True, "top_logprobs": 1}
        return {
            name: value for name, value in fields.items() if name not in self._left_out or not can_spare(name, value)
        }

    def _book(self, served: str, tokens: tuple[int, int] | None, allowed: int) -> None:
        """Count and charge an answer."""
        read, written = tokens or (0, 0)
        if tokens:  # else the worst case is charged
            self._end_try(self.budget.cost(read, written))
        if written > allowed and self.budget.limit < math.inf:
            raise ScopeError(
                f"{self.endpoint.base_url} wrote {written} tokens where {allowed} were allowed, so no budget can be "
                "kept: set length_field"
            )
        with self._books:
            self.account.requests += 1
            self.account.tokens_read += read
            self.account.tokens_written += written
            self.account.served[served] += 1

    def _complaint(self, error: openai.OpenAIError) -> ScopeError:
        """The SDK's error in one line."""
        import openai

        where, tries = self.endpoint.base_url, f", {self._try.count} times" if self._try.count > 1 else ""
        if isinstance(error, openai.APITimeoutError):
            return ScopeError(f"{where} gave no answer within {self.timeout:g} s{tries}: raise timeout")
        if isinstance(error, openai.APIConnectionError):
            reason = one_line(error.__cause__ or error)
            return ScopeError(f"no connection to {where} ({reason}): check the address, and that it is running")
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            # Its message is left out: endpoints like to quote a part of the key.
            return ScopeError(f"{where} refused the key in {self.endpoint.key_variable} (HTTP {error.status_code})")
        if isinstance(error, openai.APIStatusError):
            told = error.body.get("message") if isinstance(error.body, dict) else None
            return ScopeError(f"{where} answered HTTP {error.status_code}{tries}: {one_line(told or error.body)}")
        return ScopeError(f"{where}: {one_line(error)}")


def open_sampler(
    model: str,
    device: str = "auto",
    cache: ReplyCache | None = None,
    prices: Sequence[float] = (),
    budget: float = math.inf,
    number_format: str = "auto",
) -> TextSampler | ApiSampler:
    """The sampler of a local model (:func:`load_model`) or of an endpoint (:func:`parse_endpoint`), by its name.

    Args:
        model: ``"smollm2"``, a folder, or ``"openai:NAME@URL"``.
        device: for a local model.
        cache: where replies are recorded.
        prices: of an endpoint, for a million tokens read and written; may be left out for a server on this machine.
        budget: the most to spend on an endpoint.
        number_format: of a local model (``pretrained.pick_format``).

    Raises:
        ScopeError: no such model, or an endpoint elsewhere without prices, whose budget could not be kept.
    """
    endpoint = parse_endpoint(model)
    if endpoint is None:
        return TextSampler(load_model(model, device, number_format), cache)
    if not prices and not endpoint.is_local:
        raise ScopeError(f"give the prices of {endpoint.model} for a million tokens read and written ([0, 0] if free)")
    read, written = prices or (0.0, 0.0)
    return ApiSampler(endpoint, cache, Budget(budget, (read, written)))
