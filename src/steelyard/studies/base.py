"""What a study is: cells to measure, and what they say together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from steelyard.studies.results import Key, Results, Value

Size = Literal["small", "full"]
Settings = Mapping[str, Any]
"""The study's sizes and counts, by name; plain values only."""


@dataclass(frozen=True)
class Table:
    """A table of findings: cells are text, as it is to be read."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Findings:
    """What a study found.

    Attributes:
        answer: One sentence.
        tables: The tables.
        figures: SVG text by name (see `steelyard.report.drawing`).
        differs: What differs from the paper: data, model size, seeds.
    """

    answer: str
    tables: Sequence[Table]
    figures: Mapping[str, str] = field(default_factory=dict)
    differs: str = ""


class Study(ABC):
    """A table or figure of a paper, or a question of ours, as code that anyone can run again.

    A new study is one file with one subclass and one line in the registry. `measure` is called once for each cell, in
    any order and process, and has to give the same value for the same key; runs that are to be compared share a seed.
    """

    name: ClassVar[str]
    """What users call it."""
    summary: ClassVar[str]
    """What it asks, in a line."""
    paper: ClassVar[str] = ""
    """Which table or figure of which paper it redoes."""
    needs: ClassVar[tuple[str, ...]] = ()
    """The packaged suites that it fetches."""
    settings: ClassVar[Mapping[Size, Settings]]
    """The numbers of each size; ``seeds`` among them is how many seeds."""
    minutes: ClassVar[Mapping[Size, float]]
    """About how long each size takes on two cores."""

    @abstractmethod
    def keys(self, settings: Settings) -> list[Key]:
        """The cells; each key has a ``seed``."""

    @staticmethod
    @abstractmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """One cell: plain numbers, texts and lists by name."""

    @abstractmethod
    def findings(self, settings: Settings, results: Results) -> Findings:
        """What the cells say together."""
