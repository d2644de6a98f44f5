"""A suite's tables as they are kept: made once from its packages, memory-mapped ever after."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data import cache, splits
from steelyard.data.suites.base import Splits
from steelyard.data.table import Table, View

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from steelyard.data.suites.debian import DebianFiles
    from steelyard.data.suites.packages import Package

SPLIT_SEED = 20_240
"""Splits that we make are part of a suite: they never depend on a run's seed."""


@dataclass(frozen=True)
class Part:
    """The rows of one split: columns of strings, lists or numbers, and dense arrays."""

    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter((self.columns or self.tensors).values())))

    def rows(self, index: NDArray[np.int64]) -> Part:
        """Some of its rows."""
        import torch

        chosen = torch.from_numpy(index)
        return Part(
            {name: [values[i] for i in index] for name, values in self.columns.items()},
            {name: tensor[chosen] for name, tensor in self.tensors.items()},
        )


def held_out(part: Part, sizes: Mapping[str, float], label: str, document: str | None = None) -> dict[str, Part]:
    """Splits rows for good: stratified by a label, and by document if a column names one.

    Args:
        part: All rows.
        sizes: The fractions of all rows that each held-out split gets, for example ``{"test": 0.2, "dev": 0.1}``;
            the rest is train.
        label: The column to stratify by.
        document: A column whose values are never split.
    """
    _, strata = np.unique(np.asarray(part.columns[label], dtype=str), return_inverse=True)
    documents = np.asarray(part.columns[document], dtype=str) if document else None
    rest = np.arange(len(part))
    chosen = {}
    for name, fraction in sizes.items():
        share = fraction * len(part) / len(rest)
        owners = None if documents is None else documents[rest]
        kept, held = splits.hold_out(strata[rest], share, SPLIT_SEED, name, owners)
        chosen[name] = part.rows(rest[held])
        rest = rest[kept]
    return {"train": part.rows(rest), **chosen}


Maker = Callable[[], Mapping[str, Part]]


def prepared(suite: str, table: str, version: int, packages: Sequence[Package | DebianFiles], make: Maker) -> Splits:
    """The splits of one of a suite's tables.

    Args:
        suite: The suite's name, for messages.
        table: The table's name in the suite.
        version: Raised whenever ``make`` changes what it makes.
        packages: What it is made from; their hashes are part of the cache key.
        make: Reads the packages.
    """
    key = cache.digest("suite", suite, table, version, [package.sha256 for package in packages])
    name = f"{suite}-{table}".replace("/", "-").strip("-")
    place = cache.directory() / "suites" / f"{name}-{key[:16]}"

    def fill(folder: Path) -> None:
        index = {split: _keep(part, folder / split) for split, part in make().items()}
        (folder / "splits.json").write_text(json.dumps(index))

    cache.made_once(place, fill)
    index: dict[str, str] = json.loads((place / "splits.json").read_text())
    title = f"suite:{suite}" + (f"/{table}" if table else "")
    return {split: _load(place / split, f"{title} ({split})", digest) for split, digest in index.items()}


def _keep(part: Part, folder: Path) -> str:
    """Writes a split, and says the hash of its content."""
    import pyarrow as pa

    folder.mkdir()
    arrow = pa.table({name: pa.array(values) for name, values in part.columns.items()})
    with pa.ipc.new_file(str(folder / "table.arrow"), arrow.schema) as writer:
        writer.write_table(arrow)
    cache.write(folder, part.tensors)
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        digest.update(f"{file.name} {cache.file_digest(file)}\n".encode())
    return digest.hexdigest()


def _load(folder: Path, origin: str, digest: str) -> View:
    import pyarrow as pa

    arrow = pa.ipc.open_file(pa.memory_map(str(folder / "table.arrow"))).read_all()
    return View(Table(arrow, origin, digest, tensors=cache.read(folder)))
