"""Study ``transfer-cosine``: how near must two tasks' models be? (Figures 7 and 8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from steelyard.data.generators import Made, Source, subspace_tasks, transfer_tasks
from steelyard.report.drawing import curves
from steelyard.studies.base import Findings, Settings, Size, Study, Table
from steelyard.studies.information import running
from steelyard.studies.results import Key, Results, Value

ONE = {"7a": "linear regression", "7b": "logistic", "7c": "ReLU regression", "7d": "ReLU classes"}
TEN = {"8a": "ReLU regression", "8b": "ReLU classes"}


class CosineFigure(Study):
    """Two tasks with isotropic inputs, their models at ever wider angles.

    Figure 7: one direction each, as many rows each, the mean of both tasks. Figure 8: ten neurons each, a target of 100
    rows, and ever more rows of the source.
    """

    name = "transfer-cosine"
    summary = "whether two tasks help one another by the angle between their models"
    paper = f"{running.PAPER}, Figures 7 and 8"
    settings: ClassVar[Mapping[Size, Settings]] = {
        "small": {
            "seeds": 3, "cosines": [1.0, 0.5, 0.0], "ten_cosines": [0.9, 0.1],
            "pair_rows": 100, "rows": [1_000], "noise": 0.3, "flips": 0.1,
            "dim": 50, "rank": 10, "epochs": 5, "steps_per_epoch": 60, "learning_rate": 1e-2,
        },
        "full": {
            "seeds": 5, "cosines": [1.0, 0.9, 0.7, 0.5, 0.3, 0.1], "ten_cosines": [0.9, 0.5, 0.1],
            "pair_rows": 200, "rows": [1_000, 9_000], "noise": 0.3, "flips": 0.1,
            "dim": 100, "rank": 10, "epochs": 5, "steps_per_epoch": 80, "learning_rate": 1e-2,
        },
    }  # fmt: skip
    minutes: ClassVar[Mapping[Size, float]] = {"small": 0.5, "full": 5}

    def keys(self, settings: Settings) -> list[Key]:
        """Both figures; one cell holds the pair and its tasks alone."""
        seeds = range(settings["seeds"])
        seven: list[Key] = [
            {"panel": panel, "cosine": cosine, "rows": settings["pair_rows"], "seed": seed}
            for panel in ONE for cosine in settings["cosines"] for seed in seeds
        ]  # fmt: skip
        eight: list[Key] = [
            {"panel": panel, "cosine": cosine, "rows": rows, "seed": seed}
            for panel in TEN for cosine in settings["ten_cosines"] for rows in settings["rows"] for seed in seeds
        ]  # fmt: skip
        return seven + eight

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """Test metric together minus alone: the mean of both tasks (Figure 7), or the target (Figure 8)."""
        panel = key["panel"]
        tasks = _tasks(settings, key)
        linear = panel in ("7a", "7b")
        neurons = settings["rank"] if panel in TEN else 1 if linear else 4
        judged = ["target"] if panel in TEN else ["target", "source"]

        def values(suite: Any, names: list[str]) -> list[float]:
            encoder = running.network(settings["dim"], neurons, key["seed"], linear=linear)
            run = running.trained(suite, encoder, "uniform", settings, key["seed"])
            return [running.value(run, name) for name in names]

        together = values(tasks.suite, judged)
        alone = [values(type(tasks.suite)([tasks.suite[name]]), [name])[0] for name in judged]
        return {"together": sum(together) / len(judged), "alone": sum(alone) / len(judged)}

    def findings(self, settings: Settings, results: Results) -> Findings:
        """Gains by cosine, and where they change sign."""
        rows, ten, figures, turning = [], [], {}, []
        distance = "cosine distance between the tasks' models"
        lines = {}
        for panel, what in ONE.items():
            gains = {c: _gain(results, panel=panel, cosine=c) for c in settings["cosines"]}
            lines[what] = [running.point(1 - c, gain) for c, gain in gains.items()]
            rows.append([panel, what, f"{settings['pair_rows']:,}", *(gain.signed for gain in gains.values())])
            hurt = [c for c, gain in gains.items() if gain.mean < 0]
            turning.append(f"{what} {max(hurt):g}" if hurt else f"{what} never")
        figures["figure7"] = curves(lines, distance, "gain, mean of both tasks", zero=True)
        for panel, what in TEN.items():
            lines = {}
            for cosine in settings["ten_cosines"]:
                gains = {n: _gain(results, panel=panel, cosine=cosine, rows=n) for n in settings["rows"]}
                lines[f"cosine {cosine:g}"] = [running.point(n, gain) for n, gain in gains.items()]
            figures[f"figure{panel}"] = curves(lines, "rows of the source", f"gain of the target, {what}", zero=True)
            for n in settings["rows"]:
                found = [_gain(results, panel=panel, cosine=c, rows=n).signed for c in settings["ten_cosines"]]
                ten.append([panel, what, f"{n:,}", *found])
        answer = f"Largest cosine at which training together loses on average: {', '.join(turning)}."
        note = "Spearman's correlation or accuracy on test rows, together minus alone, in as many steps."
        differs = (
            "Adam at 1e-2 for a fixed number of steps; sources at an exact cosine (the paper's formula is not one)"
        )

        def table(title: str, cosines: list[float], found: list[list[str]]) -> Table:
            return Table(title, ("figure", "labels", "source rows", *(f"cosine {c:g}" for c in cosines)), found, note)

        tables = [
            table("Figure 7: mean of both tasks", settings["cosines"], rows),
            table("Figure 8: the target, ten neurons", settings["ten_cosines"], ten),
        ]
        return Findings(answer, tables, figures, differs)


def _tasks(settings: Mapping[str, Any], key: Mapping[str, Any]) -> Made:
    panel, rows, cosine, seed = key["panel"], key["rows"], key["cosine"], key["seed"]
    classes = panel in ("7b", "7d", "8b")
    noise = settings["flips"] if classes else settings["noise"]
    if panel in ("7a", "7b"):
        return transfer_tasks(
            {"source": Source(rows, cosine, "same", noise)}, target_rows=rows, target_noise=noise, order="RDQ",
            link="logistic" if classes else "linear", dim=settings["dim"], condition=1.0, seed=seed,
        )  # fmt: skip
    rank = settings["rank"] if panel in TEN else 1
    target = 100 if panel in TEN else rows
    return subspace_tasks(
        cosine, target_rows=target, source_rows=rows, link="logistic" if classes else "relu", rank=rank,
        dim=settings["dim"], noise=noise, seed=seed,
    )  # fmt: skip


def _gain(results: Results, **match: Any) -> Any:
    return results.estimate(lambda value: value["together"] - value["alone"], **match)
