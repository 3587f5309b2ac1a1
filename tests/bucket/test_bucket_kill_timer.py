"""The kill timer of a lease, with real signals: it ends a process that sleeps past the end of its lease."""

import signal
import subprocess
import sys
import time

import pytest

from retake.bucket.claims.lease import set_kill_timer


@pytest.mark.slow
def test_the_kill_timer_ends_a_process_that_was_frozen_before_its_next_instruction() -> None:
    code = "from retake.bucket.claims.lease import *; set_kill_timer(1.0); print('set', flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"set\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.2)
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == -signal.SIGALRM
    process.stdout.close()


def test_a_kill_timer_that_was_cleared_ends_nobody() -> None:
    set_kill_timer(600.0)  # not a short one: on a failure it would end the process of the tests
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 600.0
    set_kill_timer(0.0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
