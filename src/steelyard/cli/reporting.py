"""``report``: the page of a run or a study, or of several runs side by side."""

from __future__ import annotations

from pathlib import Path

from steelyard import report
from steelyard.cli.printing import print_json, say


def page(folders: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Writes the page and says where it is."""
    path = report.write(*folders, out=out)
    if as_json:
        print_json({"report": str(path), "of": [str(folder) for folder in folders]})
    else:
        say(f"report: {path}")
