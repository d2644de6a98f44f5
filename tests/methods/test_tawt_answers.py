"""TAWT's look before training: what sources answer about the target's rows."""

import pytest
import torch
from torch import nn

from steelyard import Ragged, Rows, SteelyardError, Suite, Task, fit, methods, testing
from steelyard.functional import cautious_ridge, leave_one_out_errors, mirror_descent
from steelyard.methods import get
from steelyard.methods.tawt import answers, evidence
from steelyard.tasks import IGNORE, Role, collate, taken

TAWT = get("tawt")
DRAW = torch.Generator().manual_seed(5)


def normal(*shape):
    return torch.randn(*shape, generator=DRAW)


def sources(target_rows=40, rows=250):
    """A regression on the first number; sources that ask for it (of several kinds), for another, and for nothing."""
    x, near, hidden, other, noise = normal(target_rows, 6), *(normal(rows, 6) for _ in range(4))
    several = torch.stack([(near[:, 0] > 0).float(), (near[:, 1] > 0).float()], 1)
    several[torch.rand(rows, 2, generator=DRAW) < 0.3] = float("nan")
    return Suite([
        Task("target", "regression", {"train": Rows(x, x[:, 0] + 0.3 * normal(target_rows))}),
        Task("near", "multilabel", {"train": Rows(near, several)}),
        Task("hidden", "classification", {"train": Rows(hidden, (hidden[:, 0] > 0).long())}),
        Task("other", "classification", {"train": Rows(other, (other[:, 4] > 0).long())}),
        Task("noise", "regression", {"train": Rows(noise, normal(rows))}),
    ], "target")  # fmt: skip


def run(data=None, **settings):
    options = {"epochs": 1, "log_every": 1, "progress": False, "device": "cpu", "seed": 0, **settings}
    method = options.pop("method", None) or TAWT()
    torch.manual_seed(0)
    return fit(data or sources(), nn.Sequential(nn.Linear(6, 24), nn.Tanh()), method, **options)


def first(found):
    """The weights of the first step."""
    start = found.weight_trace[0][0]
    return {name: weight for step, name, weight in found.weight_trace if step == start}


@pytest.mark.parametrize("paradigm", ["normalised_joint", "joint", "pretrain"])
def test_sources_that_know_the_target_count_more(paradigm):
    found = run(paradigm=paradigm)
    weights = first(found)
    for known in ("near", "hidden"):
        for unknown in ("other", "noise"):
            assert weights[known] > 2 * weights[unknown]
    assert sum(weights.values()) == pytest.approx(1, abs=1e-5)


def test_the_weights_stay_and_the_target_keeps_its_share():
    found = run(epochs=3)
    assert found.weights == pytest.approx(first(found))
    assert found.weights["target"] == pytest.approx(1 / 5)


def test_effects_are_the_formula_on_the_encoder_as_it_is():
    data, checked = sources(), []

    class Checking(TAWT):
        name = "checking"

        def start(self, job):
            found = answers.effects(job, {"target": 1.0}, ("near", "hidden", "other", "noise"), Role.TRAIN)
            with torch.no_grad():
                seen = {
                    name: job.model.encoder(task.rows[Role.TRAIN].inputs).double() for name, task in data.tasks.items()
                }
            labels = {name: data[name].rows[Role.TRAIN].labels for name in data.tasks}
            looks = []
            for name in ("hidden", "other"):
                w, b = cautious_ridge(seen[name], nn.functional.one_hot(labels[name]).double())
                goal = labels["target"].double()[:, None]
                looks.append(
                    leave_one_out_errors(seen["target"] @ w + b, (goal - goal.mean()) / goal.std(correction=0))
                )
            rows = torch.stack(looks, 1)
            known = [answers._rows(job, name, Role.TRAIN) for name in ("target", "hidden", "other")]
            torch.testing.assert_close(answers.told(known[0], known[1:]), evidence.of_looks(rows))
            assert found.argmin() in (0, 1)
            super().start(job)
            mixture = mirror_descent(torch.full((4,), 0.25), found.float(), 1.5, 0.05 / 4)
            torch.testing.assert_close(self.state["mixture"], mixture)
            checked.append(True)

    run(data, method=Checking())
    assert checked


def test_the_evidence_shrinks_what_few_rows_say():
    """Sources that differ by noise alone count the same; what is sure counts in full."""
    even = evidence.of_looks(torch.randn(50, 4, generator=DRAW, dtype=torch.float64))
    sure = evidence.of_looks(torch.tensor([0.0, 1.0, 2.0, 3.0]) + 0.01 * normal(50, 4).double())
    assert even.abs().max() < 0.8
    torch.testing.assert_close(
        sure, torch.tensor([-1.5, -0.5, 0.5, 1.5]).double() / torch.arange(4.0).std(), atol=0.01, rtol=0
    )
    assert not bool(evidence.of_looks(torch.zeros(1, 3)).any())


def test_tokens_are_looked_at_one_by_one():
    def coin(text):
        return torch.randint(0, 2, text.shape, generator=DRAW)

    def rows(count, rule):
        texts = [torch.randint(1, 30, (int(n),), generator=DRAW) for n in torch.randint(3, 9, (count,), generator=DRAW)]
        return Rows(Ragged.of(texts), Ragged.of([rule(text) for text in texts]))

    data = Suite([
        Task("target", "tagging", {"train": rows(20, lambda t: (t > 15).long())}, outputs=2),
        Task("same", "tagging", {"train": rows(80, lambda t: (t > 15).long())}, outputs=2),
        Task("noise", "tagging", {"train": rows(80, coin)}, outputs=2),
    ], "target", vocabulary=30)  # fmt: skip
    found = fit(data, "lstm", TAWT(), epochs=1, progress=False, device="cpu", seed=0)
    assert found.weights["same"] > 2 * found.weights["noise"]


def test_a_look_leaves_no_trace():
    still = fit(testing.suite(2), "mlp", TAWT(strength=0.0, floor=0.0), epochs=2, progress=False, device="cpu", seed=0)
    plain = fit(testing.suite(2), "mlp", methods.get("uniform")(), epochs=2, progress=False, device="cpu", seed=0)
    for (name, a), b in zip(still.model.state_dict().items(), plain.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(("given", "signal"), [
    ({}, "answers"), ({"strength": 3.0}, "answers"), ({"share": "learned"}, "answers"), ({"level": "task"}, "answers"),
    ({"observe": "step"}, "cosine"), ({"level": "example"}, "cosine"), ({"share": "paper"}, "cosine"),
    ({"probe_size": 9}, "cosine"), ({"as_published": True}, "cosine"), ({"signal": "dot"}, "dot"),
    ({"as_published": True, "level": "example"}, "dot"),
])  # fmt: skip
def test_what_is_said_of_gradients_asks_for_gradients(given, signal):
    assert TAWT(**given).options.signal == signal


def test_resolved_options_mean_the_same_when_they_are_read_again():
    for given in ({}, {"observe": "step"}, {"share": "learned"}):
        options = TAWT(**given).options
        assert TAWT(**options.model_dump()).options == options


@pytest.mark.parametrize("options", [{"observe": "step"}, {"level": "example"}, {"share": "paper"}])
def test_a_look_before_training_is_no_look_at_gradients(options):
    with pytest.raises(SteelyardError, match="looks once, before training"):
        TAWT(signal="answers", **options)


def test_a_learned_share_moves_while_the_mixture_stays():
    found = testing.train(lambda: TAWT(share="learned"), log_every=1)
    trace = {name: [w for _, task, w in found.weight_trace if task == name] for name in found.weights}
    assert trace["task0"][-1] != pytest.approx(trace["task0"][0], abs=1e-4)
    ratios = [a / b for a, b in zip(trace["task1"], trace["task2"], strict=True)]
    assert max(ratios) == pytest.approx(min(ratios), rel=1e-4)


def test_rows_that_are_taken_lose_the_padding_of_the_others():
    texts = Ragged.of([torch.arange(1, n + 1) for n in (2, 9, 3)])
    batch = collate([(texts, torch.arange(3), [("a", torch.tensor([5, 6, 7]))])])
    part = taken(batch, torch.tensor([2, 0])).parts[0]
    assert part.inputs.tolist() == [[1, 2, 3], [1, 2, 0]]
    assert part.mask.tolist() == [[True, True, True], [True, True, False]]
    assert part.members[0].labels.tolist() == [7, 5]
    assert part.members[0].index.tolist() == [2, 0]


def test_rows_that_are_not_finite_are_refused_by_task():
    data = sources()
    data["other"].rows[Role.TRAIN].inputs[3, 2] = float("inf")
    with pytest.raises(SteelyardError, match="task 'other': what the encoder makes of its train rows is not finite"):
        fit(data, nn.Linear(6, 8), TAWT(), epochs=1, progress=False, device="cpu")


def test_a_source_without_any_label_says_nothing():
    data = sources()
    for name in ("other", "noise"):
        labels = data[name].rows[Role.TRAIN].labels
        labels[:] = float("nan") if labels.is_floating_point() else IGNORE
    weights = run(data).weights
    assert weights["other"] == pytest.approx(weights["noise"])
    assert weights["hidden"] > 2 * weights["other"]


def test_several_targets_count_as_they_are_told_to():
    data = sources()
    both = {}

    class Checking(TAWT):
        name = "checking"

        def start(self, job):
            for goal in ({"target": 1.0}, {"other": 1.0}, {"target": 0.75, "other": 0.25}):
                both["+".join(goal)] = answers.effects(job, goal, ("near", "hidden", "noise"), Role.TRAIN)
            super().start(job)

    run(data, method=Checking())
    torch.testing.assert_close(both["target+other"], 0.75 * both["target"] + 0.25 * both["other"])


def test_missing_numbers_are_at_the_mean_of_those_given():
    labels = torch.tensor([[1.0, 5.0], [3.0, float("nan")], [float("nan"), 9.0], [8.0, 4.0]])
    found = answers.numbers(labels)
    assert found[1, 1] == found[2, 0] == 0
    torch.testing.assert_close(found.sum(0), torch.zeros(2).double())
    torch.testing.assert_close(found[[0, 1, 3], 0].square().mean(), torch.tensor(1.0).double())


def test_weights_of_rows_wait_for_evidence():
    from steelyard.methods.tawt import rows

    noise = {"units_seen": torch.full((400,), 4.0), "units_total": 4 * 0.5 * normal(400)}
    noise["units_squares"] = noise["units_total"].square() / 4 + 3 * torch.ones(400)  # looks vary as their means say
    assert rows.effects(noise).abs().max() < 0.6
    sure = noise | {"units_squares": noise["units_total"].square() / 4 + 0.01}
    assert rows.effects(sure).std() == pytest.approx(1, abs=0.05)
