"""Ridge regression that judges itself: against fits with the row really left out."""

import pytest
import torch
from torch import Tensor

from steelyard.functional import cautious_ridge, leave_one_out_errors
from steelyard.functional._ridge import PENALTIES


def data(rows: int = 14, width: int = 5, noise: float = 0.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=draw, dtype=torch.float64) + 2
    y = x @ torch.randn(width, 3, generator=draw, dtype=torch.float64)
    return x, y + noise * torch.randn(rows, 3, generator=draw, dtype=torch.float64) + 1


def refitted(x: Tensor, y: Tensor, absolute: float) -> tuple[Tensor, Tensor]:
    """min_W ‖Y − XW − 1bᵀ‖² + p·‖W‖² by the normal equations."""
    centred, level = x - x.mean(0), y.mean(0)
    identity = torch.eye(x.shape[1], dtype=x.dtype)
    found = torch.linalg.solve(centred.T @ centred + absolute * identity, centred.T @ (y - level))
    return found, level - x.mean(0) @ found


def left_out(x: Tensor, y: Tensor) -> list[Tensor]:
    """What each row lacks under the fit to all others, ``[n, k]``, for no map at all and for each penalty."""
    unit = float(torch.linalg.svdvals(x - x.mean(0)).square().mean())
    rows = [torch.arange(len(x)) != i for i in range(len(x))]
    found = [torch.stack([y[i] - y[keep].mean(0) for i, keep in enumerate(rows)])]
    for penalty in PENALTIES:
        each = []
        for i, keep in enumerate(rows):
            w, b = refitted(x[keep], y[keep], penalty * unit)
            each.append(y[i] - x[i] @ w - b)
        found.append(torch.stack(each))
    return found


@pytest.mark.parametrize(("rows", "width"), [(14, 5), (6, 9), (2, 1)])
def test_errors_are_those_of_rows_that_were_left_out_averaged_over_penalties(rows: int, width: int) -> None:
    x, y = data(rows, width)
    missed = left_out(x, y)
    means = torch.stack([m.square().sum(1).mean() for m in missed])
    trust = (-means / means[0] * rows / 2).softmax(0)
    wanted = sum(t * m for t, m in zip(trust, missed, strict=True)).square().sum(1)
    torch.testing.assert_close(leave_one_out_errors(x, y), wanted, rtol=1e-5, atol=1e-9)


def test_the_map_is_the_strongest_penalty_that_is_not_surely_worse() -> None:
    for seed in range(5):
        x, y = data(30, noise=2.0, seed=seed)
        errors = [m.square().sum(1) for m in left_out(x, y)]
        best = min(errors, key=lambda e: float(e.mean()))
        close = [bool((e - best).mean() <= 2 * (e - best).std() / 30**0.5) for e in errors]
        unit = float(torch.linalg.svdvals(x - x.mean(0)).square().mean())
        place = close.index(True)
        found, offset = cautious_ridge(x, y)
        wanted = refitted(x, y, PENALTIES[place - 1] * unit) if place else (torch.zeros(5, 3).double(), y.mean(0))
        torch.testing.assert_close(found, wanted[0])
        torch.testing.assert_close(offset, wanted[1])
        best_fit, _ = cautious_ridge(x, y, sure=0.0)
        wanted = refitted(x, y, PENALTIES[int(torch.stack(errors).mean(1).argmin()) - 1] * unit)
        torch.testing.assert_close(best_fit, wanted[0])


def test_labels_that_the_inputs_do_not_tell_get_no_answer() -> None:
    """Small random coefficients would do as well as large ones: what reads the answers may not care for their scale."""
    draw = torch.Generator().manual_seed(3)
    silent = 0
    for _ in range(20):
        x = torch.randn(200, 8, generator=draw)
        labels = torch.nn.functional.one_hot(torch.randint(4, (200,), generator=draw)).float()
        silent += not bool(cautious_ridge(x, labels)[0].any())
    assert silent >= 19
    assert bool(cautious_ridge(*data(200))[0].any())


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scales_do_not_matter(scale: float) -> None:
    x, y = data()
    torch.testing.assert_close(leave_one_out_errors(x * scale, y * scale), leave_one_out_errors(x, y) * scale**2)
    torch.testing.assert_close(cautious_ridge(x * scale, y)[0] * scale, cautious_ridge(x, y)[0])


def test_constant_and_empty_inputs_give_the_columns_means() -> None:
    x, y = data()
    for nothing in (torch.full_like(x, 3.0), torch.full_like(x, 0.1) + x * 0, x[:, :0]):
        assert not bool(cautious_ridge(nothing, y)[0].any())
        wanted = torch.stack([(y[i] - torch.cat([y[:i], y[i + 1 :]]).mean(0)).square().sum() for i in range(len(y))])
        torch.testing.assert_close(leave_one_out_errors(nothing, y), wanted)
    assert not bool(leave_one_out_errors(x, torch.ones(14, 2)).any())


def test_wrong_shapes_and_numbers_are_refused() -> None:
    x, y = data()
    for bad in ((x[0], y), (x, y[:3]), (x[:1], y[:1])):
        with pytest.raises(ValueError, match="at least two rows"):
            cautious_ridge(*bad)
    with pytest.raises(ValueError, match="inputs holds nan"):
        leave_one_out_errors(x.index_fill(0, torch.tensor([2]), float("nan")), y)
