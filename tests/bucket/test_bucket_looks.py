"""Looks at several objects at once: they find the same as one request each, with few calls on B2."""

import pytest

from retake.bucket import ANY, Bucket, NotFound
from retake.bucket.b2.bucket import open_b2
from retake.bucket.contract import Sight, lease_and_look, look
from retake.bucket.memory import MemoryBucket
from retake.errors import LeaseHeld
from retake.sandbox.b2 import B2Sandbox

KEYS = ("config/a.json", "config/b.json", "config/none.json")
PREFIXES = ("config/a.json.aside-", "444/", "555/", "666/")
THERE = ("444/1.json", "555/2.json", "666/3.json", "666/3.png", "archive/1.json", "config/a.json", "config/b.json")


@pytest.fixture
def bucket(sandbox: B2Sandbox, request: pytest.FixtureRequest) -> Bucket:
    place = f"{abs(hash(request.node.name))}"
    return filled(open_b2(sandbox.storage_url(place), environ=sandbox.environment()))


def filled(bucket: Bucket) -> Bucket:
    for key in THERE:
        bucket.write(key, key.encode(), ANY)
    return bucket


def listings(sandbox: B2Sandbox, since: int) -> int:
    return sum(call.price == "C" for call in sandbox.calls()[since:])


def finds_what_is_there(view: Sight, bucket: Bucket) -> None:
    for key in ("config/a.json", "config/b.json", "444/1.json", "archive/1.json"):
        assert view.read(key) == bucket.read(key)
    with pytest.raises(NotFound):
        view.read("config/none.json")
    for prefix in (*PREFIXES, "666/3.", "archive/", "config/"):
        assert view.list(prefix) == bucket.list(prefix)


def test_a_look_finds_what_is_there(bucket: Bucket, sandbox: B2Sandbox) -> None:
    since = len(sandbox.calls())
    view = look(bucket, KEYS, PREFIXES)
    assert listings(sandbox, since) == 2
    since = len(sandbox.calls())
    assert view.read("config/a.json")[0] == b"config/a.json"
    assert [it.key for it in view.list("666/")] == ["666/3.json", "666/3.png"]
    assert len(sandbox.calls()) == since
    finds_what_is_there(view, bucket)


def test_with_a_lease_the_folders_come_with_its_claims(bucket: Bucket, sandbox: B2Sandbox) -> None:
    since = len(sandbox.calls())
    lease, view = lease_and_look(bucket, "story", "me", KEYS, PREFIXES)
    assert listings(sandbox, since) == 3
    finds_what_is_there(view, bucket)
    lease.check()
    with pytest.raises(LeaseHeld):
        lease_and_look(bucket, "story", "another", KEYS, PREFIXES)
    lease.release()


def test_what_is_written_after_the_first_listing_of_the_claims_is_seen(bucket: Bucket, sandbox: B2Sandbox) -> None:
    def meanwhile(call: str, file: str) -> None:
        if call == "b2_upload_file" and "/leases/story/" in file:
            sandbox.meanwhile = lambda call, file: None
            bucket.write("config/a.json", b"new", ANY)
            bucket.write("666/new.json", b"new", ANY)

    sandbox.meanwhile = meanwhile
    lease, view = lease_and_look(bucket, "story", "me", KEYS, PREFIXES)
    assert view.read("config/a.json")[0] == b"new"
    assert "666/new.json" in [it.key for it in view.list("666/")]
    lease.release()


def test_what_did_not_change_is_not_downloaded_again(bucket: Bucket, sandbox: B2Sandbox) -> None:
    look(bucket, KEYS, ())
    bucket.write("config/b.json", b"new", ANY)
    since = len(sandbox.calls())
    view = look(bucket, KEYS, ())
    assert [view.read(key)[0] for key in KEYS[:2]] == [b"config/a.json", b"new"]
    assert [call.price for call in sandbox.calls()[since:]] == ["C", "B"]


def test_many_names_in_between_cost_one_listing_more_at_most(bucket: Bucket, sandbox: B2Sandbox) -> None:
    for number in range(60):
        bucket.write(f"500/{number:03}", b"", ANY)
    since = len(sandbox.calls())
    view = look(bucket, (), PREFIXES[1:])
    assert listings(sandbox, since) == 2
    assert [it.key for folder in PREFIXES[1:] for it in view.list(folder)] == list(THERE[:4])
    since = len(sandbox.calls())
    assert len(look(bucket, (), ("500/", "666/")).list("500/")) == 60
    assert listings(sandbox, since) == 2


def test_a_bucket_that_offers_no_look_is_its_own_view() -> None:
    bucket = filled(MemoryBucket())
    assert look(bucket, KEYS, PREFIXES) is bucket
    lease, view = lease_and_look(bucket, "story", "me", KEYS, PREFIXES)
    assert view is bucket
    lease.release()
