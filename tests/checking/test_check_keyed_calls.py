"""Keyed paid calls: valid, decided, and paid for once."""

import json
from typing import Any

import pytest

from retake.bucket import ANY
from retake.bucket.memory import MemoryBucket
from retake.checking import Check, CheckReport, Scope
from retake.checking.keyed_calls import KeyedCalls
from retake.checking.view import CheckView, LiveListing
from retake.clock import FakeClock
from retake.errors import OutcomeUnknown
from retake.paid.paid_calls import PaidCalls

STATE, KEY = "paid/posters/state.json", "paid/posters/calls/aurora.json"


class Quiet:
    """A process that is never asked to stop."""

    def check_stop(self) -> None: ...

    def kill_after(self, seconds: float) -> None: ...


def shop(bucket: MemoryBucket, name: str = "posters") -> PaidCalls:
    return PaidCalls(bucket, name, {"poster": 0.04}, clock=FakeClock(), process=Quiet())


@pytest.fixture
def bucket() -> MemoryBucket:
    made = MemoryBucket()
    with shop(made) as paid:
        paid.call("aurora", "poster", lambda: "poster-1")
        paid.call("comet", "poster", lambda: "poster-2")
    return made


def checked(bucket: MemoryBucket) -> CheckReport:
    return Check([KeyedCalls()], Scope(bucket, FakeClock())).run()


def put(bucket: MemoryBucket, key: str, value: Any) -> None:
    bucket.write(key, value if isinstance(value, bytes) else json.dumps(value).encode(), ANY)


def test_calls_that_were_made_are_whole(bucket: MemoryBucket) -> None:
    report = checked(bucket)
    assert [it for it in report.findings if not it.where.startswith("caps/")] == []
    assert report.looked_at["paid_calls"] == 2


@pytest.mark.parametrize("name", ["posters", "shop/posters"])
def test_a_call_that_a_person_must_decide_about_is_reported(name: str) -> None:
    def cut() -> None:
        raise ConnectionError("cut")

    bucket = MemoryBucket()
    with shop(bucket, name) as paid:
        paid.call("aurora", "poster", lambda: "poster-1")
        with pytest.raises(OutcomeUnknown):
            paid.call("eclipse", "poster", cut)
        assert KeyedCalls().busy(CheckView(Scope(bucket, FakeClock()), LiveListing(bucket)))
    report = checked(bucket)
    (it,) = (it for it in report.findings if it.code == "paid-call-undecided")
    assert (it.where, "eclipse" in it.what) == (f"paid/{name}/state.json", True)
    assert report.looked_at["paid_calls"] == 1


def test_a_key_called_state_is_not_a_state(bucket: MemoryBucket) -> None:
    with shop(bucket) as paid:
        paid.call("state", "poster", lambda: "poster-3")
    report = checked(bucket)
    assert [it for it in report.findings if not it.where.startswith("caps/")] == []
    assert report.looked_at["paid_calls"] == 3


@pytest.mark.parametrize("damage", [b"{", b"[]", {"pending": {"id": 7}}, {"account": 1}])
def test_an_invalid_state_is_reported(bucket: MemoryBucket, damage: Any) -> None:
    put(bucket, STATE, damage)
    assert "paid-calls-invalid" in {it.code for it in checked(bucket).findings}


def test_an_invalid_key_is_reported(bucket: MemoryBucket) -> None:
    put(bucket, KEY, {"key": "aurora", "calls": "none"})
    assert "paid-calls-invalid" in {it.code for it in checked(bucket).findings}


def test_a_key_that_was_paid_for_twice_is_reported(bucket: MemoryBucket) -> None:
    document = json.loads(bucket.read(KEY)[0])
    document["calls"].append({**document["calls"][0], "id": "another"})
    put(bucket, KEY, document)
    (it,) = (it for it in checked(bucket).findings if it.code == "paid-key-billed-twice")
    assert it.where == KEY
