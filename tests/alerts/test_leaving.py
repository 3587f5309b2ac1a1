"""The end of a process while one of its channels hangs."""

import subprocess
import sys

PROGRAM = """
import sys, threading, time
from retake.alerts.delivery import is_sending
from retake.ticking.process import leave

if sys.argv[1] == "hangs":
    threading.Thread(target=time.sleep, args=(60,), name="alerts-all", daemon=True).start()
    assert is_sending()
print("told", end="")
leave(3)
"""


def ended(how: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=30)


def test_a_channel_that_hangs_changes_neither_the_exit_code_nor_what_was_said() -> None:
    for how in ("hangs", "ends"):
        process = ended(how)
        assert (process.returncode, process.stdout, process.stderr) == (3, "told", ""), how
