"""Texts that models read and go on with: the new tokens of many texts, of several models, in one pass.

What has been read is kept as keys and values. Texts of a pass are equally long, so there is neither padding within one
nor a mask; what differs in length is read in another pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from scope_lite.models.records import Transcript
from scope_lite.models.stack import Stack, kind_of

PASS = 250
"""tokens whose computation takes as long as the operations of a pass themselves"""


class Speaker(NamedTuple):
    """A model as it is now, and the base that it was made from."""

    model: PreTrainedModel
    base: PreTrainedModel

    def read(self, ids: Int[Tensor, "b t"], **options: Any) -> Float[Tensor, "b t d"]:
        """Last hidden states."""
        return self.model.model(input_ids=ids, **options).last_hidden_state


class Reading(NamedTuple):
    """What one pass left behind, a row for each of its texts."""

    cache: DynamicCache
    hidden: Float[Tensor, "b d"]
    """after the last token"""
    speakers: list[Speaker]
    """the models that read, in their order"""
    read: Callable[..., Float[Tensor, "b t d"]]
    """last hidden states, with these models"""


@dataclass(slots=True)
class Text:
    """What some rows of a seat have in common."""

    system: str
    transcript: Transcript = field(default_factory=Transcript)
    fed: int = 0
    """how many ids of the transcript have been read"""
    reading: Reading | None = None
    row: int = 0
    """of ``reading``"""

    @property
    def unread(self) -> list[int]:
        return self.transcript.ids[self.fed :]

    def copy(self) -> Text:
        """One that can grow apart from this."""
        return Text(self.system, self.transcript.copy(), self.fed, self.reading, self.row)


Reads = tuple[Speaker, Sequence[Text]]
"""texts, and the model that is to read them"""


def hidden_of(texts: Sequence[Text]) -> Float[Tensor, "n d"]:
    """The hidden state after each text."""
    readings = {id(text.reading): text.reading for text in texts}
    if len(readings) == 1 and (reading := texts[0].reading):
        return reading.hidden[[text.row for text in texts]]
    return torch.stack([text.reading.hidden[text.row] for text in texts if text.reading])


@torch.no_grad()
def read_texts(wanted: Iterable[Reads]) -> None:
    """Let each model read what is new in its texts."""
    passes: dict[tuple[str, int, int], dict[Speaker, list[Text]]] = {}
    for speaker, texts in wanted:
        for text in texts:
            if new := len(text.transcript.ids) - text.fed:
                alike = passes.setdefault((kind_of(speaker.base), text.fed, new), {})
                alike.setdefault(speaker, []).append(text)
    for alike in passes.values():
        for together in _portions(alike):
            _read(together)


def _portions(alike: dict[Speaker, list[Text]]) -> Iterator[dict[Speaker, list[Text]]]:
    """Models to be read in one pass: all have as many rows, so those with few texts do not join those with many."""
    portion: set[Speaker] = set()
    for speaker in sorted(alike, key=lambda one: len(alike[one])):
        rows = len(alike[speaker])
        padding = sum(rows - len(alike[other]) for other in portion)
        if padding * len(alike[speaker][0].unread) > PASS:
            yield {one: texts for one, texts in alike.items() if one in portion}
            portion = set()
        portion.add(speaker)
    yield {one: texts for one, texts in alike.items() if one in portion}


def _read(together: dict[Speaker, list[Text]]) -> None:
    """One pass over texts that have been read equally far and have equally many new tokens."""
    rows = max(map(len, together.values()))
    # a model with fewer texts reads its first one again
    whole = [text for texts in together.values() for text in [*texts, *texts[:1] * (rows - len(texts))]]
    speakers, before = list(together), whole[0].reading
    if before and before.speakers == speakers:
        read = before.read
    else:
        read = Stack([one.model for one in speakers], speakers[0].base).read if speakers[1:] else speakers[0].read
    cache = _kept(whole) or DynamicCache(config=speakers[0].base.config)
    hidden = read(torch.tensor([text.unread for text in whole]), past_key_values=cache, use_cache=True)
    reading = Reading(cache, hidden[:, -1], speakers, read)
    for number, texts in enumerate(together.values()):
        for place, text in enumerate(texts, number * rows):
            text.reading, text.row, text.fed = reading, place, len(text.transcript.ids)


def _kept(texts: Sequence[Text]) -> DynamicCache | None:
    """What was read of these texts, a row each, to be gone on with; None where nothing was."""
    caches, first, rows = [], dict[int, int](), 0
    for reading in {id(text.reading): text.reading for text in texts}.values():
        if reading is None:
            return None
        caches.append(reading.cache)
        first[id(reading)], rows = rows, rows + len(reading.hidden)
    index = torch.tensor([first[id(text.reading)] + text.row for text in texts])
    kept = copy.copy(caches[0])
    kept.layers = [copy.copy(layer) for layer in kept.layers]
    for layer, *parts in zip(kept.layers, *(cache.layers for cache in caches), strict=True):
        layer.keys = torch.cat([part.keys for part in parts])[index]
        layer.values = torch.cat([part.values for part in parts])[index]
    return kept
