"""What a packaged suite is: where its bytes come from, which tables they become, which tasks they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from steelyard.data.features.base import Columns
from steelyard.tasks import Kind

if TYPE_CHECKING:
    from steelyard.data.suites.debian import DebianFiles
    from steelyard.data.suites.packages import Package
    from steelyard.data.table import View


@dataclass(frozen=True)
class SuiteTask:
    """One task of a suite.

    Attributes:
        labels: Its label columns.
        columns: Its input columns.
        kind: What is predicted.
        tables: Which of the suite's sets of tables holds it; tasks with the same name share their rows.
        metric: The metric it is usually judged by.
        scale: What dense inputs are divided by.
    """

    labels: tuple[str, ...]
    columns: Columns
    kind: Kind
    tables: str = ""
    metric: str | None = None
    scale: float = 1.0


Splits = Mapping[str, "View"]
"""Rows by split: ``train``, ``dev``, ``test``."""


@dataclass(frozen=True)
class PackagedSuite:
    """A named recipe for real data.

    Attributes:
        name: What ``suite:NAME`` calls it.
        summary: What it is, in a sentence.
        owner: Whose data it is.
        licence: The licence as stated by the package, which seldom covers the corpus itself.
        tasks: Its tasks by name.
        load: Reads one of its sets of tables by name, fetching what is missing.
        packages: What is fetched for each set of tables.
        main: The task that ``suite:NAME`` means when no task is named.
        counts: Rows per table and split, as a check on what was fetched.
    """

    name: str
    summary: str
    owner: str
    licence: str
    tasks: Mapping[str, SuiteTask]
    load: Callable[[str], Splits]
    packages: Mapping[str, tuple[Package | DebianFiles, ...]] = field(default_factory=dict)
    main: str | None = None
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
