"""The paper's propositions 1, 3 and 5: closed forms, and what gradient training of the model itself finds."""

import pytest
import torch
from torch import Tensor, nn

from steelyard import Rows, SharedModel, Suite, Task
from steelyard.functional import linear_shared_module
from steelyard.tasks import collate

TASKS, DIM, ROWS = 4, 6, 30
WEIGHTS = torch.tensor([1.0, 3.0, 0.5, 2.0], dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def shared_inputs(seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Proposition 3: one X."""
    inputs = normal(ROWS, DIM, seed=seed) * torch.arange(1, DIM + 1)
    return [inputs] * TASKS, list(normal(ROWS, TASKS, seed=seed + 100).unbind(1))


def turned_inputs(seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Proposition 5: inputs of each task's own, X_i = Q_i X, with one covariance."""
    inputs, labels = shared_inputs(seed)
    return [torch.linalg.qr(normal(ROWS, ROWS, seed=seed + i)).Q @ x for i, x in enumerate(inputs)], labels


def own_inputs(seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Proposition 1: inputs of every task's own."""
    return [normal(ROWS + i, DIM, seed=seed + i) for i in range(TASKS)], [
        normal(ROWS + i, seed=seed + 50 + i) for i in range(TASKS)
    ]


def fitted(inputs: Tensor, labels: Tensor) -> Tensor:
    """The least-squares predictions."""
    return inputs @ torch.linalg.lstsq(inputs, labels[:, None], driver="gelsd").solution[:, 0]


def head(features: int, outputs: int) -> nn.Module:
    return nn.Linear(features, outputs, bias=False)


def trained(inputs: list[Tensor], labels: list[Tensor], width: int, weights: Tensor, seed: int = 0) -> list[Tensor]:
    """Predictions of the library's own model, linear and of this width, after gradient training on Σ a_i L_i.

    There is no bad local minimum, but saddles that training can be slow to leave: the best of three starts.
    """
    named = [(f"t{i}", x, y) for i, (x, y) in enumerate(zip(inputs, labels, strict=True))]
    suite = Suite([Task(name, "regression", {"train": Rows(x, y)}, head=head) for name, x, y in named])
    batch = collate([(x, torch.arange(len(x)), [(name, y)]) for name, x, y in named])

    def start(number: int) -> tuple[float, list[Tensor]]:
        torch.manual_seed(100 * seed + number)
        model = SharedModel(nn.Linear(DIM, width, bias=False, dtype=torch.float64), suite)
        optimiser = torch.optim.LBFGS(
            model.parameters(), max_iter=400, tolerance_grad=1e-13, tolerance_change=0, history_size=60,
            line_search_fn="strong_wolfe",
        )  # fmt: skip

        def loss() -> Tensor:
            optimiser.zero_grad()
            total = model.losses(batch).sums @ weights
            total.backward()
            return total

        optimiser.step(loss)
        return float(loss().detach()), [output.detach()[:, 0] for output in model(batch).values()]

    return min((start(number) for number in range(3)), key=lambda found: found[0])[1]


def closed(inputs: list[Tensor], labels: list[Tensor], width: int, weights: Tensor) -> list[Tensor]:
    module = linear_shared_module(inputs, labels, width, weights)
    return [fitted(x @ module, y) for x, y in zip(inputs, labels, strict=True)]


@pytest.mark.parametrize("case", [shared_inputs, turned_inputs], ids=["proposition 3", "proposition 5"])
@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_closed_form_is_what_gradient_training_finds(case, width: int, seed: int) -> None:
    inputs, labels = case(seed)
    expected = closed(inputs, labels, width, WEIGHTS)
    found = trained(inputs, labels, width, WEIGHTS, seed)
    for name, value in enumerate(expected):
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", [shared_inputs, turned_inputs])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_what_sharing_costs_is_the_rest_of_the_spectrum(case, width: int) -> None:
    inputs, labels = case(0)

    def loss(predictions: list[Tensor]) -> Tensor:
        return WEIGHTS @ torch.stack([(p - y).square().sum() for p, y in zip(predictions, labels, strict=True)])

    cost = loss(closed(inputs, labels, width, WEIGHTS)) - loss(
        [fitted(x, y) for x, y in zip(inputs, labels, strict=True)]
    )
    # Each task's labels in the coordinates of its inputs, Uᵀy, with X = U D Vᵀ and one D Vᵀ for all.
    values, columns = torch.linalg.eigh(inputs[0].T @ inputs[0])
    seen = torch.stack([(columns / values.sqrt()).T @ x.T @ y for x, y in zip(inputs, labels, strict=True)], 1)
    rest = torch.linalg.svdvals(seen * WEIGHTS.sqrt())[width:].square().sum()
    torch.testing.assert_close(cost, rest, rtol=1e-9, atol=1e-9)
    # No other module of that width does better.
    for seed in range(20):
        other = [fitted(x @ normal(DIM, width, seed=seed), y) for x, y in zip(inputs, labels, strict=True)]
        assert loss(other) >= loss(closed(inputs, labels, width, WEIGHTS)) - 1e-9


@pytest.mark.parametrize("case", [shared_inputs, own_inputs])
@pytest.mark.parametrize("width", [TASKS, TASKS + 1])
def test_a_width_of_the_number_of_tasks_reaches_every_tasks_own_solution(case, width: int) -> None:
    inputs, labels = case(0)
    single = [fitted(x, y) for x, y in zip(inputs, labels, strict=True)]
    # Proposition 1's construction: B has every θ_i among its columns.
    thetas = torch.stack(
        [torch.linalg.lstsq(x, y[:, None]).solution[:, 0] for x, y in zip(inputs, labels, strict=True)], 1
    )
    for x, y, alone in zip(inputs, labels, single, strict=True):
        torch.testing.assert_close(fitted(x @ thetas, y), alone)
    found = trained(inputs, labels, width, WEIGHTS)
    for together, alone in zip(found, single, strict=True):
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    # And no transfer: other weights change nothing.
    for together, other in zip(found, trained(inputs, labels, width, WEIGHTS.flip(0), seed=1), strict=True):
        torch.testing.assert_close(together, other, rtol=0, atol=2e-6)
    narrow = trained(inputs, labels, TASKS - 2, WEIGHTS)
    assert max(float((a - b).abs().max()) for a, b in zip(narrow, single, strict=True)) > 1e-2


def test_weight_on_the_clean_task_turns_the_shared_module_to_its_model() -> None:
    """The paper's example after proposition 3: y_1 = Xθ, y_2 = Xθ + ε, r = 1."""
    inputs, theta = normal(40, DIM), normal(DIM, seed=1)
    labels = torch.stack([inputs @ theta, inputs @ theta + 3 * normal(40, seed=2)], 1)
    cosines = [
        float(
            torch.cosine_similarity(
                linear_shared_module(inputs, labels, 1, torch.tensor([w, 1.0]))[:, 0], theta, 0
            ).abs()
        )
        for w in (0.01, 0.1, 1.0, 10.0, 100.0)
    ]
    assert cosines == sorted(cosines)
    assert cosines[0] < 0.97
    assert cosines[-1] > 0.999


def test_tasks_of_different_covariance_have_no_closed_form() -> None:
    inputs, labels = own_inputs(0)
    with pytest.raises(ValueError, match="covariance of task 1 is not that of task 0"):
        linear_shared_module(inputs, labels, 2)
    with pytest.raises(ValueError, match="equally many of both"):
        linear_shared_module(inputs, labels[:2], 2)
