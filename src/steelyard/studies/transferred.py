"""What sources were found to be worth: as data, as csv, as JSON, and as tables to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.report import drawing
from steelyard.report.answer import listed
from steelyard.studies.base import Findings, Table
from steelyard.studies.grouping import Search
from steelyard.studies.plainly import finite
from steelyard.studies.publishing import publish, write_csv
from steelyard.studies.results import Results
from steelyard.studies.statistics import CONFIDENCE, Estimate, holm, paired
from steelyard.studies.tables import markdown, probability
from steelyard.training import checkpoint
from steelyard.training.run import versions

KINDS = {
    "alone": "added to the target alone",
    "left_out": "what all lose without it",
    "searched": "added to random groups (dev)",
}


@dataclass(frozen=True)
class Judged:
    """How a target is judged: its metric, on which rows, and whether more is better."""

    target: str
    metric: str
    role: str
    higher: bool


@dataclass(frozen=True)
class Worth:
    """What a source is worth to a target.

    Attributes:
        target: The target.
        source: The source.
        kind: ``alone``: the target with this source against the target alone. ``left_out``: all sources against all but
            this one. ``searched``: what it adds to random groups, by a linear model of the dev metric.
        gain: In the target's metric, with its sign turned where lower is better: above 0 it helps.
        corrected: The p-value, corrected for the number of sources of its kind and target (Holm).
    """

    target: str
    source: str
    kind: str
    gain: Estimate
    corrected: float


class Transfer:
    """What sources are worth.

    Attributes:
        target: The target.
        sources: Its sources.
        judged: How each target is judged.
        results: The runs: keys have ``target``, ``sources`` and ``seed``.
        search: The search for a group, if there was one.
        worths: Every source's worth, of each kind that was measured.
        failed: A message for each run that failed.
        folder: Where everything is written.
        alike: How alike the tasks' rows are, as the report reads matrices; empty if that was not to be told.
    """

    def __init__(
        self,
        target: str,
        sources: Sequence[str],
        judged: Mapping[str, Judged],
        results: Results,
        search: Search | None,
        failed: Mapping[str, str],
        folder: Path,
        alike: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.alike = list(alike)
        self.target, self.sources, self.judged = target, list(sources), judged
        self.results, self.search, self.failed, self.folder = results, search, failed, folder
        self.worths = self._worths()

    def worth(self, source: str, kind: str = "alone", target: str | None = None) -> Worth:
        """One of them."""
        wanted = (target or self.target, source, kind)
        return next(w for w in self.worths if (w.target, w.source, w.kind) == wanted)

    def gain(self, treated: Sequence[str], control: Sequence[str], target: str | None = None) -> Estimate:
        """The paired difference between training with two groups of sources; above 0 the first is better."""
        name = target or self.target
        sign = 1 if self.judged[name].higher else -1
        first, second = (self._series(name, group) for group in (treated, control))
        return paired({k: sign * v for k, v in first.items()}, {k: sign * v for k, v in second.items()})

    def _series(self, target: str, sources: Sequence[str]) -> dict[Any, float]:
        return self.results.series(self.judged[target].role, target=target, sources=list(sources))

    def _worths(self) -> list[Worth]:
        found = []
        for target in self.judged:
            others = self.sources if target == self.target else self._others(target)
            found += _family(target, "alone", {s: self.gain([s], [], target) for s in others})
        all_but = {s: [o for o in self.sources if o != s] for s in self.sources}
        if len(self.sources) > 1:
            gains = {s: self.gain(self.sources, kept) for s, kept in all_but.items()}
            found += _family(self.target, "left_out", gains)
        if self.search:
            found += _family(self.target, "searched", self.search.effects)
        return found

    def _others(self, target: str) -> list[str]:
        return list(dict.fromkeys(k["sources"][0] for k, _ in self.results.where(target=target) if k["sources"]))

    @property
    def asked(self) -> str:
        """What was asked, in a sentence."""
        seeds = len(self.results.levels("seed"))
        about = (
            f"What {listed(self.sources)} are worth to {self.target}"
            if len(self.sources) > 1
            else (f"What {self.sources[0]} is worth to {self.target}")
        )
        judge = self.judged[self.target]
        return f"{about} ({judge.metric} on {judge.role} rows), over {seeds} seed{'s' * (seeds > 1)}."

    @property
    def answer(self) -> str:
        """What was found, in a sentence."""
        kind = "searched" if self.search else "alone"
        own = [w for w in self.worths if w.target == self.target and w.kind == kind]
        helps = [w.source for w in own if w.corrected < 1 - CONFIDENCE and w.gain.mean > 0]
        harms = [w.source for w in own if w.corrected < 1 - CONFIDENCE and w.gain.mean < 0]
        rest = [w.source for w in own if w.source not in helps + harms]
        parts = [
            f"{word} {', '.join(names)}"
            for word, names in (("helped by", helps), ("harmed by", harms), ("not told from noise:", rest))
            if names
        ]
        total = self.gain(self.sources, [])
        return f"{self.target}: {'; '.join(parts)}. All sources together: {total.signed}."

    @property
    def tables(self) -> list[Table]:
        """The tables to read."""
        judged = self.judged[self.target]
        rows_of = "test" if judged.role == "test" else "dev"
        kinds = [kind for kind in KINDS if any(w.target == self.target and w.kind == kind for w in self.worths)]
        columns = ["source"]
        for kind in kinds:
            columns += [KINDS[kind], "p (Holm)"]
        known = {(w.source, w.kind): _cells(w) for w in self.worths if w.target == self.target}
        rows = [[s, *(cell for kind in kinds for cell in known.get((s, kind), ["", ""]))] for s in self.sources]
        note = "Above 0 it helps. Differences are paired by seed, with 95 % intervals."
        found = [
            Table(f"{rows_of} {judged.metric} of {self.target}: what each source is worth", (*columns,), rows, note)
        ]
        if self.search:
            found.append(self._groups())
        if len(self.judged) > 1:
            found.append(self._matrix())
        return found

    def _groups(self) -> Table:
        group = list(self.search.group) if self.search else []
        kinds = {"none": [], "the group": group, "all": self.sources}
        rows = []
        for name, sources in kinds.items():
            against = [self.gain(sources, other).signed if sources != other else "" for other in ([], self.sources)]
            rows.append([name, ", ".join(sources) or "–", *against])
        runs = self.search.runs if self.search else 0
        note = (
            f"The group was chosen on dev rows, from {runs} runs with random groups; these figures are of every seed."
        )
        return Table("groups of sources", ("sources", "which", "against none", "against all"), rows, note)

    def _matrix(self) -> Table:
        names = self._alone()
        cells = {(w.target, w.source): w.gain.signed for w in self.worths if w.kind == "alone"}
        rows = [[target, *(cells.get((target, s), "–") for s in names)] for target in self.judged]
        note = "Rows are targets, columns their only source: the target with it against the target alone."
        return Table("transfer matrix", ("target", *names), rows, note)

    def _alone(self) -> list[str]:
        """The tasks that were the only source of some target, in their order."""
        known = {w.source for w in self.worths if w.kind == "alone"}
        return [name for name in (self.target, *self.sources) if name in known]

    def data(self) -> list[dict[str, Any]]:
        """Every worth as numbers: the rows of ``transfer.csv``."""
        return [
            {
                "target": w.target, "source": w.source, "kind": w.kind, "gain": w.gain.mean, "low": w.gain.low,
                "high": w.gain.high, "p": w.gain.p, "p_holm": w.corrected, "count": w.gain.count,
            }
            for w in self.worths
        ]  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values: ``transfer.json``."""
        return {
            "target": self.target, "sources": self.sources, "answer": self.answer, "confidence": CONFIDENCE,
            "judged": {name: vars(each) for name, each in self.judged.items()}, "worths": self.data(),
            "group": list(self.search.group) if self.search else None,
            "runs": [{**key, **value} for key, value in self.results], "failed": dict(self.failed),
            "versions": versions(),
        }  # fmt: skip

    def markdown(self) -> str:
        """The answer and the tables as Markdown."""
        lines = [f"# What sources are worth to {self.target}", "", self.answer]
        for table in self.tables:
            lines += ["", f"## {table.title}", "", *markdown(table)]
        lines += [f"\nFailed: {what}: {why}" for what, why in self.failed.items()]
        return "\n".join(lines) + "\n"

    def matrix(self) -> dict[str, Any]:
        """The transfer matrix as numbers: rows are targets, columns their only source, None what was not measured."""
        names = self._alone()
        gains = {(w.target, w.source): w.gain.mean for w in self.worths if w.kind == "alone"}
        return {
            "title": "Transfer matrix", "rows": list(self.judged), "columns": names, "centred": True,
            "values": [[gains.get((target, source)) for source in names] for target in self.judged],
            "label": "gain over the target alone", "note": "Rows are targets, columns their only source.",
        }  # fmt: skip

    def _pictures(self) -> tuple[dict[str, str], dict[str, str]]:
        made, titles = {}, {}
        for kind, says in KINDS.items():
            own = [w for w in self.worths if w.target == self.target and w.kind == kind]
            ordered = sorted(own, key=lambda w: -w.gain.mean)
            if ordered and all(w.gain.count > 1 for w in ordered):
                bars = {w.source: (w.gain.mean, w.gain.low, w.gain.high) for w in ordered}
                made[kind] = drawing.intervals(bars, f"gain in {self.judged[self.target].metric}")
                titles[kind] = f"What each source is worth to {self.target}: {says}"
        return made, titles

    def write(self) -> None:
        """Writes ``transfer.json``, ``transfer.csv``, ``transfer.md`` and what the report reads."""
        write_csv(self.folder / "transfer.csv", self.data())
        text = json.dumps(finite(self.to_json()), indent=1)
        checkpoint.write_atomically(self.folder / "transfer.json", text.encode())
        checkpoint.write_atomically(self.folder / "transfer.md", self.markdown().encode())
        figures, titles = self._pictures()
        found = Findings(self.answer, self.tables, figures)
        matrices = [self.matrix()] if len(self.judged) > 1 else []
        titles |= {"transfer": "The tables as numbers"}
        publish(self.folder, found, self.failed, asked=self.asked, titles=titles, matrices=matrices + self.alike)


def _family(target: str, kind: str, gains: Mapping[str, Estimate]) -> list[Worth]:
    """The sources of one kind, with their p-values corrected together; what was not measured is left out."""
    known = {source: gain for source, gain in gains.items() if gain.count}
    corrected = holm([gain.p for gain in known.values()])
    return [Worth(target, s, kind, gain, p) for (s, gain), p in zip(known.items(), corrected, strict=True)]


def _cells(worth: Worth) -> list[str]:
    return [worth.gain.signed, probability(worth.corrected)]
