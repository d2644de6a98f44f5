"""Task distance: the head that it fits, what it compares, and what moves it."""

import copy
import math

import pytest
import torch
from torch import nn

from steelyard import Ragged, Rows, SharedModel, SteelyardError, Suite, Task, testing
from steelyard.data.generators import flip_rate_tasks
from steelyard.diagnostics import task_distances
from steelyard.diagnostics._frozen import PENALTIES, Features, best_head
from steelyard.diagnostics._representations import gradient_of
from steelyard.tasks import Role
from steelyard.tasks.kinds import regression_loss

ESTIMATES = ("trained", "answers", "gradients")
SMALL = {"epochs": 2, "batch_size": 16, "learning_rate": 0.01, "device": "cpu", "seed": 0}


def body():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh())


def regression(train=30, held=41, width=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(width, 2, generator=generator, dtype=torch.float64)

    def rows(n):
        x = torch.randn(n, width, generator=generator, dtype=torch.float64)
        return x, x @ truth + 2 * torch.randn(n, 2, generator=generator, dtype=torch.float64)

    return Features([rows(train)], [rows(held)], regression_loss, nn.Linear(width, 2).double())


def ridge(features, penalty):
    """The minimum of mean squared error + penalty/2·(length·‖W‖)² with a free bias, in closed form."""
    (x, y), (there, wanted) = features.train[0], features.held[0]
    length = x.square().sum(1).mean()
    centred, middle = x - x.mean(0), y - y.mean(0)
    curvature = centred.mT @ centred * 2 / y.numel() + penalty * length * torch.eye(x.shape[1], dtype=x.dtype)
    slope = torch.linalg.solve(curvature, centred.mT @ middle * 2 / y.numel())
    predicted = (there - x.mean(0)) @ slope + y.mean(0)
    return slope.mT, (predicted - wanted).square().sum(1)


def test_the_head_is_the_ridge_solution_and_no_row_chooses_its_own_penalty():
    features = regression()
    found = best_head(features)
    exact = [ridge(features, penalty) for penalty in PENALTIES]
    table = torch.stack([losses for _, losses in exact])
    best = int(table.sum(1).argmin())
    assert torch.allclose(found.head[1].weight / found.head[0].by, exact[best][0], atol=1e-5)
    order = torch.randperm(41, generator=torch.Generator().manual_seed(0))
    for own, other in ((order[::2], order[1::2]), (order[1::2], order[::2])):
        chosen = int(table[:, other].sum(1).argmin())
        assert torch.allclose(found.values[own], table[chosen, own], atol=1e-4)
    assert found.loss == pytest.approx(float(found.values.sum()) / 82)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_scale_of_the_features_changes_nothing(scale):
    features = regression()
    other = Features(
        [(x * scale, y) for x, y in features.train], [(x * scale, y) for x, y in features.held],
        features.loss, features.head,
    )  # fmt: skip
    assert best_head(other).loss == pytest.approx(best_head(features).loss, rel=1e-4)


def test_what_cannot_be_trained_teaches_nothing():
    """With a frozen encoder every representation is the same one, and every distance 0."""
    network = body().requires_grad_(requires_grad=False)
    for found in task_distances(testing.suite(), network, **SMALL):
        assert found.value == 0
        assert found.error == 0
        assert found.loss == found.own > 0


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_the_targets_own_task_is_nearer_than_another(estimate):
    suite = flip_rate_tasks(
        [0.0, 1.0], target_rows=60, source_rows=600, held_rows=200, dim=20, hidden=32, points=100, classes=3, seed=1
    )
    settings = SMALL | {"epochs": 15, "batch_size": 64}
    near, far = task_distances(suite, "mlp", estimate=estimate, encoder_options={"hidden": [32]}, **settings)
    assert (near.sources, far.sources) == ("flip-0", "flip-1")
    assert near.value < far.value
    if estimate != "gradients":
        assert near.value + 2 * near.error < far.value


def test_error_is_that_of_the_paired_difference():
    found = task_distances(testing.suite(), body(), **SMALL)[0]
    suite = testing.suite()
    torch.manual_seed(0)
    assert 0 < found.error < 1
    assert found.value == pytest.approx(found.loss - found.own)
    assert suite["task0"].size(Role.DEV_SELECT) == 12


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_mixtures(estimate):
    def of(**mixtures):
        found = task_distances(testing.suite(), body(), None, mixtures, estimate=estimate, **SMALL)
        return {each.sources: each.value for each in found}

    alone = {each.sources: each.value for each in task_distances(testing.suite(), body(), estimate=estimate, **SMALL)}
    mixed = of(one={"task1": 5.0}, none={"task1": 1.0, "task2": 0.0}, even={"task1": 1, "task2": 1})
    assert mixed["one"] == mixed["none"] == alone["task1"]
    assert mixed["even"] not in alone.values()
    assert of(even={"task1": 3, "task2": 3})["even"] == mixed["even"]
    assert of(uneven={"task1": 9, "task2": 1})["uneven"] != mixed["even"]


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_nothing_is_touched_and_no_test_row_read(estimate):
    network = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    suite = testing.suite()
    bare = task_distances(suite, network, estimate=estimate, **SMALL)
    with_test = [
        task.with_rows({**task.rows, Role.TEST: Rows(torch.randn(7, 5) * 1e6, torch.zeros(7, dtype=torch.long))})
        for task in testing.suite().tasks.values()
    ]
    torch.set_rng_state(state)
    again = task_distances(suite.with_tasks(with_test), network, estimate=estimate, **SMALL)
    assert str(bare) == str(again)  # NaN is not equal to itself
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert suite["task0"].size() == 24


def test_all_pairs_are_not_symmetric_and_agree_with_one_target():
    done = []
    suite = testing.suite()
    pairs = {
        (each.sources, each.target): each
        for each in task_distances(suite, body(), suite.tasks, progress=done.append, **SMALL, steps_per_epoch=4)
    }
    assert len(pairs) == 6
    assert done == ["task0", "task1", "task2"]
    assert pairs["task1", "task2"].value != pairs["task2", "task1"].value
    alone = task_distances(suite, body(), **SMALL, steps_per_epoch=4)
    assert [pairs[each.sources, "task0"] for each in alone] == alone


def test_gradients_are_those_of_the_mean_loss():
    suite = testing.suite(rows=40)
    model = SharedModel(body(), suite)
    rows = suite["task1"].rows[Role.TRAIN]
    head = copy.deepcopy(model.head("task1")).double()
    with torch.no_grad():
        head.weight += 1
    found = gradient_of(model, suite, "task1", head, Role.TRAIN)
    loss = nn.functional.cross_entropy(head.float()(model.encoder(rows.inputs)), rows.labels)
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.encoder.parameters()))])
    assert torch.allclose(found.float(), wanted, atol=1e-6)


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_every_kind_of_task(estimate):
    generator = torch.Generator().manual_seed(0)
    texts = Ragged.of([torch.randint(1, 30, (int(n),), generator=generator) for n in torch.randint(2, 9, (40,))])
    held = texts.select(torch.arange(30, 40))
    texts = texts.select(torch.arange(30))
    tags = Ragged((texts.values % 3).long(), texts.offsets)
    held_tags = Ragged((held.values % 3).long(), held.offsets)
    several = (torch.rand(30, 2, generator=generator) > 0.5).float()
    several[0, 0] = math.nan
    tasks = [
        Task("tags", "tagging", {"train": Rows(texts, tags), "dev_select": Rows(held, held_tags)}),
        Task("values", "regression", {"train": Rows(texts, texts.lengths.float())}),
        Task("several", "multilabel", {"train": Rows(texts, several)}),
    ]
    for target in ("tags", "values", "several"):
        data = Suite([t for t in tasks if t.name != target] + [Task("x", "classification", {
            "train": Rows(texts, texts.lengths % 2)})] + [t for t in tasks if t.name == target], target)  # fmt: skip
        options = {"size": 8, "channels": 4}
        found = task_distances(data, "textcnn", estimate=estimate, encoder_options=options, **SMALL | {"epochs": 1})
        assert len(found) == 3
        assert all(math.isfinite(each.value) for each in found)


@pytest.mark.parametrize(("change", "words"), [
    ({"targets": ["task9"]}, "there is no task 'task9'; did you mean"),
    ({"mixtures": {"m": {"tsk1": 1.0}}}, "there is no task 'tsk1'; did you mean 'task1'"),
    ({"mixtures": {"m": {"task1": 0.0}}}, "mixture 'm': weights must be 0 or more, and not all 0"),
    ({"mixtures": {"m": {"task1": 2.0, "task2": -1.0}}}, "mixture 'm'"),
    ({"mixtures": {"m": {"task0": 1.0}}}, "at least one source"),
    ({"estimate": "quick"}, "no estimate 'quick' of a distance; choose trained, answers, gradients"),
    ({"epocs": 3}, "did you mean 'epochs'"),
])  # fmt: skip
def test_wrong_calls_are_refused_in_words(change, words):
    with pytest.raises(SteelyardError, match=words):
        task_distances(testing.suite(), body(), **SMALL | change)


def test_too_few_rows_are_refused_by_name():
    suite = testing.suite()
    few = suite["task0"].with_rows({r: rows.select(torch.arange(1)) for r, rows in suite["task0"].rows.items()})
    with pytest.raises(SteelyardError, match="task 'task0': 1 rows to fit a head to and 1 held out are too few"):
        task_distances(suite.with_tasks([few, suite["task1"]]), body(), **SMALL)
    with pytest.raises(SteelyardError, match="needs a target"):
        task_distances(Suite(testing.suite().tasks.values()), body(), **SMALL)
