"""What the synthetic studies share: the paper's models, trained for as many steps whatever the sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from steelyard import fit
from steelyard.data.generators import Made, Source, transfer_tasks
from steelyard.methods import build
from steelyard.studies.statistics import Estimate
from steelyard.tasks import Suite
from steelyard.training import Run

PAPER = "Wu, Zhang and Ré 2020"

TARGETS = {"many": "9,000 clean rows, as printed", "few": "100 noisy rows"}


def made(settings: Mapping[str, Any], key: Mapping[str, Any], covariance: str) -> Made:
    """Figure 3's tasks: a target of many clean rows or few noisy ones, and one source as noisy as it."""
    rows, noise = settings["targets"][key["target"]]
    noise = min(noise, settings["flips"]) if key["link"] == "logistic" else noise
    source = Source(key["rows"], 0.96, "same" if covariance == "same" else "different", noise)
    return transfer_tasks(
        {"source": source} if key["rows"] else {}, target_rows=rows, target_noise=noise, link=key["link"],
        order=key["order"], dim=settings["dim"], condition=settings["condition"], seed=key["seed"],
    )  # fmt: skip


def network(dim: int, neurons: int, seed: int, *, linear: bool) -> nn.Module:
    """The shared module B, d×r, with ReLU or without."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.Linear(dim, neurons, bias=False)
    return layer if linear else nn.Sequential(layer, nn.ReLU())


def trained(suite: Suite, encoder: nn.Module, method: Any, settings: Mapping[str, Any], seed: int) -> Run:
    """A run in which every task that is trained has ``batch_size`` rows in each of a given number of steps."""
    return fit(
        suite, encoder, build(method), epochs=settings["epochs"], steps_per_epoch=settings["steps_per_epoch"],
        batch_size=50, learning_rate=settings["learning_rate"], optimizer="Adam", keep="last", device="cpu",
        seed=seed, progress=False,
    )  # fmt: skip


def value(run: Run, task: str) -> float:
    """A task's test metric."""
    found = run.summary["tasks"][task]["test"]
    return float(found[run.suite[task].metric])


def point(x: float, gain: Estimate) -> tuple[float, float, float, float]:
    """A point of a curve with its interval; a single value is its own."""
    low, high = (gain.mean, gain.mean) if gain.count < 2 else (gain.low, gain.high)
    return x, gain.mean, low, high


def verdict(gain: Estimate) -> str:
    """Whether an interval excludes zero, and on which side."""
    return "positive" if gain.low > 0 else "negative" if gain.high < 0 else "undecided"
