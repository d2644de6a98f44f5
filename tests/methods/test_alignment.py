"""Covariance alignment: R = I changes nothing, B stays put, each task's matrix is its own, runs come back whole."""

import copy
import types

import pytest
import torch
from torch import Tensor, nn

from steelyard import Role, Rows, SharedModel, SteelyardError, Suite, Task, encoders, fit, gradients, methods, testing
from steelyard.model import Alignment
from steelyard.model.stages import Stage
from steelyard.tasks import Batch, Ragged, collate
from steelyard.training import load

MATRICES = ("full", "orthogonal", "low_rank")
TEXTS = Ragged.of([[1, 2, 3, 4], [5, 6], [7], [2, 9, 1], [4, 4]])


def text_suite() -> Suite:
    first = Task("first", "classification", {"train": Rows(TEXTS, torch.tensor([0, 1, 0, 1, 1]))})
    other = Ragged.of([[3, 3, 8], [1], [6, 2]])
    tags = Ragged.of([[0, 1, 0], [1], [0, 0]])
    return Suite([first, Task("tags", "tagging", {"train": Rows(other, tags)})], target="first")


def image_suite() -> Suite:
    draw = torch.Generator().manual_seed(0)
    tasks = [
        Task(name, "classification", {"train": Rows(torch.randn(6, 3, 16, 16, generator=draw), torch.arange(6) % 2)})
        for name in ("a", "b")
    ]
    return Suite(tasks, target="a")


def dense_suite() -> Suite:
    inputs = torch.randn(7, 2, 3, generator=torch.Generator().manual_seed(0))
    own = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(1))
    return Suite(
        [
            Task("a", "classification", {"train": Rows(inputs, torch.arange(7) % 3)}),
            Task("b", "regression", {"train": Rows(inputs, torch.arange(7.0))}),
            Task("c", "regression", {"train": Rows(own, torch.arange(5.0))}),
        ],
        target="a",
    )


def batch_of(suite: Suite) -> Batch:
    groups: dict[int, tuple] = {}
    for name, task in suite.tasks.items():
        rows = task.rows[Role.TRAIN]
        groups.setdefault(id(rows.inputs), (rows.inputs, torch.arange(len(rows)), []))[2].append((name, rows.labels))
    return collate(list(groups.values()))


MODELS = {
    "textcnn": (text_suite, lambda s: encoders.TextCNN(10, size=8, channels=4), "words", 8),
    "lstm": (text_suite, lambda s: encoders.LSTM(10, size=8, hidden=4), "words", 8),
    "lstm-forward": (text_suite, lambda s: encoders.LSTM(10, size=8, hidden=4, bidirectional=False), "words", 8),
    "lenet": (image_suite, lambda s: encoders.LeNet((3, 16, 16)), "first", 10),
    "resnet": (image_suite, lambda s: encoders.ResNet((3, 16, 16), channels=4), "stem", 4),
    "windows": (text_suite, lambda s: Windows(), "convolution", 8),
    "mlp": (dense_suite, lambda s: encoders.MLP((2, 3), hidden=(4,)), "input", 6),
    "layers": (dense_suite, lambda s: layers_with_norm(), "input", 6),
}


class Windows(nn.Module):
    """A stage whose vectors are not on the last axis: ``[N, d, L]``."""

    embedding_stage = "convolution"
    width = 8

    def __init__(self) -> None:
        super().__init__()
        self.table, self.convolution = nn.Embedding(10, 4), nn.Conv1d(4, 8, 1)

    def forward(self, ids: Tensor, _mask: Tensor) -> Tensor:
        return self.convolution(self.table(ids).transpose(1, 2)).transpose(1, 2).tanh()


def layers_with_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))


def made(name: str, **options: object) -> tuple[Suite, SharedModel]:
    suite_of, encoder_of, _, _ = MODELS[name]
    torch.manual_seed(0)
    suite = suite_of()
    return suite, SharedModel(encoder_of(suite), suite)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("name", MODELS)
def test_the_identity_says_what_no_matrix_says_bitwise(name: str, matrix: str) -> None:
    suite, model = made(name)
    model.eval()
    alone = Suite([next(iter(suite.tasks.values()))])
    before = {task: model(batch_of(Suite([suite[task]])))[task] for task in suite.tasks}
    gradient = torch.autograd.grad(model.losses(batch_of(alone)).sums.sum(), list(model.encoder.parameters()))
    alignment = model.add_alignment(matrix=matrix, rank=2)
    assert alignment.stage == Stage(*MODELS[name][2:], sequences=name == "windows")
    for task, expected in before.items():
        found = model(batch_of(Suite([suite[task]])))[task]
        assert torch.equal(found, expected), task
        assert torch.equal(alignment.matrix(task), torch.eye(alignment.stage.width))
    again = torch.autograd.grad(model.losses(batch_of(alone)).sums.sum(), list(model.encoder.parameters()))
    torch.testing.assert_close(again, gradient)


@pytest.mark.parametrize("name", MODELS)
def test_each_task_goes_through_its_own_matrix_even_on_shared_rows(name: str) -> None:
    suite, model = made(name)
    model.eval()
    alignment = model.add_alignment()
    stirred(alignment)
    together = model(batch_of(suite))
    for task in suite.tasks:
        assert_same(together[task], alone(model, suite, task))
        kept = copy.deepcopy(alignment.state_dict())
        others = [t for t in suite.tasks if t != task]
        with torch.no_grad():
            for other in others:
                alignment.matrices[other].change.zero_()
        assert_same(together[task], alone(model, suite, task))
        alignment.load_state_dict(kept)


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Equal, but for the padding that a wider batch adds."""
    tokens = slice(0, expected.shape[1])
    torch.testing.assert_close(found[:, tokens], expected, rtol=1e-4, atol=1e-5)


def alone(model: SharedModel, suite: Suite, task: str) -> Tensor:
    return model(batch_of(Suite([suite[task]])))[task]


def stirred(alignment: Alignment) -> None:
    with torch.no_grad():
        for p in alignment.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))


def test_dense_inputs_are_multiplied_from_the_right() -> None:
    suite, model = made("mlp")
    alignment = model.add_alignment(["a"], stage="input")
    stirred(alignment)
    turned = suite["a"].rows[Role.TRAIN].inputs.flatten(1) @ alignment.matrix("a")
    expected = model.head("a")(model.encoder(turned.view(7, 2, 3)))
    torch.testing.assert_close(model(batch_of(suite))["a"], expected)
    untouched = suite["b"].rows[Role.TRAIN].inputs
    torch.testing.assert_close(model(batch_of(suite))["b"], model.head("b")(model.encoder(untouched)))


def test_channels_are_turned_at_every_pixel_and_features_at_the_output() -> None:
    suite, model = made("lenet")
    alignment = model.add_alignment()
    stirred(alignment)
    images = suite["a"].rows[Role.TRAIN].inputs
    maps = torch.einsum("nchw,cd->ndhw", model.encoder.first(images), alignment.matrix("a"))
    maps = torch.relu(nn.functional.max_pool2d(maps, 2))
    maps = torch.relu(nn.functional.max_pool2d(model.encoder.second(maps), 2))
    expected = model.head("a")(torch.relu(model.encoder.linear(maps.flatten(1))))
    torch.testing.assert_close(model(batch_of(suite))["a"], expected)
    alignment = model.add_alignment(stage="output")
    stirred(alignment)
    torch.testing.assert_close(
        model(batch_of(suite))["b"],
        model.head("b")(model.encoder(suite["b"].rows[Role.TRAIN].inputs) @ alignment.matrix("b")),
    )


def test_orthogonal_stays_orthogonal_and_low_rank_low() -> None:
    _, model = made("mlp")
    alignment = model.add_alignment(matrix="orthogonal")
    stirred(alignment)
    turn = alignment.matrix("a")
    torch.testing.assert_close(turn @ turn.T, torch.eye(6), atol=1e-5, rtol=0)
    assert (turn - torch.eye(6)).abs().max() > 0.1
    alignment = model.add_alignment(matrix="low_rank", rank=2)
    stirred(alignment)
    assert torch.linalg.matrix_rank(alignment.matrix("a") - torch.eye(6)) == 2


@pytest.mark.parametrize("name", ["mlp", "lenet", "textcnn"])
def test_recorded_gradients_are_exact_with_matrices(name: str) -> None:
    suite, model = made(name)
    tasks = [t for t in suite.tasks if t != "b" or name != "mlp"]
    suite = Suite([suite[t] for t in tasks])
    model.eval()
    stirred(model.add_alignment())
    batch = batch_of(suite)
    part = batch.parts[0]
    rows = torch.cat([torch.full((m.rows.stop - m.rows.start,), i) for i, m in enumerate(part.members)])
    places = [model.tasks.index(t) for t in tasks]
    with gradients.record(model, rows) as tape:
        losses = model.losses(batch).means[places]
    found = tape.task_gradients(losses)
    for i, loss in enumerate(losses):
        names = list(found)
        expected = torch.autograd.grad(
            loss, [dict(model.named_parameters())[n] for n in names], retain_graph=True, materialize_grads=True,
            allow_unused=True,
        )  # fmt: skip
        for parameter, value in zip(names, expected, strict=True):
            torch.testing.assert_close(found[parameter][i], value, rtol=1e-4, atol=1e-6, msg=parameter)


class Watch(methods.get("alignment")):
    """Notes what moves in every step."""

    def step(self, job) -> None:
        before = job.snapshot()
        super().step(job)
        after = job.snapshot()
        moved = {name.split(".")[0] for name in after if not torch.equal(before[name], after[name])}
        seen.append((job.epoch, job.batch().tasks, moved, {n for n in after if not torch.equal(before[n], after[n])}))


seen: list[tuple] = []


def watched(suite: Suite, settings: dict | None = None, **options: object):
    seen.clear()
    method = Watch(**options)
    return testing.train(lambda: method, suite, keep="last", **(settings or {}))


def test_b_and_its_buffers_do_not_move_while_heads_and_matrices_do() -> None:
    watched(testing.suite(), warmup=0.34, settings={"optimizer": "AdamW", "optimizer_options": {"weight_decay": 0.5}})
    for epoch, _, moved, _ in seen:
        assert moved == ({"encoder", "heads"} if epoch == 0 else {"heads", "alignment"}), (epoch, moved)
    assert {epoch for epoch, *_ in seen} == {0, 1, 2}
    watched(testing.suite(), steps="joint")
    assert all(moved == {"encoder", "heads", "alignment"} for _, _, moved, _ in seen)


def test_a_batch_moves_its_own_task_alone() -> None:
    watched(testing.suite(), warmup=0, settings={"batching": "one_task"})
    assert {tasks for _, tasks, _, _ in seen} == {("task0",), ("task1",), ("task2",)}
    for _, tasks, _, names in seen:
        assert {name.split(".")[1] for name in names if name.startswith("heads")} == set(tasks)
        assert {name.split(".")[2] for name in names if name.startswith("alignment")} == set(tasks)


def test_heads_step_first_and_the_matrix_answers_to_the_new_head() -> None:
    suite = testing.suite(tasks=1)
    torch.manual_seed(0)
    model = SharedModel(nn.Linear(5, 3, bias=False), suite)
    given = copy.deepcopy(model)
    method = methods.get("alignment")(warmup=0)
    settings = {"optimizer": "SGD", "learning_rate": 0.1, "epochs": 1, "steps_per_epoch": 1, "batch_size": 24}
    run = fit(suite, model, method, training=settings | {"keep": "last", "device": "cpu"}, progress=False)
    rows = suite["task0"].rows[Role.TRAIN]
    inputs, labels, head = rows.inputs, rows.labels, given.head("task0")
    loss = nn.functional.cross_entropy(head(given.encoder(inputs)), labels)
    weight, bias = torch.autograd.grad(loss, [head.weight, head.bias])
    with torch.no_grad():
        head.weight -= 0.1 * weight
        head.bias -= 0.1 * bias
    matrix = torch.eye(5, requires_grad=True)
    (slope,) = torch.autograd.grad(nn.functional.cross_entropy(head(given.encoder(inputs @ matrix)), labels), [matrix])
    torch.testing.assert_close(run.model.head("task0").weight, head.weight)
    torch.testing.assert_close(run.model.alignment.matrix("task0"), torch.eye(5) - 0.1 * slope)


def test_transfer_gives_the_target_alone_a_matrix_and_holds_b() -> None:
    run = watched(testing.suite(), tasks="target", settings={"paradigm": "pretrain", "finetune_epochs": 2})
    assert run.model.alignment.tasks == ("task0",)
    pretrained = [moved for _, tasks, moved, _ in seen if "task0" not in tasks]
    tuned = [moved for _, tasks, moved, _ in seen if tasks == ("task0",)]
    assert pretrained
    assert all(moved == {"encoder", "heads"} for moved in pretrained)
    assert tuned
    assert all(moved == {"heads", "alignment"} for moved in tuned)


@pytest.mark.parametrize("matrix", MATRICES)
def test_a_run_is_read_back_with_its_matrices(tmp_path, matrix: str) -> None:
    suite = testing.suite()
    method = methods.get("alignment")(matrix=matrix, warmup=0, tasks="target")
    options = {"hidden": (4,)}
    run = fit(suite, "mlp", method, encoder_options=options, epochs=1, device="cpu", keep="last", out=tmp_path / "r",
              progress=False)  # fmt: skip
    again = load(tmp_path / "r")
    inputs = suite["task0"].rows[Role.DEV_SELECT].inputs
    assert torch.equal(again.outputs(inputs), run.outputs(inputs))
    assert not torch.equal(again.model.alignment.matrix("task0"), torch.eye(5))


def test_what_cannot_be_is_told() -> None:
    suite, model = made("mlp")
    with pytest.raises(SteelyardError, match="no embedding stage 'wrods'; choose input, output"):
        model.add_alignment(stage="wrods")
    with pytest.raises(SteelyardError, match="task 'aa' is unknown"):
        model.add_alignment(["aa"])
    bare = SharedModel(encoders.MLP((2, 3), hidden=(4,)), Suite([suite["a"], suite["b"]]))
    with pytest.raises(SteelyardError, match="the suite has no target"):
        methods.get("alignment")(tasks="target").adapt(bare)
    _, words = made("textcnn")
    with pytest.raises(SteelyardError, match="does not begin with a linear layer"):
        words.add_alignment(stage="input")
    images, lenet = made("lenet")
    lenet.add_alignment(stage="linear")
    lenet.alignment.stage = Stage("first", 50)
    with pytest.raises(SteelyardError, match=r"stage 'first' gives torch\.float32 of shape \[12, 10, 12, 12\]"):
        lenet(batch_of(images))
    method = methods.get("alignment")()
    with pytest.raises(SteelyardError, match="call method"):
        method.step(types.SimpleNamespace(batch=lambda: batch_of(suite), model=bare))
