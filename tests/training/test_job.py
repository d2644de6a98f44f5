"""What the job offers to methods: probes that are right and leave no trace."""

import pytest
import torch
from torch import nn

from steelyard import methods, testing
from steelyard.methods import Method
from steelyard.tasks import Role
from steelyard.training import Training
from steelyard.training.optimisers import build_optimizer


def with_job(check, **settings):
    """Runs a check inside a job's second step, and says whether it ran."""
    ran = []

    class Checking(Method):
        name = "checking"
        summary = "a test's"

        def step(self, job):
            if job.step == 1:
                check(job)
                ran.append(True)
            super().step(job)

    run = testing.train(Checking, epochs=1, **settings)
    assert ran
    return run


def separate(job, batch, scope):
    """Each task's gradient by a backward of its own, in evaluation mode."""
    parameters = list(job.model.scope(scope, trainable=True).values())
    job.model.eval()
    losses = job.losses(batch)
    rows = [torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True) for loss in losses]
    job.model.train()
    filled = [[torch.zeros_like(p) if g is None else g for p, g in zip(parameters, row, strict=True)] for row in rows]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in filled])


def test_a_probe_is_separate_backwards():
    def check(job):
        for scope in ("shared", "all"):
            batch = job.draw(Role.DEV_META, 7)
            expected = separate(job, batch, scope)
            with job.probe(batch, scope) as probe:
                assert torch.allclose(probe.gram(), expected @ expected.T, atol=1e-5)
                assert torch.allclose(probe.task_gradients().flatten(), expected, atol=1e-5)
                direction = probe.gradient(torch.tensor([1.0, 0.0, 0.0]))
                flat = torch.cat([direction[name].flatten() for name in probe.parameters])
                assert torch.allclose(flat, expected[0], atol=1e-5)
                assert torch.allclose(probe.slopes(direction), expected @ expected[0], atol=1e-5)
                if scope == "shared":
                    sums = torch.zeros(3).index_add(0, probe.rows, probe.row_slopes(direction))
                    assert torch.allclose(sums, expected @ expected[0], atol=1e-5)

    with_job(check)


def test_a_probe_leaves_no_trace():
    """A run that probes ends bitwise as one that does not."""

    def check(job):
        batch = job.batch()
        with job.probe(batch, "all") as probe:
            probe.gram()
            probe.hessian(torch.ones(3))(probe.gradient(torch.ones(3)))

    probed, plain = with_job(check), with_job(lambda job: None)
    for (name, a), b in zip(probed.model.state_dict().items(), plain.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_a_snapshot_restores_parameters_and_buffers():
    def check(job):
        before = job.snapshot()
        losses = job.losses(job.batch())
        losses.sum().backward()
        with torch.no_grad():
            for parameter in job.model.parameters():
                parameter.add_(1.0)
        job.restore(before)
        job.model.zero_grad()
        after = job.model.state_dict()
        assert all(torch.equal(value, after[name]) for name, value in before.items())

    with_job(check)


def test_loss_on_a_role_is_the_mean_over_all_its_rows():
    def check(job):
        rows = job.suite["task1"].rows[Role.DEV_META]
        job.model.eval()
        outputs = job.model.head("task1")(job.model.encoder(rows.inputs))
        job.model.train()
        expected = nn.functional.cross_entropy(outputs, rows.labels)
        assert torch.allclose(job.loss_on(Role.DEV_META, "task1"), expected)

    with_job(check)


def test_applied_gradients_are_an_optimiser_step():
    class Applying(Method):
        name = "applying"
        summary = "a test's"

        def step(self, job):
            losses = job.losses(job.batch())
            parameters = dict(job.model.named_parameters())
            found = torch.autograd.grad(losses @ self.weights, list(parameters.values()))
            job.apply(dict(zip(parameters, found, strict=True)), losses, self.weights)

    applied, plain = testing.train(Applying), testing.train(methods.get("uniform"))
    for (name, a), b in zip(applied.model.state_dict().items(), plain.model.state_dict().values(), strict=True):
        assert torch.allclose(a, b, atol=1e-6), name


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_adam_takes_one_pass_on_the_cpu_and_the_same_step(kind):
    def after(options):
        draw = torch.Generator().manual_seed(0)
        named = {name: nn.Parameter(torch.randn(5, 3, generator=draw, dtype=torch.float64)) for name in "ab"}
        optimizer = build_optimizer(named, Training(optimizer=kind, optimizer_options=options), 0.1)
        for _ in range(5):
            for parameter in named.values():
                parameter.grad = torch.randn(5, 3, generator=draw, dtype=torch.float64)
            optimizer.step()
        return optimizer.defaults["fused"], torch.stack([p.detach() for p in named.values()])

    (quick, found), (plain, expected) = after({"weight_decay": 0.1}), after({"weight_decay": 0.1, "fused": False})
    assert (quick, plain) == (True, False)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert after({"foreach": True})[0] is None


def test_other_optimisers_and_devices_are_as_torch_makes_them():
    named = {"a": nn.Parameter(torch.ones(2))}
    assert build_optimizer(named, Training(optimizer="SGD"), 0.1).defaults["fused"] is None
    elsewhere = {"a": nn.Parameter(torch.ones(2, device="meta"))}
    assert build_optimizer(elsewhere, Training(), 0.1).defaults["fused"] is None
