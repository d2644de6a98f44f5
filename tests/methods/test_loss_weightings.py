"""Weightings that look at losses: their weights are the papers'."""

import math
import warnings

import pytest
import torch
from torch import nn

from steelyard import Rows, SteelyardError, Suite, Task, fit, methods, testing
from steelyard.functional import amortised_weights, average_weights, bandit_weights
from steelyard.methods._adam import adam_step
from steelyard.methods.gradnorm import last_layer
from steelyard.tasks import Ragged, Role

LEVELS = (0.5, 2.0, 8.0)


def flat(level):
    """A loss that is what it is, whatever the model says."""

    def loss(outputs, labels):
        return outputs.flatten(1).sum(1) * 0 + level, torch.ones(len(outputs))

    return loss


def flat_suite(kinds=("classification",) * 3, levels=LEVELS):
    """Tasks whose losses stay at their levels."""
    draw = torch.Generator().manual_seed(0)

    def task(number, kind, level):
        inputs = torch.randn(24, 5, generator=draw)
        labels = inputs[:, :1].clone() if kind == "regression" else torch.arange(24) % 2
        return Task(f"t{number}", kind, {"train": Rows(inputs, labels)}, outputs=2 if kind != "regression" else 1,
                    loss=flat(level))  # fmt: skip

    return Suite([task(i, *about) for i, about in enumerate(zip(kinds, levels, strict=True))], "t0")


def trained(method, data=None, encoder=None, **settings):
    settings = {"epochs": 1, "batch_size": 8, "device": "cpu", "progress": False, "log_every": 1} | settings
    torch.manual_seed(0)
    network = encoder or nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6))
    return fit(data or testing.suite(), network, method, **settings)


def weights_of(run):
    """Weights by step, ``[steps, T]``."""
    steps = {}
    for step, _, weight in run.weight_trace:
        steps.setdefault(step, []).append(weight)
    return torch.tensor([steps[step] for step in sorted(steps)])


def inside(check, method, data=None, **settings):
    """Runs a check of (method, job) in place of the second step of a run."""
    ran, step = [], method.step

    def checking(job):
        if job.step == 1:
            check(method, job)
            ran.append(True)
        else:
            step(job)

    method.step = checking
    settings = {"optimizer": "SGD", "learning_rate": 0.5} | settings
    trained(method, data, **settings)
    assert ran


@pytest.mark.parametrize("name", ["uncertainty", "imtl_l"])
def test_learned_scales_settle_where_the_papers_say(name):
    """1/(2L) for either kind of task, and 1/L; as shares of the mean over tasks. Weight decay would move them."""
    data = flat_suite(("regression", "classification", "classification"))
    run = trained(
        name, data, learning_rate=0.3, epochs=60, optimizer="SGD", optimizer_options={"weight_decay": 0.5}, keep="last"
    )
    expected = torch.tensor([1 / level / len(LEVELS) for level in LEVELS]) / (2 if name == "uncertainty" else 1)
    torch.testing.assert_close(weights_of(run)[-1], expected, rtol=1e-3, atol=0)


def test_a_task_without_labels_leaves_its_scale_alone():
    data = flat_suite(levels=(0.2, 0.0, 8.0))  # a loss of 0 is what an absent task has
    run = trained("uncertainty", data, learning_rate=0.3, optimizer="SGD", keep="last")
    values = run.model.get_submodule("method").values.detach()
    assert values[1] == 0
    assert (values[[0, 2]] != 0).all()


def test_a_run_with_scales_is_read_back(tmp_path):
    from steelyard.training.run import load

    run = fit(testing.suite(), "mlp", "uncertainty", epochs=1, progress=False, device="cpu", out=tmp_path / "run")
    again = load(tmp_path / "run")
    assert torch.equal(run.model.get_submodule("method").values, again.model.get_submodule("method").values)


def test_gradnorm_moves_w_along_its_own_loss_alone():
    """One step of w against autograd of Σ|G_t − target_t|, with the weighted losses' gradient nowhere in it."""

    def check(method, job):
        before, initial = method.state["importance"].clone(), method.state["initial"].clone()
        batch, layer = job.batch(), dict(job.model.named_parameters())["encoder.2.weight"]
        bias = dict(job.model.named_parameters())["encoder.2.bias"]
        losses, norms = job.losses(batch), []
        for loss in losses:
            found = torch.autograd.grad(loss, [layer, bias], retain_graph=True)
            norms.append(torch.cat([g.flatten() for g in found]).norm())
        w = before.clone().requires_grad_()
        lengths = w * torch.stack(norms).detach()
        ratios = losses.detach() / initial
        targets = (lengths.mean() * (ratios / ratios.mean()) ** 1.5).detach()
        (slope,) = torch.autograd.grad((lengths - targets).abs().sum() / lengths.mean().detach(), w)
        moved = (before - 0.1 * slope).clamp_min(0)
        type(method).step(method, job)
        torch.testing.assert_close(method.state["importance"], 3 * moved / moved.sum())
        assert abs(float(method.weights.sum()) - 1) < 1e-6

    inside(check, methods.get("gradnorm")(rate=0.1))


def test_gradnorm_evens_out_the_lengths():
    """With a model that stands still and no asymmetry all w_t·‖∇L_t‖ meet."""
    method = methods.get("gradnorm")(asymmetry=0.0, rate=0.01)
    data = testing.suite(rows=8)
    for number, task in enumerate(data.tasks.values()):
        plain = task.loss
        task.loss = lambda o, y, plain=plain, factor=3.0**number: (plain(o, y)[0] * factor, plain(o, y)[1])
    settings = {"learning_rate": 1e-12, "optimizer": "SGD", "epochs": 200, "steps_per_epoch": 1, "batch_size": 64}
    run = trained(method, data, keep="last", **settings)
    lengths = []

    def look(own, job):
        batch = job.batch()
        layer = list(job.model.encoder[2].parameters())
        rows = [torch.autograd.grad(loss, layer, retain_graph=True) for loss in job.losses(batch)]
        lengths.extend(torch.cat([g.flatten() for g in row]).norm() for row in rows)
        type(own).step(own, job)

    inside(look, methods.get("gradnorm")(), data, **(settings | {"epochs": 2}))
    products = weights_of(run)[-1] * torch.stack(lengths)
    assert products.max() / products.min() < 1.15, products


def test_the_last_shared_layer_is_found():
    def check(method, job):
        assert sorted(job.model.scope(last_layer(job))) == ["encoder.2.bias", "encoder.2.weight"]
        type(method).step(method, job)

    inside(check, methods.get("uniform")())


def text_suite(rows=16, words=50):
    draw = torch.Generator().manual_seed(3)

    def task(number):
        texts = [
            torch.randint(1, words, (int(n),), generator=draw) for n in torch.randint(3, 9, (rows,), generator=draw)
        ]
        return Task(
            f"t{number}", "classification", {"train": Rows(Ragged.of(texts), torch.arange(rows) % 2)}, outputs=2
        )

    return Suite([task(number) for number in range(2)], "t0", vocabulary=words)


def test_parallel_convolutions_are_one_layer_and_an_unread_pooler_is_none():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    found = {}

    class Looking(methods.Method):
        name = "looking"
        summary = "a test's"

        def step(self, job):
            found[type(job.model.encoder).__name__] = sorted(job.model.scope(last_layer(job)))
            super().step(job)

    settings = {"epochs": 1, "batch_size": 8, "steps_per_epoch": 1, "progress": False, "device": "cpu"}
    fit(text_suite(), "textcnn", Looking(), encoder_options={"size": 6, "channels": 4}, **settings)
    fit(text_suite(), transformers.BertModel(config), Looking(), **settings)
    assert len(found["TextCNN"]) == 6
    assert found["BertModel"] == [f"encoder.encoder.layer.1.output.dense.{kind}" for kind in ("bias", "weight")]


def test_bandit_answers_to_raw_losses_within_its_radius():
    method = methods.get("bandit")(eta=2.0, radius=0.2)
    weights = weights_of(trained(method, learning_rate=0.05, epochs=3))
    distances = torch.xlogy(weights, weights).sum(1) + math.log(3)
    assert (distances <= 0.2 + 1e-5).all()
    assert distances.max() > 0.01

    def check(own, job):
        before, losses = own.weights.clone(), job.losses(job.batch()).detach()
        type(own).step(own, job)
        torch.testing.assert_close(own.weights, bandit_weights(before, losses, 2.0, 0.2))

    inside(check, methods.get("bandit")(eta=2.0, radius=0.2))


def test_bandit_says_once_that_its_radius_never_binds():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(methods.get("bandit")(radius=2.0))
    assert [str(w.message) for w in caught if "radius" in str(w.message)] == [
        "method 'bandit': radius 2 never binds; over 3 tasks no weights are further than log T = 1.1 from even ones"
    ]


def test_dwa_follows_the_epochs_mean_losses():
    run = trained("dwa", flat_suite(), epochs=3, keep="last")
    torch.testing.assert_close(weights_of(run)[-1], torch.full((3,), 1 / 3))
    run = trained("dwa", epochs=4, learning_rate=0.5, optimizer="SGD", keep="last")
    losses = torch.tensor([[line["tasks"][f"task{t}"]["train_loss"] for t in range(3)] for line in run.history])
    expected = average_weights(losses[2], losses[1], 2.0)
    torch.testing.assert_close(weights_of(run)[-1], expected, rtol=1e-5, atol=1e-6)
    assert expected.std() > 1e-3


def test_famo_steps_along_the_logarithms_and_answers_to_how_they_fell():
    def check(method, job):
        method.state = {"logits": torch.tensor([0.5, -0.2, 0.1])}  # no moments yet
        logits, batch, start = method.state["logits"].clone(), job.batch(), job.snapshot()
        losses = job.losses(batch)
        (losses.log() @ logits.softmax(0)).backward()
        wanted = {name: p.grad.clone() for name, p in job.model.named_parameters()}
        job.model.zero_grad()
        type(method).step(method, job)
        after = job.measure(batch)
        for name, p in job.model.named_parameters():
            moved = (start[name] - p.detach()) / 0.5
            length = (logits.softmax(0) / losses.detach()).sum()
            torch.testing.assert_close(moved * length, wanted[name], rtol=1e-3, atol=1e-5)
        leaf = logits.clone().requires_grad_()
        gains = losses.detach().log() - after.log()
        (slope,) = torch.autograd.grad((leaf.softmax(0) * gains).sum(), leaf)
        assert torch.equal((method.state["logits"] - logits).sign(), -(slope + 0.001 * logits).sign())
        torch.testing.assert_close(method.weights, amortised_weights(logits, losses.detach()))

    inside(check, methods.get("famo")())


def test_adam_step_is_torchs():
    state, value = {"w": torch.tensor([1.0, -2.0])}, torch.tensor([1.0, -2.0], requires_grad=True)
    optimizer = torch.optim.Adam([value], lr=0.1, eps=1e-30, weight_decay=0.01)
    for gradient in (torch.tensor([1.0, 3.0]), torch.tensor([-2.0, 0.5])):
        adam_step(state, "w", gradient, 0.1, decay=0.01)
        value.grad = gradient
        optimizer.step()
    assert torch.equal(state["w"], value.detach())


def test_autolambda_follows_the_derivative_of_the_targets_held_out_loss():
    """Adam's first step goes against the sign of ∂L_0/∂λ, taken by differences through the training step."""

    def check(method, job):
        batch, start = job.batch(), job.snapshot()
        held_out = job.draw(Role.DEV_META, 6, ("task0",))
        slopes = []
        for t in range(3):
            ends = []
            for sign in (1, -1):
                job.restore(start)
                weights = torch.ones(3)
                weights[t] += sign * 0.2
                job.descend(batch, weights / 3)
                with job.probe(held_out, "all", ("task0",)) as probe:
                    ends.append(float(probe.losses[0].detach()))
            slopes.append(ends[0] - ends[1])
        job.restore(start)
        job.draw = lambda *_: held_out
        method.state = {"importance": torch.ones(3), "weights": torch.full((3,), 1 / 3)}
        type(method).step(method, job)
        raw = 1 - 0.001 * torch.tensor(slopes).sign()
        torch.testing.assert_close(method.state["importance"], 3 * raw / raw.sum())
        assert min(map(abs, slopes)) > 1e-5

    inside(check, methods.get("autolambda")(), learning_rate=0.3)


def test_random_is_found_as_rlw():
    assert methods.get("rlw") is methods.get("random")
    assert methods.build({"weights": "rlw", "gradients": "mgda"}).name == "random+mgda"


@pytest.mark.parametrize("name", ["uncertainty", "imtl_l", "gradnorm", "bandit", "tchebycheff", "famo", "autolambda"])
def test_tasks_have_to_meet(name):
    with pytest.raises(SteelyardError, match=f"'{name}'.*batching = 'all_tasks'"):
        trained(name, batching="one_task")


def test_losses_are_measured_without_a_trace():
    def check(method, job):
        batch, random = job.batch(), torch.get_rng_state()
        buffers = {name: value.clone() for name, value in job.model.named_buffers()}
        first, second = job.measure(batch), job.measure(batch)
        assert torch.equal(first, second)
        assert not first.requires_grad
        assert torch.equal(random, torch.get_rng_state())
        assert all(torch.equal(value, buffers[name]) for name, value in job.model.named_buffers())
        torch.testing.assert_close(first, job.losses(batch).detach())  # dropout and batch statistics as in training
        type(method).step(method, job)

    inside(check, methods.get("uniform")(), encoder=testing.encoder())
