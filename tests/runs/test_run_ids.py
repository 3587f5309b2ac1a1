"""The id of a run: the same in every store, from its key."""

import json
from hashlib import sha256

import pytest

from retake.bucket import ANY
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.errors import StateError
from retake.runs import run
from retake.runs.bucket_ledger import BucketLedger
from retake.runs.run_document import run_key


def test_an_id_is_made_from_the_digest_of_the_key() -> None:
    assert run.run_id_of("20260101-0000") == f"run-{sha256(b'20260101-0000').hexdigest()[:16]}"


def test_a_document_whose_key_is_half_a_character_hides_no_other_run() -> None:
    bucket = MemoryBucket()
    ledger = BucketLedger(bucket, FakeClock())
    odd, other = (ledger.create_for_task(name, name, actor="shop") for name in ("odd", "other"))
    document = json.loads(bucket.read(run_key(odd.run_id))[0])
    bucket.write(run_key(odd.run_id), json.dumps({**document, "idempotency_key": "\ud800"}).encode(), ANY)
    with pytest.raises(StateError, match="run_id: does not match"):
        ledger.get(odd.run_id)
    assert [it.run_id for it in ledger.runs()] == [other.run_id]


def test_what_makes_digests_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []

    def search(name: str) -> object:
        searched.append(name)
        raise ImportError

    run._sha256.cache_clear()
    monkeypatch.setattr(run, "import_module", search)
    try:
        assert run.sha256_hex(b"a") == run.sha256_hex(b"a") == sha256(b"a").hexdigest()
    finally:
        run._sha256.cache_clear()
    assert len(searched) == len(set(searched))
