"""Readers: a file, a folder or a name becomes a `Table`. One reader per format, registered by file ending."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.data.paths import place
from steelyard.data.readers.columnar import read_parquet
from steelyard.data.readers.conll import read_conll, read_conllu
from steelyard.data.readers.delimited import read_csv, read_tsv
from steelyard.data.readers.folder import read_images
from steelyard.data.readers.hub import read_hub, read_local
from steelyard.data.readers.jsonl import read_jsonl
from steelyard.data.readers.registry import READERS, Dialect, Reader, reader
from steelyard.data.table import listed, near
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.data.table import Table

__all__ = ["READERS", "Dialect", "Reader", "read", "reader", "splits_of"]

HUB = "hub:"

for _reader, _endings in (
    (read_csv, (".csv", ".txt")),
    (read_tsv, (".tsv", ".tab")),
    (read_jsonl, (".jsonl", ".ndjson", ".json")),
    (read_parquet, (".parquet", ".pq", ".arrow", ".feather")),
    (read_conll, (".conll", ".iob", ".bio", ".iob2")),
    (read_conllu, (".conllu",)),
):
    reader(*_endings)(_reader)


def read(reference: str, base: Path, dialect: Dialect | None = None, split: str = "train") -> Table:
    """Reads a file, a folder of images, a saved Hugging Face data set, or ``hub:NAME``.

    Args:
        reference: What the user wrote.
        base: The folder that relative paths start from.
        dialect: Format, delimiter, quote and column names, where the file does not say them itself.
        split: Which split of a Hugging Face data set.

    Raises:
        SteelyardError: If it does not exist, cannot be read, or holds no rows.
    """
    dialect = dialect or Dialect()
    if reference.startswith(HUB):
        table = read_hub(reference.removeprefix(HUB), reference, split)
    else:
        table = _read_path(reference, place(reference, base), dialect, split)
    if not len(table):
        raise SteelyardError(f"{reference}: there are no rows below the header; is it the right file?")
    return table


def splits_of(reference: str, base: Path) -> tuple[str, ...]:
    """The splits that a Hugging Face data set brings along; none for files."""
    if reference.startswith(HUB):
        return read_hub.splits(reference.removeprefix(HUB))
    path = place(reference, base)
    return read_local.splits(path) if path.is_dir() else ()


def _read_path(reference: str, path: Path, dialect: Dialect, split: str) -> Table:
    if not path.exists():
        raise SteelyardError(f"{reference}: there is no such file{_neighbour(path)}")
    if path.is_dir():
        local = read_local.splits(path)
        return read_local(path, reference, split) if local else read_images(path, reference)
    ending = f".{dialect.format.lstrip('.')}" if dialect.format else path.suffix.lower()
    if ending not in READERS:
        raise SteelyardError(
            f"{reference}: no reader for {ending or 'a file without an ending'!r}; "
            f"say format = one of {', '.join(sorted(name[1:] for name in READERS))}"
        )
    if path.stat().st_size == 0:
        raise SteelyardError(f"{reference}: the file is empty; is it the right one?")
    return READERS[ending](path, reference, dialect)


def _neighbour(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (nor the folder {path.parent.name!r}); paths start at the folder of the configuration"
    names = sorted(p.name for p in path.parent.iterdir() if not p.name.startswith("."))
    hint = near(path.name, names)
    return hint or (f"; that folder holds {listed(names, 8)}" if names else "; that folder is empty")
