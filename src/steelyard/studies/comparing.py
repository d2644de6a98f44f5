"""Methods against each other and against honest controls on one configuration, run by run in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steelyard.errors import SteelyardError
from steelyard.studies import backends, grid, tuning
from steelyard.studies.claims import claim
from steelyard.studies.comparison import Comparison, Ground
from steelyard.studies.contestants import Contestant, Given, contestants
from steelyard.studies.measuring import higher_is_better, judges, measure
from steelyard.studies.results import Key, Results
from steelyard.studies.subjects import Encoder, Subject
from steelyard.tasks import Role, Suite


def compare(
    subject: Subject | Suite | Any,
    encoder: Encoder | None = None,
    methods: Sequence[Given] = ("tawt",),
    *,
    out: Path | str,
    seeds: int | Sequence[int] = 5,
    controls: bool = True,
    budget: int = 0,
    encoder_options: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    backend: str = "loky",
    keep_runs: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Comparison:
    """Trains every method with every seed, and says what the differences are worth.

    Runs with one seed share their rows, the order in which rows come, and the initial parameters. The same call on the
    same folder goes on after a stop, and may add seeds and methods.

    Args:
        subject: A suite; a function from a seed to a suite; or a `Subject`.
        encoder: A name, a network (each run trains a copy), or what makes a network.
        methods: What is asked about: names, compositions, classes, methods or tables (`contestants.contestant`).
        out: The folder for every number.
        seeds: How many, from the settings' seed on; or which.
        controls: Whether to add the controls: uniform, joint, ramp, random, and the single task with as many steps.
        budget: Trials of hyper-parameters for each method and control, chosen on dev rows; below 2 there are none.
        encoder_options: Options of a named encoder.
        jobs: Runs at once; by default one per core.
        backend: ``loky`` (processes here), ``ray`` or ``dask``, possibly with an address: ``dask:tcp://host:8786``.
        keep_runs: Whether to keep each run's folder, with its model, below ``runs/``.
        progress: Whether to show how far it is.
        **settings: Settings of the training loop by name: ``epochs=5``.
    """
    subject = Subject.of(subject, encoder, encoder_options or {}, settings)
    backends.check(backend)
    first, suite = subject.first, subject.suite(subject.first)
    taking_part = contestants(methods, controls, suite, subject.training)
    folder = Path(out)
    asked = {each.label: each.about() for each in taking_part}
    claim(folder, {"subject": subject.about(first), "budget": max(budget, 0), "methods": asked}, "comparison")
    shared: dict[str, Any] = {"jobs": jobs, "backend": backend, "progress": progress}
    higher = higher_is_better(suite)
    searches, failed = _tuned(subject, taking_part, budget, 1 if higher else -1, folder, shared)
    ran, broken = grid.run(
        measure, _keys(taking_part, seeds, first), folder / "cells.jsonl", doing="training", **shared,
        settings={
            "subject": subject, "contestants": {each.label: each for each in taking_part},
            "chosen": {label: search.best for label, search in searches.items()},
            "runs": str(folder / "runs") if keep_runs else None,
        },
    )  # fmt: skip
    failed |= broken
    _some(ran, failed)
    found = Comparison(_ground(suite, higher, ran), taking_part, ran, searches, failed, folder)
    found.write()
    return found


def _tuned(
    subject: Subject, taking_part: Sequence[Contestant], budget: int, sign: int, folder: Path, shared: Mapping[str, Any]
) -> tuple[dict[str, tuning.Search], dict[str, str]]:
    """Everybody's trials with the first seed, where there is a budget for them, and which failed."""
    if budget < 2:
        return {}, {}
    return tuning.tune(subject, taking_part, budget, subject.first, sign, folder / "trials.jsonl", **shared)


def _keys(taking_part: Sequence[Contestant], seeds: int | Sequence[int], first: int) -> list[Key]:
    """Seed by seed, so that the first seeds are complete first."""
    chosen = range(first, first + seeds) if isinstance(seeds, int) else seeds
    return [{"method": each.label, "seed": seed} for seed in chosen for each in taking_part]


def _some(ran: Results, failed: Mapping[str, str]) -> None:
    if not len(ran):
        what, why = next(iter(failed.items()))
        raise SteelyardError(f"every run failed; the first: {what}: {why}")


def _ground(suite: Suite, higher: bool, ran: Results) -> Ground:
    """What the numbers are: of which task, on which rows, and which way is better."""
    role = next((r for r in (Role.TEST, Role.DEV_SELECT) if all(str(r) in value for _, value in ran)), None)
    if role is None:
        raise SteelyardError(f"task {suite.target!r} has neither test nor dev rows to be judged by; give it some")
    names = judges(suite)
    metrics = list(dict.fromkeys(str(suite[name].metric) for name in names))
    return Ground(suite.target, "/".join(metrics), str(role), higher)
