"""The papers' mathematics as pure functions on tensors: no model, no state, nothing but torch.

Every function says its shapes and the equation that it computes. Most need only what fits in T-by-T numbers,
the inner products of the tasks' gradients, and so cost nothing next to a training step.
"""

from steelyard.functional._combinations import (
    bargaining_weights,
    conflict_averse_weights,
    dual_cone_weights,
    frank_wolfe_weights,
    impartial_weights,
    target_first_weights,
    vaccine_coefficients,
)
from steelyard.functional._conflicts import conflict_coefficients, project_conflicts
from steelyard.functional._hypergradients import (
    adam_preconditioner,
    conjugate_gradients,
    cosine_hypergradient,
    hypergradient_matrix,
    reduced_hessian,
    target_hypergradient,
)
from steelyard.functional._min_norm import min_norm_gap, min_norm_weights
from steelyard.functional._objectives import (
    factored_gradient,
    factored_weights,
    legal_objectives,
    sample_objectives,
    stability_bound,
)
from steelyard.functional._ridge import cautious_ridge, leave_one_out_errors
from steelyard.functional._rivals import (
    amortised_gradient,
    amortised_weights,
    average_weights,
    gradnorm_targets,
    impartial_losses,
    orthogonality_penalty,
    trust_region_step,
    uncertainty_losses,
)
from steelyard.functional._simplex import bandit_weights, mirror_descent, ramp_weights, rescale_weights
from steelyard.functional._singular import (
    cross_validated_rank,
    gram_weights,
    moment_weights,
    spectral_gap_rank,
    svd_weights,
)
from steelyard.functional._tensors import gram_matrix
from steelyard.functional._transfer import (
    covariance_similarities,
    covariance_similarity,
    linear_shared_module,
)

__all__ = [
    "adam_preconditioner",
    "amortised_gradient",
    "amortised_weights",
    "average_weights",
    "bandit_weights",
    "bargaining_weights",
    "cautious_ridge",
    "conflict_averse_weights",
    "conflict_coefficients",
    "conjugate_gradients",
    "cosine_hypergradient",
    "covariance_similarities",
    "covariance_similarity",
    "cross_validated_rank",
    "dual_cone_weights",
    "factored_gradient",
    "factored_weights",
    "frank_wolfe_weights",
    "gradnorm_targets",
    "gram_matrix",
    "gram_weights",
    "hypergradient_matrix",
    "impartial_losses",
    "impartial_weights",
    "leave_one_out_errors",
    "legal_objectives",
    "linear_shared_module",
    "min_norm_gap",
    "min_norm_weights",
    "mirror_descent",
    "moment_weights",
    "orthogonality_penalty",
    "project_conflicts",
    "ramp_weights",
    "reduced_hessian",
    "rescale_weights",
    "sample_objectives",
    "spectral_gap_rank",
    "stability_bound",
    "svd_weights",
    "target_first_weights",
    "target_hypergradient",
    "trust_region_step",
    "uncertainty_losses",
    "vaccine_coefficients",
]
