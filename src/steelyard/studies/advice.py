"""Study ``advice``: does a look at sources before training foretell what each is worth?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from steelyard.studies.base import Findings, Settings, Size, Study, Table
from steelyard.studies.results import Key, Results, Value
from steelyard.studies.statistics import Estimate, estimate, paired
from steelyard.tasks import Suite

RATES = (0.0, 0.5, 1.0)
SOURCES: Mapping[str, tuple[str, ...]] = {
    "digits": ("parity", "large", "loops", "shuffled"),
    "flips": tuple(f"flip-{rate:g}" for rate in RATES),
}
SIGNALS = {"told": "what its labels tell", "near": "task distance, without training", "similarity": "covariance"}
GAINS = {"out": "left out", "with": "alone with the target"}


class AdviceStudy(Study):
    """Sources ranked by advice, against what the target loses without each, and gains with each alone."""

    name = "advice"
    summary = "whether the sources that look helpful before training are those that the target misses when left out"
    settings: ClassVar[Mapping[Size, Settings]] = {
        "small": {"seeds": 5, "epochs": 15, "steps": 16},
        "full": {"seeds": 20, "epochs": 30, "steps": 16},
    }
    minutes: ClassVar[Mapping[Size, float]] = {"small": 3, "full": 20}

    def keys(self, settings: Settings) -> list[Key]:
        """A look, and a run with all sources, with all but one, with one, and with none, for each suite and seed."""
        found: list[Key] = []
        for seed in range(settings["seeds"]):
            for suite, sources in SOURCES.items():
                runs = ["look", "all", "none", *(f"out {s}" for s in sources), *(f"with {s}" for s in sources)]
                found += [{"suite": suite, "run": run, "seed": seed} for run in runs]
        return found

    @staticmethod
    def measure(settings: dict[str, Any], **key: Any) -> Value:
        """What each source looks like; or the target's test accuracy after training with some of the sources."""
        from steelyard import fit
        from steelyard.diagnostics import advise

        suite = _suite(key["suite"], key["seed"])
        common = {"learning_rate": 2e-3, "seed": key["seed"]}
        if key["run"] == "look":
            found = advise(suite, "mlp", timed=False, **common)
            return {
                each.source: {
                    "told": each.told, "near": -each.distance, "similarity": each.similarity, "expected": each.expected
                } for each in found.sources
            }  # fmt: skip
        kept = _kept(suite, key["run"])
        run = fit(kept, "mlp", "uniform", epochs=settings["epochs"], steps_per_epoch=settings["steps"],
                  progress=False, **common)  # fmt: skip
        return {"accuracy": run.metrics["test"]["accuracy"]}

    def findings(self, settings: Settings, results: Results) -> Findings:
        """How rankings agree, and every source with what was expected of it and what it was worth."""
        del settings
        gains = {suite: {kind: _gains(results, suite, kind) for kind in GAINS} for suite in SOURCES}
        agreement = {
            (suite, signal, kind): estimate(_correlations(results, suite, signal, gains[suite][kind]))
            for suite in SOURCES for signal in SIGNALS for kind in GAINS
        }  # fmt: skip
        rows = [
            [suite, about, *(_said(agreement[suite, signal, kind]) for kind in GAINS)]
            for suite in SOURCES for signal, about in SIGNALS.items()
        ]  # fmt: skip
        first = Table(
            "rank correlation of a look with what sources are worth", ("suite", "ranked by", *GAINS.values()), rows,
            "Spearman's, a look of each seed against the mean gain over seeds; mean over seeds ± 95 %.",
        )  # fmt: skip
        said = "; ".join(f"{suite} {_said(agreement[suite, 'told', 'out'])}" for suite in SOURCES)
        answer = f"Rank correlation of what labels tell with the loss when a source is left out: {said}."
        return Findings(answer, [first, _sources(results, gains)])


@lru_cache(maxsize=2)
def _suite(name: str, seed: int) -> Suite:
    from steelyard import data

    if name == "digits":
        return data.suites.demo(seed)
    return data.generators.flip_rate_tasks(RATES, target_rows=100, source_rows=500, held_rows=400, seed=seed)


def _kept(suite: Suite, run: str) -> Suite:
    """The target with the sources of a run."""
    how, _, name = run.partition(" ")
    kept = {
        "all": set(suite.sources), "none": set(), "out": set(suite.sources) - {name}, "with": {name},
    }[how]  # fmt: skip
    return suite.with_tasks([task for task in suite.tasks.values() if task.name in kept or task.name == suite.target])


def _gains(results: Results, suite: str, kind: str) -> dict[str, Estimate]:
    """By source what the target's accuracy gains by it, paired by seed."""
    series = {run: results.series("accuracy", suite=suite, run=run) for run in results.where(suite=suite).levels("run")
              if run != "look"}  # fmt: skip
    if kind == "out":
        return {name: paired(series["all"], series.get(f"out {name}", {})) for name in SOURCES[suite]}
    return {name: paired(series.get(f"with {name}", {}), series["none"]) for name in SOURCES[suite]}


def _correlations(results: Results, suite: str, signal: str, gains: Mapping[str, Estimate]) -> list[float]:
    """Spearman's correlation of each seed's look with the mean gains; where a look makes no difference, none."""
    from scipy.stats import spearmanr

    found = []
    for _, looks in results.where(suite=suite, run="look"):
        seen = [looks[name][signal] for name in SOURCES[suite]]
        if len(set(seen)) > 1:
            found.append(float(spearmanr(seen, [gains[name].mean for name in SOURCES[suite]]).statistic))
    return [value for value in found if not math.isnan(value)]


def _sources(results: Results, gains: Mapping[str, Mapping[str, Mapping[str, Estimate]]]) -> Table:
    rows: list[Sequence[str]] = []
    for suite, names in SOURCES.items():
        looks = [value for _, value in results.where(suite=suite, run="look")]
        for name in names:
            expected = [look[name]["expected"] for look in looks]
            counts = ", ".join(f"{kind} {expected.count(kind)}" for kind in ("help", "unclear", "harm"))
            told = estimate([look[name]["told"] for look in looks])
            rows.append([suite, name, told.signed, counts, *(gains[suite][kind][name].signed for kind in GAINS)])
    columns = ("suite", "source", "told", "expected (seeds)", "gain: all - left out", "gain: alone - none")
    return Table("what was expected of each source, and what it was worth", columns, rows,
                 "Gains in the target's test accuracy, in as many steps each, even weights; mean ± 95 %.")  # fmt: skip


def _said(found: Estimate) -> str:
    return found.signed if found.count else "no difference"
