"""The packaged suites by name, and references to them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from steelyard.data import cache
from steelyard.data.table import listed, near
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from steelyard.data.suites.base import PackagedSuite, Splits, SuiteTask

PREFIX = "suite:"

MODULES = ("digits", "vision", "text", "tagging", "lowtext", "tabular")
"""Each holds ``SUITES``, a tuple of packaged suites."""


@lru_cache(maxsize=1)
def registered() -> dict[str, PackagedSuite]:
    """All suites."""
    modules = [import_module(f"steelyard.data.suites.{name}") for name in MODULES]
    return {suite.name: suite for module in modules for suite in module.SUITES}


def get(name: str) -> PackagedSuite:
    """A suite by name."""
    known = registered()
    if name not in known:
        raise SteelyardError(f"there is no suite {name!r}, only {listed(list(known), 40)}{near(name, list(known))}")
    return known[name]


def tables(name: str, part: str) -> Splits:
    """One of a suite's sets of tables, read once per process and cache."""
    return _tables(name, part, str(cache.directory()))


@lru_cache(maxsize=16)
def _tables(name: str, part: str, place: str) -> Splits:
    del place  # another cache is another reading
    return get(name).load(part)


@dataclass(frozen=True)
class Reference:
    """``suite:NAME/TASK@ROWS``, taken apart."""

    suite: PackagedSuite
    task: str
    rows: int | None

    @property
    def spec(self) -> SuiteTask:
        """The task's recipe."""
        return self.suite.tasks[self.task]


def parse(reference: str) -> Reference:
    """Takes a reference apart.

    Raises:
        SteelyardError: If there is no such suite or task, or the number of rows is none.
    """
    match = re.fullmatch(r"suite:([^@]+)(?:@(.*))?", reference)
    if match is None:
        raise SteelyardError(f"{reference}: write suite:NAME, suite:NAME/TASK or suite:NAME/TASK@ROWS")
    path, rows = match.groups()
    if rows is not None and (not rows.isdecimal() or int(rows) == 0):
        raise SteelyardError(f"{reference}: {rows!r} is not a number of rows; write for example @500")
    known = registered()
    name = max((n for n in known if path == n or path.startswith(f"{n}/")), key=len, default=None)
    suite = get(name or path.split("/")[0])
    task = path[len(suite.name) + 1 :] or suite.main or (next(iter(suite.tasks)) if len(suite.tasks) == 1 else "")
    if task not in suite.tasks:
        problem = f"has no task {task!r}" if task else "has several tasks: name one"
        raise SteelyardError(
            f"{reference}: the suite {suite.name!r} {problem} ({listed(list(suite.tasks), 20)})"
            f"{near(task, list(suite.tasks))}"
        )
    return Reference(suite, task, int(rows) if rows else None)
