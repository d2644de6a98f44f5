"""CoNLL columns and CoNLL-U: a token per line, an empty line between sentences, a layer per column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from steelyard.data import cache
from steelyard.data.readers.registry import Dialect, utf8_told
from steelyard.data.table import Table
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")


def read_conll(path: Path, origin: str, dialect: Dialect) -> Table:
    """Columns by number (``0``, ``1``, …) or by the names that ``columns`` gives them."""
    sentences, lines = _sentences(path, origin, universal=False, delimiter=dialect.delimiter)
    width = len(sentences[0][0]) if sentences else 0
    names = dialect.columns or tuple(map(str, range(width)))
    if sentences and len(names) != width:
        raise SteelyardError(
            f"{origin}, line {lines[0]}: {width} columns, but columns = [...] names {len(names)}; name each of them"
        )
    return _table(path, origin, names, sentences, lines)


def read_conllu(path: Path, origin: str, dialect: Dialect) -> Table:
    """The ten columns of Universal Dependencies; multi-word ranges and empty nodes are left out."""
    sentences, lines = _sentences(path, origin, universal=True, delimiter="\t")
    return _table(path, origin, dialect.columns or CONLLU, sentences, lines)


def _table(
    path: Path, origin: str, names: tuple[str, ...], sentences: list[list[list[str]]], lines: list[int]
) -> Table:
    import pyarrow as pa

    kind = pa.list_(pa.string())
    columns = [pa.array([[token[c] for token in s] for s in sentences], kind) for c in range(len(names))]
    digest = cache.digest("conll", cache.file_digest(path), names)
    table = pa.Table.from_arrays(columns, names=list(names))
    return Table(table, origin, digest, np.array(lines, dtype=np.int64))


def _sentences(
    path: Path, origin: str, *, universal: bool, delimiter: str | None
) -> tuple[list[list[list[str]]], list[int]]:
    sentences: list[list[list[str]]] = []
    lines: list[int] = []
    width = len(CONLLU) if universal else 0
    fresh = True
    for number, cells in _tokens(path, origin, universal=universal, delimiter=delimiter):
        if cells is None:
            fresh = True
            continue
        width = width or len(cells)
        if len(cells) != width:
            raise SteelyardError(
                f"{origin}, line {number}: {len(cells)} columns where the lines above have {width}; "
                "every token needs one tag in every column"
            )
        if fresh:
            sentences.append([])
            lines.append(number)
            fresh = False
        sentences[-1].append(cells)
    return sentences, lines


def _tokens(
    path: Path, origin: str, *, universal: bool, delimiter: str | None
) -> Iterator[tuple[int, list[str] | None]]:
    """Each token's line number and columns; nothing where a sentence ends."""
    with utf8_told(path, origin), path.open(encoding="utf-8-sig") as file:
        for number, raw in enumerate(file, 1):
            line = raw.rstrip("\r\n")
            if not line.strip() or line.startswith("-DOCSTART-"):
                yield number, None
                continue
            if universal and line.startswith("#"):
                continue
            cells = line.split(delimiter) if delimiter else line.split("\t" if "\t" in line else None)
            if universal and not cells[0].isdigit() and len(cells) == len(CONLLU):
                continue
            yield number, cells
