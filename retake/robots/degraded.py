"""Degraded mode: which robots run in which mode, as data and one pure function.

docs/protocol.md, section "Degraded mode". `Ports.mode` returns the present mode; a robot asks for it before it works.
"""

from collections.abc import Mapping

from retake.errors import RobotError

FULL = 0
"""The mode in which every robot runs, also one that the table does not name."""

RUNNING: Mapping[int, frozenset[str]] = {
    1: frozenset({"NR.NSI.1", "NR.NSI.2", "NR.NSI.3", "NR.NSI.9"}),  # reduced: the critical ones
    2: frozenset({"NR.NSI.1", "NR.NSI.9"}),  # minimal: detection and logging
    3: frozenset(),  # emergency: manual work, alerts only
}
"""The robots that run, by the modes above 0."""


class RobotDegraded(RobotError):
    """The robot may not run in the present mode. No call was made."""

    def __init__(self, robot_id: str, mode: int) -> None:
        super().__init__(
            "ERR_TEMPORARY_DEGRADED",
            f"{robot_id} does not run in mode {mode}; it made no call. Have it work again when the mode is lower",
        )


def may_run(robot_id: str, mode: int) -> bool:
    """Return whether the robot runs in this mode, 0 to 3. Raises ValueError for any other."""
    if mode == FULL:
        return True
    if mode not in RUNNING:
        raise ValueError(f"{mode!r} is no mode: allowed are {FULL} to {max(RUNNING)}")
    return robot_id in RUNNING[mode]
