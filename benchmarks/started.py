"""A job in the state that a run's first step finds it in, for benchmarks that time single steps."""

from __future__ import annotations

import contextlib
from typing import Any

import steelyard
from steelyard import Suite
from steelyard.methods import Job, Method


class _Enough(Exception):  # noqa: N818 - it is no error
    """The job is there."""


def job_of(data: Suite, model: Any, method: Method, batch: int, **settings: Any) -> Job:
    """The job of a run on the CPU that has just begun."""
    jobs: list[Job] = []

    def grab(job: Job) -> None:
        jobs.append(job)
        raise _Enough

    method.step = grab  # type: ignore[method-assign]
    with contextlib.suppress(_Enough):
        steelyard.fit(data, model, method, batch_size=batch, epochs=1000, progress=False, device="cpu", **settings)
    del method.step  # type: ignore[misc]
    return jobs[0]
