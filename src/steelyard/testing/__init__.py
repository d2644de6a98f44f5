"""The checks that the library's own methods, encoders and losses pass, for yours too.

    from steelyard import testing


    class TestMine(testing.MethodTests):
        def make(self):
            return Mine(memory=0.5)

pytest collects the class and runs every test in it. Without pytest, `METHOD_CHECKS` are the same checks as functions.
"""

from steelyard.testing.conformance import METHOD_CHECKS, MethodTests
from steelyard.testing.materials import MakeMethod, encoder, plain_encoder, suite, train
from steelyard.testing.modules import EncoderTests, LossTests

__all__ = [
    "METHOD_CHECKS",
    "EncoderTests",
    "LossTests",
    "MakeMethod",
    "MethodTests",
    "encoder",
    "plain_encoder",
    "suite",
    "train",
]
