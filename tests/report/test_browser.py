"""The page in a real browser, without a network: no error, no sideways scrolling, no finding of an axe."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from steelyard import report

HERE = Path(__file__).parent
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = [
    name
    for name, there in {
        "chromium": BROWSER,
        "node": shutil.which("node"),
        "axe-core (make browser)": (HERE / "node_modules" / "axe-core").exists(),
    }.items()
    if not there
]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"the page is not checked in a browser without {MISSING}")


def test_pages_in_a_browser(full_run, plain_run, study, tmp_path):
    pages = [
        report.write(full_run, out=tmp_path / "one.html"),
        report.write(full_run, plain_run, out=tmp_path / "two.html"),
        report.write(study, out=tmp_path / "study.html"),
    ]
    command = ["node", str(HERE / "check.js"), str(BROWSER), *map(str, pages)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert len(results) == 6
    for found in results:
        where = f"{Path(found['file']).name} at {found['width']} px, {found['colorScheme']}"
        assert found["said"] == [], where
        assert found["asked"] == [f"file://{found['file']}"], where
        assert found["overflow"] <= 0, where
        assert found["violations"] == [], where
        assert found["copied"] in ("Copied", "Selected: press Ctrl-C"), where
