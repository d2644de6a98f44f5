"""Study ``signals``: which signal finds the source that helps, and is it worth anything to the target?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from steelyard.studies.base import Findings, Settings, Size, Study, Table
from steelyard.studies.results import Key, Results, Value
from steelyard.studies.statistics import Estimate
from steelyard.studies.tables import comparison
from steelyard.studies.three_sources import SOURCES

if TYPE_CHECKING:
    from steelyard.tasks import Suite

COSINE = {"signal": "cosine"}
STEPS = COSINE | {"observe": "step"}
DEV = {"role": "dev_meta"}
CONTROLS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "single": ("single", {"matched": True}),
    "helpful alone": ("uniform", {}),
    "uniform": ("uniform", {}),
    "ramp": ("ramp", {"growth": 0.25}),
}
SIGNALS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "answers (the default)": ("tawt", {}),
    "as published": ("tawt", {"as_published": True}),
    "a probe per epoch, train": ("tawt", COSINE),
    "a probe per epoch, dev_meta": ("tawt", COSINE | DEV),
    "every step, train": ("tawt", STEPS),
    "every step, dev_meta": ("tawt", STEPS | DEV),
    "every step, dev_meta, dot": ("tawt", STEPS | DEV | {"signal": "dot"}),
    "every step, dev_meta, preconditioned": ("tawt", STEPS | DEV | {"signal": "preconditioned"}),
    "every step, dev_meta, head refitted": ("tawt", STEPS | DEV | {"head_steps": 20}),
    "hypergradient, dev_meta": ("tawt", DEV | {"signal": "hypergradient"}),
    "weights per example, train": ("tawt", {"level": "example"}),
    "weights per example, dev_meta": ("tawt", DEV | {"level": "example"}),
    "αVIL's deltas": ("alphavil", {}),
}
DISTANCE = "distance without training"
TRAINING: Mapping[str, dict[str, Any]] = {
    "digits": {"encoder": "mlp", "encoder_options": {"hidden": [64]}, "batch_size": 16},
    "questions": {
        "encoder": "textcnn", "encoder_options": {"size": 32, "channels": 32, "widths": [3]}, "batch_size": 32,
    },
}  # fmt: skip
ENOUGH = 0.8


class Signals(Study):
    """A target of some fifty rows, a source that helps it, one beside the point, and one of shuffled labels."""

    name = "signals"
    summary = "which signal finds the source that helps, on two real suites"
    paper = "TAWT's open question: what to hold a source's gradient against"
    needs = ("lowtext/trec", "sentiment4")
    settings: ClassVar[Mapping[Size, Settings]] = {
        "small": {"seeds": 2, "epochs": 4, "steps": 10, "suites": ["digits"]},
        "full": {"seeds": 10, "epochs": 10, "steps": 20, "suites": ["digits", "questions"]},
    }
    minutes: ClassVar[Mapping[Size, float]] = {"small": 0.3, "full": 10}

    def keys(self, settings: Settings) -> list[Key]:
        """Every way with every suite and seed."""
        ways = [*CONTROLS, *SIGNALS, DISTANCE]
        return [
            {"suite": suite, "way": way, "seed": seed}
            for suite in settings["suites"]
            for seed in range(settings["seeds"])
            for way in ways
        ]

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """The target's test accuracy, the sources' last weights, and whether the helpful one has the largest."""
        from steelyard import fit
        from steelyard.methods import get
        from steelyard.studies import three_sources

        suite = getattr(three_sources, key["suite"])(key["seed"])
        training = TRAINING[key["suite"]] | {"seed": key["seed"], "epochs": settings["epochs"], "learning_rate": 3e-3}
        training["steps_per_epoch"] = settings["steps"]
        if key["way"] == DISTANCE:
            name, options = "tawt", {"weights": _by_distance(suite, training)}
        else:
            name, options = {**CONTROLS, **SIGNALS}[key["way"]]
        if key["way"] == "helpful alone":
            suite = suite.with_tasks([suite["target"], suite["helpful"]])
        run = fit(suite, method=get(name)(**options), progress=False, **training)
        found = {"accuracy": run.metrics["test"]["accuracy"], "weights": run.weights}
        return found if key["way"] in CONTROLS else found | {"first": _first(run.weights)}

    def findings(self, settings: Settings, results: Results) -> Findings:
        """For each suite, how often each signal ranks the helpful source first, and what it does for the target."""
        tables, reach = [], []
        for suite in settings["suites"]:
            own = results.where(suite=suite)
            tables.append(_ranking(suite, own))
            tables.append(comparison(f"{suite}: test accuracy of the target", own, "accuracy", vary="way"))
            reach.append({way for way in [*SIGNALS, DISTANCE] if _reaches(own, way)})
        winners = sorted(set.intersection(*reach))
        bar = f"the helpful source first in {ENOUGH:.0%} of the seeds, and a test accuracy not below uniform's"
        return Findings(f"{bar}, on each suite: {'; '.join(winners) or 'no signal'}.".capitalize(), tables)


def _first(weights: Mapping[str, float]) -> float:
    """Whether the helpful source has the largest weight; a tie is no finding."""
    return float(weights["helpful"] > max(weights["irrelevant"], weights["permuted"]))


def _by_distance(suite: Suite, training: dict[str, Any]) -> dict[str, float]:
    """Weights that stay: the sources' log-weights fall by 1.5 per standard deviation of their distances."""
    from steelyard.diagnostics import task_distances

    found = task_distances(suite, estimate="answers", **training)
    far = torch.tensor([each.value for each in found])
    mixture = (-1.5 * (far - far.mean()) / far.std()).softmax(0) * len(found) / (len(found) + 1)
    return dict(zip([each.sources for each in found], mixture.tolist(), strict=True)) | {"target": 1 / (len(found) + 1)}


def _ranking(suite: str, results: Results) -> Table:
    rows = []
    for way in [*SIGNALS, DISTANCE]:
        own = results.where(way=way)
        first = own.estimate("first")
        cells = [way, f"{round(first.mean * first.count)} of {first.count}"]
        shares = [
            own.estimate(lambda v, s=source: v["weights"][s] / sum(v["weights"][each] for each in SOURCES))  # type: ignore[misc]
            for source in SOURCES
        ]
        rows.append(cells + [f"{share.mean:.2f}" for share in shares])
    columns = ("signal", "helpful first", *(f"{source}'s share" for source in SOURCES))
    return Table(f"{suite}: what each signal says of the sources", columns, rows)


def _reaches(results: Results, way: str) -> bool:
    """The bar that is set for the default."""
    gain: Estimate = results.gain("accuracy", {"way": way}, {"way": "uniform"})
    return results.estimate("first", way=way).mean >= ENOUGH and not gain.high < 0
