"""Run programs that fork in processes of their own: the test process has threads."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_IN_BOTH = """
import os, signal, sys

def in_both(work):
    '''Call `work` in a fork of this process and in this one, at the same time; print what either raises.'''
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            work("child")
        except BaseException as error:
            print("child:", repr(error), flush=True)
        os._exit(0)
    work("parent")
    if status := os.waitpid(child, 0)[1]:
        print("the child ended with", status)
"""


def forking(program: str, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
    """Run a program that may call `in_both`; return its output, including errors."""
    command = [sys.executable, "-c", _IN_BOTH + program, *arguments]
    root = Path(__file__).parents[1]
    # Buffered, so that each line is one write: unbuffered, the lines of both processes may be mixed.
    given = {**os.environ, **(environ or {}), "PYTHONPATH": str(root), "PYTHONUNBUFFERED": ""}
    ended = subprocess.run(
        command, cwd=root, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
    return ended.stdout
