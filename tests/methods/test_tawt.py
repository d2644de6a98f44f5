"""TAWT: what its weights do, in every paradigm and with every share."""

import copy

import pytest
import torch
from torch import nn

from steelyard import Rows, SharedModel, SteelyardError, Suite, Task, fit, methods, testing
from steelyard.methods import get
from steelyard.methods.tawt.signals import signals
from steelyard.tasks import Role

TAWT = get("tawt")


def train(data=None, paradigm="normalised_joint", settings=None, **options):
    return testing.train(lambda: TAWT(**options), data, log_every=1, **({"paradigm": paradigm} | (settings or {})))


def equal_sizes(tasks=3, rows=24):
    data = testing.suite(tasks, rows)
    for task in data.tasks.values():
        task.rows[Role.TRAIN] = task.rows[Role.TRAIN].select(torch.arange(rows))
    return data


def assert_same(first, second):
    for (name, a), b in zip(first.model.state_dict().items(), second.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def inside(check, data=None, paradigm="normalised_joint", options=None, **settings):
    """Runs a check of (method, job) before the second step of a run."""
    ran = []

    class Checking(TAWT):
        name = "checking"

        def step(self, job):
            if job.step == 1:
                check(self, job)
                ran.append(True)
            super().step(job)

    testing.train(lambda: Checking(**(options or {})), data, epochs=1, **({"paradigm": paradigm} | settings))
    assert ran


def twins():
    """A target, a source that is the same task, and one that says the opposite, with equal heads and slow training."""
    generator = torch.Generator().manual_seed(2)

    def rows(sign):
        inputs = torch.randn(64, 5, generator=generator)
        return Rows(inputs, ((sign * inputs[:, 0]) > 0).long())

    tasks = [Task(name, "classification", {"train": rows(sign)}, outputs=2) for name, sign in
             (("target", 1), ("same", 1), ("opposite", -1))]  # fmt: skip
    data = Suite(tasks, "target")
    torch.manual_seed(0)
    model = SharedModel(nn.Sequential(nn.Linear(5, 8), nn.Tanh()), data)
    for name in ("same", "opposite"):
        model.head(name).load_state_dict(model.head("target").state_dict())
    return data, model


@pytest.mark.parametrize("signal", ["cosine", "dot", "hypergradient"])
@pytest.mark.parametrize("evidence", ["latest", "accumulated"])
@pytest.mark.parametrize("share", ["constant", "paper"])
def test_a_source_that_agrees_with_the_target_gains_weight(signal, evidence, share):
    data, model = twins()
    method = TAWT(signal=signal, evidence=evidence, share=share)
    run = fit(data, model, method, epochs=3, learning_rate=1e-6, progress=False, device="cpu", seed=0)
    assert run.weights["same"] > run.weights["opposite"]
    if evidence == "accumulated":
        assert run.weights["same"] > 3 * run.weights["opposite"]


@pytest.mark.parametrize("share", ["constant", "ramp", "learned", "paper", 0.25])
@pytest.mark.parametrize("paradigm", ["joint", "normalised_joint", "pretrain", "single"])
def test_weights_are_a_distribution_in_every_paradigm_with_every_share(paradigm, share):
    run = train(paradigm=paradigm, share=share, evidence="latest", c=3.0)
    for step in {s for s, _, _ in run.weight_trace}:
        own = [w for s, _, w in run.weight_trace if s == step]
        assert min(own) > 0
        assert sum(own) == pytest.approx(1, abs=1e-5)
    if paradigm.endswith("joint") and share == 0.25:
        assert run.weights["task0"] == pytest.approx(0.25)


def test_the_share_stays_or_ramps_whatever_the_sources_do():
    by_share = {share: train(share=share, evidence="latest", c=5.0) for share in ("constant", "ramp")}
    assert by_share["constant"].weights["task0"] == pytest.approx(1 / 3, abs=1e-6)
    assert by_share["constant"].weights["task1"] != pytest.approx(by_share["constant"].weights["task2"], abs=1e-4)
    # Two epochs have passed before the last one: odds of 1/2 times e².
    odds = 0.5 * torch.tensor(2.0).exp()
    assert by_share["ramp"].weights["task0"] == pytest.approx(float(odds / (1 + odds)), abs=1e-5)


def test_a_learned_share_rises_where_sources_are_noise():
    data, model = twins()
    del data.tasks["same"]
    held = Rows(torch.randn(200, 5, generator=torch.Generator().manual_seed(5)), torch.zeros(200, dtype=torch.long))
    data["target"].rows[Role.DEV_META] = Rows(held.inputs, (held.inputs[:, 0] > 0).long())
    data = Suite(data.tasks.values(), "target")
    fresh = SharedModel(model.encoder, data)
    fresh.head("opposite").load_state_dict(fresh.head("target").state_dict())
    run = fit(data, fresh, TAWT(share="learned"), epochs=4, learning_rate=1e-6, progress=False, device="cpu")
    assert run.weights["target"] > 0.8


def test_published_form_compares_the_target_with_itself():
    """Its signal is then −c whatever the data say, and the target's weight grows by exp(η·c) against cosine zero."""

    def check(method, job):
        itself = signals(job, {"task0": 1.0}, job.tasks, method.options, method.weights)
        assert float(itself[0]) == pytest.approx(-2, abs=1e-5)
        honest = TAWT(c=2.0, share="paper").options
        apart = signals(job, {"task0": 1.0}, job.tasks, honest, method.weights)
        assert float(apart[0]) > -1.9

    inside(check, options={"as_published": True, "c": 2.0})
    flat = testing.suite()
    for name in ("task1", "task2"):
        flat[name].loss = lambda outputs, labels: (outputs.sum(1) * 0 + 1, torch.ones(len(labels)))
    run = train(flat, as_published=True)
    weights = {name: [w for s, n, w in run.weight_trace if n == name] for name in flat.tasks}
    steps = run.summary["steps"] // len(run.history)
    ratio = [weights["task0"][e * steps] / weights["task1"][e * steps] for e in range(3)]
    assert ratio[1] / ratio[0] == pytest.approx(2.71828, rel=1e-4)
    assert ratio[2] / ratio[1] == pytest.approx(2.71828, rel=1e-4)


def test_target_batches_are_disjoint_and_one_row_is_both():
    from steelyard.methods.tawt.signals import target_batches

    def check(method, job):
        first, second = target_batches(job, {"task0": 1.0}, TAWT(probe_size=10).options, paired=True)
        a, b = (batch["task0"].parts[0].members[0] for batch in (first, second))
        assert len(a.labels) == len(b.labels) == 10
        assert not set(a.index.tolist()) & set(b.index.tolist())
        rows = job.suite["task0"].rows[Role.TRAIN]
        assert torch.equal(second["task0"].parts[0].inputs, rows.inputs[b.index])
        assert torch.equal(b.labels, rows.labels[b.index])

    inside(check)


def test_no_overflow_at_c_100_and_the_floor_holds():
    run = train(c=100.0, evidence="latest", share="paper", floor=0.0, settings={"epochs": 6})
    assert all(0 <= w <= 1 for _, _, w in run.weight_trace)
    floored = train(c=100.0, evidence="latest", floor=0.3, settings={"epochs": 6})
    least = min(w for _, name, w in floored.weight_trace if name != "task0")
    assert least == pytest.approx(0.3 / 2 * 2 / 3, abs=1e-6)


def test_normalised_joint_equals_joint_where_sizes_are_equal():
    runs = [train(equal_sizes(), paradigm=p, evidence="latest") for p in ("joint", "normalised_joint")]
    assert runs[0].weights == runs[1].weights
    assert_same(*runs)
    unequal = [train(paradigm=p, evidence="latest") for p in ("joint", "normalised_joint")]
    assert unequal[0].weights != unequal[1].weights


@pytest.mark.parametrize("options", [{}, {"signal": "hypergradient"}, {"probe_every": 1}, {"level": "example"}])
def test_probes_leave_no_trace(options):
    """With weights that cannot move, a run ends bitwise as uniform training: randomness, buffers, moments."""
    still = {"eta": 1e-30, "strength": 0.0, "floor": 0.0, **options}
    data = [equal_sizes(tasks=2), equal_sizes(tasks=2)]
    tawt = train(data[0], **still)
    assert_same(tawt, testing.train(methods.get("uniform"), data[1], log_every=1))


def test_pretraining_fits_the_targets_head_with_everything_else_still():
    def check(method, job):
        assert job.tasks == ("task1", "task2")
        before, optimiser = job.snapshot(), copy.deepcopy(job.optimisation.state_dict())
        loss = float(job.loss_on(Role.TRAIN, "task0"))
        state = torch.get_rng_state()
        with method._fitted_heads(job):
            pass
        assert torch.equal(torch.get_rng_state(), state)
        assert float(job.loss_on(Role.TRAIN, "task0")) < loss - 0.02
        moved = {name for name, value in job.snapshot().items() if not torch.equal(value, before[name])}
        assert moved == {"heads.task0.weight", "heads.task0.bias"}
        assert all(p.grad is None for p in job.model.head("task0").parameters())
        after = job.optimisation.state_dict()
        assert str(after) == str(optimiser)

    inside(check, paradigm="pretrain")


def test_pretraining_learns_the_sources_weights_and_fine_tunes_the_target():
    run = train(paradigm="pretrain", evidence="latest", c=10.0)
    assert set(run.weights) == {"task1", "task2"}
    assert run.weights["task1"] != pytest.approx(0.5, abs=1e-3)
    assert run.history[-1]["phase"] == "finetune"
    assert run.history[-1]["weights"] == {"task0": 1.0}


def test_several_targets_share_their_part_of_the_weights():
    run = train(targets={"task0": 3.0, "task2": 1.0}, share=0.5)
    assert run.weights == pytest.approx({"task0": 0.375, "task2": 0.125, "task1": 0.5}, abs=1e-6)


def test_the_gradient_of_a_mixed_target_is_the_mixture_of_gradients():
    from steelyard.methods.tawt.signals import target_gradient

    def check(method, job):
        batches = {name: job.draw(Role.TRAIN, 9, (name,)) for name in ("task0", "task2")}
        mixed = target_gradient(job, batches, {"task0": 0.75, "task2": 0.25}, "shared")
        alone = [target_gradient(job, {n: b}, {n: 1.0}, "shared") for n, b in batches.items()]
        for name, value in mixed.items():
            assert torch.allclose(value, 0.75 * alone[0][name] + 0.25 * alone[1][name], atol=1e-7), name

    inside(check)


def test_given_weights_stay_and_cost_no_probe():
    run = train(weights={"task0": 2.0, "task1": 1.0, "task2": 1.0})
    assert {w for _, name, w in run.weight_trace if name == "task0"} == {0.5}
    still = train(equal_sizes(tasks=2), weights={"task0": 1, "task1": 1})
    assert_same(still, testing.train(methods.get("uniform"), equal_sizes(tasks=2), log_every=1))


def test_updates_every_so_many_steps():
    run = train(update_every=2, evidence="latest", settings={"epochs": 1})
    trace = [w for _, name, w in run.weight_trace if name == "task1"]
    changed = [i for i in range(1, len(trace)) if trace[i] != trace[i - 1]]
    assert changed == list(range(2, len(trace), 2))


def test_dev_meta_is_carved_from_the_target_when_asked():
    data = testing.suite()
    for task in data.tasks.values():
        del task.rows[Role.DEV_META]
    for source, rest in (("dev_select", 6), ("train", 12)):
        run = train(data, role="dev_meta", dev_from=source)
        target = run.suite["task0"]
        assert target.size(Role(source)) == rest
        assert target.size(Role.DEV_META) == rest
        assert Role.DEV_META not in run.suite["task1"].rows
    assert Role.DEV_META not in train(data).suite["task0"].rows


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_heavier_source_moves_the_model_further_its_way(optimizer):
    """The realised update answers to the weight: in proportion under SGD, in direction under AdamW."""

    def update(weight):
        data = testing.suite()
        torch.manual_seed(4)
        model = SharedModel(nn.Sequential(nn.Linear(5, 8), nn.Tanh()), data)
        before = torch.cat([p.detach().flatten() for p in model.encoder.parameters()])
        rows = data["task1"].rows[Role.TRAIN]
        loss = nn.functional.cross_entropy(model.head("task1")(model.encoder(rows.inputs)), rows.labels)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.encoder.parameters()))])
        given = {"task0": 1.0, "task1": weight, "task2": 1.0}
        rate = 1.0 if optimizer == "SGD" else 1e-3
        settings = {"optimizer": optimizer, "learning_rate": rate, "batch_size": 64, "steps_per_epoch": 1, "epochs": 1}
        fit(data, model, TAWT(weights=given), keep="last", progress=False, device="cpu", **settings)
        moved = torch.cat([p.detach().flatten() for p in model.encoder.parameters()]) - before
        return moved * (2 + weight), gradient

    light, gradient = update(1.0)
    heavy, _ = update(2.0)
    if optimizer == "SGD":
        assert torch.allclose(heavy - light, -gradient, atol=1e-5)
    else:
        assert torch.cosine_similarity(heavy, -gradient, 0) > torch.cosine_similarity(light, -gradient, 0) + 0.01


@pytest.mark.parametrize(("options", "words"), [
    ({"targets": {"task9": 1.0}}, "no task 'task9'"),
    ({"weights": {"taks1": 1.0}}, "did you mean 'task1'"),
    ({"weights": {"task0": 0.0}}, "nothing for"),
    ({"share": "paper", "level": "example"}, "one weight per task"),
    ({"groups": {"task1": [0]}}, "level = 'group'"),
    ({"level": "group", "groups": {"task1": [0]}}, "1 for 32 training rows"),
    ({"share": 1.5}, "share"),
    ({"sgnal": "dot"}, "did you mean 'signal'"),
])  # fmt: skip
def test_wrong_options_are_refused_in_words(options, words):
    with pytest.raises(SteelyardError, match=words):
        train(**options)


def test_dev_meta_without_rows_to_carve_is_refused():
    data = testing.suite()
    del data["task0"].rows[Role.DEV_META], data["task0"].rows[Role.DEV_SELECT]
    with pytest.raises(SteelyardError, match="dev_meta rows of 'task0'"):
        train(data, role="dev_meta")
