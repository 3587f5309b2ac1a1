"""Planted damage to a story's documents, groups, media and dead letters: each kind is found, and repaired or
reported."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from damage import Damage, Site, assert_found, trouble
from s3_server import new_bucket
from story_sites import (
    ARCHIVED,
    FAILED,
    FAILED_LATE,
    GEN,
    MIDJOURNEY,
    MP4,
    PNG,
    PRESENT,
    PUBLIC,
    READY,
    TOPICS,
    WAITING,
    content,
    edit,
    put,
    put_group,
    story_world,
)
from story_world import World

from retake.bucket import Bucket
from retake.bucket.b2.bucket import open_b2
from retake.bucket.directory import DirectoryBucket
from retake.bucket.memory import MemoryBucket
from retake.bucket.s3 import S3Bucket
from retake.checking import CODES
from retake.checking.codes import UNKNOWN_OBJECT
from retake.sandbox.b2 import B2Sandbox
from retake.story.documents import GROUP
from retake.story.examinations import examinations
from retake.story.settings import LEASE

OURS = {
    *("document-invalid", "document-missing", "task-lost", "file-missing", "status-contradicts", "unknown-step"),
    *("flag-up", "displaced-append", "empty-list-stale", "published-incomplete", "orphaned-work"),
    *("rollback-unfinished", "topics-odd", "invalid-copy", "group-incomplete", "group-twice", "archive-incomplete"),
    *("group-half-moved", "letter-copied", "empty-file", "content-invalid", "media-broken", "letter-report-invalid"),
    *("letter-without-report", "letter-file-missing", "letter-not-requeuable", "letter-unfinished", "letter-remains"),
    *("letter-outlived", "letter-file-unlisted", "work-of-nobody"),
}
FOREIGN = tuple(code for code in CODES if code not in OURS)
"""Findings of other examinations in a damaged document, which then disagrees with the ledger and the books."""

LETTER, LATE_LETTER = f"dead_letters/{FAILED}/", f"dead_letters/{FAILED_LATE}/"


def row(
    name: str,
    plant: Callable[[Site], object],
    code: str,
    where: str = "",
    *also: str,
    repaired: bool = False,
    media: bool = False,
) -> Damage:
    return Damage(name, plant, code, where, repaired, (*also, *FOREIGN), media)


def document(**changes: Any) -> Callable[[Site], None]:
    return lambda site: edit(site, MIDJOURNEY, **changes)


def gone(*keys: str) -> Callable[[Site], None]:
    def plant(site: Site) -> None:
        for key in keys:
            site.bucket.delete(key)

    return plant


def written(key: str, value: object) -> Callable[[Site], None]:
    return lambda site: put(site, key, value)


def no_generation(site: Site) -> None:
    edit(site, GEN, generation_id=None)


def moved(source: str, target: str, name: str, suffixes: tuple[str, ...] = GROUP) -> Callable[[Site], None]:
    def plant(site: Site) -> None:
        for suffix in suffixes:
            site.bucket.copy(f"{source}{name}.{suffix}", f"{target}{name}.{suffix}")
            site.bucket.delete(f"{source}{name}.{suffix}")

    return plant


def requeue_died(site: Site) -> None:
    """Copy the letter's files and stop, like a requeue that died."""
    for suffix in ("json", "png"):
        site.bucket.copy(f"{LATE_LETTER}{FAILED_LATE}.{suffix}", f"666/{FAILED_LATE}.{suffix}")


def removal_died(site: Site) -> None:
    edit(site, f"{LATE_LETTER}report.json", ended="requeued", ended_at_utc="2026-01-01T00:09:00Z")
    site.bucket.delete(f"{LATE_LETTER}{FAILED_LATE}.png")


def bare_rollback_letter(site: Site) -> None:
    (key,) = [it.key for it in site.bucket.list(f"dead_letters/{PRESENT}-") if it.key.endswith("report.json")]
    site.bucket.delete(key)


def aside(site: Site) -> None:
    put(site, f"{PUBLIC}.displaced-0", {"generation_id": [READY]})


TASK = {"task_id": "t", "task_type": "imagine", "requested_at_utc": "2026-01-01T00:00:00Z"}

ROWS = [
    # documents
    row("a document that is not JSON", written(MIDJOURNEY, b'{"status": '), "document-invalid", MIDJOURNEY),
    row("a status that there is not", document(status="asleep"), "document-invalid", MIDJOURNEY),
    row("an id that is not an id", lambda site: edit(site, GEN, generation_id="../x"), "document-invalid", GEN),
    row("the same key twice", written(PUBLIC, b'{"empty": [], "empty": []}'), "document-invalid", PUBLIC),
    row("topics that are no object", written(TOPICS, {"topics": ["a"]}), "document-invalid", TOPICS),
    row("a topic that is not text", written(TOPICS, {"topics": {PRESENT: 7}}), "topics-odd", TOPICS),
    row("no topics", gone(TOPICS), "topics-odd", TOPICS),
    row("no config_midjourney.json", gone(MIDJOURNEY), "document-missing", MIDJOURNEY, "file-missing"),
    row("no config_gen.json", gone(GEN), "document-missing", GEN, "group-incomplete"),
    row("a task's id is gone", document(runway_task=None), "task-lost", MIDJOURNEY),
    row("two tasks at once", document(midjourney_task=TASK), "status-contradicts", MIDJOURNEY),
    row("the flag of a picture that is there", document(generation=True), "status-contradicts", MIDJOURNEY),
    row("results are gone", document(midjourney_results={}), "status-contradicts", MIDJOURNEY),
    row("an end that did not come", document(failed_step="runway"), "status-contradicts", MIDJOURNEY),
    row("a pending call and a task", document(pending_call={"step": "runway"}), "status-contradicts", MIDJOURNEY),
    row("a step that there is not", document(retries={"runwei": 2}), "unknown-step", MIDJOURNEY),
    row("a crashed tick's flag", lambda site: edit(site, PUBLIC, processing_lock=True), "flag-up", PUBLIC),
    row("a displaced append", aside, "displaced-append", "displaced-0", repaired=True),
    row("a lost append", lambda site: edit(site, GEN, remembered=[READY]), "displaced-append", PUBLIC, repaired=True),
    row("a wrong list of folders", lambda site: edit(site, PUBLIC, empty=["444/"]), "empty-list-stale", repaired=True),
    row("a published id without files", lambda site: edit(site, PUBLIC, generation_id=["x"]), "published-incomplete"),
    row("work of no generation", no_generation, "orphaned-work", MIDJOURNEY, "group-incomplete"),
    row("a rollback that died", document(discard=["mp4"]), "rollback-unfinished", MIDJOURNEY),
    row("an invalid copy", written("unreadable/config_gen.json." + "0" * 16, b"{"), "invalid-copy", "unreadable/"),
    # the files of the generation under way
    row("its text is gone", gone(f"666/{PRESENT}.json"), "file-missing", f"666/{PRESENT}.json"),
    row("its picture is gone", gone(f"666/{PRESENT}.png"), "file-missing", f"666/{PRESENT}.png"),
    row("it has files elsewhere", written(f"555/{PRESENT}.png", PNG), "group-twice", f"555/{PRESENT}"),
    # groups
    row("no video in 444/", gone(f"444/{READY}.mp4"), "group-incomplete", f"444/{READY}"),
    row("no text in 555/", gone(f"555/{WAITING}.json"), "group-incomplete", f"555/{WAITING}"),
    row("a stray picture in 666/", written("666/stray.png", PNG), "group-incomplete", "666/stray"),
    row("no picture in the archive", gone(f"archive/{ARCHIVED}.png"), "archive-incomplete", f"archive/{ARCHIVED}"),
    row("in the archive and in 444/", lambda site: put_group(site, "444/", ARCHIVED), "group-twice", ARCHIVED),
    row("a move that died", moved("555/", "444/", WAITING, ("png",)), "group-half-moved", WAITING),
    row("a requeue that died", requeue_died, "letter-copied", f"666/{FAILED_LATE}"),
    row("an empty video", written(f"444/{READY}.mp4", b""), "empty-file", f"444/{READY}.mp4"),
    row("a text without a key", written(f"555/{WAITING}.json", {"topic": "x"}), "content-invalid", WAITING),
    row("a text that is not JSON", written(f"archive/{ARCHIVED}.json", b"<html>"), "content-invalid", ARCHIVED),
    row("another one's text", written(f"444/{READY}.json", content(WAITING)), "content-invalid", READY),
    row("a cut picture", written(f"archive/{ARCHIVED}.png", PNG[:-5]), "media-broken", ARCHIVED, media=True),
    row("a damaged picture", written(f"666/{PRESENT}.png", PNG.replace(b"IDAT", b"IDAR")), "media-broken", media=True),
    row("a cut video", written(f"555/{WAITING}.mp4", MP4[:-1]), "media-broken", WAITING, media=True),
    row("an error page for a video", written(f"444/{READY}.mp4", b"<html>502"), "media-broken", READY, media=True),
    row(
        "a cut picture in a letter",
        written(f"{LATE_LETTER}{FAILED_LATE}.png", PNG[:-5]),
        "media-broken",
        LATE_LETTER,
        media=True,
    ),
    # dead letters
    row("a letter without its report", gone(f"{LETTER}report.json"), "letter-without-report", LETTER),
    row("a report that is not JSON", written(f"{LETTER}report.json", b"{"), "letter-report-invalid", LETTER),
    row("a report without a key", lambda site: edit(site, f"{LETTER}report.json", files=None), "letter-report-invalid"),
    row(
        "another one's report",
        lambda site: edit(site, f"{LETTER}report.json", generation_id="x"),
        "letter-report-invalid",
    ),
    row(
        "a letter lacks a file",
        gone(f"{LATE_LETTER}{FAILED_LATE}.png"),
        "letter-file-missing",
        LATE_LETTER,
    ),
    row(
        "a letter lacks its text",
        gone(f"{LATE_LETTER}{FAILED_LATE}.json"),
        "letter-not-requeuable",
        LATE_LETTER,
        "letter-file-missing",
    ),
    row("a letter lacks its document", gone(f"{LETTER}config_midjourney.json"), "letter-not-requeuable", LETTER),
    row(
        "a letter's document is invalid",
        written(f"{LETTER}config_midjourney.json", {"status": "asleep"}),
        "letter-not-requeuable",
        LETTER,
    ),
    row("a file of somebody's", written(f"{LETTER}notes.txt", b"look here"), "letter-file-unlisted", "notes.txt"),
    row("a removal that died", removal_died, "letter-remains", LATE_LETTER, repaired=True),
    row(
        "a letter whose generation is done", lambda site: put_group(site, "archive/", FAILED), "letter-outlived", LETTER
    ),
    row("a rollback's letter that was not finished", bare_rollback_letter, "letter-unfinished", PRESENT),
    row(
        "a letter under way",
        written(f"dead_letters/{PRESENT}/config_midjourney.json", {}),
        "letter-unfinished",
        f"dead_letters/{PRESENT}/",
    ),
    row(
        "nobody's work is invalid",
        written("dead_letters/before-20251231-2359/config_midjourney.json", b"["),
        "letter-report-invalid",
        "before-",
    ),
    # no damage, but worth knowing
    row("somebody's file", written("444/holiday.jpg", b"x"), UNKNOWN_OBJECT, "444/holiday.jpg"),
    row("a folder in a folder", written("archive/old/1.png", b"x"), UNKNOWN_OBJECT, "archive/old/1.png"),
]

STORED = [it for it in ROWS if it.name in ("a cut picture", "a displaced append", "a removal that died", "no topics")]
"""Rows for stores over a network: ranges, an exchange, deletions, and missing objects."""


@pytest.fixture(scope="module")
def world() -> World:
    return story_world()


def copy_of(world: World) -> World:
    """Return a copy of the bucket, to be damaged."""
    copied = World()
    copied.settings, copied.clock = world.settings, world.clock
    for key, data in world.everything().items():
        copied.put(key, data)
    return copied


@pytest.mark.parametrize("damage", ROWS, ids=str)
def test_damage_is_found_in_memory(damage: Damage, world: World) -> None:
    assert_found(damage, Site(copy_of(world)))


@pytest.mark.parametrize("damage", ROWS, ids=str)
def test_damage_is_found_in_a_directory(damage: Damage, world: World, tmp_path: Path) -> None:
    assert_found(damage, Site(world, DirectoryBucket(str(tmp_path / "bucket"))))


@pytest.fixture(scope="module")
def b2() -> Iterator[B2Sandbox]:
    with B2Sandbox() as sandbox:
        yield sandbox


@pytest.mark.parametrize("damage", STORED, ids=str)
def test_damage_is_found_on_b2(damage: Damage, world: World, b2: B2Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    for name, value in b2.environment().items():
        monkeypatch.setenv(name, value)
    assert_found(damage, Site(world, b2_bucket(b2, damage)))


def b2_bucket(b2: B2Sandbox, damage: Damage) -> Bucket:
    return open_b2(b2.storage_url(damage.name.replace(" ", "-")), environ=b2.environment())


@pytest.mark.parametrize("damage", STORED, ids=str)
def test_damage_is_found_on_s3(
    damage: Damage, world: World, s3_endpoint: str, s3_keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    assert_found(damage, Site(world, S3Bucket(new_bucket(s3_endpoint))))


def test_a_healthy_bucket_has_no_finding(world: World) -> None:
    report = Site(world).check(media=True)
    assert trouble(report) == []
    assert {it.code for it in report.findings if it.code in OURS} == {"work-of-nobody"}
    looked_at = {key: report.looked_at[key] for key in ("documents", "groups", "media", "dead_letters")}
    assert looked_at == {"documents": 3, "groups": 4, "media": 9, "dead_letters": 4}


def test_after_each_tick_and_each_end_nothing_is_found() -> None:
    """The ids of finished groups, the flag between two ticks, and lists that are rewritten with the next generation."""
    world = World(max_tasks_per_run=1, max_retries=1)
    world.vendors.plan("fetch", "running", "error")
    world.vendors.plan("create", "refused", "ok", "rejected")
    for _ in range(12):
        world.tick()
        found = [it.code for it in Site(world).check().findings if it.code in OURS]
        assert found == []
    assert {"done", "failed"} <= {*world.ended}


def test_a_flag_that_a_tick_holds_up_is_not_a_finding(world: World) -> None:
    site = Site(copy_of(world))
    edit(site, PUBLIC, processing_lock=True)
    lease = site.bucket.lease(LEASE, "somebody")
    try:
        assert site.check().complete
        assert not [it for it in site.check().findings if it.code == "flag-up"]
        edit(site, PUBLIC, empty=["444/"])
        (stale,) = [it for it in site.check(repair=True).findings if it.code == "empty-list-stale"]
        assert not stale.repaired
        assert "not repaired: the lease" in stale.todo
    finally:
        lease.release()


def test_a_repair_of_the_list_keeps_what_the_publisher_appended(world: World) -> None:
    site = Site(copy_of(world))
    aside(site)
    edit(site, PUBLIC, generation_id=[WAITING], empty=["666/", "444/"])
    done = site.check(repair=True).done
    assert len(done) == 2
    public = site.world.documents.public
    assert sorted(public.published) == [READY, WAITING]
    assert public.empty == ["666/"]
    assert not site.bucket.list(f"{PUBLIC}.displaced")


def test_folders_may_have_other_names_and_channels_a_part_of_their_own(world: World) -> None:
    paths = world.settings.paths._replace(archive_folder="old/", folder_444="next/", config_gen="state/gen.json")
    settings = world.settings._replace(paths=paths, channels=("en",))
    bucket = MemoryBucket()
    site = Site(World(bucket), settings=settings)
    put(site, "en/state/gen.json", {})
    put_group(site, "en/old/", ARCHIVED)
    put_group(site, "en/next/", READY, ("json", "png"))
    report = site.check()
    assert [(it.code, it.where) for it in trouble(report)] == [("group-incomplete", f"en/next/{READY}.json")]
    assert report.looked_at["groups"] == 2
    assert UNKNOWN_OBJECT not in {it.code for it in report.findings}


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("config/config_public.json.displaced-3-17", True),
        ("spend/20260101-0000.json", True),
        ("spend/20260101-0000.txt", False),
        ("unreadable/config_gen.json.0123456789abcdef", True),
        ("unreadable/config_gen.json", False),
        ("dead_letters/x/report.json", True),
        ("dead_letters/report.json", False),
        ("archive/20260101-0000.mp4", True),
        ("archive/20260101-0000.mp4.part", False),
        ("666/a b.json", False),
        ("runs/run-1.json", False),
    ],
)
def test_keys_that_a_story_writes_are_known(key: str, known: bool, world: World) -> None:
    for prefix in ("", "en/"):
        those = examinations(prefix, world.settings, world.clock)
        assert any(it.knows(prefix + key) for it in those) == known
        assert not any(it.knows("fr/" + key) for it in those)


def test_each_code_of_the_section_has_a_row() -> None:
    assert {it.code for it in ROWS} | {"work-of-nobody"} == OURS | {UNKNOWN_OBJECT}
    assert {*OURS} <= {*CODES}
