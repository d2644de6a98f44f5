"""Data frames out of R's own file format: numbers, factors and strings, and nothing that could be run."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from typing import Any

import numpy as np

SYMBOL, PAIRS, STRING, INTEGERS, REALS, STRINGS, LIST = 1, 2, 9, 13, 14, 16, 19
REFERENCE, NOTHING = 255, 254
HAS_ATTRIBUTES, HAS_TAG = 0x200, 0x400
OPENERS = {b"\xfd7zXZ": lzma.decompress, b"BZh": bz2.decompress, b"\x1f\x8b": gzip.decompress}


def frames(content: bytes) -> dict[str, dict[str, list[Any]]]:
    """The data frames of a file by name, each as columns; factors become their levels.

    Args:
        content: A file that R's ``save`` wrote (version 2, binary).
    """
    for magic, opener in OPENERS.items():
        if content.startswith(magic):
            content = opener(content)
    if not content.startswith(b"RDX2\nX\n"):
        raise ValueError("not a binary R data file of version 2")
    objects, _ = _Reader(content, 7 + 12).item()
    return {name: _columns(*frame) for name, frame in objects.items() if isinstance(frame[0], list)}


def _columns(values: list[tuple[Any, dict[str, Any]]], attributes: dict[str, Any]) -> dict[str, list[Any]]:
    names = attributes["names"][0]
    return {name: _plain(*column) for name, column in zip(names, values, strict=True)}


def _plain(values: Any, attributes: dict[str, Any]) -> list[Any]:
    if "levels" in attributes:
        levels = attributes["levels"][0]
        return [levels[i - 1] for i in values]
    return list(values)


class _Reader:
    """Reads items, one after the other, each as ``(value, attributes)``."""

    def __init__(self, content: bytes, place: int) -> None:
        self.content = content
        self.place = place
        self.symbols: list[str] = []

    def integer(self) -> int:
        (value,) = struct.unpack_from(">i", self.content, self.place)
        self.place += 4
        return int(value)

    def numbers(self, dtype: str) -> list[Any]:
        count = self.integer()
        values = np.frombuffer(self.content, dtype, count, self.place)
        self.place += values.nbytes
        return list(values.tolist())

    def item(self) -> tuple[Any, dict[str, Any]]:
        flags = self.integer()
        kind = flags & 0xFF
        if kind == PAIRS:
            return self.pairs(flags), {}
        if kind in (SYMBOL, STRING, REFERENCE, NOTHING):
            return self.name(kind, flags), {}
        values = self.values(kind)
        return values, self.item()[0] or {} if flags & HAS_ATTRIBUTES else {}

    def values(self, kind: int) -> list[Any]:
        if kind == INTEGERS:
            return self.numbers(">i4")
        if kind == REALS:
            return self.numbers(">f8")
        if kind == STRINGS:
            return [self.item()[0] for _ in range(self.integer())]
        if kind == LIST:
            return [self.item() for _ in range(self.integer())]
        raise ValueError(f"an R object of type {kind} is not data")

    def pairs(self, flags: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while flags & 0xFF == PAIRS:
            if flags & HAS_ATTRIBUTES:
                self.item()
            tag = self.item()[0] if flags & HAS_TAG else ""
            found[tag] = self.item()
            flags = self.integer()
        return found

    def name(self, kind: int, flags: int) -> Any:
        if kind == NOTHING:
            return None
        if kind == REFERENCE:
            return self.symbols[(flags >> 8) - 1]
        if kind == SYMBOL:
            self.symbols.append(self.item()[0])
            return self.symbols[-1]
        size = self.integer()
        text = self.content[self.place : self.place + max(size, 0)].decode("latin-1")
        self.place += max(size, 0)
        return text
