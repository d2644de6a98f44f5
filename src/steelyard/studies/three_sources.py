"""Real targets with three sources of known worth: one that helps, one beside the point, and one of shuffled labels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from steelyard import data
from steelyard.data import FeatureOptions, SourceData, TargetData
from steelyard.tasks import Kind, Role, Rows, Suite, Task

SOURCES = ("helpful", "irrelevant", "permuted")
HELD = 96
"""Dev rows of the target."""


def digits(seed: int, target_rows: int = 50, source_rows: int = 300) -> Suite:
    """Which digit? Helpful: which pair of digits (0 or 1, 2 or 3, …). Irrelevant: is the left half the darker one?"""
    target, images, digit, others = _target(seed, target_rows)
    tasks = [target]
    for name, index in zip(SOURCES, torch.split(others, source_rows), strict=False):
        x, y = images[index], digit[index]
        if name == "irrelevant":
            labels = (x[..., :4].sum((1, 2, 3)) > x[..., 4:].sum((1, 2, 3))).long()
        else:
            labels = y // 2 if name == "helpful" else y[_draw(len(y), len(y), seed)]
        tasks.append(Task(name, Kind.CLASSIFICATION, {Role.TRAIN: Rows(x, labels)}))
    return Suite(tasks, "target")


def questions(seed: int, target_rows: int = 48, source_rows: int = 1_500) -> Suite:
    """What kind of question (TREC, 6)? Helpful: TREC's 47 finer kinds. Irrelevant: opinions of films."""
    made = data.build(
        TargetData(name="target", train=f"suite:lowtext/trec@{target_rows}"),
        [
            SourceData(name="helpful", train=f"suite:lowtext/trec-fine@{source_rows}", rare="keep"),
            SourceData(name="irrelevant", train=f"suite:sentiment4/movies@{source_rows}"),
            SourceData(name="permuted", train=f"suite:lowtext/trec@{source_rows}"),
        ],
        seed=seed, features=FeatureOptions(min_count=2, max_length=16),
    ).suite  # fmt: skip
    target = made["target"]
    dev = target.rows[Role.DEV_SELECT]
    tasks = [target.with_rows({**target.rows, Role.DEV_SELECT: dev.select(_draw(len(dev), HELD, seed))})]
    for name in SOURCES:
        rows = made[name].rows[Role.TRAIN]
        if name == "permuted" and isinstance(rows.labels, Tensor):
            rows = Rows(rows.inputs, rows.labels[_draw(len(rows), len(rows), seed)])
        tasks.append(made[name].with_rows({Role.TRAIN: rows}))  # their dev and test rows are nobody's business here
    return made.with_tasks(tasks)


def noisy_digits(seed: int, target_rows: int = 50, source_rows: int = 500) -> Suite:
    """Which digit? The source asks the same of other images."""
    target, images, digit, others = _target(seed, target_rows)
    own = others[:source_rows]
    source = Task("source", Kind.CLASSIFICATION, {Role.TRAIN: Rows(images[own], digit[own])}, outputs=10)
    return Suite([target, source], "target")


def _target(seed: int, size: int) -> tuple[Task, Tensor, Tensor, Tensor]:
    """A target of few digits; all training images and what they show; and the rows that are not the target's."""
    images, digit = {}, {}
    for split, view in data.suites.tables("digits", "single").items():
        images[split] = view.tensor("image") / 16
        digit[split] = torch.tensor([int(name) for name in view.column("digit").to_pylist()])
    order = torch.from_numpy(np.random.default_rng([seed, 7]).permutation(len(digit["train"])))
    own, others = order[:size], order[size:]
    dev = _draw(len(digit["dev"]), HELD, seed)
    rows = {
        Role.TRAIN: Rows(images["train"][own], digit["train"][own]),
        Role.DEV_SELECT: Rows(images["dev"][dev], digit["dev"][dev]),
        Role.TEST: Rows(images["test"], digit["test"]),
    }
    return Task("target", Kind.CLASSIFICATION, rows, outputs=10), images["train"], digit["train"], others


def _draw(rows: int, count: int, seed: int) -> Tensor:
    """Random rows without replacement, ``LongTensor[count]``."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed))[:count]
