"""Batches are a function of seed and step, see every row once per pass, and share what is shared."""

import pytest
import torch

from steelyard import Ragged, Rows, SteelyardError, Suite, Task
from steelyard.tasks import IGNORE, Role, cut
from steelyard.training import Training
from steelyard.training.batching import Batcher, draw, label_counts, seeded


def suite(sizes=(10, 25, 40)):
    """Each row's only feature is its number, so that batches can be read."""
    tasks = [
        Task(
            f"t{t}", "classification", {"train": Rows(torch.arange(float(n))[:, None] + 1000 * t, torch.arange(n) % 2)}
        )
        for t, n in enumerate(sizes)
    ]
    return Suite(tasks, target="t0")


def seen(batch):
    return {m.task: part.inputs[m.rows, 0].tolist() for part in batch.parts for m in part.members}


def batcher(data=None, rank=0, world=1, **settings):
    data = data or suite()
    return Batcher(data, tuple(data.tasks), Training(**{"batch_size": 5, "seed": 3, **settings}), rank, world)


def test_any_step_can_be_asked_for_in_any_order():
    first, second = batcher(), batcher()
    forward = [seen(first.batch(step)) for step in range(20)]
    assert [seen(second.batch(step)) for step in reversed(range(20))][::-1] == forward
    assert forward != [seen(batcher(seed=4).batch(step)) for step in range(20)]


def test_every_pass_sees_every_row_once():
    made = batcher()
    rows = [row for step in range(10) for row in seen(made.batch(step))["t1"]]
    assert sorted(rows[:25]) == sorted(rows[25:50]) == [1000.0 + i for i in range(25)]
    assert rows[:25] != rows[25:50]


def test_an_epoch_is_as_many_rows_as_the_tasks_have():
    assert batcher().steps == 75 // 15
    assert batcher(steps_per_epoch=7).steps == 7
    proportional = batcher(sampling="proportional")
    assert {name: len(rows) for name, rows in seen(proportional.batch(0)).items()} == {"t0": 2, "t1": 5, "t2": 8}


@pytest.mark.parametrize("sampling", ["balanced", "proportional"])
def test_one_task_per_step(sampling):
    made = batcher(batching="one_task", sampling=sampling)
    turns = [made.batch(step) for step in range(2 * made.steps)]
    assert all(len(batch.tasks) == 1 for batch in turns)
    counts = {f"t{t}": sum(batch.tasks == (f"t{t}",) for batch in turns[: made.steps]) for t in range(3)}
    assert counts == ({"t0": 5, "t1": 5, "t2": 5} if sampling == "balanced" else {"t0": 2, "t1": 5, "t2": 8})
    rows = [row for batch in turns[: made.steps] for row in seen(batch).get("t2", [])]
    assert len(set(rows)) == len(rows), "a pass repeats a row"
    total = sum(made.scale(step) for step in range(made.steps)) / made.steps
    assert torch.allclose(total, torch.ones(3)), "the scaled losses do not add up to the weighted sum"


def rows_per_step(data=None, **settings):
    return {name: len(rows) for name, rows in seen(batcher(data, **settings).batch(0)).items()}


def test_tasks_may_have_batch_sizes_of_their_own():
    assert rows_per_step(batch_sizes={"t2": 9}) == {"t0": 5, "t1": 5, "t2": 9}
    assert rows_per_step(batch_sizes={"t2": 9}, accumulate=2) == {"t0": 10, "t1": 10, "t2": 18}
    # 10 rows in all for the other two, 10 : 25
    assert rows_per_step(batch_sizes={"t2": 9}, sampling="proportional") == {"t0": 3, "t1": 7, "t2": 9}
    one = batcher(batch_sizes={"t2": 20}, batching="one_task", sampling="proportional")
    turns = [seen(one.batch(step)) for step in range(one.steps)]
    assert sorted((name, len(rows)) for turn in turns for name, rows in turn.items()) == (
        [("t0", 5)] * 2 + [("t1", 5)] * 5 + [("t2", 20)] * 2
    )
    with pytest.raises(SteelyardError, match=r"batch_sizes: there is no task 't3'; the tasks are t0, t1, t2"):
        batcher(batch_sizes={"t3": 9})


def test_tasks_on_the_same_rows_have_one_batch_size():
    inputs = torch.arange(12.0)[:, None]
    layers = Suite([Task(n, "classification", {"train": Rows(inputs, torch.arange(12) % 2)}) for n in ("a", "b")])
    assert rows_per_step(layers, batch_sizes={"b": 3}) == {"a": 3, "b": 3}
    with pytest.raises(SteelyardError, match="a = 2, b = 3, but these tasks share their rows"):
        batcher(layers, batch_sizes={"a": 2, "b": 3})


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"sampling": "balanced"}, {"t0": 50, "t1": 50, "t2": 50}),
        ({"sampling": "proportional"}, {"t0": 1, "t1": 14, "t2": 135}),  # 150 · 100 / 11 100 = 1.35 …
        ({"sampling": "temperature", "temperature": 1}, {"t0": 1, "t1": 14, "t2": 135}),
        ({"sampling": "temperature", "temperature": 2}, {"t0": 11, "t1": 33, "t2": 106}),  # 1 : √10 : 10
        ({"sampling": "capped", "cap": 1000}, {"t0": 7, "t1": 71, "t2": 71}),
    ],
)
def test_shares_of_tasks_of_very_different_sizes(sampling, expected):
    data = suite((100, 1000, 10_000))
    assert rows_per_step(data, batch_size=50, **sampling) == expected
    turns = batcher(data, batch_size=10, batching="one_task", **sampling)
    batches = [turns.batch(step).tasks[0] for step in range(turns.steps)]
    for name, share in expected.items():
        assert batches.count(name) / len(batches) == pytest.approx(share / 150, abs=0.01)


def test_a_cap_shortens_the_epoch():
    data = suite((100, 10_000))
    assert batcher(data, sampling="capped", cap=500).steps == 600 // 10


def test_a_cap_and_its_sampling_belong_together():
    with pytest.raises(ValueError, match=r"'capped' needs cap"):
        Training(sampling="capped")
    with pytest.raises(ValueError, match=r"'balanced' has no use for cap"):
        Training(cap=4)


def texts(sizes=(60, 90)):
    """Texts whose lengths say which of the task's rows they are: row i has i + 1 words."""
    tasks = []
    for t, n in enumerate(sizes):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(t))
        rows = [torch.full((int(i) + 1,), 7) for i in order]
        tasks.append(Task(f"t{t}", "classification", {"train": Rows(Ragged.of(rows), order % 2)}))
    return Suite(tasks, target="t0", vocabulary=8)


def lengths(batch):
    return {m.task: part.mask[m.rows].sum(1).tolist() for part in batch.parts for m in part.members}


def test_texts_of_like_length_stand_together():
    plain, pooled = batcher(texts()), batcher(texts(), length_pool=6)

    def padding(made):
        batches = [made.batch(step) for step in range(12)]
        return sum(int((~part.mask).sum()) for batch in batches for part in batch.parts)

    assert padding(pooled) < padding(plain) / 2
    first = [lengths(pooled.batch(step)) for step in range(12)]
    assert sorted(x for batch in first for x in batch["t0"]) == list(range(1, 61)), "a pass repeats or leaves out a row"
    longest = [max(batch["t0"]) for batch in first[:6]]
    assert longest != sorted(longest), "short texts always come first"
    order = sorted(range(6), key=longest.__getitem__)
    assert order == sorted(range(6), key=[max(batch["t1"]) for batch in first[:6]].__getitem__)
    again = batcher(texts(), length_pool=6)
    assert [lengths(again.batch(step)) for step in reversed(range(12))][::-1] == first
    halves = [batcher(texts(), rank, 2, length_pool=6) for rank in range(2)]
    both = [lengths(half.batch(4))["t1"] for half in halves]
    assert sorted(both[0] + both[1]) == sorted(first[4]["t1"])


def test_numbers_have_no_length():
    assert seen(batcher(length_pool=5).batch(3)) == seen(batcher().batch(3))


def test_shared_rows_are_drawn_together():
    inputs = torch.arange(12.0)[:, None]
    layers = [
        Task(name, "classification", {"train": Rows(inputs, torch.arange(12) % k)}) for name, k in (("a", 2), ("b", 3))
    ]
    batch = batcher(Suite(layers)).batch(0)
    assert len(batch) == 5
    a, b = batch.parts[0].members
    assert a.rows == b.rows
    numbers = batch.parts[0].inputs[:, 0].long()
    assert torch.equal(a.labels, numbers % 2)
    assert torch.equal(b.labels, numbers % 3)


def test_processes_share_a_steps_rows():
    whole = seen(batcher().batch(3))
    halves = [seen(batcher(rank=rank, world=2).batch(3)) for rank in range(2)]
    for name, rows in whole.items():
        assert sorted(halves[0][name] + halves[1][name]) == sorted(rows)


def test_micro_batches_hold_the_steps_rows_once():
    batch = batcher(accumulate=3).batch(0)
    pieces = cut(batch, 3)
    assert len(pieces) == 3
    for name, rows in seen(batch).items():
        assert [row for piece in pieces for row in seen(piece)[name]] == rows
    assert sum(label_counts(piece, ("t0", "t1", "t2")) for piece in pieces).tolist() == [10, 15, 15]
    few = cut(batcher(suite((2, 2)), accumulate=1).batch(0), 5)
    assert sum(len(piece) for piece in few) == 4


def test_label_counts_leave_missing_labels_out():
    labels = torch.tensor([0, 1, IGNORE, IGNORE])
    data = Suite([Task("a", "classification", {"train": Rows(torch.randn(4, 2), labels)})])
    assert label_counts(draw(data, ("a",), Role.TRAIN, 4, seeded(0)), ("a",)).tolist() == [2]


def test_draws_are_without_replacement_and_seeded():
    data = suite()
    one, two = (draw(data, ("t1", "t2"), Role.TRAIN, 8, seeded(5, "probe")) for _ in range(2))
    assert seen(one) == seen(two)
    assert {name: len(set(rows)) for name, rows in seen(one).items()} == {"t1": 8, "t2": 8}
