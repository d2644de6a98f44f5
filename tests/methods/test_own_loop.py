"""A loop of one's own with `OwnLoop` takes the same steps as the library's."""

import copy

import pytest
import torch
from torch import nn

from steelyard import SteelyardError, fit, gradients, methods, testing
from steelyard.methods import Combination, Method, OwnLoop
from steelyard.tasks import Role

RATE = 0.1
NAMES = [
    *(n for n in methods.names() if issubclass(methods.get(n), Combination)),
    *("uniform", "random", "ramp", "uncertainty", "imtl_l", "gradnorm", "dwa", "bandit", "tchebycheff"),
    *("famo", "autolambda", "bandit+pcgrad", "uncertainty+cagrad", "uncertainty+mgda_ub", "famo+mgda"),
]
TASKS = [f"task{i}" for i in range(3)]


class ByHand(Method):
    """Takes every step as a loop of one's own would."""

    name = "by_hand"
    summary = "a test's"

    def __init__(self, name, tape=False):
        super().__init__()
        self.own, self.tape, self.loop = name, tape, None

    def prepare(self, suite, seed):
        return methods.build(self.own).prepare(suite, seed)

    def step(self, job):
        shared = job.model.scope("shared")
        if self.loop is None:
            last = {n: p for n, p in shared.items() if n.startswith("encoder.2.")}
            given = {"gradnorm": last, "autolambda": job.model.scope("all")}.get(self.own, shared)
            job.model.encoder.register_forward_hook(lambda module, args, output: self.read.append(output))
            self.loop = OwnLoop(self.own, TASKS, given.values(), target="task0")
            self.loop.generator = job.generator
            self.optimizer = torch.optim.SGD([*job.model.parameters(), *self.loop.parameters()], lr=RATE)
        batch, tape, self.read = job.batch(), None, []
        if self.tape:
            rows = torch.cat([torch.full((m.rows.stop - m.rows.start,), TASKS.index(m.task))
                              for m in batch.parts[0].members])  # fmt: skip
            with gradients.record(job.model, rows, shared) as tape:
                losses = job.losses(batch)
        else:
            losses = job.losses(batch)
        self.loop.backward(losses, tape, self.read)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loop.after_step(lambda: self.again(job))

    def again(self, job):
        if self.own != "autolambda":
            return job.losses(job.batch())
        return job.losses(job.draw(Role.DEV_META, job.batch_size, ("task0",)))[0]

    def after_epoch(self, job):
        self.loop.after_epoch()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6))


def trained(method):
    settings = {"epochs": 3, "batch_size": 8, "optimizer": "SGD", "learning_rate": RATE, "device": "cpu"}
    return fit(testing.suite(), network(), method, progress=False, keep="last", **settings)


def assert_same(first, second):
    for name, value in first.model.state_dict().items():
        if not name.startswith("method."):
            torch.testing.assert_close(value, second.model.state_dict()[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_steps_as_fit(name):
    assert_same(trained(name), trained(ByHand(name)))


def test_a_tape_gives_the_same():
    assert_same(trained("upgrad"), trained(ByHand("upgrad", tape=True)))


def test_gradients_are_added_and_a_loop_resumes():
    encoder, rows = network(), torch.randn(6, 5)

    def losses():
        return encoder(rows)[:, :3].square().mean(0)

    loop = OwnLoop("gradvac", TASKS, encoder.parameters())
    loop.backward(losses())
    once = [p.grad.clone() for p in encoder.parameters()]
    kept = copy.deepcopy(loop.state_dict())
    loop.backward(losses())
    twice = [p.grad.clone() for p in encoder.parameters()]
    assert all((b - a).abs().sum() > 0 for a, b in zip(once, twice, strict=True))
    other = OwnLoop("gradvac", TASKS, encoder.parameters())
    other.load_state_dict(kept)
    encoder.zero_grad()
    other.backward(losses())
    for a, b, p in zip(once, twice, encoder.parameters(), strict=True):
        torch.testing.assert_close(p.grad, b - a)
    assert other.step == loop.step == 2


def twice(loop):
    loop.backward(torch.ones(3, requires_grad=True))
    loop.backward(torch.ones(3, requires_grad=True))


def ahead(loop, losses):
    loop.backward(torch.ones(3, requires_grad=True))
    loop.after_step(lambda: losses)


def test_what_does_not_look_ahead_asks_for_no_losses():
    encoder = network()
    loop = OwnLoop("pcgrad", TASKS, encoder.parameters())
    for _ in range(2):
        loop.backward(encoder(torch.randn(6, 5))[:, :3].square().mean(0))
        loop.after_step(lambda: pytest.fail("nobody needs them"))


def test_gradients_by_what_heads_read_may_come_in_several_pieces():
    """Two encoder calls, and rows that all tasks read: conflicts at z count as those of one call."""
    encoder, heads, rows = network().double(), nn.Linear(6, 3).double(), torch.randn(8, 5).double()

    def gradients_of(pieces):
        read = [encoder(piece) for piece in rows.split(8 // pieces)]
        losses = (heads(torch.cat(read)) * torch.tensor([1.0, -2.0, 0.5])).tanh().mean(0)
        encoder.zero_grad()
        loop = OwnLoop("mgda_ub", TASKS, encoder.parameters())
        loop.backward(losses, representation=read if pieces > 1 else read[0])
        return [p.grad.clone() for p in encoder.parameters()], loop

    (one, _), (two, _) = gradients_of(1), gradients_of(2)
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: OwnLoop("target_first", TASKS, network().parameters()), "needs a target; name one"),
        (lambda: OwnLoop("uniform", TASKS, target="task7"), "no task 'task7'; did you mean"),
        (lambda: OwnLoop("pcgrad", TASKS).backward(torch.ones(3, requires_grad=True)), "give the parameters"),
        (lambda: OwnLoop("uniform", TASKS).backward(torch.ones(2)), r"losses of shape \[2\].* 3 tasks"),
        (
            lambda: OwnLoop("uniform", TASKS).backward(torch.tensor([1.0, float("nan"), 1.0])),
            "'task1': the loss is not",
        ),
        (lambda: twice(OwnLoop("famo", TASKS)), "'famo' looks where a step has led: call after_step"),
        (lambda: ahead(OwnLoop("famo", TASKS), torch.ones(2)), "after_step got 2 losses; give one for each of task0"),
        (
            lambda: ahead(OwnLoop("autolambda", TASKS, network().parameters(), target="task0"), torch.ones(3)),
            "after_step got 3 losses; give one for each of task0$",
        ),
        (lambda: OwnLoop("diw", TASKS, target="task0").backward(torch.ones(3, requires_grad=True)), "'diw' asks for"),
        (lambda: OwnLoop("autolambda", TASKS, target="task0").backward(torch.ones(3, requires_grad=True)), "give the"),
        (
            lambda: OwnLoop("mgda_ub", TASKS, network().parameters()).backward(torch.ones(3, requires_grad=True)),
            "'mgda_ub' compares gradients by what the heads read: give it",
        ),
    ],
)
def test_what_a_loop_cannot_give_is_said_in_a_line(make, says):
    with pytest.raises(SteelyardError, match=says) as error:
        make()
    assert "\n" not in str(error.value)
