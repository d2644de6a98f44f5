"""Words: lower-cased, split from punctuation, numbered by a vocabulary from train."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from steelyard.data import cache
from steelyard.data.features.base import WORTH_KEEPING, Columns, Featuriser
from steelyard.data.table import texts
from steelyard.tasks import Inputs, Ragged

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from steelyard.data.cache import Writer
    from steelyard.data.schema import FeatureOptions
    from steelyard.data.table import View

PADDING, UNKNOWN = 0, 1
RESERVED = ("<pad>", "<unk>")

APART = r"([^\pL\pN\pM_'\s])"
"""Every sign that is no letter, digit or apostrophe is a word of its own."""


@dataclass(frozen=True)
class Words(Featuriser):
    """Word ids.

    Attributes:
        vocabulary: The words; the first two are padding and "unknown".
        lower: Whether text is lower-cased.
        max_length: Texts are cut to so many words; tokens of tagging tasks never are.
    """

    vocabulary: tuple[str, ...] = field(repr=False)
    lower: bool = True
    max_length: int = 256

    @classmethod
    def fit(
        cls,
        views: Iterable[tuple[View, Columns]],
        options: FeatureOptions,
        known: frozenset[str] = frozenset(),
        folder: Path | None = None,
    ) -> Words:
        """The vocabulary of the training rows of all tasks, the most frequent words first.

        Args:
            views: Training rows with their text columns. Rows that several tasks share are counted once.
            options: Case, counts and limits.
            known: Words with a pretrained vector: they enter whatever their count.
            folder: Where the vocabulary of large data is kept; by default the user's cache.
        """
        blank = cls(RESERVED, options.lower, options.max_length)
        distinct = {(view.digest, columns): view for view, columns in views}
        if sum(map(len, distinct.values())) < WORTH_KEEPING:
            return replace(blank, vocabulary=(*RESERVED, *blank.counted(distinct, options, known)))
        keys = [(digest, asdict(columns)) for digest, columns in distinct]
        key = cache.digest("vocabulary", keys, options.model_dump(), sorted(known))

        def make(draft: Path) -> None:
            words = blank.counted(distinct, options, known)
            (draft / "words.json").write_text(json.dumps(words), encoding="utf-8")

        place = cache.made_once((folder or cache.directory()) / "features" / key, make)
        words = json.loads((place / "words.json").read_text(encoding="utf-8"))
        return replace(blank, vocabulary=(*RESERVED, *words))

    def counted(
        self, views: Mapping[tuple[str, Columns], View], options: FeatureOptions, known: frozenset[str]
    ) -> list[str]:
        """The words that occur often enough or have a vector, the most frequent first."""
        counts: Counter[str] = Counter()
        for (_, columns), view in views.items():
            for flat, _ in self.split(view, columns):
                for pair in flat.value_counts().to_pylist():
                    counts[pair["values"]] += pair["counts"]
        often = [(w, n) for w, n in counts.items() if n >= options.min_count or w in known]
        often.sort(key=lambda pair: (-pair[1], pair[0]))
        return [w for w, _ in often[: options.max_words]]

    def split(self, view: View, columns: Columns) -> Iterator[tuple[Any, NDArray[np.int64]]]:
        """Batches of words, end to end, with the number of words of each row."""
        import pyarrow.compute as pc

        for batch in view.batches(columns.names):
            lists = self._tokens(batch.column(0)) if columns.token else self._words(texts(batch, columns.text))
            lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
            flat = lists.flatten()
            if not columns.token and lengths.max(initial=0) > self.max_length:
                place = np.arange(len(flat)) - np.repeat(lengths.cumsum() - lengths, lengths)
                flat = flat.filter(place < self.max_length)
                lengths = lengths.clip(max=self.max_length)
            yield flat, lengths.astype(np.int64)

    def _words(self, text: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        text = pc.utf8_lower(text) if self.lower else text
        text = pc.utf8_trim_whitespace(pc.replace_substring_regex(text, APART, r" \1 "))
        text = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
        return pc.utf8_split_whitespace(text)

    def _tokens(self, column: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        lists = lists.cast(pa.list_(pa.string()))
        if not self.lower:
            return lists
        flat = pc.utf8_lower(lists.flatten())
        offsets = np.concatenate(
            [[0], pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).cumsum()]
        )
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)

    @cached_property
    def _known(self) -> Any:
        import pyarrow as pa

        return pa.array(self.vocabulary[len(RESERVED) :], pa.string())

    def write(self, view: View, columns: Columns, writer: Writer) -> None:
        """Writes word ids and lengths."""
        import pyarrow.compute as pc

        for flat, lengths in self.split(view, columns):
            ids = pc.fill_null(pc.index_in(flat, value_set=self._known), UNKNOWN - len(RESERVED))
            writer.add("values", ids.to_numpy(zero_copy_only=False).astype(np.int64) + len(RESERVED))
            writer.add("lengths", lengths)

    def read(self, tensors: dict[str, Tensor]) -> Inputs:
        """Ragged ids."""
        return ragged(tensors)

    def to_json(self) -> dict[str, Any]:
        """Its settings."""
        return {
            "kind": "words",
            "lower": self.lower,
            "max_length": self.max_length,
            "vocabulary": list(self.vocabulary),
        }

    @classmethod
    def from_json(cls, settings: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(tuple(settings["vocabulary"]), settings["lower"], settings["max_length"])


def ragged(tensors: dict[str, Tensor]) -> Ragged:
    """Ragged ids from values and lengths."""
    offsets = torch.zeros(len(tensors["lengths"]) + 1, dtype=torch.long)
    torch.cumsum(tensors["lengths"], 0, out=offsets[1:])
    return Ragged(tensors["values"], offsets)
