"""Every rule against the exact path, layer by layer."""

import pytest
import torch
from tests.gradients.gradient_checks import check
from torch import nn

from steelyard.gradients import _result

ROWS = {
    "equal": (torch.tensor([0, 0, 1, 1, 2, 2]), 3),
    "in turn": (torch.tensor([0, 1, 2, 0, 1, 2]), 3),
    "unsorted": (torch.tensor([2, 0, 3, 0, 0, 2]), 5),
    "one task": (torch.zeros(6, dtype=torch.long), 1),
}


def ids(*shape: int, high: int = 11) -> torch.Tensor:
    return torch.randint(0, high, shape)


class Bag(nn.Module):
    def __init__(self, flat: bool = False, weighted: bool = False, **kwargs: object) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(11, 5, **kwargs)
        self.flat, self.weighted = flat, weighted
        self.weights = torch.rand(6, 4, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.weights.to(self.bag.weight.dtype) if self.weighted else None
        if not self.flat:
            return self.bag(x, per_sample_weights=weights)
        starts = torch.tensor([0, 3, 3, 8, 11, 20])
        return self.bag(x.flatten(), starts)


def conv1d_hf() -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    return nn.Sequential(nn.Linear(5, 5), Conv1D(7, 5))


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


LAYERS = {
    "linear": lambda: (nn.Linear(5, 7), floats(6, 5)),
    "linear without bias": lambda: (nn.Linear(5, 7, bias=False), floats(6, 3, 5)),
    "narrowing linear": lambda: (nn.Linear(7, 3), floats(6, 3, 7)),
    "linear in 4d": lambda: (nn.Linear(5, 7), floats(6, 2, 3, 5)),
    "hf conv1d": lambda: (conv1d_hf(), floats(6, 3, 5)),
    "embedding": lambda: (nn.Embedding(11, 5), ids(6, 4)),
    "embedding with padding": lambda: (nn.Embedding(11, 5, padding_idx=2), ids(6, 4)),
    "sparse embedding": lambda: (nn.Embedding(500, 5, padding_idx=0), ids(6, 4)),
    "bag sum": lambda: (Bag(mode="sum"), ids(6, 4)),
    "bag mean": lambda: (Bag(mode="mean", padding_idx=1), ids(6, 4)),
    "bag weighted": lambda: (Bag(mode="sum", weighted=True), ids(6, 4)),
    "bag offsets": lambda: (Bag(mode="mean", flat=True), ids(6, 4)),
    "conv1d": lambda: (nn.Conv1d(4, 6, 3, padding=1, groups=2), floats(6, 4, 9)),
    "conv1d same": lambda: (nn.Conv1d(4, 6, 4, padding="same", dilation=2), floats(6, 4, 9)),
    "conv2d": lambda: (nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 2)), floats(6, 3, 7, 6)),
    "conv2d circular": lambda: (nn.Conv2d(4, 4, 3, padding=2, padding_mode="circular", groups=4), floats(6, 4, 5, 5)),
    "conv2d reflect": lambda: (nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect", bias=False), floats(6, 3, 5, 5)),
    "conv3d": lambda: (nn.Conv3d(2, 3, 2, dilation=2, padding=1, padding_mode="replicate"), floats(6, 2, 4, 4, 4)),
    "layer norm": lambda: (nn.LayerNorm(5), floats(6, 3, 5)),
    "layer norm 2d": lambda: (nn.LayerNorm((3, 5)), floats(6, 3, 5)),
    "layer norm without bias": lambda: (nn.LayerNorm(5, bias=False), floats(6, 5)),
    "rms norm": lambda: (nn.RMSNorm(5), floats(6, 3, 5)),
    "group norm": lambda: (nn.GroupNorm(2, 4), floats(6, 4, 3, 3)),
    "instance norm": lambda: (nn.InstanceNorm1d(4, affine=True), floats(6, 4, 5)),
    "batch norm": lambda: (nn.BatchNorm2d(4).eval(), floats(6, 4, 3, 3)),
    "batch norm of vectors": lambda: (nn.BatchNorm1d(4).eval(), floats(6, 4)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layer_rule_is_exact(layer: str, rows: str, dtype: torch.dtype) -> None:
    module, x = LAYERS[layer]()
    for norm in module.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    module = module.to(dtype)
    x = x.to(dtype) if x.is_floating_point() else x
    check(module, lambda: module(x), *ROWS[rows])


@pytest.mark.parametrize("part", ["weight", "bias"])
@pytest.mark.parametrize("layer", ["linear", "conv2d", "layer norm", "group norm", "hf conv1d"])
def test_a_part_of_a_layer_in_scope(layer: str, part: str) -> None:
    module, x = LAYERS[layer]()
    module = module.double()
    names = [name for name, _ in module.named_parameters() if name.endswith(part)]
    found = check(module, lambda: module(x), *ROWS["equal"], parameters=names)
    assert list(found) == names


def test_embedding_gradients_stay_sparse_until_read() -> None:
    module = nn.Embedding(500, 5)
    found = check(module, lambda: module(ids(6, 4)), *ROWS["equal"])
    assert found.stored()["weight"].is_sparse
    assert found.stored()["weight"].indices().shape[1] <= 24
    assert not found["weight"].is_sparse


@pytest.mark.parametrize("chunk", [1, 1 << 22])
def test_gram_of_sparse_gradients_with_rare_and_common_ids(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_result, "_CHUNK", chunk)
    module = nn.Embedding(900, 3).double()
    rows = torch.arange(16).repeat(2)
    x = torch.cat([ids(32, 3, high=8), ids(32, 4, high=40), ids(32, 2, high=900)], 1)
    found = check(module, lambda: module(x), rows, 16)
    assert found.stored()["weight"].is_sparse


@pytest.mark.parametrize("kwargs", [{}, {"bidirectional": True, "num_layers": 2}], ids=["plain", "deep"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("use", ["outputs", "state", "both"])
def test_recurrent_layers(kind: type[nn.Module], use: str, batch_first: bool, kwargs: dict[str, object]) -> None:
    layer = kind(5, 4, batch_first=batch_first, **kwargs).double()
    x = floats(6, 7, 5) if batch_first else floats(7, 6, 5)

    def forward() -> torch.Tensor:
        out, state = layer(x)
        state = state[0] if isinstance(state, tuple) else state
        parts = {"outputs": out.mean(1 if batch_first else 0), "state": state[-1]}
        return torch.cat(list(parts.values()), 1) if use == "both" else parts[use]

    check(layer, forward, *ROWS["unsorted"])


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("use", ["outputs", "state", "both"])
def test_packed_sequences(use: str, kind: type[nn.Module], ordered: bool) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(4, 4)
            self.layer = kind(4, 3, bidirectional=True, num_layers=2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            lengths = torch.tensor([5, 4, 4, 3, 2, 1] if ordered else [2, 5, 1, 4, 3, 4])
            packed = nn.utils.rnn.pack_padded_sequence(
                self.before(x), lengths, batch_first=True, enforce_sorted=ordered
            )
            out, state = self.layer(packed)
            state = state[0] if isinstance(state, tuple) else state
            parts = {
                "outputs": nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0].sum(1),
                "state": torch.cat([state[-2], state[-1]], 1),
            }
            return torch.cat(list(parts.values()), 1) if use == "both" else parts[use]

    module = Packed().double()
    x = floats(6, 5, 4)
    check(module, lambda: module(x), *ROWS["unsorted"])


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_multi_head_attention(batch_first: bool, masked: bool) -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first).double()
    x = floats(6, 5, 8) if batch_first else floats(5, 6, 8)
    padding = torch.arange(5) >= torch.tensor([5, 4, 3, 5, 2, 1]).unsqueeze(1) if masked else None

    def forward() -> torch.Tensor:
        out, _ = layer(x, x * 2, x, key_padding_mask=padding, need_weights=False)
        return out.sum(1 if batch_first else 0)

    check(layer, forward, *ROWS["equal"])


def test_attention_whose_weights_are_used_is_read_off_the_graph() -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True).double()
    x = floats(6, 5, 8)

    def forward() -> torch.Tensor:
        out, weights = layer(x, x, x)
        return out.sum(1) + weights.square().sum((1, 2)).unsqueeze(1)

    check(layer, forward, *ROWS["equal"])
