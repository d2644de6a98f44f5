"""`record`: forward hooks that note what the rules will need, for as long as the block lasts."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from steelyard.gradients._calls import make_call
from steelyard.gradients._errors import RowsMixError
from steelyard.gradients._rules import Rule, find
from steelyard.gradients._scope import Scope
from steelyard.gradients._shared import SharedTape
from steelyard.gradients._tape import Tape

if TYPE_CHECKING:
    from steelyard.gradients._plan import Verify

AnyTape = TypeVar("AnyTape", Tape, SharedTape)
Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], None]


@overload
def record(
    module: nn.Module,
    rows: Tensor,
    parameters: Iterable[str] | None = None,
    *,
    exact: Iterable[str] = (),
    verify: Verify = "once",
    reduce: bool = False,
) -> AbstractContextManager[Tape]: ...


@overload
def record(
    module: nn.Module,
    rows: None,
    parameters: Iterable[str] | None = None,
    *,
    reduce: bool = False,
) -> AbstractContextManager[SharedTape]: ...


def record(
    module: nn.Module,
    rows: Tensor | None,
    parameters: Iterable[str] | None = None,
    *,
    exact: Iterable[str] = (),
    verify: Verify = "once",
    reduce: bool = False,
) -> AbstractContextManager[Tape] | AbstractContextManager[SharedTape]:
    """Record one forward of a module on N rows, to ask for every task's gradient afterwards.

    Args:
        module: the module whose parameters are meant, and whose forward runs inside the block.
        rows: LongTensor[N], the task of each row; None when every row carries the labels of all tasks.
        parameters: names of the parameters in scope, as in `module.named_parameters()`; by default all trainable
            ones. Frozen ones are left out.
        exact: names of parameters to send on the exact path, one backward per task, whatever the rules say.
        verify: how often it is tested that rows do not mix, at the price of two backwards: "once" per layer call
            of a module, "always" or "never".
        reduce: sum task gradients and slopes over all processes (torch.distributed); losses are then this
            process's share of each task's loss. Row slopes stay with their process.

    Returns:
        A context manager that yields the tape.

    Raises:
        RowsMixError: if a BatchNorm would use the statistics of the batch.
    """
    _refuse_batch_statistics(module)
    scope = Scope(module, parameters)
    if rows is None:
        return _recording(SharedTape(module, scope, reduce=reduce), _Recorder(module, scope, None, set()))
    tape = Tape(module, _row_tensor(rows, scope), scope, exact=exact, verify=verify, reduce=reduce)
    recorder = _Recorder(module, scope, rows.numel(), scope.names(exact))
    tape.calls = recorder.calls
    return _recording(tape, recorder)


@contextmanager
def _recording(tape: AnyTape, recorder: _Recorder) -> Iterator[AnyTape]:
    tape.outputs = recorder.outputs
    with _eager(), recorder:
        yield tape


def _row_tensor(rows: Tensor, scope: Scope) -> Tensor:
    if rows.dim() != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
        raise ValueError(f"rows must be LongTensor[N], not {rows.dtype} of shape {tuple(rows.shape)}")
    device = next((value.device for value in scope.parameters.values()), rows.device)
    return rows.detach().to(device=device, dtype=torch.long)


def _refuse_batch_statistics(module: nn.Module) -> None:
    found = [
        name or type(layer).__name__
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)
    ]
    if found:
        raise RowsMixError(
            f"rows mix in {', '.join(found)}: BatchNorm with the statistics of the batch makes every row depend on "
            "all. Put these layers in eval mode for the probe (gradients.pure(module) does, and puts them back), or "
            "replace them by GroupNorm"
        )


def _eager() -> AbstractContextManager[Any]:
    """Compiled modules run eagerly while they are recorded, because a compiled graph hides its layers."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


class _Recorder:
    """Hooks on every layer that has a rule and a parameter in scope, and on the module for its outputs."""

    def __init__(self, module: nn.Module, scope: Scope, count: int | None, exact: set[str]) -> None:
        self.calls: list[Any] = []
        self.outputs: list[Tensor] = []
        self._module = module
        self._scope = scope
        self._count = count
        self._exact = exact
        self._counts: Counter[str] = Counter()
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        if self._count is not None:
            for name, layer in self._module.named_modules():
                rule = find(layer)
                if rule is not None and self._concerns(rule, layer):
                    hook = self._hook(name, rule)
                    self._handles.append(layer.register_forward_hook(hook, prepend=True, with_kwargs=True))
        self._handles.append(self._module.register_forward_hook(self._keep_outputs))

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _concerns(self, rule: Rule, layer: nn.Module) -> bool:
        names = {self._scope.ids.get(id(value)) for value in rule.parameters(layer).values()} - {None}
        return bool(names - self._exact)

    def _keep_outputs(self, module: nn.Module, args: Any, output: Any) -> None:
        del module, args
        for value in tree_leaves(_plain(output)):
            if not isinstance(value, Tensor) or not value.requires_grad or value.dim() == 0:
                continue
            if self._count in {None, value.shape[0]}:
                self.outputs.append(value)

    def _hook(self, name: str, rule: Rule) -> Hook:
        def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return
            bound = rule.bind(layer, args, kwargs, output)
            if bound is None:
                return
            call = make_call(name, self._counts[name], layer, rule, bound, (args, kwargs), self._scope.ids)
            self._counts[name] += 1
            if call is not None:
                self.calls.append(call)

        return note


def _plain(output: Any) -> Any:
    """Dataclass-like outputs of Hugging Face are ordered mappings; torch's tree functions want a dict."""
    return dict(output) if hasattr(output, "keys") and hasattr(output, "__getitem__") else output
