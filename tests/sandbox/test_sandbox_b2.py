"""The stand-in for B2, as b2sdk and plain HTTP see it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from itertools import count, pairwise
from pathlib import Path

import pytest
import requests
from b2sdk.v3 import B2Api, Bucket, InMemoryAccountInfo
from b2sdk.v3.exception import Conflict as B2Conflict
from b2sdk.v3.exception import FileNotPresent, InvalidAuthToken

from retake.sandbox.b2 import B2Sandbox, RecordedB2Call
from retake.sandbox.b2_orders import FAULTS, KINDS, parse_order

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sandbox() -> Iterator[B2Sandbox]:
    with B2Sandbox() as running:
        yield running


def connect(sandbox: B2Sandbox) -> Bucket:
    api = B2Api(InMemoryAccountInfo())
    key_id, key = sandbox.environment().values()
    api.authorize_account(application_key_id=key_id, application_key=key, realm=sandbox.url)
    return api.get_bucket_by_name("retake")


@pytest.fixture
def bucket(sandbox: B2Sandbox) -> Bucket:
    return connect(sandbox)


def content(bucket: Bucket, name: str) -> bytes:
    kept = BytesIO()
    bucket.download_file_by_name(name).save(kept)
    return kept.getvalue()


def test_b2sdk_works_with_it_and_a_second_client_sees_it(sandbox: B2Sandbox, bucket: Bucket) -> None:
    before = time.time()
    first = bucket.upload_bytes(b"1", "666/ж b.json", file_info={"by": "me, ж"})
    bucket.upload_bytes(b"x" * 3_000_000, "666/big")
    other = connect(sandbox)
    assert content(other, "666/ж b.json") == b"1"
    assert len(content(other, "666/big")) == 3_000_000
    assert [version.file_name for version, _ in other.ls("666")] == ["666/big", "666/ж b.json"]
    assert other.get_file_info_by_name("666/ж b.json").file_info == {"by": "me, ж"}
    copied = other.copy(first.id_, "copy")
    assert (content(bucket, "copy"), copied.file_info) == (b"1", {"by": "me, ж"})
    sandbox.make_bucket("another")
    another = other.api.get_bucket_by_name("another")
    another.copy(first.id_, "there")
    assert [version.file_name for version, _ in another.ls("")] == ["there"]
    assert before - 1 <= first.upload_timestamp / 1000 <= time.time() + 1


def test_hiding_unhiding_and_deleting_versions() -> None:
    seconds = count(int(time.time()))
    with B2Sandbox(now=lambda: next(seconds)) as sandbox:
        bucket = connect(sandbox)
        version = bucket.upload_bytes(b"1", "a")
        bucket.hide_file("a")
        with pytest.raises(FileNotPresent):
            content(bucket, "a")
        assert [it.action for it in bucket.list_file_versions("a")] == ["hide", "upload"]
        bucket.unhide_file("a")
        assert content(bucket, "a") == b"1"
        bucket.delete_file_version(version.id_, "a")
        with pytest.raises(FileNotPresent):
            bucket.delete_file_version(version.id_, "a")


def test_the_bucket_has_a_revision_that_can_be_compared(bucket: Bucket) -> None:
    fresh = bucket.update(bucket_info={"a": "1"}, if_revision_is=bucket.revision)
    assert fresh.bucket_info == {"a": "1"}
    with pytest.raises(B2Conflict):
        bucket.update(bucket_info={"a": "2"}, if_revision_is=bucket.revision)


def test_versions_of_one_second_come_in_any_order_and_those_of_several_newest_first() -> None:
    now = [time.time() // 1]
    with B2Sandbox(seed=1, now=lambda: now[0]) as sandbox:
        bucket, stamps = connect(sandbox), []
        for number in range(12):
            now[0] += 1 if number in (4, 8) else 0.01
            stamps.append(bucket.upload_bytes(b"", "a").upload_timestamp)
        listed = [version.upload_timestamp for version in bucket.list_file_versions("a")]
    assert sorted(listed) == stamps
    seconds = [stamp // 1000 for stamp in listed]
    assert seconds == sorted(seconds, reverse=True)
    assert any(one < other for one, other in pairwise(listed)), "within one second the order is random"


def test_there_are_no_conditional_writes(sandbox: B2Sandbox) -> None:
    url = f"{sandbox.url}/s3/retake/a"
    for name, value in (("If-None-Match", "*"), ("If-Match", '"x"')):
        answer = requests.put(url, b"", headers={name: value}, timeout=60)
        assert (answer.status_code, "<Code>NotImplemented</Code>" in answer.text) == (501, True)
    assert requests.put(url, b"", timeout=60).status_code == 403


def test_only_its_own_keys_and_tokens_are_accepted(sandbox: B2Sandbox, bucket: Bucket) -> None:
    api = B2Api(InMemoryAccountInfo())
    with pytest.raises(InvalidAuthToken):
        api.authorize_account(application_key_id="account-0", application_key="wrong", realm=sandbox.url)
    bucket.upload_bytes(b"1", "a")
    assert requests.get(f"{sandbox.url}/file/retake/a", timeout=60).status_code == 401
    listing = requests.post(f"{sandbox.url}/b2api/v4/b2_list_file_names", json={"bucketId": bucket.id_}, timeout=60)
    assert listing.json()["code"] == "bad_auth_token"


def test_a_lost_answer_makes_b2sdk_upload_again(sandbox: B2Sandbox, bucket: Bucket) -> None:
    assert str(sandbox.order("b2-upload#1=cut-after")) == "b2-upload#1=cut-after"
    bucket.upload_bytes(b"1", "a")
    assert len(list(bucket.list_file_versions("a"))) == 2


def test_orders_and_calls_over_http(sandbox: B2Sandbox, bucket: Bucket) -> None:
    orders = f"{sandbox.url}/sandbox/orders"
    assert requests.post(orders, json={"order": "b2-list#1=caps"}, timeout=60).status_code == 201
    assert requests.post(orders, json={"order": "b2-list=nonsense"}, timeout=60).status_code == 400
    assert requests.delete(orders, timeout=60).status_code == 204
    assert requests.get(orders, timeout=60).status_code == 404
    list(bucket.ls())
    last = requests.get(f"{sandbox.url}/sandbox/calls", timeout=60).json()[-1]
    assert RecordedB2Call(**last) == sandbox.calls()[-1] == RecordedB2Call("b2_list_file_names", "", "200", "C")


def test_what_is_not_a_call_is_a_bad_request(sandbox: B2Sandbox) -> None:
    for path in ("/", "/b2api/v4/b2_make_coffee", "/b2api/v3/b2_list_buckets", "/upload"):
        assert requests.post(sandbox.url + path, json={}, timeout=60).status_code == 400


@pytest.mark.parametrize("kind", sorted(set(KINDS.values())))
@pytest.mark.parametrize("fault", ["503", "502-html", "slow=0.5", "cut-before", "cut-after", "hang", *FAULTS])
def test_an_order_is_what_it_says(kind: str, fault: str) -> None:
    for calls in ("", "#1", "#2-3,5"):
        assert str(parse_order(f"{kind}{calls}={fault}")) == f"{kind}{calls}={fault}"


@pytest.mark.parametrize(
    "text",
    ["", "b2-upload", "b2-upload=", "upload=500", "b2-list=200", "b2-list=quota", "b2-list=no-id", "b2-list#0=503"],
)
def test_what_is_not_an_order_is_reported_with_what_is_possible(text: str) -> None:
    with pytest.raises(ValueError, match=r"b2-upload|call number"):
        parse_order(text)


def test_it_can_be_started_alone_and_says_how_to_point_at_it() -> None:
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-W", "error", "-m", "retake.sandbox.b2", "--order", "b2-list#1=503", "--bucket", "mine"]
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = "".join(process.stdout.readline() for _ in range(5))
        url = re.search(r"B2 sandbox at (\S+)", said)
        assert url
        assert f"export RETAKE_STORAGE_URL='b2://mine/story?realm={url[1]}'" in said
        assert "export B2_APPLICATION_KEY='masterKey-0'" in said
        assert json.loads(requests.get(f"{url[1]}/sandbox/calls", timeout=60).text) == []
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_wrong_order_and_a_taken_port_are_reported() -> None:
    command = [sys.executable, "-m", "retake.sandbox.b2"]
    wrong = subprocess.run([*command, "--order", "nonsense"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (wrong.returncode, "is not a kind of call" in wrong.stderr) == (2, True)
    with B2Sandbox() as running:
        port = running.url.rpartition(":")[2]
        taken = subprocess.run([*command, "--port", port], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (taken.returncode, "Try another --port" in taken.stderr) == (75, True)
