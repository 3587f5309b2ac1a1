"""Calls to B2: how long they are retried, and the messages when they fail. No pause here is real."""

import threading
import time

import pytest

from retake.bucket import ABSENT, Bucket, NotFound
from retake.bucket.b2.bucket import open_b2
from retake.bucket.b2.calls import B2Calls
from retake.bucket.b2.connection import TRIES, B2Connection
from retake.bucket.b2.errors import explain
from retake.bucket.b2.price import DOLLARS, by_class, price_class
from retake.clock import FakeClock, SystemClock
from retake.errors import StorageError
from retake.sandbox.b2 import B2Sandbox
from retake.sandbox.b2_orders import KINDS


@pytest.fixture(autouse=True)
def _nobody_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail when b2sdk really waits."""
    slept = time.sleep

    def refuse(seconds: float) -> None:
        ours = threading.current_thread() is threading.main_thread()  # others may be left over from another test
        assert seconds < 0.2 or not ours, "a real sleep"
        slept(seconds)

    monkeypatch.setattr("time.sleep", refuse)


@pytest.fixture
def bucket(sandbox: B2Sandbox, clock: FakeClock) -> Bucket:
    opened = open_b2(sandbox.storage_url(), environ=sandbox.environment(), clock=clock)
    opened.list("")
    return opened


def passed(clock: FakeClock) -> float:
    return (clock.now() - FakeClock().now()).total_seconds()


def count(sandbox: B2Sandbox, name: str) -> int:
    return sum(call.name == name for call in sandbox.calls())


def test_a_storm_of_503_ends_after_a_few_tries_and_says_so(
    sandbox: B2Sandbox, bucket: Bucket, clock: FakeClock
) -> None:
    before = count(sandbox, "b2_list_file_versions")
    sandbox.order("b2-list=503")
    with pytest.raises(StorageError, match="cannot list everything in the bucket retake: 503 service_unavailable"):
        bucket.list("")
    assert count(sandbox, "b2_list_file_versions") - before == TRIES
    assert passed(clock) == 1 + 1.5 + 2.25 + 3.375


def test_no_operation_takes_longer_than_its_deadline(sandbox: B2Sandbox, clock: FakeClock) -> None:
    bucket = open_b2(sandbox.storage_url(), environ=sandbox.environment(), clock=clock, deadline_s=4.0)
    sandbox.order("b2-list=503")
    with pytest.raises(StorageError):
        bucket.write("a", b"1", ABSENT)
    assert passed(clock) < 4.0


def test_the_deadline_is_that_of_the_whole_operation_not_of_each_call(sandbox: B2Sandbox, clock: FakeClock) -> None:
    bucket = open_b2(sandbox.storage_url(), environ=sandbox.environment(), clock=clock, deadline_s=10.0)
    bucket.list("")
    sandbox.order("b2-download#1-4=503")
    bucket.write("a", b"1", ABSENT)
    sandbox.order("b2-list#1-4=503")
    with pytest.raises(StorageError, match="cannot read a "):
        bucket.read("a")
    assert passed(clock) < 10.0


def test_an_answer_that_does_not_come_is_not_waited_for_beyond_the_deadline(sandbox: B2Sandbox) -> None:
    bucket = open_b2(sandbox.storage_url(), environ=sandbox.environment(), clock=SystemClock(), deadline_s=4.0)
    bucket.list("")
    sandbox.order("b2-list=hang")
    began = time.monotonic()
    with pytest.raises(StorageError, match="cannot list"):
        bucket.list("")
    assert time.monotonic() - began < 60  # the answer would come after ten minutes


def test_a_busy_part_of_b2_is_left_for_another_at_once(sandbox: B2Sandbox, bucket: Bucket, clock: FakeClock) -> None:
    bucket.write("a", b"0", bucket.write("a", b"", ABSENT))
    urls = count(sandbox, "b2_get_upload_url")
    began = passed(clock)
    lease = bucket.lease("story", "me")
    sandbox.order("b2-upload#1=new-url")
    bucket.write("b", b"1", ABSENT)
    assert bucket.read("b")[0] == b"1"
    assert (count(sandbox, "b2_get_upload_url") - urls, passed(clock) - began) == (1, 0)
    lease.release()


def test_a_claim_is_sent_again_only_if_b2_says_that_it_did_not_take_it(sandbox: B2Sandbox, bucket: Bucket) -> None:
    sandbox.order("b2-upload#1=new-url")
    bucket.lease("story", "me").release()
    sandbox.withdraw_orders()
    before = count(sandbox, "b2_upload_file")
    sandbox.order("b2-upload#1=cut-after")
    with pytest.raises(StorageError):
        bucket.lease("story", "me")
    assert count(sandbox, "b2_upload_file") - before == 1


def test_a_token_that_has_run_out_is_renewed(sandbox: B2Sandbox, bucket: Bucket) -> None:
    for kind in ("b2-list", "b2-upload", "b2-download", "b2-delete", "b2-copy", "b2-upload-url"):
        sandbox.order(f"{kind}#1=expired")
        bucket.write("a", b"1", ABSENT)
        assert bucket.read("a")[0] == b"1"
        bucket.copy("a", "b")
        bucket.delete("a")
    assert count(sandbox, "b2_authorize_account") > 4


@pytest.mark.parametrize("fault", ["not-json", "cut-before", "cut-after", "500", "502-html", "408", "429", "slow=0.05"])
@pytest.mark.parametrize("kind", ["b2-list", "b2-upload", "b2-download", "b2-delete", "b2-copy", "b2-upload-url"])
def test_what_passes_is_tried_again(sandbox: B2Sandbox, bucket: Bucket, kind: str, fault: str) -> None:
    lease = bucket.lease("story", "me")
    sandbox.order(f"{kind}#1={fault}")
    version = bucket.write("a", b"1", ABSENT)
    version = bucket.write("a", b"2", version)
    bucket.copy("a", "b")
    assert bucket.read("b")[0] == b"2"
    bucket.delete("a")
    with pytest.raises(NotFound):
        bucket.read("a")
    assert len(sandbox.store.bucket_name_to_bucket["retake"].file_id_to_file) == 2  # "b", and the claim
    lease.release()


@pytest.mark.parametrize("call", ["read", "write"])
def test_a_used_up_cap_is_reported_at_once_with_what_to_do(
    sandbox: B2Sandbox, bucket: Bucket, clock: FakeClock, call: str
) -> None:
    bucket.write("a", b"1", ABSENT)
    sandbox.order("b2-upload=caps")
    sandbox.order("b2-download=caps")
    with pytest.raises(StorageError, match=r"cap of the Backblaze account is used up: raise it .* 00:00 UTC"):
        bucket.read("a") if call == "read" else bucket.write("b", b"2", ABSENT)
    assert passed(clock) == 0


def test_a_refused_key_is_reported_at_once(sandbox: B2Sandbox, clock: FakeClock) -> None:
    environ = {**sandbox.environment(), "B2_APPLICATION_KEY": "wrong"}
    bucket = open_b2(sandbox.storage_url(), environ=environ, clock=clock)
    with pytest.raises(StorageError, match="check B2_APPLICATION_KEY_ID and B2_APPLICATION_KEY") as caught:
        bucket.read("a")
    assert passed(clock) == 0
    assert "wrong" not in str(caught.value).replace("secret key is wrong", "")


def test_a_missing_bucket_is_not_an_empty_one(sandbox: B2Sandbox, clock: FakeClock) -> None:
    bucket = open_b2("b2://nothing" + sandbox.storage_url().removeprefix("b2://retake"), environ=sandbox.environment())
    with pytest.raises(StorageError, match="there is no bucket nothing"):
        bucket.list("")


def test_a_bucket_that_is_made_later_is_found(sandbox: B2Sandbox) -> None:
    bucket = open_b2("b2://later" + sandbox.storage_url().removeprefix("b2://retake"), environ=sandbox.environment())
    with pytest.raises(StorageError):
        bucket.list("")
    sandbox.make_bucket("later")
    assert bucket.list("") == []


def test_nobody_at_home_is_a_storage_error(clock: FakeClock) -> None:
    environ = {"B2_APPLICATION_KEY_ID": "i", "B2_APPLICATION_KEY": "k"}
    with pytest.raises(StorageError, match="cannot be reached: check the network"):
        open_b2("b2://b?realm=http://127.0.0.1:9", environ=environ, clock=clock).list("")
    assert 0 < passed(clock) < 60


def test_a_wrong_clock_is_named() -> None:
    with B2Sandbox(now=lambda: time.time() - 3600) as sandbox:
        bucket = open_b2(sandbox.storage_url(), environ=sandbox.environment())
        with pytest.raises(StorageError, match="this machine's clock is wrong, set it"):
            bucket.list("")


def test_a_key_that_may_only_read_says_what_it_needs(sandbox: B2Sandbox, clock: FakeClock) -> None:
    store = sandbox.store
    token = store.authorize_account("", store.account, store.key)["authorizationToken"]
    bucket_id = store.bucket_name_to_bucket["retake"].bucket_id
    rights = ["listBuckets", "listFiles", "readFiles"]
    made = store.create_key(store.API_URL, token, store.account, rights, "reader", None, [bucket_id], None)
    environ = {"B2_APPLICATION_KEY_ID": made["applicationKeyId"], "B2_APPLICATION_KEY": made["applicationKey"]}
    before = len(sandbox.calls())
    bucket = open_b2(sandbox.storage_url(), environ=environ, clock=clock)
    assert bucket.list("") == []
    assert [call.name for call in sandbox.calls()[before:]] == ["b2_authorize_account", "b2_list_file_versions"]
    with pytest.raises(StorageError, match="it needs listBuckets, listFiles, readFiles, writeFiles and deleteFiles"):
        bucket.lease("story", "me")


def test_half_a_download_is_not_taken_for_the_whole(
    sandbox: B2Sandbox, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.write("a", b"whole", ABSENT)
    file = next(it for it in sandbox.store.bucket_name_to_bucket["retake"].file_id_to_file.values() if it.name == "a")
    monkeypatch.setattr(file, "data_bytes", b"hole!")
    monkeypatch.setattr(file, "content_length", 5)
    with pytest.raises(StorageError, match="what came is not a"):
        bucket.read("a")


def test_what_is_said_of_an_error_holds_no_signed_url() -> None:
    assert "secret" not in explain(ValueError("https://f.example/x?Authorization=secret"), "retake")


def test_every_call_of_the_stand_in_has_a_price_class() -> None:
    assert by_class(name for name in KINDS if name.startswith("b2_")) == {"A": 9, "B": 3, "C": 8}
    assert price_class("b2_something_new") == "C"
    assert DOLLARS["A"] == 0 < DOLLARS["B"] < DOLLARS["C"]


def test_deadlines_of_threads_and_of_what_is_nested_do_not_mix(clock: FakeClock) -> None:
    calls = B2Calls(B2Connection("b", "i", "k", clock=clock, deadline_s=60))
    with calls.within():
        clock.sleep(50)
        with calls.within(15):
            assert calls.left() == 10
    assert calls.left() == 60
