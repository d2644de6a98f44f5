"""αVIL: every task alone from one start, and the mixture of their updates."""

import pytest
import torch
from torch import nn

from steelyard import Rows, SharedModel, SteelyardError, Suite, Task, fit, testing
from steelyard.methods import get
from steelyard.methods._turns import Round, randomness, under
from steelyard.methods.alphavil.mixing import place, slopes, tune
from steelyard.tasks import Role

AlphaVIL = get("alphavil")


class Watched(AlphaVIL):
    """Notes what each turn begins with and leaves, and the deltas before each merge."""

    name = "watched"
    initial = None

    def start(self, job):
        super().start(job)
        self.seen, self.deltas, self.rows, self.merged = [], [], [], []
        if self.initial is not None:
            self.state["importance"] = torch.tensor(self.initial, dtype=torch.float64)
            self._share(job)

    def _train(self, job, turn):
        minimise = job.minimise

        def watching(batch, *arguments, **options):
            if turn.first:
                self.seen.append((turn.task, job.snapshot(), randomness()["cpu"], job.moments()))
            self.rows.append((turn.task, batch.parts[0].members[0].index))
            result = minimise(batch, *arguments, **options)
            if turn.last:
                self.seen[-1] += (job.moments(),)
            return result

        job.minimise = watching
        super()._train(job, turn)
        job.minimise = minimise

    def _merge(self, job):
        self.deltas.append([under(self.state, f"delta.{task}.") for task in range(len(job.tasks))])
        super()._merge(job)
        self.merged.append(job.snapshot())


def plain_model(data, seed=4):
    torch.manual_seed(seed)
    return SharedModel(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6)), data)


def run(method, data=None, model=None, **settings):
    data = data or testing.suite()
    defaults = {"batch_size": 8, "epochs": 1, "keep": "last", "learning_rate": 0.05, "device": "cpu", "seed": 1}
    return fit(data, model or plain_model(data), method, progress=False, training=defaults | settings)


def watched(initial=None, data=None, model=None, settings=None, **options):
    method = Watched(**options)
    method.initial = initial
    return method, run(method, data, model, **(settings or {}))


def length(delta):
    return float(torch.cat([value.flatten().double() for value in delta.values()]).norm())


def assert_same(first, second, **tolerance):
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], msg=name, **tolerance)


@pytest.mark.parametrize(("optimizer", "acts_on"), [("Adam", "delta"), ("AdamW", "delta"), ("SGD", "delta"),
                                                    ("Adam", "rate"), ("SGD", "rate"), ("SGD", "loss")])  # fmt: skip
def test_the_update_is_in_proportion_to_the_weight(optimizer, acts_on):
    """One step per task; a weight that is 0.01 of another moves the model 0.01 as far."""
    settings = {"optimizer": optimizer, "steps_per_epoch": 1, "optimizer_options": {"weight_decay": 0.0}}
    found = {}
    for light in (1.0, 0.01):
        method, _ = watched([1.0, light, 1.0], settings=settings, steps=0, ratio=1, acts_on=acts_on)
        found[light] = [length(delta) * (2 + light) for delta in method.deltas[0]]
    assert found[0.01][1] == pytest.approx(0.01 * found[1.0][1], rel=1e-3)
    assert found[0.01][0] == pytest.approx(found[1.0][0], rel=1e-3)


def test_over_many_adam_steps_the_delta_answers_to_the_weight_and_the_loss_does_not():
    found = {}
    for acts_on in ("delta", "loss"):
        for light in (1.0, 0.01):
            settings = {"optimizer": "Adam", "steps_per_epoch": 10}
            method, _ = watched([1.0, light, 1.0], settings=settings, steps=0, ratio=1, acts_on=acts_on)
            found[acts_on, light] = length(method.deltas[0][1])
    assert found["delta", 0.01] / found["delta", 1.0] == pytest.approx(0.01 * 3 / 2.01, rel=1e-4)
    assert found["loss", 0.01] > 0.8 * found["loss", 1.0]


@pytest.mark.parametrize("acts_on", ["delta", "loss", "rate"])
def test_one_sgd_step_each_merges_to_one_joint_weighted_step(acts_on):
    weights = [3.0, 1.0, 0.5]
    given = dict(zip(("task0", "task1", "task2"), weights, strict=True))
    settings = {"optimizer": "SGD", "steps_per_epoch": 1, "learning_rate": 0.5}
    method, mixed = watched(weights, settings=settings, steps=0, ratio=1, acts_on=acts_on)
    joint = run(get("tawt")(weights=given), **settings)
    assert_same(mixed.model.state_dict(), joint.model.state_dict(), atol=1e-6, rtol=1e-5)
    before = plain_model(testing.suite()).state_dict()
    assert not torch.allclose(before["encoder.0.weight"], joint.model.state_dict()["encoder.0.weight"], atol=1e-3)
    assert method.state["importance"].tolist() == weights


@pytest.mark.parametrize("solver", ["newton", "sgd"])
def test_without_steps_of_the_solver_weights_stay(solver):
    method, found = watched(settings={"epochs": 2}, steps=0, solver=solver)
    assert method.state["importance"].tolist() == [1, 1, 1]
    assert method.state["alpha"].tolist() == [1, 1, 1]
    assert found.weights == pytest.approx(dict.fromkeys(found.weights, 1 / 3))
    moved, _ = watched(settings={"epochs": 2}, solver=solver, steps=2)
    assert (moved.state["importance"] - 1).abs().max() > 1e-4


def test_alpha_moves_the_weights_as_line_11_says():
    method, _ = watched([1e-6, 2.0, 1.0], settings={"steps_per_epoch": 2}, ratio=1, solver="sgd", alpha_rate=5.0,
                        accept=False)  # fmt: skip
    before = torch.tensor([1e-6, 2.0, 1.0], dtype=torch.float64)
    expected = (before + method.state["alpha"] - 1).clamp_min(1e-6)
    assert torch.equal(method.state["importance"], expected)
    assert torch.allclose(method.weights.double(), expected / expected.sum())


def test_the_slope_in_alpha_is_that_of_finite_differences():
    """On the real deltas of a run, in float64."""
    method, _ = watched(settings={"steps_per_epoch": 6}, steps=0, ratio=1)
    data = testing.suite()
    model = plain_model(data).double()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    deltas = [{name: 3 * value.double() for name, value in delta.items()} for delta in method.deltas[0]]
    parameters = dict(model.named_parameters())
    held = data["task0"].rows[Role.DEV_META]

    def loss():
        return nn.functional.cross_entropy(model.head("task0")(model.encoder(held.inputs.double())), held.labels)

    alpha = torch.tensor([0.7, 1.2, -0.4], dtype=torch.float64)

    def value(at):
        place(parameters, start, deltas, at)
        return float(loss().detach())

    steps = 1e-5 * torch.eye(3, dtype=torch.float64)
    differences = [(value(alpha + step) - value(alpha - step)) / 2e-5 for step in steps]
    place(parameters, start, deltas, alpha)
    found = torch.autograd.grad(loss(), list(parameters.values()), allow_unused=True, materialize_grads=True)
    exact = slopes(dict(zip(parameters, found, strict=True)), deltas)
    assert exact.tolist() == pytest.approx(differences, rel=1e-5)
    assert exact.abs().min() > 1e-3


def test_place_writes_the_mixture_and_nothing_else():
    model = nn.Linear(3, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    deltas = [{"weight": torch.ones(2, 3)}, {"weight": 2 * torch.ones(2, 3)}, {}]
    place(dict(model.named_parameters()), before, deltas, torch.tensor([0.5, -1.0, 9.0]))
    torch.testing.assert_close(model.weight.detach(), before["weight"] - 1.5)
    assert torch.equal(model.bias, before["bias"])


def test_every_task_starts_from_bitwise_the_same_model_buffers_and_randomness():
    data = testing.suite()
    torch.manual_seed(3)
    model = SharedModel(testing.encoder(), data)  # BatchNorm moves buffers, dropout draws
    method, _ = watched(data=data, model=model, settings={"epochs": 2}, ratio=0.5)
    turns = [method.seen[i : i + 3] for i in range(0, len(method.seen), 3)]
    assert len(turns) == 4
    for each in turns:
        assert [task for task, *_ in each] == [0, 1, 2]
        for _, snapshot, random, *_ in each[1:]:
            assert torch.equal(random, each[0][2])
            for name, value in snapshot.items():
                assert torch.equal(value, each[0][1][name]), name
    assert not torch.equal(turns[0][0][2], turns[1][0][2]), "rounds draw anew"


def test_buffers_become_the_mean_of_the_turns():
    data = testing.suite()
    torch.manual_seed(3)
    model = SharedModel(testing.encoder(), data)
    left = []

    class Noting(Watched):
        name = "noting"

        def _train(self, job, turn):
            super()._train(job, turn)
            if turn.last:
                left.append(job.snapshot())

    run(Noting(ratio=1), data, model, steps_per_epoch=4)
    found = model.state_dict()
    mean = torch.stack([each["encoder.1.running_mean"] for each in left]).mean(0)
    torch.testing.assert_close(found["encoder.1.running_mean"], mean)
    assert int(found["encoder.1.num_batches_tracked"]) == 4


@pytest.mark.parametrize("moments", ["kept", "fresh"])
def test_each_task_has_its_own_optimiser_state(moments):
    method, _ = watched(settings={"epochs": 2, "optimizer": "AdamW"}, ratio=1, moments=moments)
    first, second = method.seen[:3], method.seen[3:]
    assert all(not begins for _, _, _, begins, _ in first)
    for (_, _, _, _, left), (_, _, _, begins, _) in zip(first, second, strict=True):
        if moments == "fresh":
            assert not begins
        else:
            assert begins.keys() == left.keys()
            assert all(torch.equal(begins[key], left[key]) for key in begins)
    shared = [left["0.exp_avg"] for *_, left in first]
    assert not torch.equal(shared[0], shared[1])


def test_a_heads_delta_moves_only_its_own_head():
    settings = {"optimizer": "AdamW", "optimizer_options": {"weight_decay": 0.3}, "epochs": 2}
    method, _ = watched(settings=settings, ratio=1)
    for deltas in method.deltas:
        for number, delta in enumerate(deltas):
            heads = {name for name in delta if name.startswith("heads.")}
            assert heads == {f"heads.task{number}.weight", f"heads.task{number}.bias"}
            assert any(name.startswith("encoder.") for name in delta)


def test_whole_heads_go_all_the_way_and_mixed_ones_a_share():
    settings = {"steps_per_epoch": 4}
    mixed, found = watched(settings=settings, ratio=1, steps=0)
    whole, other = watched(settings=settings, ratio=1, steps=0, heads="whole")
    before = plain_model(testing.suite()).state_dict()
    name = "heads.task1.weight"
    ways = [r.model.state_dict()[name] - before[name] for r in (found, other)]
    torch.testing.assert_close(ways[0], ways[1] / 3)
    assert all(not n.startswith("heads.") for delta in whole.deltas[0] for n in delta)
    assert_same(mixed.deltas[0][1], whole.deltas[0][1] | {n: d for n, d in mixed.deltas[0][1].items() if "head" in n})


def quadratic(matrix, best):
    """A dev loss whose minimum in α is known."""

    def dev(alpha):
        away = alpha - best
        return float(away @ matrix @ away) / 2, matrix @ away

    return dev


def test_newton_finds_the_minimum_of_a_quadratic_and_stays_within_its_radius():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    matrix = root @ root.T + 0.1 * torch.eye(4, dtype=torch.float64)
    best = 1 + 0.2 * torch.randn(4, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(tune(quadratic(matrix, best), 4, radius=10, damping=0), best)
    radius = 0.5 * float((best - 1).norm())
    step = tune(quadratic(matrix, best), 4, radius=radius, damping=0) - 1
    assert float(step.norm()) == pytest.approx(radius)
    around = torch.randn(2000, 4, generator=generator, dtype=torch.float64)
    around = radius * around / around.norm(dim=1, keepdim=True)
    values = [quadratic(matrix, best)(1 + other)[0] for other in around]
    assert quadratic(matrix, best)(1 + step)[0] <= min(values)


def test_newton_goes_downhill_where_the_loss_is_not_convex():
    matrix = torch.diag(torch.tensor([-1.0, 0.5], dtype=torch.float64))
    dev = quadratic(matrix, torch.tensor([0.9, 1.3], dtype=torch.float64))
    step = tune(dev, 2, radius=0.5, damping=0) - 1
    assert dev(1 + step)[0] < dev(torch.ones(2, dtype=torch.float64))[0]
    assert step[0] > 0.3, "away from the maximum"


@pytest.mark.parametrize("solver", ["newton", "sgd"])
def test_alpha_stays_at_one_where_the_dev_loss_would_rise(solver):
    honest = quadratic(torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))

    def lying(alpha):
        loss, slope = honest(alpha)
        return loss, -slope

    assert tune(lying, 3, solver=solver, steps=3).tolist() == [1, 1, 1]
    assert tune(lying, 3, solver=solver, steps=3, accept=False).tolist() != [1, 1, 1]
    assert float(tune(honest, 3, solver=solver, steps=3).mean()) < 1


def test_a_step_too_long_is_shortened_before_it_is_refused():
    def dev(alpha):  # steep at first, a wall behind 0.1
        away = float((alpha - 1).norm())
        return (1 - away if away < 0.1 else 10.0), torch.full((2,), -1.0, dtype=torch.float64)

    step = tune(dev, 2, radius=1.0) - 1
    assert 0 < float(step.norm()) < 0.1


def test_sgd_is_torchs_own():
    matrix = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    best = torch.tensor([1.5, 0.2], dtype=torch.float64)
    alpha = torch.ones(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([alpha], lr=0.01, momentum=0.5)
    for _ in range(10):
        optimizer.zero_grad()
        ((alpha - best) @ matrix @ (alpha - best) / 2).backward()
        optimizer.step()
    found = tune(quadratic(matrix, best), 2, solver="sgd", steps=10, rate=0.01, momentum=0.5, accept=False)
    torch.testing.assert_close(found, alpha.detach())


@pytest.mark.parametrize("solver", ["newton", "sgd"])
def test_a_dev_loss_that_is_no_number_moves_nothing(solver):
    def dev(alpha):
        return float("nan"), torch.full((2,), float("nan"), dtype=torch.float64)

    assert tune(dev, 2, solver=solver, steps=2).tolist() == [1, 1]


def test_a_joint_step_follows_the_merge():
    settings = {"optimizer": "SGD", "steps_per_epoch": 1, "learning_rate": 0.5}
    _, found = watched([2.0, 1.0, 1.0], settings=settings, steps=0, ratio=1, joint_step=True)
    data = testing.suite()
    model = plain_model(data)
    batches = []

    class Twice(get("uniform")):
        name = "twice"

        def step(self, job):
            batches.append(job.batch())
            for _ in range(2):
                job.descend(job.batch(), torch.tensor([0.5, 0.25, 0.25]))

    run(Twice(), data, model, **settings)
    assert_same(found.model.state_dict(), model.state_dict(), atol=1e-6, rtol=1e-5)


def test_deltas_can_be_kept_at_lower_precision_and_on_the_host():
    exact, _ = watched(settings={"steps_per_epoch": 4}, ratio=1)
    rough, _ = watched(settings={"steps_per_epoch": 4}, ratio=1, delta_precision="bfloat16", delta_device="cpu")
    for one, other in zip(exact.deltas[0], rough.deltas[0], strict=True):
        assert {value.dtype for value in other.values()} == {torch.bfloat16}
        assert {value.device.type for value in other.values()} == {"cpu"}
        assert_same(one, {name: value.float() for name, value in other.items()}, rtol=0.01, atol=1e-6)
    assert_same(exact.merged[0], rough.merged[0], rtol=0.02, atol=1e-3)


def test_the_bounded_mode_keeps_half_a_model_for_each_task():
    """Three models per task and one to start from; with deltas of two bytes and fresh moments half a model and one."""

    class Weighed(AlphaVIL):
        name = "weighed"
        most = 0

        def _merge(self, job):
            kept = [v for k, v in self.state.items() if k.startswith(("start.", "delta.", "moments."))]
            self.most = max(self.most, sum(value.nbytes for value in kept))
            super()._merge(job)

    def most(**options):
        data = testing.suite()
        torch.manual_seed(4)
        model = SharedModel(nn.Sequential(nn.Linear(5, 400), nn.Tanh(), nn.Linear(400, 6)), data)
        method = Weighed(**options)
        run(method, data, model, epochs=2, optimizer="AdamW")
        return method.most / sum(p.nbytes for p in model.parameters()), len(data.tasks)

    kept, tasks = most()
    assert kept == pytest.approx(1 + 3 * tasks, rel=0.05)
    assert most(delta_precision="bfloat16", moments="fresh")[0] == pytest.approx(1 + tasks / 2, rel=0.05)


@pytest.mark.parametrize("batching", ["all_tasks", "one_task"])
def test_a_round_sees_the_rows_of_joint_training_and_no_more(batching):
    method, found = watched(settings={"epochs": 2, "batching": batching}, ratio=0.5)
    joint = run("uniform", epochs=2, batching=batching)
    assert found.summary["steps"] == joint.summary["steps"]
    seen = []

    class Seeing(get("uniform")):
        name = "seeing"

        def step(self, job):
            members = [m for part in job.batch().parts for m in part.members]
            seen.extend((job.tasks.index(m.task), m.index) for m in members)
            super().step(job)

    run(Seeing(), epochs=2, batching=batching)
    for task in range(3):
        own = [torch.cat([index for t, index in each if t == task]).sort().values for each in (method.rows, seen)]
        if batching == "all_tasks":
            assert torch.equal(*own)
        else:
            assert abs(len(own[0]) - len(own[1])) <= 8
    assert sum(len(index) for _, index in method.rows) <= sum(len(index) for _, index in seen)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("tasks", [1, 2, 5])
@pytest.mark.parametrize("each", [True, False])
def test_turns_cover_a_round_task_by_task(steps, tasks, each):
    now = Round(10, steps, tasks, tasks if each else 1)
    turns = [turn for step in range(10, now.end) for turn in now.turns(step)]
    assert [t.task for t in turns] == sorted(t.task for t in turns)
    for task in range(tasks):
        own = [t for t in turns if t.task == task]
        assert own[0].first
        assert own[-1].last
        assert sum(t.first for t in own) == sum(t.last for t in own) == 1
        assert [t.number - own[0].number for t in own] == list(range(len(own)))
        if each:
            assert len(own) == steps
    if each:
        assert all(len(list(now.turns(step))) == tasks for step in range(10, now.end))


def twins():
    """A target with few rows, a source that is the same task, and one that says the opposite."""
    generator = torch.Generator().manual_seed(2)

    def rows(sign, count):
        inputs = torch.randn(count, 5, generator=generator)
        return Rows(inputs, ((sign * inputs[:, 0]) > 0).long())

    held = {"dev_meta": rows(1, 200), "dev_select": rows(1, 50)}
    tasks = [Task("target", "classification", {"train": rows(1, 16), **held}, outputs=2)]
    tasks += [Task(n, "classification", {"train": rows(s, 128)}, outputs=2) for n, s in (("same", 1), ("noise", 0))]
    tasks[2].rows[Role.TRAIN] = Rows(torch.randn(128, 5, generator=generator), torch.arange(128) % 2)
    data = Suite(tasks, "target")
    torch.manual_seed(0)
    model = SharedModel(nn.Sequential(nn.Linear(5, 16), nn.Tanh()), data)
    model.head("same").load_state_dict(model.head("target").state_dict())
    return data, model


@pytest.mark.parametrize("options", [{}, {"as_published": True, "alpha_rate": 0.5}, {"acts_on": "rate"}])
def test_a_source_that_helps_gains_on_one_that_is_noise(options):
    data, model = twins()
    method = AlphaVIL(**options)
    found = run(method, data, model, epochs=4, optimizer="SGD", learning_rate=0.2)
    assert found.weights["same"] > found.weights["noise"]
    assert found.weights["target"] > found.weights["noise"]


def test_alpha_is_tuned_on_rows_that_do_not_choose_the_model():
    data = testing.suite()
    for task in data.tasks.values():
        del task.rows[Role.DEV_META]
    found = run(AlphaVIL(), data)
    assert found.suite["task0"].size(Role.DEV_META) == found.suite["task0"].size(Role.DEV_SELECT) == 6
    assert found.suite["task1"].size(Role.DEV_SELECT) == 12
    published = run(AlphaVIL(as_published=True), data)
    assert Role.DEV_META not in published.suite["task0"].rows
    del data["task0"].rows[Role.DEV_SELECT]
    assert run(AlphaVIL(), data).suite["task0"].size(Role.DEV_META) == 5
    with pytest.raises(SteelyardError, match="no dev rows to tune"):
        run(AlphaVIL(as_published=True), data)


def test_as_published_is_the_papers_setting_and_can_be_varied():
    paper = AlphaVIL(as_published=True).options
    assert (paper.solver, paper.steps, paper.accept, paper.acts_on, paper.ratio) == ("sgd", 10, False, "loss", 1.0)
    assert (paper.alpha_rate, paper.alpha_momentum, paper.floor) == (0.005, 0.5, 1e-6)
    assert AlphaVIL(as_published=True, ratio=0.25, alpha_rate=0.001).options.ratio == 0.25


@pytest.mark.parametrize(("options", "settings", "words"), [
    ({"ratio": 0}, {}, "ratio"),
    ({"solver": "adam"}, {}, "solver"),
    ({"radios": 1.0}, {}, "did you mean 'radius'"),
    ({}, {"paradigm": "pretrain"}, "train it jointly"),
])  # fmt: skip
def test_wrong_options_are_refused_in_words(options, settings, words):
    with pytest.raises(SteelyardError, match=words):
        run(AlphaVIL(**options), **settings)
