"""How a tokenizer's chat template cuts a dialogue into appendable pieces of token ids.

A transcript only grows, so the template must extend by prefix: rendering one more
message may not change what was rendered before. That is probed once, at load. A
template that fails (a thinking model that drops earlier thoughts, say) would train on
tokens that were never sampled, and is refused (pitfalls P6 to P9).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from scope_lite.errors import ScopeError

PROBE = ("zebra", "quartz", "lemon")


class ChatFormat:
    """Pieces of a dialogue as one seat sees it: itself as ``assistant``, the partner as ``user``."""

    def __init__(self, tokenizer: Any):
        """Raises ScopeError if the template does not extend by prefix."""
        self.tokenizer = tokenizer
        system, first, second = PROBE
        opening = self._render([("system", system), ("user", first)])
        longer = self._render([("system", system), ("user", first), ("assistant", second), ("user", first)])
        if not longer.startswith(opening + second):
            raise ScopeError(
                "this model's chat template rewrites earlier turns, so a dialogue cannot grow token by token; "
                "use a non-thinking variant of the model (an -Instruct one) or a template that keeps every turn"
            )
        self._between = longer[len(opening) + len(second) :].split(first)
        if len(self._between) != 2:
            raise ScopeError("this model's chat template changes the words of a message; use another template")
        self.opening = lru_cache(maxsize=4096)(self._opening)
        self.continuation = lru_cache(maxsize=4096)(self._continuation)

    def _render(self, messages: list[tuple[str, str]]) -> str:
        turns = [{"role": role, "content": content} for role, content in messages]
        return self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _opening(self, system: str, heard: str | None = None) -> list[int]:
        """Ids from the first token to where this seat begins to speak."""
        messages = [("system", system)] + ([("user", heard)] if heard is not None else [])
        return self._encode(self._render(messages))

    def _continuation(self, heard: str) -> list[int]:
        """Ids that follow this seat's last sampled token: close its turn, the partner's words, open the next."""
        return self._encode(self._between[0] + heard + self._between[1])
