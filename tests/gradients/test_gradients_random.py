"""Random small modules from the registered layers, with reuse, tying, freezing and branches."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gradients.gradient_checks import check
from torch import Tensor, nn

WIDTH, LENGTH = 4, 3
MAKERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "plain": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
    "conv": lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=2),
    "group norm": lambda: nn.GroupNorm(2, WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH).eval(),
    "gru": lambda: nn.GRU(WIDTH, WIDTH, batch_first=True),
    "attention": lambda: nn.MultiheadAttention(WIDTH, 2, batch_first=True),
}
STEP = st.tuples(st.integers(0, 5), st.sampled_from(["chain", "add", "skip", "mul"]))


class Network(nn.Module):
    """An embedding, then steps that each call one layer of a pool and join it to the stream."""

    def __init__(self, kinds: list[str], steps: list[tuple[int, str]], tie: bool, frozen: set[int]) -> None:
        super().__init__()
        self.words = nn.Embedding(9, WIDTH)
        self.pool = nn.ModuleList(MAKERS[kind]() for kind in kinds)
        self.steps = steps
        self.out = nn.Linear(WIDTH, 9)
        if tie:
            self.out.weight = self.words.weight
        for index in frozen:
            self.pool[index % len(kinds)].requires_grad_(requires_grad=False)

    def call(self, layer: nn.Module, x: Tensor) -> Tensor:
        if isinstance(layer, nn.Conv1d | nn.GroupNorm | nn.BatchNorm1d):
            return layer(x.transpose(1, 2)).transpose(1, 2)
        if isinstance(layer, nn.GRU):
            return layer(x)[0]
        if isinstance(layer, nn.MultiheadAttention):
            return layer(x, x, x, need_weights=False)[0]
        return layer(x)

    def forward(self, ids: Tensor) -> Tensor:
        first = x = self.words(ids)
        for index, join in self.steps:
            y = self.call(self.pool[index % len(self.pool)], x).tanh()
            x = {"chain": y, "add": x + y, "skip": y + first, "mul": x * y}[join]
        return self.out(x)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(sorted(MAKERS)), min_size=1, max_size=4),
    steps=st.lists(STEP, min_size=1, max_size=5),
    rows=st.lists(st.integers(0, 3), min_size=1, max_size=7),
    tie=st.booleans(),
    frozen=st.sets(st.integers(0, 3), max_size=2),
    seed=st.integers(0, 1000),
)
def test_random_modules(
    kinds: list[str], steps: list[tuple[int, str]], rows: list[int], tie: bool, frozen: set[int], seed: int
) -> None:
    torch.manual_seed(seed)
    module = Network(kinds, steps, tie, frozen).double()
    ids = torch.randint(0, 9, (len(rows), LENGTH))
    check(module, lambda: module(ids), torch.tensor(rows), 4)
