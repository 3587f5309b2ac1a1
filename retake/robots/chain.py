"""Chains of robots that work one after another, until one fails fast."""

from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from typing import Any, NamedTuple

from retake.robots.robot import Result, Robot

_log = getLogger(__name__)

Results = Mapping[str, Result[Any]]
"""The results of the robots, by robot id."""


class Link(NamedTuple):
    """A robot of a chain."""

    robot: Robot
    work: Callable[[Robot, Results], Result[Any]]
    """Have the robot do its work (`run`, `create`, `validate`, …), given the results of the robots before it."""


class ChainResult(NamedTuple):
    """How a chain ended."""

    results: Results  # of the robots that ran, in order
    stopped_by: str | None  # the robot that failed fast, if any
    not_run: tuple[str, ...]  # the robots after it

    @property
    def done(self) -> bool:
        """Whether every robot ran and succeeded."""
        return self.stopped_by is None and all(result.done for result in self.results.values())


def run_chain(links: Sequence[Link]) -> ChainResult:
    """Have each robot do its work, in order, until one fails fast (`fail_fast` in its policy).

    After any other failure the chain goes on, and the robots that follow see the result. Raises what a robot's work
    raises, and ValueError for a chain that contains a robot twice.
    """
    ids = [link.robot.policy.id for link in links]
    if len(set(ids)) < len(ids):
        raise ValueError(f"a robot stands twice in this chain: {', '.join(ids)}")
    results: dict[str, Result[Any]] = {}
    for number, (robot_id, link) in enumerate(zip(ids, links, strict=True), 1):
        results[robot_id] = result = link.work(link.robot, results)
        if result.fails_fast:
            not_run = tuple(ids[number:])
            _log.error("%s failed fast: %s not run", robot_id, ", ".join(not_run) or "no other robot is")
            return ChainResult(results, robot_id, not_run)
    return ChainResult(results, None, ())
