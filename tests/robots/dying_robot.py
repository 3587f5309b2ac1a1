"""A program with a robot, for the tests: `python dying_robot.py LEDGER_URL FOLDER CORRELATION_ID`.

It says "working" in the middle of the robot's work, and waits there to be killed.
"""

import random
import subprocess
import sys
from pathlib import Path

from retake.bucket.directory import DirectoryBucket
from retake.clock import Clock, SystemClock
from retake.retrying.state_store import BucketStateStore
from retake.robots.action_sink import RecordingSink
from retake.robots.execution import Ports
from retake.robots.policies import load_policies
from retake.robots.robot import Robot
from retake.runs import Ledger, open_ledger

ROBOT = "NR.NSI.2"


def robot_of(url: str, folder: Path, clock: Clock) -> tuple[Robot, Ledger]:
    """The robot over the bucket in `folder` and the ledger at `url`, or in that bucket if it is empty."""
    bucket = DirectoryBucket(str(folder / "bucket"))
    ledger = open_ledger(url or None, bucket, clock)
    states = BucketStateStore(bucket, "robots/", clock)
    ports = Ports(clock, random.random, RecordingSink(), states=states, owner="host:1", ledger=ledger)
    return Robot(load_policies()[ROBOT], ports), ledger


def killed_in(url: str, folder: Path, correlation_id: str, *, deferred: bool = False) -> None:
    """Run the program, and kill it in the middle of its work."""
    root = Path(__file__).parents[2]
    command = [sys.executable, __file__, url, str(folder), correlation_id, "deferred" if deferred else "new"]
    pipe, environment = subprocess.PIPE, {"PYTHONPATH": str(root)}
    with subprocess.Popen(command, text=True, env=environment, stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "working\n"
        finally:
            process.kill()


def stay(*_: object) -> None:
    sys.stdout.write("working\n")
    sys.stdout.flush()
    sys.stdin.read()


def main(url: str, folder: str, correlation_id: str, what: str) -> None:
    robot, _ = robot_of(url, Path(folder), SystemClock())
    if what == "deferred":
        robot.deferrals.put(correlation_id, {}, 0, "ERR_TEMPORARY_API_TIMEOUT")
        robot.run_due(stay)
    else:
        robot.run(stay, correlation_id=correlation_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
