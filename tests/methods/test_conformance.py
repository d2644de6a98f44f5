"""Every method of the registry passes the suite that the package ships."""

import pytest

from steelyard import methods, testing


@pytest.mark.parametrize("name", methods.names())
class TestEveryMethod(testing.MethodTests):
    @pytest.fixture(autouse=True)
    def _chosen(self, name):
        self._name = name

    def make(self):
        return methods.get(self._name)()
