"""Last questions: graphs that are freed, heads that one backward serves, layers that are formed one at a time."""

import pytest
import torch
from tests.gradients.gradient_checks import check_traces, task_losses
from torch import Tensor, nn

from steelyard import gradients
from steelyard.gradients._single import single_gradients, single_owners

ROWS = torch.tensor([0, 0, 1, 2, 2, 1])


class Headed(nn.Module):
    """A layer for all tasks, and heads that see their own rows alone; the last two tasks share one if asked."""

    def __init__(self, tasks: int, *, tied: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.heads = nn.ModuleList(nn.Linear(5, 2) for _ in range(tasks - tied))

    def losses(self, x: Tensor, rows: Tensor, tasks: int) -> Tensor:
        features = self.body(x).tanh()
        each = [self.heads[min(t, len(self.heads) - 1)](features[rows == t]).square().sum() for t in range(tasks)]
        return torch.stack(each) / torch.bincount(rows, minlength=tasks).clamp(min=1)


def owners(module: Headed, losses: Tensor) -> dict[str, int]:
    return single_owners(losses, dict(module.named_parameters()))


@pytest.mark.parametrize("tied", [False, True])
def test_the_graph_shows_whose_head_is_whose(tied: bool) -> None:
    module, x = Headed(3, tied=tied), torch.randn(6, 4)
    losses = module.losses(x, ROWS, 3)
    wanted = {f"heads.{t}.{name}": t for t in range(1 if tied else 3) for name in ("weight", "bias")}
    assert owners(module, losses) == wanted
    turned = {name: 2 - task for name, task in wanted.items()}
    assert owners(module, losses[torch.tensor([2, 1, 0])] * 3) == turned
    assert owners(module, losses[torch.tensor([0, 1])]).keys() == {name for name in wanted if wanted[name] < 2} | (
        {"heads.1.weight", "heads.1.bias"} if tied else set()
    )


def test_losses_that_are_put_together_otherwise_show_nothing() -> None:
    module, x = Headed(3), torch.randn(6, 4)
    losses = module.losses(x, ROWS, 3)
    assert owners(module, losses.flip(0)) == {}
    assert owners(module, losses + losses.mean()) == {}
    assert owners(module, losses - losses.flip(0)) == {}
    assert owners(module, losses.cumsum(0)) == {}
    assert owners(module, torch.zeros(3)) == {}


@pytest.mark.parametrize("tied", [False, True])
def test_one_backward_gives_the_heads_what_one_per_task_gives(tied: bool) -> None:
    module, x = Headed(3, tied=tied).double(), torch.randn(6, 4, dtype=torch.float64)
    with gradients.record(module, ROWS) as tape:
        losses = module.losses(x, ROWS, 3)
    exact = gradients.exact_task_gradients(losses, tape.scope.parameters)
    torch.testing.assert_close(dict(tape.task_gradients(losses)), exact)
    found = owners(module, losses)
    alone = {name: value for name, value in module.named_parameters() if name in found}
    torch.testing.assert_close(single_gradients(losses, alone, found), {name: exact[name] for name in alone})


def test_heads_take_as_many_backwards_with_many_tasks_as_with_few() -> None:
    def heads_passed(tasks: int) -> int:
        module, rows = Headed(tasks), torch.arange(tasks)
        with gradients.record(module, rows) as tape:
            losses = module.losses(torch.randn(tasks, 4), rows, tasks)
        passed = []
        for head in module.heads:
            head.weight.register_hook(passed.append)
        tape._planned(losses).slow_gradients()
        return len(passed)

    assert heads_passed(3) == 3
    assert heads_passed(12) == 12


def test_a_tape_without_its_graph_answers_no_more() -> None:
    module, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), torch.randn(6, 4)

    def recorded() -> tuple[gradients.Tape, Tensor]:
        with gradients.record(module, ROWS) as tape:
            return tape, task_losses(module(x), ROWS, 3)

    tape, losses = recorded()
    wanted = dict(tape.task_gradients(losses))
    torch.testing.assert_close(dict(tape.task_gradients(losses, keep=False)), wanted)
    assert all(not call.bound.rows for call in tape.calls)
    for ask in (tape.gram, tape.norms, tape.task_gradients):
        with pytest.raises(gradients.GradientError, match="its last question"):
            ask(losses)
    tape, losses = recorded()
    tape.traced(losses, torch.ones(3))
    with pytest.raises(gradients.GradientError, match="its last question"):
        tape.gram(losses)
    tape, losses = recorded()
    found = tape.products(losses, gradients.TaskGradients(wanted, {n: v.shape[1:] for n, v in wanted.items()}, losses))
    flat = torch.cat([value.flatten(1) for value in wanted.values()], 1)
    torch.testing.assert_close(found, flat @ flat.t())


class Deep(nn.Module):
    """Every kind of layer that is formed late, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv, self.norm = nn.Embedding(40, 6), nn.Conv1d(6, 6, 3, padding=1), nn.LayerNorm(6)
        self.twice, self.out = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.conv(self.table(ids).transpose(1, 2)).transpose(1, 2))
        return self.out(self.twice(self.twice(x).tanh()).tanh()).mean(1)


@pytest.mark.parametrize("numbers", [1, 100, 1 << 24])
def test_products_do_not_depend_on_how_many_gradients_are_formed_at_a_time(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steelyard.gradients._layers._NUMBERS", numbers)
    torch.manual_seed(0)
    module, rows = Deep().double(), torch.tensor([3, 0, 1, 2, 2, 1, 0])
    generator = torch.Generator().manual_seed(1)

    def recorded() -> tuple[gradients.Tape, Tensor]:
        ids = torch.randint(0, 40, (7, 5), generator=generator)
        with gradients.record(module, rows) as tape:
            return tape, task_losses(module(ids), rows, 5)

    check_traces(recorded, 1e-9)


def test_traces_of_many_parameters_serve_a_question_about_some() -> None:
    torch.manual_seed(0)
    module, ids = Deep().double(), torch.randint(0, 40, (6, 5))
    with gradients.record(module, ROWS) as tape:
        losses = task_losses(module(ids), ROWS, 3)
    some = {name: value for name, value in module.named_parameters() if name.startswith(("conv", "twice"))}
    exact = gradients.exact_task_gradients(losses, some)
    flat = torch.cat([value.flatten(1) for value in exact.values()], 1)
    traces = tape.traced(losses, torch.ones(3, dtype=torch.float64))[1]
    with gradients.record(module, ROWS, list(some)) as tape:
        losses = task_losses(module(ids), ROWS, 3)
    torch.testing.assert_close(tape.products(losses, traces), flat @ flat.t())


def test_traces_can_be_formed_after_all() -> None:
    torch.manual_seed(0)
    module, ids = Deep().double(), torch.randint(0, 40, (6, 5))
    with gradients.record(module, ROWS) as tape:
        losses = task_losses(module(ids), ROWS, 3)
    exact = gradients.exact_task_gradients(losses, tape.scope.parameters)
    found = tape.traced(losses, torch.ones(3, dtype=torch.float64))[1].formed()
    assert set(found) == set(exact)
    for name, value in exact.items():
        torch.testing.assert_close(found[name], value)
