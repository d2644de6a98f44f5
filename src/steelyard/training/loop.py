"""The loop: phases, epochs, evaluation, the choice of the best model, and checkpoints of all of it."""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.methods import Method, get
from steelyard.model import SharedModel
from steelyard.tasks import Role, Suite
from steelyard.training import batching, checkpoint, processes
from steelyard.training.batching import Batcher
from steelyard.training.folder import CHECKPOINT, Log, RunFolder
from steelyard.training.job import NonFiniteLossError, TrainingJob
from steelyard.training.metrics import evaluate, metric_of
from steelyard.training.progress import Display
from steelyard.training.settings import Phase, Training, phases


class Interrupted(KeyboardInterrupt):
    """The user stopped the run; it can go on from its checkpoint."""


@dataclass
class Place:
    """How far a run has come."""

    phase: int = 0
    epoch: int = 0
    step: int = 0
    """Steps done in the phase."""
    total: int = 0
    """Steps done in all phases."""
    best_value: float = -math.inf
    """The best dev metric so far, with its sign turned where lower is better."""
    best_loss: float = math.inf
    """The dev loss of that epoch, which decides between equal metrics."""
    best_epoch: int = 0
    since_best: int = 0
    seconds: float = 0.0
    finished: bool = False


class Loop:
    """Trains a model on a suite with a method, and can stop and go on at any step."""

    def __init__(
        self,
        model: SharedModel,
        suite: Suite,
        method: Method,
        training: Training,
        accelerator: Any,
        folder: RunFolder | None,
        display: Display,
    ) -> None:
        self.model, self.suite, self.method, self.training = model, suite, method, training
        self.at = Place()
        self.log = Log(folder if accelerator.is_main_process else None)
        self._accelerator, self._folder, self._display = accelerator, folder, display
        self._network = accelerator.prepare(model)
        self._phases = phases(training, suite)
        self._fresh_heads = _untrained_heads(model, self._phases[0].tasks)
        self._best: dict[str, Tensor] | None = None
        self._stop = False
        self._saved = self._begun = time.monotonic()
        for task in suite.tasks.values():
            metric_of(task)

    def run(self) -> None:
        """Trains to the end, from the checkpoint if there is one."""
        try:
            state = self._taken_up()
            with self._stoppable(), self._keeping_checkpoint(), processes.together(self._accelerator, self._kept):
                while self.at.phase < len(self._phases) and not self.at.finished:
                    self._run_phase(self._phases[self.at.phase], state)
                    state = None
        finally:
            self._display.end()
            self.log.close()

    def _taken_up(self) -> dict[str, Any] | None:
        """Reads the checkpoint and the logs, if there are any; gives what the phase goes on from."""
        state = self._resumable()
        with self._fitting():
            self.log.begin(state["positions"] if state else None)
        if self._several:
            told = processes.first_does(self._accelerator, lambda: (self.log.metrics, self.log.weights))
            self.log.metrics, self.log.weights = told
        # Without an optimiser it was written between two phases: the next one starts afresh from the model.
        return state if state is not None and "optimisation" in state else None

    def _run_phase(self, phase: Phase, state: dict[str, Any] | None) -> None:
        job = TrainingJob(
            self.model, self._network, self.suite, phase, self.training, self._accelerator, self._steps(phase)
        )
        method = self.method if phase.weighted or self.method.fine_tunes else get("uniform")()
        begins = state is None
        if state is None:
            method.start(job)
        else:
            self._restore(job, method, state)
            state.clear()  # else it would be held, beside what was made of it, for as long as the phase lasts
        if begins and self.at.best_epoch and self.training.keep == "best":
            self._best = job.snapshot()  # the joint phase's best model, which fine-tuning has to beat
        self._display.begin(phase.name, phase.epochs * job.steps_per_epoch, self.at.step)
        self.model.train()
        while self.at.epoch < phase.epochs and not self._exhausted():
            self._run_epoch(job, method)
        if self._best is not None:
            self.model.load_state_dict(self._best)
        self._best = None
        if self.at.phase == 0:  # a method may have fitted a head in order to look, and is to have no start by that
            for name, head in self._fresh_heads.items():
                self.model.head(name).load_state_dict(head)
        finished = self.at.phase + 1 == len(self._phases)
        # What was chosen by the target's dev rows stays chosen until a later phase is better by the same rows.
        self.at = Place(
            self.at.phase + 1, total=self.at.total, best_value=self.at.best_value, best_loss=self.at.best_loss,
            best_epoch=self.at.best_epoch, seconds=self.at.seconds, finished=finished,
        )  # fmt: skip
        self._save_between()

    def _steps(self, phase: Phase) -> int | None:
        """As many steps as training on all tasks would take, where the method asks for that."""
        if not (phase.weighted and self.method.matched):
            return None
        return Batcher(self.suite, tuple(self.suite.tasks), self.training).steps

    def _run_epoch(self, job: TrainingJob, method: Method) -> None:
        end = (self.at.epoch + 1) * job.steps_per_epoch
        while self.at.step < end:
            if self._several:
                # The same in every process and after every resumption, however many rows each has drawn for.
                torch.manual_seed(batching.seeded(self.training.seed, "step", self.at.total).initial_seed())
            method.step(job)
            self.at.step += 1
            self.at.total += 1
            job.step = self.at.step
            if self.at.step % self.training.log_every == 0:
                self._report(job)
            self._save_if_due(job, method)
        self._report(job)
        self._must_be_finite(job)
        method.after_epoch(job)
        if self._several:
            processes.must_agree(self._accelerator, self.model, job.last_weights, self.at.total)
        self._evaluate(job, method)
        self.at.epoch += 1
        self._save_if_due(job, method)

    def _must_be_finite(self, job: TrainingJob) -> None:
        """A step can break the parameters without a loss that shows it: the last one before an evaluation."""
        if not _finite(self.model):
            losses = dict(zip(job.tasks, job.mean_losses(), strict=True))
            raise NonFiniteLossError(
                f"task {max(losses, key=lambda name: losses[name])!r} has the largest loss, and the model's parameters "
                f"are not finite numbers any more after step {self.at.step} (epoch {self.at.epoch + 1}); lower "
                "learning_rate or set clip"
            )

    def _report(self, job: TrainingJob) -> None:
        job.flush()
        weights = dict(zip(job.tasks, job.last_weights.tolist(), strict=True))
        if not self.log.weights or self.log.weights[-1][0] != self.at.total:
            self.log.weigh(self.at.total, weights)
        losses = dict(zip(job.tasks, job.mean_losses(), strict=True))
        self._display.step(self.at.step, losses, weights)

    def _evaluate(self, job: TrainingJob, method: Method) -> None:
        """One line of metrics: every task's training loss, and dev loss and metric where it has dev rows."""
        found = processes.first_does(self._accelerator, lambda: self._judged(job))
        job.forget_losses()
        self._choose(job, found)
        weights = dict(zip(job.tasks, job.last_weights.tolist(), strict=True))
        line = {
            "phase": job.phase.name, "epoch": self.at.epoch + 1, "step": self.at.total,
            "seconds": round(self.seconds, 3), "tasks": found, "weights": weights,
        }  # fmt: skip
        if notes := method.notes():
            line["method"] = notes
        self.log.evaluation(line)
        if self.training.trackers:
            flat = {f"{task}/{key}": v for task, values in found.items() for key, v in values.items()}
            flat |= {f"weight/{task}": weight for task, weight in weights.items()}
            self._accelerator.log(flat, step=self.at.total)
        self._display.evaluated(self._sentence(job, found))

    def _judged(self, job: TrainingJob) -> dict[str, dict[str, float]]:
        """Every task's training loss, and what its dev rows say."""
        found: dict[str, dict[str, float]] = {}
        for name, loss in zip(job.tasks, job.mean_losses(), strict=True):
            found[name] = {"train_loss": loss}
            if Role.DEV_SELECT in self.suite[name].rows:
                values = self.evaluate(name, Role.DEV_SELECT)
                if not math.isfinite(values["loss"]):
                    raise NonFiniteLossError(
                        f"task {name!r}: the loss on {Role.DEV_SELECT} is not a finite number after epoch "
                        f"{self.at.epoch + 1}; lower learning_rate or set clip"
                    )
                found[name] |= {f"dev_{key}": value for key, value in values.items()}
        return found

    def evaluate(self, task: str, role: Role) -> dict[str, float]:
        """A task's loss and metric on a role's rows."""
        return evaluate(self.model, self.suite[task], self.suite[task].rows[role], self.suite.spec.padding)

    def _choose(self, job: TrainingJob, found: dict[str, dict[str, float]]) -> None:
        """Keeps the model if its dev metric is the best so far: the target's, or the mean where there is none.

        Few dev rows often give several epochs the same metric; among those the lowest dev loss is the best.
        """
        judges = [self.suite.target] if self.suite.target else list(job.tasks)
        judged = [(self.suite[name], found[name]) for name in judges if "dev_loss" in found.get(name, {})]
        if not judged:
            return
        signed = [values[f"dev_{t.metric}"] * (1 if metric_of(t).higher else -1) for t, values in judged]
        value = sum(signed) / len(judged)
        value = -math.inf if math.isnan(value) else value  # such as AUROC of dev rows of one class: the loss decides
        loss = sum(values["dev_loss"] for _, values in judged) / len(judged)
        if (value, -loss) > (self.at.best_value, -self.at.best_loss):
            self.at.best_value, self.at.best_loss = value, loss
            self.at.best_epoch, self.at.since_best = self.at.epoch + 1, 0
            if self.training.keep == "best":
                self._best = job.snapshot()
        else:
            self.at.since_best += 1

    def _exhausted(self) -> bool:
        return self.training.patience is not None and self.at.since_best >= self.training.patience

    def _sentence(self, job: TrainingJob, found: dict[str, dict[str, float]]) -> str:
        subject = self.suite.target if self.suite.target in job.tasks else job.tasks[0]
        values = "  ".join(f"{key} {value:.4f}" for key, value in found[str(subject)].items())
        best = "  best so far" if self._best is not None and self.at.since_best == 0 else ""
        return f"{job.phase.name} {self.at.epoch + 1}/{job.phase.epochs}  {subject}: {values}{best}"

    @property
    def seconds(self) -> float:
        """How long the run took so far, over all its sittings."""
        return self.at.seconds + time.monotonic() - self._begun

    def _save_if_due(self, job: TrainingJob, method: Method) -> None:
        due = time.monotonic() - self._saved >= self.training.checkpoint_seconds
        if self._several:
            # Clocks and signals differ between processes: now and then they agree.
            often = 1 if self.training.checkpoint_seconds == 0 else self.training.log_every
            if self.at.step % often and self.at.step % job.steps_per_epoch:
                return
            due, self._stop = processes.agreed(self._accelerator, due, self._stop)
        if self._stop or due:
            self._save(job, method)

    def _save(self, job: TrainingJob, method: Method) -> None:
        """Writes a checkpoint of everything; stops afterwards if the user asked for it."""
        job.flush()
        if self._folder is not None and self._accelerator.is_main_process and _finite(self.model):
            self._write(
                self._folder,
                {
                    "model": self.model.state_dict(),
                    "optimisation": job.optimisation.state_dict(),
                    "method": method.state_dict(),
                    "generator": job.generator.get_state(),
                    "loss_sum": job.loss_sum,
                    "loss_steps": job.loss_steps,
                    "last_weights": job.last_weights,
                    "best": self._best,
                },
            )
        if self._stop:
            raise Interrupted

    def _save_between(self) -> None:
        """Writes a checkpoint between two phases: the next one starts afresh from the model."""
        if self._folder is not None and self._accelerator.is_main_process:
            self._write(self._folder, {"model": self.model.state_dict()})

    def _write(self, folder: RunFolder, state: dict[str, Any]) -> None:
        place = asdict(self.at) | {"seconds": self.seconds}
        common = {"place": place, "random": checkpoint.random_state()}
        checkpoint.save(folder.path / CHECKPOINT, state | common | {"positions": self.log.positions()})
        self._saved = time.monotonic()

    def _resumable(self) -> dict[str, Any] | None:
        if self._folder is None or not self._folder.started:
            return None
        path = self._folder.path / CHECKPOINT
        state, damage = checkpoint.load(path)
        if damage:
            self._display.evaluated(f"{damage}; going on from the checkpoint before it")
        with self._fitting():
            self.at = Place(**state["place"])
            self.model.load_state_dict(state["model"])
            checkpoint.set_random_state(state["random"])
        return state

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Says that a whole checkpoint is not this run's, whatever in it does not fit."""
        path = CHECKPOINT if self._folder is None else self._folder.path / CHECKPOINT
        try:
            yield
        except SteelyardError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            told = " ".join(str(error).split())[:200]
            raise SteelyardError(
                f"{path}: it is whole, but not this run's ({type(error).__name__}: {told}); delete the run folder "
                "to start over"
            ) from error

    def _restore(self, job: TrainingJob, method: Method, state: Mapping[str, Any]) -> None:
        with self._fitting():
            self._put_back(job, method, state)

    def _put_back(self, job: TrainingJob, method: Method, state: Mapping[str, Any]) -> None:
        job.step = self.at.step
        job.optimisation.load_state_dict(state["optimisation"])
        job.generator.set_state(state["generator"])
        job.loss_sum.copy_(state["loss_sum"])
        job.loss_steps.copy_(state["loss_steps"])
        job.last_weights = state["last_weights"].to(job.device)
        method.load_state_dict({name: value.to(job.device) for name, value in state["method"].items()})
        if len(method.weights) != len(job.tasks):
            raise ValueError(f"{len(method.weights)} weights for {len(job.tasks)} tasks")
        self._best = state["best"]

    @property
    def _several(self) -> bool:
        """Whether several processes train together."""
        return int(self._accelerator.num_processes) > 1

    def _kept(self) -> str:
        """What is left of a run that has to end here."""
        if self._folder is None:
            return "it has no run folder to go on from"
        if not self._folder.started:
            return "there is no checkpoint yet; start the same command again"
        return f"the last checkpoint is kept in {self._folder.path / CHECKPOINT}; the same command goes on from there"

    @contextmanager
    def _keeping_checkpoint(self) -> Iterator[None]:
        """Says where the last good checkpoint is when a loss stops being a number."""
        try:
            yield
        except NonFiniteLossError as error:
            if self._folder is None or not self._folder.started:
                raise
            raise NonFiniteLossError(
                f"{error}; the last good checkpoint is kept in {self._folder.path / CHECKPOINT}"
            ) from None

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Ctrl-C and a polite kill stop after the current step, with a checkpoint; a second Ctrl-C stops at once."""
        if self._folder is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def ask(number: int, frame: object) -> None:
            del frame
            self._stop = True
            signal.signal(number, before[number])

        for number in before:
            signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _untrained_heads(model: SharedModel, trained: Iterable[str]) -> dict[str, dict[str, Tensor]]:
    """The heads, as they are, of the tasks that a phase does not train."""
    moving = {id(parameter) for name in trained for parameter in model.head(name).parameters()}
    still = [name for name in model.tasks if moving.isdisjoint(map(id, model.head(name).parameters()))]
    return {name: copy.deepcopy(model.head(name).state_dict()) for name in still}


def _finite(model: SharedModel) -> bool:
    """Whether every parameter is a number; a checkpoint of one that is not would be worth nothing."""
    return all(bool(p.isfinite().all()) for p in model.parameters())
