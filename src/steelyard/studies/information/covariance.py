"""Study ``transfer-covariance``: does a source of another covariance hurt where one of the same helps? (Figure 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from steelyard.report.drawing import curves
from steelyard.studies.base import Findings, Settings, Size, Study, Table
from steelyard.studies.information import running
from steelyard.studies.results import Key, Results, Value

COVARIANCES = ("same", "different")


class CovarianceFigure(Study):
    """A linear, logistic or ReLU target, and ever more rows of a source of nearly the same model (cosine 0.96).

    Both orders of the generator; a target of 9,000 clean rows, as printed, and one of 100 noisy rows, which has
    something to gain.
    """

    name = "transfer-covariance"
    summary = "whether a source helps or hurts by the covariance of its inputs"
    paper = f"{running.PAPER}, Figure 3"
    settings: ClassVar[Mapping[Size, Settings]] = {
        "small": {
            "seeds": 3, "links": ["linear", "logistic", "relu"], "orders": ["RQD", "RDQ"], "rows": [300, 3_000],
            "targets": {"few": [100, 0.5]}, "flips": 0.1, "dim": 100, "condition": 100.0, "neurons": 4,
            "epochs": 5, "steps_per_epoch": 60, "learning_rate": 1e-2,
        },
        "full": {
            "seeds": 5, "links": ["linear", "logistic", "relu"], "orders": ["RQD", "RDQ"],
            "rows": [1_000, 3_000, 9_000], "targets": {"many": [9_000, 0.0], "few": [100, 0.5]}, "flips": 0.1,
            "dim": 100, "condition": 100.0, "neurons": 4, "epochs": 5, "steps_per_epoch": 100, "learning_rate": 1e-2,
        },
    }  # fmt: skip
    minutes: ClassVar[Mapping[Size, float]] = {"small": 0.5, "full": 4}

    def keys(self, settings: Settings) -> list[Key]:
        """The target alone, and with each source."""
        return [
            {"target": target, "link": link, "order": order, "source": source, "rows": rows, "seed": seed}
            for target in settings["targets"]
            for link in settings["links"]
            for order in settings["orders"]
            for source in ("none", *COVARIANCES)
            for rows in ([0] if source == "none" else settings["rows"])
            for seed in range(settings["seeds"])
        ]

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """The target's test metric: Spearman's correlation, or accuracy."""
        tasks = running.made(settings, key, key["source"])
        linear = key["link"] != "relu"
        encoder = running.network(settings["dim"], 1 if linear else settings["neurons"], key["seed"], linear=linear)
        method = "single" if key["source"] == "none" else "uniform"
        run = running.trained(tasks.suite, encoder, method, settings, key["seed"])
        return {"value": running.value(run, "target")}

    def findings(self, settings: Settings, results: Results) -> Findings:
        """Gains over the target alone, by link, order and covariance; and how many agree with the figure."""
        rows, figures, counts = [], {}, Counter[str]()
        smallest = min(settings["rows"])
        for target in settings["targets"]:
            for link in settings["links"]:
                lines = {}
                for order in settings["orders"]:
                    at = {"target": target, "link": link, "order": order}
                    alone = results.estimate("value", source="none", **at)
                    for source in COVARIANCES:
                        gains = {
                            n: results.gain("value", {"source": source, "rows": n}, {"source": "none"}, **at)
                            for n in settings["rows"]
                        }
                        lines[f"{source}, X = {order}"] = [running.point(n, gain) for n, gain in gains.items()]
                        counts[f"{source} {running.verdict(gains[smallest])}"] += 1
                        shown = [gain.signed for gain in gains.values()]
                        rows.append([running.TARGETS[target], link, order, source, str(alone), *shown])
                figures[f"{link}-{target}"] = curves(
                    lines, "rows of the source", f"gain of the {link} target", zero=True
                )
        sizes = [f"{n:,} rows" for n in settings["rows"]]
        columns = ("target", "labels", "X", "covariance", "alone", *sizes)
        panels = len(rows) // 2
        answer = (
            f"With {smallest:,} source rows, of {panels} settings each: the same covariance helps in "
            f"{counts['same positive']} and hurts in {counts['same negative']}; a different one helps in "
            f"{counts['different positive']} and hurts in {counts['different negative']} (intervals that exclude zero)."
        )
        note = "Spearman's correlation (accuracy for logistic) on test rows; gains are paired by seed."
        table = Table("gain over the target alone", columns, rows, note)
        differs = (
            "Adam at 1e-2 for a fixed number of steps; r = 1, and "
            f"{settings['neurons']} neurons for ReLU; the target of 100 noisy rows is ours"
        )
        return Findings(answer, [table], figures, differs)
