"""What a person sees while it trains: a live line on a terminal, a line per evaluation elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Display(Protocol):
    """Something that shows how a run is going."""

    def begin(self, phase: str, total: int, done: int) -> None:
        """A phase of ``total`` steps starts (or goes on) at step ``done``."""

    def step(self, done: int, losses: Mapping[str, float], weights: Mapping[str, float]) -> None:
        """So many steps are done."""

    def evaluated(self, line: str) -> None:
        """An epoch was evaluated."""

    def end(self) -> None:
        """The run stops, for whatever reason."""


class Silent:
    """Shows nothing."""

    def begin(self, phase: str, total: int, done: int) -> None:
        """Nothing."""

    def step(self, done: int, losses: Mapping[str, float], weights: Mapping[str, float]) -> None:
        """Nothing."""

    def evaluated(self, line: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Bar:
    """A progress bar with live losses, weights and the time left; plain lines where there is no terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live = self._console.is_terminal
        self._progress: Progress | None = None

    def begin(self, phase: str, total: int, done: int) -> None:
        """A phase starts."""
        self.end()
        if not self._live:
            self._print(f"{phase}: {total - done} steps" + (f" (going on from step {done})" if done else ""))
            return
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=self._console,
            transient=True,
        )
        self._bar = self._progress.add_task(phase, total=total, completed=done, state="")
        self._progress.start()

    def step(self, done: int, losses: Mapping[str, float], weights: Mapping[str, float]) -> None:
        """Moves the bar."""
        if self._progress is not None:
            heaviest = sorted(losses, key=lambda name: -weights.get(name, 0.0))[:4]
            state = "  ".join(f"{name} loss {losses[name]:.3f} ×{weights.get(name, 0.0):.2f}" for name in heaviest)
            self._progress.update(self._bar, completed=done, state=state)

    def evaluated(self, line: str) -> None:
        """Prints the evaluation above the bar."""
        self._print(line)

    def end(self) -> None:
        """Takes the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)
        sys.stderr.flush()


def display(progress: bool | Display) -> Display:
    """A display from what a user says: True for the bar, False for nothing."""
    if isinstance(progress, bool):
        return Bar() if progress else Silent()
    return progress
