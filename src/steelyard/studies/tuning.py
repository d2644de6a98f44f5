"""Hyper-parameters by the same budget for every method, chosen on dev rows alone."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steelyard.errors import SteelyardError
from steelyard.studies import grid
from steelyard.studies.contestants import Contestant
from steelyard.studies.measuring import RATE, measured
from steelyard.studies.subjects import Subject
from steelyard.training import Training
from steelyard.training.job import NonFiniteLossError

RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Factors of the configuration's learning rate that are tried, for every method."""

FIRST, ROUND = 8, 4
"""So many trials are drawn at random and run side by side; then rounds of so many follow from what was found."""

Space = Mapping[str, Sequence[Any]]
"""Values to try by dotted name; the first is what the configuration says."""


@dataclass
class Search:
    """A method's trials so far.

    Attributes:
        space: What may be tried.
        tried: The hyper-parameters of each trial, by its number.
        values: What each trial gave on dev rows, higher being better; NaN if it failed.
    """

    space: Space
    tried: dict[int, dict[str, Any]] = field(default_factory=dict)
    values: dict[int, float] = field(default_factory=dict)

    @property
    def best(self) -> dict[str, Any]:
        """The hyper-parameters with the best value; of equal ones the first, and so the configuration's own."""
        known = {number: value for number, value in self.values.items() if not math.isnan(value)}
        if not known:
            return {}
        chosen = self.tried[max(known, key=lambda number: (known[number], -number))]
        return {name: value for name, value in chosen.items() if value != self.space[name][0]}

    def propose(self, number: int) -> dict[str, Any] | None:
        """The hyper-parameters of a trial: the same for the same trials before it. None if all have been tried."""
        if number == 0:
            return {name: values[0] for name, values in self.space.items()}
        if len(self.tried) >= math.prod(len(values) for values in self.space.values()):
            return None
        optuna = _optuna()
        space = {name: optuna.distributions.CategoricalDistribution(values) for name, values in self.space.items()}
        known = [
            optuna.trial.create_trial(params=self.tried[n], distributions=space, value=value)
            for n, value in self.values.items()
            if not math.isnan(value)
        ]
        for attempt in range(100):  # what was tried once is not worth a second run
            model = optuna.samplers.TPESampler(seed=1000 * number + attempt, n_startup_trials=FIRST)
            sampler = model if attempt < 20 else optuna.samplers.RandomSampler(seed=1000 * number + attempt)
            study = optuna.create_study(direction="maximize", sampler=sampler)
            study.add_trials(known)
            found: dict[str, Any] = study.ask(space).params
            if found not in self.tried.values():
                return found
        return None


def space(contestant: Contestant, training: Mapping[str, Any]) -> Space:
    """What is tried for a method: factors of the learning rate, and the values that the method names."""
    rate = float(training.get("learning_rate", Training.model_fields["learning_rate"].default))
    factors = sorted(RATES, key=lambda factor: factor != 1)
    found: dict[str, Sequence[Any]] = {RATE: tuple(rate * factor for factor in factors)}
    own = contestant.build().options.model_dump()
    for name, values in contestant.kind.search.items():
        side, _, rest = name.partition(".")
        default = own[side][rest] if rest else own[name]
        found[name] = tuple(dict.fromkeys([default, *values]))
    return found


def tune(
    subject: Subject,
    contestants: Sequence[Contestant],
    budget: int,
    seed: int,
    sign: int,
    path: Path,
    *,
    jobs: int | None = None,
    backend: str = "loky",
    progress: bool = True,
) -> tuple[dict[str, Search], dict[str, str]]:
    """Runs ``budget`` trials of each method, each judged by the best epoch's dev metric.

    Args:
        subject: What is trained on.
        contestants: Who takes part.
        budget: Trials for each; a method with fewer values than that tries them all.
        seed: The seed of every trial.
        sign: 1 if a higher metric is better, else -1.
        path: A file of JSON lines that trials are added to.
        jobs: See `grid.run`.
        backend: See `grid.run`.
        progress: See `grid.run`.

    Returns:
        Each method's search, by its label, and what failed.
    """
    _optuna()
    searches = {each.label: Search(space(each, subject.training)) for each in contestants}
    by_label = {each.label: each for each in contestants}
    failed: dict[str, str] = {}
    first = 0
    while first < budget:
        last = min(budget, first + (FIRST if first == 0 else ROUND))
        for search in searches.values():
            for number in range(first, last):
                proposed = search.propose(number)
                if proposed is not None:
                    search.tried[number] = proposed
        keys = [
            {"method": label, "trial": number, "seed": seed}
            for number in range(first, last)
            for label, search in searches.items()
            if number in search.tried
        ]
        settings = {"subject": subject, "contestants": by_label, "searches": searches}
        todo = bool(grid.missing(path, keys))
        results, broken = grid.run(
            _trial, keys, path, settings=settings, jobs=jobs, backend=backend, progress=progress and todo,
            doing=f"tuning, trials {first + 1} to {last} of {budget}",
        )  # fmt: skip
        failed |= broken
        for key, value in results:
            dev = value["dev"]
            searches[key["method"]].values[key["trial"]] = math.nan if dev is None else sign * dev
        first = last
    return searches, failed


def _trial(settings: dict[str, Any], *, method: str, trial: int, seed: int) -> dict[str, Any]:
    changes = settings["searches"][method].tried[trial]
    try:
        found = measured(settings["subject"], settings["contestants"][method], seed, changes)
    except NonFiniteLossError as error:
        return {"tried": changes, "dev": None, "error": str(error)}
    if "dev_select" not in found:
        raise SteelyardError("hyper-parameters are chosen on dev rows, and the target has none; set --budget 0")
    return {"tried": changes, "dev": found["dev_select"], "dev_loss": found["dev_loss"], "seconds": found["seconds"]}


def _optuna() -> Any:
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise SteelyardError(
            "choosing hyper-parameters needs Optuna: pip install 'steelyard[tune]', or set --budget 0"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
