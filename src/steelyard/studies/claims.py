"""A folder belongs to one piece of work, so that numbers of two are never mixed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steelyard.errors import SteelyardError
from steelyard.training import checkpoint
from steelyard.training.folder import first_difference, plain, refuse_links

ASKED = "study.json"


def claim(folder: Path, wanted: Mapping[str, Any], what: str) -> None:
    """Makes a folder this work's own, or raises if it is another's; entries of ``methods`` may be added later.

    Args:
        folder: The folder.
        wanted: What makes two pieces of work the same, in plain values.
        what: What the work is called, in messages and in the report.
    """
    refuse_links(folder)
    place = folder / ASKED
    about = {"study": what, **plain(wanted)}
    if place.exists():
        known = json.loads(place.read_text(encoding="utf-8"))
        old, new = known.get("methods", {}), about.get("methods", {})
        common = [label for label in new if label in old]
        difference = first_difference(
            known | {"methods": {label: old[label] for label in common}},
            about | {"methods": {label: new[label] for label in common}},
        )
        if difference:
            raise SteelyardError(f"{folder} belongs to another {what} ({difference}); choose another folder (--out)")
        about |= {"methods": old | new} if new else {}
    elif folder.exists() and any(folder.iterdir()):
        raise SteelyardError(f"{folder} is not empty and holds no {what}; choose another folder (--out)")
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(place, json.dumps(about, indent=1).encode())
