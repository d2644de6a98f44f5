"""The space: sizes, legality, names, printing, a user's own primitive; tabular and image primitives."""

import pytest
import torch
from tests.objectives import tiny

from steelyard import objectives
from steelyard.errors import SteelyardError
from steelyard.objectives import NAMED, Maker, Space, objective_tasks, points
from steelyard.objectives.draft import plain_draft
from steelyard.objectives.stages import _REGISTRY, find
from steelyard.tasks import Rows, Suite, Task


@pytest.fixture
def own_primitives(monkeypatch):
    for stage, known in _REGISTRY.items():
        monkeypatch.setitem(_REGISTRY, stage, dict(known))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_task_data_has_24_and_task_and_in_domain_data_40():
    assert len(Space("text")) == 24
    both = Space("text", inputs=("task", "in-domain"))
    assert len(both) == 40
    assert sum(o.stages[0] == "in-domain" for o in both.objectives) == 16


def test_what_is_illegal():
    for objective in Space("text", inputs=("task", "in-domain")).objectives:
        data, _, representation, output = objective.stages
        if output == "end-task":
            assert data == "task"
            assert representation not in ("left-to-right", "right-to-left")
    wide = Space("text", outputs=("denoise", "next-token", "real-synthetic", "tf-idf", "end-task"))
    for objective in wide.objectives:
        _, transform, representation, output = objective.stages
        assert output != "next-token" or representation != "bidirectional"
        assert output != "real-synthetic" or transform in ("replace", "bert")
    assert len(wide) == 24 + 12 + 8 + 16


@pytest.mark.parametrize("name", NAMED)
def test_named_objectives_are_points(name):
    chosen = NAMED[name]
    stages = objectives.stages_of(chosen)
    space = Space("text", *stages.values(), only=chosen)
    assert [o.stages for o in space.objectives] == sorted(chosen, key=lambda p: space.stages[2].index(p[2]))
    assert points([name.lower()]) == list(chosen)


def test_wrong_names_and_illegal_points_are_one_line():
    with pytest.raises(SteelyardError, match="the named ones are BERT"):
        points(["BRET"])
    with pytest.raises(SteelyardError, match="no transform 'maks'"):
        Space("text", transforms=("maks",))
    with pytest.raises(SteelyardError, match="is not legal: its output does not fit"):
        Space("text", only=[("task", "none", "left-to-right", "end-task")])
    with pytest.raises(SteelyardError, match="data 'web' is not among task"):
        Space("text", only=[("web", "none", "left-to-right", "denoise")])


def test_sources_take_part_as_they_stand():
    space = Space("text", transforms=("bert",), outputs=("denoise",), sources=("reviews",))
    plain = [o for o in space.objectives if o.plain]
    assert [o.name for o in plain] == ["reviews"]
    assert plain[0].stages[1:] == ("none", "bidirectional", "end-task")


def test_the_space_prints_itself():
    text = str(Space("text", inputs=("task", "in-domain")))
    assert text.endswith("40 objectives")
    assert "GPT-style" in text
    assert "DAPT" in text


def test_shares_of_primitives_sum_to_one_per_stage():
    space = Space("text")
    shares = space.shares(torch.rand(24).softmax(0))
    for stage in ("data", "transform", "representation", "output"):
        assert sum(v for k, v in shares.items() if k.startswith(stage)) == pytest.approx(1)


def test_a_primitive_is_one_class(own_primitives):
    @objectives.register
    class Shuffle(objectives.Transform):
        """Tokens in another order."""

        name, about = "shuffle", "tokens in another order"

        def __call__(self, draft, tokens, generator):
            order = torch.rand(draft.inputs.shape, generator=generator).masked_fill(~draft.open, 2.0)
            mixed = draft.inputs.clone()
            mixed[draft.open] = draft.inputs.gather(1, order.argsort(1).argsort(1))[draft.open]
            return draft.changed(inputs=mixed)

    space = Space("text", transforms=("none", "shuffle"))
    assert len(space) == 2 * 4 + 2 * 2
    suite = tiny.suite()
    tasks = objective_tasks(space, suite, {"task": "mood"})
    assert "task/shuffle/random-factorised/end-task" in [task.name for task in tasks]
    with pytest.raises(SteelyardError, match="choose another name"):
        objectives.register(type("Other", (objectives.Transform,), {"name": "shuffle", "__call__": lambda *_: None}))


def images(n=12, height=9, width=9):
    values = torch.rand(n, 2, height, width, generator=generator())
    return Task("pictures", "classification", {"train": Rows(values, torch.arange(n) % 3)})


def numbers(n=12):
    return Task(
        "rows", "classification", {"train": Rows(torch.randn(n, 7, generator=generator()), torch.arange(n) % 2)}
    )


@pytest.mark.parametrize(("data", "task"), [("images", images()), ("numbers", numbers())])
def test_other_rows_than_text(data, task):
    suite = Suite([task], target=task.name)
    assert objectives.data_of(suite.spec) == data
    space = Space(data)
    made = objective_tasks(space, suite, {"task": task.name})
    by_name = {t.name: t for t in made}
    (part,) = Maker(space, {"task": task}).parts(torch.arange(len(space)), 3, generator())
    assert part.inputs.shape == (3 * len(space), *task.rows["train"].inputs.shape[1:])
    for member in part.members:
        _, transform, _, output = member.task.split("/")
        kind = by_name[member.task].kind
        rows = part.inputs[member.rows]
        if transform == "none" and output == "reconstruct":
            assert torch.equal(member.labels, rows.flatten(1))
        if output == "reconstruct":
            assert kind == "regression"
            original = task.rows["train"].inputs.flatten(1)
            assert all((row == original).all(1).any() for row in member.labels)
        if output == "rotation":
            original = member.labels
            assert by_name[member.task].outputs == 4
            assert original.max() <= 3
        if output == "detect":
            assert member.labels.shape == (3, 7)
            assert transform == "swap"


def test_image_transforms():
    values = torch.rand(40, 2, 9, 9, generator=generator())
    given = plain_draft(values, torch.zeros(40), generator())
    turned = find("transform", "images", "rotate")()(given, None, generator(1))
    back = torch.stack([torch.rot90(x, -int(q), (1, 2)) for x, q in zip(turned.inputs, turned.code, strict=True)])
    assert torch.equal(back, values)
    assert set(turned.code.tolist()) == {0, 1, 2, 3}
    mixed = find("transform", "images", "jigsaw")()(given, None, generator(1)).inputs
    assert torch.equal(mixed[:, :, 8], values[:, :, 8])
    inner = mixed[:, :, :8, :8].flatten(1).sort(1).values
    assert torch.equal(inner, values[:, :, :8, :8].flatten(1).sort(1).values)
    assert not torch.equal(mixed, values)
    tiles = {tuple(values[0, :, i : i + 4, j : j + 4].flatten().tolist()) for i in (0, 4) for j in (0, 4)}
    assert tiles == {tuple(mixed[0, :, i : i + 4, j : j + 4].flatten().tolist()) for i in (0, 4) for j in (0, 4)}
    hidden = find("transform", "images", "mask")()(given, None, generator(1)).inputs
    assert torch.equal((hidden == 0).all(1), given.chosen)


def test_swapped_numbers_come_from_their_own_column():
    values = torch.arange(5.0) * 100 + torch.rand(30, 5, generator=generator())
    given = plain_draft(values, torch.zeros(30), generator())
    swapped = find("transform", "numbers", "swap")()(given, None, generator(1))
    assert torch.equal(swapped.inputs.div(100, rounding_mode="floor"), values.div(100, rounding_mode="floor"))
    assert torch.equal(swapped.inputs[~given.chosen], values[~given.chosen])
    detected = find("output", "numbers", "detect")().answers(swapped, None)
    assert torch.equal(detected.bool(), swapped.inputs != values)
