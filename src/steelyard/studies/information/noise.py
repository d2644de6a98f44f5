"""Study ``svd-noise``: do SVD weights help when one of two tasks has noisy labels? (Figure 12)."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

import numpy as np

from steelyard import data, fit
from steelyard.data import SourceData, TargetData
from steelyard.data.generators import with_noise
from steelyard.report.drawing import intervals
from steelyard.studies.base import Findings, Settings, Size, Study, Table
from steelyard.studies.information.running import PAPER
from steelyard.studies.results import Key, Results, Value
from steelyard.studies.statistics import estimate, paired
from steelyard.studies.tables import probability
from steelyard.tasks import Suite

METHODS: Mapping[str, Any] = {
    "uniform": "uniform",
    "svd": "svd",
    "as published": {"name": "svd", "as_published": True, "rank": 1},
    "uncertainty": "uncertainty",
}
"""``as published``: SVD weights of raw 0/1 labels, which hide noise."""

LABELS = 14


class NoiseFigure(Study):
    """Ten pairs of yeast's labels, 20 % of one task's training labels flipped: the mean AUROC of both on clean rows."""

    name = "svd-noise"
    summary = "whether SVD weights and uncertainty weighting help where one of two tasks has noisy labels"
    paper = f"{PAPER}, Figure 12"
    needs = ("multilabel",)
    settings: ClassVar[Mapping[Size, Settings]] = {
        "small": {"seeds": 2, "pairs": 3, "flips": [0.0, 0.2], "rows": 300, "epochs": 10, "hidden": 32},
        "full": {"seeds": 5, "pairs": 10, "flips": [0.0, 0.2], "rows": 300, "epochs": 20, "hidden": 32},
    }
    minutes: ClassVar[Mapping[Size, float]] = {"small": 0.5, "full": 3}

    def keys(self, settings: Settings) -> list[Key]:
        """Every pair, with noise and without, by every method."""
        return [
            {"pair": pair, "flips": flips, "method": method, "seed": seed}
            for pair in range(settings["pairs"])
            for flips in settings["flips"]
            for method in METHODS
            for seed in range(settings["seeds"])
        ]

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """The mean AUROC of both tasks and the noisy task's, and its share of the weights."""
        suite = _pair(key["pair"], settings["rows"], key["seed"])
        noisy = list(suite.tasks)[key["seed"] % 2]
        if key["flips"]:
            suite = with_noise(suite, {noisy: key["flips"]}, key["seed"])
        run = fit(
            suite, "mlp", METHODS[key["method"]], encoder_options={"hidden": (settings["hidden"],)},
            epochs=settings["epochs"], batch_size=32, seed=key["seed"], progress=False, device="cpu",
        )  # fmt: skip
        scores = {name: found["test"]["auroc"] for name, found in run.summary["tasks"].items()}
        share = run.weights[noisy] / sum(run.weights.values())
        return {"mean": sum(scores.values()) / len(scores), "noisy": scores[noisy], "share": share}

    def findings(self, settings: Settings, results: Results) -> Findings:
        """Means over pairs; intervals over pairs too, each the mean of its seeds."""
        rows = []
        for flips in settings["flips"]:
            at = results.where(flips=flips)
            plain = _by_pair(at.where(method="uniform"), "mean")
            for method in at.levels("method"):
                mine = at.where(method=method)
                found = {what: estimate(list(_by_pair(mine, what).values())) for what in ("mean", "noisy", "share")}
                gain = paired(_by_pair(mine, "mean"), plain)
                against = [gain.signed, probability(gain.p)] if method != "uniform" else ["", ""]
                rows.append([f"{flips:.0%}", method, *map(str, found.values()), *against])
        worst = max(settings["flips"])
        moved = _moved(results, worst)
        noisy = results.where(flips=worst)
        gain = paired(_by_pair(noisy.where(method="svd"), "mean"), _by_pair(noisy.where(method="uniform"), "mean"))
        answer = (
            f"With {worst:.0%} of one task's labels flipped, SVD weights change the mean AUROC by {gain.signed} over "
            f"{gain.count} pairs, and the noisy task's share of the weights by {moved.signed}."
        )
        columns = ("flipped", "method", "mean AUROC", "of the noisy task", "its share", "against uniform", "p")
        note = f"{settings['rows']} rows; ± is 95 % over pairs of labels, each the mean of {settings['seeds']} seeds."
        differs = (
            "yeast in place of ChestX-ray14, an MLP; labels are flipped at the rate, the paper flips half of these"
        )
        figures = {"pairs": intervals(_gains(noisy), f"change of the mean AUROC with {worst:.0%} flipped")}
        return Findings(answer, [Table("AUROC on clean test rows", columns, rows, note)], figures, differs)


def _pair(number: int, rows: int, seed: int) -> Suite:
    """Two of yeast's labels on the same rows."""
    pairs = list(itertools.combinations(range(LABELS), 2))
    first, second = pairs[np.random.default_rng(0).permutation(len(pairs))[number]]
    tables = [
        {"name": f"label-{k}", "train": f"suite:multilabel/yeast/{k}", "metric": "auroc"} for k in (first, second)
    ]
    prepared = data.build(TargetData(**tables[0]), [SourceData(**tables[1])], seed=seed)
    return data.generators.with_sizes(
        Suite(prepared.suite.tasks.values()), dict.fromkeys(prepared.suite.tasks, rows), seed
    )


def _by_pair(results: Results, what: str) -> dict[Hashable, float]:
    """A number of each pair: the mean over seeds."""
    return {pair: results.estimate(what, pair=pair).mean for pair in results.levels("pair")}


def _gains(results: Results) -> dict[str, tuple[float, float, float]]:
    """Each method's gain over pairs, and below it SVD weights' gain for each pair, over its seeds."""
    plain = _by_pair(results.where(method="uniform"), "mean")
    found = {m: paired(_by_pair(results.where(method=m), "mean"), plain) for m in list(METHODS)[1:]}
    for pair in results.levels("pair"):
        found[f"svd, pair {pair + 1}"] = results.gain("mean", {"method": "svd"}, {"method": "uniform"}, pair=pair)
    return {name: (gain.mean, gain.low, gain.high) for name, gain in found.items()}


def _moved(results: Results, flips: float) -> Any:
    """How the noisy task's share of the SVD weights changes with the noise."""
    chosen = results.where(method="svd")
    return paired(_by_pair(chosen.where(flips=flips), "share"), _by_pair(chosen.where(flips=0.0), "share"))
