"""The loop: what a step is, what an epoch chooses, and what a run leaves."""

import copy
import json
import math

import pytest
import torch
from torch import nn

from steelyard import Rows, SharedModel, SteelyardError, Suite, Task, fit, load, methods, testing
from steelyard.methods import Method
from steelyard.tasks import IGNORE, Role, carve
from steelyard.training.job import NonFiniteLossError


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh())


def run(data=None, method="uniform", encoder=None, **settings):
    settings = {"epochs": 2, "batch_size": 8, "seed": 1, "learning_rate": 0.05, "progress": False} | settings
    return fit(data or testing.suite(), encoder or network(), method, **settings)


def parameters(found):
    return torch.cat([p.detach().flatten() for p in found.model.parameters()])


def test_one_step_is_the_hand_written_weighted_step():
    data = testing.suite()
    trained = SharedModel(network(), data)
    by_hand = copy.deepcopy(trained)
    run(data, "joint", trained, epochs=1, steps_per_epoch=1, batch_size=100, optimizer="SGD", keep="last")
    sizes = data.sizes()
    loss = torch.zeros(())
    for name, task in data.tasks.items():
        rows = task.rows["train"]
        outputs = by_hand.head(name)(by_hand.encoder(rows.inputs))
        loss = loss + sizes[name] / sum(sizes.values()) * nn.functional.cross_entropy(outputs, rows.labels)
    loss.backward()
    for (name, parameter), after in zip(by_hand.named_parameters(), trained.parameters(), strict=True):
        assert torch.allclose(parameter - 0.05 * parameter.grad, after, atol=1e-6), name


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("accumulate", [2, 3])
def test_accumulated_gradients_are_those_of_the_whole_batch(accumulate, missing):
    data = testing.suite(missing=missing)
    common = {"optimizer": "SGD", "keep": "last", "epochs": 1}
    whole = run(data, batch_size=6 * accumulate, **common)
    pieces = run(data, batch_size=6, accumulate=accumulate, **common)
    assert whole.summary["steps"] == pieces.summary["steps"]
    assert torch.allclose(parameters(whole), parameters(pieces), atol=1e-6)


class ByLoss(Method):
    """Weights that follow the losses."""

    name = "by_loss"
    summary = "a test's"

    def step(self, job):
        job.descend(job.batch(), lambda losses: losses / losses.sum())


class ByObjective(Method):
    name = "by_objective"
    summary = "a test's"

    def step(self, job):
        job.minimise(job.batch(), lambda losses: losses.square().sum(), self.weights)


@pytest.mark.parametrize("method", [ByLoss, ByObjective])
def test_weights_from_losses_see_the_whole_batch_too(method):
    data = testing.suite(missing=True)
    common = {"optimizer": "SGD", "keep": "last", "epochs": 1}
    whole = run(data, method(), batch_size=12, **common)
    pieces = run(data, method(), batch_size=6, accumulate=2, **common)
    assert torch.allclose(parameters(whole), parameters(pieces), atol=1e-6)


def test_doubling_a_weight_doubles_its_share_of_an_sgd_step():
    """The scale test, on the realised update: linear for SGD."""

    def update(weights):
        class Fixed(Method):
            name = "fixed"
            summary = "a test's"
            range = "nonnegative"

            def start(self, job):
                self.weights = torch.tensor(weights)

        data = testing.suite()
        model = copy.deepcopy(start)
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        after = run(data, Fixed(), model, epochs=1, steps_per_epoch=1, optimizer="SGD", keep="last")
        return parameters(after) - before

    start = SharedModel(network(), testing.suite())
    once, twice = (update([w, 0.0, 0.0]) for w in (1.0, 2.0))
    assert once.norm() > 0
    assert torch.allclose(twice, 2 * once, atol=1e-6)


def test_paradigms():
    joint = run(method=methods.get("ramp")(growth=0.0), paradigm="joint", epochs=1)
    assert joint.weights == pytest.approx({"task0": 24 / 96, "task1": 32 / 96, "task2": 40 / 96})
    equal = run(method=methods.get("ramp")(growth=0.0), paradigm="normalised_joint", epochs=1)
    assert equal.weights == pytest.approx(dict.fromkeys(("task0", "task1", "task2"), 1 / 3))
    single = run(method="single")
    assert single.summary["paradigm"] == "single"
    assert set(single.history[0]["tasks"]) == {"task0"}
    assert single.summary["steps"] == 2 * 3
    matched = run(method=methods.get("single")(matched=True))
    assert matched.summary["steps"] == run().summary["steps"]
    both = run(paradigm="pretrain", finetune_epochs=3)
    assert [line["phase"] for line in both.history] == ["pretrain"] * 2 + ["finetune"] * 3
    assert set(both.history[0]["tasks"]) == {"task1", "task2"}
    assert set(both.weights) == {"task1", "task2"}


def test_fine_tuning_begins_with_a_fresh_head_whatever_the_method_did_to_look():
    """TAWT fits the target's head at each probe of pre-training: no method is to have a start by that."""
    still = methods.get("tawt")(eta=1e-30, strength=0.0, floor=0.0)
    assert torch.equal(parameters(run(method=still, paradigm="pretrain")), parameters(run(paradigm="pretrain")))


def test_single_does_not_look_at_the_sources():
    data, other = testing.suite(), testing.suite()
    other["task1"].rows["train"].inputs.mul_(100)
    assert torch.equal(parameters(run(data, "single")), parameters(run(other, "single")))
    assert not torch.equal(parameters(run(data)), parameters(run(other)))


def best_of(metrics, losses):
    """The epoch with the best metric, from 1; among equals the lowest loss, and then the first."""
    return 1 + max(range(len(metrics)), key=lambda e: (metrics[e], -losses[e], -e))


def test_the_best_epoch_is_chosen_on_dev_select_alone():
    found = run(epochs=12, learning_rate=0.2)
    target = [line["tasks"]["task0"] for line in found.history]
    values, losses = ([each[f"dev_{key}"] for each in target] for key in ("accuracy", "loss"))
    best = best_of(values, losses)
    assert best != 1 + values.index(max(values)), "the data show no tie, and so not how one is broken"
    assert best != len(values), "the last epoch is the best one"
    assert found.summary["best_epoch"] == best
    assert found.metrics["dev_select"]["accuracy"] == pytest.approx(max(values))
    last = run(epochs=12, learning_rate=0.2, keep="last")
    assert last.metrics["dev_select"]["accuracy"] == pytest.approx(values[-1])
    assert torch.equal(parameters(run(epochs=best, learning_rate=0.2)), parameters(found))


def test_where_the_metric_cannot_be_computed_the_dev_loss_chooses():
    """AUROC of dev rows of one class is not a number; a run that waited for a better one would keep nothing."""
    data = testing.suite()
    data["task0"].metric = "auroc"
    data["task0"].rows["dev_select"].labels.fill_(1)
    found = run(data, epochs=12, learning_rate=0.2)
    losses = [line["tasks"]["task0"]["dev_loss"] for line in found.history]
    assert found.summary["best_epoch"] == 1 + losses.index(min(losses))
    assert math.isnan(found.metrics["dev_select"]["auroc"])


def test_test_rows_choose_nothing():
    data = testing.suite()
    before = run(data, epochs=4)
    for task in data.tasks.values():
        task.rows["test"] = Rows(torch.randn(9, 5), torch.randint(0, 2, (9,)))
    after = run(data, epochs=4)
    assert after.metrics["test"]
    assert torch.equal(parameters(before), parameters(after))


def test_patience_stops_early():
    found = run(epochs=60, patience=2, learning_rate=0.2)
    assert len(found.history) == found.summary["best_epoch"] + 2 < 60


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "RMSprop", "Adagrad", "NAdam"])
def test_any_optimiser(optimizer):
    assert math.isfinite(run(optimizer=optimizer, learning_rate=0.01).metrics["dev_select"]["loss"])


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "linear"},
        {"schedule": "cosine", "warmup": 0.2},
        {"schedule": "StepLR", "schedule_options": {"step_size": 3}},
        {"schedule": "ExponentialLR", "schedule_options": {"gamma": 0.9}, "warmup": 0.3},
    ],
)
def test_schedules_change_the_rate_on_time(settings):
    rates = []

    class Watch(Method):
        name = "watch"
        summary = "a test's"

        def step(self, job):
            rates.append(job.rate)
            super().step(job)

    run(method=Watch(), optimizer="SGD", learning_rate=1.0, steps_per_epoch=5, **settings)
    expected = {
        "linear": [1 - s / 10 for s in range(10)],
        "cosine": [1 / 3, 2 / 3, *(0.5 * (1 + math.cos(math.pi * s / 8)) for s in range(8))],
        "StepLR": [1.0] * 3 + [0.1] * 3 + [0.01] * 3 + [0.001],
        "ExponentialLR": [0.25, 0.5, 0.75, *(0.9**s for s in range(7))],
    }[settings["schedule"]]
    assert rates == pytest.approx(expected)


def test_clipping_bounds_the_update():
    data = testing.suite()
    start = SharedModel(network(), data)
    settings = {"optimizer": "SGD", "learning_rate": 1.0, "epochs": 1, "steps_per_epoch": 1, "keep": "last"}
    clipped = run(data, encoder=copy.deepcopy(start), clip=1e-3, **settings)
    free = run(data, encoder=copy.deepcopy(start), **settings)
    before = torch.cat([p.detach().flatten() for p in start.parameters()])
    short, long = parameters(clipped) - before, parameters(free) - before
    assert short.norm().item() == pytest.approx(1e-3, rel=1e-3)
    assert torch.allclose(short / short.norm(), long / long.norm(), atol=1e-3)


def test_mixed_precision_trains():
    found = run(precision="bf16", epochs=3)
    assert all(p.dtype is torch.float32 for p in found.model.parameters())
    assert math.isfinite(found.metrics["dev_select"]["loss"])
    assert run(epochs=1).metrics


def test_parameters_that_overflow_in_the_last_step_are_refused():
    """No later loss would show it: there is none, and no dev rows."""
    data = testing.suite()
    for task in data.tasks.values():
        del task.rows["dev_select"]

    class Heavy(Method):
        name = "heavy"
        summary = "a test's"
        range = "nonnegative"

        def start(self, job):
            self.weights = torch.full((3,), 1e4)

    with pytest.raises(NonFiniteLossError, match=r"task 'task\d'.*not finite numbers any more after step 1"):
        run(data, Heavy(), epochs=1, steps_per_epoch=1, optimizer="SGD", learning_rate=1e38)


def test_trackers_by_name(tmp_path):
    run(out=tmp_path / "run", trackers=["tensorboard"])
    assert list((tmp_path / "run").rglob("events.out.tfevents*"))


def test_a_run_reads_back(tmp_path):
    data = testing.suite()
    found = run(data, "ramp", "mlp", out=tmp_path / "run")
    back = load(tmp_path / "run")
    inputs = data["task0"].rows["dev_select"].inputs
    assert torch.equal(back.outputs(inputs), found.outputs(inputs))
    assert torch.equal(back.predict(inputs), found.outputs(inputs).argmax(1))
    assert back.summary == found.summary
    assert back.weight_trace == found.weight_trace
    assert json.loads((tmp_path / "run/summary.json").read_text())["seed"] == 1


def test_fit_leaves_the_callers_randomness_alone():
    encoder = network()
    torch.manual_seed(7)
    expected = torch.randn(3)
    torch.manual_seed(7)
    run(encoder=encoder)
    assert torch.equal(torch.randn(3), expected)


def test_a_suite_without_target_trains_all_tasks_and_judges_by_their_mean():
    data = testing.suite()
    data.target = None
    found = run(data, epochs=4)
    values, losses = (
        [sum(t[f"dev_{key}"] for t in line["tasks"].values()) / 3 for line in found.history]
        for key in ("accuracy", "loss")
    )
    assert found.summary["best_epoch"] == best_of(values, losses)
    with pytest.raises(SteelyardError, match="needs a target"):
        run(data, "single")
    with pytest.raises(SteelyardError, match="which task"):
        found.predict(data["task0"].rows["train"].inputs)


def test_tasks_with_their_own_shapes_of_rows_share_an_encoder():
    class Pooling(nn.Module):
        width = 4

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 4)

        def forward(self, inputs):
            return self.layer(inputs.mean(1, keepdim=True))

    tasks = [
        Task(
            f"t{n}",
            "regression",
            {"train": Rows(torch.randn(12, n), torch.randn(12)), "test": Rows(torch.randn(5, n), torch.randn(5))},
        )
        for n in (2, 3)
    ]
    assert math.isfinite(run(Suite(tasks, "t2"), encoder=Pooling()).metrics["test"]["rmse"])


def test_rows_that_lack_a_tasks_label_do_not_train_its_head():
    inputs, labels = torch.randn(16, 5), torch.arange(16) % 2
    some = labels.clone()
    some[8:] = IGNORE
    layers = [Task(name, "classification", {"train": Rows(inputs, y)}) for name, y in (("a", labels), ("b", some))]
    data = Suite(layers)
    start = SharedModel(network(), data)
    trained = copy.deepcopy(start)
    run(data, encoder=trained, epochs=1, steps_per_epoch=1, batch_size=16, optimizer="SGD", keep="last")
    outputs = start.head("b")(start.encoder(inputs[:8]))
    nn.functional.cross_entropy(outputs, labels[:8]).div(2).backward()
    bias = start.head("b").bias
    assert torch.allclose(bias - 0.05 * bias.grad, trained.head("b").bias, atol=1e-6)


def test_a_methods_own_modules_are_trained_kept_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(methods, "_REGISTRY", dict(methods._REGISTRY))

    @methods.register
    class Owning(Method):
        name = "owning"
        summary = "a test's"

        def prepare(self, suite, seed):
            return carve(suite, Role.QUERY, Role.TRAIN, 0.5, seed)

        def adapt(self, model):
            model.add_module("method", nn.ParameterDict({"u": torch.zeros(3)}))

        def step(self, job):
            assert Role.QUERY in job.suite["task1"].rows
            own = job.model.method["u"]
            job.minimise(job.batch(), lambda losses: (losses * (-own).exp() + own).sum(), self.weights)

    found = run(None, "owning", "mlp", out=tmp_path / "run", optimizer_options={"weight_decay": 0.5})
    assert found.model.method["u"].abs().min() > 0
    back = load(tmp_path / "run")
    assert torch.equal(back.model.method["u"], found.model.method["u"])
