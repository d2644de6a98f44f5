"""What a comparison found: every number as data, as csv, as JSON, and as tables to read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from steelyard.report.answer import listed
from steelyard.studies.base import Findings, Table
from steelyard.studies.contestants import AGAINST, Contestant
from steelyard.studies.pictures import pictures
from steelyard.studies.plainly import finite
from steelyard.studies.publishing import publish, write_csv
from steelyard.studies.results import Results
from steelyard.studies.statistics import CONFIDENCE, Estimate, estimate, holm
from steelyard.studies.tables import markdown, probability
from steelyard.studies.tuning import Search
from steelyard.training import checkpoint
from steelyard.training.run import versions

LEVEL = 1 - CONFIDENCE


@dataclass(frozen=True)
class Ground:
    """What is compared.

    Attributes:
        target: The task; None where it is the mean over all tasks.
        metric: Its metric.
        role: On which rows: ``test``, or ``dev_select`` where there are no test rows.
        higher: Whether more is better.
    """

    target: str | None
    metric: str
    role: str
    higher: bool

    def __str__(self) -> str:
        rows = "test" if self.role == "test" else "dev"
        return f"{rows} {self.metric} of {self.target or 'all tasks'}"


@dataclass(frozen=True)
class Difference:
    """A paired difference to a control.

    Attributes:
        gain: Method minus control over the seeds that both have.
        corrected: Its p-value, corrected for the number of methods that were asked about (Holm); NaN for controls.
    """

    gain: Estimate
    corrected: float


@dataclass(frozen=True)
class Row:
    """A method in the comparison."""

    method: str
    control: bool
    score: Estimate
    dev: Estimate
    against: Mapping[str, Difference]
    steps: float
    seconds: float
    peak_mb: float
    chosen: Mapping[str, Any]


class Comparison:
    """What a comparison found.

    Attributes:
        ground: What the numbers are.
        results: The cells: ``results.series("test", method="tawt")`` gives a number by seed.
        rows: A row for each method, controls first.
        searches: The trials of hyper-parameters, by method.
        failed: A message for each run that failed.
        folder: Where everything is written.
    """

    def __init__(
        self,
        ground: Ground,
        taking_part: Sequence[Contestant],
        results: Results,
        searches: Mapping[str, Search],
        failed: Mapping[str, str],
        folder: Path,
    ) -> None:
        self.ground, self.results, self.searches, self.failed, self.folder = ground, results, searches, failed, folder
        self.rows = self._rows(taking_part)

    def __getitem__(self, method: str) -> Row:
        return next(row for row in self.rows if row.method == method)

    def _rows(self, taking_part: Sequence[Contestant]) -> list[Row]:
        shown = [each for each in taking_part if len(self.results.where(method=each.label))]
        asked = [each.label for each in shown if not each.control]
        against = {name: self._against(name, asked, shown) for name in AGAINST if any(e.label == name for e in shown)}
        return [self._row(each, {n: found[each.label] for n, found in against.items()}) for each in shown]

    def _row(self, each: Contestant, against: Mapping[str, Difference]) -> Row:
        label = each.label
        return Row(
            method=label,
            control=each.control,
            score=self._estimate(label, self.ground.role),
            dev=self._estimate(label, "dev_select"),
            against={name: found for name, found in against.items() if name != label},
            steps=self.results.estimate("steps", method=label).mean,
            seconds=self.results.estimate("seconds", method=label).mean,
            peak_mb=max(float(value["peak_mb"]) for _, value in self.results.where(method=label)),
            chosen=self.searches[label].best if label in self.searches else {},
        )

    def _against(self, control: str, asked: Sequence[str], shown: Sequence[Contestant]) -> dict[str, Difference]:
        gains = {e.label: self.gain(e.label, control) for e in shown}
        family = [name for name in asked if name != control]
        corrected = dict(zip(family, holm([gains[name].p for name in family]), strict=True))
        return {name: Difference(gain, corrected.get(name, math.nan)) for name, gain in gains.items()}

    def gain(self, method: str, control: str) -> Estimate:
        """The paired difference between any two of them."""
        return self.results.gain(self.ground.role, {"method": method}, {"method": control})

    def _estimate(self, method: str, role: str) -> Estimate:
        known = Results([cell for cell in self.results.where(method=method) if role in cell[1]])
        return known.estimate(role)

    @property
    def asked(self) -> str:
        """What was asked, in a sentence."""
        wanted, controls = ([r.method for r in self.rows if r.control == control] for control in (False, True))
        beside = f", beside {listed(controls)}" if controls else ""
        seeds = len(self.results.levels("seed"))
        return f"What {listed(wanted)} make of the {self.ground}{beside}, over {seeds} seed{'s' * (seeds > 1)}."

    @property
    def answer(self) -> str:
        """What was found, in a sentence."""
        sign = 1 if self.ground.higher else -1
        asked = [row for row in self.rows if not row.control]
        if not asked:
            return "None of the methods that were asked about could be measured."
        best = max(asked, key=lambda row: sign * row.score.mean)
        said = [f"against {name} {_versus(found, self.ground.higher)}" for name, found in best.against.items()]
        of = f"the best mean of {len(asked)} methods" if len(asked) > 1 else "mean"
        seeds = f"{best.score.count} seed{'s' * (best.score.count > 1)}"
        return f"{best.method}: {self.ground} {best.score} ({of}, {seeds})" + (f"; {'; '.join(said)}." if said else ".")

    @property
    def table(self) -> Table:
        """The table to read."""
        names = [name for name in AGAINST if any(name in row.against for row in self.rows)]
        columns = ["method", "mean ± 95 %", "sd", "seeds"]
        for name in names:
            columns += [f"against {name}", "p (Holm)"]
        columns += ["steps", "seconds", "peak MB"]
        tuned = any(row.chosen for row in self.rows)
        rows = [_cells(row, names) + ([_said(row.chosen)] if tuned else []) for row in self.rows]
        better = "" if self.ground.higher else " (lower is better)"
        note = (
            "Differences are paired by seed; their p-values are corrected for the number of methods that were asked "
            "about. Methods in brackets are controls."
        )
        return Table(f"{self.ground}{better}", (*columns, *(["chosen on dev"] if tuned else [])), rows, note)

    def data(self) -> list[dict[str, Any]]:
        """The table as numbers, a flat dictionary for each method: the columns of ``values.csv``."""
        return [_flat(row) for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values: ``comparison.json``."""
        runs = [{**key, **value} for key, value in self.results]
        trials = [
            {"method": name, "trial": number, "tried": tried, "dev": _value(search, number, self.ground.higher)}
            for name, search in self.searches.items()
            for number, tried in search.tried.items()
        ]
        return {
            "ground": asdict(self.ground), "answer": self.answer, "confidence": CONFIDENCE, "methods": self.data(),
            "runs": runs, "trials": trials, "failed": dict(self.failed), "versions": versions(),
        }  # fmt: skip

    def markdown(self) -> str:
        """The answer and the table as Markdown."""
        lines = [f"# {self.ground}", "", self.answer, "", *markdown(self.table)]
        lines += [f"\nFailed: {what}: {why}" for what, why in self.failed.items()]
        return "\n".join(lines) + "\n"

    def write(self) -> None:
        """Writes ``comparison.json``, ``comparison.md``, ``values.csv``, ``values_by_run.csv``, and for the report."""
        write_csv(self.folder / "values.csv", self.data())
        columns = ("test", "dev_select", "dev_loss", "steps", "seconds", "peak_mb", "best_epoch")
        write_csv(
            self.folder / "values_by_run.csv",
            [{**key, **{c: value.get(c) for c in columns}} for key, value in self.results],
        )
        text = json.dumps(finite(self.to_json()), indent=1)
        checkpoint.write_atomically(self.folder / "comparison.json", text.encode())
        checkpoint.write_atomically(self.folder / "comparison.md", self.markdown().encode())
        figures, titles = pictures(self)
        titles |= {"values": "The table as numbers", "values_by_run": "Every run"}
        found = Findings(self.answer, [self.table], figures)
        publish(self.folder, found, self.failed, asked=self.asked, titles=titles)


def _cells(row: Row, names: Sequence[str]) -> list[str]:
    cells = [
        f"[{row.method}]" if row.control else row.method,
        str(row.score),
        "" if math.isnan(row.score.sd) else f"{row.score.sd:.4f}",
    ]
    cells.append(str(row.score.count))
    for name in names:
        found = row.against.get(name)
        cells += [found.gain.signed, probability(found.corrected)] if found else ["", ""]
    return [*cells, f"{row.steps:.0f}", f"{row.seconds:.1f}", f"{row.peak_mb:.0f}"]


def _flat(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {
        "method": row.method, "control": row.control, "mean": row.score.mean, "low": row.score.low,
        "high": row.score.high, "sd": row.score.sd, "seeds": row.score.count, "dev_mean": row.dev.mean,
    }  # fmt: skip
    for name in AGAINST:
        known = row.against.get(name, Difference(estimate([]), math.nan))
        gain = known.gain
        found |= {f"{name}_gain": gain.mean, f"{name}_low": gain.low, f"{name}_high": gain.high}
        found |= {f"{name}_p": gain.p, f"{name}_p_holm": known.corrected}
    found |= {"steps": row.steps, "seconds": row.seconds, "peak_mb": row.peak_mb}
    return found | {"chosen": json.dumps(dict(row.chosen)) if row.chosen else ""}


def _versus(found: Difference, higher: bool) -> str:
    """``+0.0817 ± 0.0302 (p 0.002: better)``."""
    if math.isnan(found.gain.p):
        return f"{found.gain.mean:+.4f} (one seed, so nothing can be said of it)"
    p = found.gain.p if math.isnan(found.corrected) else found.corrected
    word = "not told apart" if p >= LEVEL else "better" if (found.gain.mean > 0) == higher else "worse"
    return f"{found.gain.signed} (p {probability(p)}: {word})"


def _said(chosen: Mapping[str, Any]) -> str:
    shown = (f"{name.rpartition('.')[2]} {value:g}" if isinstance(value, float) else f"{name} {value}"
             for name, value in chosen.items())  # fmt: skip
    return ", ".join(shown) or "as configured"


def _value(search: Search, number: int, higher: bool) -> float | None:
    value = search.values.get(number, math.nan)
    return None if math.isnan(value) else value * (1 if higher else -1)
