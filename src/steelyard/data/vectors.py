"""Pretrained word vectors from a GloVe text file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from steelyard.data.table import near
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


def words_of(vectors: str | None, base: Path) -> frozenset[str]:
    """The words that a file of vectors knows."""
    if vectors is None:
        return frozenset()
    return frozenset(word for word, _ in _lines(vectors, base))


def load_vectors(vectors: str, words: Sequence[str], base: Path | str = Path(), seed: int = 0) -> Tensor:
    """The vectors of a vocabulary.

    Args:
        vectors: A GloVe text file: a word and its numbers per line.
        words: The vocabulary, for example `Recipe.vocabulary`.
        base: The folder that a relative path starts from.
        seed: Of the small random vectors of unknown words; padding is zero.

    Returns:
        ``float32[len(words), width]``.
    """
    wanted = {word: row for row, word in enumerate(words)}
    found: dict[int, list[float]] = {}
    for word, numbers in _lines(vectors, Path(base)):
        if word in wanted:
            found[wanted[word]] = [float(n) for n in numbers.split(" ")]
    if not found:
        raise SteelyardError(f"{vectors}: none of the {len(words)} words of train has a vector; is it the right file?")
    width = len(next(iter(found.values())))
    table = torch.randn((len(words), width), generator=torch.Generator().manual_seed(seed)) * 0.1
    table[0] = 0
    for row, values in found.items():
        if len(values) != width:
            raise SteelyardError(f"{vectors}: {words[row]!r} has {len(values)} numbers, others have {width}")
        table[row] = torch.tensor(values)
    return table


def _lines(vectors: str, base: Path) -> Iterator[tuple[str, str]]:
    path = base / Path(vectors).expanduser()
    if not path.is_file():
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise SteelyardError(f"{vectors}: there is no such file of vectors{near(path.name, siblings)}")
    with path.open(encoding="utf-8") as file:
        for line in file:
            word, _, numbers = line.rstrip("\n").partition(" ")
            yield word, numbers
