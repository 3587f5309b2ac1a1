"""The memory that a bomb may cost, measured in a process of its own for each client."""

import subprocess
import sys
from pathlib import Path

import pytest
from clients import MAKERS

HERE = Path(__file__).parent

PROGRAM = """
import resource, sys
from clients import ASKING, made
from hostile import Hostile, answers, gzip_bomb, pours
from retake.errors import VendorError

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MB

def ask(act):
    server = Hostile(act)
    for call in ASKING:
        if call.client.__name__ == sys.argv[1]:
            try:
                call.ask(made(call, server.url, 30.0))
            except VendorError as error:
                print(call, error)

ask(answers({}))  # with everything loaded
begun = peak()
ask(answers(gzip_bomb(1500), head=b"Content-Encoding: gzip\\r\\n"))
ask(pours(b"HTTP/1.1 200 OK\\r\\n\\r\\n", bytes(2**16)))
print(peak() - begun)
"""

ALLOWED_MB = 120
"""The bomb is 1.5 MB on the wire and 1,500 MB in memory. An answer may have 16 MB, and is copied a few times."""


@pytest.mark.parametrize("client", MAKERS, ids=lambda client: client.__name__)
def test_a_bomb_takes_no_more_memory_than_an_answer_may(client: type) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, client.__name__],
        env={"PYTHONPATH": f"{HERE}:{HERE.parent}:{HERE.parents[1]}", "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout.split()[-1]) < ALLOWED_MB, ran.stdout
