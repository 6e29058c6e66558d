"""What an endpoint costs: a budget is never exceeded, and what was really spent is charged."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_lite.models.completion import most_tokens
from scope_lite.models.endpoint import Budget
from scope_lite.store.errors import ScopeError
from tests.standins.endpoint_server import CHATS, CONFIG, USAGE, Server, ok, refusal, sampler
from tests.standins.tiny_models import byte_tokenizer


def worst(chat: list[dict[str, str]], budget: Budget) -> float:
    return budget.cost(most_tokens(chat), CONFIG.max_new_tokens)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_request_that_could_exceed_the_budget_is_never_sent(server: Server, tmp_path: Path, concurrency: int) -> None:
    chats = [[{"role": "user", "content": f"line {i}"}] for i in range(6)]
    prices = (2.0, 8.0)
    limit = 2.5 * worst(chats[0], Budget(prices=prices))
    server.answer = lambda body, number: ok(body, usage=None)  # tells no usage: the worst case counts
    budget = Budget(limit, prices)
    with pytest.raises(ScopeError, match="budget") as caught:
        sampler(server, tmp_path, budget=budget, concurrency=concurrency).sample(chats, 1, CONFIG)
    assert "\n" not in str(caught.value)
    assert len(server.bodies) == 2 and budget.spent <= limit
    assert len([path for path in tmp_path.rglob("*.json")]) == 2, "what was paid for is kept"


@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_answers_really_cost_is_charged_so_cheap_ones_leave_room(server: Server, concurrency: int) -> None:
    chats = [[{"role": "user", "content": f"line {i}"}] for i in range(6)]
    budget = Budget(2.5 * worst(chats[0], Budget(prices=(2.0, 8.0))), (2.0, 8.0))
    one = sampler(server, budget=budget, concurrency=concurrency)
    one.sample(chats, 1, CONFIG)
    assert budget.spent == pytest.approx(6 * (20 * 2.0 + 5 * 8.0) / 1e6) and budget.unconfirmed == 0
    assert (budget.served.total(), budget.tokens_read, budget.tokens_written) == (6, 120, 30)
    assert "6 requests, 120 tokens read, 30 written" in one.spending() and "served-2026" in one.spending()


def test_tries_without_an_answer_count_and_refused_ones_do_not(server: Server, waits: list[float]) -> None:
    answers = {0: refusal(429), 1: refusal(500), 2: refusal(504)}
    server.answer = lambda body, number: answers.get(number) or ok(body)
    budget = Budget(prices=(1.0, 1.0))
    sampler(server, budget=budget).sample(CHATS[:1], 1, CONFIG)
    assert budget.unconfirmed == pytest.approx(worst(CHATS[0], budget))  # the 504
    assert budget.spent == pytest.approx(budget.unconfirmed + 25e-6)


def test_an_endpoint_that_ignores_the_length_limit_stops_a_run_with_a_budget(server: Server) -> None:
    server.answer = lambda body, number: ok(body, usage=USAGE | {"completion_tokens": 11})
    with pytest.raises(ScopeError, match="11 tokens where 10 were allowed"):
        sampler(server, budget=Budget(1, (1, 1))).sample(CHATS[:1], 1, CONFIG)
    assert sampler(server).sample(CHATS[:1], 1, CONFIG)


def test_no_chat_has_more_tokens_than_reserved() -> None:
    tokenizer = byte_tokenizer()  # one token a byte, the most that byte-level vocabularies ever need

    @settings(max_examples=50)
    @given(st.lists(st.text(max_size=40), min_size=1, max_size=5))
    def check(lines: list[str]) -> None:
        chat = [{"role": "user", "content": line.replace("\r", "")} for line in lines]
        ids = tokenizer.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
        assert len(ids) <= most_tokens(chat)

    check()


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1) | st.none()), max_size=30), st.floats(0, 10))
def test_a_budget_is_never_exceeded(requests: list[tuple[float, float | None]], limit: float) -> None:
    """One at a time, against plain sums: admitted exactly while the worst case fits."""
    budget, spent = Budget(limit), 0.0
    for worst_case, share in requests:
        if spent + worst_case > limit:
            with pytest.raises(ScopeError):
                budget.reserve(worst_case)
            continue
        budget.reserve(worst_case)
        budget.close(None if share is None else share * worst_case)
        spent += worst_case if share is None else share * worst_case
    assert budget.spent == pytest.approx(spent) and spent <= limit * (1 + 1e-12)


def test_a_request_waits_for_those_under_way_before_it_is_refused() -> None:
    budget = Budget(1.0)
    budget.reserve(0.8)
    admitted = threading.Event()
    waiting = threading.Thread(target=lambda: (budget.reserve(0.8), admitted.set()))
    waiting.start()
    assert not admitted.wait(0.05)
    budget.close(0.1)
    assert admitted.wait(20)
    waiting.join()
    with pytest.raises(ScopeError, match=r"0\.1 of the budget of 1 are spent"):
        budget.reserve(0.95)


@pytest.mark.parametrize(
    ("limit", "prices"), [(-1, (1, 1)), (math.nan, (1, 1)), (1, (1,)), (1, (-1, 1)), (1, (math.inf, 1))]
)
def test_a_budget_without_meaning_is_refused(limit: float, prices: tuple[float, ...]) -> None:
    with pytest.raises(ScopeError):
        Budget(limit, prices)  # type: ignore[arg-type]
