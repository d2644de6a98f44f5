"""The checks that the library's own methods, encoders and losses pass, for yours too.

    from steelyard import testing


    class TestMine(testing.MethodTests):
        def make(self):
            return Mine(memory=0.5)

pytest collects the class and runs every test in it. Without pytest, `METHOD_CHECKS` are the same checks as functions,
and each has its name here: ``testing.survives_interruption(Mine)``.
"""

from steelyard.testing.conformance import METHOD_CHECKS, MethodTests
from steelyard.testing.materials import BATCH, EPOCHS, MakeMethod, encoder, plain_encoder, suite, train
from steelyard.testing.modules import EncoderTests, LossTests
from steelyard.testing.numbers import (
    accumulates,
    bears_a_skipped_step,
    bears_adversarial_losses,
    bears_any_scale,
    ignores_scale,
)
from steelyard.testing.odd_data import (
    bears_absent_tasks,
    bears_constant_labels,
    bears_many_tasks,
    bears_missing_labels,
    bears_unequal_sizes,
    refuses_duplicate_names,
    works_alone,
)
from steelyard.testing.odd_models import bears_a_frozen_encoder, bears_tied_weights, bears_unused_parameters
from steelyard.testing.promises import (
    StopAt,
    bears_zero_gradients,
    is_deterministic,
    keeps_its_range,
    moves_buffers_once,
    names_the_task_of_a_nan,
    survives_interruption,
)

__all__ = [
    "BATCH",
    "EPOCHS",
    "METHOD_CHECKS",
    "EncoderTests",
    "LossTests",
    "MakeMethod",
    "MethodTests",
    "StopAt",
    "accumulates",
    "bears_a_frozen_encoder",
    "bears_a_skipped_step",
    "bears_absent_tasks",
    "bears_adversarial_losses",
    "bears_any_scale",
    "bears_constant_labels",
    "bears_many_tasks",
    "bears_missing_labels",
    "bears_tied_weights",
    "bears_unequal_sizes",
    "bears_unused_parameters",
    "bears_zero_gradients",
    "encoder",
    "ignores_scale",
    "is_deterministic",
    "keeps_its_range",
    "moves_buffers_once",
    "names_the_task_of_a_nan",
    "plain_encoder",
    "refuses_duplicate_names",
    "suite",
    "survives_interruption",
    "train",
    "works_alone",
]
