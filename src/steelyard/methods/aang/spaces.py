"""From a method's options and a suite to the space of objectives, and the suite with them as tasks."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.errors import SteelyardError, did_you_mean
from steelyard.methods.aang.options import AANGOptions, TartanOptions
from steelyard.objectives import TASK, Space, data_of, objective_tasks, points, stages_of
from steelyard.tasks import Role, Suite, Task


@dataclass(frozen=True)
class Plan:
    """What is trained.

    Attributes:
        space: The objectives.
        suite: The tasks: the target, sources that take part as they stand, the objectives.
        data: The task that has the rows of each of the space's inputs, by the input's name.
    """

    space: Space
    suite: Suite
    data: dict[str, Task]


def planned(options: TartanOptions, suite: Suite) -> Plan:
    """The plan for a suite; sources that are said to be data are that alone.

    Raises:
        SteelyardError: If an input is no data that there is, or an objective makes no sense.
    """
    owners = {TASK: str(suite.target)} | options.data
    for name, owner in options.data.items():
        if owner not in suite.tasks or owner == suite.target:
            hint = did_you_mean(owner, suite.sources) or f"the sources are {', '.join(suite.sources) or 'none'}"
            raise SteelyardError(f"data {name!r} is to be the source {owner!r}, which there is not; {hint}")
    used = set(options.data.values())
    sources = [name for name in suite.sources if name not in used and Role.TRAIN in suite[name].rows]
    space = _space(options, suite, sources)
    for name in space.stages[0]:
        if name not in owners and name not in sources:
            raise SteelyardError(
                f'data {name!r}: say which source it is: data = {{{name} = "NAME"}}'
                f" (sources: {', '.join(suite.sources) or 'none'})"
            )
    made = objective_tasks(space, suite, owners)
    for task in made:
        if task.name in suite.tasks:
            raise SteelyardError(f"a task is called {task.name!r}, like an objective; give it another name")
    kept = [task for name, task in suite.tasks.items() if name not in used]
    data = {name: suite[owners.get(name, name)] for name in space.stages[0]}
    return Plan(space, suite.with_tasks([*kept, *made]), data)


def _space(options: TartanOptions, suite: Suite, sources: list[str]) -> Space:
    kind = data_of(suite.spec)
    given = options.objectives
    if not given and not isinstance(options, AANGOptions):
        given = ["TAPT"] if kind == "text" else [f"{TASK}/mask/whole/reconstruct"]
    if chosen := points(given):
        return Space(kind, *stages_of(chosen).values(), sources=sources, only=chosen)
    if not isinstance(options, AANGOptions):
        raise TypeError("META-TARTAN has at least one objective")
    return Space(kind, options.inputs, options.transforms, options.representations, options.outputs, sources=sources)
