"""Every built-in encoder passes the suite that the package ships."""

import pytest

from steelyard import encoders, testing
from steelyard.tasks import Spec

SMALL = {"channels": (3, 4), "kernel": 3, "hidden": 6}
DENSE = {"mlp": ((5,), {"hidden": (6,), "dropout": 0.2}), "lenet": ((1, 12, 12), SMALL), "resnet": ((1, 8, 8), {})}
TEXT = {"textcnn": {"size": 5, "channels": 4}, "lstm": {"size": 5, "hidden": 4}}


def test_no_encoder_is_left_out():
    assert set(DENSE) | set(TEXT) == set(encoders.names())


class Chosen(testing.EncoderTests):
    @pytest.fixture(autouse=True)
    def _chosen(self, name):
        self.name = name
        if name in TEXT:
            self.vocabulary = 30
        else:
            self.shape = DENSE[name][0]

    def make(self):
        if self.name in TEXT:
            return encoders.build(self.name, Spec(vocabulary=30), **TEXT[self.name])
        shape, options = DENSE[self.name]
        return encoders.build(self.name, Spec(shape), **options)


@pytest.mark.parametrize("name", encoders.names())
class TestEveryEncoder(Chosen):
    pass
