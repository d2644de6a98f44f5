"""αVIL in a loop of one's own does what the method does."""

import pytest
import torch
from torch import nn

from steelyard import SteelyardError
from steelyard.methods._turns import randomness
from steelyard.methods.alphavil import TaskUpdates

TASKS = ("target", "source")


def parts(optimizer="SGD", **options):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6)
    encoder = nn.Sequential(nn.Linear(4, 6), norm, nn.Tanh(), nn.Dropout(0.2))
    model = nn.ModuleDict({"encoder": encoder, **{task: nn.Linear(6, 2) for task in TASKS}})
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)
    inputs = torch.randn(2, 32, 4)
    labels = (inputs[..., 0] > 0).long()
    labels[1] = 1 - labels[1]

    def loss(task):
        number = TASKS.index(task)
        return nn.functional.cross_entropy(model[task](model["encoder"](inputs[number])), labels[number])

    return model, made, TaskUpdates(model, made, TASKS, **options), loss


def turn(optimizer, updates, loss, task, steps=3, weight=False):
    with updates.alone(task) as share:
        for _ in range(steps):
            optimizer.zero_grad()
            (loss(task) * (share if weight else 1)).backward()
            optimizer.step()


def test_tasks_start_alike_and_the_merge_goes_downhill():
    model, optimizer, updates, loss = parts()
    starts = []
    for task in TASKS:
        with updates.alone(task):
            starts.append(({n: v.clone() for n, v in model.state_dict().items()}, randomness()["cpu"]))
            optimizer.zero_grad()
            loss(task).backward()
            optimizer.step()
    assert torch.equal(starts[0][1], starts[1][1])
    for name, value in starts[0][0].items():
        assert torch.equal(value, starts[1][0][name]), name
    alpha = updates.merge(lambda: loss("target"))
    assert model["encoder"][1].training, "modes are as before"
    assert alpha[0] > alpha[1], "the source says the opposite"
    assert updates.weights["target"] > updates.weights["source"]
    torch.testing.assert_close(updates.importance, alpha)


@pytest.mark.parametrize("acts_on", ["delta", "loss"])
def test_one_sgd_step_each_is_one_joint_step(acts_on):
    model, optimizer, updates, loss = parts(steps=0, acts_on=acts_on)
    model.eval()
    updates.importance = torch.tensor([3.0, 1.0], dtype=torch.float64)
    for task in TASKS:
        turn(optimizer, updates, loss, task, steps=1, weight=acts_on == "loss")
    updates.merge(lambda: loss("target"))
    joint, other, _, joint_loss = parts()
    joint.eval()
    (0.75 * joint_loss("target") + 0.25 * joint_loss("source")).backward()
    other.step()
    for name, value in joint.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)


def test_optimiser_state_belongs_to_its_task_and_the_way_is_in_proportion_to_the_weight():
    _, optimizer, updates, loss = parts("Adam", steps=0)
    for _ in range(2):
        for task in TASKS:
            turn(optimizer, updates, loss, task)
        updates.merge(lambda: loss("target"))
    assert int(updates._moments["target"][0]["step"]) == 6
    assert int(updates._moments["source"][0]["step"]) == 6
    lengths = []
    for light in (1.0, 0.01):
        model, optimizer, updates, loss = parts("Adam", steps=0)
        updates.importance = torch.tensor([1.0, light], dtype=torch.float64)
        before = model["source"].weight.detach().clone()
        for task in TASKS:
            turn(optimizer, updates, loss, task)
        updates.merge(lambda: torch.zeros((), requires_grad=True))
        lengths.append(float((model["source"].weight.detach() - before).norm()) * (1 + light))
    assert lengths[1] / lengths[0] == pytest.approx(0.01, rel=1e-3)


def test_a_resumed_loop_ends_where_the_whole_one_does():
    def rounds(model, optimizer, updates, loss, count):
        for _ in range(count):
            for task in TASKS:
                turn(optimizer, updates, loss, task)
            updates.merge(lambda: loss("target"))

    whole = parts("AdamW")
    rounds(*whole, 4)
    first = parts("AdamW")
    rounds(*first, 2)
    kept = (first[0].state_dict(), first[1].state_dict(), first[2].state_dict(), torch.get_rng_state())
    second = parts("AdamW")
    second[0].load_state_dict(kept[0])
    second[1].load_state_dict(kept[1])
    second[2].load_state_dict(kept[2])
    torch.set_rng_state(kept[3])
    rounds(*second, 2)
    for name, value in whole[0].state_dict().items():
        assert torch.equal(value, second[0].state_dict()[name]), name
    assert torch.equal(whole[2].importance, second[2].importance)


def test_a_turn_that_failed_can_be_taken_again():
    model, optimizer, updates, loss = parts()
    before = model["encoder"][0].weight.detach().clone()

    def half():
        loss("target").backward()
        optimizer.step()
        raise SteelyardError("the disk is full")

    with pytest.raises(SteelyardError), updates.alone("target"):
        half()
    assert not torch.equal(model["encoder"][0].weight, before)
    with updates.alone("target"):
        assert torch.equal(model["encoder"][0].weight, before)


def test_wrong_use_is_refused_in_words():
    _, optimizer, updates, loss = parts()
    with pytest.raises(SteelyardError, match="did you mean 'source'"), updates.alone("sorce"):
        pass
    turn(optimizer, updates, loss, "target")
    with pytest.raises(SteelyardError, match="had its turn"), updates.alone("target"):
        pass
    with pytest.raises(SteelyardError, match="'source' had no turn"):
        updates.merge(lambda: loss("target"))
    with pytest.raises(SteelyardError, match="middle of a round"):
        updates.state_dict()
    with pytest.raises(SteelyardError, match="each name once"):
        TaskUpdates(nn.Linear(1, 1), optimizer, ["a", "a"])
