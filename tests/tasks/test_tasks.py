"""Tasks, roles and suites: what is refused, what is inferred."""

import pytest
import torch

from steelyard import Ragged, Role, Rows, SteelyardError, Suite, Task
from steelyard.tasks import IGNORE, LOSSES, Kind, Units, carve, collate


def rows(n=6, seed=0, classes=2):
    generator = torch.Generator().manual_seed(seed)
    return Rows(torch.randn(n, 3, generator=generator), torch.arange(n) % classes)


def test_one_set_in_two_roles_is_refused_unless_that_pair_is_allowed():
    same = rows()
    with pytest.raises(SteelyardError, match=r"train of task 'a' and probe of task 'a'.*allow"):
        Task("a", "classification", {"train": same, "probe": same})
    Task("a", "classification", {"train": same, "probe": same}, allow=[("train", "probe")])
    with pytest.raises(SteelyardError, match="dev_select"):
        Task("a", "classification", {"train": same, "dev_select": same}, allow=[("train", "probe")])


def test_equal_copies_and_overlapping_views_are_one_set_too():
    first = rows()
    copy = Rows(first.inputs.clone(), first.labels.clone())
    with pytest.raises(SteelyardError, match="same rows"):
        Task("a", "classification", {"train": first, "test": copy})
    whole = torch.randn(10, 3)
    labels = torch.arange(10) % 2
    overlapping = {"train": Rows(whole[:6], labels[:6]), "test": Rows(whole[5:], labels[5:])}
    with pytest.raises(SteelyardError, match="same rows"):
        Task("a", "classification", overlapping)
    Task("a", "classification", {"train": Rows(whole[:5], labels[:5]), "test": Rows(whole[5:], labels[5:])})


def test_a_source_may_not_train_on_the_targets_test_rows():
    test = rows(seed=1)
    target = Task("target", "classification", {"train": rows(), "test": test})
    source = Task("source", "classification", {"train": Rows(test.inputs, 1 - test.labels)})
    with pytest.raises(SteelyardError, match="test of task 'target' and train of task 'source'"):
        Suite([target, source], target="target")
    Suite([target, source], target="target", allow=[("train", "test")])


def test_tasks_may_share_rows_in_the_same_role():
    shared = rows()
    layers = [Task(name, "classification", {"train": Rows(shared.inputs, shared.labels)}) for name in "ab"]
    assert Suite(layers).sizes() == {"a": 6, "b": 6}


@pytest.mark.parametrize(
    ("kind", "labels", "outputs"),
    [
        ("classification", torch.tensor([0, 2, 1, IGNORE]), 3),
        ("regression", torch.tensor([0.5, 1, float("nan"), 2]), 1),
        ("regression", torch.randn(4, 3), 3),
        ("multilabel", torch.tensor([[0.0, 1], [1, float("nan")], [1, 0], [0, 0]]), 2),
        ("tagging", Ragged.of([[0, 1], [2], [1, 1, 0], [IGNORE]]), 3),
    ],
)
def test_outputs_are_inferred(kind, labels, outputs):
    inputs = Ragged(labels.values.clamp(min=1), labels.offsets) if kind == "tagging" else torch.randn(4, 2)
    assert Task("a", kind, {"train": Rows(inputs, labels)}).outputs == outputs


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Task("a", "clasification", {}, outputs=2), "must be one of classification"),
        (lambda: Task("a", "classification", {"tain": rows()}), "role must be one of train"),
        (lambda: Task("a", "classification", {}), "no data"),
        (lambda: Task("a", "classification", {"train": rows(0)}), "no rows"),
        (lambda: Task("a", "regression", {"train": rows()}), "needs labels of type torch.float32"),
        (lambda: Task("a", "classification", {"train": rows(classes=4)}, classes=("x", "y")), "outside the 2 classes"),
        (lambda: Task("a", "tagging", {"train": rows()}), "one tag per token"),
        (lambda: Rows(torch.randn(3, 2), torch.zeros(2)), "3 inputs but 2 labels"),
        (
            lambda: Task("a", "classification", {"train": Rows(torch.randn(2, 2), torch.tensor([-100, -100]))}),
            "no row has",
        ),
        (lambda: Suite([]), "at least one task"),
        (lambda: Suite([Task("a", "classification", {"train": rows()})], target="b"), "target 'b' is not among"),
        (lambda: Suite([Task("a", "classification", {"train": rows(seed=i)}) for i in range(2)]), "two tasks"),
    ],
)
def test_bad_tasks_are_refused_in_a_line(make, says):
    with pytest.raises(SteelyardError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_feature_that_is_not_a_number_is_named_with_its_row():
    bad = rows()
    bad.inputs[4, 1] = float("nan")
    numbered = Rows(bad.inputs, bad.labels, "table.csv", torch.arange(6) + 10)
    with pytest.raises(SteelyardError, match=r"task 'a', role train: 1 rows .*table.csv, row 15"):
        Task("a", "classification", {"train": numbered})


def test_ragged_rows_pad_select_and_collate():
    texts = Ragged.of([[1, 2, 3], [], [4], [5, 6]])
    ids, mask = texts.padded(torch.tensor([3, 0, 1]), fill=9)
    assert ids.tolist() == [[5, 6, 9], [1, 2, 3], [9, 9, 9]]
    assert mask.sum(1).tolist() == [2, 3, 0]
    chosen = texts.select(torch.tensor([3, 1, 0]))
    assert chosen.values.tolist() == [5, 6, 1, 2, 3]
    assert chosen.offsets.tolist() == [0, 2, 2, 5]
    labels = torch.arange(4)
    long = Ragged.of([[7] * 5])
    batch = collate([(texts, torch.tensor([0, 2]), [("a", labels)]), (long, torch.tensor([0]), [("b", labels[:1])])])
    assert len(batch.parts) == 1
    assert batch.parts[0].inputs.tolist() == [[1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [7] * 5]
    assert [(m.task, m.rows, m.labels.tolist()) for m in batch.parts[0].members] == [
        ("a", slice(0, 2), [0, 2]),
        ("b", slice(2, 3), [0]),
    ]


def test_rows_of_different_shapes_make_parts():
    a, b = torch.randn(3, 4), torch.randn(2, 5)
    index = torch.arange(2)
    batch = collate([(a, index, [("a", torch.zeros(3))]), (b, index, [("b", torch.zeros(2))])])
    assert [tuple(part.inputs.shape) for part in batch.parts] == [(2, 4), (2, 5)]


def test_row_losses_are_torchs_own_on_labelled_rows():
    logits, classes = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 2, IGNORE, 1, 1])
    loss, count = LOSSES[Kind.CLASSIFICATION](logits, classes)
    expected = torch.nn.functional.cross_entropy(logits, classes, ignore_index=IGNORE)
    assert torch.allclose(loss.sum() / count.sum(), expected)
    values = torch.tensor([0.5, float("nan"), 2.0, -1.0, 0.0], dtype=torch.float64)
    loss, count = LOSSES[Kind.REGRESSION](logits[:, :1], values)
    given = ~values.isnan()
    assert torch.allclose(loss.sum() / count.sum(), (logits[given, 0] - values[given]).square().mean())
    many = torch.tensor([[1, 0, float("nan")]] * 5, dtype=torch.float64)
    loss, count = LOSSES[Kind.MULTILABEL](logits, many)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits[:, :2], many[:, :2])
    assert torch.allclose(loss.sum() / count.sum(), expected)
    tags = torch.tensor([[0, 1, IGNORE], [2, IGNORE, IGNORE]])
    outputs = torch.randn(2, 3, 3, dtype=torch.float64)
    loss, count = LOSSES[Kind.TAGGING](outputs, tags)
    expected = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), tags.flatten(), ignore_index=IGNORE)
    assert count.tolist() == [2, 1]
    assert torch.allclose(loss.sum() / count.sum(), expected)


def test_a_rows_loss_is_differentiable_beside_missing_labels():
    outputs = torch.randn(3, 2, requires_grad=True)
    labels = torch.tensor([[1.0, float("nan")], [float("nan")] * 2, [0.0, 1.0]])
    for kind in (Kind.MULTILABEL, Kind.REGRESSION):
        loss, _ = LOSSES[kind](outputs, labels)
        (gradient,) = torch.autograd.grad(loss.sum(), outputs)
        assert gradient.isfinite().all()
        assert (gradient[labels.isnan()] == 0).all()


def test_roles_are_what_the_design_names():
    assert {str(role) for role in Role} == {"train", "support", "query", "probe", "dev_meta", "dev_select", "test"}


def test_carving_moves_rows_and_keeps_the_rest():
    labels = torch.arange(40) % 4
    task = Task("a", "classification", {"train": Rows(torch.arange(40.0)[:, None], labels)})
    carved = carve(Suite([task]), Role.QUERY, Role.TRAIN, 0.25, seed=1)["a"].rows
    query, train = carved[Role.QUERY], carved[Role.TRAIN]
    assert sorted([*query.inputs[:, 0].tolist(), *train.inputs[:, 0].tolist()]) == list(range(40))
    assert query.labels.bincount().tolist() == [2, 3, 2, 3] or sorted(query.labels.bincount().tolist()) == [2, 2, 3, 3]
    again = carve(Suite([task]), Role.QUERY, Role.TRAIN, 0.25, seed=1)["a"].rows[Role.QUERY]
    other = carve(Suite([task]), Role.QUERY, Role.TRAIN, 0.25, seed=2)["a"].rows[Role.QUERY]
    assert torch.equal(again.inputs, query.inputs)
    assert not torch.equal(other.inputs, query.inputs)
    assert torch.equal(query.labels, query.inputs[:, 0].long() % 4)


def test_carved_rows_stay_shared():
    inputs = torch.randn(20, 3)
    tasks = [
        Task(name, "classification", {"train": Rows(inputs, torch.arange(20) % k)}) for name, k in (("a", 2), ("b", 3))
    ]
    suite = carve(Suite(tasks), Role.DEV_META, Role.TRAIN, 0.2, seed=0)
    for role in (Role.TRAIN, Role.DEV_META):
        assert suite["a"].rows[role].inputs is suite["b"].rows[role].inputs


def test_units_are_those_of_the_labels_that_are_given():
    labels = torch.tensor([[10.0, 5.0], [30.0, 5.0], [float("nan"), 5.0]])
    units = Units.of(labels)
    assert units == Units((20.0, 5.0), (10.0, 1.0))
    assert torch.equal(units.standard(labels[:2]), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    assert torch.allclose(units.own(units.standard(labels)), labels, equal_nan=True)
    one = Units.of(labels[:2, 0])
    assert torch.equal(one.standard(labels[:2, 0]), torch.tensor([-1.0, 1.0]))
    assert torch.equal(one.own(torch.tensor([[0.5], [-2.0]])), torch.tensor([[25.0], [0.0]]))


def test_units_are_for_regressions_with_as_many_outputs():
    rows = {"train": Rows(torch.randn(2, 3), torch.tensor([0, 1]))}
    with pytest.raises(SteelyardError, match="units are for"):
        Task("a", "classification", rows, units=Units((0.0, 0.0), (1.0, 1.0)))
    with pytest.raises(SteelyardError, match="units are for the 1 outputs"):
        Task("a", "regression", {"train": Rows(torch.randn(2, 3), torch.randn(2))}, units=Units((0.0,) * 2, (1.0,) * 2))
