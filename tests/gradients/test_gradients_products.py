"""Inner products of two batches' task gradients."""

import pytest
import torch
from torch import nn

from steelyard import gradients
from steelyard.functional import hypergradient_matrix


class Words(nn.Module):
    """A table that is large for the batch, or small, and a layer on its mean."""

    def __init__(self, table):
        super().__init__()
        self.table, self.out = nn.Embedding(table, 4), nn.Linear(4, 2)

    def forward(self, ids):
        return self.out(self.table(ids).tanh().mean(1))


def task_gradients(model, rows, seed):
    ids = torch.randint(0, model.table.num_embeddings, (len(rows), 5), generator=torch.Generator().manual_seed(seed))
    with gradients.record(model, rows) as tape:
        out = model(ids).square().sum(1)
    return tape.task_gradients(out.new_zeros(int(rows.max()) + 1).index_add(0, rows, out))


@pytest.mark.parametrize("table", [6, 60, 500])
@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize(("chunk", "block"), [(7, 90), (1 << 15, 1 << 22)])
def test_products_are_those_of_dense_gradients(table, preconditioned, chunk, block, monkeypatch):
    monkeypatch.setattr("steelyard.gradients._products._CHUNK", chunk)
    monkeypatch.setattr("steelyard.gradients._products._BLOCK", block)
    torch.manual_seed(0)
    model = Words(table).double()
    first = task_gradients(model, torch.tensor([0, 0, 1, 2, 2, 3]), 1)
    second = task_gradients(model, torch.tensor([1, 0, 1, 2, 2, 2, 2]), 2)
    metric = {name: torch.rand(p.shape, dtype=p.dtype) for name, p in model.named_parameters()}

    def at(name, ids):
        return metric[name] if ids is None else metric[name][ids]

    found = gradients.inner_products(first, second, at if preconditioned else None)
    expected = hypergradient_matrix(dict(first), dict(second), -3.0, metric if preconditioned else None)
    torch.testing.assert_close(found, expected)


def test_a_part_has_the_same_gradients():
    torch.manual_seed(0)
    whole = task_gradients(Words(9), torch.tensor([0, 1, 1]), 1)
    part = whole.part(["out.bias", "out.weight"])
    assert list(part) == ["out.bias", "out.weight"]
    assert torch.equal(part["out.weight"], whole["out.weight"])
    with pytest.raises(ValueError, match="in common"):
        gradients.inner_products(part, whole.part(["table.weight"]))
