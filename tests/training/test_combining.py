"""Steps along combined gradients are those of the whole step, wherever its rows are: checked against separate parts."""

import pytest
import torch
from torch import nn

from steelyard import Role, Rows, Suite, Task, methods, testing
from steelyard.methods import Method
from steelyard.training import combining, fit

COEFFICIENTS = torch.tensor([0.5, 2.0, 0.0], dtype=torch.float64)


def network(norm):
    """A network with dropout off, so that micro-batches and whole batches agree."""
    return nn.Sequential(nn.Linear(5, 8), norm(8), nn.Tanh(), nn.Linear(8, 6))


def shared_rows(tasks=3, rows=24):
    """Tasks that label the same rows."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 5, generator=generator)
    labels = [torch.arange(rows).roll(i) % 2 for i in range(tasks)]
    made = [Task(f"task{i}", "classification", {"train": Rows(inputs, y)}, outputs=2) for i, y in enumerate(labels)]
    return Suite(made, target="task0")


class Scripted(Method):
    """Takes each step by a function of the test."""

    name = "scripted"
    summary = "a test's"
    range = "real"

    def __init__(self, act):
        super().__init__()
        self.act = act

    def step(self, job):
        self.act(job)


def trained(act, suite=None, encoder=None, **settings):
    torch.manual_seed(0)
    data = suite if suite is not None else testing.suite()
    settings = {"epochs": 1, "batch_size": 8, "optimizer": "SGD", "learning_rate": 0.1, "device": "cpu"} | settings
    run = fit(data, encoder or network(nn.LayerNorm), Scripted(act), keep="last", progress=False, **settings)
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def assert_same(first, second):
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], atol=2e-6, rtol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


def plain(job):
    job.descend(job.batch(), torch.tensor([0.5, 0.3, 0.2]))


def combined(rule, at="parameters", weights=None):
    given = torch.tensor([0.5, 0.3, 0.2]) if weights is None else weights

    def act(job):
        job.combine(job.batch(), given, rule, at=at)

    return act


PLACES = ["parameters", "representation"]
DATA = {"own": testing.suite, "missing": lambda: testing.suite(missing=True), "shared": shared_rows}


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
@pytest.mark.parametrize(
    ("norm", "settings"),
    [
        (nn.LayerNorm, {}),
        (nn.LayerNorm, {"accumulate": 2}),
        (nn.LayerNorm, {"precision": "bf16"}),
        (nn.LayerNorm, {"clip": 0.1}),
        (nn.BatchNorm1d, {}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_coefficients_of_one_are_the_plain_step(norm, settings, data, at):
    ones = combined(lambda gram: torch.ones(len(gram), dtype=gram.dtype), at)
    first = trained(plain, data(), network(norm), **settings)
    second = trained(ones, data(), network(norm), **settings)
    if settings.get("precision"):
        for name, value in first.items():
            torch.testing.assert_close(value, second[name], atol=5e-3, rtol=5e-2)
    else:
        assert_same(first, second)


def separately(job):
    """The same step from one backward per task, by hand."""
    weights = torch.tensor([0.5, 0.3, 0.2])
    losses = job.losses(job.batch())
    named = dict(job.model.named_parameters())
    moved = {name: torch.zeros_like(p) for name, p in named.items()}
    for loss, weight, coefficient in zip(losses, weights, COEFFICIENTS, strict=True):
        found = torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
        for name, value in zip(named, found, strict=True):
            if value is not None:
                moved[name] += value * weight * (float(coefficient) if name.startswith("encoder.") else 1.0)
    job.apply(moved, losses, weights)


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d], ids=lambda n: n.__name__)
def test_shared_parameters_are_combined_and_heads_are_not(norm, data, at):
    assert_same(
        trained(separately, data(), network(norm)),
        trained(combined(lambda gram: COEFFICIENTS, at), data(), network(norm)),
    )


def test_a_second_backward_gives_the_same_as_stored_gradients(monkeypatch):
    rule = lambda gram: 1 / (1 + gram.sum(0).abs())  # noqa: E731
    stored = trained(combined(rule))
    monkeypatch.setattr(combining, "STORED", 0)
    assert_same(stored, trained(combined(rule)))


@pytest.mark.parametrize("at", PLACES)
def test_the_rule_sees_the_whole_steps_gram_matrix(at):
    """With micro-batches, missing labels and weights: as from separate gradients of the weighted losses."""
    seen = []

    def act(job):
        weights = torch.tensor([0.5, 0.3, 0.2])
        losses = job.losses(job.batch()) * weights
        shared = list(job.model.scope("shared").values())
        flat = []
        for loss in losses:
            found = torch.autograd.grad(loss, shared, retain_graph=True)
            flat.append(torch.cat([value.flatten() for value in found]))
        expected = torch.stack(flat).double()
        job.combine(job.batch(), weights, lambda gram: seen.append(gram) or torch.ones(3), at=at)
        if at == "parameters":
            torch.testing.assert_close(seen[-1], expected @ expected.T, atol=1e-7, rtol=1e-4)
        else:
            assert torch.equal(seen[-1], seen[-1].diagonal().diag())  # rows of their own

    trained(act, testing.suite(missing=True), accumulate=2)
    assert seen


def test_the_representations_gram_matrix_of_shared_rows():
    def act(job):
        batch = job.batch()
        z = job.model.encoder(batch.parts[0].inputs).detach().requires_grad_()
        rows = []
        for member in batch.parts[0].members:
            loss = nn.functional.cross_entropy(job.model.head(member.task)(z), member.labels)
            rows.append(torch.autograd.grad(loss, z)[0].flatten())
        flat = torch.stack(rows).double()
        job.combine(batch, torch.ones(3), lambda gram: found.append(gram) or torch.ones(3), at="representation")
        torch.testing.assert_close(found[-1], flat @ flat.T, atol=1e-7, rtol=1e-4)

    found = []
    trained(act, shared_rows())
    assert found


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}], ids=str)
def test_weights_may_be_a_function_or_the_slopes_of_an_objective(settings):
    ones = lambda gram: torch.ones(3, dtype=gram.dtype)  # noqa: E731
    function = lambda losses: losses / losses.sum()  # noqa: E731
    objective = lambda losses: losses.square().sum()  # noqa: E731
    assert_same(
        trained(lambda job: job.descend(job.batch(), function), **settings),
        trained(combined(ones, weights=function), **settings),
    )
    assert_same(
        trained(lambda job: job.minimise(job.batch(), objective, torch.ones(3)), **settings),
        trained(lambda job: job.combine(job.batch(), torch.ones(3), ones, objective=objective), **settings),
    )


def test_an_objective_reaches_the_methods_own_parameters():
    class Learned(Scripted):
        def adapt(self, model):
            model.add_module("method", nn.ParameterList([nn.Parameter(torch.zeros(3))]))

    def objective(job):
        (u,) = job.model.method.parameters()
        return lambda losses: (torch.exp(-u) * losses + u / 2).sum()

    def run(act):
        torch.manual_seed(0)
        run = fit(testing.suite(), network(nn.LayerNorm), Learned(act), epochs=1, progress=False, device="cpu")
        return run.model.state_dict()

    ones = lambda gram: torch.ones(3, dtype=gram.dtype)  # noqa: E731
    first = run(lambda job: job.minimise(job.batch(), objective(job), torch.ones(3)))
    second = run(lambda job: job.combine(job.batch(), torch.ones(3), ones, objective=objective(job)))
    assert first["method.0"].abs().min() > 0
    assert_same(first, second)


def test_a_frozen_encoder_leaves_nothing_to_combine():
    def refuse(gram):
        raise AssertionError("there is nothing to combine")

    def frozen():
        return network(nn.LayerNorm).requires_grad_(False)

    assert_same(trained(plain, encoder=frozen()), trained(combined(refuse), encoder=frozen()))


def test_rows_of_different_shapes_are_several_encoder_calls():
    """Inputs that do not stack come in several parts; every part's rows count."""
    generator = torch.Generator().manual_seed(0)

    def task(name, width):
        inputs = torch.randn(16, width, 5, generator=generator)
        return Task(name, "classification", {Role.TRAIN: Rows(inputs, torch.arange(16) % 2)}, outputs=2)

    suite = Suite([task("a", 2), task("b", 3), task("c", 3)], target="a")
    assert_same(trained(separately, suite), trained(combined(lambda gram: COEFFICIENTS), suite))


def test_one_task_per_step_is_refused():
    with pytest.raises(Exception, match="all_tasks"):
        testing.train(methods.get("pcgrad"), batching="one_task")
