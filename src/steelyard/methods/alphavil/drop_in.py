"""αVIL for a training loop of your own: plain PyTorch, nothing else of this library."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from steelyard import gradients
from steelyard.errors import SteelyardError, did_you_mean
from steelyard.methods._turns import State, put, randomness, set_randomness, under
from steelyard.methods.alphavil.mixing import Precision, keep, mean_buffers, place, slopes, tune


class TaskUpdates:
    """Mixes what your loop makes of each task alone, so that the target's dev loss falls, and learns task weights.

        updates = TaskUpdates(model, optimizer, ["mine", "other"])
        for _ in range(rounds):
            for task in updates.tasks:
                with updates.alone(task):            # every task starts from the same model
                    train_some_steps(task)           # your own steps, with your optimizer
            updates.merge(lambda: dev_loss(model))   # the model is now the best mixture

    Each task has its own optimiser state. A round should be short: a fraction of an epoch.

    Args:
        model: The whole model, heads included.
        optimizer: What trains it; a schedule of yours keeps its learning rate.
        tasks: The names of the tasks, the target's too.
        acts_on: What w_t/Σw multiplies: the task's way (``delta``), or your loss (``loss``, as published: multiply
            it yourself with what `alone` gives; under Adam that does next to nothing).
        floor: The smallest w_t.
        on_cpu: Keep deltas in the host's memory.
        precision: The precision that deltas are kept in.
        **solver: Options of `steelyard.methods.alphavil.mixing.tune`.

    Attributes:
        tasks: The names of the tasks.
        importance: w ``[T]``, all 1 at first.
        alpha: The last α ``[T]``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        tasks: Sequence[str],
        *,
        acts_on: Literal["delta", "loss"] = "delta",
        floor: float = 1e-6,
        on_cpu: bool = False,
        precision: Precision = "full",
        **solver: Any,
    ) -> None:
        self.tasks = tuple(tasks)
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise SteelyardError("TaskUpdates needs at least one task, and each name once")
        self.importance = torch.ones(len(self.tasks), dtype=torch.float64)
        self.alpha = torch.ones_like(self.importance)
        self._model, self._optimizer, self._acts_on, self._floor = model, optimizer, acts_on, floor
        self._on_cpu, self._precision, self._solver = on_cpu, precision, solver
        self._state: State = {}
        self._moments: dict[str, Any] = {}
        self._done: set[str] = set()

    @property
    def weights(self) -> dict[str, float]:
        """w/Σw by task."""
        return dict(zip(self.tasks, (self.importance / self.importance.sum()).tolist(), strict=True))

    @contextmanager
    def alone(self, task: str) -> Iterator[float]:
        """Inside, train the task from where the round began; gives w_t/Σw."""
        if task not in self.tasks:
            hint = did_you_mean(task, self.tasks) or f"the tasks are {', '.join(self.tasks)}"
            raise SteelyardError(f"there is no task {task!r}; {hint}")
        if task in self._done:
            raise SteelyardError(f"task {task!r} had its turn in this round; call merge() before the next one")
        if not self._state:
            put(self._state, "start.", {n: value.detach().clone() for n, value in self._model.state_dict().items()})
            put(self._state, "random.", randomness())
        self._restore(under(self._state, "start."))
        set_randomness(under(self._state, "random."))
        self._optimizer.zero_grad()
        moments = copy.deepcopy(self._moments.get(task, {}))
        self._optimizer.load_state_dict(self._optimizer.state_dict() | {"state": moments})
        share = self.weights[task]
        yield share
        self._moments[task] = copy.deepcopy(self._optimizer.state_dict()["state"])
        keep(
            self._state, self._model, self.tasks.index(task), share if self._acts_on == "delta" else 1.0,
            on_cpu=self._on_cpu, precision=self._precision,
        )  # fmt: skip
        self._done.add(task)

    def merge(self, dev_loss: Callable[[], Tensor]) -> Tensor:
        """Ends the round: finds α, moves the model to θ + Σ α_t δ_t, and w_t to max(floor, w_t + α_t - 1).

        Args:
            dev_loss: The target's loss on held-out rows, with its graph; it is asked for several times, in evaluation
                mode. Do not choose the final model by the same rows.

        Returns:
            α ``[T]``.
        """
        missing = [task for task in self.tasks if task not in self._done]
        if missing:
            raise SteelyardError(f"task {missing[0]!r} had no turn in this round; train every task before merge()")
        start = under(self._state, "start.") | mean_buffers(self._state, len(self.tasks))
        self._restore(start)
        deltas = [under(self._state, f"delta.{number}.") for number in range(len(self.tasks))]
        parameters = {name: p for name, p in self._model.named_parameters() if p.requires_grad}

        def dev(alpha: Tensor) -> tuple[float, Tensor]:
            place(parameters, start, deltas, alpha)
            with gradients.pure(self._model), torch.enable_grad():
                loss = dev_loss()
                found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
            return float(loss.detach()), slopes(dict(zip(parameters, found, strict=True)), deltas)

        self.alpha = tune(dev, len(self.tasks), **self._solver)
        place(parameters, start, deltas, self.alpha)
        self._state.clear()
        self._done.clear()
        self.importance = (self.importance + self.alpha - 1).clamp_min(self._floor)
        return self.alpha

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed loop needs; save it between rounds, after `merge`."""
        if self._state:
            raise SteelyardError("TaskUpdates is in the middle of a round; save it after merge()")
        return {"importance": self.importance, "alpha": self.alpha, "moments": copy.deepcopy(self._moments)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` of another."""
        self.importance, self.alpha = state["importance"].clone(), state["alpha"].clone()
        self._moments = copy.deepcopy(state["moments"])

    def _restore(self, values: State) -> None:
        self._model.load_state_dict(values)
