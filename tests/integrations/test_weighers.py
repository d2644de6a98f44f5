"""Weights by the names of tasks: the drop-in methods' own numbers, and nothing else."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from steelyard import SteelyardError
from steelyard.integrations import QueryFirst, TargetFirst, Together, Uniform, collated
from steelyard.methods.metaweighting import QueryWeights
from steelyard.methods.tawt import TargetWeights


def losses(layer, rows=None):
    rows = torch.ones(3) if rows is None else rows
    found = layer(rows).square()
    return {"mine": found[0], "near": found[0] * 1.5, "far": -found[0]}


def test_every_batch_has_rows_of_every_task_and_short_ones_come_round():
    long, short = TensorDataset(torch.arange(10)), TensorDataset(torch.arange(100, 103))
    rows = Together({"long": long, "short": short})
    assert len(rows) == 10
    loader = DataLoader(rows, batch_size=5, shuffle=True, collate_fn=collated(rows.tasks))
    batches = list(loader)
    assert all(set(batch) == {"long", "short"} for batch in batches)
    assert sorted(torch.cat([batch["long"][0] for batch in batches]).tolist()) == list(range(10))
    counts = torch.cat([batch["short"][0] for batch in batches]).bincount()[100:]
    assert counts.tolist() == [4, 3, 3]


def test_target_first_is_target_weights():
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    weigher = TargetFirst(layer.parameters(), "mine", ["near", "far"], observe_every=1, update_every=2)
    own = TargetWeights(layer.parameters(), 2)
    for step in range(4):
        found = losses(layer)
        before = weigher.value
        total = weigher.total(found)
        own.observe(found["mine"], torch.stack([found["near"], found["far"]]))
        if step % 2:
            own.update()
        else:
            assert torch.equal(weigher.value, before)
        assert torch.allclose(weigher.value[1:], 2 / 3 * own.mixture.double())
        assert torch.allclose(total.double(), (weigher.value * torch.stack(list(found.values())).double()).sum())
    assert weigher.weights["near"] > weigher.weights["far"]
    assert sum(weigher.weights.values()) == pytest.approx(1)
    assert weigher.weights["mine"] == pytest.approx(1 / 3)


def test_query_first_is_query_weights_over_the_number_of_tasks():
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    batches = [torch.randn(3), torch.randn(3)]
    weigher = QueryFirst(layer.parameters(), ["mine", "near", "far"], batches)
    own = QueryWeights(layer.parameters(), 3)
    for step in range(5):
        found = losses(layer)
        weigher.total(found)
        own.support(torch.stack(list(found.values())))
        weigher.after_step(lambda rows: losses(layer, rows))
        own.query(torch.stack(list(losses(layer, batches[step % 2]).values())))
        assert torch.allclose(weigher.value * 3, own.value)


@pytest.mark.parametrize("make", [
    lambda p: TargetFirst(p, "mine", ["near", "far"], observe_every=1, update_every=2),
    lambda p: QueryFirst(p, ["mine", "near", "far"], [torch.ones(3)]),
    lambda p: Uniform(["mine", "near", "far"]),
])  # fmt: skip
def test_state_goes_on_where_it_was(make):
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    parameters = list(layer.parameters())

    def go(weigher, steps):
        for _ in range(steps):
            weigher.total(losses(layer))
            weigher.after_step(lambda rows: losses(layer, rows))

    whole, first, second = make(parameters), make(parameters), make(parameters)
    go(whole, 6)
    go(first, 3)
    second.load_state_dict(first.state_dict())
    go(second, 3)
    assert torch.equal(whole.value, second.value)


def test_bad_input():
    layer = nn.Linear(3, 2)
    weigher = TargetFirst(layer.parameters(), "mine", ["near"])
    wrong = [
        (lambda: weigher.total({"mine": layer.weight.sum()}), "no loss of task 'near'"),
        (lambda: weigher.total(losses(layer)), "there is no task 'far'"),
        (lambda: weigher.total({"mine": layer.weight, "near": layer.weight.sum()}), "must be one number"),
        (lambda: Uniform(["a", "a"]), "each name once"),
        (lambda: TargetFirst(layer.parameters(), "a", ["b"], observe_every=9, update_every=3), "at most update_every"),
        (lambda: TargetFirst(layer.parameters(), "a", ["b"], share=2), "share = 2"),
        (lambda: Together({"a": []}), "has no rows"),
        (lambda: Together({}), "at least one data set"),
    ]
    for call, words in wrong:
        with pytest.raises(SteelyardError, match=words):
            call()
