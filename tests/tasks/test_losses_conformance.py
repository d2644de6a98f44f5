"""Every kind's loss passes the suite that the package ships."""

import math

import pytest
import torch

from steelyard import testing
from steelyard.tasks import IGNORE, Kind
from steelyard.tasks.kinds import LOSSES

NAN = math.nan
EXAMPLES = {
    Kind.CLASSIFICATION: ((6, 3), torch.tensor([0, 1, IGNORE, 2, 0, 1])),
    Kind.MULTILABEL: ((4, 2), torch.tensor([[0.0, 1.0], [NAN, 1.0], [NAN, NAN], [1.0, 0.0]])),
    Kind.REGRESSION: ((4, 1), torch.tensor([0.5, NAN, -1.0, 2.0])),
    Kind.TAGGING: ((3, 4, 2), torch.tensor([[0, 1, 1, IGNORE], [IGNORE] * 4, [1, IGNORE, IGNORE, IGNORE]])),
}


@pytest.mark.parametrize("kind", list(Kind))
class TestEveryLoss(testing.LossTests):
    @pytest.fixture(autouse=True)
    def _chosen(self, kind):
        self.kind = kind

    def make(self):
        return LOSSES[self.kind]

    def example(self):
        shape, labels = EXAMPLES[self.kind]
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)), labels
