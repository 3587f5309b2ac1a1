"""A tenth robot, with its own policy file and the work that it does under that policy.

    python examples/tenth_robot.py                           # prints a label
    python examples/tenth_robot.py --fail PRINTER_BUSY*2     # busy twice: two retries, then a label
    python examples/tenth_robot.py --fail PRINTER_BUSY*4     # busy for good: the policy's last actions (exit 69)
    python examples/tenth_robot.py --fail LABEL_TOO_LONG     # another try would not help: none is made (exit 69)

What is retried, when, and what follows the last failure is defined in examples/policies/NR.NSI.10.toml, not here. Work
that failed for good is a dead letter in the bucket, which can be listed from a folder with settings (retake init):

    RETAKE_STORAGE_URL=file:demo/library python -m retake dead-letters list
"""

import argparse
import random
import sys
from pathlib import Path

from retake.bucket import open_bucket
from retake.clock import SystemClock
from retake.errors import RobotError
from retake.exit_codes import ExitCode
from retake.retrying.dead_letters import DeadLetters
from retake.retrying.guard import Call
from retake.retrying.state_store import BucketStateStore
from retake.robots import Ports, Robot
from retake.robots.action_sink import DeadLetterSink, Record
from retake.robots.follow_ups import FollowUp
from retake.robots.policies import load_policy

POLICY = Path(__file__).parent / "policies" / "NR.NSI.10.toml"


class PrintedActions:
    """An action sink that only prints; yours would open the ticket."""

    def carry_out(self, action: FollowUp, record: Record) -> None:
        print(f"then: {action.do} {action.system or action.channel or ''}".rstrip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("label", nargs="?", default="scrap 42")
    parser.add_argument(
        "--fail", default="", help="how the first attempts fail: the end of a code, with *N for N times"
    )
    parser.add_argument("--bucket", default="file:demo/library")
    options = parser.parse_args()
    Path("demo").mkdir(exist_ok=True)
    policy = load_policy(POLICY)
    code, _, times = options.fail.partition("*")
    number = int(times) if times.isdigit() else int(not times)
    codes = [it for it in policy.errors if code and it.endswith(code)] * number
    if code and not codes:
        parser.error(f"--fail takes the end of {', '.join(policy.errors)}, and *N")

    def print_label(call: Call) -> str:
        """Do the work once. Raises RobotError with a code from the policy."""
        if call.attempt <= len(codes):
            error = RobotError(codes[call.attempt - 1], policy.errors[codes[call.attempt - 1]])
            print(f"attempt {call.attempt}: {error}")
            raise error
        return f"[ {options.label} ]"

    bucket, clock = open_bucket(options.bucket), SystemClock()
    sink = DeadLetterSink(DeadLetters(bucket, clock), others=PrintedActions())
    robot = Robot(policy, Ports(clock, random.random, sink, states=BucketStateStore(bucket, "robots/", clock)))
    result = robot.run(print_label, correlation_id=options.label, input_data={"label": options.label})
    print(result.value if result.done else f"failed: {result.failures[0].error.code}")
    return ExitCode.OK if result.done else ExitCode.FAILED


if __name__ == "__main__":
    sys.exit(main())
