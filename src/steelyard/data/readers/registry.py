"""The registry of readers, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.data.table import Table


@dataclass(frozen=True)
class Dialect:
    """What a file does not say itself.

    Attributes:
        format: The reader's name, for files whose ending says something else.
        delimiter: What separates cells.
        quote: What encloses cells; empty for none.
        columns: The names of the columns of a file without a header.
    """

    format: str | None = None
    delimiter: str | None = None
    quote: str = '"'
    columns: tuple[str, ...] | None = None


class Reader(Protocol):
    """Reads one file; ``origin`` is what messages call it."""

    def __call__(self, path: Path, origin: str, dialect: Dialect) -> Table:
        """The file's table."""


READERS: dict[str, Reader] = {}


def reader(*endings: str) -> Callable[[Reader], Reader]:
    """Registers a reader for file endings, such as ``".csv"``."""

    def register(function: Reader) -> Reader:
        for ending in endings:
            READERS[ending] = function
        return function

    return register


@contextmanager
def utf8_told(path: Path, origin: str) -> Iterator[None]:
    """Says where a file stops being UTF-8."""
    try:
        yield
    except UnicodeDecodeError:
        line, offset, byte = _first_bad_byte(path)
        raise SteelyardError(
            f"{origin}: not UTF-8 at line {line} (byte {byte:#04x} at offset {offset}); "
            "the file mixes or uses another encoding: save it as UTF-8"
        ) from None


def _first_bad_byte(path: Path) -> tuple[int, int, int]:
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return number, offset + error.start, line[error.start]
            offset += len(line)
    return 0, 0, 0
