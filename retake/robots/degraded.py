"""Degraded mode: whether a robot may run in the current mode.

docs/protocol.md, section "Degraded mode". `Ports.mode` returns the mode; a robot checks it before it works.
"""

from retake.degraded.mode import FULL, ROBOTS
from retake.errors import RobotError


class RobotDegraded(RobotError):
    """The robot may not run in the current mode. No call was made."""

    def __init__(self, robot_id: str, mode: int) -> None:
        super().__init__(
            "ERR_TEMPORARY_DEGRADED",
            f"{robot_id} does not run in mode {mode}; it made no call. Have it work again when the mode is lower",
        )


def may_run(robot_id: str, mode: int) -> bool:
    """Return whether the robot runs in this mode, 0 to 3. Raises ValueError for any other mode.

    In mode 0 every robot runs, including those that the protocol does not name.
    """
    if mode not in range(FULL, len(ROBOTS)):
        raise ValueError(f"{mode!r} is not a mode: allowed are {FULL} to {len(ROBOTS) - 1}")
    running = ROBOTS[mode]
    return running is None or robot_id in {f"NR.NSI.{number}" for number in running}
