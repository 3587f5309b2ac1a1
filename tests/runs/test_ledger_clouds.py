"""The ledger contract on stores without locks, over real HTTP: a stand-in for B2, and moto's S3.

Each change takes a lease there, a dozen requests, so only the promises that depend on the store are tested. `make soak`
(RETAKE_SEEDS) tests all.
"""

import os
from collections.abc import Iterator
from itertools import count

import pytest
from ledger_contract import Connect, LedgerContract
from s3_server import new_bucket

from retake.bucket.b2.bucket import open_b2
from retake.bucket.s3 import S3Bucket
from retake.clock import FakeClock
from retake.errors import LeaseHeld
from retake.runs.bucket_ledger import BucketLedger
from retake.sandbox.b2 import B2Sandbox

_numbers = count(1)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[B2Sandbox]:
    with B2Sandbox() as running:
        yield running


TRIED = (
    "test_a_new_run_is_queued_and_seen_by_another_client",
    "test_a_known_key_gives_the_run_that_is_there_as_it_stands",
    "test_names_are_kept_as_they_are",
    "test_of_many_who_create_with_one_key_all_get_the_same_run",
    "test_an_empty_ledger_is_empty_and_not_an_error",
    "test_a_failure_leaves_its_record_and_its_code",
    "test_whoever_holds_an_older_run_has_lost_it",
    "test_of_many_who_move_one_run_at_once_one_does",
    "test_notes_at_once_are_all_there_in_one_order",
    "test_of_many_who_ask_at_once_one_gets_the_run",
    "test_many_workers_take_every_run_once_and_lose_none",
    "test_whoever_lost_the_run_is_told_at_the_next_sign_of_life",
)
SOAK = "RETAKE_SEEDS" in os.environ


class CloudContract(LedgerContract):
    threads = 3
    rounds = 2
    busy = (LeaseHeld,)


for name in [name for name in dir(CloudContract) if name.startswith("test_")]:
    if name not in TRIED and not SOAK:
        setattr(CloudContract, name, None)  # pytest must not collect what cannot be called


class TestOnB2(CloudContract):
    @pytest.fixture
    def connect(self, sandbox: B2Sandbox, clock: FakeClock) -> Connect:
        url = sandbox.storage_url(f"runs-{next(_numbers)}")
        return lambda: BucketLedger(open_b2(url, environ=sandbox.environment()), clock)


@pytest.mark.usefixtures("s3_keys")
class TestOnS3(CloudContract):
    @pytest.fixture
    def connect(self, s3_endpoint: str, clock: FakeClock) -> Connect:
        url = new_bucket(s3_endpoint)
        return lambda: BucketLedger(S3Bucket(url), clock)


def test_what_is_tried_here_is_in_the_contract() -> None:
    assert [name for name in TRIED if not callable(getattr(LedgerContract, name, None))] == []
