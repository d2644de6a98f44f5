"""One update out of conflicting gradients, from their Gram matrix alone: CAGrad, IMTL-G, Nash, UPGrad, GradVac.

Every function is equivariant to the order of the tasks and, unless it says otherwise, ignores a common scale of
the gradients. Work is done in float64 on the host: T by T numbers, one transfer.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from steelyard.functional._min_norm import min_norm_weights
from steelyard.functional._tensors import narrow_type, require_finite, require_square

_EPS = torch.finfo(torch.float64).eps


def frank_wolfe_weights(gram: Tensor, iterations: int = 250, tolerance: float = 1e-6) -> Tensor:
    """Return MGDA's min-norm weights by Frank-Wolfe with exact line search, as the papers publish it.

    MetaWeighting, Algorithm 2; Sener & Koltun, Algorithm 2. Starts at 1/T and converges slowly; `min_norm_weights`
    is exact. Stops when the duality gap is at most `tolerance` times the present squared norm.

    Args:
        gram: `Tensor[T, T]` of inner products ⟨g_t, g_j⟩.
        iterations: the most steps.
        tolerance: the relative duality gap at which to stop.

    Returns:
        `Tensor[T]` on the simplex.
    """
    kernel, _ = _prepared(gram)
    weights = torch.full((len(kernel),), 1 / len(kernel), dtype=torch.float64)
    for _ in range(iterations):
        slopes = kernel @ weights
        value, corner = weights @ slopes, int(slopes.argmin())
        gap = value - slopes[corner]
        if bool(gap <= tolerance * value):
            break
        length = value - 2 * slopes[corner] + kernel[corner, corner]
        share = (gap / length).clamp(max=1)
        weights = weights * (1 - share)
        weights[corner] += share
    return _handed_back(weights, gram)


def conflict_averse_weights(gram: Tensor, radius: float = 0.5) -> Tensor:
    """Return CAGrad's weights: the update with the best worst task within a ball around the mean gradient g_0.

    Liu et al. 2021, Eq. 5: d = g_0 + √φ·g_w/‖g_w‖ with √φ = radius·‖g_0‖ and w on the simplex minimising
    ⟨g_w, g_0⟩ + √φ‖g_w‖: d = Σ_t c_t g_t with c = 1/T + √φ·w/‖g_w‖. Because ‖g_w‖ = min_κ (‖g_w‖²/κ + κ)/2, that w is
    the shortest vector among the g_t + κ·g_0 for the one κ with √φ·κ = ‖g_w‖, found as a root. Where g_w vanishes (no
    direction is left) its length counts as 1e-6 of the gradients' own.

    Args:
        gram: `Tensor[T, T]`.
        radius: the paper's c ≥ 0; 0 gives the mean.

    Returns:
        `Tensor[T]`, not negative, each at least 1/T.
    """
    if not radius >= 0:
        raise ValueError(f"radius must not be negative, not {radius}")
    kernel, _ = _prepared(gram)
    tasks = len(kernel)
    pull = kernel.mean(1)
    reach = radius * float(pull.mean().clamp_min(0).sqrt())
    if reach == 0.0:
        return _handed_back(torch.full((tasks,), 1 / tasks, dtype=torch.float64), gram)

    def nearest(shift: float) -> tuple[Tensor, float]:
        """The w that minimises ‖g_w + shift·g_0‖, and by how much ‖g_w‖ exceeds reach·shift."""
        moved = kernel + shift * (pull[:, None] + pull) + shift**2 * pull.mean()
        # Where shift·g_0 cancels a gradient, rounding can leave it a negative square.
        weights = min_norm_weights(moved + torch.diag((-moved.diagonal()).clamp_min(0)))
        return weights, float((weights @ kernel @ weights).clamp_min(0).sqrt()) - reach * shift

    weights = _root(nearest, float(kernel.diagonal().max().sqrt()) / reach)
    length = (weights @ kernel @ weights).clamp_min(0).sqrt().clamp_min(1e-6)
    return _handed_back(1 / tasks + reach / length * weights, gram)


def impartial_weights(gram: Tensor) -> Tensor:
    """Return IMTL-G's weights: the update has the same projection on every task's unit gradient.

    Liu et al. 2021: α solves ⟨Σ_s α_s g_s, u_t⟩ = const for all t, u_t = g_t/‖g_t‖. Weights may be negative. The
    published Σα = 1 explodes where positive and negative weights cancel; these have Σ|α| = 1 and a sign that makes
    the common projection positive, the same direction otherwise.

    Args:
        gram: `Tensor[T, T]`, with a positive diagonal.

    Returns:
        `Tensor[T]`, of any sign.
    """
    kernel, lengths = _prepared(gram, correlations=True)
    raw = torch.linalg.pinv(kernel, rtol=_rounding(gram), hermitian=True).sum(1) / lengths
    return _handed_back(raw / raw.abs().sum(), gram)


def bargaining_weights(gram: Tensor) -> Tensor:
    """Return Nash-MTL's weights: α > 0 with Gα = 1/α, scaled to sum to one.

    Navon et al. 2022, Eq. 2. The published solver approximates by a sequence of convex programs; this is Newton's
    method on ½αᵀGα - Σ log α, which is strictly convex and has the equation as its gradient. As published the
    update's length is √T whatever the gradients' lengths are; scaled to Σα = 1 it keeps their scale.

    Args:
        gram: `Tensor[T, T]`, with a positive diagonal.

    Returns:
        `Tensor[T]`, positive.
    """
    kernel, lengths = _prepared(gram, correlations=True)
    kernel = kernel + _rounding(gram) * torch.eye(len(kernel), dtype=torch.float64)
    shares = kernel.clamp_min(0).sum(1).rsqrt()
    for _ in range(100):
        scaled = shares[:, None] * kernel * shares
        slope = scaled.sum(1) - 1
        move = torch.linalg.solve(scaled + torch.eye(len(kernel), dtype=torch.float64), -slope)
        decrement = float((-slope @ move).clamp_min(0).sqrt())
        shares = shares * (1 + move / (1 + decrement))
        if decrement < 1e-12:
            break
    raw = shares / lengths
    return _handed_back(raw / raw.sum(), gram)


def dual_cone_weights(gram: Tensor, preferences: Tensor | None = None) -> Tensor:
    """Return UPGrad's weights: each task's gradient projected onto the cone in which no task loses, then mixed.

    Quinton & Rey 2024, Eqs. 3-4: the update is Σ_i p_i π(g_i), π the projection onto {d : ⟨d, g_t⟩ ≥ 0 for all t}. By
    duality π(g_i) = Σ_t v_t g_t with the v ≥ e_i that minimises vᵀGv, solved exactly by active sets.

    Args:
        gram: `Tensor[T, T]`.
        preferences: `Tensor[T]`, the p_i; 1/T each if not given.

    Returns:
        `Tensor[T]`, not negative.
    """
    kernel, lengths = _prepared(gram, correlations=True)
    tasks = len(kernel)
    chosen = torch.full((tasks,), 1 / tasks) if preferences is None else preferences.detach().cpu()
    total = torch.zeros(tasks, dtype=torch.float64)
    for task in range(tasks):
        own = torch.zeros(tasks, dtype=torch.float64)
        own[task] = lengths[task]
        total += float(chosen[task]) * (own + _least_lift(kernel, kernel @ own)) / lengths
    return _handed_back(total, gram)


def target_first_weights(gram: Tensor, target: int, weights: Tensor | None = None) -> Tensor:
    """Return weights under which the target never loses to first order: sources give up what works against it.

    Each source's gradient with ⟨g_t, g_0⟩ < 0 loses its part along the target's gradient g_0; the target's own is left
    as it is. Then ⟨Σ_t w_t g_t', g_0⟩ ≥ w_0‖g_0‖² ≥ 0. In closed form the sources keep their weights and the target's
    grows by Σ_t w_t·max(0, -⟨g_t, g_0⟩)/‖g_0‖².

    Args:
        gram: `Tensor[T, T]`.
        target: the target's index.
        weights: `Tensor[T]`, w, not negative; 1/T each if not given.

    Returns:
        `Tensor[T]`, not negative.
    """
    require_square(gram, "the Gram matrix")
    require_finite(gram, "the Gram matrix")
    tasks = len(gram)
    found = torch.full((tasks,), 1 / tasks, dtype=torch.float64) if weights is None else weights.double().cpu()
    found = found.clone()
    against = gram[target].double().cpu()
    own = float(against[target])
    if own > 0:
        found[target] += (found * (-against / own).clamp_min(0)).sum()
    return _handed_back(found, gram)


def vaccine_coefficients(
    gram: Tensor, goals: Tensor, decay: float = 0.01, generator: Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Return GradVac's coefficients C, its gradients being C @ gradients, and the moved goals.

    Wang et al. 2021, Eqs. 4-5: for every i the other tasks j are visited in random order; where the cosine φ of the
    running g_i with the original g_j lies below its goal φ̂_ij, a multiple of g_j is added so that it is met; then
    φ̂_ij ← (1 - decay)·φ̂_ij + decay·φ. With goals of zero and no decay this is PCGrad.

    Args:
        gram: `Tensor[T, T]`, with a positive diagonal.
        goals: `Tensor[T, T]`, φ̂, in (-1, 1).
        decay: the paper's β.
        generator: source of the random orders (on the host).

    Returns:
        C and the new goals, both `Tensor[T, T]`.
    """
    kernel, lengths = _prepared(gram, correlations=True)
    tasks, moved = len(kernel), goals.detach().to(kernel).clone()
    mixing = torch.diag(lengths)  # in units of the unit gradients
    for task in range(tasks):
        for other in torch.randperm(tasks, generator=generator).tolist():
            if other == task:
                continue
            running = mixing[task]
            size = float((running @ kernel @ running).clamp_min(0).sqrt())
            cosine = max(-1.0, min(1.0, float(kernel[other] @ running) / size)) if size > 0 else 0.0
            goal = min(float(moved[task, other]), 1 - 1e-6)
            if cosine < goal:
                sine, wanted = (1 - cosine**2) ** 0.5, (1 - goal**2) ** 0.5
                mixing[task, other] += size * (goal * sine - cosine * wanted) / wanted
            moved[task, other] = (1 - decay) * goal + decay * cosine
    return _handed_back(mixing / lengths, gram), moved.to(goals)


def _prepared(gram: Tensor, *, correlations: bool = False) -> tuple[Tensor, Tensor]:
    """Check a Gram matrix; return it on the host in float64 at mean diagonal one, or as correlations; and lengths."""
    require_square(gram, "the Gram matrix")
    require_finite(gram, "the Gram matrix")
    kernel = gram.detach().to(device="cpu", dtype=torch.float64)
    kernel = (kernel + kernel.T) / 2
    mean = kernel.diagonal().mean()
    kernel = kernel / torch.where(mean > 0, mean, 1.0)
    lengths = kernel.diagonal().clamp_min(0).sqrt()
    if not correlations:
        return kernel, lengths
    if not bool((lengths > 0).all()):
        raise ValueError(f"task {int(lengths.argmin())} has a gradient of zero: leave it out")
    return kernel / lengths[:, None] / lengths, lengths


def _rounding(gram: Tensor) -> float:
    """Return below which relative size an eigenvalue of this Gram matrix is rounding."""
    return len(gram) * torch.finfo(narrow_type(gram)).eps


def _handed_back(weights: Tensor, gram: Tensor) -> Tensor:
    return weights.to(device=gram.device, dtype=narrow_type(gram))


def _root(function: Callable[[float], tuple[Tensor, float]], high: float) -> Tensor:
    """Return what the function gives at the root of its falling excess in [0, high] (regula falsi, Illinois)."""
    low, (found, above), below = 0.0, function(0.0), function(high)[1]
    tolerance = 1e-12 * max(above, -below)
    if above <= tolerance:
        return found
    side = 0
    for _ in range(60):
        middle = high - below * (high - low) / (below - above) if below != above else (low + high) / 2
        found, excess = function(middle)
        if abs(excess) <= tolerance or high - low <= 1e-14 * high:
            break
        if excess > 0:
            low, above, below = middle, excess, below / 2 if side > 0 else below
        else:
            high, below, above = middle, excess, above / 2 if side < 0 else above
        side = 1 if excess > 0 else -1
    return found


def _least_lift(kernel: Tensor, slopes: Tensor) -> Tensor:
    """Return x ≥ 0 that minimises xᵀKx + 2xᵀs: non-negative least squares by active sets (Lawson & Hanson)."""
    found = torch.zeros_like(slopes)
    active = torch.zeros(len(slopes), dtype=torch.bool)
    tolerance = 1e-12 * float(slopes.abs().max())
    for _ in range(10 * len(slopes)):
        pull = -(kernel @ found + slopes)
        pull[active] = -torch.inf
        if not bool(pull.max() > tolerance):
            break
        active[int(pull.argmax())] = True
        while True:
            index = active.nonzero()[:, 0]
            goal = torch.zeros_like(found)
            block = kernel[index][:, index]
            goal[index] = torch.linalg.lstsq(block, -slopes[index][:, None], driver="gelsd").solution[:, 0]
            bad = active & (goal <= 0)
            if not bool(bad.any()):
                break
            share = torch.where(bad, found / (found - goal).clamp_min(_EPS**4), torch.inf)
            found = (found + float(share.min().clamp(max=1)) * (goal - found)).clamp_min(0)
            active = active & (found > 0) & ~(share <= share.min())
        found = goal
    return found
