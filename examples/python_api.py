"""The Python door: a suite from tensors, a fit, predictions, and the run folder read back.

The data are invented. Forty labelled rows of a target, and two sources with four hundred rows each: one that asks
nearly the target's question, and one whose labels are coin flips.

    python examples/python_api.py
"""

import tempfile
from pathlib import Path

import torch

from steelyard import Rows, Suite, Task, fit, load

generator = torch.Generator().manual_seed(0)
direction = torch.randn(20, generator=generator)


def rows(count: int, twist: float) -> Rows:
    """Rows whose class is the side of a plane on which they lie; ``twist`` turns the plane."""
    inputs = torch.randn(count, 20, generator=generator)
    plane = direction + twist * torch.randn(20, generator=generator)
    return Rows(inputs, (inputs @ plane > 0).long())


def coins(count: int) -> Rows:
    """Rows whose class has nothing to do with them."""
    return Rows(torch.randn(count, 20, generator=generator), torch.randint(0, 2, (count,), generator=generator))


target = Task(
    "target",
    "classification",
    {"train": rows(40, 0.0), "dev_select": rows(40, 0.0), "test": rows(400, 0.0)},
    classes=["no", "yes"],
)
near = Task("near", "classification", {"train": rows(400, 0.3)})
noise = Task("noise", "classification", {"train": coins(400)})
suite = Suite([target, near, noise], target="target")

if __name__ == "__main__":
    for method in ("single", "uniform"):
        run = fit(suite, "mlp", method, epochs=8, batch_size=16, seed=0, progress=False)
        print(f"{method:8} test accuracy {run.metrics['test']['accuracy']:.3f}   weights {run.weights}")

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = fit(suite, "mlp", "uniform", epochs=8, batch_size=16, out=out, progress=False)
        again = load(out)  # the model, the summary and the history, from the folder alone
        new = torch.randn(3, 20)
        print("files   ", ", ".join(sorted(path.name for path in out.iterdir() if not path.name.startswith("."))))
        print("new rows", [suite["target"].classes[i] for i in again.predict(new)])
