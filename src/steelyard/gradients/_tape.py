"""The tape: what `record` yields, and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from steelyard.gradients._distributed import reduce_sum
from steelyard.gradients._errors import GradientError
from steelyard.gradients._exact import exact_row_slopes, exact_slopes
from steelyard.gradients._layers import LayerTraces
from steelyard.gradients._plan import Plan, Verify, make_plan
from steelyard.gradients._products import inner_products
from steelyard.gradients._result import TaskGradients, add, gram_of, slopes_of, squares_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from steelyard.gradients._calls import Call
    from steelyard.gradients._products import Metric
    from steelyard.gradients._scope import Scope


class Tape:
    """A recorded forward. Ask it after the losses are computed, inside or outside the `with` block.

    Every question costs one backward to the layers' outputs, on top of what its answer needs. The graph is kept,
    so several questions, or `losses.sum().backward()`, may follow.

    Attributes:
        scope: the parameters that gradients are taken by.
    """

    def __init__(
        self,
        module: nn.Module,
        rows: Tensor,
        scope: Scope,
        *,
        exact: Iterable[str],
        verify: Verify,
        reduce: bool,
    ) -> None:
        self.scope = scope
        self.calls: list[Call] = []
        self.outputs: list[Tensor] = []
        self._module = module
        self._rows = rows
        self._exact = scope.names(exact)
        self._verify = verify
        self._reduce = reduce
        self._plan: Plan | None = None
        self._over = False

    def task_gradients(self, losses: Tensor, *, keep: bool = True) -> TaskGradients:
        """Every task's gradient: a mapping {parameter name: Tensor[T, *shape]}.

        Args:
            losses: Tensor[T], losses[t] computed from the rows of task t.
            keep: whether the graph is kept. Without it this is the last question, and what the forward saved is freed
                as the backward goes, as in a training step.

        Returns:
            A mapping that keeps embedding gradients sparse until an entry is read.
        """
        plan = self._planned(losses)
        found: dict[str, Tensor] = {}

        def consume(call: Call, grads: tuple[Tensor, ...]) -> None:
            for name, value in plan.gradients(call, grads).items():
                found[name] = add(found.get(name), value)

        slow = plan.slow_gradients()
        plan.run(consume, keep=keep)
        found.update(slow)
        self._over = not keep
        like = torch.zeros(plan.groups.tasks, dtype=self.scope.dtype, device=losses.device)
        if self._reduce:
            dense = TaskGradients(found, self.scope.shapes, like)
            found = {name: reduce_sum(dense[name]) for name in self.scope.shapes}
        return TaskGradients(found, self.scope.shapes, like)

    def traced(self, losses: Tensor, weights: Tensor) -> tuple[dict[str, Tensor], LayerTraces]:
        """Σ_t w_t ∇L_t and what `products` with another batch needs of every task's gradient; the last question.

        No more than one layer's gradients of all tasks are in memory at a time, of large layers those of some tasks.

        Args:
            losses: Tensor[T].
            weights: w, Tensor[T].

        Returns:
            The weighted gradient {parameter name: Tensor[*shape]}, without parameters that no loss depends on, and
            the traces, which hold layers' inputs and output gradients.
        """
        traces = LayerTraces(self._planned(losses), reduce=self._reduce)
        found = traces.take(weights)
        self._over = True
        return {
            name: reduce_sum(value) for name, value in self._dense(found).items()
        } if self._reduce else found, traces

    def products(self, losses: Tensor, other: TaskGradients | LayerTraces, metric: Metric | None = None) -> Tensor:
        """⟨∇L_t, P g_j⟩ with every gradient g_j of another batch, Tensor[T, T']; the last question.

        Args:
            losses: Tensor[T].
            other: task gradients of another batch over the same scope (or a larger one), or its traces, once.
            metric: the diagonal P: see `inner_products`.
        """
        if isinstance(other, TaskGradients) or self._reduce:
            whole = other if isinstance(other, TaskGradients) else other.formed()
            return inner_products(self.task_gradients(losses, keep=False), whole, metric)
        plan, self._over = self._planned(losses), True
        return other.products(plan, metric)

    def slopes(self, losses: Tensor, direction: Mapping[str, Tensor]) -> Tensor:
        """Tensor[T]: ⟨∇L_t, v⟩ for every task, without any gradient being formed.

        Args:
            losses: Tensor[T].
            direction: v by parameter name; parameters that it lacks count as zero.
        """
        plan = self._planned(losses)
        v = self.scope.direction(direction)
        total = torch.zeros(plan.groups.tasks, dtype=self.scope.dtype, device=losses.device)

        def consume(call: Call, grads: tuple[Tensor, ...]) -> None:
            per_row = plan.row_slopes(call, grads, v)
            if per_row is not None:
                total.index_add_(0, self._rows, per_row.to(total.dtype))

        plan.run(consume)
        slow = {name: self.scope.parameters[name] for name in plan.slow if name in v}
        total += exact_slopes(losses, slow, v)
        return reduce_sum(total) if self._reduce else total

    def weighted(
        self, losses: Tensor, weights: Tensor, direction: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Σ_t w_t ∇L_t and every task's slope, from one backward; one layer's gradients in memory at a time.

        Args:
            losses: Tensor[T].
            weights: w, Tensor[T].
            direction: v by parameter name; parameters that it lacks count as zero.

        Returns:
            The weighted gradient {parameter name: Tensor[*shape]}, without parameters that no loss depends on, and
            the slopes ⟨∇L_t, v⟩, Tensor[T].
        """
        plan = self._planned(losses)
        v = self.scope.direction(direction)
        found: dict[str, Tensor] = {}
        total = torch.zeros(plan.groups.tasks, dtype=self.scope.dtype, device=losses.device)

        def split(gradients: Mapping[str, Tensor]) -> None:
            for name, value in gradients.items():
                if name in v:
                    total.add_(slopes_of(value, v[name].to(value.dtype)))
                found[name] = add(found.get(name), torch.tensordot(weights.to(value.dtype), value, dims=1))

        def consume(call: Call, grads: tuple[Tensor, ...]) -> None:
            if plan.prefers_pieces(call, grads):
                split(plan.gradients(call, grads))
                return
            per_row = plan.row_slopes(call, grads, v)
            if per_row is not None:
                total.index_add_(0, self._rows, per_row.to(total.dtype))
            for name, value in plan.whole(call, grads, weights).items():
                found[name] = add(found.get(name), value)

        plan.run(consume)
        split(plan.slow_gradients())
        if self._reduce:
            return {name: reduce_sum(value) for name, value in self._dense(found).items()}, reduce_sum(total)
        return found, total

    def row_slopes(self, losses: Tensor, direction: Mapping[str, Tensor]) -> Tensor:
        """Tensor[N]: the share of every row in its task's slope; per task they sum to `slopes`.

        If losses[t] is the sum of its rows' losses, entry i is ⟨∇ℓ_i, v⟩; if it is their mean, ⟨∇ℓ_i, v⟩/n_t. The
        rows of this process are returned under several processes too.
        """
        plan = self._planned(losses, by_row=True)
        v = self.scope.direction(direction)
        total = torch.zeros(len(plan.groups), dtype=self.scope.dtype, device=losses.device)

        def consume(call: Call, grads: tuple[Tensor, ...]) -> None:
            per_row = plan.row_slopes(call, grads, v)
            if per_row is not None:
                total.add_(per_row.to(total.dtype))

        plan.run(consume)
        slow = {name: self.scope.parameters[name] for name in plan.slow if name in v}
        if slow:
            total += exact_row_slopes(losses, self.outputs, slow, v, len(plan.groups))
        return total

    def gram(self, losses: Tensor) -> Tensor:
        """Tensor[T, T]: inner products of the tasks' gradients, one layer in memory at a time."""
        plan = self._planned(losses)
        if self._reduce:
            return self.task_gradients(losses).gram()
        total = torch.zeros(plan.groups.tasks, plan.groups.tasks, dtype=self.scope.dtype, device=losses.device)
        self._quadratic(plan, lambda value: total.add_(gram_of(value)), total)
        return total

    def norms(self, losses: Tensor) -> Tensor:
        """Tensor[T]: the Euclidean norm of every task's gradient, one layer in memory at a time."""
        plan = self._planned(losses)
        if self._reduce:
            return self.task_gradients(losses).norms()
        total = torch.zeros(plan.groups.tasks, dtype=self.scope.dtype, device=losses.device)
        self._quadratic(plan, lambda value: total.add_(squares_of(value)), None)
        return total.sqrt()

    def exact_names(self, losses: Tensor) -> list[str]:
        """The parameters that take the exact path for these losses, one backward per task."""
        return list(self._planned(losses).slow)

    def _dense(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """With zeros for what no loss of this process depends on: all processes take part in every sum."""
        return {name: found.get(name, torch.zeros_like(p)) for name, p in self.scope.parameters.items()}

    def _quadratic(self, plan: Plan, take: Callable[[Tensor], object], gram: Tensor | None) -> None:
        """Hand every parameter's gradients to `take`; a Gram matrix may use ghost products instead."""
        shared: dict[str, Tensor] = {}

        def consume(call: Call, grads: tuple[Tensor, ...]) -> None:
            if gram is not None and plan.prefers_ghost(call, grads):
                gram.add_(plan.ghost(call, grads))
                return
            for name, value in plan.gradients(call, grads).items():
                if plan.uses[name] == 1:
                    take(value)
                else:
                    shared[name] = add(shared.get(name), value)

        plan.run(consume)
        for value in (*shared.values(), *plan.slow_gradients().values()):
            take(value)

    def _planned(self, losses: Tensor, *, by_row: bool = False) -> Plan:
        """The plan for these losses, made once."""
        if self._over:
            raise GradientError(
                "this tape has answered its last question, which freed the graph (task_gradients with keep=False, "
                "traced, products); record another forward"
            )
        plan = self._plan
        if plan is None or plan.losses is not losses or (by_row and not plan.by_row):
            plan = make_plan(
                self._module,
                self.scope,
                self.calls,
                self.outputs,
                self._rows,
                losses,
                exact=self._exact,
                verify=self._verify,
                by_row=by_row,
            )
            self._plan = plan
        return plan
