"""Many independent measurements: in parallel, one after another on disk, and never done twice."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from steelyard.errors import SteelyardError
from steelyard.studies import backends
from steelyard.studies.results import Key, Results, Value

Measure = Callable[..., Value]
"""Called with a cell's key as keyword arguments; it must be importable by name, so that other processes find it."""


def run(
    measure: Measure,
    keys: Sequence[Key],
    path: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    backend: str = "loky",
    progress: bool = True,
    doing: str = "measuring",
) -> tuple[Results, dict[str, str]]:
    """Measures every cell that the file does not hold yet; stopped or killed, the same call goes on.

    Args:
        measure: Gives the value of a cell: ``measure(settings, **key)``.
        keys: The cells.
        path: A file of JSON lines that results are added to as they come.
        settings: What all cells have in common.
        jobs: How many at once; by default one per core.
        backend: joblib's: ``loky``, ``threading``, ``multiprocessing``, ``ray``, ``dask`` (`backends.parallel`).
        progress: Whether to show how far it is.
        doing: What the progress says is being done.

    Returns:
        The values in the order of the keys, and a message for each cell that failed; it is tried again next time.
    """
    held = read(path)
    todo = [key for key in keys if _name(key) not in held]
    failed: dict[str, str] = {}
    done = len(keys) - len(todo)
    with path.open("a", encoding="utf-8") as file, _Progress(len(keys), done, progress, doing) as shown:
        for key, value, error in _measured(measure, todo, dict(settings or {}), jobs, backend):
            if error is not None:
                failed[describe(key)] = error
            else:
                held[_name(key)] = value
                file.write(json.dumps({"key": dict(key), "value": value}) + "\n")
                file.flush()
                os.fsync(file.fileno())
            shown.advance(describe(key), error)
    return Results([(key, held[_name(key)]) for key in keys if _name(key) in held]), failed


def describe(key: Key) -> str:
    """A cell's key as people read it."""
    return ", ".join(f"{name} {value}" for name, value in key.items())


def missing(path: Path, keys: Sequence[Key]) -> list[Key]:
    """The cells that a file of results does not hold."""
    held = read(path)
    return [key for key in keys if _name(key) not in held]


def _measured(
    measure: Measure, keys: Sequence[Key], settings: dict[str, Any], jobs: int | None, backend: str
) -> Iterator[tuple[Key, Any, str | None]]:
    if not keys:
        return
    with backends.parallel(backend, jobs) as count:
        if count == 1:
            yield from (_cell(measure, key, settings) for key in keys)
        elif backends.returns_in_rounds(backend):
            yield from _in_rounds(measure, keys, settings, 2 * count)
        else:
            yield from _side_by_side(measure, list(keys), settings)


def _side_by_side(
    measure: Measure, waiting: list[Key], settings: dict[str, Any]
) -> Iterator[tuple[Key, Any, str | None]]:
    """Cells in other processes. If one of them dies, those that were under way are measured again, each on its own."""
    import joblib

    while waiting:
        begun: list[Key] = []
        tasks = (joblib.delayed(_cell)(measure, key, settings) for key in _noting(list(waiting), begun))
        try:
            for found in joblib.Parallel(return_as="generator_unordered", batch_size=1)(tasks):
                waiting.remove(found[0])
                yield found
        except BrokenProcessPool:
            for key in [key for key in begun if key in waiting]:
                waiting.remove(key)
                yield _on_its_own(measure, key, settings)


def _in_rounds(
    measure: Measure, keys: Sequence[Key], settings: dict[str, Any], size: int
) -> Iterator[tuple[Key, Any, str | None]]:
    """So many cells at a time, where a backend hands over all that it was given or nothing."""
    import joblib

    with joblib.Parallel(batch_size=1) as pool:
        for start in range(0, len(keys), size):
            yield from pool(joblib.delayed(_cell)(measure, key, settings) for key in keys[start : start + size])


def _noting(keys: Sequence[Key], begun: list[Key]) -> Iterator[Key]:
    for key in keys:
        begun.append(key)
        yield key


def _on_its_own(measure: Measure, key: Key, settings: dict[str, Any]) -> tuple[Key, Any, str | None]:
    import joblib

    try:
        found: tuple[Key, Any, str | None] = joblib.Parallel()([joblib.delayed(_cell)(measure, key, settings)])[0]
    except BrokenProcessPool:
        return key, None, "its process was killed: out of memory, or a crash outside Python"
    return found


def _cell(measure: Measure, key: Key, settings: dict[str, Any]) -> tuple[Key, Any, str | None]:
    """One cell on one thread, so that its numbers do not depend on how many run beside it."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        value = measure(settings, **key)
        return key, json.loads(json.dumps(value)), None
    except SteelyardError as error:
        return key, None, " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001  one cell must not take the others with it
        place = traceback.extract_tb(error.__traceback__)[-1]
        return key, None, f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
    finally:
        torch.set_num_threads(threads)


def _name(key: Key) -> str:
    return json.dumps(dict(key), sort_keys=True)


def read(path: Path) -> dict[str, Any]:
    """What earlier calls found; a last line that a kill cut short is taken off the file."""
    held: dict[str, Any] = {}
    if not path.exists():
        return held
    whole = 0
    with path.open("rb") as file:
        for line in file:
            try:
                cell = json.loads(line)
                held[_name(cell["key"])] = cell["value"]
            except (ValueError, KeyError, TypeError):
                break
            whole += len(line)
    if whole != path.stat().st_size:
        with path.open("r+b") as file:
            file.truncate(whole)
    return held


class _Progress:
    """A bar on a terminal; elsewhere a line at each tenth of the way."""

    def __init__(self, total: int, done: int, wanted: bool, doing: str) -> None:
        self._console = Console(stderr=True)
        self._total, self._done, self._wanted = total, done, wanted
        self._said = done * 10 // max(1, total)
        columns = [TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn()]
        self._bar = Progress(
            *columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=self._console,
            transient=True, disable=not (wanted and self._console.is_terminal),
        )  # fmt: skip
        self._row = self._bar.add_task(doing, total=total, completed=done)

    def __enter__(self) -> Self:
        self._bar.start()
        if self._done and self._wanted:
            self._console.print(f"going on: {self._done} of {self._total} were done", highlight=False)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, what: str, error: str | None) -> None:
        """Another cell is done, or failed."""
        self._done += 1
        self._bar.update(self._row, completed=self._done, description=what)
        if not self._wanted:
            return
        if error is not None:
            self._console.print(f"failed: {what}: {error}", highlight=False, soft_wrap=True, markup=False)
        if not self._console.is_terminal and self._done * 10 // self._total > self._said:
            self._said = self._done * 10 // self._total
            self._console.print(f"{self._done} of {self._total} ({what})", highlight=False, markup=False)
