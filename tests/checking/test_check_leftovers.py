"""What crashes leave behind, bad input, and what findings never show: secrets and signed links."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from damage import Damage, Site, assert_found, busy_world
from late_b2 import LateB2
from money import BOOK, DOCUMENT, FIRST, change, write
from reading_world import ask, context_of, run_console, shown
from s3_server import KEYS as S3_KEYS
from s3_server import new_bucket
from test_check_money import ROWS as MONEY
from test_check_reliability import ROWS as RELIABILITY
from test_check_reliability import watched_world

from retake.bucket import ANY
from retake.bucket.claims.lease import LeaseClock
from retake.bucket.claims.protocol import take
from retake.bucket.directory import DirectoryBucket
from retake.bucket.failing import FailingBucket, Fault
from retake.bucket.memory import MemoryBucket
from retake.bucket.s3 import S3Bucket
from retake.console.check import command
from retake.errors import StorageKeyRefused
from retake.exit_codes import ExitCode

# --- a directory ---


def left_draft(site: Site) -> None:
    """Leave a draft whose writer died two days before the time of the check."""
    draft = Path(str(site.bucket.url).removeprefix("file:")) / ".retake" / "tmp" / "1-9f3c"
    draft.write_bytes(b"half")
    os.utime(draft, (time.time() - 200_000,) * 2)


def left_scratch(site: Site) -> None:
    """Leave an object of a doctor that died. The check's clock stands at the start of 2026, and the object is older."""
    root = Path(str(site.bucket.url).removeprefix("file:"))
    site.bucket.write("doctor-0123456789abcdef", b"x", ANY)
    os.utime(root / "doctor-0123456789abcdef", (1_000_000_000,) * 2)


@pytest.mark.parametrize(
    "row",
    [
        Damage("a draft", left_draft, "draft-left", ".retake/tmp/1-9f3c", repaired=True),
        Damage("a doctor's scratch object", left_scratch, "scratch-left", "doctor-0123456789abcdef", repaired=True),
    ],
    ids=str,
)
def test_what_is_left_in_a_directory(row: Damage, tmp_path: Path) -> None:
    assert_found(row, Site(busy_world(), DirectoryBucket(str(tmp_path / "bucket"))))


def test_what_a_living_process_may_hold_is_neither_reported_nor_touched(tmp_path: Path) -> None:
    site = Site(busy_world(), DirectoryBucket(str(tmp_path / "bucket")))
    lease = site.bucket.lease("other", "somebody:1")
    room = site.bucket.set_aside("666/a.json", 100)
    site.bucket.write("doctor-0123456789abcdef", b"x", ANY)
    report = site.check(repair=True)
    assert [it.code for it in report.findings if it.code.endswith("-left") or it.where.startswith("doctor")] == []
    lease.check()
    lease.release()
    room.release()


# --- B2 and S3 ---


@pytest.fixture
def b2() -> Iterator[LateB2]:
    place = LateB2()
    with place.sandbox:
        yield place


@pytest.fixture
def s3(s3_endpoint: str, s3_keys: None) -> S3Bucket:
    return S3Bucket(new_bucket(s3_endpoint))


def test_a_lease_that_ran_out_on_b2(b2: LateB2) -> None:
    def died(site: Site) -> None:
        take(b2.bucket()._connect(""), "story", "gone:1", clock=LeaseClock())
        b2.late_s += 181

    row = Damage("a lease", died, "lease-ran-out", ".retake/leases/story/", repaired=True)
    assert_found(row, Site(busy_world(), b2.bucket()))


def begin_upload(place: LateB2, key: str, hours_ago: float) -> None:
    """Begin to upload a large file and never finish, as a process that dies."""
    store = place.sandbox.store
    token = store.authorize_account("", store.account, store.key)["authorizationToken"]
    bucket_id = store.bucket_name_to_bucket["retake"].bucket_id
    name = place.bucket()._name(key)
    store.start_large_file(store.API_URL, token, bucket_id, name, "video/mp4", {})
    for file in store.bucket_name_to_bucket["retake"].file_id_to_file.values():
        file.upload_timestamp -= hours_ago * 3600 * 1000 if file.name == name else 0


@pytest.mark.parametrize("key", ["666/20260101-0000.mp4", "other-666/x.mp4"])
def test_an_upload_to_b2_that_was_never_finished(key: str, b2: LateB2) -> None:
    def died(site: Site) -> None:
        begin_upload(b2, key, hours_ago=25)

    assert_found(Damage("an upload", died, "draft-left", key, repaired=True), Site(busy_world(), b2.bucket()))


def test_an_upload_to_b2_that_may_still_go_on_is_neither_reported_nor_touched(b2: LateB2) -> None:
    site = Site(busy_world(), b2.bucket())
    begin_upload(b2, "666/20260101-0000.mp4", hours_ago=23)
    assert not [it for it in site.check(repair=True).findings if it.code == "draft-left"]
    begin_upload(b2, "666/20260101-0000.mp4", hours_ago=2)  # both are two hours older by then
    assert [it.where for it in site.check().findings if it.code == "draft-left"] == ["666/20260101-0000.mp4"]


@pytest.mark.parametrize("store", ["b2", "s3"])
def test_an_object_of_others_among_the_claims(store: str, b2: LateB2, s3: S3Bucket) -> None:
    def plant(site: Site) -> None:
        claims = (b2.bucket() if store == "b2" else s3)._connect("")
        claims.claim("leases/other/README.txt")

    row = Damage("a stranger", plant, "claim-foreign", ".retake/leases/other/README.txt")
    assert_found(row, Site(busy_world(), b2.bucket() if store == "b2" else s3))


CLOUD_ROWS = [
    it for it in MONEY if it.name in ("an intent with two bills", "a book is gone", "a letter's record is gone")
]
CLOUD_ROWS += [it for it in RELIABILITY if it.name in ("a mode that was not copied", "an index with other sums")]


@pytest.mark.parametrize("row", CLOUD_ROWS, ids=str)
@pytest.mark.parametrize("store", ["b2", "s3"])
def test_damage_is_found_and_repaired_in_the_clouds(row: Damage, store: str, b2: LateB2, s3: S3Bucket) -> None:
    assert_found(row, Site(watched_world(), b2.bucket() if store == "b2" else s3))


# --- bad input ---


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    site = Site(busy_world(), DirectoryBucket(str(tmp_path / "bucket")))
    (tmp_path / "bucket" / BOOK).chmod(0)
    report = site.check()
    assert report.exit_code == ExitCode.TRY_LATER
    assert any(it.code == "unreadable" and BOOK in it.what for it in report.findings)


@pytest.mark.parametrize("key", [BOOK, f"spend/{FIRST}.json", DOCUMENT, "alerts/state.json", "kpi/story.json"])
def test_an_object_that_the_key_may_not_read_is_named_and_the_rest_is_looked_at(key: str) -> None:
    world = watched_world()
    site = Site(world, MemoryBucket())
    refused = Fault(lambda: StorageKeyRefused(f"cannot read {key}: AccessDenied"), operation="read", key=key, times=999)
    change(site, "mode/state.json", lambda it: it["hand"].update(mode=9))
    site.bucket = FailingBucket(site.bucket, refused)
    report = site.check()
    assert report.exit_code == ExitCode.TRY_LATER
    assert any(it.code == "unreadable" and key in it.what for it in report.findings)
    assert "mode-unreadable" in {it.code for it in report.findings}


def test_a_key_of_b2_that_may_list_and_not_read(b2: LateB2) -> None:
    site = Site(busy_world(), b2.bucket())
    b2.sandbox.order("b2-download=403")
    report = site.check(repair=True)
    assert report.exit_code == ExitCode.TRY_LATER
    told = " ".join(it.what for it in report.findings if it.code == "unreadable")
    assert f"/spend/{FIRST}.json in the bucket retake" in told
    assert all("give Retake's key read access" in it.todo for it in report.findings if it.code == "unreadable")
    assert report.done == []


def test_a_bucket_that_cannot_be_listed_is_reported_by_name(tmp_path: Path) -> None:
    ended = run_check(tmp_path, f"file:{tmp_path}/not/there")
    assert ended.returncode == ExitCode.TRY_LATER
    assert f"{tmp_path}/not, where the bucket's folder should be, is not there" in ended.stderr.decode()


def test_a_bucket_that_b2_does_not_have(tmp_path: Path, b2: LateB2) -> None:
    url = b2.sandbox.storage_url("x", bucket="nobodys")
    ended = run_check(tmp_path, url, **b2.sandbox.environment())
    assert ended.returncode == ExitCode.TRY_LATER
    assert "nobodys" in ended.stderr.decode()


def test_a_bucket_that_s3_does_not_have(tmp_path: Path, s3_endpoint: str) -> None:
    ended = run_check(tmp_path, f"s3://nobodys/place?endpoint={s3_endpoint}", **S3_KEYS)
    assert ended.returncode == ExitCode.TRY_LATER
    assert "there is no such bucket" in ended.stderr.decode()


@pytest.mark.parametrize("stranger", [False, True])
def test_a_bucket_with_nothing_of_ours(tmp_path: Path, stranger: bool) -> None:
    root = tmp_path / "bucket"
    root.mkdir()
    if stranger:
        (root / "holiday.jpg").write_bytes(b"x")
    ended = run_check(tmp_path, f"file:{root}", "--json")
    answer = json.loads(ended.stdout)
    assert (ended.returncode, answer["whole"]) == (ExitCode.BAD_STATE, False)
    [first, *others] = answer["findings"]
    assert (first["code"], first["what"]) == ("nothing-here", "no document, no run and no group is there")
    assert str(root) in first["where"]
    assert [it["where"] for it in others] == (["holiday.jpg"] if stranger else [])


# --- secrets ---

SECRET, LINK = "sk-" + "aB3" * 12, "https://cdn.example/a.png?X-Amz-Signature=5ecre7s1gna7ure"
PLANTED = f"{LINK} Authorization: Bearer {SECRET}"


def planted_documents(site: Site) -> None:
    """Put secrets and signed links wherever a finding may quote a document."""
    call = {"price_usd": PLANTED, "outcome": PLANTED, "step": PLANTED, "task_id": LINK, "requested_at_utc": PLANTED}
    for number in range(2):
        name = f"20250101-000{number}"
        record = {"generation_id": PLANTED, "outcome": PLANTED, "ended_at_utc": PLANTED, "paid_calls": [call, call]}
        write(site, f"spend/{name}.json", record)
    write(site, "dead_letters/20250101-0005/report.json", {"generation_id": "20250101-0005", "paid_calls": [call]})
    change(site, DOCUMENT, lambda it: it.update(paid_calls=[call], last_error={"message": PLANTED}))
    write(site, "caps/2026-01-01.json", {"pipelines": {"story": {"settled_usd": PLANTED}}})
    write(site, "caps/2026-01-02.json", {"pipelines": {PLANTED: {"open": {PLANTED: PLANTED}}}})
    change(site, "alerts/state.json", lambda it: it["alerts"][0].update(level=PLANTED))
    write(site, "mode/state.json", {"hand": {PLANTED: 1}})
    write(site, "breakers/piapi.json", {"failures": [PLANTED]})
    write(site, "breakers/chat.json", {"open_until": PLANTED})
    write(site, "kpi/story.json", {"version": 1, "taken_at": PLANTED, "segments": {}})
    write(site, "kpi/caps.json", f'{{"{PLANTED}'.encode())


@pytest.mark.parametrize("repair", [False, True])
def test_no_finding_has_a_secret_or_a_signed_link(repair: bool) -> None:
    world = watched_world()
    site = Site(world, MemoryBucket())
    planted_documents(site)
    refused = Fault(lambda: StorageKeyRefused(f"cannot read: {PLANTED}"), operation="read", key="runs/index/ended.json")
    answer = ask(command, context_of(world, FailingBucket(site.bucket, refused)), media=True, repair=repair)
    told = shown(answer) + json.dumps(answer.document)
    assert "spend-record-invalid" in told
    assert "breaker-unreadable" in told
    for secret in (SECRET, SECRET[4:], "5ecre7s1gna7ure", "Signature="):
        assert secret not in told, told[max(0, told.index(secret) - 300) : told.index(secret) + 100]


def run_check(folder: Path, url: str, *options: str, **environ: str):  # type: ignore[no-untyped-def]  # a process
    """Run the real command on the bucket at `url`."""
    settings = folder / "settings.json"
    settings.write_text(json.dumps({"STORAGE": {"url": url}}))
    env = {"PATH": os.environ["PATH"], "RETAKE_CONFIG": str(settings), **environ}
    return run_console("check", *options, env=env)
