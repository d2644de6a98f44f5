"""Weightings of losses and combinations of gradients in a training loop that you own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.errors import SteelyardError, did_you_mean
from steelyard.gradients import Tape, TaskGradients
from steelyard.methods._own_probe import Ahead, Read, exact
from steelyard.methods.base import Method
from steelyard.methods.job import Objective, Rule, Weights
from steelyard.tasks import Role


class OwnLoop:
    """A method that fills ``.grad`` from the losses of your own loop, and leaves all else to it.

        loop = OwnLoop("bandit+pcgrad", ["topic", "stars"], encoder.parameters())
        optimizer = torch.optim.AdamW([*model.parameters(), *loop.parameters()])
        for batch in batches:
            loop.backward(losses(batch))         # [T], in place of losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            loop.after_step(lambda: losses(batch))  # for methods that look where the step has led

    All methods serve that look at a step's losses, at its task gradients, and at losses after it; one that needs more
    (rows of its own) is refused by name, and may have a form of its own (see its page).

    Args:
        method: A name, a method with its options, or a mapping of ``weights`` and ``gradients``, as in `fit`.
        tasks: The tasks' names, in the order of the losses.
        shared: The parameters that tasks share, for methods that look at gradients; for ``gradnorm`` those of the last
            shared layer.
        target: The target's name, for methods that need one.
        seed: Of the method's randomness.

    Attributes:
        method: The method.
        generator: The method's randomness.
        step: Steps taken so far.
    """

    def __init__(
        self,
        method: str | Method | Mapping[str, Any],
        tasks: Sequence[str],
        shared: Iterable[nn.Parameter] = (),
        *,
        target: str | None = None,
        seed: int = 0,
    ) -> None:
        from steelyard.methods import build

        self.method, self.tasks = build(method), tuple(tasks)
        if target is not None and target not in self.tasks:
            hint = did_you_mean(target, self.tasks) or f"the tasks are {', '.join(self.tasks)}"
            raise SteelyardError(f"there is no task {target!r}; {hint}")
        if self.method.needs_target and target is None:
            raise SteelyardError(f"method {self.method.name!r} needs a target; name one: OwnLoop(…, target=…)")
        self.target = None if target is None else self.tasks.index(target)
        self._shared = {str(number): p for number, p in enumerate(shared) if p.requires_grad}
        self._device = next((p.device for p in self._shared.values()), torch.device("cpu"))
        self.initial_weights = torch.full((len(self.tasks),), 1 / len(self.tasks), device=self._device)
        self.sizes = torch.ones_like(self.initial_weights)
        self.tasks_per_step, self.step = len(self.tasks), 0
        self.generator = torch.Generator().manual_seed(seed)
        self.model: Any = _Nothing(self.tasks)
        self.method.adapt(self.model)  # type: ignore[arg-type,unused-ignore]
        self.model.to(self._device)
        self.method.start(self)  # type: ignore[arg-type]
        self._losses = torch.zeros(0)
        self._tape: Tape | None = None
        self._read: dict[str, Tensor] = {}
        self._rest: Callable[[], None] | None = None
        self._again: Callable[[], Tensor] | None = None
        self.batch_size = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise SteelyardError(
            f"method {self.method.name!r} asks for {name!r}, which a loop of your own does not give; use its own "
            "form, if its page has one, or steelyard.fit"
        )

    @property
    def weights(self) -> Tensor:
        """The weights of the losses ``[T]``, as last used."""
        return self.method.weights

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the method learns along with the model, without weight decay please: for your optimiser."""
        found: Iterator[nn.Parameter] = self.model.parameters()
        return found

    def backward(
        self, losses: Tensor, tape: Tape | None = None, representation: Tensor | Sequence[Tensor] | None = None
    ) -> None:
        """Adds this step's gradients to ``.grad``, of the shared parameters and all others that the losses depend on.

        Args:
            losses: Each task's mean loss ``[T]``, with its graph; 0 for a task without rows in the step.
            tape: From ``gradients.record`` around the forward, with the shared parameters: all task gradients in one
                pass. Without it they are taken by a backward per task, where the method looks at them.
            representation: What the heads read, as it came out of the encoder (of several calls, all), for ``mgda_ub``.
        """
        if losses.shape != (len(self.tasks),):
            raise SteelyardError(
                f"losses of shape {list(losses.shape)}: give one for each of the {len(self.tasks)} tasks"
            )
        bad = (~losses.detach().isfinite()).nonzero()
        if len(bad):
            raise SteelyardError(
                f"task {self.tasks[int(bad[0])]!r}: the loss is not a finite number at step {self.step + 1}"
            )
        if self._rest is not None:
            raise SteelyardError(
                f"method {self.method.name!r} looks where a step has led: call after_step(…) after the optimiser's step"
            )
        self._losses, self._tape = losses, tape
        pieces = [representation] if isinstance(representation, Tensor) else representation or ()
        self._read = {str(number): piece for number, piece in enumerate(pieces)}
        self.method.step(self)  # type: ignore[arg-type]
        self._losses, self._tape, self._read = torch.zeros(0), None, {}
        self.step += 1

    def after_step(self, losses: Callable[[], Tensor]) -> None:
        """After the optimiser's step, for methods that look where it has led; the others do not ask for the losses.

        Args:
            losses: Called for losses at the parameters as they are now: for ``famo`` of the same rows ``[T]``, for
                ``autolambda`` of held-out rows of the target, one number.
        """
        rest, self._rest = self._rest, None
        if rest is not None:
            self._again = losses
            rest()
            self._again = None

    def after_epoch(self) -> None:
        """Tells the method that an epoch is over (``dwa`` and ``ramp`` move then)."""
        self.method.after_epoch(self)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed loop needs."""
        return {
            "method": self.method.state_dict(),
            "model": self.model.state_dict(),
            "generator": self.generator.get_state(),
            "step": self.step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` of another."""
        self.method.load_state_dict(state["method"])
        self.model.load_state_dict(state["model"])
        self.generator.set_state(state["generator"])
        self.step = state["step"]

    def then(self, rest: Callable[[], None]) -> None:
        """Keeps the rest of a step for `after_step`."""
        self._rest = rest

    def measure(self, batch: None) -> Tensor:
        """The losses after the step."""
        del batch
        with torch.no_grad():
            return self._after(self.tasks)

    def draw(self, role: Role, size: int, tasks: tuple[str, ...] | None = None) -> None:
        """Nothing: whoever owns the loop draws rows."""

    @contextmanager
    def probe(self, batch: None, scope: str = "shared", tasks: tuple[str, ...] | None = None) -> Iterator[Ahead]:
        """The loss after the step and its gradient over the shared parameters, whatever the scope."""
        del batch, scope
        yield Ahead(self._after(tasks or self.tasks), self._shared)

    def _after(self, tasks: tuple[str, ...]) -> Tensor:
        """The losses that `after_step` was given, of some tasks."""
        if self._again is None:
            raise SteelyardError(
                f"method {self.method.name!r} looks at losses within a step, which a loop of your own does not give; "
                "use its own form, if its page has one, or steelyard.fit"
            )
        losses = self._again().reshape(-1)
        if len(losses) != len(tasks):
            raise SteelyardError(f"after_step got {len(losses)} losses; give one for each of {', '.join(tasks)}")
        return losses

    def batch(self) -> None:
        """Nothing: the losses are there already."""

    def descend(self, batch: None, weights: Weights, row_weights: None = None, penalty: None = None) -> Tensor:
        """As `Job.descend`, up to the optimiser's step."""
        del batch
        if row_weights is not None or penalty is not None:
            raise SteelyardError(f"method {self.method.name!r} weighs rows or adds a penalty; use steelyard.fit")
        losses = self._losses.detach()
        used = weights if isinstance(weights, Tensor) else weights(losses)
        torch.autograd.backward(self._losses @ used.to(losses), retain_graph=True)
        return losses

    def minimise(self, batch: None, objective: Objective, weights: Tensor, rate: float = 1.0) -> Tensor:
        """As `Job.minimise`, up to the optimiser's step."""
        del batch, weights, rate
        torch.autograd.backward(objective(self._losses), retain_graph=True)
        return self._losses.detach()

    def dissect(self, batch: None, weights: Tensor, scope: str = "all") -> tuple[Tensor, TaskGradients]:
        """As `Job.dissect`, up to the optimiser's step; over the shared parameters, whatever the scope."""
        del scope
        return self.descend(batch, weights), self._task_gradients()

    def combine(
        self,
        batch: None,
        weights: Weights,
        rule: Rule,
        row_weights: None = None,
        at: str = "parameters",
        objective: Objective | None = None,
        penalty: None = None,
    ) -> Tensor:
        """As `Job.combine`, up to the optimiser's step."""
        if at == "representation" and not self._read:
            raise SteelyardError(
                f"method {self.method.name!r} compares gradients by what the heads read: give it, "
                "backward(losses, representation=features)"
            )
        losses = self._losses.detach()
        before = {name: None if p.grad is None else p.grad.clone() for name, p in self._shared.items()}
        if objective is None:
            used = (weights if isinstance(weights, Tensor) else weights(losses)).detach().to(losses)
            self.descend(batch, used, row_weights, penalty)
        else:
            leaf = losses.clone().requires_grad_()
            (used,) = torch.autograd.grad(objective(leaf), [leaf])
            self.minimise(batch, objective, used)
        found: TaskGradients | Read = (
            self._task_gradients() if at == "parameters" else Read(self._losses, self._shared, self._read)
        )
        wide = used.double()
        coefficients = rule(wide[:, None] * found.gram().double() * wide).to(used)
        for name, value in found.combine(coefficients * used).items():
            own = before[name]
            self._shared[name].grad = value.to(self._shared[name]) if own is None else own + value.to(own)
        return losses

    def _task_gradients(self) -> TaskGradients:
        """Every task's gradient over the shared parameters; their graph is kept."""
        if not self._shared:
            raise SteelyardError(
                f"method {self.method.name!r} looks at gradients: give the parameters that the tasks share, "
                "OwnLoop(…, shared=encoder.parameters())"
            )
        if self._tape is None:
            return exact(self._losses, self._shared)
        found = self._tape.task_gradients(self._losses)
        if len(found) != len(self._shared):
            raise SteelyardError(
                f"the tape records {len(found)} parameters, and {len(self._shared)} are shared: name the same"
            )
        values = dict(zip(self._shared, (found[name] for name in found), strict=True))
        return TaskGradients(values, {n: p.shape for n, p in self._shared.items()}, self._losses.detach())


class _Nothing(nn.Module):
    """Stands where the model would: a method may add its own parameters to it."""

    def __init__(self, tasks: tuple[str, ...]) -> None:
        super().__init__()
        self.tasks, self.encoder = tasks, SimpleNamespace(last_layer="")
