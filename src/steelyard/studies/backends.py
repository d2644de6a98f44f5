"""Where cells run: in processes of this machine, or on a Ray or Dask cluster, by joblib's names."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from steelyard.errors import SteelyardError, did_you_mean

LOCAL = ("loky", "threading", "multiprocessing", "sequential")
CLUSTERS = ("ray", "dask")


def check(backend: str) -> None:
    """Raises if there is no such backend, or its packages are missing."""
    name = backend.partition(":")[0]
    if name not in LOCAL + CLUSTERS:
        hint = did_you_mean(name, LOCAL + CLUSTERS) or f"there are {', '.join(LOCAL + CLUSTERS)}"
        raise SteelyardError(f"there is no backend {name!r}; {hint}")
    if name in CLUSTERS:
        try:
            importlib.import_module("ray" if name == "ray" else "distributed")
        except ImportError:
            raise SteelyardError(
                f"backend {name!r} needs packages that are not installed: pip install 'steelyard[scale]'"
            ) from None


def returns_in_rounds(backend: str) -> bool:
    """Whether results only come when everything that was handed over is done (joblib's pools)."""
    return backend.partition(":")[0] in ("ray", "multiprocessing")


@contextmanager
def parallel(backend: str, jobs: int | None) -> Iterator[int]:
    """Makes joblib use a backend, and says how many cells run at once.

    Args:
        backend: One of joblib's; ``ray`` and ``dask`` start on this machine, unless an address follows
            (``dask:tcp://host:8786``, ``ray:auto``) or their own environment variables name a cluster.
        jobs: How many at once; by default as many as there are cores.
    """
    import joblib

    check(backend)
    name, _, address = backend.partition(":")
    with _cluster(name, address, jobs), joblib.parallel_config(backend=name, n_jobs=jobs or -1):
        yield 1 if name == "sequential" else joblib.effective_n_jobs(jobs or -1)


@contextmanager
def _cluster(name: str, address: str, jobs: int | None) -> Iterator[None]:
    """A cluster that was there before stays; one that was started for this is taken down again."""
    if name == "dask":
        client: Any = importlib.import_module("distributed").Client
        alone = not address and "DASK_SCHEDULER_ADDRESS" not in os.environ
        local = {
            "n_workers": jobs or os.cpu_count(),
            "threads_per_worker": 1,
            "dashboard_address": None,
            "silence_logs": 50,
        }
        with client(address or None, **(local if alone else {})):
            yield
    elif name == "ray":
        ray: Any = importlib.import_module("ray")
        ours = not ray.is_initialized()
        if ours:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # Ray's own, about its own next release
                alone = not address and "RAY_ADDRESS" not in os.environ
                place = {"num_cpus": jobs, "include_dashboard": False} if alone else {"address": address or "auto"}
                ray.init(log_to_driver=False, configure_logging=False, **place)
        importlib.import_module("ray.util.joblib").register_ray()
        try:
            yield
        finally:
            if ours:
                ray.shutdown()
    else:
        yield
