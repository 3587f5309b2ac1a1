"""How a tick runs the scripts that do a pipeline's work."""

from typing import NamedTuple, Protocol

from retake.bucket import Lease


class ScriptResult(NamedTuple):
    """How a script ended."""

    exit_code: int  # negative: killed by that signal
    timed_out: bool = False  # it was still running when its time was over, and was killed
    stopped: bool = False  # a signal asked us to stop, and it ended because of that


class Scripts(Protocol):
    """The scripts of a pipeline, by whatever means they are run."""

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        """Run the script to its end, under the lease."""
        ...
