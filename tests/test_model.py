"""The shared model: outputs, losses, scopes and predictions, against computations by hand."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steelyard import encoders
from steelyard.errors import SteelyardError
from steelyard.model import SharedModel, evaluating
from steelyard.tasks import IGNORE, Batch, Inputs, Member, Part, Ragged, Role, Rows, Suite, Task, collate

TEXTS = Ragged.of([[1, 2, 3, 4], [5, 6], [7], [2, 9, 1]])
TAGS = Ragged.of([[0, 1, 2, 0], [1, IGNORE], [2], [0, 0, 1]])


class Tokens(nn.Module):
    """A text encoder without a width that draws random numbers and changes buffers, even in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, ids: Tensor, _mask: Tensor) -> Tensor:
        self.calls = self.calls + 1
        self.steps += torch.rand(()) + 1
        return self.dropout(self.norm(self.table(ids).transpose(1, 2)).transpose(1, 2))


def dense_suite(**names: str) -> Suite:
    numbers = torch.arange(24.0).reshape(6, 4) / 10
    others = numbers.flip(0)[:5] - 1
    return Suite(
        [
            Task("class", "classification", {"train": Rows(numbers, torch.tensor([0, 1, 2, 0, 1, IGNORE]))}),
            Task("value", "regression", {"train": Rows(others, torch.tensor([0.5, 1, torch.nan, 2, 3]))}),
            Task(
                "many",
                "multilabel",
                {"train": Rows(numbers, torch.tensor([[0.0, 1], [torch.nan, 1], [1, 1], [0, 0], [1, 0], [0, 1]]))},
            ),
        ],
        **names,
    )


def text_suite() -> Suite:
    labels = torch.tensor([0, 1, IGNORE, 1])
    return Suite(
        [
            Task("topic", "classification", {"train": Rows(TEXTS, labels)}),
            Task("tags", "tagging", {"train": Rows(TEXTS, TAGS)}),
        ]
    )


def batch_of(suite: Suite, *groups: tuple[str, ...], rows: int | None = None) -> Batch:
    """One group per tuple of tasks that share their inputs."""
    chosen = []
    for tasks in groups:
        inputs: Inputs = suite[tasks[0]].rows[Role.TRAIN].inputs
        labels = [(task, suite[task].rows[Role.TRAIN].labels) for task in tasks]
        chosen.append((inputs, torch.arange(rows or len(inputs)), labels))
    return collate(chosen)


def count_calls(module: nn.Module) -> list[int]:
    calls: list[int] = []
    module.register_forward_hook(lambda _module, inputs, _output: calls.append(len(inputs[0])))
    return calls


def test_losses_are_those_of_separate_computations() -> None:
    suite = dense_suite()
    model = SharedModel(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), suite)
    losses = model.losses(batch_of(suite, ("value",), ("class", "many")))

    def outputs(task: str) -> tuple[Tensor, Tensor]:
        rows = suite[task].rows[Role.TRAIN]
        return model.head(task)(model.encoder(rows.inputs)), rows.labels

    logits, labels = outputs("class")
    values, targets = outputs("value")
    many, given = outputs("many")
    known = ~given.isnan()
    expected = [
        F.cross_entropy(logits[:5], labels[:5], reduction="sum"),
        (values.squeeze(1) - targets)[[0, 1, 3, 4]].square().sum(),
        F.binary_cross_entropy_with_logits(many[known], given[known], reduction="sum"),
    ]
    torch.testing.assert_close(losses.sums, torch.stack(expected))
    torch.testing.assert_close(losses.counts, torch.tensor([5.0, 4, 11]))
    torch.testing.assert_close(losses.means, torch.stack(expected) / torch.tensor([5.0, 4, 11]))


def test_rows_of_all_tasks_go_through_the_encoder_in_one_call() -> None:
    suite = dense_suite()
    model = SharedModel(nn.Linear(4, 8), suite, width=8)
    calls = count_calls(model.encoder)
    model.losses(batch_of(suite, ("class", "many"), ("value",)))
    assert calls == [11]  # shared rows once
    text = text_suite()
    model = SharedModel(encoders.TextCNN(10, size=4, channels=2), text)
    calls = count_calls(model.encoder)
    model.losses(batch_of(text, ("topic",), ("tags",)))
    assert calls == [8]


def test_two_shapes_take_two_calls() -> None:
    first = Task("first", "regression", {"train": Rows(torch.randn(3, 4), torch.randn(3))})
    second = Task("second", "regression", {"train": Rows(torch.randn(2, 2, 2), torch.randn(2))})
    suite = Suite([first, second])
    model = SharedModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), suite)
    calls = count_calls(model.encoder)
    assert model.losses(batch_of(suite, ("first",), ("second",))).counts.tolist() == [3, 2]
    assert calls == [3, 2]


@pytest.mark.parametrize("rows", [(slice(0, 3), slice(2, 5)), (slice(1, 3), slice(3, 4)), (slice(3, 5), slice(0, 3))])
def test_members_get_their_own_rows_however_they_lie(rows: tuple[slice, slice]) -> None:
    suite = dense_suite()
    model = SharedModel(nn.Linear(4, 8), suite)
    inputs = torch.randn(5, 4)
    members = tuple(Member(task, cut, torch.zeros(3)) for task, cut in zip(["class", "value"], rows, strict=True))
    outputs = model(Batch((Part(inputs, None, members),)))
    for task, cut in zip(["class", "value"], rows, strict=True):
        torch.testing.assert_close(outputs[task], model.head(task)(model.encoder(inputs[cut])))


def test_tagging_reads_tokens_and_other_tasks_the_mean_over_real_tokens() -> None:
    suite = text_suite()
    model = SharedModel(Tokens(), suite).eval()
    batch = batch_of(suite, ("topic", "tags"))
    part = batch.parts[0]
    features = model.encoder(part.inputs, part.mask)
    outputs = model(batch)
    torch.testing.assert_close(outputs["tags"], model.head("tags")(features))
    mean = torch.stack([row[:n].mean(0) for row, n in zip(features, [4, 2, 1, 3], strict=True)])
    torch.testing.assert_close(outputs["topic"], model.head("topic")(mean))
    tags = part.members[1].labels
    expected = F.cross_entropy(outputs["tags"].flatten(0, 1), tags.flatten(), ignore_index=IGNORE)
    torch.testing.assert_close(model.losses(batch, outputs).means[1], expected)
    assert model.losses(batch, outputs).counts.tolist() == [3, 9]


def test_the_encoders_own_pool_is_used_if_it_takes_features_and_mask() -> None:
    suite = text_suite()
    model = SharedModel(encoders.LSTM(10, size=4, hidden=3), suite)
    batch = batch_of(suite, ("topic",))
    part = batch.parts[0]
    features = model.encoder(part.inputs, part.mask)
    maxima = torch.stack([row[:n].amax(0) for row, n in zip(features, [4, 2, 1, 3], strict=True)])
    torch.testing.assert_close(model(batch)["topic"], model.head("topic")(maxima))

    tokens = Tokens()
    tokens.pool = nn.MaxPool1d(2)  # a layer of the encoder's own that merely has this name
    model = SharedModel(tokens, suite).eval()
    without = copy.deepcopy(model)
    del without.encoder.pool
    without._pools = False
    torch.testing.assert_close(model(batch)["topic"], without(batch)["topic"])


def test_absent_tasks_hold_zero_and_an_empty_batch_is_all_zero() -> None:
    suite = dense_suite()
    model = SharedModel(nn.Linear(4, 8), suite)
    losses = model.losses(batch_of(suite, ("value",)))
    assert losses.counts.tolist() == [0, 4, 0]
    assert losses.sums[0] == losses.sums[2] == losses.means[0] == 0
    assert losses.sums[1] > 0
    assert model.losses(Batch(())).counts.tolist() == [0, 0, 0]


def test_rows_without_labels_cost_nothing_and_give_no_nan() -> None:
    suite = dense_suite()
    model = SharedModel(nn.Linear(4, 8), suite)
    full = batch_of(suite, ("class", "many"), ("value",))
    part = full.parts[0]
    bare = Part(
        part.inputs,
        None,
        tuple(
            Member(
                m.task,
                m.rows,
                torch.full_like(m.labels, torch.nan if m.labels.is_floating_point() else IGNORE),
            )
            for m in part.members
        ),
    )
    losses = model.losses(Batch((bare,)))
    assert losses.sums.tolist() == losses.counts.tolist() == losses.means.tolist() == [0, 0, 0]
    losses.means.sum().backward()
    assert all(p.grad is not None and (p.grad == 0).all() for p in model.parameters())


def test_row_losses_sum_to_losses_and_name_their_tasks_in_order() -> None:
    suite = dense_suite()
    model = SharedModel(nn.Linear(4, 8), suite)
    batch = batch_of(suite, ("value",), ("class", "many"))
    rows = model.row_losses(batch)
    losses = model.losses(batch)
    assert tuple(rows) == batch.tasks == ("value", "class", "many")
    assert [len(values) for values, _ in rows.values()] == [5, 6, 6]
    for i, task in enumerate(model.tasks):
        torch.testing.assert_close(rows[task][0].sum(), losses.sums[i])
        torch.testing.assert_close(rows[task][1].sum(), losses.counts[i])
    assert rows["value"][1].tolist() == [1, 1, 0, 1, 1]


def test_given_outputs_are_not_computed_again() -> None:
    suite = dense_suite()
    model = SharedModel(nn.Linear(4, 8), suite)
    batch = batch_of(suite, ("class",))
    outputs = model(batch)
    calls = count_calls(model.encoder)
    losses = model.losses(batch, {"class": outputs["class"] * 0})
    assert not calls
    torch.testing.assert_close(losses.means[0], torch.tensor(3.0).log())


def test_a_task_twice_in_a_batch_is_refused() -> None:
    suite = dense_suite()
    model = SharedModel(nn.Linear(4, 8), suite)
    with pytest.raises(SteelyardError, match="task 'class' is in this batch twice"):
        model(batch_of(suite, ("class",), ("class",)))


def test_half_precision_losses_are_summed_in_single() -> None:
    suite = dense_suite()
    model = SharedModel(nn.Linear(4, 8).bfloat16(), suite, width=8)
    assert {p.dtype for p in model.heads.parameters()} == {torch.bfloat16}
    batch = batch_of(suite, ("class",))
    part = batch.parts[0]
    half = Batch((Part(part.inputs.bfloat16(), None, part.members),))
    outputs = model(half)
    assert outputs["class"].dtype == torch.bfloat16
    losses = model.losses(half, outputs)
    assert losses.sums.dtype == torch.float32
    expected = F.cross_entropy(outputs["class"].float()[:5], part.members[0].labels[:5], reduction="sum")
    torch.testing.assert_close(losses.sums[0], expected)


def test_scopes_split_the_parameters() -> None:
    model = SharedModel(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8)), dense_suite())
    every = dict(model.named_parameters())
    assert model.scope("all") == every
    assert list(model.scope("shared")) == [f"encoder.{i}.{name}" for i in (0, 1) for name in ("weight", "bias")]
    assert model.scope("shared") | model.scope("heads") == every
    assert list(model.scope(r"1\.weight$|value")) == [
        "encoder.1.weight",
        "heads.value.weight",
        "heads.value.bias",
    ]
    assert model.scope("shared")["encoder.0.weight"] is model.encoder[0].weight


@pytest.mark.parametrize(("name", "message"), [("shard", "encoder.0.weight"), ("(", "not a regular expression")])
def test_a_scope_that_is_not_there_is_told_in_one_line(name: str, message: str) -> None:
    model = SharedModel(nn.Sequential(nn.Linear(4, 8)), dense_suite())
    with pytest.raises(SteelyardError) as caught:
        model.scope(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tied_parameters_appear_once_under_their_first_name() -> None:
    encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    encoder[2].weight = encoder[0].weight
    suite = Suite(
        [
            Task(
                "tied",
                "classification",
                {"train": Rows(torch.randn(4, 4), torch.arange(4))},
                head=lambda _width, _outputs: encoder[2],
            )
        ]
    )
    model = SharedModel(encoder, suite)
    assert list(model.scope("all")) == ["encoder.0.weight", "encoder.0.bias", "encoder.2.bias"]
    assert list(model.scope(r"2\.weight")) == ["encoder.0.weight"]
    assert list(model.scope(r"heads\.")) == ["encoder.0.weight", "encoder.2.bias"]
    with pytest.raises(SteelyardError, match="scope 'heads' is empty"):
        model.scope("heads")


def test_a_frozen_encoder_leaves_its_heads_to_train() -> None:
    suite = dense_suite()
    encoder = nn.Linear(4, 8).requires_grad_(False)
    model = SharedModel(encoder, suite)
    model.losses(batch_of(suite, ("class", "many"), ("value",))).means.sum().backward()
    assert encoder.weight.grad is None
    assert all(p.grad is not None for p in model.heads.parameters())
    assert len(model.scope("shared")) == 2
    assert model.scope("all", trainable=True) == model.scope("heads")
    with pytest.raises(SteelyardError, match="all frozen"):
        model.scope("shared", trainable=True)


def test_names_that_modules_cannot_have_are_escaped_and_stay_apart() -> None:
    names = ["a.b", "a%2Eb", "keys", "keys%", "training", "type", "ß 1", "forward"]
    suite = Suite([Task(name, "regression", {"train": Rows(torch.randn(2, 3), torch.randn(2))}) for name in names])
    model = SharedModel(nn.Linear(3, 2), suite)
    assert len({id(model.head(name)) for name in names}) == len(model.heads) == len(names)
    batch = batch_of(suite, *((name,) for name in names))
    assert tuple(model(batch)) == tuple(names)
    assert list(model.scope("a%2Eb"))[:1] == ["heads.a%2Eb.weight"]
    again = SharedModel(nn.Linear(3, 2), suite)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again.losses(batch).sums, model.losses(batch).sums)
    with pytest.raises(SteelyardError, match=r"task 'kyes' is unknown; did you mean 'keys'"):
        model.head("kyes")


def test_width_is_declared_or_found_without_a_trace() -> None:
    suite = text_suite()
    encoder = Tokens()
    encoder.dropout.eval()
    torch.manual_seed(1)
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in encoder.state_dict().items()}
    modes = {name: module.training for name, module in encoder.named_modules()}
    buffer = encoder.calls
    fork = torch.Generator()
    fork.set_state(state)
    calls = count_calls(encoder)
    model = SharedModel(encoder, suite)
    assert calls == [2]
    assert model.width == 6
    assert {name: module.training for name, module in encoder.named_modules()} == modes
    assert not modes["dropout"]
    assert modes["norm"]
    torch.testing.assert_close(dict(encoder.state_dict()), before, rtol=0, atol=0)
    assert encoder.calls is buffer
    # The first random numbers after the seed are the first head's.
    expected = torch.empty(2, 6).uniform_(-1 / 6**0.5, 1 / 6**0.5, generator=fork)
    torch.testing.assert_close(model.head("topic").weight.data, expected, rtol=0, atol=0)


def test_width_can_be_said_and_must_be_where_there_are_no_rows() -> None:
    bare = Suite([Task("t", "regression", {}, outputs=1)])
    with pytest.raises(SteelyardError, match="width="):
        SharedModel(nn.Linear(4, 5), bare)
    assert SharedModel(nn.Linear(4, 5), bare, width=5).head("t").weight.shape == (1, 5)
    calls = count_calls(encoder := encoders.MLP((4,), hidden=(3,)))
    assert SharedModel(encoder, dense_suite()).width == 3
    assert not calls


def test_unfit_encoders_are_told_in_one_line() -> None:
    dense, text = dense_suite(), text_suite()
    with pytest.raises(SteelyardError, match=r"Embedding cannot read text.*\(ids"):
        SharedModel(nn.Embedding(10, 3), text)
    images = Rows(torch.randn(4, 1, 4, 4), torch.arange(4))
    image_suite = Suite([Task("t", "classification", {"train": images})])
    with pytest.raises(SteelyardError, match=r"shape \[2, 3, 2, 2\]"):
        SharedModel(nn.Conv2d(1, 3, 3), image_suite)

    class Bag(nn.Module):
        width = 3

        def __init__(self, keep: int | None) -> None:
            super().__init__()
            self.keep = keep

        def forward(self, ids: Tensor, _mask: Tensor) -> Tensor:
            features = ids.unsqueeze(2).expand(-1, -1, 3) * 1.0
            return features.mean(1) if self.keep is None else features[:, : self.keep]

    for keep in (None, 2):
        model = SharedModel(Bag(keep), text)
        with pytest.raises(SteelyardError, match="task 'tags' tags tokens"):
            model(batch_of(text, ("tags",)))
        if keep is None:
            assert model(batch_of(text, ("topic",)))["topic"].shape == (4, 2)
    with pytest.raises(SteelyardError, match="unknown"):
        SharedModel(nn.Linear(4, 3), dense).predict(torch.randn(2, 4), "nothing")


def test_predict_gives_the_outputs_in_order_and_restores_every_mode() -> None:
    suite = text_suite()
    torch.manual_seed(0)
    model = SharedModel(Tokens(), suite)
    model.encoder.norm.eval()
    modes = [module.training for module in model.modules()]
    before = model.encoder.norm.running_mean.clone()
    lengths = []
    model.encoder.register_forward_pre_hook(lambda _module, inputs: lengths.append(inputs[0].shape[1]))
    found = model.predict(TEXTS, "topic", batch_size=2)
    tags = model.predict(TEXTS, "tags", batch_size=2)
    assert [module.training for module in model.modules()] == modes
    assert lengths[:2] == [2, 4]  # short texts together
    torch.testing.assert_close(model.encoder.norm.running_mean, before)
    assert not found.requires_grad
    with evaluating(model):
        whole = model(batch_of(suite, ("topic", "tags")))
    torch.testing.assert_close(found, whole["topic"])
    assert tags.shape == (4, 4, 3)
    real = TEXTS.padded(torch.arange(4))[1]
    torch.testing.assert_close(tags[real], whole["tags"][real])
    assert (tags[~real] == 0).all()
    assert model.predict(Ragged.of([]), "tags").shape == (0, 0, 3)
    assert model.predict(Ragged.of([]), "topic").shape == (0, 2)


def test_predict_on_numbers_in_batches() -> None:
    suite = dense_suite()
    model = SharedModel(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5)), suite)
    calls = count_calls(model.encoder)
    inputs = torch.randn(5, 4)
    found = model.predict(inputs, "value", batch_size=2)
    assert calls == [2, 2, 1]
    torch.testing.assert_close(found, model.head("value")(model.encoder[0](inputs)))


def test_modes_come_back_after_an_error() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    seen = []

    def fail() -> None:
        with evaluating(model):
            seen.append(model[0].training)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [False]
    assert (model.training, model[0].training, model[1].training) == (True, True, False)


def test_the_model_keeps_no_rows_and_copies_and_pickles() -> None:
    rows = Rows(torch.randn(20_000, 4), torch.randn(20_000))
    suite = Suite([Task("t", "regression", {"train": rows})])
    model = SharedModel(nn.Linear(4, 2), suite)
    stored = io.BytesIO()
    pickle.dump(model, stored)
    assert stored.tell() < 20_000
    twin = copy.deepcopy(model)
    twin.head("t").weight.data.zero_()
    assert model.head("t").weight.abs().sum() > 0
    assert (twin.predict(torch.randn(2, 4), "t") == twin.head("t").bias).all()


def test_same_seed_same_model() -> None:
    def build() -> dict[str, Tensor]:
        torch.manual_seed(3)
        return SharedModel(nn.Linear(4, 8), dense_suite()).state_dict()

    torch.testing.assert_close(dict(build()), dict(build()), rtol=0, atol=0)


def test_a_compiled_model_gives_the_same_losses() -> None:
    suite = dense_suite()
    model = SharedModel(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), suite)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for groups in [(("class", "many"), ("value",)), (("value",),)]:
        batch = batch_of(suite, *groups)
        torch.testing.assert_close(model.losses(batch, compiled(batch)).sums, model.losses(batch).sums)
    assert SharedModel(torch.compile(nn.Linear(4, 8), backend="eager"), suite).width == 8


def test_lazy_encoders_find_their_size() -> None:
    model = SharedModel(nn.Sequential(nn.LazyLinear(7), nn.LazyBatchNorm1d()), dense_suite())
    assert model.width == 7
    assert model.encoder[1].running_mean.tolist() == [0.0] * 7
