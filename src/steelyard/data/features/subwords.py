"""Sub-words by a Hugging Face tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from steelyard.data.features.base import Columns, Featuriser, Pieces
from steelyard.data.features.words import ragged
from steelyard.data.paths import place
from steelyard.data.table import PAIR, texts
from steelyard.errors import SteelyardError
from steelyard.tasks import Inputs

if TYPE_CHECKING:
    from torch import Tensor

    from steelyard.data.cache import Writer
    from steelyard.data.table import View

CHUNK = 4_096


@dataclass(frozen=True)
class Subwords(Featuriser):
    """Sub-word ids, with the tokenizer's special tokens.

    Attributes:
        tokenizer: A name, a folder or ``suite:minilm``.
        max_length: Longer rows are cut.
    """

    tokenizer: str
    max_length: int = 256

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise SteelyardError("sub-words need the extra 'text': pip install 'steelyard[text]'") from None
        place = self.tokenizer
        if place == "suite:minilm":
            from steelyard.data.suites import minilm

            place = str(minilm())
        try:
            return AutoTokenizer.from_pretrained(place, use_fast=True, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise SteelyardError(
                f"the tokenizer {self.tokenizer!r} could not be loaded; name a Hugging Face model that can be "
                "reached, a local folder, or 'suite:minilm'"
            ) from error

    @property
    def padding(self) -> int:
        """The id that fills short rows."""
        return int(self._tokenizer.pad_token_id or 0)

    @property
    def size(self) -> int:
        """The number of ids."""
        return len(self._tokenizer)

    def write(self, view: View, columns: Columns, writer: Writer) -> None:
        """Writes ids and lengths, and for tokens the number of the token that each piece begins."""
        for batch in view.batches(columns.names):
            for start in range(0, batch.num_rows, CHUNK):
                part = batch.slice(start, CHUNK)
                if columns.token:
                    self._write_tokens(part.column(0).to_pylist(), writer)
                else:
                    self._write_texts(texts(part, columns.text).to_pylist(), writer)

    def _write_texts(self, rows: list[str | None], writer: Writer) -> None:
        pairs = [(row or "").split(PAIR, 1) for row in rows]
        first = [pair[0] for pair in pairs]
        second = [pair[1].replace(PAIR, " ") for pair in pairs] if len(pairs[0]) > 1 else None
        encoded = self._encode(first, second)
        writer.add("values", _flat(encoded["input_ids"]))
        writer.add("lengths", _lengths(encoded["input_ids"]))

    def _write_tokens(self, rows: list[list[str] | None], writer: Writer) -> None:
        encoded = self._encode([row or [] for row in rows], None, is_split_into_words=True)
        writer.add("values", _flat(encoded["input_ids"]))
        writer.add("lengths", _lengths(encoded["input_ids"]))
        begins = [_beginnings(encoded.word_ids(i)) for i in range(len(rows))]
        writer.add("word", _flat(begins))

    def _encode(self, first: list[Any], second: list[str] | None, **options: bool) -> Any:
        return self._tokenizer(
            first, second, truncation=True, max_length=self.max_length, return_attention_mask=False, **options
        )

    def read(self, tensors: dict[str, Tensor]) -> Inputs:
        """Ragged ids; `Pieces` for tokens."""
        ids = ragged(tensors)
        return Pieces(ids.values, ids.offsets, tensors["word"]) if "word" in tensors else ids

    def to_json(self) -> dict[str, Any]:
        """Its settings."""
        return {"kind": "subwords", "tokenizer": self.tokenizer, "max_length": self.max_length}

    @classmethod
    def from_json(cls, settings: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(settings["tokenizer"], settings["max_length"])


def resolved(tokenizer: str, base: Path) -> str:
    """The tokenizer as this computer can load it: folders relative to the configuration become absolute."""
    local = place(tokenizer, base)
    return str(local.resolve()) if local.is_dir() else tokenizer


def _flat(rows: list[list[int]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array([piece for row in rows for piece in row], dtype=np.int64)


def _lengths(rows: list[list[int]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array([len(row) for row in rows], dtype=np.int64)


def _beginnings(words: list[int | None]) -> list[int]:
    """The token that each piece begins, or -1."""
    before: list[int | None] = [None, *words[:-1]]
    return [-1 if word is None or word == last else word for word, last in zip(words, before, strict=True)]
