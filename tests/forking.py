"""Programs that fork, each in a process of its own: those of the tests have threads."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_IN_BOTH = """
import os, signal, sys

def in_both(work):
    '''Call `work` in a fork of this process and in this one, at the same time; tell if it raises in either.'''
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
    """Run a program that may call `in_both`, and return what it prints, errors included."""
    command = [sys.executable, "-c", _IN_BOTH + program, *arguments]
    root = Path(__file__).parents[1]
    # Buffered, so that each line is one write: unbuffered, the lines of both processes may be mixed.
    given = {**os.environ, **(environ or {}), "PYTHONPATH": str(root), "PYTHONUNBUFFERED": ""}
    ended = subprocess.run(
        command, cwd=root, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
    return ended.stdout
