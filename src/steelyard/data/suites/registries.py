"""Where packages are: asked of the registries that the user's own pip and npm are configured with."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pypi_simple import PyPISimple

TIMEOUT = (20, 120)
"""Seconds to connect, and between two pieces."""


def pypi_address(name: str, file: str, client: PyPISimple) -> str:
    """The file's address in the first of the configured indexes that has it."""
    from pypi_simple import NoSuchProjectError

    for index in _indexes():
        client.endpoint = index if index.endswith("/") else f"{index}/"
        try:
            page = client.get_project_page(name, timeout=TIMEOUT)
        except NoSuchProjectError:
            continue
        for entry in page.packages:
            if entry.filename == file:
                return entry.url
    raise FileNotFoundError("no configured index has this file any more")


def _indexes() -> list[str]:
    """The indexes that pip is configured with, those that can be asked over the network."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    first = pip_setting("index-url") or PYPI_SIMPLE_ENDPOINT
    indexes = [first, *(pip_setting("extra-index-url") or "").split()]
    return [index for index in indexes if index.startswith("http")]


def pip_setting(name: str) -> str | None:
    """What pip's environment or configuration files say; the nearer to the user, the stronger."""
    variable = os.environ.get(f"PIP_{name.upper().replace('-', '_')}")
    if variable:
        return variable
    home = Path.home()
    files = [
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        home / ".config" / "pip" / "pip.conf",
        Path(sys.prefix) / "pip.conf",
        Path(os.environ.get("PIP_CONFIG_FILE", os.devnull)),
    ]
    value = None
    for file in files:
        parser = configparser.RawConfigParser()
        parser.read(file, encoding="utf-8")
        for section in ("global", "install", "download"):
            value = parser.get(section, name, fallback=value)
    return value


def npm_address(name: str, version: str) -> str:
    """The tarball's address, as npm knows it; no script of the package is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed here")
    asked = [npm, "view", f"{name}@{version}", "dist.tarball", "--json"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=TIMEOUT[1], check=False)  # noqa: S603 - names are pinned here
    except subprocess.TimeoutExpired as error:
        raise ConnectionError("npm does not answer") from error
    if answer.returncode or not answer.stdout.strip():
        problem = (answer.stderr.strip().splitlines() or ["no answer"])[0]
        raise ConnectionError(f"npm: {problem}")
    return str(json.loads(answer.stdout))
