"""Real processes on one B2: publishers that know nothing of Retake, writers without a lease, and contenders for one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from b2_world import DOCUMENT, Plain, ids, publish

from retake.bucket import ABSENT
from retake.bucket.b2.bucket import open_b2
from retake.sandbox.b2 import B2Sandbox

WORLD = Path(__file__).with_name("b2_world.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(sandbox: B2Sandbox) -> str:
    return sandbox.storage_url(uuid4().hex)


def start(sandbox: B2Sandbox, work: str, url: str, name: str, rounds: int) -> subprocess.Popen[bytes]:
    environ = {**os.environ, **sandbox.environment(), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(WORLD), work, url, name, str(rounds)], env=environ, stderr=subprocess.PIPE
    )


def ended_well(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors.decode()


def test_no_append_of_two_publishers_is_lost_while_we_replace(sandbox: B2Sandbox, url: str) -> None:
    """The publishers do not know of each other either, and B2 shows them any version of the present second."""
    bucket, rounds = open_b2(url, environ=sandbox.environment()), 80
    bucket.write(DOCUMENT, b"[]", ABSENT)
    lease = bucket.lease("story", "manager")
    publishers = [start(sandbox, "append", url, name, rounds) for name in ("a", "b")]
    replaced = 0
    while any(process.poll() is None for process in publishers):
        publish(bucket, f"w{replaced}")
        replaced += 1
    ended_well(publishers)
    found = publish(bucket, "last")
    assert {*found} >= {f"{name}{number}" for name in ("a", "b") for number in range(rounds)}
    assert {*found} >= {f"w{number}" for number in range(replaced)}
    assert ids(bucket.read(DOCUMENT)[0]) == ids(Plain(url, sandbox.environment()).get(DOCUMENT)) == found
    assert [entry.key for entry in bucket.list("")] == [DOCUMENT]
    assert replaced > 5
    lease.release()


def test_writers_of_several_processes_without_a_lease_lose_no_change(sandbox: B2Sandbox, url: str) -> None:
    bucket = open_b2(url, environ=sandbox.environment())
    bucket.write("count", b"0", ABSENT)
    ended_well([start(sandbox, "count", url, name, 8) for name in ("a", "b")])
    assert bucket.read("count")[0] == b"16"


def test_one_of_five_contending_processes_holds_the_lease_at_a_time(sandbox: B2Sandbox, url: str) -> None:
    ended_well([start(sandbox, "hold", url, f"host:{number}", 3) for number in range(5)])
    bucket = open_b2(url, environ=sandbox.environment())
    tokens = [entry.key for entry in bucket.list("tokens/")]
    assert len(tokens) == 15
    assert {bucket.read(key)[0] for key in tokens} == {b"host:%d" % number for number in range(5)}


def test_json_of_the_documents_is_what_the_publishers_wrote(sandbox: B2Sandbox, url: str) -> None:
    Plain(url, sandbox.environment()).append("ж")
    assert json.loads(open_b2(url, environ=sandbox.environment()).read(DOCUMENT)[0]) == ["ж"]
