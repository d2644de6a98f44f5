"""What combinations of gradients promise, over the whole registry; and that they are what torchjd computes."""

import types

import pytest
import torch

from steelyard import methods
from steelyard.functional import frank_wolfe_weights, min_norm_weights, vaccine_coefficients
from steelyard.methods import Combination

NAMES = [name for name in methods.names() if issubclass(methods.get(name), Combination)]
RANDOM = {"pcgrad", "gradvac"}
"""Visit the tasks in random order, which matters from three tasks on."""
HARMLESS = ["mgda", "mgda_ub", "nash", "upgrad", "imtl_g"]
"""Promise that no task loses; `imtl_g` where the gradients are independent."""
SHAPES = [(2, 2), (2, 9), (3, 7), (5, 40), (8, 12)]


def job_of(tasks, target=0, seed=0):
    """What `Combination.combine` may ask of a job."""
    return types.SimpleNamespace(
        tasks=tuple(f"t{i}" for i in range(tasks)),
        target=target,
        generator=torch.Generator().manual_seed(seed),
        tasks_per_step=tasks,
        initial_weights=torch.full((tasks,), 1 / tasks),
    )


def combined(name, jacobian, target=0, **options):
    """λ for the rows of a Jacobian."""
    method, job = methods.get(name)(**options), job_of(len(jacobian), target)
    method.start(job)
    return method.combine(jacobian @ jacobian.T, torch.arange(len(jacobian)), job).double()


def jacobian(tasks, size, seed, kind="plain"):
    """Random gradients: as they come, of very unequal lengths, or pulled apart so that most of them conflict."""
    found = torch.randn(tasks, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if kind == "unequal":
        found = found * torch.logspace(-2, 2, tasks, dtype=torch.float64)[:, None]
    if kind == "conflict":
        found = found - 0.95 * found.mean(0)
    return found


every_kind = pytest.mark.parametrize("kind", ["plain", "unequal", "conflict"])
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@every_kind
@every_shape
@pytest.mark.parametrize("name", HARMLESS)
def test_no_task_loses_to_first_order(name, shape, kind):
    for seed in range(4):
        rows = jacobian(*shape, seed, kind)
        update = combined(name, rows) @ rows
        gains = rows @ update
        scale = rows.norm(dim=1) * update.norm()
        assert (gains >= -1e-7 * scale).all(), gains / scale


@every_kind
@every_shape
def test_the_target_never_loses_under_target_first(shape, kind):
    for target in range(shape[0]):
        rows = jacobian(*shape, target, kind)
        update = combined("target_first", rows, target) @ rows
        assert float(rows[target] @ update) >= float(rows[target] @ rows[target]) / len(rows) * (1 - 1e-12)


@every_kind
@pytest.mark.parametrize("name", ["pcgrad", "gradvac"])
def test_two_conflicting_tasks_both_gain_by_projection(name, kind):
    for seed in range(8):
        rows = jacobian(2, 6, seed, kind)
        assert (rows @ (combined(name, rows) @ rows) >= -1e-12).all()


@every_kind
@pytest.mark.parametrize("name", NAMES)
def test_renaming_tasks_renames_their_weights(name, kind):
    for tasks, size in ((2, 5), (5, 12)):
        if tasks > 2 and name in RANDOM:
            continue
        rows, order = jacobian(tasks, size, 1, kind), torch.randperm(tasks)
        plain = combined(name, rows, target=int(order[0]))
        torch.testing.assert_close(combined(name, rows[order], target=0), plain[order], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("name", NAMES)
def test_a_common_scale_changes_nothing(name, scale):
    """Also of single-precision Gram matrices, whose entries are then as small as 1e-12."""
    for seed in range(3):
        rows = jacobian(4, 9, seed)
        torch.testing.assert_close(combined(name, rows * scale), combined(name, rows), rtol=1e-6, atol=1e-9)
        single = combined(name, (rows * scale).float())
        torch.testing.assert_close(single, combined(name, rows.float()), rtol=1e-3, atol=1e-4)


@every_kind
@pytest.mark.parametrize("name", NAMES)
def test_the_own_scale_of_each_gradient_is_bargained_away(name, kind):
    """Nash's and IMTL-G's directions do not depend on the gradients' lengths at all."""
    if name not in {"nash", "imtl_g"}:
        pytest.skip("depends on lengths")
    rows = jacobian(4, 9, 0, kind)
    factors = torch.tensor([1e-3, 1.0, 30.0, 1e3], dtype=torch.float64)
    first, second = (combined(name, given) @ given for given in (rows, rows * factors[:, None]))
    torch.testing.assert_close(second / second.norm(), first / first.norm(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["mgda", "mgda_ub", "upgrad"])
def test_where_no_task_can_gain_alone_the_step_is_zero(name):
    """A positive mixture of the gradients vanishes: Pareto stationary."""
    for seed in range(4):
        rows = jacobian(4, 9, seed)
        shares = torch.rand(3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.1
        rows[3] = -(shares @ rows[:3])
        assert float((combined(name, rows) @ rows).norm()) < 1e-6


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(pytest.param(name, {}, id=name) for name in ("mgda", "upgrad", "nash", "pcgrad")),
        pytest.param("mgda", {"solver": "frank_wolfe"}, id="mgda by Frank-Wolfe"),
        pytest.param("cagrad", {}, id="cagrad"),
        pytest.param("gradvac", {}, id="gradvac"),
        pytest.param("target_first", {}, id="target_first"),
    ],
)
def test_descent_ends_at_pareto_stationary_points(name, options):
    """On three quadratics with different minima, from far away, with shrinking steps. IMTL-G promises no such thing."""
    draw = torch.Generator().manual_seed(0)
    roots = torch.randn(3, 4, 4, dtype=torch.float64, generator=draw)
    bowls = roots @ roots.mT / 4 + 0.5 * torch.eye(4, dtype=torch.float64)
    minima = 2 * torch.randn(3, 4, dtype=torch.float64, generator=draw)
    point = torch.full((4,), 5.0, dtype=torch.float64)
    method, job = methods.get(name)(**options), job_of(3)
    method.start(job)

    def rows():
        return torch.einsum("tij,tj->ti", bowls, point - minima)

    def distance(found):
        return float((min_norm_weights(found @ found.T) @ found).norm())

    begin = distance(rows())
    for number in range(150):
        found = rows()
        point = point - 0.3 / (1 + number / 15) * (
            method.combine(found @ found.T, torch.arange(3), job).double() @ found
        )
    assert distance(rows()) < 0.02 * begin


def test_frank_wolfe_is_the_exact_solver_given_time():
    rows = jacobian(5, 8, 0)
    gram = rows @ rows.T
    exact, slow, few = min_norm_weights(gram), frank_wolfe_weights(gram, 1_500), frank_wolfe_weights(gram, 5)
    lengths = [float(weights @ gram @ weights) for weights in (exact, slow, few)]
    assert lengths == sorted(lengths)
    torch.testing.assert_close(slow, exact, atol=5e-2, rtol=0)
    assert lengths[1] < lengths[0] * 1.005 < lengths[2]


def rival(name, tasks):
    """The method as torchjd has it; a part of them needs solvers of its own."""
    aggregation, linalg = pytest.importorskip("torchjd.aggregation"), pytest.importorskip("torchjd.linalg")
    make = {
        "mgda": lambda: aggregation.MGDA(epsilon=1e-15, max_iters=5_000),
        "upgrad": lambda: aggregation.UPGrad(projector=linalg.QuadprogProjector(norm_eps=0.0, reg_eps=1e-9)),
        "cagrad": lambda: aggregation.CAGrad(c=0.5),
        "nash": lambda: aggregation.NashMTL(n_tasks=tasks),
        "imtl_g": aggregation.IMTLG,
        "pcgrad": aggregation.PCGrad,
    }
    try:
        return make[name]()
    except ImportError as error:
        pytest.skip(str(error))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["plain", "conflict"])
@pytest.mark.parametrize("shape", [(2, 5), (3, 8), (5, 12)], ids=str)
@pytest.mark.parametrize("name", ["upgrad", "nash", "imtl_g", "pcgrad", "mgda", "cagrad"])
def test_torchjd_agrees(name, shape, kind):
    """The updates agree to 1e-4 of their length, but for factors: Nash's is √T long there, and IMTL-G has Σλ = 1.

    Two of its solvers stop earlier than that, MGDA's Frank-Wolfe from three tasks on. There ours has to be
    the better one: MGDA's the shorter mixture, CAGrad's the one with the better worst task.
    """
    if name == "pcgrad" and shape[0] > 2:
        pytest.skip("visits in random order")
    for seed in range(3):
        rows = jacobian(*shape, seed, kind)
        ours, theirs = combined(name, rows) @ rows, rival(name, len(rows))(rows)
        if name == "pcgrad":
            theirs = theirs / len(rows)  # theirs is the sum
        if name in {"nash", "imtl_g"}:
            ours, theirs = ours / ours.norm(), theirs / theirs.norm()
            theirs = theirs * torch.sign(theirs @ ours)
        apart = float((ours - theirs).norm() / theirs.norm())
        if name == "mgda":
            assert float(ours.norm()) <= float(theirs.norm()) * (1 + 1e-9)
        elif name == "cagrad":
            assert float((rows @ ours).min()) >= float((rows @ theirs).min()) - 1e-6
        early = {"mgda": 1e-2 if shape[0] > 2 else 1e-4, "cagrad": 5e-4}
        assert apart < early.get(name, 1e-4), apart


@pytest.mark.parametrize("decay", [0.0, 0.01, 0.4])
def test_gradvac_is_the_algorithm_on_vectors(decay):
    """Eqs. 4 and 5 of Wang et al. 2021, over several steps, with goals that follow what was seen."""
    goals = wanted = torch.zeros(4, 4, dtype=torch.float64)
    for step in range(3):
        rows = jacobian(4, 6, step, "conflict")
        order = torch.Generator().manual_seed(step)
        mixing, goals = vaccine_coefficients(rows @ rows.T, goals, decay, torch.Generator().manual_seed(step))
        moved, wanted = rows.clone(), wanted.clone()
        for i in range(4):
            for j in torch.randperm(4, generator=order).tolist():
                if i == j:
                    continue
                size, goal = moved[i].norm(), wanted[i, j].clone()
                cosine = moved[i] @ rows[j] / size / rows[j].norm()
                if cosine < goal:
                    sine, other = (1 - cosine**2).sqrt(), (1 - goal**2).sqrt()
                    moved[i] = moved[i] + size * (goal * sine - cosine * other) / (rows[j].norm() * other) * rows[j]
                    assert float(moved[i] @ rows[j] / moved[i].norm() / rows[j].norm()) == pytest.approx(float(goal))
                wanted[i, j] = (1 - decay) * goal + decay * cosine
        torch.testing.assert_close(mixing @ rows, moved)
        torch.testing.assert_close(goals, wanted)
    assert decay == 0 or goals.abs().max() > decay / 2
