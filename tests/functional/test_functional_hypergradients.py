"""Hypergradients against finite differences: one optimiser step, and the bilevel problem on quadratics."""

import math
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from steelyard.functional import (
    adam_preconditioner,
    conjugate_gradients,
    cosine_hypergradient,
    gram_matrix,
    hypergradient_matrix,
    reduced_hessian,
    target_hypergradient,
)

TASKS, WIDTH, HIDDEN, ROWS = 3, 4, 2, 7
SHARED = WIDTH * HIDDEN


def task_losses(theta: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the T losses of a tanh layer, shared, with one linear head per task; θ holds them all, flat."""
    features = torch.tanh(inputs @ theta[:SHARED].reshape(WIDTH, HIDDEN))
    heads = theta[SHARED:].reshape(TASKS, HIDDEN, 1)
    return ((features @ heads).squeeze(-1) - labels).square().mean(1)


def gradients(theta: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    theta = theta.detach().requires_grad_()
    losses = task_losses(theta, inputs, labels)
    return torch.stack([torch.autograd.grad(loss, theta, retain_graph=True)[0] for loss in losses])


@dataclass
class Setting:
    """Parameters, a support and a query set, weights."""

    theta: Tensor
    support: tuple[Tensor, Tensor]
    query: tuple[Tensor, Tensor]
    weights: Tensor


@pytest.fixture
def setting() -> Setting:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    return Setting(
        draw(SHARED + TASKS * HIDDEN),
        (draw(TASKS, ROWS, WIDTH), draw(TASKS, ROWS)),
        (draw(TASKS, ROWS, WIDTH), draw(TASKS, ROWS)),
        torch.tensor([0.5, 1.5, 1.0], dtype=torch.float64),
    )


def differences(function: object, weights: Tensor, width: float = 1e-5) -> Tensor:
    """Return the central differences of a vector function, one column per weight."""
    assert callable(function)
    columns = []
    for index in range(len(weights)):
        shift = torch.zeros_like(weights)
        shift[index] = width
        columns.append((function(weights + shift) - function(weights - shift)) / (2 * width))
    return torch.stack(columns, -1)


@pytest.mark.parametrize("step", [1e-4, 0.3])
def test_matrix_equals_finite_differences_through_one_step(setting: Setting, step: float) -> None:
    before = gradients(setting.theta, *setting.support)

    def after(weights: Tensor) -> Tensor:
        return setting.theta - step / TASKS * weights @ before

    moved = after(setting.weights)
    matrix = hypergradient_matrix(gradients(moved, *setting.query), before, step)
    exact = differences(lambda w: task_losses(after(w), *setting.query), setting.weights, 1e-3)
    torch.testing.assert_close(matrix, exact, rtol=1e-5, atol=1e-9)
    stale = hypergradient_matrix(gradients(setting.theta, *setting.query), before, step)
    if step > 0.1:
        assert float((stale - exact).abs().max()) > 1e-2 * float(exact.abs().max())


def test_heads_are_in_scope(setting: Setting) -> None:
    query, support = gradients(setting.theta, *setting.query), gradients(setting.theta, *setting.support)
    whole = hypergradient_matrix(query, support, 0.1)
    shared = hypergradient_matrix(query[:, :SHARED], support[:, :SHARED], 0.1)
    off = ~torch.eye(TASKS, dtype=torch.bool)
    torch.testing.assert_close(whole[off], shared[off])
    assert bool(((whole - shared).diagonal().abs() > 1e-4).all())


def test_matrix_from_mappings_and_for_fewer_queries(setting: Setting) -> None:
    query, support = gradients(setting.theta, *setting.query), gradients(setting.theta, *setting.support)
    metric = torch.rand(support.shape[1], dtype=torch.float64)

    def named(rows: Tensor) -> dict[str, Tensor]:
        lead = rows.shape[:-1]
        return {"w": rows[..., :SHARED].reshape(*lead, WIDTH, HIDDEN), "h": rows[..., SHARED:]}

    flat = hypergradient_matrix(query, support, 0.1, metric)
    torch.testing.assert_close(flat, -0.1 / TASKS * (query * metric) @ support.T)
    torch.testing.assert_close(hypergradient_matrix(named(query), named(support), 0.1, named(metric)), flat)
    torch.testing.assert_close(hypergradient_matrix(query[:1], support, 0.1, metric), flat[:1])


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("count", [1, 10])
def test_adam_preconditioner_equals_adam_with_v_held(setting: Setting, count: int, beta: float) -> None:
    support = gradients(setting.theta, *setting.support)
    betas, step = (beta, 1.0 - 1e-9), 0.05
    moment = (torch.rand_like(setting.theta) + 0.1) * (1 - betas[1] ** count)
    first = torch.randn_like(setting.theta) * 0.1

    def after(weights: Tensor) -> Tensor:
        # The second moment is put back by hand: torch has no Adam that holds it.
        parameter = torch.nn.Parameter(setting.theta.clone())
        optimiser = torch.optim.Adam([parameter], lr=step, betas=betas, foreach=False)
        parameter.grad = weights @ support / TASKS
        held = (moment - (1 - betas[1]) * parameter.grad.square()) / betas[1]
        optimiser.state[parameter] = {
            "step": torch.tensor(float(count - 1)),
            "exp_avg": first.clone() if count > 1 else torch.zeros_like(first),
            "exp_avg_sq": held,
        }
        optimiser.step()
        return parameter.detach()

    moved = after(setting.weights)
    metric = adam_preconditioner(moment, count, betas)
    matrix = hypergradient_matrix(gradients(moved, *setting.query), support, step, metric)
    exact = differences(lambda w: task_losses(after(w), *setting.query), setting.weights)
    torch.testing.assert_close(matrix, exact, rtol=1e-4, atol=1e-6 * float(exact.abs().max()))


def test_adam_preconditioner_defaults_are_adams() -> None:
    moment = torch.tensor([4.0, 0.0], dtype=torch.float64)
    expected = 0.1 / (1 - 0.9**3) / torch.tensor([(4 / (1 - 0.999**3)) ** 0.5 + 1e-8, 1e-8]).double()
    torch.testing.assert_close(adam_preconditioner(moment, 3), expected, rtol=1e-6, atol=0)
    flat = adam_preconditioner(moment, 1, (0.0, 0.0), eps=0.5)
    torch.testing.assert_close(flat, torch.tensor([0.4, 2.0]).double())


def test_gram_matrix_keeps_tiny_float32_gradients_and_long_rows() -> None:
    rows = torch.randn(3, 600_001, generator=torch.Generator().manual_seed(0))
    exact = rows.double() @ rows.double().T
    torch.testing.assert_close(gram_matrix(rows), exact)
    torch.testing.assert_close(gram_matrix(rows * 2.0**-100) * 2.0**200, exact, rtol=1e-6, atol=0)
    assert gram_matrix(rows).dtype == torch.float64


def test_misaligned_gradients_are_refused_by_name() -> None:
    rows = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"\['adapter'\] on one side only"):
        hypergradient_matrix({"w": rows, "adapter": rows}, {"w": rows}, 0.1)
    with pytest.raises(ValueError, match=r"w: rows of shapes \[2, 3\] and \[2, 4\]"):
        hypergradient_matrix({"w": rows}, {"w": torch.ones(2, 4)}, 0.1)
    with pytest.raises(ValueError, match="preconditioner"):
        hypergradient_matrix(rows, rows, 0.1, torch.ones(4))
    with pytest.raises(ValueError, match="empty"):
        gram_matrix({})
    with pytest.raises(TypeError, match="mappings"):
        hypergradient_matrix({"w": rows}, rows, 0.1)
    with pytest.raises(TypeError, match="must be a tensor"):
        hypergradient_matrix(rows, rows, 0.1, {"w": rows})
    with pytest.raises(ValueError, match="count"):
        adam_preconditioner(torch.ones(2), 0)


@dataclass
class Quadratics:
    """Losses ½zᵀM_t z - b_tᵀz in z = (φ, f_t), and the target's in φ alone, its head held."""

    body: Tensor
    cross: Tensor
    heads: Tensor
    pull_body: Tensor
    pull_head: Tensor
    target: Tensor
    pull_target: Tensor

    def optimum(self, weights: Tensor) -> Tensor:
        """Return φ^ω = argmin_φ Σ_t ω_t min_f L_t(φ, f)."""
        hessian = torch.einsum("t,tij->ij", weights, reduced_hessian(self.body, self.cross, self.heads))
        response = (self.cross @ torch.linalg.solve(self.heads, self.pull_head[..., None])).squeeze(-1)
        solution: Tensor = torch.linalg.solve(hessian, weights @ (self.pull_body - response))
        return solution

    def target_loss(self, phi: Tensor) -> Tensor:
        return phi @ self.target @ phi / 2 - self.pull_target @ phi

    def source_gradients(self, phi: Tensor) -> Tensor:
        """Return the rows ∇_φ L_t at each task's own best head."""
        goal = self.pull_head - (self.cross.mT @ phi)
        head = torch.linalg.solve(self.heads, goal[..., None])
        slopes: Tensor = self.body @ phi + (self.cross @ head).squeeze(-1) - self.pull_body
        return slopes


def quadratics(tasks: int, body: int, head: int, seed: int, coupling: float = 1.0) -> Quadratics:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    root = draw(tasks, body + head, body + head)
    whole = root @ root.mT + 0.3 * torch.eye(body + head, dtype=torch.float64)
    target = draw(body, body)
    return Quadratics(
        whole[:, :body, :body],
        coupling * whole[:, :body, body:],
        whole[:, body:, body:],
        draw(tasks, body),
        draw(tasks, head),
        target @ target.T,
        draw(body),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("coupling", [0.0, 1.0])
def test_reduced_hessian_gives_the_bilevel_derivative_and_the_literal_one_does_not(seed: int, coupling: float) -> None:
    problem = quadratics(4, 5, 3, seed, coupling)
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    phi = problem.optimum(weights)
    slope, rows = problem.target @ phi - problem.pull_target, problem.source_gradients(phi)
    reduced = reduced_hessian(problem.body, problem.cross, problem.heads)
    faithful = target_hypergradient(slope, rows, torch.einsum("t,tij->ij", weights, reduced))
    literal = target_hypergradient(slope, rows, torch.einsum("t,tij->ij", weights, problem.body))
    exact = differences(lambda w: problem.target_loss(problem.optimum(w)), weights)
    torch.testing.assert_close(faithful, exact, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close((weights @ faithful).item(), 0.0, atol=1e-10, rtol=0)
    error = float((literal - exact).abs().max())
    if coupling:
        assert error > 1e-2 * float(exact.abs().max())
    else:
        torch.testing.assert_close(literal, exact, rtol=1e-6, atol=1e-8)


def test_products_over_body_and_heads_give_the_reduced_inverse() -> None:
    tasks, body, head = 3, 5, 2
    problem = quadratics(tasks, body, head, 7)
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    phi = problem.optimum(weights)
    slope, rows = problem.target @ phi - problem.pull_target, problem.source_gradients(phi)

    size = body + tasks * head
    joint = torch.zeros(size, size, dtype=torch.float64)
    joint[:body, :body] = torch.einsum("t,tij->ij", weights, problem.body)
    for task, weight in enumerate(weights):
        own = slice(body + task * head, body + (task + 1) * head)
        joint[:body, own] = weight * problem.cross[task]
        joint[own, :body] = weight * problem.cross[task].T
        joint[own, own] = weight * problem.heads[task]
    filled = torch.nn.functional.pad(slope, (0, tasks * head))
    padded = torch.nn.functional.pad(rows, (0, tasks * head))
    by_products = target_hypergradient(filled, padded, lambda v: joint @ v, tolerance=1e-12)
    reduced = reduced_hessian(problem.body, problem.cross, problem.heads)
    by_matrix = target_hypergradient(slope, rows, torch.einsum("t,tij->ij", weights, reduced))
    torch.testing.assert_close(by_products, by_matrix, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e12])
def test_conjugate_gradients_solve_at_every_scale(scale: float) -> None:
    root = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    matrix, goal = root @ root.T + torch.eye(6), torch.arange(1.0, 7.0)
    solution = conjugate_gradients(lambda v: matrix @ v, goal * scale, damping=0.5)
    exact = torch.linalg.solve(matrix + 0.5 * torch.eye(6), goal)
    torch.testing.assert_close(solution / scale, exact, rtol=1e-4, atol=1e-5)
    damped = target_hypergradient(goal, root, matrix, damping=0.5)
    torch.testing.assert_close(damped, -(root @ exact), rtol=1e-4, atol=1e-4)
    assert conjugate_gradients(lambda v: matrix @ v, torch.zeros(6)).tolist() == [0.0] * 6


@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-4])
def test_conjugate_gradients_stop_at_the_tolerance(tolerance: float) -> None:
    matrix, goal = torch.diag(torch.logspace(0, 2, 40).double()), torch.ones(40).double()
    residuals = [1.0]

    def matvec(vector: Tensor) -> Tensor:
        return matrix @ vector

    for count in range(1, 41):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            point = conjugate_gradients(matvec, goal, tolerance=0.0, max_iterations=count)
        residuals.append(float((goal - matrix @ point).norm() / goal.norm()))
    first = next(count for count, rest in enumerate(residuals) if rest <= tolerance)
    assert 1 < first < 40
    stopped = conjugate_gradients(matvec, goal, tolerance=tolerance)
    rest = float((goal - matrix @ stopped).norm() / goal.norm())
    torch.testing.assert_close(rest, residuals[first], rtol=1e-6, atol=0)


def test_conjugate_gradients_say_when_they_fail() -> None:
    goal = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    bent = torch.diag(torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64))
    with pytest.raises(ValueError, match="raise damping"):
        conjugate_gradients(lambda v: bent @ v, goal)
    flat = torch.zeros(3, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="curvature 0 along"):
        conjugate_gradients(lambda v: flat @ v, goal)
    wide = torch.diag(torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64))
    with pytest.warns(UserWarning, match="relative residual") as caught:
        truncated = conjugate_gradients(lambda v: wide @ v, goal, max_iterations=1)
    rest = float((goal - wide @ truncated).norm() / goal.norm())
    assert str(caught[0].message).endswith(f" {rest:.1e}")
    with pytest.raises(ValueError, match="right-hand side holds nan"):
        conjugate_gradients(lambda v: v, goal * math.nan)
    with pytest.raises(ValueError, match=r"\[P\], \[T, P\]"):
        target_hypergradient(goal, goal, wide)
    with pytest.raises(ValueError, match=r"\[n, n\]"):
        target_hypergradient(goal, wide, goal)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cosine_signal_is_the_cosine_at_every_scale(scale: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(20, dtype=torch.float64, generator=generator)
    sources = torch.randn(4, 20, dtype=torch.float64, generator=generator)
    expected = -3 * (sources @ target) / sources.norm(dim=1) / target.norm()
    signal = cosine_hypergradient((target * scale).to(dtype), (sources * scale).to(dtype), scale=3.0)
    assert signal.dtype == dtype
    torch.testing.assert_close(signal, expected.to(dtype), rtol=1e-5, atol=1e-6)


def test_cosine_signal_edges() -> None:
    target = torch.tensor([1.0, 2.0])
    rows = torch.stack([target, -target, torch.zeros(2)])
    torch.testing.assert_close(cosine_hypergradient(target, rows), torch.tensor([-1.0, 1.0, 0.0]))
    assert cosine_hypergradient(torch.zeros(2), rows).tolist() == [0.0, 0.0, 0.0]
    batched = cosine_hypergradient(torch.stack([target, -target]), torch.stack([rows, rows]))
    torch.testing.assert_close(batched[1], -batched[0])
