"""What one probe says of each task: Eq. 2.7 and the forms that stand in for it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from steelyard import gradients
from steelyard.methods.job import Job, Probe
from steelyard.methods.tawt.options import TAWTOptions
from steelyard.tasks import Batch, Role, cut

Vector = dict[str, Tensor]


def signals(job: Job, goal: Mapping[str, float], names: tuple[str, ...], options: TAWTOptions, held: Tensor) -> Tensor:
    """One probe: g_t for each of ``names``, ``[len(names)]``; what should gain weight is negative.

    Args:
        job: The job.
        goal: The targets and how much each counts.
        names: The tasks that are compared with them.
        options: TAWT's options.
        held: The present weights ``[T]`` of the job's tasks, for the Hessian.
    """
    first, second = target_batches(job, goal, options, paired=any(name in goal for name in names))
    direction = target_gradient(job, first, goal, options.scope)
    if options.signal == "hypergradient":
        direction = solved(job, direction, held, options)
    found = torch.zeros(len(names), dtype=torch.float64, device=held.device)
    sources = tuple(name for name in names if name not in goal)
    batches = [(job.draw(Role.TRAIN, options.probe_size, sources), sources)] if sources else []
    batches += [(second[name], (name,)) for name in names if name in goal]
    for batch, tasks in batches:
        with job.probe(batch, options.scope, tasks) as probe:
            agreed = agreement(job, probe, direction, options)
        found[[names.index(name) for name in tasks]] = agreed.to(found)
    return -options.c * found


def of_step(
    job: Job, taken: gradients.TaskGradients, direction: Vector, names: tuple[str, ...], options: TAWTOptions
) -> Tensor:
    """The same from the gradients that a training step was made of, ``[len(names)]``."""
    found = agreement(job, taken, direction, options)
    return -options.c * found[[job.tasks.index(name) for name in names]].double()


def agreement(job: Job, taken: Probe | gradients.TaskGradients, direction: Vector, options: TAWTOptions) -> Tensor:
    """How far each task's gradient goes along v, ``[T]``: ⟨∇L_t, v⟩, or the cosine; 0 where a gradient is."""
    if options.signal in ("dot", "hypergradient"):
        return taken.slopes(direction)
    if options.signal == "cosine":
        slopes, lengths, reach = taken.slopes(direction), taken.norms().double(), length_of(direction)
    else:
        every = taken if isinstance(taken, gradients.TaskGradients) else taken.task_gradients()
        slopes, lengths, reach = in_metric(job, every, direction)
    length = lengths * reach
    return torch.where(length > 0, slopes.double() / length, 0.0).clamp(-1, 1)


def in_metric(job: Job, taken: gradients.TaskGradients, direction: Vector) -> tuple[Tensor, Tensor, float]:
    """⟨g_t, P v⟩, ‖g_t‖_P and ‖v‖_P, P being the optimiser's: what a step along g_t does to the target's loss."""
    slopes = squares = torch.zeros((), dtype=torch.float64)
    reach = 0.0
    for name, vector in direction.items():
        metric = torch.as_tensor(job.metric(name)).to(vector).double()
        own = taken[name].flatten(1).double()
        moved = (metric * vector).flatten().double()
        slopes = slopes + own @ moved
        squares = squares + own.square() @ (metric.expand_as(vector).flatten())
        reach += float(moved @ vector.flatten().double())
    return slopes, squares.sqrt(), math.sqrt(reach)


def target_batches(
    job: Job, goal: Mapping[str, float], options: TAWTOptions, paired: bool
) -> tuple[dict[str, Batch], dict[str, Batch]]:
    """A batch of each target to take its gradient on, and one to compare that gradient with.

    They have no row in common where ``against`` is independent and the target has two rows or more.
    """
    first, second, size = {}, {}, options.probe_size
    for name in goal:
        if options.against == "itself" or not paired:
            first[name] = second[name] = job.draw(Role(options.role), size, (name,))
        elif options.role == "train":
            first[name], second[name] = halves(job.draw(Role.TRAIN, 2 * size, (name,)))
        else:
            first[name] = job.draw(Role(options.role), size, (name,))
            second[name] = job.draw(Role.TRAIN, size, (name,))
    return first, second


def target_gradient(job: Job, batches: Mapping[str, Batch], goal: Mapping[str, float], scope: str) -> Vector:
    """∇_φ Σ_k λ_k L_k over the targets k, by name."""
    total: Vector = {}
    for name, batch in batches.items():
        with job.probe(batch, scope, (name,)) as probe:
            own = probe.task_gradients().combine(torch.tensor([goal[name]], device=probe.losses.device))
        total = {key: value + total[key] if total else value for key, value in own.items()}
    return total


def solved(job: Job, direction: Vector, weights: Tensor, options: TAWTOptions) -> Vector:
    """φ's part of H⁻¹(∇_φL_0, 0), H the Hessian of Σ ω_s L_s over φ *and* the heads.

    By block elimination that is the reduced Hessian's inverse, H_φφ − H_φf H_ff⁻¹ H_fφ, times the target's gradient:
    the heads follow φ. No matrix is formed. Damping is relative to the curvature along the target's gradient; where
    the curvature turns negative, conjugate gradients stop with what they have.
    """
    batch = job.draw(Role.TRAIN, options.probe_size, job.tasks)
    with job.probe(batch, "all") as probe:
        product = probe.hessian(weights.to(probe.losses))
        right = {name: direction.get(name, torch.zeros_like(value)) for name, value in probe.parameters.items()}
        length = length_of(right)
        if length == 0:
            return direction
        along = abs(inner(right, product(right))) / length**2
        found = gradients.conjugate_gradients(product, right, options.damping * along, options.iterations)
    if not any(bool(value.any()) for value in found.x.values()):
        return direction
    return {name: found.x[name] for name in direction}


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """One task's rows as two batches; a single row is in both."""
    found = cut(batch, 2)
    return found[0], found[-1]


def inner(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """⟨u, v⟩ in float64; names that one of them lacks count as zero."""
    return sum(float((value.double() * second[name].double()).sum()) for name, value in first.items() if name in second)


def length_of(vector: Mapping[str, Tensor]) -> float:
    """‖v‖ in float64."""
    return math.sqrt(inner(vector, vector))
