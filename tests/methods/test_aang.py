"""AANG and META-TARTAN on a tiny BERT: meta-gradients, the softmax's gradient, the dev head, roles, resuming."""

import contextlib
import copy
import csv
import json

import pytest
import torch
from tests.objectives import tiny
from torch import nn

from steelyard import SteelyardError, fit, gradients, load
from steelyard.functional import factored_weights
from steelyard.methods import get
from steelyard.methods.aang import AANG, Tartan
from steelyard.methods.aang.module import dev_head, meta_direction
from steelyard.tasks import IGNORE, Role, Rows, Suite, Task
from steelyard.training.loop import Interrupted
from steelyard.training.progress import Silent

QUICK = {"epochs": 1, "batch_size": 8, "device": "cpu", "progress": False, "learning_rate": 1e-3}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return str(tiny.write_model(tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """The same without dropout, so that two forwards agree."""
    return str(tiny.write_model(tmp_path_factory.mktemp("still"), dropout=0.0))


def train(folder, method, data=None, **settings):
    return fit(data or tiny.suite(), folder, method, **(QUICK | settings))


def inside(folder, check, kind=AANG, data=None, at=1, options=None, **settings):
    """Runs a check of (method, job) in place of one step of a run."""
    ran = []

    class Checking(kind):
        name = f"checking-{kind.name}"

        def step(self, job):
            if job.step == at:
                check(self, job)
                ran.append(True)
            else:
                super().step(job)

    train(folder, Checking(**(options or {})), data, **settings)
    assert ran


def exact_slopes(job, batch, direction):
    """⟨∇L_t, v⟩ by a backward per task."""
    names = list(direction)
    parameters = [dict(job.model.named_parameters())[name] for name in names]
    found = []
    for loss in job.losses(batch):
        each = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        found.append(sum((g * direction[n]).sum() for n, g in zip(names, each, strict=True) if g is not None))
    return torch.stack([torch.as_tensor(x, dtype=torch.float32) for x in found])


@pytest.mark.parametrize(
    "options",
    [{}, {"sample": 5}, {"copies": True}, {"outputs": ["denoise", "next-token", "tf-idf", "end-task"]}],
)
def test_meta_gradients_are_the_exact_ones_of_every_objective(still, options):
    def check(method, job):
        chosen = method._chosen(job)
        weights = method._shared_out(job, chosen, method._among(chosen))
        batch = method._batch(job, chosen)
        assert len(batch.parts) == 1, "one encoder call"
        direction = method._direction(job)
        expected = exact_slopes(job, batch, direction)
        _, slopes = job.descend_along(batch, weights, direction)
        scale = expected.abs().max()
        assert scale > 0
        torch.testing.assert_close(slopes / scale, expected / scale, rtol=1e-4, atol=1e-4)
        assert not slopes[weights == 0].any()

    inside(still, check, options=options)


def test_no_parameter_takes_a_backward_per_objective(still):
    """Tied embeddings, positions and all else have a rule: the price does not grow with the objectives."""

    def check(method, job):
        chosen = method._every()
        batch = method._batch(job, chosen)
        body = job.model.scope("shared", trainable=True)
        rows = torch.zeros(len(batch), dtype=torch.long)
        for member in batch.parts[0].members:
            rows[member.rows] = job.tasks.index(member.task)
        with gradients.record(job.model, rows, body) as tape:
            losses = job.losses(batch)
        assert tape.exact_names(losses) == []

    inside(still, check)


def test_a_token_objective_may_have_a_decoder_of_its_own(still):
    def check(method, job):
        decoders = list(job.model.get_submodule("method").decoder)
        assert len(decoders) == 16
        table = job.model.encoder.embeddings
        assert all(torch.equal(d.weight, table) for d in decoders), "a copy of the embeddings at first"
        job.descend(method._batch(job, method._every()), method.weights)
        moved = [d.weight for d in decoders]
        assert all(not torch.equal(a, b) for a, b in zip(moved, [table, *moved[:-1]], strict=True))

    inside(still, check, at=0, options={"copies": True})


@pytest.mark.parametrize("options", [{}, {"sample": 4}])
def test_the_step_is_the_weighted_step(still, options):
    """The parameters move as by a plain backward of λ_e L_E + λ_a Σ w_k L_k."""

    def check(method, job):
        chosen = method._chosen(job)
        weights = method._shared_out(job, chosen, method._among(chosen))
        batch = method._batch(job, chosen)
        direction = method._direction(job)
        before, moments = job.snapshot(), job.moments()
        job.descend(batch, weights)
        expected = job.snapshot()
        job.restore(before)
        job.restore_moments(moments)
        job.descend_along(batch, weights, direction)
        for name, value in job.snapshot().items():
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5, msg=name)

    inside(still, check, options=options, optimizer="SGD", learning_rate=0.5)


def test_the_meta_gradient_is_the_derivative_of_the_held_out_loss(still):
    """Finite differences, in double precision: w_k moves L_E^val(θ - β Σ w_k ∇L_k; dev head) by -β⟨∇L_k, v⟩."""

    def check(method, job):
        model, beta = job.model.double(), 1e-4
        chosen = method._chosen(job)
        batch = method._batch(job, chosen)
        head = model.get_submodule("method").head
        held_out = job.draw(Role.DEV_META, 8, ("mood",))
        v = meta_direction(model, head, held_out)
        body = model.scope("shared", trainable=True)
        model.eval()
        each = gradients.exact_task_gradients(model.losses(batch).means, body)
        start = {name: p.detach().clone() for name, p in body.items()}

        def after(task, amount):
            with torch.no_grad():
                for name, p in body.items():
                    p.copy_(start[name] - amount * each[name][task])
                with dev_head(model, head):
                    return model.losses(held_out).means[0]

        for task in (0, 1, 2, 9, 24):
            difference = (after(task, beta) - after(task, -beta)) / 2
            slope = sum((each[name][task] * v[name]).sum() for name in v)
            torch.testing.assert_close(difference, -beta * slope, rtol=1e-4, atol=1e-12)
        with torch.no_grad():
            for name, p in body.items():
                p.copy_(start[name])
        model.float().train()

    inside(still, check)


@pytest.mark.parametrize("sample", [None, 5])
def test_logits_move_against_the_softmax_gradient(still, sample):
    """One `_learn` is a step of gradient descent on Σ w_k c_k and on λ_e c_E + λ_a Σ w_k c_k, by autograd."""

    def check(method, job):
        shapes = method._shapes()
        for name, shape in shapes.items():
            method.state[f"logits.{name}"] = torch.randn(shape, dtype=torch.float64)
        method.state["logits.end"] = torch.randn(2, dtype=torch.float64)
        chosen = method._chosen(job)
        among = method._among(chosen)
        answers = torch.randn(len(job.tasks), dtype=torch.float64)
        leaves = {key: value.clone().requires_grad_() for key, value in method.state.items() if "logits" in key}
        w = factored_weights([leaves[f"logits.{name}"] for name in shapes], method.space.points[chosen])
        own = answers[method._places(job)[chosen]]
        ends = leaves["logits.end"].softmax(0)
        inner = w @ own
        expected = torch.autograd.grad(inner, [leaves[f"logits.{name}"] for name in shapes], retain_graph=True)
        (end,) = torch.autograd.grad(ends[0] * answers[0] + ends[1] * inner.detach(), leaves["logits.end"])
        before = {key: value.clone() for key, value in method.state.items() if "logits" in key}
        method._learn(job, chosen, among, answers)
        for name, gradient in zip(shapes, expected, strict=True):
            key = f"logits.{name}"
            torch.testing.assert_close(method.state[key], before[key] - 0.1 * job.rate * gradient)
            assert abs(gradient.sum()) < 1e-12
        torch.testing.assert_close(method.state["logits.end"], before["logits.end"] - 0.1 * job.rate * end)
        away = torch.ones(method.space.shape, dtype=torch.bool)
        away[method.space.points[chosen].unbind(1)] = False
        assert torch.equal(method.state["logits.all"][away], before["logits.all"][away])

    inside(still, check, options={"sample": sample, "signal": "product"})


def test_a_sample_moves_unsampled_objectives_that_share_a_stage(bert):
    def check(method, job):
        everything = method._every()
        before = method._among(everything)
        chosen = method._chosen(job)
        assert len(chosen) == 3
        answers = torch.randn(len(job.tasks), dtype=torch.float64)
        method._learn(job, chosen, method._among(chosen), answers)
        changed = (method._among(everything) - before).abs() > 1e-9
        assert changed.sum() > 3

    inside(bert, check, options={"sample": 3})


def test_the_signal_is_free_of_the_losses_scale(still):
    def check(method, job):
        answers = torch.randn(len(job.tasks), dtype=torch.float64)
        fresh = torch.zeros(2, dtype=torch.float64)
        found = []
        for factor in (1.0, 2.0**-40, 2.0**40):
            method.state["signal"] = fresh.clone()
            found.append(method._sized(job, answers * factor))
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])
        assert not method._sized(job, torch.zeros_like(answers)).isnan().any()

    inside(still, check)


def test_the_dev_head_is_apart(bert):
    def check(method, job):
        model = job.model
        head = model.get_submodule("method").head
        body = {name: value.clone() for name, value in model.state_dict().items() if not name.startswith("method.head")}
        kept = copy.deepcopy(head.state_dict())
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        random = torch.get_rng_state()
        direction = method._direction(job)
        assert all((p.grad == 1).all() for name, p in model.named_parameters() if not name.startswith("method.head"))
        model.zero_grad()
        assert all(torch.equal(value, body[name]) for name, value in model.state_dict().items() if name in body)
        assert any(not torch.equal(value, kept[name]) for name, value in head.state_dict().items()), "it was not fitted"
        assert torch.equal(torch.get_rng_state(), random)
        assert all(name.startswith("encoder.") for name in direction)
        assert not any(p.requires_grad for p in head.parameters())
        optimised = {id(p) for group in job.optimisation.optimizer.param_groups for p in group["params"]}
        assert not optimised & {id(p) for p in head.parameters()}

    inside(bert, check, options={"head_every": 1})


def test_the_direction_is_the_dev_heads_not_the_targets(still):
    def check(method, job):
        model, head = job.model, job.model.get_submodule("method").head
        batch = job.draw(Role.DEV_META, 8, ("mood",))
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.add_(torch.randn_like(parameter))
        found = meta_direction(model, head, batch)
        kept = copy.deepcopy(model.head("mood").state_dict())
        model.head("mood").load_state_dict(head.state_dict())
        with job.probe(batch, tasks=("mood",)) as probe:
            expected = probe.gradient(torch.ones(1))
        model.head("mood").load_state_dict(kept)
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name])

    inside(still, check)


def test_roles_are_apart(bert):
    """The dev head is fitted on training rows, v is taken on dev_meta, the model is chosen on dev_select."""
    asked = []

    def check(method, job):
        draw = job.draw
        job.draw = lambda role, size, tasks=None: asked.append(role) or draw(role, size, tasks)
        method._direction(job)
        rows = {role: job.suite["mood"].rows[role] for role in (Role.TRAIN, Role.DEV_META, Role.DEV_SELECT)}
        assert len({id(part.inputs) for part in rows.values()}) == 3
        assert len(rows[Role.DEV_META]) == len(rows[Role.DEV_SELECT]) == 8

    inside(bert, check, options={"head_every": 1})
    assert asked[:2] == [Role.TRAIN, Role.DEV_META]


def test_static_keeps_even_weights_and_holds_nothing_out(bert):
    run = train(bert, AANG(static=True), epochs=2)
    assert run.weights["mood"] == pytest.approx(0.5)
    assert {round(w * 48, 6) for name, w in run.weights.items() if name != "mood"} == {1.0}
    assert run.summary["rows"]["mood"] == 24


def test_weights_move_and_stay_a_distribution(bert):
    run = train(bert, AANG(rate=1.0), epochs=3, log_every=1)
    steps = {}
    for step, _, weight in run.weight_trace:
        steps.setdefault(step, []).append(weight)
    assert all(len(each) == 25 and abs(sum(each) - 1) < 1e-5 for each in steps.values())
    others = [weight for name, weight in run.weights.items() if name != "mood"]
    assert max(others) > 1.05 * min(others)


def test_task_and_in_domain_data_are_40_objectives(bert):
    method = AANG(inputs=["task", "in-domain"], data={"in-domain": "reviews"})
    run = train(bert, method, tiny.suite(source=True))
    assert len(run.weights) == 41
    assert "reviews" not in run.weights


def test_a_labelled_source_takes_part_as_it_stands(bert):
    run = train(bert, AANG(), tiny.suite(source=True))
    assert len(run.weights) == 26
    assert run.weights["reviews"] > 0


def test_tapt_is_a_paradigm(bert):
    """Static TAPT before fine-tuning: no weight is learned, and the end task comes after."""
    run = train(bert, Tartan(static=True), paradigm="pretrain", epochs=2, finetune_epochs=2)
    phases = [line["phase"] for line in run.history]
    assert phases == ["pretrain", "pretrain", "finetune", "finetune"]
    assert set(run.history[0]["weights"]) == {"task/bert/bidirectional/denoise"}
    dapt = Tartan(objectives=["DAPT"], data={"in-domain": "reviews"})
    run = train(bert, dapt, tiny.suite(source=True), paradigm="pretrain", finetune_epochs=1)
    assert set(run.history[0]["weights"]) == {"in-domain/bert/bidirectional/denoise"}


def test_fine_tuning_after_joint_training_has_to_beat_it(bert):
    run = train(bert, AANG(), epochs=2, finetune_epochs=1, finetune_learning_rate=1e-6)
    assert [line["phase"] for line in run.history] == ["joint", "joint", "finetune"]
    best = max(line["tasks"]["mood"]["dev_accuracy"] for line in run.history)
    assert run.metrics["dev_select"]["accuracy"] == pytest.approx(best)


@pytest.mark.parametrize("preset", ["as_published", "as_released"])
def test_other_forms_train(bert, preset):
    run = train(bert, AANG(**{preset: True}, sample=6), epochs=2)
    assert abs(sum(run.weights.values()) - 1) < 1e-5
    assert get("aang")(as_released=True).options.jacobian is False


def test_released_form_is_the_cosine(still):
    def check(method, job):
        chosen = method._every()
        method.weights = method._shared_out(job, chosen, method._among(chosen))
        batch = method._batch(job, chosen)
        direction = method._direction(job)
        method._direction = lambda job: direction
        slopes = exact_slopes(job, batch, direction)
        body = job.model.scope("shared", trainable=True)
        each = gradients.exact_task_gradients(job.losses(batch), body)
        lengths = torch.stack([value.flatten(1).norm(dim=1) for value in each.values()]).norm(dim=0)
        size = torch.stack([value.norm() for value in direction.values()]).norm()
        torch.testing.assert_close(method._descend(job, batch), slopes / (lengths * size), rtol=1e-3, atol=1e-4)

    inside(still, check, options={"as_released": True})


class StopAt(Silent):
    """Stops the run at a step, as Ctrl-C would."""

    def __init__(self, step):
        self._left = step

    def step(self, done, losses, weights):
        del done, losses, weights
        self._left -= 1
        if self._left < 0:
            raise Interrupted


def stopped(folder, out, stop):
    with contextlib.suppress(Interrupted):
        train(
            folder, AANG(sample=7, every=2, head_every=2), epochs=2, out=out, progress=StopAt(stop),
            log_every=1, checkpoint_seconds=0,
        )  # fmt: skip


def test_resumed_it_is_bitwise_the_same_on_text(bert, tmp_path):
    whole = train(bert, AANG(sample=7, every=2, head_every=2), epochs=2, log_every=1, out=tmp_path / "whole")
    stopped(bert, tmp_path / "resumed", 3)
    again = train(
        bert, AANG(sample=7, every=2, head_every=2), epochs=2, out=tmp_path / "resumed", log_every=1,
        checkpoint_seconds=0,
    )  # fmt: skip
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
    for file in ("weights.csv", "objectives.csv"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "resumed" / file).read_bytes()


def test_the_run_folder_says_what_mattered(bert, tmp_path):
    run = train(bert, AANG(rate=1.0), epochs=4, out=tmp_path / "run")
    with (tmp_path / "run" / "objectives.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    each = [row for row in rows if row["what"] == "objective"]
    assert len(each) == 24
    for column in ("early", "late", "all"):
        assert sum(float(row[column]) for row in each) == pytest.approx(1, abs=1e-4)
        for stage in ("transform", "representation", "output"):
            assert sum(float(row[column]) for row in rows if row["what"] == stage) == pytest.approx(1, abs=1e-4)
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])["method"]
    masks = [value for name, value in first.items() if name.startswith("task/mask/")]
    assert first["transform: mask"] == pytest.approx(sum(masks))
    early = next(row for row in rows if row["name"] == "mask")["early"]
    assert float(early) == pytest.approx(first["transform: mask"], abs=1e-5)
    back = load(tmp_path / "run")
    inputs = tiny.suite()["mood"].rows[Role.TEST].inputs
    assert torch.equal(back.predict(inputs), run.predict(inputs))


def test_from_a_csv_file_on_a_hugging_face_folder(tmp_path, steelyard):
    from tests.jobs import write_job

    tiny.write_model(tmp_path / "bert")
    write_job(tmp_path)
    (tmp_path / "job.toml").write_text(
        '[target]\nname = "complaints"\ntrain = "complaints.csv"\ndev = "dev.csv"\ntext = "body"\nlabel = "topic"\n'
        '[model]\nencoder = "bert"\n[method]\nname = "aang"\n'
        '[training]\nepochs = 1\nbatch_size = 8\ndevice = "cpu"\n'
    )
    status, _, err = steelyard("train", tmp_path / "job.toml", "--out", tmp_path / "run")
    assert status == 0, err
    weights = json.loads((tmp_path / "run" / "summary.json").read_text())["weights"]
    assert len(weights) == 25
    status, out, err = steelyard("predict", tmp_path / "run", tmp_path / "dev.csv")
    assert status == 0, err
    assert "predicted_topic" in out


def test_the_command_prints_the_space(steelyard):
    status, out, _ = steelyard("methods", "aang")
    assert status == 0
    assert "24 objectives" in out
    assert "random-factorised" in out


def test_what_cannot_be_is_said_in_one_line(bert, tmp_path):
    with pytest.raises(SteelyardError, match="use paradigm joint"):
        train(bert, AANG(), paradigm="single")
    with pytest.raises(SteelyardError, match="use paradigm joint"):
        train(bert, AANG(), batching="one_task")
    with pytest.raises(SteelyardError, match=r"data 'in-domain': say which source"):
        train(bert, AANG(inputs=["task", "in-domain"]))
    with pytest.raises(SteelyardError, match="is to be the source 'review'"):
        train(bert, AANG(inputs=["task", "in-domain"], data={"in-domain": "review"}), tiny.suite(source=True))
    with pytest.raises(SteelyardError, match="need a Hugging Face encoder"):
        train("textcnn", AANG())
    with pytest.raises(SteelyardError, match="no transform 'maks'"):
        train(bert, AANG(transforms=["maks"]))
    with pytest.raises(SteelyardError, match="all frozen"):
        train(bert, AANG(), encoder_options={"freeze": True})
    with pytest.raises(SteelyardError, match="has no mask token"):
        train(str(tiny.write_model(tmp_path / "nomask", mask=False)), AANG())


def test_empty_texts_and_rows_without_label_break_nothing(bert):
    """A text of special tokens alone has no place to ask about; it counts for the end task."""
    rows = tiny.rows(24, 0)
    values, offsets = rows.inputs.values.clone(), rows.inputs.offsets
    values[offsets[3] : offsets[4]] = 2
    labels = rows.labels.clone()
    labels[5::4] = IGNORE
    data = tiny.suite()
    held_out = data["mood"].rows[Role.DEV_SELECT]
    task = Task(
        "mood",
        "classification",
        {"train": Rows(type(rows.inputs)(values, offsets), labels), "dev_select": held_out},
        outputs=2,
    )
    run = train(bert, AANG(), Suite([task], "mood", vocabulary=len(tiny.WORDS)))
    assert all(p.isfinite().all() for p in run.model.parameters())


def test_images_have_a_space_too():
    generator = torch.Generator().manual_seed(0)

    def pictures(n):
        labels = torch.arange(n) % 2
        values = torch.rand(n, 1, 8, 8, generator=generator) + labels.view(-1, 1, 1, 1)
        return Rows(values, labels)

    task = Task("shade", "classification", {"train": pictures(24), "dev_select": pictures(16)}, outputs=2)
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 6))
    method = AANG(rate=1.0)
    run = fit(Suite([task], "shade"), encoder, method, **(QUICK | {"epochs": 3}))
    assert len(run.weights) == 12
    assert "task/rotate/whole/rotation" in run.weights
