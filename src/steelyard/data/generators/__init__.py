"""The papers' generators: overlaid images, tasks of a known distance or covariance, noise, sizes. All are seeded."""

from steelyard.data.generators.flip_rate import TAWT_FIGURE_3, flip_rate_tasks
from steelyard.data.generators.noise import add_noise, flip_labels, transition_labels, with_noise
from steelyard.data.generators.overlaid import overlaid_pairs, overlay, overlay_tasks
from steelyard.data.generators.sizes import with_sizes
from steelyard.data.generators.transfer import Made, Source, subspace_tasks, transfer_tasks

__all__ = [
    "TAWT_FIGURE_3",
    "Made",
    "Source",
    "add_noise",
    "flip_labels",
    "flip_rate_tasks",
    "overlaid_pairs",
    "overlay",
    "overlay_tasks",
    "subspace_tasks",
    "transfer_tasks",
    "transition_labels",
    "with_noise",
    "with_sizes",
]
