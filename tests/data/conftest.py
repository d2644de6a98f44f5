from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has an empty cache; only the tests of fetched suites share the user's."""
    if "shared_cache" not in request.fixturenames:
        monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def shared_cache() -> None:
    """The user's cache, so that nothing is fetched twice."""


Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file below the test's folder."""

    def writer(name: str, content: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return path

    return writer
