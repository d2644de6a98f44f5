"""The weighted gradient and every task's slope from one backward, against the exact path."""

import pytest
import torch
import transformers
from torch import nn

from steelyard import gradients
from steelyard.gradients import _plan

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
ROWS = torch.tensor([0, 0, 1, 1, 2, 2])


def exact(losses, named, weights, direction):
    each = gradients.exact_task_gradients(losses, named)
    combined = {name: torch.tensordot(weights, value, dims=1) for name, value in each.items()}
    slopes = sum((value * direction[name]).flatten(1).sum(1) for name, value in each.items() if name in direction)
    return combined, slopes


@pytest.mark.parametrize("pieces", [0, 10**9], ids=["every task's gradient", "one more forward"])
@pytest.mark.parametrize("weights", [[0.2, 0.5, 0.3], [0.0, 1.0, 2.0]])
def test_a_transformer(monkeypatch, pieces, weights):
    monkeypatch.setattr(_plan, "PIECES", pieces)
    model = transformers.BertModel(transformers.BertConfig(**SMALL), add_pooling_layer=False).double().eval()
    ids = torch.randint(1, 50, (6, 9))
    weights = torch.tensor(weights, dtype=torch.float64)
    named = dict(model.named_parameters())
    direction = {name: torch.randn_like(p) for name, p in named.items()}
    with gradients.record(model, ROWS) as tape:
        features = model(input_ids=ids).last_hidden_state.tanh().sum((1, 2))
    losses = features.view(3, 2).mean(1)
    combined, slopes = tape.weighted(losses, weights, direction)
    expected, expected_slopes = exact(losses, named, weights, direction)
    torch.testing.assert_close(slopes, expected_slopes)
    for name, value in expected.items():
        torch.testing.assert_close(combined[name], value, msg=name)


def test_unused_parameters_and_exact_paths():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.unused = nn.Linear(4, 5), nn.Linear(2, 2)
            self.scale = nn.Parameter(torch.ones(5))

        def forward(self, x):
            return (self.first(x) * self.scale.exp()).tanh()

    model = Odd().double()
    named = dict(model.named_parameters())
    direction = {name: torch.randn_like(p) for name, p in named.items() if name != "first.bias"}
    weights = torch.rand(3, dtype=torch.float64)
    with gradients.record(model, ROWS, exact=["scale"]) as tape:
        losses = model(torch.randn(6, 4, dtype=torch.float64)).sum(1).view(3, 2).mean(1)
    combined, slopes = tape.weighted(losses, weights, direction)
    used = {name: p for name, p in named.items() if "unused" not in name}
    expected, expected_slopes = exact(losses, used, weights, direction)
    assert set(combined) == set(used)
    torch.testing.assert_close(slopes, expected_slopes)
    for name, value in expected.items():
        torch.testing.assert_close(combined[name], value, msg=name)
