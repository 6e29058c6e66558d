"""Grammar-constrained decoding through xgrammar: at each step, only tokens that the grammar allows keep their score.

This holds a small model to a format that it cannot hold by itself. It guarantees the form of what is finished, not its
sense; and a reply can still be cut by the token limit, so failures are counted here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scope_lite.models.pretrained import LoadedModel
from scope_lite.store.errors import ScopeError

if TYPE_CHECKING:
    from torch import Tensor

XGRAMMAR_INSTALL = "pip install --no-deps xgrammar==0.2.8 apache-tvm-ffi"


def compile_grammar(grammar: str, loaded: LoadedModel, stop_ids: frozenset[int]) -> Any:
    """Compile an EBNF grammar for one model's vocabulary; takes about a second.

    Raises:
        ScopeError: xgrammar is not installed, or the grammar does not parse.
    """
    try:
        import xgrammar
    except ImportError as error:
        raise ScopeError(f"constrained decoding needs xgrammar: run `{XGRAMMAR_INSTALL}`") from error
    width = loaded.model.get_output_embeddings().weight.shape[0]
    info = xgrammar.TokenizerInfo.from_huggingface(loaded.tokenizer, vocab_size=width, stop_token_ids=sorted(stop_ids))
    try:
        return xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar(grammar)
    except RuntimeError as error:
        raise ScopeError(f"the grammar does not parse: {str(error).strip().splitlines()[-1]}") from error


class GrammarConstraint:
    """The state of the grammar in every row of a batch."""

    def __init__(self, compiled: Any, rows: int) -> None:
        import xgrammar

        self._xgrammar, self._vocab_size = xgrammar, compiled.tokenizer_info.vocab_size
        self._matchers = [xgrammar.GrammarMatcher(compiled) for _ in range(rows)]

    def mask(self, scores: Tensor, rows: list[int]) -> None:
        """Set the scores of forbidden tokens to minus infinity, in place; ``rows`` names the matcher of each score."""
        bitmask = self._xgrammar.allocate_token_bitmask(len(rows), self._vocab_size)
        for i, row in enumerate(rows):
            self._matchers[row].fill_next_token_bitmask(bitmask, i)
        self._xgrammar.apply_token_bitmask_inplace(scores, bitmask.to(scores.device))

    def accept(self, row: int, token: int) -> None:
        """Tell the grammar which token row ``row`` drew."""
        if not self._matchers[row].accept_token(token):
            raise RuntimeError(f"token {token} was drawn although the grammar forbids it")
