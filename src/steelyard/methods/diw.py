"""DIW: tasks count by how well the target fares after training on each of them alone."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.methods import base
from steelyard.methods._turns import Round, begin_turn, drop, end_turn, open_round, put, under, with_dev_meta
from steelyard.methods.base import Method, Search
from steelyard.methods.job import Job
from steelyard.tasks import Role, Suite

_LOOKING, _TRYING = 0, 1


class DIW(Method):
    """Discriminative importance weighting, with early stopping.

    In each round:

    1. every task t is trained alone from the same θ, and the target's dev error E_t is taken down;
    2. from θ again, all tasks are trained together under w/Σw, to the dev error E;
    3. if E is not above the least so far, the result is the new θ;
    4. else w_t ← max(floor, w_t + rate·(E - E_t)), and back to 2; after ``patience`` tries in vain the best of
       them is taken.

    Looking and trying are training steps like any other: a run takes as many as uniform training, and so makes
    less way. Between rounds' ends the model that is judged and kept is the last θ, never one that is being tried.
    """

    name = "diw"
    search: ClassVar[Search] = {"rate": (0.03, 0.1, 1.0), "ratio": (0.1, 0.25, 1.0)}
    summary = "weighs tasks by the target's dev error after each alone; tries again until it improves"
    composes = False
    paper = "Sivasankaran, Vincent and Illina 2017, Discriminative Importance Weighting"
    needs_target = True
    cost = "1 step; most are spent on looking at tasks and trying weights"

    class Options(base.Options):
        """Options of `DIW`."""

        ratio: float = Field(default=0.25, gt=0, le=1, description="epochs in which every task is tried alone, or all")
        rate: float = Field(default=0.1, gt=0, description="how far w moves with a difference of errors")
        patience: int = Field(default=10, ge=1, description="tries in a round before the best of them is taken")
        error: Literal["metric", "loss"] = Field(default="metric", description="1 - the target's metric, or its loss")
        floor: float = Field(default=1e-6, gt=0, description="the smallest w_t")
        moments: Literal["kept", "fresh"] = Field(default="kept", description="a task's optimiser state between turns")
        dev_role: Literal["dev_meta", "dev_select"] = Field(default="dev_meta", description="the rows of the errors")
        dev_fraction: float = Field(default=0.5, gt=0, lt=1, description="dev_meta's share of dev, if it has to be cut")
        train_fraction: float = Field(default=0.2, gt=0, lt=1, description="the same of train, where there is no dev")
        as_published: bool = Field(default=False, description="other defaults: those of αVIL's authors")

        @model_validator(mode="before")
        @classmethod
        def _published(cls, given: Any) -> Any:
            known = {"dev_role": "dev_select", "ratio": 1.0}
            return known | given if isinstance(given, dict) and given.get("as_published") else given

    options: Options

    def prepare(self, suite: Suite, seed: int) -> Suite:
        """Cuts ``dev_meta`` from the target's dev rows, so that the rows that move w do not choose the model."""
        if Role(self.options.dev_role) is Role.DEV_META:
            return with_dev_meta(suite, self.name, self.options.dev_fraction, self.options.train_fraction, seed)
        if Role.DEV_SELECT not in suite[str(suite.target)].rows:
            raise SteelyardError(f"task {suite.target!r} has no dev rows to take errors on; use dev_role = 'dev_meta'")
        return suite

    def start(self, job: Job) -> None:
        """Every task starts at w = 1; there is no error so far."""
        if job.target is None:
            raise SteelyardError("method 'diw' judges by the target's head: train it jointly, not by pre-training")
        self.state["importance"] = torch.ones(len(job.tasks), dtype=torch.float64, device=job.initial_weights.device)
        self.state["errors"] = torch.full_like(self.state["importance"], math.nan)
        self._note(best=math.inf, rounds=0)
        self._next(_LOOKING, first=0)
        self._share(job)

    def step(self, job: Job) -> None:
        """A step of looking at the tasks one by one, or of trying them together."""
        self._take_up(job)
        now = Round(int(self.state["first"]), self._length(job), len(job.tasks), job.tasks_per_step)
        if self.state["stage"] == _LOOKING:
            self._look(job, now)
        else:
            job.descend(job.batch(), self.weights)
        if job.step + 1 < now.end:
            return
        if self.state["stage"] == _LOOKING:
            self._return(job)
            self._note(tries=0, least=math.inf)
            self._next(_TRYING, now.end)
        else:
            self._judge(job, now.end)

    def after_epoch(self, job: Job) -> None:
        """Sets what is being tried aside, so that the last θ is evaluated; the next step takes it up again."""
        accepted = under(self.state, "start.")
        if accepted:
            put(self.state, "aside.", job.snapshot())
            job.restore(accepted)

    def _take_up(self, job: Job) -> None:
        aside = under(self.state, "aside.")
        if aside:
            job.restore(aside)
            drop(self.state, "aside.")

    def _look(self, job: Job, now: Round) -> None:
        """Step 1: the next turns; at the end of each the target's dev error."""
        if job.step == now.first:
            open_round(self.state, job)
        for turn in now.turns(job.step):
            self._turn(job, turn.task, turn.number, turn.first, turn.last)

    def _turn(self, job: Job, task: int, number: int, first: bool, last: bool) -> None:
        if first:
            begin_turn(self.state, job, task)
        job.minimise(job.alone(job.tasks[task], number), lambda losses: losses[task], self.weights)
        if last:
            end_turn(self.state, job, task, self.options.moments == "kept")
            self.state["errors"][task] = self._error(job)

    def _judge(self, job: Job, step: int) -> None:
        """Steps 3 and 4: accept, or weigh anew and try again, or give up and take the best try."""
        error, best, least = self._error(job), float(self.state["best"]), float(self.state["least"])
        if error <= best:
            self._note(best=error)
            return self._accept(job, step)
        if error < least:
            put(self.state, "try.", job.snapshot())
            put(self.state, "try_moments.", job.moments())
            self._note(least=error)
        self._note(tries=int(self.state["tries"]) + 1)
        if int(self.state["tries"]) >= self.options.patience:
            self._return(job, "try." if under(self.state, "try.") else "start.")
            return self._accept(job, step)
        moved = self.state["importance"] + self.options.rate * (error - self.state["errors"])
        self.state["importance"] = torch.where(moved.isfinite(), moved, self.state["importance"]).clamp_min(
            self.options.floor
        )
        self._share(job)
        self._return(job)
        return self._next(_TRYING, step)

    def _accept(self, job: Job, step: int) -> None:
        put(self.state, "joint.", job.moments())
        drop(self.state, "start.", "random.", "try.", "try_moments.")
        self._note(rounds=int(self.state["rounds"]) + 1)
        self._next(_LOOKING, step)

    def _return(self, job: Job, prefix: Literal["start.", "try."] = "start.") -> None:
        """Puts a model back with the joint steps' optimiser state."""
        job.restore(under(self.state, prefix))
        job.restore_moments(under(self.state, "joint." if prefix == "start." else "try_moments."))

    def _error(self, job: Job) -> float:
        role, target = Role(self.options.dev_role), job.tasks[job.target or 0]
        return job.error_on(role, target) if self.options.error == "metric" else float(job.loss_on(role, target))

    def _length(self, job: Job) -> int:
        return max(1, round(self.options.ratio * job.steps_per_epoch))

    def _next(self, stage: int, first: int) -> None:
        self._note(stage=stage, first=first)

    def _note(self, **values: float) -> None:
        self.state |= {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}

    def _share(self, job: Job) -> None:
        importance: Tensor = self.state["importance"]
        self.weights = (importance / importance.sum()).to(job.initial_weights)
