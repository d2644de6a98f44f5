"""DIW: look at each task alone, try them together, weigh anew until it helps; all within matched compute."""

import pytest
import torch
from torch import nn

from steelyard import Rows, SharedModel, SteelyardError, Suite, Task, fit, testing
from steelyard.methods import get
from steelyard.tasks import Role

DIW = get("diw")


class Scripted(DIW):
    """Errors come from a list; what happens is noted."""

    name = "scripted"

    def start(self, job):
        super().start(job)
        self.events, self.answers, self.models, self.evaluated = [], list(self.script), [], []

    def _error(self, job):
        looking = int(self.state["stage"]) == 0
        self.events.append(("look" if looking else "try", job.step, self.weights.tolist()))
        self.models.append(job.snapshot())
        return self.answers.pop(0) if self.answers else 0.5

    def after_epoch(self, job):
        super().after_epoch(job)
        self.evaluated.append(job.snapshot())


def run(method, data=None, model=None, **settings):
    data = data or testing.suite()
    torch.manual_seed(4)
    model = model or SharedModel(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6)), data)
    defaults = {"batch_size": 8, "epochs": 1, "keep": "last", "learning_rate": 0.05, "device": "cpu", "seed": 1}
    return fit(data, model, method, progress=False, training=defaults | settings)


def scripted(script, steps, **options):
    """One step per stage of a round: look, try, look or try again, …"""
    method = Scripted(ratio=1, **options)
    method.script = script
    settings = {"steps_per_epoch": 1, "epochs": steps}
    return method, run(method, **settings)


def equal(first, second):
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_first_try_is_the_best_so_far_and_is_accepted():
    method, _ = scripted([0.4, 0.5, 0.6, 0.7], steps=2)
    assert [kind for kind, *_ in method.events] == ["look"] * 3 + ["try"]
    assert method.state["errors"].tolist() == pytest.approx([0.4, 0.5, 0.6])
    assert method.state["importance"].tolist() == [1, 1, 1]
    assert float(method.state["best"]) == pytest.approx(0.7)
    assert equal(method.evaluated[-1], method.models[-1])


def test_a_try_in_vain_weighs_anew_from_where_the_round_began():
    looks, first = [0.4, 0.5, 0.6], 0.5
    method, _ = scripted([*looks, first, 0.3, 0.6, 0.9, 0.8, 0.5], steps=5, rate=0.5)
    # Round 1: three looks, accepted at 0.5. Round 2: three looks (0.3, 0.6, 0.9), 0.8 is above 0.5, then 0.5 is not.
    assert [kind for kind, *_ in method.events] == ["look"] * 3 + ["try"] + ["look"] * 3 + ["try"] * 2
    expected = [1 + 0.5 * (0.8 - e) for e in (0.3, 0.6, 0.9)]
    assert method.state["importance"].tolist() == pytest.approx(expected)
    assert method.events[-1][2] == pytest.approx([w / sum(expected) for w in expected], rel=1e-6)
    # While it tries, what is evaluated is the model of round 1.
    assert equal(method.evaluated[1], method.evaluated[2])
    assert equal(method.evaluated[2], method.evaluated[3])
    assert equal(method.evaluated[4], method.models[-1])


def test_the_floor_holds():
    method, _ = scripted([0.4, 0.5, 0.6, 0.1, 0.2, 0.3, 0.9, 0.5], steps=4, rate=100)
    assert method.state["importance"].tolist() == pytest.approx([1 + 30, 1 + 20, 1e-6])


def test_after_patience_the_best_of_the_tries_is_taken():
    script = [0.4, 0.5, 0.6, 0.1, 0.3, 0.3, 0.3, 0.9, 0.7, 0.8]
    method, _ = scripted(script, steps=6, patience=3)
    tries = [i for i, (kind, *_) in enumerate(method.events) if kind == "try"]
    assert len(tries) == 4
    assert equal(method.evaluated[-1], method.models[tries[2]]), "0.7 was the least of 0.9, 0.7, 0.8"
    assert float(method.state["best"]) == pytest.approx(0.1)
    assert int(method.state["stage"]) == 0, "a new round begins"


def test_every_try_and_every_look_starts_where_the_round_began():
    seen = []

    class Seeing(Scripted):
        name = "seeing"
        script = (0.4, 0.5, 0.6, 0.2, 0.3, 0.3, 0.3, 0.9, 0.9)

        def _turn(self, job, task, number, first, last):
            minimise = job.minimise
            job.minimise = lambda *a, **k: (seen.append((int(self.state["rounds"]), job.snapshot())), minimise(*a, **k))
            super()._turn(job, task, number, first, last)
            job.minimise = minimise

        def step(self, job):
            descend = job.descend
            job.descend = lambda *a, **k: (seen.append((int(self.state["rounds"]), job.snapshot())), descend(*a, **k))
            super().step(job)
            job.descend = descend

    run(Seeing(ratio=1), steps_per_epoch=1, epochs=5)
    for number in (0, 1):
        own = [snapshot for r, snapshot in seen if r == number]
        assert len(own) == 3 + (1 if number == 0 else 2)
        assert all(equal(own[0], other) for other in own[1:])


def test_looking_and_trying_are_within_matched_compute():

    class Counting(DIW):
        name = "counting"
        rows = 0

        def step(self, job):
            minimise, descend = job.minimise, job.descend

            def counted(batch, *arguments, **options):
                type(self).rows += sum(len(m.labels) for part in batch.parts for m in part.members)
                return (descend if isinstance(arguments[0], torch.Tensor) else minimise)(batch, *arguments, **options)

            job.minimise = job.descend = counted
            super().step(job)
            job.minimise, job.descend = minimise, descend

    found = run(Counting(ratio=0.5), epochs=4)
    uniform = run("uniform", epochs=4)
    assert found.summary["steps"] == uniform.summary["steps"]
    assert Counting.rows == found.summary["steps"] * 3 * 8


@pytest.mark.parametrize("error", ["metric", "loss"])
def test_errors_are_the_targets_on_dev_meta(error):
    found = []

    class Noting(DIW):
        name = "noting"

        def _error(self, job):
            value = super()._error(job)
            held = job.suite["task0"].rows[Role.DEV_META]
            with torch.no_grad():
                outputs = job.model.head("task0")(job.model.encoder(held.inputs))
            loss = nn.functional.cross_entropy(outputs, held.labels)
            wrong = (outputs.argmax(1) != held.labels).float().mean()
            found.append((value, float(loss if error == "loss" else wrong)))
            return value

    run(Noting(error=error, ratio=1), epochs=2)
    assert len(found) >= 4
    assert all(value == pytest.approx(expected, abs=1e-6) for value, expected in found)


def test_weights_move_towards_the_helpful_source():
    generator = torch.Generator().manual_seed(2)

    def rows(sign, count):
        inputs = torch.randn(count, 5, generator=generator)
        return Rows(inputs, ((sign * inputs[:, 0]) > 0).long())

    held = {"dev_meta": rows(1, 200), "dev_select": rows(1, 50)}
    tasks = [Task("target", "classification", {"train": rows(1, 16), **held}, outputs=2)]
    tasks += [Task(n, "classification", {"train": rows(s, 128)}, outputs=2) for n, s in (("same", 1), ("opposite", -1))]
    data = Suite(tasks, "target")
    torch.manual_seed(0)
    model = SharedModel(nn.Sequential(nn.Linear(5, 16), nn.Tanh()), data)
    for name in ("same", "opposite"):
        model.head(name).load_state_dict(model.head("target").state_dict())
    found = run(DIW(error="loss", rate=1.0), data, model, epochs=12, learning_rate=2.0, optimizer="SGD")
    assert found.weights["same"] > found.weights["opposite"]


def test_dev_meta_is_carved_and_the_published_form_uses_dev_itself():
    data = testing.suite()
    for task in data.tasks.values():
        del task.rows[Role.DEV_META]
    assert run(DIW(), data).suite["task0"].size(Role.DEV_META) == 6
    assert Role.DEV_META not in run(DIW(as_published=True), data).suite["task0"].rows
    with pytest.raises(SteelyardError, match="train it jointly"):
        run(DIW(), paradigm="pretrain")
    with pytest.raises(SteelyardError, match="did you mean 'patience'"):
        DIW(patiense=3)
