"""The conformance suites for encoders and for losses of rows, as classes to inherit."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from steelyard import gradients
from steelyard.model import SharedModel
from steelyard.tasks import Ragged, RowLoss, Rows, Suite, Task
from steelyard.tasks.kinds import labelled
from steelyard.training import fit

ROWS, LONGEST = 6, 9
_LENGTHS = (9, 4, 7, 1, 2, 5)


class EncoderTests:
    """Every check that the library's own encoders pass, as a class of tests for pytest.

        class TestMine(testing.EncoderTests):
            shape = (5,)
            def make(self):
                return MyEncoder((5,))

    An encoder of text sets ``vocabulary`` in place of ``shape``; id 0 is the padding.
    """

    shape: tuple[int, ...] = ()
    """The shape of a row of numbers or of an image."""
    vocabulary: int = 0
    """The number of token ids, for an encoder of text."""

    def make(self) -> nn.Module:
        """A fresh encoder, as every test wants it."""
        raise NotImplementedError(f"{type(self).__name__} has to say which encoder it tests: def make(self)")

    def test_features_are_as_wide_as_it_says(self) -> None:
        """Features are ``[rows, width]`` or ``[rows, tokens, width]``, and finite."""
        model = self._model()
        features = self._features(model, *self._inputs())
        assert features.shape[0] == ROWS, f"features of shape {tuple(features.shape)} for {ROWS} rows"
        assert features.shape[-1] == model.width, f"features are {features.shape[-1]} wide, not {model.width}"
        assert bool(features.isfinite().all()), "features are not all finite numbers"

    def test_rows_are_apart(self) -> None:
        """In evaluation mode a row's features do not depend on the other rows."""
        model, inputs = self._model(), self._inputs()
        whole = self._features(model, *inputs)
        for row in range(ROWS):
            alone = self._features(model, *(value[row : row + 1] for value in inputs))
            assert torch.allclose(whole[row : row + 1], alone, atol=1e-5), f"row {row} alone gives other features"

    def test_padding_changes_nothing(self) -> None:
        """More padding gives the same pooled features."""
        if not self.vocabulary:
            return
        model, (ids, mask) = self._model(), self._inputs()
        wide = [torch.nn.functional.pad(value, (0, 4)) for value in (ids, mask)]
        assert torch.allclose(self._features(model, ids, mask), self._features(model, *wide), atol=1e-5), (
            "four more columns of padding give other features"
        )

    def test_state_is_all_that_there_is(self) -> None:
        """Another encoder with the same state says the same."""
        first = self._model()
        second = self._model(seed=1)
        second.load_state_dict(first.state_dict())
        pair = [self._features(model, *self._inputs()) for model in (first, second)]
        assert torch.equal(*pair), "an encoder with another's state gives other features"

    def test_task_gradients_are_exact(self) -> None:
        """Every task's gradient from one backward is what a backward per task gives."""
        model = self._model().eval()
        rows, names = (
            torch.tensor([0, 0, 1, 1, 2, 2]),
            [n for n, p in model.encoder.named_parameters() if p.requires_grad],
        )
        if not names:
            return
        with gradients.record(model.encoder, rows, names) as tape:
            values = self._features(model, *self._inputs(), evaluate=False).flatten(1)
            losses = torch.zeros(3).index_add(0, rows, values.tanh().sum(1))
        found = tape.task_gradients(losses)
        exact = gradients.exact_task_gradients(losses, tape.scope.parameters)
        for name, expected in exact.items():
            scale = max(float(expected.abs().max()), 1e-6)
            error = float((found[name] - expected).abs().max()) / scale
            assert error < 1e-3, f"the task gradients of {name} are off by {error:.1e} of their size"

    def test_it_trains(self) -> None:
        """Two steps with two tasks move its parameters and leave them finite."""
        model = self._model()
        before = copy.deepcopy(model.encoder.state_dict())
        fit(self._suite(), model, epochs=1, steps_per_epoch=2, batch_size=3, device="cpu", progress=False)
        after = model.encoder.state_dict()
        assert all(bool(value.isfinite().all()) for value in after.values() if value.is_floating_point())
        if any(p.requires_grad for p in model.encoder.parameters()):
            assert any(not torch.equal(value, after[name]) for name, value in before.items()), "nothing was moved"

    def _model(self, seed: int = 0) -> SharedModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return SharedModel(self.make(), self._suite())

    def _suite(self) -> Suite:
        inputs = self._inputs()
        rows = (
            Ragged.of([ids[:n] for ids, n in zip(inputs[0], _LENGTHS, strict=True)]) if self.vocabulary else inputs[0]
        )
        labels = torch.arange(ROWS) % 2
        tasks = [Task(name, "classification", {"train": Rows(rows, labels)}) for name in ("one", "two")]
        return Suite(tasks, "one", vocabulary=self.vocabulary or None)

    def _inputs(self) -> tuple[Tensor, ...]:
        draw = torch.Generator().manual_seed(0)
        if not self.vocabulary:
            return (torch.randn(ROWS, *self.shape, generator=draw),)
        mask = torch.arange(LONGEST) < torch.tensor(_LENGTHS)[:, None]
        return torch.randint(1, self.vocabulary, (ROWS, LONGEST), generator=draw) * mask, mask

    def _features(self, model: SharedModel, *inputs: Tensor, evaluate: bool = True) -> Tensor:
        """What heads read, one vector per row."""
        if evaluate:
            model.eval()
        features: Tensor = model.encoder(*inputs)
        return model._pooled(features, inputs[1]) if self.vocabulary else features


class LossTests:
    """Every check that the library's own losses of rows pass (`steelyard.tasks.RowLoss`).

    class TestMine(testing.LossTests):
        def make(self):
            return my_loss
        def example(self):
            return torch.randn(6, 3), torch.tensor([0, 1, 2, 0, -100, 1])  # outputs and labels, one missing
    """

    def make(self) -> RowLoss:
        """The loss."""
        raise NotImplementedError(f"{type(self).__name__} has to say which loss it tests: def make(self)")

    def example(self) -> tuple[Tensor, Tensor]:
        """Outputs and labels of some rows; the labels of at least one row are missing."""
        raise NotImplementedError(f"{type(self).__name__} has to give an example: def example(self)")

    def test_one_value_and_one_count_per_row(self) -> None:
        """It gives a summed loss and a number of labels for every row; both are finite."""
        outputs, labels = self.example()
        values, counts = self.make()(outputs, labels)
        assert values.shape == counts.shape == (len(outputs),), f"shapes {values.shape} and {counts.shape}"
        assert bool(values.isfinite().all() and counts.isfinite().all()), "values or counts are not finite numbers"

    def test_rows_without_labels_cost_nothing(self) -> None:
        """A row without label has loss 0, count 0 and no gradient."""
        outputs, labels = self.example()
        missing = ~labelled(labels).reshape(len(labels), -1).any(1)
        assert bool(missing.any()), "the example has no row without labels"
        leaf = outputs.clone().requires_grad_()
        values, counts = self.make()(leaf, labels)
        values.sum().backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        for what, found in (("a loss", values), ("a count", counts), ("a gradient", leaf.grad)):
            assert not bool(found[missing].any()), f"a row without labels has {what}"
        assert bool(leaf.grad.isfinite().all()), "gradients are not all finite numbers"

    def test_the_same_however_rows_are_cut(self) -> None:
        """Sums over two halves are the sum over all rows: micro-batches and processes change nothing."""
        outputs, labels = self.example()
        whole = [part.sum() for part in self.make()(outputs, labels)]
        half = len(outputs) // 2
        pieces = [self.make()(outputs[part], labels[part]) for part in (slice(0, half), slice(half, None))]
        for total, parts in zip(whole, zip(*pieces, strict=True), strict=True):
            cut = sum(float(part.sum()) for part in parts)
            assert math.isclose(float(total), cut, rel_tol=1e-5, abs_tol=1e-6), f"{float(total)} whole, {cut} in pieces"

    def test_it_falls_along_its_gradient(self) -> None:
        """A small step against the gradient lowers it."""
        outputs, labels = self.example()
        leaf = outputs.clone().requires_grad_()
        before = self.make()(leaf, labels)[0].sum()
        before.backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        after = self.make()((leaf - 1e-2 * leaf.grad).detach(), labels)[0].sum()
        fall = float(before.detach() - after)
        assert fall > 0, f"a step against the gradient raises it by {-fall}"
