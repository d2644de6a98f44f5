"""Ghost products and their crossover; rules for a user's own layer."""

from collections.abc import Mapping

import pytest
import torch
from tests.gradients.gradient_checks import check, task_losses
from torch import Tensor, nn

from steelyard import gradients
from steelyard.gradients import _linear, _rules


class Calls(list[str]):
    """Notes which form each layer took."""

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("ghost_gram", "task_gradients"):
            plain = getattr(_linear.LinearRule, name)

            def noted(rule: object, *args: object, _name: str = name, _plain: object = plain) -> object:
                self.append(_name)
                return _plain(rule, *args)

            monkeypatch.setattr(_linear.LinearRule, name, noted)


@pytest.mark.parametrize(("width", "expected"), [(5, "task_gradients"), (64, "ghost_gram")])
def test_the_crossover_between_ghost_and_materialised(
    width: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M²(i + o) < (M + T²)·i·o with M = 12, T = 3, i = o: the crossover is at a width of 2·144/21 = 13.7."""
    module = nn.Linear(width, width).double()
    x, rows = torch.randn(12, width, dtype=torch.float64), torch.arange(3).repeat(4)
    calls = Calls()
    with gradients.record(module, rows) as tape:
        losses = task_losses(module(x), rows, 3)
    exact = gradients.exact_task_gradients(losses, tape.scope.parameters)
    flat = torch.cat([value.flatten(1) for value in exact.values()], 1)
    calls.watch(monkeypatch)
    torch.testing.assert_close(tape.gram(losses), flat @ flat.t())
    assert calls == [expected]


@pytest.mark.parametrize(("width", "ghost"), [(13, False), (14, True)])
def test_the_crossover_is_where_the_counts_meet(width: int, ghost: bool) -> None:
    rule = _linear.LinearRule()
    bound = gradients.Bound((torch.zeros(12, width),), ())
    products, materialised = rule.ghost_cost(bound, (torch.zeros(12, width),), 3)
    assert (products < materialised) is ghost


@pytest.mark.parametrize("shape", [(12, 64), (12, 1, 64)])
def test_ghost_products_of_a_weight_or_a_bias_alone(shape: tuple[int, ...]) -> None:
    module = nn.Linear(64, 64).double()
    x, rows = torch.randn(*shape, dtype=torch.float64), torch.arange(3).repeat(4)
    for name in ("weight", "bias"):
        check(module, lambda: module(x), rows, 3, parameters=[name])


def test_tied_layers_are_never_ghosts_because_of_cross_terms() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).double()
    module[1].weight = module[0].weight
    x, rows = torch.randn(6, 64, dtype=torch.float64), torch.arange(3).repeat(2)
    check(module, lambda: module(x), rows, 3)


class Gate(nn.Module):
    """A user's layer: one learned scale per feature over a fixed squashing, in reverse order."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x.sigmoid() * self.gain.flip(0)


@pytest.fixture
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rules, "_RULES", dict(_rules._RULES))


@pytest.mark.usefixtures("_registry")
def test_a_rule_for_a_layer_of_your_own_needs_only_apply() -> None:
    module = nn.Sequential(nn.Linear(4, 4), Gate(4), nn.Linear(4, 2)).double()
    x, rows = torch.randn(6, 4, dtype=torch.float64), torch.tensor([1, 0, 2, 2, 0, 4])
    check(module, lambda: module(x), rows, 5, slow={"1.gain"})

    @gradients.register(Gate)
    class GateRule(gradients.Rule):
        """y = sigmoid(x) ∘ reversed gain."""

        names = frozenset({"gain"})

        def apply(self, module: nn.Module, bound: gradients.Bound, parameters: Mapping[str, Tensor]) -> Tensor:
            del module
            return bound.rows[0].sigmoid() * parameters["gain"].flip(0)

    check(module, lambda: module(x), rows, 5)


@pytest.mark.usefixtures("_registry")
def test_a_rule_that_overlooks_a_parameter_of_a_child_is_not_believed() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(4))
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).sigmoid() * self.gain

    @gradients.register(Nested)
    class NestedRule(gradients.Rule):
        """Knows the gain alone."""

        names = frozenset({"gain"})

        def apply(self, module: nn.Module, bound: gradients.Bound, parameters: Mapping[str, Tensor]) -> Tensor:
            return module.inner(bound.rows[0]).sigmoid() * parameters["gain"]

    module = Nested().double()
    x, rows = torch.randn(6, 4, dtype=torch.float64), torch.tensor([1, 0, 2, 2, 0, 1])
    check(module, lambda: module(x), rows, 3, slow={"inner.weight", "inner.bias"})


@pytest.mark.usefixtures("_registry")
def test_a_rule_whose_outputs_come_from_each_other_is_not_used() -> None:
    class Pair(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            out = super().forward(x)
            return out, out.sum(1, keepdim=True)

    @gradients.register(Pair)
    class PairRule(gradients.Rule):
        """Would count the way through the sum twice."""

        def bind(self, module: nn.Module, args: tuple, kwargs: dict, output: tuple) -> gradients.Bound:
            del module, kwargs
            return gradients.Bound(args, output, (0, 0))

        def apply(self, module: nn.Module, bound: gradients.Bound, parameters: Mapping[str, Tensor]) -> Tensor:
            del module
            return nn.functional.linear(bound.rows[0], parameters["weight"], parameters["bias"])

    module = Pair(4, 4).double()
    x, rows = torch.randn(6, 4, dtype=torch.float64), torch.tensor([1, 0, 2, 2, 0, 1])
    check(module, lambda: torch.cat(module(x), 1), rows, 3)


def test_a_layer_can_be_named_before_it_is_imported() -> None:
    assert "transformers.pytorch_utils.Conv1D" in _rules._RULES
