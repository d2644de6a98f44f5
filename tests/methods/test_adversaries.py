"""Tchebycheff's largest loss, discriminators whose gradient is reversed, private encoders."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from steelyard import Rows, SteelyardError, Suite, Task, fit, methods, testing
from steelyard.methods import Method
from steelyard.methods._adversary import Adversary
from steelyard.methods.adversarial import Private
from steelyard.tasks import Ragged
from steelyard.training.run import load


def network(norm=nn.LayerNorm):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), norm(8), nn.Tanh(), nn.Linear(8, 6))


def trained(method, encoder=None, data=None, **settings):
    settings = {"epochs": 1, "batch_size": 8, "device": "cpu", "progress": False, "log_every": 1} | settings
    return fit(data or testing.suite(), encoder or network(), method, **settings)


def inside(check, method, **settings):
    """Runs a check of (method, job) in place of the second step of a run."""
    ran, step = [], method.step

    def checking(job):
        if job.step == 1:
            check(method, job)
            ran.append(True)
        else:
            step(job)

    method.step = checking
    trained(method, **({"optimizer": "SGD", "learning_rate": 0.5} | settings))
    assert ran


def test_only_the_largest_of_the_preferred_losses_counts():
    preferences = {"task1": 0.5, "task2": 2.0}

    def check(method, job):
        losses, start = job.losses(job.batch()).detach(), job.snapshot()
        place = int((losses * torch.tensor([1.0, 0.5, 2.0])).argmax())
        (found,) = torch.autograd.grad(job.losses(job.batch())[place], [job.model.encoder[0].weight])
        type(method).step(method, job)
        assert method.weights.nonzero()[:, 0].tolist() == [place]
        assert method.weights[place] == [1.0, 0.5, 2.0][place]
        moved = (start["encoder.0.weight"] - job.model.encoder[0].weight.detach()) / 0.5
        torch.testing.assert_close(moved, found * method.weights[place])

    inside(check, methods.get("tchebycheff")(preferences=preferences))


def test_a_preference_for_no_task_is_refused():
    with pytest.raises(SteelyardError, match="no task 'task9'; did you mean 'task"):
        trained(methods.get("tchebycheff")(preferences={"task9": 2.0}))


@pytest.mark.parametrize(("threshold", "share"), [(0.0, 0.3), (50.0, 0.0)])
def test_the_discriminators_gradient_reaches_features_reversed_and_only_above_the_threshold(threshold, share):
    data = testing.suite()
    model = trained("uniform", data=data).model
    adversary = Adversary(model)
    draw = torch.Generator().manual_seed(0)
    leaves = [torch.randn(n, 6, generator=draw, requires_grad=True) for n in (4, 7, 5)]
    owner = torch.repeat_interleave(torch.arange(3), torch.tensor([4, 7, 5]))
    plain = cross_entropy(adversary.discriminator(torch.cat(leaves)), owner)
    every = [*leaves, *adversary.discriminator.parameters()]
    expected = torch.autograd.grad(plain, every)
    loss = adversary.loss(dict(zip(model.tasks, leaves, strict=True)), 0.3, threshold)
    torch.testing.assert_close(loss, plain)
    found = torch.autograd.grad(loss, every)
    for own, other in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(own, -share * other)
    for own, other in zip(found[3:], expected[3:], strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("name", ["tchebycheff", "adversarial"])
def test_the_encoder_moves_against_the_discriminator(name):
    """A step with a huge reversal raises the discriminator's loss; with none it lowers it."""

    def check(method, job):
        adversary = job.model.get_submodule("method")

        def loss():
            with adversary.readings.listening():
                job.losses(job.batch())
                return float(adversary.loss(adversary.readings.take(job.batch()), 0.0).detach())

        before = loss()
        weight = adversary.discriminator.weight.detach().clone()
        type(method).step(method, job)
        assert not torch.equal(adversary.discriminator.weight, weight)
        seen.append(loss() - before)

    option = {"tchebycheff": "adversarial", "adversarial": "reversal"}[name]
    more = {"threshold": 0.0} if name == "tchebycheff" else {}
    changes = []
    for strength in (100.0, 1e-9):
        seen = []
        inside(check, methods.get(name)(**{option: strength}, **more), learning_rate=0.01)
        changes += seen
    assert changes[0] > 0 > changes[1]


def test_private_features_stand_beside_the_shared_ones():
    """Outputs are what one linear head makes of [s; p]; a task's rows move its own private network alone."""
    run = trained("adversarial")
    model, rows = run.model.eval(), torch.randn(4, 5)
    private = model.get_submodule("private").networks["task1"]
    shared, own = model.encoder(rows), private.encoder(rows)
    head, extra = model.head("task1"), private.head("task1")
    both = torch.cat([shared, own], 1) @ torch.cat([head.weight, extra.weight], 1).T + head.bias + extra.bias
    torch.testing.assert_close(model.predict(rows, "task1"), both.detach())
    start = trained("adversarial", learning_rate=1e-12).model.get_submodule("private").networks["task1"].encoder
    assert not torch.equal(private.encoder[0].weight, start[0].weight)

    def check(method, job):
        before = job.snapshot()
        job.descend(job.batch(), torch.tensor([0.0, 1.0, 0.0]))
        moved = {name.split(".")[2] for name, value in job.snapshot().items()
                 if name.startswith("private.") and not torch.equal(value, before[name])}  # fmt: skip
        assert moved == {"task1"}

    inside(check, methods.get("adversarial")())


@pytest.mark.parametrize("as_published", [False, True])
def test_the_penalty_is_that_of_the_step(as_published):
    def check(method, job):
        model, batch = job.model, job.batch()
        part, start = batch.parts[0], job.snapshot()
        private, adversary = model.get_submodule("private"), model.get_submodule("method")
        losses = job.losses(batch)
        penalty, features = torch.zeros(()), {}
        for member in part.members:
            rows = part.inputs[member.rows]
            features[member.task] = model.encoder(rows)
            pair = [features[member.task], private.networks[member.task].encoder(rows)]
            if not as_published:
                pair = [each / each.norm(dim=1, keepdim=True) / len(rows) ** 0.5 for each in pair]
            penalty = penalty + (pair[0].T @ pair[1]).square().sum()
        (losses.mean() + 0.1 * penalty + adversary.loss(features, 0.05)).backward()
        expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        type(method).step(method, job)
        for name, p in model.named_parameters():
            moved = (start[name] - p.detach()) / 0.001
            torch.testing.assert_close(moved, expected[name], rtol=1e-2, atol=2e-4)

    method = methods.get("adversarial")(orthogonality=0.1, as_published=as_published)
    inside(check, method, learning_rate=0.001, data=double_suite(), encoder=network().double())


def double_suite():
    """Small tasks in double precision."""
    data = testing.suite()
    made = [
        task.with_rows({role: Rows(rows.inputs.double(), rows.labels) for role, rows in task.rows.items()})
        for task in data.tasks.values()
    ]
    return Suite(made, data.target)


@pytest.mark.parametrize("name", ["adversarial", "tchebycheff"])
def test_a_run_is_read_back(name, tmp_path):
    options = {"adversarial": 0.1} if name == "tchebycheff" else {}
    run = trained(methods.get(name)(**options), encoder="mlp", out=tmp_path / "run")
    again, rows = load(tmp_path / "run"), torch.randn(3, 5)
    assert torch.equal(run.outputs(rows), again.outputs(rows))
    if name == "adversarial":
        assert isinstance(again.model.get_submodule("private"), Private)


def test_an_adversary_reads_the_tokens_of_a_tagger_without_the_padding():
    draw = torch.Generator().manual_seed(0)

    def task(number):
        texts = [torch.randint(1, 30, (int(n),), generator=draw) for n in torch.randint(2, 9, (16,), generator=draw)]
        tags = Ragged.of([text % 3 for text in texts])
        return Task(f"t{number}", "tagging", {"train": Rows(Ragged.of(texts), tags)}, outputs=3)

    seen = []

    class Looking(methods.get("adversarial")):
        def _products(self, part, batch, shared, private):
            common, own = shared.take(part), private.take(part)
            seen.extend((common[task].shape, own[task].shape) for task in own)
            return super()._products(part, batch, shared, private)

    data = Suite([task(0), task(1)], "t0", vocabulary=30)
    settings = {"encoder_options": {"size": 6, "channels": 4}, "batch_size": 16, "steps_per_epoch": 1}
    trained(Looking(), encoder="textcnn", data=data, **settings)
    assert [shape[0] for shape, _ in seen] == [int(t.rows["train"].inputs.lengths.sum()) for t in data.tasks.values()]
    assert all(own == other for own, other in seen)


class Penalised(Method):
    """A quadratic on the encoder, as a penalty."""

    name = "penalised"
    summary = "a test's"

    def step(self, job):
        batch = job.batch()

        def penalty(part):
            share = len(part.parts[0].inputs) / len(batch.parts[0].inputs)
            return share * job.model.encoder[0].weight.square().sum()

        self.descend(job, batch, self.weights, penalty=penalty)


class Plain(methods.Combination):
    """The plain step, as a combination."""

    name = "plain"
    summary = "a test's"

    def combine(self, gram, tasks, job):
        return gram.new_full((len(gram),), 1 / len(gram))


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"clip": 0.1}], ids=str)
def test_a_penalty_is_added_with_micro_batches_and_to_combined_gradients(settings):
    def ends(method, **more):
        run = trained(method, keep="last", optimizer="SGD", learning_rate=0.05, **(settings | more))
        return dict(run.model.state_dict())

    alone = ends(Penalised())
    combined = ends(methods.build({"weights": Penalised(), "gradients": Plain()}))
    whole = ends(Penalised(), accumulate=1, batch_size=16) if "accumulate" in settings else alone
    for name, value in alone.items():
        torch.testing.assert_close(value, combined[name], atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(value, whole[name], atol=2e-6, rtol=1e-5)
    without = dict(trained("uniform", keep="last", optimizer="SGD", learning_rate=0.05, **settings).model.state_dict())
    assert not torch.equal(alone["encoder.0.weight"], without["encoder.0.weight"])


def test_the_default_threshold_is_half_of_the_discriminators_worst():
    seen = []

    class Looking(Adversary):
        def loss(self, read, strength, threshold=0.0):
            seen.append(threshold)
            return super().loss(read, strength, threshold)

    method = methods.get("tchebycheff")(adversarial=0.1)
    method.adapt = lambda model: model.add_module("method", Looking(model))
    trained(method, steps_per_epoch=1)
    assert seen == [pytest.approx(math.log(3) / 2)]


@pytest.mark.parametrize("name", ["adversarial", "tchebycheff"])
def test_several_processes_are_refused(name, monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    method = methods.get(name)(**({"adversarial": 0.1} if name == "tchebycheff" else {}))
    with pytest.raises(SteelyardError, match=f"'{name}' has a discriminator, which several processes cannot"):
        inside(lambda method, job: method.start(job), method)
