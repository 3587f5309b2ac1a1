"""What later processes need not ask again: the authorisation, kept in a file that only its user can read."""

import gc
import json
import os
from pathlib import Path

import pytest

from retake.bucket import ANY, Bucket
from retake.bucket.b2.authorization import KEPT_S, cache_folder
from retake.bucket.b2.bucket import open_b2
from retake.bucket.b2.connection import TRIES
from retake.clock import FakeClock
from retake.errors import StorageError, StorageKeyRefused
from retake.sandbox.b2 import B2Sandbox

SIGNING_IN = ["b2_authorize_account", "b2_list_buckets"]


class Processes:
    """Opens the bucket as one process after another."""

    def __init__(self, sandbox: B2Sandbox, clock: FakeClock, folder: Path) -> None:
        self.sandbox, self.clock, self.folder = sandbox, clock, folder
        self.environ = {**sandbox.environment(), "XDG_CACHE_HOME": str(folder)}

    def open(self, **environ: str) -> Bucket:
        return open_b2(self.sandbox.storage_url(), environ={**self.environ, **environ}, clock=self.clock)

    def signing_in(self, bucket: Bucket) -> list[str]:
        """Return the calls that a first listing needs besides the listing."""
        before = len(self.sandbox.calls())
        bucket.list("")
        return [call.name for call in self.sandbox.calls()[before:] if call.name != "b2_list_file_versions"]

    @property
    def file(self) -> Path:
        [file] = (self.folder / "retake").iterdir()
        return file


@pytest.fixture
def processes(sandbox: B2Sandbox, clock: FakeClock, tmp_path: Path) -> Processes:
    return Processes(sandbox, clock, tmp_path / "cache")


def test_the_second_process_does_not_sign_in(processes: Processes) -> None:
    assert processes.signing_in(processes.open()) == SIGNING_IN
    again = processes.open()
    assert processes.signing_in(again) == []
    again.write("a", b"1", ANY)
    assert again.read("a")[0] == b"1"


def test_only_its_owner_can_read_the_file_which_has_no_key(processes: Processes, sandbox: B2Sandbox) -> None:
    previous = os.umask(0)
    try:
        processes.open().list("")
    finally:
        os.umask(previous)
    assert processes.file.stat().st_mode & 0o777 == 0o600
    assert processes.file.parent.stat().st_mode & 0o777 == 0o700
    assert sandbox.store.key not in processes.file.read_text() + processes.file.name


def test_a_file_that_others_can_read_is_not_used(processes: Processes) -> None:
    processes.open().list("")
    processes.file.chmod(0o640)
    assert processes.signing_in(processes.open()) == SIGNING_IN
    assert processes.file.stat().st_mode & 0o777 == 0o600
    assert processes.signing_in(processes.open()) == []


def test_a_link_in_its_place_is_not_followed(processes: Processes, tmp_path: Path) -> None:
    processes.open().list("")
    elsewhere = tmp_path / "elsewhere"
    processes.file.rename(elsewhere)
    kept = elsewhere.read_bytes()
    processes.open().list("")
    link = processes.file
    link.unlink()
    link.symlink_to(elsewhere)
    assert processes.signing_in(processes.open()) == SIGNING_IN
    assert elsewhere.read_bytes() == kept
    assert not processes.file.is_symlink()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"signed_in_at": 1, "account": {}, "buckets": {}}', "[" * 9999])
def test_an_invalid_file_is_replaced(processes: Processes, text: str) -> None:
    processes.open().list("")
    gc.collect()  # connections of earlier buckets could not be closed if they were collected deep in the nested text
    processes.file.write_text(text)
    assert processes.signing_in(processes.open()) == SIGNING_IN
    assert processes.signing_in(processes.open()) == []


def test_after_its_time_it_is_not_used(processes: Processes, clock: FakeClock) -> None:
    processes.open().list("")
    clock.sleep(KEPT_S)
    assert processes.signing_in(processes.open()) == SIGNING_IN


def test_one_from_the_future_is_not_used(processes: Processes) -> None:
    processes.open().list("")
    kept = json.loads(processes.file.read_text())
    processes.file.write_text(json.dumps({**kept, "signed_in_at": kept["signed_in_at"] + 60}))
    assert processes.signing_in(processes.open()) == SIGNING_IN


@pytest.mark.parametrize("kind", ["b2-list", "b2-download", "b2-upload-url"])
def test_a_token_that_b2_refuses_is_renewed_once_and_kept(processes: Processes, sandbox: B2Sandbox, kind: str) -> None:
    processes.open().write("a", b"1", ANY)
    before = processes.file.read_bytes()
    bucket = processes.open()
    sandbox.order(f"{kind}#1=expired")
    calls = len(sandbox.calls())
    bucket.write("a", b"2", ANY)
    assert bucket.read("a")[0] == b"2"
    assert [call.name for call in sandbox.calls()[calls:]].count("b2_authorize_account") == 1
    assert processes.file.read_bytes() != before
    assert processes.signing_in(processes.open()) == []


def test_a_bucket_that_was_made_anew_is_found(processes: Processes) -> None:
    processes.open().list("")
    kept = json.loads(processes.file.read_text())
    processes.file.write_text(json.dumps({**kept, "buckets": {"retake": "an id of before"}}))
    bucket = processes.open()
    assert bucket.list("") == []
    bucket.write("a", b"1", ANY)
    assert processes.signing_in(processes.open()) == []


def test_a_bucket_that_is_found_missing_at_the_last_attempt_is_an_error_of_the_store(
    processes: Processes, sandbox: B2Sandbox
) -> None:
    processes.open().list("")
    kept = json.loads(processes.file.read_text())
    processes.file.write_text(json.dumps({**kept, "buckets": {"retake": "an id of before"}}))
    bucket = processes.open()
    for number in range(1, TRIES):
        sandbox.order(f"b2-list#{number}=503")
    with pytest.raises(StorageError, match="there is no bucket"):
        bucket.list("")
    assert bucket.list("") == []


def test_another_key_has_another_file(processes: Processes) -> None:
    processes.open().list("")
    with pytest.raises(StorageError):
        processes.open(B2_APPLICATION_KEY="another").list("")
    assert processes.signing_in(processes.open()) == []


def test_a_revoked_key_is_refused_although_its_authorisation_is_kept(processes: Processes, sandbox: B2Sandbox) -> None:
    old, new = (new_key(sandbox, name) for name in ("old", "new"))
    processes.open(**old).write("a", b"1", ANY)
    sandbox.store.key_id_to_key.pop(old["B2_APPLICATION_KEY_ID"])
    for token, key in [*sandbox.store.auth_token_to_key.items()]:
        if key.application_key_id == old["B2_APPLICATION_KEY_ID"]:
            del sandbox.store.auth_token_to_key[token]
    with pytest.raises(StorageKeyRefused, match="check B2_APPLICATION_KEY_ID and B2_APPLICATION_KEY"):
        processes.open(**old).read("a")
    assert processes.open(**new).read("a")[0] == b"1"


def new_key(sandbox: B2Sandbox, name: str) -> dict[str, str]:
    """Create an application key, as the owner of the account would; return its variables."""
    store = sandbox.store
    token = store.authorize_account("", store.account, store.key)["authorizationToken"]
    capabilities = ["listBuckets", "listFiles", "readFiles", "writeFiles", "deleteFiles"]
    made = store.create_key(store.API_URL, token, store.account, capabilities, name, None, None, None)
    return {"B2_APPLICATION_KEY_ID": made["applicationKeyId"], "B2_APPLICATION_KEY": made["applicationKey"]}


def test_without_a_place_for_it_nothing_is_kept(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (str(tmp_path / "file"), "relative", ""):
        assert processes.signing_in(processes.open(XDG_CACHE_HOME=place)) == SIGNING_IN
        assert processes.signing_in(processes.open(XDG_CACHE_HOME=place)) == SIGNING_IN


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_CACHE_HOME": "/cache", "HOME": "/srv/ann"}, "/cache/retake"),
        ({"XDG_CACHE_HOME": "cache", "HOME": "/srv/ann"}, "/srv/ann/.cache/retake"),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_where_it_is_kept(environ: dict[str, str], folder: str | None) -> None:
    assert cache_folder(environ) == folder
