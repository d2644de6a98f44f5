"""Capacity: how wide the shared part should be, by validation, and what each task would choose alone."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from steelyard import methods
from steelyard.errors import SteelyardError
from steelyard.tasks import Role, Suite, Task
from steelyard.training import METRICS, fit
from steelyard.training.loop import Interrupted
from steelyard.training.progress import Silent

WIDTHS: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "mlp": lambda r: {"hidden": (r,)},
    "lstm": lambda r: {"hidden": r, "bidirectional": False},
    "textcnn": lambda r: {"channels": r},
    "lenet": lambda r: {"hidden": r},
}
"""What the width of a built-in encoder is called."""

Encoder = str | Callable[[int], nn.Module]
"""A built-in encoder, or what makes one of a given width."""


@dataclass(frozen=True)
class Curve:
    """One width's training.

    Attributes:
        values: The best validation value so far after each epoch: the mean of the tasks' metrics, each with its sign
            turned where lower is better.
        stopped: Whether it was stopped as hopeless.
    """

    values: tuple[float, ...]
    stopped: bool

    @property
    def value(self) -> float:
        """The best value."""
        return self.values[-1]


@dataclass(frozen=True)
class Search:
    """The widths that were tried on some tasks.

    Attributes:
        tasks: The tasks.
        curves: By width, in rising order.
    """

    tasks: tuple[str, ...]
    curves: Mapping[int, Curve]

    @property
    def best(self) -> int:
        """The width with the best validation value; the smallest of equals."""
        return max(self.curves, key=lambda width: (self.curves[width].value, -width))


@dataclass(frozen=True)
class Capacity:
    """What a capacity search found.

    Attributes:
        shared: All tasks together.
        single: Each task alone, by name; empty if that was not asked for.
    """

    shared: Search
    single: Mapping[str, Search]

    @property
    def total(self) -> int:
        """The sum of the widths that single tasks choose: the paper's rule is to stay below it."""
        return sum(search.best for search in self.single.values())

    def lines(self) -> dict[str, list[tuple[float, float]]]:
        """``(width, best value)`` of all tasks together, and of each alone, to draw."""
        searches = {"together": self.shared, **{f"{name} alone": each for name, each in self.single.items()}}
        return {name: [(r, curve.value) for r, curve in each.curves.items()] for name, each in searches.items()}


def capacity_search(
    suite: Suite,
    encoder: Encoder,
    widths: Sequence[int],
    *,
    method: str | Mapping[str, Any] = "uniform",
    single: bool = True,
    grace: float = 0.25,
    out: Path | None = None,
    **settings: Any,
) -> Capacity:
    """Tries widths of the shared part, and stops those that have no hope.

    A width is hopeless when, after ``grace`` of the epochs, it would have to gain more than any earlier width gained
    from that epoch on to come up to the best of them. The first two run to their end.

    Args:
        suite: The tasks; each needs rows in dev.
        encoder: A built-in encoder, or a function from r to one.
        widths: The widths r.
        method: How tasks are weighed.
        single: Whether to search each task's own optimum too.
        grace: The share of the epochs before any width is stopped; 1: none is.
        out: Where run folders go. What is finished there is read back, so that a search that was stopped goes on.
        settings: Of the training loop.
    """
    for name, task in suite.tasks.items():
        if Role.DEV_SELECT not in task.rows:
            raise SteelyardError(f"capacity: task {name!r} has no dev rows to choose a width by; give it some")
    if not widths or min(widths) < 1:
        raise SteelyardError(f"capacity: {list(widths)} are no widths; give numbers from 1")
    if isinstance(encoder, str) and encoder not in WIDTHS:
        raise SteelyardError(
            f"capacity: what the width of {encoder!r} is called is not known (only {', '.join(WIDTHS)}); "
            "give a function from a width to an encoder"
        )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if out is None else out

        def search(name: str, tasks: Iterable[Task], chosen: str | Mapping[str, Any]) -> Search:
            spec = suite.spec
            part = Suite(tasks, None, suite.allow, spec.padding, spec.vocabulary or None)
            return _search(part, encoder, sorted(set(widths)), chosen, grace, folder / name, settings)

        shared = search("together", suite.tasks.values(), method)
        tasks = suite.tasks.values() if single else ()
        return Capacity(shared, {t.name: search(f"alone-{n}", [t], "uniform") for n, t in enumerate(tasks)})


def _search(
    suite: Suite,
    encoder: Encoder,
    widths: Sequence[int],
    method: str | Mapping[str, Any],
    grace: float,
    folder: Path,
    settings: Mapping[str, Any],
) -> Search:
    curves: dict[int, Curve] = {}
    for width in widths:
        place = folder / f"width-{width}"
        race = _Race(place, suite, list(curves.values()), grace)
        with contextlib.suppress(Interrupted):
            _train(suite, encoder, width, method, race, place, settings)
        curves[width] = Curve(tuple(race.best_so_far()), race.hopeless)
    return Search(tuple(suite.tasks), curves)


def _train(
    suite: Suite,
    encoder: Encoder,
    width: int,
    method: str | Mapping[str, Any],
    race: _Race,
    place: Path,
    settings: Mapping[str, Any],
) -> None:
    options = WIDTHS[encoder](width) if isinstance(encoder, str) else None
    fit(
        suite, encoder if isinstance(encoder, str) else encoder(width), methods.build(method), encoder_options=options,
        out=place, progress=race, **{"checkpoint_seconds": math.inf, **settings},
    )  # fmt: skip


class _Race(Silent):
    """A display that reads the run's own metrics after each epoch, and stops it where it is hopeless."""

    def __init__(self, folder: Path, suite: Suite, earlier: Sequence[Curve], grace: float) -> None:
        self._file, self._suite, self._earlier, self._grace = folder / "metrics.jsonl", suite, earlier, grace
        self.hopeless = False

    def best_so_far(self) -> list[float]:
        """The best value up to each epoch."""
        values: list[float] = []
        for line in self._file.read_text(encoding="utf-8").splitlines():
            value = self._value(json.loads(line)["tasks"])
            values.append(max([value, *values[-1:]]))
        return values

    def evaluated(self, line: str) -> None:
        """Compares with what earlier widths had at this epoch."""
        del line
        mine = self.best_so_far()
        epoch = len(mine)
        whole = [curve for curve in self._earlier if not curve.stopped]
        longest = max((len(curve.values) for curve in whole), default=0)
        if len(whole) < 2 or not self._grace * longest <= epoch < longest:
            return
        best = max(curve.value for curve in whole)
        gains = [curve.value - curve.values[epoch - 1] for curve in whole if len(curve.values) >= epoch]
        if mine[-1] + max(gains, default=math.inf) < best:
            self.hopeless = True
            raise Interrupted

    def _value(self, tasks: Mapping[str, Mapping[str, float]]) -> float:
        signs = {name: 1 if METRICS[task.metric].higher else -1 for name, task in self._suite.tasks.items()}
        value = statistics.fmean(signs[n] * tasks[n][f"dev_{t.metric}"] for n, t in self._suite.tasks.items())
        return -math.inf if math.isnan(value) else value  # such as AUROC of dev rows of one class
