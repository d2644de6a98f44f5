"""Study ``alignment``: does a matrix per task undo what a different covariance does? (Figure 9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from steelyard.diagnostics import covariance_similarity
from steelyard.report.drawing import curves
from steelyard.studies.base import Findings, Settings, Size, Study, Table
from steelyard.studies.information import running
from steelyard.studies.results import Key, Results, Value

METHODS: Mapping[str, Any] = {
    "single": "single",
    "uniform": "uniform",
    "alignment": {"name": "alignment"},
    "jointly": {"name": "alignment", "steps": "joint"},
}
"""``jointly``: B, heads and matrices move together."""


class AlignmentFigure(Study):
    """Figure 3's source of a different covariance, with alignment and without."""

    name = "alignment"
    summary = "whether covariance alignment undoes what a source of another covariance does"
    paper = f"{running.PAPER}, Figure 9"
    settings: ClassVar[Mapping[Size, Settings]] = {
        "small": {
            "seeds": 3, "links": ["linear"], "orders": ["RQD", "RDQ"], "rows": [300], "targets": {"few": [100, 0.5]},
            "flips": 0.1, "dim": 100, "condition": 100.0, "neurons": 4, "epochs": 6, "steps_per_epoch": 50,
            "learning_rate": 1e-2,
        },
        "full": {
            "seeds": 5, "links": ["linear", "relu"], "orders": ["RQD", "RDQ"], "rows": [1_000, 9_000],
            "targets": {"many": [9_000, 0.0], "few": [100, 0.5]}, "flips": 0.1, "dim": 100, "condition": 100.0,
            "neurons": 4, "epochs": 6, "steps_per_epoch": 80, "learning_rate": 1e-2,
        },
    }  # fmt: skip
    minutes: ClassVar[Mapping[Size, float]] = {"small": 0.5, "full": 5}

    def keys(self, settings: Settings) -> list[Key]:
        """The target alone, and every way to train it with its source."""
        return [
            {"target": target, "link": link, "order": order, "method": method, "rows": rows, "seed": seed}
            for target in settings["targets"]
            for link in settings["links"]
            for order in settings["orders"]
            for method in METHODS
            for rows in ([0] if method == "single" else settings["rows"])
            for seed in range(settings["seeds"])
        ]

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """The target's test metric, and how similar the two covariances are when B gets them."""
        tasks = running.made(settings, key, "different")
        linear = key["link"] != "relu"
        encoder = running.network(settings["dim"], 1 if linear else settings["neurons"], key["seed"], linear=linear)
        run = running.trained(tasks.suite, encoder, METHODS[key["method"]], settings, key["seed"])
        found = {"value": running.value(run, "target")}
        if not key["rows"]:
            return found
        similar = covariance_similarity(tasks.suite, run.model, normalized=True, rows=1_000)
        return found | {"similarity": similar["target", "source"]}

    def findings(self, settings: Settings, results: Results) -> Findings:
        """Gains over the target alone and over training without matrices."""
        rows, figures, counts = [], {}, Counter[str]()
        smallest = min(settings["rows"])
        for target in settings["targets"]:
            for link in settings["links"]:
                for order in settings["orders"]:
                    at = {"target": target, "link": link, "order": order}
                    lines = {}
                    for method in list(METHODS)[1:]:
                        chosen = {n: {"method": method, "rows": n} for n in settings["rows"]}
                        gains = {n: results.gain("value", c, {"method": "single"}, **at) for n, c in chosen.items()}
                        lines[method] = [running.point(n, gain) for n, gain in gains.items()]
                        counts[f"{method} {running.verdict(gains[smallest])}"] += 1
                        over = results.gain("value", chosen[smallest], chosen[smallest] | {"method": "uniform"}, **at)
                        counts[f"{method} over {running.verdict(over)}"] += 1
                        similar = results.estimate("similarity", **chosen[smallest], **at)
                        shown = [gain.signed for gain in gains.values()]
                        rows.append([running.TARGETS[target], link, order, method, f"{similar.mean:.3f}", *shown])
                    figures[f"{link}-{target}-{order}"] = curves(
                        lines, "rows of the source", f"gain of the {link} target", zero=True
                    )
        settled = len(rows) // (len(METHODS) - 1)
        sizes = [f"{n:,} rows" for n in settings["rows"]]
        answer = (
            f"With {smallest:,} source rows of a different covariance, of {settled} settings: without matrices it "
            f"hurts in {counts['uniform negative']}, with alignment in {counts['alignment negative']}; alignment is "
            f"better than none in {counts['alignment over positive']} and worse in {counts['alignment over negative']} "
            "(intervals that exclude zero)."
        )
        columns = ("target", "labels", "X", "method", "similarity", *sizes)
        note = "Gain over the target alone; similarity: the normalised score after training, at the smallest size."
        return Findings(
            answer, [Table("gain over the target alone", columns, rows, note)], figures,
            "Adam at 1e-2 for a fixed number of steps; B is held for the second half; the 100 noisy rows are ours",
        )  # fmt: skip
