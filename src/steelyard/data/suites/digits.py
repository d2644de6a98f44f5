"""Handwritten digits that scikit-learn brings along: always there, no network needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from steelyard.data import cache
from steelyard.data.features.base import Columns
from steelyard.data.generators import overlay
from steelyard.data.suites.base import PackagedSuite, Splits, SuiteTask
from steelyard.data.suites.prepared import SPLIT_SEED
from steelyard.data.table import Table, View
from steelyard.tasks import Kind, Role, Rows, Suite, Task

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZES = {"train": 1_097, "dev": 100, "test": 600}
PAIRS = {"train": 3_000, "dev": 300, "test": 900}
BRIGHTEST = 16.0
WITH_LOOPS = (0, 6, 8, 9)
SINGLE = ("digit", "parity", "large", "loops")


def load(part: str) -> Splits:
    """``single`` digits, or overlaid ``pairs``. The images are split once, so no pair holds another split's image."""
    images, digits = _images()
    generator = np.random.default_rng(SPLIT_SEED)
    order = generator.permutation(len(images))
    single, pairs, start = {}, {}, 0
    for split, size in SIZES.items():
        rows = np.sort(order[start : start + size])
        start += size
        single[split] = _single(images[rows], digits[rows], split)
        pairs[split] = _pairs(images[rows], digits[rows], split, generator)
    return single if part == "single" else pairs


def _images() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images.astype(np.float32)[:, None], bunch.target.astype(np.int64)


def facts(digits: NDArray[np.int64]) -> dict[str, list[str]]:
    """The labels of single digits, per task."""
    return {
        "digit": [str(d) for d in digits],
        "parity": ["odd" if d % 2 else "even" for d in digits],
        "large": ["large" if d >= 5 else "small" for d in digits],
        "loops": ["loop" if d in WITH_LOOPS else "none" for d in digits],
    }


def _single(images: NDArray[np.float32], digits: NDArray[np.int64], split: str) -> View:
    import pyarrow as pa

    origin = f"suite:digits ({split})"
    table = pa.table(facts(digits))
    return View(Table(table, origin, cache.digest(origin), tensors={"image": torch.from_numpy(images)}))


def _pairs(images: NDArray[np.float32], digits: NDArray[np.int64], split: str, generator: np.random.Generator) -> View:
    import pyarrow as pa

    left, right = generator.integers(0, len(images), (2, PAIRS[split]))
    overlaid = overlay(torch.from_numpy(images[left]), torch.from_numpy(images[right]), shift=3)
    origin = f"suite:digits (pairs, {split})"
    table = pa.table({"left": [str(d) for d in digits[left]], "right": [str(d) for d in digits[right]]})
    return View(Table(table, origin, cache.digest(origin), tensors={"image": overlaid}))


DEMO_LABELS = 50
DEMO_SOURCE_ROWS = 500
DEMO_SOURCES = ("parity", "large", "loops", "shuffled")


def demo(seed: int = 0) -> Suite:
    """A target with 50 labelled digits, three sources that help it, and one that does not.

    The target is to read a digit. Each source has 500 rows of its own, drawn from all images but those of the
    target's train, dev and test, and says of them whether they are odd, large (5 or more), or have a loop;
    ``shuffled`` says "odd" or "even" at random.

    Args:
        seed: Which images each task gets. Dev (100 rows) and test (600 rows) are always the same.
    """
    splits = load("single")
    generator = np.random.default_rng([seed, SPLIT_SEED])
    digits, _ = _codes(splits["train"], "digit")
    order = generator.permutation(len(digits))
    own = _balanced(digits, order, DEMO_LABELS)
    others = np.setdiff1d(order, own)
    tasks = [_demo_task("digit", splits, own)]
    for name in DEMO_SOURCES:
        rows = generator.permutation(others)[:DEMO_SOURCE_ROWS]
        tasks.append(_demo_task(name, splits, rows, generator if name == "shuffled" else None))
    return Suite(tasks, target="digit")


def _demo_task(
    name: str, splits: Mapping[str, View], rows: NDArray[np.int64], shuffle: np.random.Generator | None = None
) -> Task:
    """A task on some training rows; with shuffled labels it has no dev or test, since nothing is right there."""
    column = "parity" if shuffle else name
    codes, classes = _codes(splits["train"], column)
    labels = shuffle.permutation(codes[rows]) if shuffle else codes[rows]
    data = {Role.TRAIN: _rows(splits["train"], rows, labels)}
    for role, split in () if shuffle else ((Role.DEV_SELECT, "dev"), (Role.TEST, "test")):
        held = splits[split]
        data[role] = _rows(held, np.arange(len(held)), _codes(held, column)[0])
    return Task(name, Kind.CLASSIFICATION, data, classes)


def _balanced(codes: NDArray[np.int64], order: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The first rows of a random order that hold each class equally often."""
    names = np.unique(codes)
    return np.concatenate([order[codes[order] == c][: size // len(names)] for c in names])


def _codes(view: View, column: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    classes, codes = np.unique(view.column(column).to_pylist(), return_inverse=True)
    return codes.astype(np.int64), tuple(map(str, classes))


def _rows(view: View, rows: NDArray[np.int64], labels: NDArray[np.int64]) -> Rows:
    images = view.tensor("image")[torch.from_numpy(rows)] / BRIGHTEST
    return Rows(images, torch.from_numpy(labels), view.table.origin, torch.from_numpy(rows))


IMAGE = Columns(dense="image")

SUITES = (
    PackagedSuite(
        name="digits",
        summary="8x8 digits: which digit, odd, large, with a loop; and two overlaid digits (left, right)",
        owner="E. Alpaydin and C. Kaynak, UCI optical recognition of handwritten digits (test part)",
        licence="BSD-3-Clause (scikit-learn); data: UCI, CC BY 4.0",
        tasks={
            **{n: SuiteTask((n,), IMAGE, Kind.CLASSIFICATION, "single", scale=BRIGHTEST) for n in SINGLE},
            **{n: SuiteTask((n,), IMAGE, Kind.CLASSIFICATION, "pairs", scale=BRIGHTEST) for n in ("left", "right")},
        },
        load=load,
        main="digit",
        counts={"single": SIZES, "pairs": PAIRS},
    ),
)
