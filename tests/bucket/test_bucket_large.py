"""Files too large for memory: how much of them a client holds at once, and failures of B2's large files."""

import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from uuid import uuid4

import pytest
from s3_server import KEYS, moto_server, new_bucket

from retake.bucket import ABSENT, ANY, Bucket, NotFound
from retake.bucket.b2.bucket import B2Bucket, open_b2
from retake.clock import FakeClock
from retake.errors import StorageError
from retake.sandbox.b2 import B2Sandbox

MB = 10**6
PART = 20 * MB
LARGEST = 200 * MB

UPLOAD = """
import resource, sys
from retake.bucket import ANY, open_bucket
from retake.bucket.contract import write_file

bucket = open_bucket(sys.argv[1])
for path in sys.argv[2:]:
    with open(path, "rb") as file:
        write_file(bucket, "666/a.mp4", file, ANY)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.fixture(scope="module")
def large() -> Iterator[B2Sandbox]:
    with B2Sandbox(part_size=PART) as running:
        yield running


@pytest.mark.parametrize("kind", ["directory", "b2", "s3"])
def test_a_client_holds_as_much_in_memory_whatever_the_size_of_a_file(
    kind: str, large: B2Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**KEYS, **large.environment(), "NO_PROXY": "*"}.items():
        monkeypatch.setenv(name, value)
    for name, size in (("small", 10 * MB), ("large", LARGEST)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    with moto_server() as endpoint:
        urls = {
            "directory": lambda: f"file:{tmp_path}/bucket",
            "b2": lambda: large.storage_url(uuid4().hex),
            "s3": lambda: new_bucket(endpoint),
        }
        command = [sys.executable, "-c", UPLOAD, urls[kind](), str(tmp_path / "small"), str(tmp_path / "large")]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    before, after = map(int, done.stdout.split())
    assert after - before < 8 * MB, f"{after - before:,} bytes more for {LARGEST:,}"


# --- large files of B2 ------------------------------------------------------------------------------------------------


@pytest.fixture
def sandbox() -> Iterator[B2Sandbox]:
    with B2Sandbox(part_size=1000) as running:
        yield running


@pytest.fixture
def bucket(sandbox: B2Sandbox) -> B2Bucket:
    return open_b2(sandbox.storage_url(), environ=sandbox.environment(), clock=FakeClock())


DATA = bytes(range(250)) * 14  # three and a half parts


def stored(bucket: Bucket) -> bytes | None:
    try:
        return bucket.read("a")[0]
    except NotFound:
        return None


def unfinished(sandbox: B2Sandbox) -> list[str]:
    files = sandbox.store.bucket_name_to_bucket["retake"].file_id_to_file.values()
    return [file.name for file in files if file.action == "start"]


def names(sandbox: B2Sandbox) -> list[str]:
    return [call.name for call in sandbox.calls()]


@pytest.mark.parametrize(("size", "parts"), [(999, 0), (1000, 0), (1001, 2), (2000, 2), (3500, 4)])
def test_a_file_above_the_recommended_part_size_goes_in_parts(
    size: int, parts: int, sandbox: B2Sandbox, bucket: B2Bucket
) -> None:
    version = bucket.write_file("a", BytesIO(DATA[:size]), ABSENT)
    assert names(sandbox).count("b2_upload_part") == parts
    assert bucket.read("a") == (DATA[:size], version)
    assert bucket.read_range("a", 990, 1010) == DATA[:size][990:1011]
    assert [(entry.key, entry.size) for entry in bucket.list("")] == [("a", size)]
    assert bucket.write_file("a", BytesIO(b"small"), version) != version
    assert stored(bucket) == b"small"


@pytest.mark.parametrize(
    "order",
    [
        *("b2-part#2=cut-before", "b2-part#2=cut-after", "b2-part#3=503", "b2-part#1=new-url", "b2-part#2=expired"),
        *("b2-start-large#1=503", "b2-start-large#1=cut-after", "b2-part-url#2=503"),
        *("b2-finish-large#1=503", "b2-finish-large#1=cut-before", "b2-finish-large#1=cut-after"),
        "b2-unfinished#1=503",
    ],
)
def test_a_fault_on_the_way_is_mended_by_the_client(order: str, sandbox: B2Sandbox, bucket: B2Bucket) -> None:
    sandbox.order(order)
    version = bucket.write_file("a", BytesIO(DATA), ABSENT)
    assert bucket.read("a") == (DATA, version)
    assert len(bucket.list("")) == 1


@pytest.mark.parametrize("kind", ["b2-part", "b2-finish-large", "b2-part-url", "b2-start-large"])
def test_an_upload_that_fails_leaves_nothing(kind: str, sandbox: B2Sandbox, bucket: B2Bucket) -> None:
    bucket.write("a", b"old", ABSENT)
    sandbox.order(f"{kind}=503")
    with pytest.raises(StorageError):
        bucket.write_file("a", BytesIO(DATA), ANY)
    assert stored(bucket) == b"old"
    assert unfinished(sandbox) == []


def test_what_a_crash_left_is_cancelled_after_a_day(sandbox: B2Sandbox, bucket: B2Bucket) -> None:
    store = sandbox.store
    token = store.authorize_account("", store.account, store.key)["authorizationToken"]
    here = store.bucket_name_to_bucket["retake"]
    for name in ("a", "ab"):
        store.start_large_file(store.API_URL, token, here.bucket_id, name, "video/mp4", {})
    assert bucket.list("") == []
    bucket.write_file("a", BytesIO(DATA), ANY)
    assert sorted(unfinished(sandbox)) == ["a", "ab"]
    for file in here.file_id_to_file.values():
        file.upload_timestamp -= 25 * 3600 * 1000
    bucket.write_file("a", BytesIO(DATA), ANY)
    assert unfinished(sandbox) == ["ab"]
    assert stored(bucket) == DATA


def test_a_file_that_another_program_gave_up_is_an_error_of_the_store(sandbox: B2Sandbox, bucket: B2Bucket) -> None:
    def give_up(call: str, file: str) -> None:
        if call == "b2_finish_large_file":
            here = sandbox.store.bucket_name_to_bucket["retake"].file_id_to_file
            for file_id in [it for it, found in here.items() if found.action == "start"]:
                del here[file_id]

    sandbox.meanwhile = give_up
    with pytest.raises(StorageError):
        bucket.write_file("a", BytesIO(DATA), ANY)
    assert stored(bucket) is None


def test_a_part_of_a_file_that_grows_meanwhile_is_whole(sandbox: B2Sandbox, bucket: B2Bucket) -> None:
    bucket.write("a", b"old", ANY)

    def replace(call: str, file: str) -> None:
        if call == "b2_download_file_by_id":
            sandbox.meanwhile = lambda call, file: None
            bucket.write("a", b"longer", ANY)

    sandbox.meanwhile = replace
    assert bucket.read_range("a", 0, 100) == b"longer"
