"""Study ``flip-rate``: TAWT's Figure 3, with the distances that the paper does not measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from steelyard.diagnostics import Estimate
from steelyard.report import drawing
from steelyard.studies.base import Findings, Settings, Study, Table
from steelyard.studies.results import Key, Results, Value
from steelyard.studies.statistics import estimate

ESTIMATES: tuple[Estimate, ...] = ("trained", "answers", "gradients")
STUDENT = {"hidden": [256]}


class FlipRate(Study):
    """Sources that are ever farther from the target: what they are worth to targets of several sizes."""

    name = "flip-rate"
    summary = "does the task distance grow with the flip rate, and learning from a source fall with it?"
    paper = "Chen et al. 2022, Figure 3"
    settings: ClassVar = {
        "small": {
            "seeds": 1, "rates": [0.0, 0.5, 1.0], "rows": [50], "source_rows": 300, "points": 200, "epochs": 8,
        },
        "full": {
            "seeds": 5, "rates": [0.0, 0.2, 0.4, 0.6, 0.8, 1.0], "rows": [200, 20], "source_rows": 1000,
            "points": 1000, "epochs": 15,
        },
    }  # fmt: skip
    minutes: ClassVar = {"small": 0.2, "full": 4}

    def keys(self, settings: Settings) -> list[Key]:
        """A cell for each size of the target and seed, with all rates."""
        return [{"rows": rows, "seed": seed} for rows in settings["rows"] for seed in range(settings["seeds"])]

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """Each source's distances, and the target's test accuracy on its frozen representation; and alone."""
        from steelyard.data.generators import flip_rate_tasks
        from steelyard.diagnostics import task_distances

        suite = flip_rate_tasks(
            settings["rates"], target_rows=key["rows"], source_rows=settings["source_rows"], held_rows=300,
            points=settings["points"], hidden=256, seed=key["seed"],
        )  # fmt: skip
        training: dict[str, Any] = {
            "epochs": settings["epochs"], "batch_size": 100, "steps_per_epoch": settings["source_rows"] // 100,
            "seed": key["seed"],
        }  # fmt: skip
        found: dict[str, Any] = {
            name: [
                each.value for each in task_distances(suite, "mlp", estimate=name, encoder_options=STUDENT, **training)
            ]
            for name in ESTIMATES
        }
        found["learned"] = [_accuracy(suite, source, training) for source in suite.sources]
        return found | {"single": _accuracy(suite, None, training)}

    def findings(self, settings: Settings, results: Results) -> Findings:
        """Rank correlations; gains by rate and size; two figures."""
        ranks, gains = _ranks(settings, results), _gains(settings, results)
        largest = max(settings["rows"])
        own = results.where(rows=largest)
        worst = min(_correlations(own, "trained", settings["rates"]))
        quick = {name: min(_agreements(own, name)) for name in ESTIMATES[1:]}
        return Findings(
            f"With {largest} target rows, in every seed: Spearman correlation of the trained distance with the flip "
            f"rate {worst:.2f} or more; of the trained distance with the estimates without training "
            f"{quick['answers']:.2f} or more (answers) and {quick['gradients']:.2f} or more (gradients).",
            [ranks, gains],
            {"distance": _distance_figure(settings, results), "gain": _gain_figure(settings, results)},
            "the paper's figure has inputs of 1000 dimensions, networks of width 4096, 10 000 points and source rows, "
            "targets of 10 to 10 000 rows and one seed, and shows accuracies alone: learning from the source beats "
            "the single task the more, the smaller the flip rate and the target. Here all sizes are a tenth or less, "
            "and distances are measured.",
        )


def _accuracy(suite: Any, source: str | None, training: dict[str, Any]) -> float:
    """The target's test accuracy: on the representation of a source, frozen; or all trained on the target alone."""
    import torch

    from steelyard import SharedModel, encoders, fit

    torch.manual_seed(training["seed"])
    model = SharedModel(encoders.build("mlp", suite.spec, **STUDENT), suite)
    common = training | {"keep": "last", "progress": False}
    if source is not None:
        fit(_alone(suite, source), model, **common)
        model.encoder.requires_grad_(requires_grad=False)
    run = fit(_alone(suite, "target"), model, **common)
    return float(run.summary["tasks"]["target"]["test"]["accuracy"])


def _alone(suite: Any, task: str) -> Any:
    from steelyard import Suite

    return Suite([suite[task]])


def _spearman(first: Sequence[float], second: Sequence[float]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic)


def _correlations(results: Results, name: str, rates: Sequence[float]) -> list[float]:
    return [_spearman(rates, value[name]) for _, value in results]


def _agreements(results: Results, name: str) -> list[float]:
    return [_spearman(value["trained"], value[name]) for _, value in results]


def _ranks(settings: Settings, results: Results) -> Table:
    rows = []
    for size in settings["rows"]:
        own = results.where(rows=size)
        for name in ESTIMATES:
            with_rate = _correlations(own, name, settings["rates"])
            with_trained = _agreements(own, name) if name != "trained" else []
            cells = [f"{sum(c) / len(c):.2f} ({min(c):.2f})" if c else "" for c in (with_rate, with_trained)]
            rows.append([str(size), name, *cells, str(len(own))])
    columns = ("target rows", "distance", "with the flip rate", "with the trained distance", "seeds")
    return Table("Spearman correlation over the sources, mean (least)", columns, rows)


def _gain(results: Results, size: int, place: int) -> list[float]:
    return [value["learned"][place] - value["single"] for _, value in results.where(rows=size)]


def _gains(settings: Settings, results: Results) -> Table:
    rows = []
    for size in settings["rows"]:
        single = results.estimate("single", rows=size)
        each = [estimate(_gain(results, size, place)) for place in range(len(settings["rates"]))]
        rows.append([str(size), str(single), *(gain.signed for gain in each)])
    columns = ("target rows", "single task", *(f"q = {rate:g}" for rate in settings["rates"]))
    note = "Accuracy on the source's representation, frozen, minus the single task's; mean and 95 % interval."
    return Table("test accuracy of the target: what learning from a source adds", columns, rows, note)


def _gain_figure(settings: Settings, results: Results) -> str:
    lines: dict[str, list[drawing.Point]] = {}
    for size in settings["rows"]:
        found = [(rate, estimate(_gain(results, size, place))) for place, rate in enumerate(settings["rates"])]
        lines[f"{size} target rows"] = [(rate, e.mean, *_ends(e.mean, e.low, e.high)) for rate, e in found]
    return drawing.curves(lines, "flip rate of the source", "gain in accuracy over single task", zero=True)


def _distance_figure(settings: Settings, results: Results) -> str:
    lines: dict[str, list[drawing.Point]] = {}
    for size in settings["rows"]:
        own = results.where(rows=size)
        points = []
        for place, rate in enumerate(settings["rates"]):
            found = estimate([value["trained"][place] for _, value in own])
            points.append((rate, found.mean, *_ends(found.mean, found.low, found.high)))
        lines[f"{size} target rows"] = points
    return drawing.curves(lines, "flip rate of the source", "task distance (trained)", zero=True)


def _ends(mean: float, low: float, high: float) -> tuple[float, float]:
    """The interval; nothing but the mean where one seed gives none."""
    return (mean, mean) if math.isnan(low) else (low, high)
