"""A spending limit that is kept beforehand: a request reserves its worst case, and is refused if that does not fit.

Checking the bill afterwards would be too late for the request that exceeds the limit, and with many requests under
way for all of them.
"""

from __future__ import annotations

import math
import threading

from scope_lite.store.errors import ScopeError


class Budget:
    """Money for one or more samplers, in the currency of the prices; safe to share between threads."""

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
        """what was charged so far"""
        self.unconfirmed = 0.0
        """the part of it that no report confirms: answers that never came, charged at their worst case"""
        self._open: list[float] = []
        self._changed = threading.Condition()

    def cost(self, read: int, written: int) -> float:
        """The price of so many tokens."""
        return (read * self.prices[0] + written * self.prices[1]) / 1e6

    def reserve(self, amount: float) -> None:
        """Set ``amount`` aside; waits while only requests under way, which may turn out cheaper, stand against it.

        Raises:
            ScopeError: it would exceed the limit, whatever the requests under way cost.
        """
        with self._changed:
            while self.spent + math.fsum(self._open) + amount > self.limit:
                if self.spent + amount > self.limit:
                    raise ScopeError(
                        f"the next request could cost {amount:.6g}, and {self.spent:.6g} of the budget of "
                        f"{self.limit:.6g} are spent; answers so far are kept: raise the budget to go on"
                    )
                self._changed.wait()
            self._open.append(amount)

    def close(self, amount: float, spent: float | None) -> None:
        """Turn a reservation into what was ``spent``; None means that nobody knows, and charges all of it."""
        with self._changed:
            self._open.remove(amount)
            self.spent += amount if spent is None else spent
            self.unconfirmed += amount if spent is None else 0.0
            self._changed.notify_all()
