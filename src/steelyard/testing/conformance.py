"""The conformance suite for methods, as a class to inherit."""

from __future__ import annotations

from collections.abc import Callable

from steelyard.methods import Method
from steelyard.testing import numbers, odd_data, odd_models, promises
from steelyard.testing.materials import MakeMethod

METHOD_CHECKS: tuple[Callable[[MakeMethod], None], ...] = (
    promises.keeps_its_range,
    promises.is_deterministic,
    promises.survives_interruption,
    promises.moves_buffers_once,
    promises.bears_zero_gradients,
    promises.names_the_task_of_a_nan,
    odd_data.bears_missing_labels,
    odd_data.bears_absent_tasks,
    odd_data.bears_unequal_sizes,
    odd_data.works_alone,
    odd_data.bears_many_tasks,
    odd_data.refuses_duplicate_names,
    odd_data.bears_constant_labels,
    odd_models.bears_a_frozen_encoder,
    odd_models.bears_unused_parameters,
    odd_models.bears_tied_weights,
    numbers.ignores_scale,
    numbers.bears_any_scale,
    numbers.bears_adversarial_losses,
    numbers.bears_a_skipped_step,
    numbers.accumulates,
)
"""All checks of a method: each takes what makes a fresh one, and raises ``AssertionError`` with a reason."""


def _test(check: Callable[[MakeMethod], None]) -> Callable[[MethodTests], None]:
    def test(self: MethodTests) -> None:
        check(self.make)

    test.__doc__ = check.__doc__
    return test


class MethodTests:
    """Every check that the library's own methods pass, as a class of tests for pytest.

        class TestMine(testing.MethodTests):
            def make(self):
                return Mine(memory=0.5)

    Leave a test out by setting it to None, with the reason beside it.
    """

    def make(self) -> Method:
        """A fresh method, as every test wants it."""
        raise NotImplementedError(f"{type(self).__name__} has to say which method it tests: def make(self)")

    test_range = _test(promises.keeps_its_range)
    test_determinism = _test(promises.is_deterministic)
    test_resumption = _test(promises.survives_interruption)
    test_pure_probes = _test(promises.moves_buffers_once)
    test_zero_gradients = _test(promises.bears_zero_gradients)
    test_nan_and_infinity = _test(promises.names_the_task_of_a_nan)
    test_missing_labels = _test(odd_data.bears_missing_labels)
    test_absent_tasks = _test(odd_data.bears_absent_tasks)
    test_unequal_sizes = _test(odd_data.bears_unequal_sizes)
    test_one_task = _test(odd_data.works_alone)
    test_many_tasks = _test(odd_data.bears_many_tasks)
    test_duplicate_names = _test(odd_data.refuses_duplicate_names)
    test_constant_labels = _test(odd_data.bears_constant_labels)
    test_frozen_encoder = _test(odd_models.bears_a_frozen_encoder)
    test_unused_parameters = _test(odd_models.bears_unused_parameters)
    test_tied_weights = _test(odd_models.bears_tied_weights)
    test_scale_invariance = _test(numbers.ignores_scale)
    test_scales_apart = _test(numbers.bears_any_scale)
    test_adversarial_losses = _test(numbers.bears_adversarial_losses)
    test_skipped_step = _test(numbers.bears_a_skipped_step)
    test_accumulation = _test(numbers.accumulates)
