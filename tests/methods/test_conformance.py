"""Every method of the registry passes every check that the package ships."""

import pytest

from steelyard import methods, testing


@pytest.mark.parametrize("check", testing.METHOD_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", methods.names())
def test_method_conforms(name, check):
    check(methods.get(name))
