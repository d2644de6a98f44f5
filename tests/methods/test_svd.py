"""SVD weights in training: the paper's numbers, every kind of label, features of tasks that share no inputs."""

import types

import pytest
import torch
from torch import Tensor, nn

from steelyard import Role, Rows, SharedModel, SteelyardError, Suite, Task, encoders, fit, methods, testing
from steelyard.functional import svd_weights
from steelyard.methods.svd import products
from steelyard.methods.svd.coding import Coding
from steelyard.tasks import IGNORE, Ragged

SVD = methods.get("svd")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def regressions(rows: int = 60, tasks: int = 4) -> tuple[Suite, Tensor, Tensor]:
    inputs, labels = normal(rows, 6) + 1, normal(rows, tasks, seed=1) * torch.arange(1, tasks + 1) + 2
    made = [Task(f"t{k}", "regression", {"train": Rows(inputs, labels[:, k])}) for k in range(tasks)]
    return Suite(made, target="t0"), inputs, labels


def weighed(suite: Suite, encoder: nn.Module | None = None, prior: Tensor | None = None, **options: object) -> Tensor:
    """The weights at the start of training."""
    torch.manual_seed(0)
    method = SVD(**options)
    method.prepare(suite, 0)
    names = tuple(suite.tasks)
    job = types.SimpleNamespace(
        model=SharedModel(encoder or nn.Identity(), suite, width=None if encoder else 6), tasks=names,
        initial_weights=torch.full((len(names),), 1 / len(names)) if prior is None else prior,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    method.start(job)
    return method.weights


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"standardize": False}, {"scale_free": True}, {"as_published": True}])
def test_on_one_input_it_is_algorithm_2(rank: int, options: dict) -> None:
    suite, inputs, labels = regressions()
    published = options.get("as_published", False)
    expected = svd_weights(
        inputs.double(), labels.double(), rank, center=not published, scale_free=options.get("scale_free", False),
        standardize=options.get("standardize", not published),
    )  # fmt: skip
    torch.testing.assert_close(weighed(suite, rank=rank, **options), (expected / expected.sum()).float())


@pytest.mark.parametrize("features", ["representation", "gradients"])
@pytest.mark.parametrize("rank", [1, "gap", "cross_validation"])
def test_through_a_linear_encoder_features_give_what_inputs_give(features: str, rank: int | str) -> None:
    suite, _, _ = regressions()
    turn = nn.Linear(6, 6, bias=False)
    nn.init.orthogonal_(turn.weight)
    wide = nn.Linear(6, 9, bias=False)
    found = weighed(suite, turn if features == "representation" else wide, features=features, rank=rank)
    torch.testing.assert_close(found, weighed(suite, features="inputs", rank=rank), rtol=1e-4, atol=1e-6)


def test_tangent_features_are_the_rows_own_gradients() -> None:
    suite, _, labels = regressions(rows=20, tasks=2)
    encoder = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    found = weighed(suite, encoder, features="gradients", rank=1)
    chosen = torch.Generator().manual_seed(0)
    torch.randperm(20, generator=chosen)
    reading = torch.randn(3, generator=chosen)
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(encoder(x) @ reading, list(encoder.parameters()))])
        for x in suite["t0"].rows[Role.TRAIN].inputs
    ]
    expected = svd_weights(torch.stack(rows).double(), labels.double(), 1, standardize=True)
    torch.testing.assert_close(found, (expected / expected.sum()).float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("center", [True, False])
def test_products_are_the_folds_own_covariances(center: bool) -> None:
    suite, inputs, labels = regressions(rows=700, tasks=2)  # more than one chunk
    x, chosen = inputs.double(), torch.randperm(700, generator=torch.Generator().manual_seed(3))
    codings = {n: Coding.of(suite[n], suite[n].rows[Role.TRAIN].labels, center, False) for n in suite.tasks}
    found = products.products(
        suite, codings, dict.fromkeys(suite.tasks, chosen), products.inputs, center=center, folds=3
    )
    for number, name in enumerate(suite.tasks):
        y = labels[:, number].double()
        if center:
            x, y = x - x.mean(0), y - y.mean()
        for fold in range(3):
            rows = chosen[fold::3]
            torch.testing.assert_close(found[name][fold, 0], x[rows].T @ y[rows] * 3 / 700)


def test_weights_multiply_the_paradigms() -> None:
    suite, _, _ = regressions()
    prior = torch.tensor([0.1, 0.2, 0.3, 0.4])
    even = weighed(suite, rank=2)
    torch.testing.assert_close(weighed(suite, prior=prior, rank=2), prior * even / (prior * even).sum())


def test_classes_are_coded_without_a_redundant_column() -> None:
    labels = torch.tensor([0, 1, 2, 1, 1, 0, IGNORE])
    task = Task("t", "classification", {"train": Rows(normal(7, 2), labels)}, outputs=3)
    coding = Coding.of(task, labels, center=True, standardize=True)
    found = coding(labels)
    assert found.shape == (7, 2)
    assert found[-1].tolist() == [0, 0]
    hot = nn.functional.one_hot(labels[:-1], 3).double()
    hot = hot - hot.mean(0)
    hot /= hot.square().sum(1).mean().sqrt()
    torch.testing.assert_close(found[:-1] @ found[:-1].T, hot @ hot.T)
    binary = Task("b", "classification", {"train": Rows(normal(4, 2), torch.tensor([0, 1, 1, 1]))}, outputs=2)
    signs = Coding.of(binary, torch.tensor([0, 1, 1, 1]), center=True, standardize=True)(torch.tensor([0, 1]))
    torch.testing.assert_close(signs, torch.tensor([[-(3**0.5)], [3**-0.5]]).double())


def test_the_names_of_classes_and_a_column_said_twice_change_nothing() -> None:
    inputs, classes = normal(80, 5), (normal(80, 5).argmax(1) + normal(80, 5, seed=3).argmax(1)) % 4
    other = inputs[:, 0] + normal(80, seed=2)

    def suite(labels: Tensor) -> Suite:
        first = Task("a", "classification", {"train": Rows(inputs, labels)}, outputs=4)
        return Suite([first, Task("b", "regression", {"train": Rows(inputs, other)})], target="a")

    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(weighed(suite(classes), rank=2), weighed(suite(order[classes]), rank=2))
    twice = Suite(
        [
            Task("a", "regression", {"train": Rows(inputs, torch.stack([other, other], 1))}),
            Task("b", "regression", {"train": Rows(inputs, other)}),
        ]
    )
    torch.testing.assert_close(weighed(twice, rank=1), torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize("features", ["auto", "representation", "gradients"])
@pytest.mark.parametrize("kind", ["classification", "multilabel"])
def test_flipped_labels_cost_weight_also_where_inputs_differ(features: str, kind: str) -> None:
    def task(number: int, flips: float) -> Task:
        draw = torch.Generator().manual_seed(number)
        inputs = torch.randn(400, 6, generator=draw) + 1
        labels = inputs[:, :3].sum(1) + 0.3 * torch.randn(400, generator=draw) > 3
        labels ^= torch.rand(400, generator=draw) < flips
        kept = labels.long() if kind == "classification" else torch.stack([labels, ~labels], 1).float()
        return Task(f"t{number}", kind, {"train": Rows(inputs, kept)}, outputs=2)

    weights = []
    for flips in (0.0, 0.15, 0.3, 0.5):
        suite = Suite([task(0, flips), task(1, 0.0), task(2, 0.0)], target="t0")
        network = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        run = fit(suite, network, SVD(features=features, rank=1), epochs=2, seed=0, device="cpu", progress=False)
        weights.append(run.weights["t0"])
    assert weights == sorted(weights, reverse=True), weights
    assert weights[0] > 0.25
    assert weights[-1] < 0.5 * weights[0]


def test_rows_without_label_count_for_nothing() -> None:
    suite, inputs, labels = regressions()
    holes = labels.clone()
    holes[10:25, 1] = torch.nan
    for name, column in (("t0", 0), ("t1", 1)):
        suite[name].rows[Role.TRAIN] = Rows(inputs, holes[:, column])
    kept = torch.arange(60)[~holes[:, 1].isnan()]
    suite["t1"].rows[Role.TRAIN] = Rows(inputs, holes[:, 1])
    found = weighed(suite, rank=2)
    suite["t1"].rows[Role.TRAIN] = Rows(inputs[kept], labels[kept, 1])
    torch.testing.assert_close(found, weighed(suite, rank=2))


def test_words_and_tags_are_weighed_by_what_the_heads_read() -> None:
    draw = torch.Generator().manual_seed(0)
    texts = Ragged.of([torch.randint(1, 12, (int(n),), generator=draw) for n in torch.arange(60) % 5 + 1])
    tags = Ragged(texts.values % 3, texts.offsets)
    noise = Ragged(torch.randint(3, (len(texts.values),), generator=draw), texts.offsets)
    first = torch.stack([texts.values[o] for o in texts.offsets[:-1]])
    suite = Suite(
        [
            Task("first", "classification", {"train": Rows(texts, first % 2)}),
            Task("tags", "tagging", {"train": Rows(texts, tags)}, outputs=3),
            Task("noise", "tagging", {"train": Rows(texts, noise)}, outputs=3),
        ],
        target="first",
    )
    for features in ("auto", "gradients"):
        found = weighed(suite, encoders.TextCNN(12, size=16, channels=8), features=features, rank=2)
        assert found[1] > 2 * found[2], features
    with pytest.raises(SteelyardError, match="the inputs of task 'first' are words; use features = 'representation'"):
        weighed(suite, encoders.TextCNN(12, size=8, channels=4), features="inputs")


def test_shared_rows_pass_the_encoder_once_and_the_encoder_stays_as_it_was() -> None:
    suite, _, _ = regressions()
    encoder = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    seen: list[int] = []
    encoder.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    weighed(suite, encoder, features="representation")
    assert sum(seen) == 60 + 2  # and two to find the width
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())


def test_inputs_are_asked_once_and_the_representation_after_each_epoch() -> None:
    weights = {}
    for features in ("inputs", "representation"):
        run = testing.train(lambda features=features: SVD(features=features), log_every=1)
        weights[features] = {tuple(line["weights"].values()) for line in run.history}
        assert all(line["method"]["rank"] >= 1 for line in run.history)
    assert len(weights["inputs"]) == 1
    assert len(weights["representation"]) == len(run.history) > 1
    run = testing.train(lambda: SVD(features="representation", update="start"))
    assert len({tuple(line["weights"].values()) for line in run.history}) == 1


def test_what_cannot_be_is_told() -> None:
    suite, _, _ = regressions()
    with pytest.raises(SteelyardError, match="'rank': 5, but the tasks' labels and features span 4 directions"):
        weighed(suite, rank=5)
    with pytest.raises(SteelyardError, match="option 'rank"):
        SVD(rank="gaps")
    with pytest.raises(SteelyardError, match="the suite's rows"):
        SVD().start(types.SimpleNamespace(initial_weights=torch.ones(2), tasks=("a", "b")))
    uneven = Suite([suite["t0"], Task("x", "regression", {"train": Rows(normal(9, 3), normal(9))})])
    with pytest.raises(SteelyardError, match="inputs have different sizes"):
        weighed(uneven, features="inputs")
