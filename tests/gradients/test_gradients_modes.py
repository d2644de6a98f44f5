"""Mixed precision, checkpointing, compiled modules, purity and several processes."""

import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from tests.gradients.gradient_checks import check, close, random_direction, task_losses
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from steelyard import gradients

ROWS = torch.tensor([0, 0, 1, 1, 2, 2])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Dropout(0.2), nn.Linear(8, 3))


def test_autocast_sums_in_float32() -> None:
    module, x = network(), torch.randn(60, 5)
    rows = torch.arange(3).repeat_interleave(20)
    with gradients.record(module, rows) as tape, torch.autocast("cpu", dtype=torch.bfloat16):
        losses = task_losses(module(x).float(), rows, 3)
    exact = gradients.exact_task_gradients(losses, tape.scope.parameters)
    found = tape.task_gradients(losses)
    for name, wanted in exact.items():
        assert found[name].dtype == torch.float32
        close(found[name], wanted, wanted.abs().max().item(), 2e-2)
    assert tape.exact_names(losses) == []
    direction = random_direction(tape.scope.parameters)
    close(tape.slopes(losses, direction), found.slopes(direction), found.norms().max().item(), 1e-4)


def test_a_model_in_half_precision_gets_float32_gradients() -> None:
    module, x = network().bfloat16(), torch.randn(6, 5).bfloat16()
    with gradients.record(module, ROWS) as tape:
        losses = task_losses(module(x), ROWS, 3)
    found = tape.task_gradients(losses)
    assert {value.dtype for value in found.values()} == {torch.float32}
    assert tape.gram(losses).dtype == torch.float32


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(5, 8), network_of(8), nn.Linear(8, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant))


def network_of(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.3), nn.Linear(width, width))


def test_activation_checkpointing() -> None:
    module, x = Checkpointed(reentrant=False).double(), torch.randn(6, 5, dtype=torch.float64)
    check(module, lambda: module(x), ROWS, 3)
    with gradients.record(module, ROWS) as tape:
        losses = task_losses(module(x), ROWS, 3)
        inside = tape.task_gradients(losses)
    torch.testing.assert_close(dict(inside), gradients.exact_task_gradients(losses, tape.scope.parameters))


def test_reentrant_checkpointing_is_refused() -> None:
    module, x = Checkpointed(reentrant=True).double(), torch.randn(6, 5, dtype=torch.float64)
    with gradients.record(module, ROWS) as tape:
        losses = task_losses(module(x), ROWS, 3)
    with pytest.raises(gradients.UnsupportedGraphError, match="use_reentrant=False"):
        tape.slopes(losses, {})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_compiled_module_runs_eagerly_while_recorded_and_compiled_afterwards() -> None:
    runs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        del inputs

        def run(*args: Tensor) -> object:
            runs.append(1)
            return graph(*args)

        return run

    module = network().double().eval()
    compiled = torch.compile(module, backend=backend)
    x = torch.randn(6, 5, dtype=torch.float64)
    compiled(x)
    before = len(runs)
    check(compiled, lambda: compiled(x), ROWS, 3)
    assert len(runs) == before == 1
    compiled(x)
    assert len(runs) == 2


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.body[2].eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("mode", ["eval", "train", "keep"])
def test_a_pure_probe_leaves_everything_bitwise(mode: str) -> None:
    module, x = Stateful(), torch.randn(6, 4)
    optimizer = torch.optim.AdamW(module.parameters())
    module(x).sum().backward()
    optimizer.step()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    moments = [value.clone() for slot in optimizer.state.values() for value in slot.values()]
    grads = [(value.grad, value.grad.clone()) for value in module.parameters()]
    training = [layer.training for layer in module.modules()]
    random = torch.get_rng_state()
    with gradients.pure(module, mode):
        assert all(value.grad is None for value in module.parameters())
        module(x).sum().backward()
        if mode == "eval":
            with gradients.record(module, ROWS) as tape:
                losses = task_losses(module(x), ROWS, 3)
            tape.slopes(losses, random_direction(tape.scope.parameters))
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), random)
    assert training == [layer.training for layer in module.modules()]
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert all(value.grad is kept for value, (kept, _) in zip(module.parameters(), grads, strict=True))
    assert all(torch.equal(kept, before) for kept, before in grads)
    after = [value for slot in optimizer.state.values() for value in slot.values()]
    assert all(torch.equal(value, before) for value, before in zip(after, moments, strict=True))


def test_a_probe_that_trains_is_refused() -> None:
    module = nn.Linear(2, 2)

    def train() -> None:
        with gradients.pure(module), torch.no_grad():
            module.weight.add_(1)

    with pytest.raises(gradients.GradientError, match="weight"):
        train()


def test_the_tape_touches_no_state() -> None:
    module, x = network(), torch.randn(6, 5)
    with gradients.record(module, ROWS) as tape:
        losses = task_losses(module(x), ROWS, 3)
    random = torch.get_rng_state()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    direction = random_direction(tape.scope.parameters)
    tape.task_gradients(losses)
    tape.row_slopes(losses, direction)
    tape.gram(losses)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(value.grad is None for value in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not any(layer._forward_hooks for layer in module.modules())
    losses.sum().backward()
    assert all(value.grad is not None for value in module.parameters())


WORKER = """
import sys, warnings
warnings.simplefilter("error")
import torch
from torch import distributed as dist, nn
from steelyard import gradients

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[2]}", rank=rank, world_size=2)
torch.manual_seed(0)
module = nn.Sequential(nn.Embedding(300, 4), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
ids, rows = torch.randint(0, 300, (6, 3)), torch.tensor([0, 1, 2, 0, 0, 2])
counts = torch.bincount(rows).double()

def answer(part, reduce):
    with gradients.record(module, rows[part], reduce=reduce) as tape:
        each = module(ids[part]).square().sum((1, 2))
        losses = torch.zeros(3).double().index_add(0, rows[part], each) / counts
    v = {name: torch.ones_like(value) for name, value in tape.scope.parameters.items()}
    return (*tape.task_gradients(losses).values(), tape.slopes(losses, v), tape.gram(losses), tape.norms(losses))

mine = answer(slice(0, 2) if rank == 0 else slice(2, 6), True)
whole = answer(slice(0, 6), False)
for a, b in zip(mine, whole, strict=True):
    torch.testing.assert_close(a, b)
dist.destroy_process_group()
print("agree")
"""


def test_two_processes_give_the_sums_of_one(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank in range(2)
    ]
    for worker in workers:
        text, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0, text.decode()
        assert b"agree" in text
