"""TAWT's signals: what they are inner products of, where they are taken, and what they leave alone."""

import pytest
import torch
from torch import nn

from steelyard import Rows, SharedModel, SteelyardError, Suite, Task, fit, testing
from steelyard.functional import mirror_descent
from steelyard.methods import get
from steelyard.methods.tawt.rows import updated
from steelyard.methods.tawt.signals import of_step, signals, target_gradient
from steelyard.tasks import Role
from steelyard.testing import numbers, promises

TAWT = get("tawt")
GOAL = {"task0": 1.0}


class Body(nn.Module):
    """A shared layer, and one that no task uses."""

    def __init__(self):
        super().__init__()
        self.layer, self.idle = nn.Linear(5, 6), nn.Linear(5, 6)

    def forward(self, rows):
        return self.layer(rows).tanh()


def inside(check, data=None, options=None, step=1, **settings):
    """Runs a check of (method, job) before a step of a run on a plain network."""
    ran = []

    class Checking(TAWT):
        name = "checking"

        def step(self, job):
            if job.step == step:
                check(self, job)
                ran.append(True)
            super().step(job)

    torch.manual_seed(3)
    common = {"epochs": 1, "batch_size": 8, "learning_rate": 0.05, "device": "cpu", "seed": 1, "progress": False}
    fit(data or testing.suite(), Body(), Checking(**(options or {})), **(common | settings))
    assert ran


def flat(gradients):
    return torch.cat([g.flatten() for g in gradients]).double()


def gradient(job, batch, task, parameters):
    loss = job.model.losses(batch).means[job.model.tasks.index(task)]
    found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return flat(found)


def test_only_phi_counts_whatever_heads_and_idle_parameters_do():
    """Heads, private to their tasks, would add nothing to a slope and much to a norm; an idle layer is zeros."""

    def check(method, job):
        shared = list(job.model.encoder.parameters())
        batch = job.draw(Role.TRAIN, 99)  # all rows, in an order that means nothing
        own = {name: gradient(job, batch, name, shared) for name in job.tasks}
        wanted = [torch.cosine_similarity(own["task0"], own[name], 0) for name in ("task1", "task2")]
        found = signals(job, GOAL, ("task1", "task2"), TAWT(probe_size=99).options, method.weights)
        assert torch.allclose(found, -torch.stack(wanted), atol=1e-5)
        heads = gradient(job, batch, "task1", list(job.model.head("task1").parameters()))
        assert heads.norm() > 0.1 * own["task1"].norm()

    inside(check)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_the_preconditioned_cosine_is_taken_in_the_optimisers_metric(optimizer):
    def check(method, job):
        shared = dict(job.model.encoder.named_parameters(prefix="encoder"))
        batch = job.draw(Role.TRAIN, 99)
        a, b = (gradient(job, batch, name, list(shared.values())) for name in ("task0", "task1"))
        metric = flat([torch.as_tensor(job.metric(name)).expand(p.shape) for name, p in shared.items()])
        wanted = (a * metric * b).sum() / ((a * metric * a).sum() * (b * metric * b).sum()).sqrt()
        options = {"probe_size": 99, "signal": "preconditioned"}
        found = signals(job, GOAL, ("task1",), TAWT(**options).options, method.weights)
        assert float(found[0]) == pytest.approx(-float(wanted), abs=1e-5)
        plain = signals(job, GOAL, ("task1",), TAWT(probe_size=99).options, method.weights)
        assert (abs(float(found[0] - plain[0])) < 1e-5) == (optimizer == "SGD")

    inside(check, step=2, optimizer=optimizer)


def test_a_step_is_seen_as_a_probe_of_its_own_rows_would_see_it():
    def check(method, job):
        shared = list(job.model.encoder.parameters())
        batch = job.batch()
        own = {name: gradient(job, batch, name, shared) for name in job.tasks}
        with job.probe(batch) as probe:
            taken = probe.task_gradients()
        direction = taken.combine(torch.tensor([1.0, 0.0, 0.0]))
        found = of_step(job, taken, direction, ("task1", "task2"), method.options)
        for value, name in zip(found, ("task1", "task2"), strict=True):
            assert float(value) == pytest.approx(-float(torch.cosine_similarity(own["task0"], own[name], 0)), abs=1e-5)
        before = method.state["total"].clone()
        method._descend_and_observe(job)
        assert torch.allclose(method.state["total"] - before, found - found.mean(), atol=1e-6)

    inside(check, options={"observe": "step"})


@pytest.mark.parametrize(("options", "more"), [({}, 0), ({"role": "dev_meta"}, 3)])
def test_seeing_every_step_costs_no_forward_of_its_own(options, more):
    """Against the target's training rows none; against held-out rows one at the start, and one per update."""
    calls = []

    class Counting(Body):
        def forward(self, rows):
            if torch.is_grad_enabled():
                calls.append(len(rows))
            return super().forward(rows)

    settings = {"epochs": 2, "batch_size": 8, "device": "cpu", "progress": False}
    run = fit(testing.suite(), Counting(), TAWT(observe="step", **options), **settings)
    assert len(calls) == run.summary["steps"] + more
    assert run.weights["task1"] != pytest.approx(run.weights["task2"], abs=1e-6)


@pytest.mark.parametrize("check", [promises.survives_interruption, numbers.ignores_scale, promises.keeps_its_range])
@pytest.mark.parametrize(
    "options",
    [{"observe": "step"}, {"observe": "step", "role": "dev_meta"}, {"level": "example"}, {"signal": "preconditioned"}],
    ids=str,
)
def test_conformance_of_the_other_forms(check, options):
    if options == {"signal": "preconditioned"} and check is numbers.ignores_scale:
        pytest.skip("the check trains by SGD, whose metric is 1")
    check(lambda: TAWT(**options))


@pytest.mark.parametrize(("settings", "composed"), [
    ({"batching": "one_task"}, False), ({"accumulate": 2}, False), ({"paradigm": "pretrain"}, False), ({}, True),
])  # fmt: skip
def test_steps_are_seen_or_probed_wherever_training_goes(settings, composed):
    make = get("tawt+pcgrad") if composed else TAWT
    options = {"weights": {"observe": "step"}} if composed else {"observe": "step"}
    run = testing.train(lambda: make(**options), **settings)
    assert run.weights["task1"] != pytest.approx(run.weights["task2"], abs=1e-6)


def test_a_head_that_is_trained_is_refitted_for_the_probe_alone():
    def check(method, job):
        before = job.snapshot()
        with method._fitted_heads(job):
            assert not torch.equal(job.model.head("task0").weight, before["heads.task0.weight"])
        assert all(torch.equal(value, before[name]) for name, value in job.snapshot().items())

    inside(check, options={"head_steps": 5})


def test_example_weights_are_the_published_formula():
    """ω_i ← ω_i·exp(5η⟨∇L_0, ∇ℓ_i⟩), renormalised, by the gradient of every row by itself."""

    def check(method, job):
        shared = list(job.model.encoder.parameters())
        batch = {"task0": job.draw(Role.TRAIN, 99, ("task0",))}
        direction = target_gradient(job, batch, GOAL, "shared")
        found = updated(job, method.state["units"], method._units, direction, method.options)
        goal = flat(direction.values())
        slopes = []
        for name in ("task1", "task2"):
            rows = job.suite[name].rows[Role.TRAIN]
            outputs = job.model.head(name)(job.model.encoder(rows.inputs))
            losses = nn.functional.cross_entropy(outputs, rows.labels, reduction="none")
            own = [torch.autograd.grad(loss, shared, retain_graph=True, allow_unused=True, materialize_grads=True)
                   for loss in losses]  # fmt: skip
            slopes += [flat(each) @ goal for each in own]
        wanted = mirror_descent(method.state["units"].double(), -5 * torch.stack(slopes), 1.0)
        assert torch.allclose(found.double(), wanted, rtol=1e-3)

    inside(check, options={"level": "example", "as_published": True})


@pytest.mark.parametrize("role", ["train", "dev_meta"])
def test_rows_with_wrong_labels_lose_weight(role):
    generator = torch.Generator().manual_seed(0)

    def rows(n, wrong=0):
        inputs = torch.randn(n, 5, generator=generator)
        labels = (inputs[:, 0] > 0).long()
        labels[:wrong] = 1 - labels[:wrong]
        return Rows(inputs, labels)

    data = Suite([
        Task("task0", "classification", {"train": rows(60), "dev_meta": rows(60), "dev_select": rows(20)}),
        Task("task1", "classification", {"train": rows(200, wrong=40)}),
    ], "task0")  # fmt: skip
    method = TAWT(level="example", role=role, fresh=1.0)
    fit(data, Body(), method, epochs=4, batch_size=16, learning_rate=0.02, device="cpu", progress=False, seed=0)
    weights = method.state["units"]
    above = (weights[None, 40:] > weights[:40, None]).double() + (weights[None, 40:] == weights[:40, None]) / 2
    assert above.mean() > 0.7


@pytest.mark.parametrize("options", [
    {"share": "paper"}, {"level": "example"}, {"signal": "hypergradient"}, {"as_published": True},
])  # fmt: skip
def test_steps_cannot_be_seen_for_everything(options):
    with pytest.raises(SteelyardError, match="observe = 'step' sees the sources"):
        TAWT(observe="step", **options)


def test_signals_of_tasks_on_the_same_rows():
    """Several labels per row have no row rule; the signals are the exact path's."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(24, 5, generator=generator)
    tasks = [Task(f"task{i}", "classification", {"train": Rows(inputs, (inputs[:, i] > 0).long())}) for i in range(3)]
    data = Suite(tasks, "task0")
    torch.manual_seed(0)
    runs = [
        fit(data, SharedModel(Body(), data), TAWT(observe=how), epochs=3, batch_size=8, progress=False, device="cpu")
        for how in ("step", "probe")
    ]
    for run in runs:
        assert sum(run.weights.values()) == pytest.approx(1, abs=1e-5)
