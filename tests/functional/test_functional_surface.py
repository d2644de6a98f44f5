"""The package as its users meet it: names, lightness, types, determinism of the page's examples."""

import ast
import re
import runpy
from pathlib import Path

import torch

from steelyard import functional

ROOT = Path(__file__).parents[2]
SOURCES = sorted(Path(functional.__file__).parent.glob("*.py"))


def test_the_pages_examples_run(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "functional.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 8
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    runpy.run_path(str(script))
    assert [name for name in functional.__all__ if f"`{name}" not in page and f"S.{name}" not in page] == []


def test_importing_needs_torch_alone() -> None:
    allowed = {"torch", "math", "warnings", "collections", "typing", "steelyard"}
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
                if names[0].startswith("steelyard"):
                    assert names[0].startswith("steelyard.functional"), source
            assert {name.split(".")[0] for name in names} <= allowed, source


def test_every_public_name_is_there_and_documented() -> None:
    assert functional.__all__ == sorted(functional.__all__)
    for name in functional.__all__:
        text = getattr(functional, name).__doc__
        assert "Args:" in text, name
        assert "Returns:" in text, name


def test_half_precision_and_integers_are_taken() -> None:
    weights, losses = torch.full((4,), 0.25, dtype=torch.bfloat16), torch.arange(4, dtype=torch.bfloat16)
    moved = functional.mirror_descent(weights, losses, 1.0)
    assert moved.dtype == torch.bfloat16
    assert moved[0] > moved[3]
    assert functional.bandit_weights(weights, losses, 1.0, 0.1).dtype == torch.bfloat16
    assert functional.svd_weights(torch.eye(4), torch.arange(8).reshape(4, 2), 1).dtype == torch.float32
    assert functional.min_norm_weights(torch.eye(3, dtype=torch.long)).dtype == torch.float32


def test_nothing_is_changed_in_place() -> None:
    gram = torch.tensor([[1.0, -0.5], [-0.5, 2.0]])
    weights, losses = torch.tensor([0.3, 0.7]), torch.tensor([1.0, 2.0])
    kept = [value.clone() for value in (gram, weights, losses)]
    functional.min_norm_weights(gram)
    functional.conflict_coefficients(gram)
    functional.trust_region_step(losses, gram, 0.1)
    functional.mirror_descent(weights, losses, 1.0, 0.1)
    functional.bandit_weights(weights, losses, 1.0, 0.1)
    functional.ramp_weights(weights, 0, 2)
    functional.rescale_weights(weights)
    functional.svd_weights(gram, gram, 1)
    functional.conjugate_gradients(lambda v: 2 * v, losses)
    for before, now in zip(kept, (gram, weights, losses), strict=True):
        assert torch.equal(before, now)
