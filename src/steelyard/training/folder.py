"""The run folder: what a run leaves behind, and how a resumed run finds its place in it."""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import tomli_w
import torch

from steelyard.errors import SteelyardError, as_written
from steelyard.tasks import Ragged, Suite
from steelyard.training import checkpoint

CHECKPOINT = Path("checkpoint") / "state.safetensors"
DATA = "data.sha256"
ROW_WEIGHTS = "row_weights.csv"
_LOCK = ".lock"


class Log:
    """Evaluations and weights of a run: kept in memory, and in the run folder if there is one."""

    def __init__(self, folder: RunFolder | None = None) -> None:
        self.metrics: list[dict[str, Any]] = []
        self.weights: list[tuple[int, str, float]] = []
        self._folder = folder
        self._files: dict[str, TextIO] = {}

    def evaluation(self, line: Mapping[str, Any]) -> None:
        """Adds a line to ``metrics.jsonl``."""
        self.metrics.append(dict(line))
        self._write("metrics.jsonl", json.dumps(line) + "\n")

    def weigh(self, step: int, weights: Mapping[str, float]) -> None:
        """Adds a step to ``weights.csv``."""
        rows = [(step, task, weight) for task, weight in weights.items()]
        self.weights += rows
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows((s, t, repr(w)) for s, t, w in rows)
        self._write("weights.csv", buffer.getvalue())

    def begin(self, positions: Mapping[str, int] | None) -> None:
        """Opens the files; what a killed run wrote after its last checkpoint is cut off."""
        if self._folder is None:
            return
        for name, header in (("metrics.jsonl", ""), ("weights.csv", "step,task,weight\n")):
            path = self._folder.path / name
            file = path.open("r+" if positions and path.exists() else "w+", encoding="utf-8", newline="")
            self._files[name] = file
            if positions:
                file.truncate(positions[name])
                file.seek(0)
                self._read(name, file)
            else:
                file.write(header)

    def read_back(self) -> None:
        """Reads the files of a finished run, which may be one that we may not write to."""
        if self._folder is None:
            return
        for name in ("metrics.jsonl", "weights.csv"):
            path = self._folder.path / name
            with as_written(path), path.open(encoding="utf-8", newline="") as file:
                self._read(name, file)

    def positions(self) -> dict[str, int]:
        """How long each file is, once everything is on disk."""
        for file in self._files.values():
            _guarded(file.flush, self._folder)
            _guarded(partial(os.fsync, file.fileno()), self._folder)
        return {name: file.tell() for name, file in self._files.items()}

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            _guarded(file.close, self._folder)
        self._files.clear()

    def _write(self, name: str, text: str) -> None:
        if name in self._files:
            self._files[name].write(text)
            _guarded(self._files[name].flush, self._folder)

    def _read(self, name: str, file: TextIO) -> None:
        try:
            if name == "metrics.jsonl":
                self.metrics = [json.loads(line) for line in file]
            else:
                self.weights = [(int(r["step"]), r["task"], float(r["weight"])) for r in csv.DictReader(file)]
        except (ValueError, KeyError, TypeError, RecursionError, csv.Error) as error:
            where = self._folder.path / name if self._folder else name
            raise SteelyardError(f"{where}: cannot read it ({error}); this is not a whole run folder") from None
        file.seek(0, io.SEEK_END)


def _is_left(name: str) -> bool:
    """Whether a file is what a run that was killed before it wrote its configuration leaves."""
    return name == _LOCK or name.startswith(".config.toml.")


def _guarded(action: Any, folder: RunFolder | None) -> None:
    try:
        action()
    except OSError as error:
        where = folder.path if folder else "run"
        raise SteelyardError(
            f"{where}: cannot write to it ({error.strerror or error}); the last checkpoint is kept; "
            "make room, then run the same command to go on"
        ) from error


class RunFolder:
    """One run's folder. It belongs to one configuration, and to one process at a time."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock: TextIO | None = None

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return (self.path / "summary.json").exists()

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return checkpoint.exists(self.path / CHECKPOINT)

    def claim(self, config: Mapping[str, Any], files: Mapping[str, str], data: str) -> None:
        """Makes the folder this configuration's own, with some files in it; refuses when it is another's.

        ``data`` is a hash of all that training reads: what has been trained on other rows is not touched.
        """
        if self.path.exists() and not self.path.is_dir():
            raise SteelyardError(f"{self.path} is a file; choose a folder (--out)")
        self._must_be_ours(plain(config))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_lock()
        except OSError as error:
            raise SteelyardError(
                f"{self.path}: cannot write to this folder ({error.strerror}); choose another (--out)"
            ) from error
        known = self.path / DATA
        if (self.started or self.finished) and known.exists() and known.read_text(encoding="utf-8") != data:
            self.release()
            raise SteelyardError(
                f"{self.path}: the data has changed since this run began; choose another folder (--out)"
            )
        # The configuration comes first: whatever stops the rest, the same command finds its folder again.
        for name, content in {"config.toml": tomli_w.dumps(plain(config)), DATA: data, **files}.items():
            self.write(name, content)

    def _must_be_ours(self, config: dict[str, Any]) -> None:
        refuse_links(self.path)
        existing = self.path / "config.toml"
        if not existing.exists():
            if self.path.is_dir() and any(not _is_left(each.name) for each in self.path.iterdir()):
                raise SteelyardError(f"{self.path} is not empty and is not a run folder; choose another folder (--out)")
            return
        try:
            known = tomllib.loads(existing.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SteelyardError(f"{existing}: cannot read it ({error}); choose another folder (--out)") from None
        difference = first_difference(known, config)
        if difference:
            raise SteelyardError(
                f"{self.path} belongs to another configuration ({difference}); choose another folder (--out) "
                "or delete it"
            )

    def release(self) -> None:
        """Lets other processes have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_lock(self) -> None:
        self._lock = (self.path / _LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise SteelyardError(
                f"{self.path}: another process is training here; wait for it or choose another folder"
            ) from None

    def write(self, name: str, content: str | bytes) -> None:
        """Writes a file of the folder, whole or not at all."""
        checkpoint.write_atomically(self.path / name, content.encode() if isinstance(content, str) else content)

    def write_row_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Writes what each training row counted for: ``task,row,weight``."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(["task", "row", "weight"])
        for task, values in weights.items():
            writer.writerows((task, row, repr(weight)) for row, weight in enumerate(values.tolist()))
        self.write(ROW_WEIGHTS, buffer.getvalue())

    def row_weights(self) -> dict[str, torch.Tensor]:
        """Reads them back; nothing where there are none."""
        found: dict[str, list[float]] = {}
        if (self.path / ROW_WEIGHTS).exists():
            with (self.path / ROW_WEIGHTS).open(encoding="utf-8", newline="") as file:
                for line in csv.DictReader(file):
                    found.setdefault(line["task"], []).append(float(line["weight"]))
        return {task: torch.tensor(values) for task, values in found.items()}

    def read_json(self, name: str) -> dict[str, Any]:
        """Reads one of its JSON files."""
        path = self.path / name
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise SteelyardError(f"{path}: cannot read it ({error}); this is not a whole run folder") from None
        if not isinstance(found, dict):
            raise SteelyardError(f"{path}: it holds no JSON object; this is not a whole run folder")
        return found


def refuse_links(folder: Path) -> None:
    """Refuses a folder whose links lead out of it: somebody else's could have us read or write any file of ours."""
    home = folder.resolve()
    for place, folders, files in os.walk(folder):
        for each in (Path(place) / name for name in (*folders, *files)):
            if each.is_symlink() and not each.resolve().is_relative_to(home):
                raise SteelyardError(f"{each} is a link out of its folder; put the file itself in its place")


def plain(value: Any) -> Any:
    """A configuration as TOML can hold it: no None, paths and enumerations as text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if isinstance(value, (bool, int, float)) else str(value)


def first_difference(known: Any, wanted: Any, place: str = "") -> str:
    """The first key in which two configurations differ, in words; empty when they are the same."""
    if isinstance(known, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys([*known, *wanted]):
            found = first_difference(known.get(key), wanted.get(key), f"{place}.{key}" if place else key)
            if found:
                return found
        return ""
    if isinstance(known, list) and isinstance(wanted, list) and len(known) == len(wanted):
        pairs = enumerate(zip(known, wanted, strict=True))
        return next((d for i, (a, b) in pairs if (d := first_difference(a, b, f"{place}[{i}]"))), "")
    return "" if known == wanted else f"{place} is {known!r} there and {wanted!r} here"


def digest(suite: Suite) -> str:
    """A hash of everything in a suite that training reads."""
    found = hashlib.sha256()
    for name, task in suite.tasks.items():
        found.update(repr((name, str(task.kind), task.classes, task.outputs, name == suite.target)).encode())
        for role, rows in sorted(task.rows.items()):
            found.update(role.encode())
            for tensor in _tensors((rows.inputs, rows.labels)):
                found.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
                found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _tensors(inputs: Iterable[Any]) -> Iterable[torch.Tensor]:
    for each in inputs:
        yield from (each.offsets, each.values) if isinstance(each, Ragged) else (each,)
