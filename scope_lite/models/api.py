"""Sampled replies from any OpenAI-compatible endpoint: the counterpart of ``generate.TextSampler``.

Every answer is recorded on disk, by content, the moment it arrives: a second run asks for nothing, needs no key, and
gives the same replies. That record is what makes a result repeatable. Endpoints do not keep a seed's promise across
batches, so none is sent. What the endpoint says of itself is believed only as far as it can be true (``completion``);
how an answer comes in, ``client`` says.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scope_lite.models.completion import LENGTH_FIELDS, TOO_LONG, most_tokens, read_completion, spare_field
from scope_lite.models.endpoint import Budget, Endpoint, parse_endpoint
from scope_lite.models.generate import TextSampler
from scope_lite.models.pretrained import load_model
from scope_lite.models.replies import OUTGROWN, Message, Reply, ReplyCache, Sampler, SamplingConfig
from scope_lite.store.errors import ScopeError

if TYPE_CHECKING:
    import openai

FORMAT = "api 1"
"""Part of every record's name; raise it when what is asked for changes."""


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
        if min(concurrency, replies_per_request, retries + 1) < 1 or not timeout > 0:
            raise ScopeError("concurrency, replies_per_request and timeout must be positive, and retries not negative")
        super().__init__(endpoint.model, cache)
        self.endpoint, self.budget = endpoint, budget or Budget()
        self.concurrency, self.timeout, self.retries = concurrency, timeout, retries
        self.replies_per_request = replies_per_request
        self._left_out: dict[str, Any] = {}
        """fields that the endpoint refused, with their values"""

    def spending(self) -> str:
        """One line on what was asked for, read, written and paid."""
        b = self.budget
        served = ", ".join(sorted(b.served)) or "nobody: all replies were recorded"
        left_out = f"; refused and left out: {', '.join(sorted(self._left_out))}" if self._left_out else ""
        unsure = f", of it {b.unconfirmed:.4g} for requests without a report" if b.unconfirmed else ""
        return (
            f"{b.served.total()} requests, {b.tokens_read} tokens read, {b.tokens_written} written, cost {b.spent:.4g}"
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
        """As answers arrive, one request of each history at a time; after a failure nothing new is sent, and what is
        under way still counts."""
        if not todo:
            return
        self._client  # noqa: B018  a missing key is told once, before any thread starts
        waiting, under_way, failure = list(todo), dict[Future[list[Reply]], str](), None
        with ThreadPoolExecutor(self.concurrency) as pool:
            while under_way or (waiting and not failure):
                while waiting and not failure and len(under_way) < self.concurrency:
                    key = waiting.pop(0)
                    asked = pool.submit(self._request, todo[key], replies - len(known[key]), config)
                    under_way[asked] = key
                for part in wait(under_way, return_when=FIRST_COMPLETED).done:
                    key = under_way.pop(part)
                    try:
                        drawn = part.result()
                    except ScopeError as error:
                        failure = failure or error
                        continue
                    known[key] = known[key] + drawn
                    if len(known[key]) < replies:
                        waiting.insert(0, key)
                    if drawn:
                        yield {key: known[key]}
        if failure:
            raise failure

    @cached_property
    def _client(self) -> openai.OpenAI:
        from scope_lite.models.client import connect

        return connect(self.endpoint, self.timeout, self.retries, self.budget)

    def _request(self, messages: list[Message], wanted: int, config: SamplingConfig) -> list[Reply]:
        """At most ``wanted`` replies by one request; none if it was refused for something that we can leave out.

        Raises:
            ScopeError: the endpoint failed, gave no chat completion, or the budget has no room for another try.
        """
        import openai

        from scope_lite.models.client import WORST_CASE, complaint

        wanted = min(wanted, 1 if "n" in self._left_out else self.replies_per_request)
        fields, allowed = self._fields(wanted, config), wanted * config.max_new_tokens
        # half a character, as JSON may hold one, can't be sent
        whole = [{name: said.encode(errors="replace").decode() for name, said in m.items()} for m in messages]
        WORST_CASE.set(self.budget.cost(most_tokens(whole), allowed))
        try:
            # The SDK's typed answer would make a number of "5" or true, and we look at every part ourselves.
            request = {"model": self.endpoint.model, "messages": whole, **fields}
            answer = self._client.post("/chat/completions", cast_to=object, body=request)
            replies, served, tokens = read_completion(answer, wanted, config.temperature == 1)
            self.budget.book(served, tokens)
            if tokens and tokens[1] > allowed and self.budget.limit < math.inf:
                told = f"wrote {tokens[1]} tokens where {allowed} were allowed, so no budget can be kept"
                raise ScopeError(f"{self.endpoint.base_url} {told}")
            if len(replies) < wanted:
                self._left_out["n"] = wanted
            return replies
        except openai.OpenAIError as error:
            status, said = getattr(error, "status_code", 0), f"{error} {getattr(error, 'body', '')}"
            if status in (400, 413, 422, 500) and TOO_LONG.search(said):
                return [OUTGROWN] * wanted
            spare = spare_field(said, fields, self._left_out) if status in (400, 422) else None
            if spare is None:  # without the SDK's error, which holds the request, and that the key
                raise complaint(error, self.endpoint, self.timeout) from None
            self._left_out[spare] = fields[spare]
            return []
        except (ValueError, RecursionError):
            raise ScopeError(f"{self.endpoint.base_url} answered with something that is no chat completion") from None
        finally:
            self.budget.close(None)

    def _fields(self, wanted: int, config: SamplingConfig) -> dict[str, Any]:
        """What is asked for beside model and messages, without what was refused before."""
        length = self.endpoint.length_field
        fields: dict[str, Any] = {LENGTH_FIELDS[length] if length in self._left_out else length: config.max_new_tokens}
        fields |= {"temperature": config.temperature, "top_p": 1.0} | self.endpoint.fixed_fields
        if wanted > 1:
            fields["n"] = wanted
        if config.temperature == 1 and "logprobs" not in self._left_out:
            fields |= {"logprobs": True, "top_logprobs": 1}
        return {name: value for name, value in fields.items() if (name, value) not in self._left_out.items()}


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
        prices: of an endpoint, for a million tokens read and written; may be left out for a server on this machine.
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
