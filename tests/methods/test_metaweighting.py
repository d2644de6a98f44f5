"""MetaWeighting: its hypergradients are derivatives, its direction is common, its rows keep apart."""

import copy

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from steelyard import Rows, SteelyardError, Suite, Task, fit, testing
from steelyard.functional import hypergradient_matrix, min_norm_gap
from steelyard.gradients import inner_products
from steelyard.methods.metaweighting import MetaWeighting, QueryWeights
from steelyard.methods.metaweighting.direction import common_direction, moved
from steelyard.tasks import Ragged, Role
from steelyard.testing import promises


def dense_suite(tasks=3, rows=40):
    """Small tasks in double precision."""
    generator = torch.Generator().manual_seed(3)

    def task(number):
        inputs = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
        labels = (inputs[:, 0] + 0.5 * number * inputs[:, 1] > 0).long()
        return Task(f"t{number}", "classification", {"train": Rows(inputs, labels)}, outputs=2)

    return Suite([task(number) for number in range(tasks)], "t0")


def text_suite(tasks=3, rows=40, words=500):
    """Small tasks whose word table is large enough for sparse gradients."""
    generator = torch.Generator().manual_seed(3)

    def task(number):
        texts = [torch.randint(1, words, (int(n),), generator=generator) for n in torch.randint(3, 9, (rows,))]
        labels = torch.randint(0, 2, (rows,), generator=generator)
        return Task(f"t{number}", "classification", {"train": Rows(Ragged.of(texts), labels)}, outputs=2)

    return Suite([task(number) for number in range(tasks)], "t0", vocabulary=words)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4), nn.Tanh()).double()


def inside(check, data=None, encoder=None, options=None, **settings):
    """Runs a check of (method, job) in place of the second step of a run."""
    ran = []

    class Checking(MetaWeighting):
        name = "checking"

        def step(self, job):
            if job.step == 1:
                check(self, job)
                ran.append(True)
            else:
                super().step(job)

    settings = {"epochs": 1, "batch_size": 8, "device": "cpu", "progress": False} | settings
    fit(data or dense_suite(), encoder or network(), Checking(**(options or {})), **settings)
    assert ran


def by_differences(job, start, moments, batch, query, weights, width=1e-4):
    """∂L^q_t/∂w_j by central differences through the optimiser's step, ``[T, T]``."""
    columns = []
    for j in range(len(weights)):
        ends = []
        for sign in (1, -1):
            job.restore(start)
            job.restore_moments(moments)
            moved_weights = weights.clone()
            moved_weights[j] += sign * width
            job.descend(batch, moved_weights / len(weights))
            with job.probe(query, "all") as probe:
                ends.append(probe.losses.detach())
        columns.append((ends[0] - ends[1]) / (2 * width))
    job.restore(start)
    job.restore_moments(moments)
    return torch.stack(columns, 1)


@pytest.mark.parametrize("memory", ["whole", "bounded"])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_hypergradients_are_derivatives_of_the_query_losses_through_the_step(optimizer, memory):
    """At a rate so large that θ^k is far from θ^{k-1}; Adam's v is so large that it hardly moves, as the form says."""

    def check(method, job):
        weights = torch.tensor([0.7, 1.4, 0.9], dtype=torch.float64)
        method.weights = weights / 3
        batch, query, start, moments = job.batch(), job.draw(Role.QUERY, 4), job.snapshot(), job.moments()
        if optimizer != "SGD":
            draw = torch.Generator().manual_seed(0)
            for key, value in moments.items():
                if key.endswith("exp_avg_sq"):
                    value.copy_(50 + 50 * torch.rand(value.shape, generator=draw, dtype=value.dtype))
        expected = by_differences(job, start, moments, batch, query, weights)
        job.draw = lambda *_: query
        rate, take = job.rate, method.dissect if memory == "whole" else method.trace
        found = method._hypergradients(job, take(job, job.batch(), method.weights, method.options.scope)[1], rate)
        torch.testing.assert_close(found, expected, rtol=1e-3 if optimizer != "SGD" else 1e-6, atol=1e-8)

    form = "gradient_descent" if optimizer == "SGD" else "optimizer"
    inside(
        check,
        options={"form": form, "rate": True},
        optimizer=optimizer,
        learning_rate=2.0,
        optimizer_options={"weight_decay": 0.1},
    )


def test_shared_parameters_alone_give_exact_off_diagonals_and_a_wrong_diagonal():
    def check(method, job):
        query, start = job.draw(Role.QUERY, 4), job.snapshot()
        job.draw = lambda *_: query
        found = {}
        for scope in ("all", "shared"):
            job.restore(start)
            method.options = MetaWeighting(scope=scope).options
            found[scope] = method._hypergradients(
                job, method.dissect(job, job.batch(), method.weights, method.options.scope)[1], 1.0
            )
        apart = ~torch.eye(3, dtype=torch.bool)
        torch.testing.assert_close(found["all"][apart], found["shared"][apart])
        assert ((found["all"] - found["shared"]).diagonal().abs() > 1e-3).all()

    inside(check, optimizer="SGD", learning_rate=0.1)


def textcnn_settings():
    return {"data": text_suite(), "encoder": "textcnn", "encoder_options": {"size": 6, "channels": 4}}


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_sparse_and_dense_products_agree(optimizer):
    """The engine's sparse word gradients give what the plain formula gives of dense ones, metric included."""

    def check(method, job):
        support = method.dissect(job, job.batch(), method.weights, method.options.scope)[1]
        with job.probe(job.draw(Role.QUERY, 4), "all") as probe:
            query = probe.task_gradients()
        assert any(value.is_sparse for value in support.stored().values())
        metric = {name: job.metric(name) for name in support}
        given = None if optimizer == "SGD" else {name: torch.as_tensor(value) for name, value in metric.items()}
        expected = hypergradient_matrix(dict(query), dict(support), 1.0, given)
        job.draw = lambda *_: None
        job.probe = lambda *_: _Held(query)
        found = method._hypergradients(job, support, 1.0)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)

    form = "gradient_descent" if optimizer == "SGD" else "optimizer"
    inside(check, **textcnn_settings(), options={"form": form}, optimizer=optimizer, learning_rate=0.01)


class _Held:
    """A probe whose gradients are known."""

    def __init__(self, gradients):
        self.products = lambda other, metric: inner_products(gradients, other, metric)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


KINDS = {
    "plain": {"data": dense_suite(), "encoder": network()},
    "batchnorm": {"data": dense_suite(), "encoder": nn.Sequential(network(), nn.BatchNorm1d(4).double())},
    "accumulate": {"data": dense_suite(), "encoder": network(), "accumulate": 2, "batch_size": 4},
    "one_task": {"data": dense_suite(), "encoder": network(), "batching": "one_task"},
    "clip": {"data": dense_suite(), "encoder": network(), "clip": 0.01},
    "textcnn": textcnn_settings(),
}


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_a_step_that_is_taken_apart_is_the_same_step(settings):
    def check(method, job):
        del method
        weights = torch.tensor([0.2, 0.5, 0.3])
        start, moments, batch = job.snapshot(), job.moments(), job.batch()
        losses = job.descend(batch, weights)
        whole = job.snapshot()
        job.restore(start)
        job.restore_moments(moments)
        apart_losses, gradients = job.dissect(batch, weights)
        for name, value in job.snapshot().items():
            torch.testing.assert_close(value, whole[name], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(apart_losses, losses)
        assert set(gradients) == set(job.model.scope("all"))
        assert set(job.dissect(batch, weights, "shared")[1]) == set(job.model.scope("shared"))

    inside(check, **settings)


def with_labels_of_all_tasks():
    """Rows that carry the labels of two tasks."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    tasks = [
        Task(name, "classification", {"train": Rows(inputs, (inputs[:, place] > 0).long())}, outputs=2)
        for place, name in enumerate(["t0", "t1", "t2"])
    ]
    return Suite(tasks, "t0")


MORE_KINDS = KINDS | {
    "shared_rows": {"data": with_labels_of_all_tasks(), "encoder": network()},
    "lstm": {"data": text_suite(), "encoder": "lstm", "encoder_options": {"size": 6, "hidden": 4}},
}


@pytest.mark.parametrize("settings", MORE_KINDS.values(), ids=MORE_KINDS)
@pytest.mark.parametrize("scope", ["all", "shared"])
def test_a_layer_at_a_time_gives_the_same_run(settings, scope):
    def trained(memory):
        torch.manual_seed(0)
        method = MetaWeighting(gradient_memory=memory, alpha=0.5, scope=scope)
        given = copy.deepcopy(settings)
        return fit(
            given.pop("data"), given.pop("encoder"), method,
            **({"epochs": 2, "batch_size": 8, "device": "cpu", "progress": False} | given),
        )  # fmt: skip

    whole, bounded = trained("whole"), trained("bounded")
    assert len(set(whole.weights.values())) > 1 or settings.get("batching") == "one_task"
    for name, value in bounded.weights.items():
        assert value == pytest.approx(whole.weights[name], rel=1e-4)


def peak(tasks, memory):
    """Most bytes in tensors at once, in a step of T tasks that together have 32 rows, on 12 layers of one size."""
    found = []

    def check(method, job):
        method.options = MetaWeighting(gradient_memory=memory, query_size=32 // tasks).options
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            MetaWeighting.step(method, job)
        total = most = 0
        for event in profiled.profiler.kineto_results.events():
            if event.name() == "[memory]":
                total += event.nbytes()
                most = max(most, total)
        found.append(most)

    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(128, 128), nn.Tanh())]
    encoder = nn.Sequential(nn.Linear(5, 128), *layers)
    data = dense_suite(tasks, rows=80)
    data = Suite(
        [t.with_rows({r: Rows(v.inputs.float(), v.labels) for r, v in t.rows.items()}) for t in data.tasks.values()],
        "t0",
    )
    inside(check, data=data, encoder=encoder, batch_size=32 // tasks, optimizer="SGD")
    return found[0]


def test_memory_for_a_layer_at_a_time_does_not_grow_with_the_tasks(monkeypatch):
    monkeypatch.setattr("steelyard.gradients._layers._NUMBERS", 1 << 15)
    model = 4 * 12 * 128 * 128
    assert peak(16, "whole") - peak(2, "whole") > 10 * model
    assert peak(16, "bounded") - peak(2, "bounded") < 0.5 * model  # of which the heads' take 0.35


def test_the_direction_is_common_and_shortest():
    generator = torch.Generator().manual_seed(0)
    for tasks in (2, 3, 14):
        matrix = torch.randn(tasks, tasks, generator=generator, dtype=torch.float64)
        for scale in (1.0, 1e-200, 1e200):
            direction = common_direction(matrix * scale) / scale
            assert (matrix @ direction >= direction @ direction * (1 - 1e-9) - 1e-12).all()
    first, second = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    share = float(((second - first) @ second / (first - second).square().sum()).clamp(0, 1))
    torch.testing.assert_close(common_direction(torch.stack([first, second])), share * first + (1 - share) * second)
    gram = matrix @ matrix.T
    assert min_norm_gap(gram, torch.full((14,), 1 / 14, dtype=torch.float64)) > 0


def test_no_direction_no_move():
    opposed = torch.tensor([[1.0, -2.0], [-1.0, 2.0]])
    for matrix in (opposed, torch.zeros(2, 2), torch.tensor([[0.0, 0.0], [1.0, 1.0]]), opposed * torch.nan):
        torch.testing.assert_close(common_direction(matrix), torch.zeros(2, dtype=torch.float64))


def test_bounds():
    weights = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    direction = torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64)
    assert moved(weights, direction, 1.0, "free").tolist() == [-1, 2, 1]
    assert moved(weights, direction, 1.0, "clamped").tolist() == [0, 2, 1]
    assert moved(weights, direction, 1.0, "renormalised").tolist() == [0, 2, 1]
    assert moved(weights, direction, 0.5, "renormalised").tolist() == pytest.approx([0, 1.8, 1.2])


def test_support_and_query_keep_apart_and_every_class_gives_its_share():
    method, data = MetaWeighting(ratio=0.25), dense_suite(rows=80)
    found = method.prepare(data, 5)
    for name, task in found.tasks.items():
        support, query = task.rows[Role.TRAIN], task.rows[Role.QUERY]
        assert len(query) == 20
        rows = torch.cat([support.inputs, query.inputs])
        assert torch.equal(rows.sort(0).values, data[name].rows[Role.TRAIN].inputs.sort(0).values)
        share = data[name].rows[Role.TRAIN].labels.double().mean() * 20
        assert abs(float(query.labels.sum()) - float(share)) <= 1


def test_rows_are_split_anew_every_so_many_epochs_and_none_is_lost_for_good():
    seen = []

    class Watching(MetaWeighting):
        name = "watching"

        def step(self, job):
            super().step(job)
            seen.append((job.epoch, job.suite["task0"].rows[Role.QUERY].inputs.clone(), len(job.batch())))

    testing.train(lambda: Watching(resplit=2, ratio=0.5), epochs=6)
    by_epoch = {epoch: rows for epoch, rows, _ in seen}
    assert torch.equal(by_epoch[0], by_epoch[1])
    assert not torch.equal(by_epoch[1], by_epoch[2])
    assert len(torch.unique(torch.cat([by_epoch[0], by_epoch[2], by_epoch[4]]), dim=0)) > 1.5 * len(by_epoch[0])


OPTIONS = [
    {"resplit": 1},
    {"every": 2, "query_size": 2, "resplit": 2},
    {"form": "optimizer", "rate": True},
    {"as_published": True},
    {"bounds": "clamped", "scope": "shared"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_form_survives_interruption(options):
    promises.survives_interruption(lambda: MetaWeighting(**options))


def test_published_form_leaves_the_rate_in_and_hardly_moves():
    runs = {p: testing.train(lambda p=p: MetaWeighting(as_published=p), learning_rate=1e-3) for p in (True, False)}
    moves = {p: max(line["method"]["mean_weight_move"] for line in run.history) for p, run in runs.items()}
    assert 0 < moves[True] < 1e-2 * moves[False]


def test_against_the_direction_every_query_loss_falls():
    """The same step with w a little way along -d_c leaves no task's query loss higher."""

    def check(method, job):
        batch, query, start, moments = job.batch(), job.draw(Role.QUERY, 4), job.snapshot(), job.moments()
        job.draw = lambda *_: query
        direction = common_direction(
            method._hypergradients(job, method.dissect(job, job.batch(), method.weights, method.options.scope)[1], 0.5)
        )
        assert direction.norm() > 1e-4
        found = []
        for length in (0.0, 1e-2):
            job.restore(start)
            job.restore_moments(moments)
            weights = torch.ones(3, dtype=torch.float64) - length * direction / direction.norm()
            job.descend(batch, weights / 3)
            with job.probe(query) as probe:
                found.append(probe.losses.detach())
        assert (found[1] < found[0]).all()

    inside(check, optimizer="SGD", learning_rate=0.5, options={"rate": True})


def test_a_task_of_one_row_is_refused_by_name():
    data = dense_suite()
    lonely = Task("lonely", "classification", {"train": Rows(torch.zeros(1, 5).double(), torch.tensor([1]))}, outputs=2)
    with pytest.raises(SteelyardError, match="lonely"):
        MetaWeighting().prepare(Suite([*data.tasks.values(), lonely], "t0"), 0)


def test_another_optimiser_is_refused_where_its_step_is_not_known():
    with pytest.raises(SteelyardError, match="Adagrad"):
        testing.train(lambda: MetaWeighting(form="optimizer"), optimizer="Adagrad")


def test_with_a_gradient_combination_support_gradients_are_still_the_tasks_own():
    """PCGrad with nothing in conflict is the plain step, so both roads have to lead to the same weights."""
    data = dense_suite()
    for task in data.tasks.values():
        task.rows[Role.TRAIN] = Rows(data["t0"].rows[Role.TRAIN].inputs.clone(), data["t0"].rows[Role.TRAIN].labels)
    settings = {"epochs": 2, "optimizer": "SGD", "learning_rate": 1e-3, "progress": False, "device": "cpu"}
    runs = []
    for method in ("metaweighting", "metaweighting+pcgrad"):
        encoder = nn.Sequential(nn.Linear(5, 4), nn.Tanh()).double()
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.fill_(0.1)
        runs.append(fit(data, encoder, method, **settings).history)
    for alone, combined in zip(*runs, strict=True):
        assert alone["method"] == pytest.approx(combined["method"], rel=1e-4)


def test_drop_in_gives_the_same_weights_as_the_formula():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    own = copy.deepcopy(model)
    inputs, targets = torch.randn(2, 6, 3).double(), torch.randn(2, 6, 2).double()

    def losses(net, rows):
        return (net(inputs[rows]) - targets[rows]).square().mean(0)

    weights = QueryWeights(model.parameters(), tasks=2, alpha=0.3)
    with pytest.raises(SteelyardError, match="before"):
        weights.query(losses(model, 1))
    found = losses(model, 0)
    weights.support(found)
    (weights.value * found).mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(parameter.grad, alpha=0.1)
    change = weights.query(losses(model, 1))

    def gradients(net, rows):
        return torch.stack(
            [
                torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)])
                for loss in losses(net, rows)
            ]
        )

    matrix = hypergradient_matrix(gradients(model, 1), gradients(own, 0), 1.0)
    expected = moved(torch.ones(2, dtype=torch.float64), common_direction(matrix), 0.3, "renormalised")
    torch.testing.assert_close(weights.value, expected)
    assert change > 0
    assert weights.value.sum() == pytest.approx(2)
    other = QueryWeights(model.parameters(), tasks=2)
    other.load_state_dict(weights.state_dict())
    assert torch.equal(other.value, weights.value)
