"""The lease among real processes, over real HTTP: many contenders, and one that is frozen past its end."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from s3_server import KEYS, new_bucket

from retake.bucket import ANY, Bucket, Lease, LeaseTerms, open_bucket
from retake.errors import LeaseHeld, StorageError

ROOT = Path(__file__).parents[2]
PROCESSES = 10


@pytest.fixture
def url(s3_endpoint: str, s3_keys: None) -> str:
    return new_bucket(s3_endpoint)


def start(url: str, ttl: float, what: str) -> "subprocess.Popen[str]":
    script = str(Path(__file__).with_name("s3_contender.py"))
    environ = {**os.environ, **KEYS, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, script, url, str(ttl), what], stdout=subprocess.PIPE, text=True, env=environ
    )


def test_ten_processes_take_turns(url: str) -> None:
    processes = [start(url, 30, "3") for _ in range(PROCESSES)]
    try:
        lines = [line for process in processes for line in process.communicate(timeout=300)[0].splitlines()]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * PROCESSES
    tokens = sorted(int(line.split()[1]) for line in lines if line.startswith("held"))
    assert "two" not in lines
    assert len(set(tokens)) == len(tokens) > 1


def test_one_that_was_frozen_past_the_end_neither_writes_nor_holds(url: str) -> None:
    ttl = 10  # a request may take a third of it
    process = start(url, ttl, "freeze")
    assert process.stdout is not None
    try:
        held = process.stdout.readline().split()
        assert held[0] == "held"
        process.send_signal(signal.SIGSTOP)
        bucket = open_bucket(url, lease_terms=LeaseTerms(ttl, 0.5, 0.2))
        lease = take_when_free(bucket)
        assert lease.token > int(held[1])
        bucket.write("go on", b"", ANY)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == -signal.SIGALRM
        assert [entry.key for entry in bucket.list("")] == ["go on"]
        lease.check()
        lease.release()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def take_when_free(bucket: Bucket) -> Lease:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with suppress(LeaseHeld, StorageError):
            return bucket.lease("story", "next")
        time.sleep(0.1)
    raise AssertionError("it never became free")
