"""How the questions about one tensor of losses are answered: which calls, which rows, which exact paths."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from steelyard.gradients._errors import GradientError
from steelyard.gradients._exact import exact_task_gradients, only_rows
from steelyard.gradients._graph import Survey, places, survey
from steelyard.gradients._groups import Groups
from steelyard.gradients._linear import LinearRule
from steelyard.gradients._single import single_gradients, single_owners
from steelyard.gradients._sweep import Consumer, sweep
from steelyard.gradients._uses import functional_uses, may_be_broadcast
from steelyard.gradients._verify import Memory, Run, experiment, memory_of, remembered, separations, settle

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from steelyard.gradients._calls import Call
    from steelyard.gradients._rules import Bound
    from steelyard.gradients._scope import Scope

Verify = Literal["once", "always", "never"]
PIECES = 16
"""Positions per task from which a matrix product's slopes are taken from every task's gradient."""
logger = logging.getLogger("steelyard.gradients")


@dataclass
class Plan:
    """The answer's plan.

    Attributes:
        losses: Tensor[T].
        groups: the task of every row.
        scope: the parameters.
        calls: the recorded calls that count.
        survey: what the graph says of them.
        slow: the names of the parameters that take the exact path.
        uses: how many calls use each parameter.
        by_row: whether the rows were located row by row.
    """

    losses: Tensor
    groups: Groups
    scope: Scope
    calls: Sequence[Call]
    survey: Survey
    slow: list[str]
    uses: Mapping[str, int]
    by_row: bool

    def run(self, consume: Consumer, *, keep: bool = True) -> None:
        """One backward of the summed losses; `consume` gets each call that has a parameter to answer for.

        Where the graph is not kept, neither is what the layers were given.
        """

        def useful(call: Call, grads: tuple[Tensor, ...]) -> None:
            if self.wanted(call):
                consume(call, grads)
            if not keep:
                call.forget()

        with torch.autocast(self.losses.device.type, enabled=False):
            sweep([self.losses], [torch.ones_like(self.losses)], self.calls, self.survey, useful, keep=keep)

    def gradients(self, call: Call, grads: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """The call's share of every task's gradient, by the scope's names."""
        bound, outs, groups = self.operands(call, grads)
        wanted = self.wanted(call)
        found = call.rule.task_gradients(call.module, bound, outs, groups, wanted)
        return {wanted[own]: value for own, value in found.items()}

    def row_slopes(self, call: Call, grads: tuple[Tensor, ...], direction: Mapping[str, Tensor]) -> Tensor | None:
        """Tensor[N], the call's share of every row's slope; None when the direction does not concern it."""
        bound, outs, groups = self.operands(call, grads)
        own = {
            local: direction[name].to(outs[0].dtype) for local, name in self.wanted(call).items() if name in direction
        }
        if not own:
            return None
        found = call.rule.row_slopes(call.module, bound, outs, own)
        return found if groups is self.groups else call.known().per_row(found)

    def whole(self, call: Call, grads: tuple[Tensor, ...], weights: Tensor) -> dict[str, Tensor]:
        """The call's share of Σ_t w_t ∇L_t, by the scope's names."""
        bound, outs, groups = self.operands(call, grads)
        each = weights.to(outs[0])[groups.rows]
        scaled = tuple(g * each.reshape(-1, *[1] * (g.dim() - 1)) for g in outs)
        wanted = self.wanted(call)
        one = Groups(torch.zeros_like(groups.rows), 1)
        found = call.rule.task_gradients(call.module, bound, scaled, one, wanted)
        return {wanted[own]: (value.to_dense() if value.is_sparse else value)[0] for own, value in found.items()}

    def prefers_pieces(self, call: Call, grads: tuple[Tensor, ...]) -> bool:
        """Whether slopes are cheaper from every task's gradient than from one more forward of the layer.

        For a matrix product at M positions the forward takes 2·M·i·o operations, and reading T gradients of size i·o
        a few times takes as long as some twenty operations each.
        """
        positions = grads[0].numel() // grads[0].shape[-1]
        return isinstance(call.rule, LinearRule) and positions >= PIECES * self.groups.tasks

    def prefers_ghost(self, call: Call, grads: tuple[Tensor, ...]) -> bool:
        """Whether ghost products need fewer multiplications than materialising this call's gradients.

        A parameter with several uses is always materialised, because its Gram matrix has cross terms.
        """
        wanted = self.wanted(call).values()
        if any(self.uses[name] > 1 for name in wanted):
            return False
        cost = call.rule.ghost_cost(call.input_rows(grads[0].dtype), call.output_rows(grads), self.groups.tasks)
        return cost is not None and cost[0] < cost[1]

    def ghost(self, call: Call, grads: tuple[Tensor, ...]) -> Tensor:
        """Tensor[T, T] by ghost products."""
        bound, outs, groups = self.operands(call, grads)
        return call.rule.ghost_gram(call.module, bound, outs, groups, self.wanted(call))

    def slow_gradients(self) -> dict[str, Tensor]:
        """The gradients that no rule gives: one backward for all that serve one task alone, else one per task."""
        slow = {name: self.scope.parameters[name] for name in self.slow}
        owners = single_owners(self.losses, slow)
        alone = {name: value for name, value in slow.items() if name in owners}
        rest = {name: value for name, value in slow.items() if name not in owners}
        return single_gradients(self.losses, alone, owners) | exact_task_gradients(self.losses, rest)

    def wanted(self, call: Call) -> dict[str, str]:
        """The call's parameters that its rule answers for: own names to the scope's."""
        return {own: name for own, name in call.names.items() if name not in self.slow}

    def operands(self, call: Call, grads: tuple[Tensor, ...]) -> tuple[Bound, tuple[Tensor, ...], Groups]:
        """What the call's rule works on: inputs and output gradients, rows first, and whose rows they are."""
        kind = torch.float64 if grads[0].dtype == torch.float64 else torch.float32
        outs = tuple(g.to(kind) for g in call.output_rows(grads))
        return call.input_rows(kind), outs, call.known().groups(self.groups)


def make_plan(
    module: nn.Module,
    scope: Scope,
    calls: Sequence[Call],
    outputs: Sequence[Tensor],
    rows: Tensor,
    losses: Tensor,
    *,
    exact: Iterable[str],
    verify: Verify,
    by_row: bool,
) -> Plan:
    """Locate every call's rows and find out which parameters need the exact path."""
    _check(rows, losses)
    groups, memory = Groups(rows, losses.numel()), memory_of(module)
    memory.rowless.update(call.site for call in calls if rows.numel() and not call.has_row_dimension(rows.numel()))
    forced = set(exact) | {name for name, value in scope.parameters.items() if value._backward_hooks}
    good, plan = _usable(module, scope, calls, losses, len(groups), memory, forced)
    if verify == "never" or not remembered(
        good, plan, losses, groups, memory, by_row=by_row, always=verify == "always"
    ):
        _locate(good, plan, losses, outputs, groups, memory, by_row=by_row, verify=verify)
    located = [call for index, call in enumerate(good) if index in plan.reached and call.layout is not None]
    if len(located) < len(good):
        good, plan = located, survey([losses], located)
    slow = [name for name, value in scope.parameters.items() if id(value) in plan.uncovered or name in forced]
    fresh = [name for name in slow if name not in memory.told]
    if fresh:
        memory.told.update(fresh)
        logger.debug("no rule accounts for every use of %s: exact path, a backward per task", ", ".join(fresh))
    uses = Counter(name for index in plan.reached for name in good[index].names.values())
    return Plan(losses, groups, scope, good, plan, slow, uses, by_row)


def _usable(
    module: nn.Module,
    scope: Scope,
    calls: Sequence[Call],
    losses: Tensor,
    count: int,
    memory: Memory,
    forced: Collection[str],
) -> tuple[list[Call], Survey]:
    """The recorded calls that may have rows and do not lie around others, and the uses that only the graph shows.

    With the survey of the graph with these calls.
    """
    intact = [call for call in calls if call.intact]
    good = [call for call in intact if call.site not in memory.exact and call.candidates(count)]
    lookups = [call for call in intact if may_be_broadcast(call, count)]
    wanted, fresh = set[int](), bool(lookups)
    while True:
        plan = survey([losses], good)
        good = [call for index, call in enumerate(good) if index not in plan.overlapping]
        open_ids = {key for key in plan.uncovered if key in scope.ids and scope.ids[key] not in forced}
        fresh = fresh or not open_ids <= wanted
        if not plan.overlapping and not fresh:
            return good, plan
        if fresh:
            wanted |= open_ids
            pairs = functional_uses(module, [losses], scope, wanted, lookups)
            pairs = [(use, old) for use, old in pairs if use.site not in memory.exact and use.candidates(count)]
            if not (plan.overlapping or pairs or any(call.found for call in good)):
                return good, plan  # there is nothing new to survey
            replaced = {id(old) for _, old in pairs}
            recorded = [call for call in good if not call.found and id(call) not in replaced]
            good, fresh = [*recorded, *(use for use, _ in pairs)], False


def _check(rows: Tensor, losses: Tensor) -> None:
    if losses.dim() != 1:
        raise ValueError(f"losses must be Tensor[T], one number per task, not of shape {tuple(losses.shape)}")
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < losses.numel():
        raise ValueError(
            f"rows names tasks {int(rows.min())} to {int(rows.max())}, but there are {losses.numel()} losses"
        )


def _locate(
    calls: Sequence[Call],
    plan: Survey,
    losses: Tensor,
    outputs: Sequence[Tensor],
    groups: Groups,
    memory: Memory,
    *,
    by_row: bool,
    verify: Verify,
) -> None:
    """Find the layouts by experiment, or take the likeliest where an experiment would show nothing."""
    present = sum(size > 0 for size in groups.sizes)
    through = not survey([losses], calls, stop=frozenset(places(outputs))).reached and len(outputs) > 0
    finite = bool(losses.detach().isfinite().all())
    if verify == "never" or not finite or not plan.reached or (present < 2 and not by_row):
        for call in calls:
            call.layout = call.layout or call.candidates(len(groups))[0]
        return
    if by_row and not through and present < 2:
        raise GradientError(
            "with a single task the rows of a slope are found through the module's output, and the losses do not "
            "depend on the recorded module through an output with one entry per row alone; record that module"
        )
    rowwise = by_row and through
    runs = _runs(losses, outputs, groups, rowwise=rowwise)
    left, alive = experiment(runs, calls, plan, len(groups))
    settle(calls, plan, left, alive, len(groups), memory, by_row=rowwise)
    if by_row and not rowwise:
        settle(calls, plan, left, alive, len(groups), memory, by_row=True)


def _runs(losses: Tensor, outputs: Sequence[Tensor], groups: Groups, *, rowwise: bool) -> list[Run]:
    """Backwards with some of the rows, or of the tasks, switched off."""
    if rowwise:
        masks = [mask.to(losses.device) for mask in separations(len(groups))]
        return [Run(losses, torch.ones_like(losses), only_rows(outputs, keep), ~keep) for keep in masks]
    present = torch.tensor([size > 0 for size in groups.sizes])
    runs = []
    for mask in separations(int(present.sum())):
        keep = torch.ones(groups.tasks, dtype=torch.bool)
        keep[present] = mask
        keep = keep.to(losses.device)
        runs.append(Run(losses, keep.to(losses.dtype), nullcontext(), ~keep[groups.rows]))
    return runs
