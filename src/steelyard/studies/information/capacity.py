"""Study ``capacity``: is the best shared width below the sum of the single tasks' best? (Figures 10 and 11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from steelyard import data
from steelyard.data import SourceData, TargetData
from steelyard.diagnostics import capacity_search
from steelyard.report.drawing import curves
from steelyard.studies.base import Findings, Settings, Size, Study, Table
from steelyard.studies.information.running import PAPER, point
from steelyard.studies.results import Key, Results, Value

SUITES = {
    "mlp": ("digits", ("digit", "parity", "large", "loops")),
    "textcnn": ("sentiment4", ("amazon", "movies", "editorials", "tweets")),
}
"""The data of each encoder, and its tasks."""


class CapacityFigure(Study):
    """Widths of an MLP on four tasks of digits, and of a convolution on sentences of four domains."""

    name = "capacity"
    summary = "the best width of a shared part, and what its tasks would choose alone"
    paper = f"{PAPER}, Figures 10 and 11, Table 1"
    needs = ("sentiment4",)
    settings: ClassVar[Mapping[Size, Settings]] = {
        "small": {"seeds": 2, "rows": 100, "epochs": 5, "learning_rate": 1e-2, "widths": {"mlp": [2, 8, 32]}},
        "full": {
            "seeds": 5, "rows": 200, "epochs": 10, "learning_rate": 5e-3,
            "widths": {"mlp": [2, 4, 8, 16, 32, 64, 128], "textcnn": [1, 2, 4, 8, 16]},
        },
    }  # fmt: skip
    minutes: ClassVar[Mapping[Size, float]] = {"small": 0.5, "full": 8}

    def keys(self, settings: Settings) -> list[Key]:
        """A search for each encoder and seed."""
        return [{"encoder": name, "seed": seed} for name in settings["widths"] for seed in range(settings["seeds"])]

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """The best dev metric of every width, of all tasks together (their mean) and of each alone."""
        suite, names = SUITES[key["encoder"]]
        tables = [{"name": name, "train": f"suite:{suite}/{name}@{settings['rows']}"} for name in names]
        made = data.build(TargetData(**tables[0]), [SourceData(**each) for each in tables[1:]], seed=key["seed"])
        found = capacity_search(
            made.suite, key["encoder"], settings["widths"][key["encoder"]], grace=1.0, epochs=settings["epochs"],
            learning_rate=settings["learning_rate"], batch_size=32, device="cpu", seed=key["seed"],
        )  # fmt: skip
        lines = {name: [value for _, value in points] for name, points in found.lines().items()}
        return {"lines": lines, "best": found.shared.best, "total": found.total}

    def findings(self, settings: Settings, results: Results) -> Findings:
        """The curves, and the widths that were chosen."""
        rows, figures, below = [], {}, []
        for encoder, widths in settings["widths"].items():
            mine = results.where(encoder=encoder)
            names = next(iter(mine))[1]["lines"]
            lines = {
                name: [
                    point(r, mine.estimate(lambda value, name=name, i=i: value["lines"][name][i]))  # type: ignore[misc]
                    for i, r in enumerate(widths)
                ]
                for name in names
            }
            figures[encoder] = curves(lines, "width of the shared part", "dev accuracy", logarithmic=True)
            best, total = mine.estimate("best"), mine.estimate("total")
            gap = mine.estimate(lambda value: value["best"] - value["total"])
            below.append(f"{encoder} in {sum(v['best'] < v['total'] for _, v in mine)} of {len(mine)} seeds")
            rows.append([encoder, ", ".join(SUITES[encoder][1]), str(best), str(total), gap.signed])
        columns = ("encoder", "tasks", "best width together", "sum of the best alone", "difference")
        answer = f"The best shared width is below the sum of the single tasks' best: {'; '.join(below)}."
        note = f"{settings['rows']} rows per task; the width by dev accuracy, the smallest of equals."
        differs = "digits, and sentences of four domains, in place of six sentiment tasks; small networks"
        return Findings(answer, [Table("the width by validation", columns, rows, note)], figures, differs)
