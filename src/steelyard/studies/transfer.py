"""Which source helps which target, by how much: added alone, left out, or in groups found on a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steelyard.diagnostics import covariance_similarity
from steelyard.errors import SteelyardError
from steelyard.studies import backends, grid
from steelyard.studies.claims import claim
from steelyard.studies.contestants import CONTROLS, Contestant, Given, contestant
from steelyard.studies.grouping import Search, plan
from steelyard.studies.measuring import measured
from steelyard.studies.results import Key, Results
from steelyard.studies.subjects import Encoder, Subject
from steelyard.studies.transferred import Judged, Transfer
from steelyard.tasks import Role, Suite
from steelyard.training import Training
from steelyard.training.batching import Batcher
from steelyard.training.metrics import metric_of
from steelyard.training.run import seeded, shared_model

MANY = 10
"""With more sources than this, they are tried in groups unless the user says otherwise."""

LOOKED_AT = 512
"""So many rows of each task are looked at for their similarity."""

PER_SOURCE = 6
"""Runs for each source of a search whose budget the user leaves open."""


def transfer(
    subject: Subject | Suite | Any,
    encoder: Encoder | None = None,
    *,
    out: Path | str,
    seeds: int | Sequence[int] = 5,
    method: Given = "uniform",
    matrix: bool = False,
    budget: int | None = None,
    encoder_options: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    backend: str = "loky",
    progress: bool = True,
    **settings: Any,
) -> Transfer:
    """Says what each source is worth to the target, with intervals over seeds.

    Every run takes as many steps as training on all tasks would; runs of one seed see the target's rows in the same
    order and start from the same parameters. The same call on the same folder goes on after a stop.

    Args:
        subject: A suite with a target; a function from a seed to a suite; or a `Subject`.
        encoder: A name, a network (each run trains a copy), or what makes a network.
        out: The folder for every number.
        seeds: How many, from the settings' seed on; or which.
        method: What weighs the tasks where there are sources.
        matrix: Also every other task as the target, with each of the others as its only source.
        budget: With a number, so many runs with random groups of sources in place of a run for each source; 0 never
            does that. By default it is done with more than ten sources.
        encoder_options: Options of a named encoder.
        jobs: Runs at once; by default one per core.
        backend: See `compare`.
        progress: Whether to show how far it is.
        **settings: Settings of the training loop by name.
    """
    subject = Subject.of(subject, encoder, encoder_options or {}, settings)
    backends.check(backend)
    first, suite = subject.first, subject.suite(subject.first)
    chosen = list(range(first, first + seeds)) if isinstance(seeds, int) else list(seeds)
    target, sources = _tasks(suite)
    if budget is None:
        budget = PER_SOURCE * len(sources) if len(sources) > MANY else 0
    contender = contestant(method)
    about = {"subject": subject.about(first), "method": contender.about(), "target": target, "budget": budget}
    folder = Path(out)
    claim(folder, about, "transfer")
    work = _Work(subject, contender, suite, folder, {"jobs": jobs, "backend": backend, "progress": progress})
    search = work.search(target, sources, chosen, budget) if budget else None
    keys = work.groups(target, sources, chosen, search) if search else _each(target, sources, chosen)
    if matrix:
        keys += [key for key in _pairs(suite, chosen) if key not in keys]
    ran, failed = work.measure(keys, "training")
    if not len(ran):
        raise SteelyardError(f"every run failed; the first: {next(iter(failed.items()))}")
    grounds = {name: _judged(suite, name, ran) for name in dict.fromkeys(str(key["target"]) for key, _ in ran)}
    found = Transfer(target, sources, grounds, ran, search, {**work.failed, **failed}, folder, _alike(subject, suite))
    found.write()
    return found


def _alike(subject: Subject, suite: Suite) -> list[dict[str, Any]]:
    """The covariance similarity of the tasks' rows at the untrained encoder's embeddings, for the report."""
    encoder, options = subject.network(suite, subject.first)
    with seeded(subject.first):
        model = shared_model(encoder, suite, options)
    try:
        found = covariance_similarity(suite, model, rows=LOOKED_AT, normalized=True)
    except SteelyardError:  # rows of different widths, or that are all alike: there is nothing to be shown
        return []
    return [{
        "title": "Similarity", "rows": found.tasks, "columns": found.tasks, "values": found.rows(),
        "label": "covariance similarity",
        "note": f"Of the covariances of the tasks' rows, before training ({found.at}); 1 where they are equal.",
    }]  # fmt: skip


class _Work:
    """Runs groups of tasks on the grid."""

    def __init__(
        self, subject: Subject, contender: Contestant, suite: Suite, folder: Path, shared: Mapping[str, Any]
    ) -> None:
        self._folder, self._shared, self._suite = folder, shared, suite
        training = Training(**{**subject.training, "seed": 0})
        steps = Batcher(suite, tuple(suite.tasks), training).steps
        self._settings = {"subject": subject, "method": contender, "steps": steps}
        self.failed: dict[str, str] = {}

    def measure(self, keys: Sequence[Key], doing: str) -> tuple[Results, dict[str, str]]:
        return grid.run(
            _measure, keys, self._folder / "cells.jsonl", settings=self._settings, doing=doing, **self._shared
        )

    def search(self, target: str, sources: list[str], seeds: Sequence[int], budget: int) -> Search:
        """Random groups of sources, each with one seed, and what each source adds to them by least squares."""
        if Role.DEV_SELECT not in self._suite[target].rows:
            raise SteelyardError(f"task {target!r} has no dev rows, on which groups are chosen; set --budget 0")
        plans = plan(sources, seeds, budget)
        keys = [_key(target, group, seed) for group, seed in plans]
        ran, self.failed = self.measure(keys, "searching")
        sign = 1 if metric_of(self._suite[target]).higher else -1
        return Search.of(sources, [(k["sources"], k["seed"], sign * v["dev_select"]) for k, v in ran])

    def groups(self, target: str, sources: list[str], seeds: Sequence[int], search: Search) -> list[Key]:
        """The group that was found, all sources and none, with every seed."""
        return _keys(target, [[], list(search.group), sources], seeds)


def _each(target: str, sources: list[str], seeds: Sequence[int]) -> list[Key]:
    """No source, each alone, all but each, and all; where there are two sources, all but one is the other alone."""
    left = [[s for s in sources if s != out] for out in sources]
    return _keys(target, [[], *([s] for s in sources), *left, sources], seeds)


def _keys(target: str, groups: Sequence[list[str]], seeds: Sequence[int]) -> list[Key]:
    unique = {tuple(group): group for group in groups}.values()
    return [_key(target, group, seed) for seed in seeds for group in unique]


def _pairs(suite: Suite, seeds: Sequence[int]) -> list[Key]:
    """Each task alone, and with each other task."""
    targets = [name for name, task in suite.tasks.items() if {Role.TEST, Role.DEV_SELECT} & set(task.rows)]
    kinds = [(t, [] if s == t else [s]) for t in targets for s in [t, *(n for n in suite.tasks if n != t)]]
    return [_key(target, kind, seed) for seed in seeds for target, kind in kinds]


def _key(target: str, sources: Sequence[str], seed: int) -> Key:
    return {"target": target, "sources": list(sources), "seed": seed}


def _measure(settings: dict[str, Any], *, target: str, sources: list[str], seed: int) -> dict[str, Any]:
    """One run: the target with some sources, or alone, in the steps that all tasks would take."""
    method = settings["method"] if sources else Contestant("single", "single", CONTROLS["single"])
    subject: Subject = settings["subject"]
    found = measured(subject.only(target, sources, settings["steps"]), method, seed, {})
    return {key: found[key] for key in ("test", "dev_select", "steps", "seconds", "peak_mb", "weights") if key in found}


def _tasks(suite: Suite) -> tuple[str, list[str]]:
    if suite.target is None:
        raise SteelyardError("transfer needs a target; name one: Suite(tasks, target=…)")
    if not suite.sources:
        raise SteelyardError(f"there is no source whose worth to {suite.target!r} could be measured; add a [[source]]")
    if not {Role.TEST, Role.DEV_SELECT} & set(suite[suite.target].rows):
        raise SteelyardError(f"task {suite.target!r} has neither test nor dev rows to be judged by; give it some")
    return suite.target, suite.sources


def _judged(suite: Suite, name: str, ran: Results) -> Judged:
    values = [value for _, value in ran.where(target=name)]
    role = "test" if all("test" in value for value in values) else "dev_select"
    return Judged(name, suite[name].metric, role, metric_of(suite[name]).higher)
