"""`retake check` of image jobs: sets against hashes against files against rows, on real servers."""

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result
from schemas import check_answer
from service_world import SETTINGS, ServiceWorld
from test_images_console import environment

from retake.bucket import ANY
from retake.checking import CheckReport, Severity
from retake.console.command import main
from retake.images import scripts
from retake.images.examinations import CheckedServices, check_images

A_JOB = "00000000-0000-4000-8000-000000000001"


def checked(world: ServiceWorld, *, repair: bool = False) -> CheckReport:
    services = CheckedServices(SETTINGS, world.store, world.bucket, world.table)
    return check_images(services, world.clock, repair=repair)


def call_check(world: ServiceWorld, *words: str, **environ: str) -> Result:
    return CliRunner().invoke(main, ["check", "--channel", "images", *words], env=environment(world, **environ))


def codes(report: CheckReport) -> set[str]:
    return {it.code for it in report.findings if not it.repaired}


def filled(world: ServiceWorld) -> str:
    """Create a job of each status, uploads, and a row to be brought in; return a ready job."""
    world.job()
    world.failed()
    world.claim(world.job())
    world.row()
    world.bucket.write("ann/photo.png", b"x", ANY)
    cached = world.ready()
    world.store.client.smove(scripts.READY, scripts.CACHED, cached)
    return world.ready()


def test_a_whole_service_has_no_finding(table_world: ServiceWorld) -> None:
    filled(table_world)
    report = checked(table_world)
    assert report.findings == []
    assert (report.whole, report.looked_at["jobs"], report.looked_at["rows"]) == (True, 5, 1)


def test_jobs_need_no_files_yet(table_world: ServiceWorld) -> None:
    assert checked(table_world).findings == []
    table_world.job()
    report = checked(table_world)
    assert (report.findings, report.looked_at["jobs"], report.looked_at["objects"]) == ([], 1, 0)


class Planted(NamedTuple):
    """A kind of damage, its code, and whether a repair fixes it. `plant` gets a ready job."""

    name: str
    plant: Callable[[ServiceWorld, str], Any]
    code: str
    repaired: bool = False
    also: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.name


def _pending_in_no_set(world: ServiceWorld, ready: str) -> None:
    world.store.client.srem(scripts.PENDING, world.job())


def _outfit_without_garment(world: ServiceWorld, ready: str) -> None:
    world.job(
        job_type="outfit_change", person_image_r2_key=f"jobs/{ready}/output.png", garment_image_r2_key="jobs/x.png"
    )


def _files_of_nobody(world: ServiceWorld, ready: str) -> None:
    world.bucket.write(f"jobs/{A_JOB}/output.png", b"x", ANY)
    world.clock.sleep(10 * SETTINGS.orphan_after_seconds + 1)
    world.store.touch(next(it for it in world.store.members(scripts.READY) if it.job_id == ready))


def _dead_worker(world: ServiceWorld, ready: str) -> None:
    job_id = world.job()
    world.claim(job_id)
    world.store.client.hset(job_id, "claim_until", str(1000 * (int(time.time()) - 10 * 30 - 5)))


def _row_without_job(world: ServiceWorld, ready: str) -> None:
    world.row()
    world.clock.sleep(10 * SETTINGS.resend_after_seconds + 1)


def _row_that_did_not_follow(world: ServiceWorld, ready: str) -> None:
    job_id = world.row()
    assert world.table
    world.table.bring_in(job_id, world.store.bring_in)
    world.ready(job_id)
    world.clock.sleep(10 * SETTINGS.resend_after_seconds + 1)


ROWS = [
    Planted("in no set", lambda world, ready: world.store.client.srem(scripts.READY, ready), "job-in-no-set", True),
    Planted("pending, in no set", _pending_in_no_set, "job-in-no-set", True),
    Planted(
        "in two sets", lambda world, ready: world.store.client.sadd(scripts.PENDING, ready), "job-in-wrong-set", True
    ),
    Planted(
        "moved to another set",
        lambda world, ready: world.store.client.smove(scripts.READY, scripts.FAILED, ready),
        "job-in-wrong-set",
        True,
        frozenset({"job-in-no-set"}),
    ),
    Planted(
        "a member without a hash",
        lambda world, ready: world.store.client.sadd(scripts.READY, A_JOB),
        "set-member-without-job",
        True,
    ),
    Planted(
        "a member that is not an id",
        lambda world, ready: world.store.client.sadd(scripts.FAILED, "garbage"),
        "set-member-without-job",
        True,
    ),
    Planted(
        "an evicted hash",
        lambda world, ready: world.store.client.delete(ready),
        "set-member-without-job",
        True,
    ),
    Planted("no hash", lambda world, ready: world.store.client.set(A_JOB, "x"), "job-invalid"),
    Planted(
        "a status of nobody's",
        lambda world, ready: world.store.client.hset(ready, "status", "sleeping"),
        "job-invalid",
    ),
    Planted(
        "a picture that is gone",
        lambda world, ready: world.bucket.delete(f"jobs/{ready}/output.png"),
        "job-file-missing",
    ),
    Planted("an outfit without its garment", _outfit_without_garment, "job-file-missing"),
    Planted("files of nobody", _files_of_nobody, "job-files-without-job", also=frozenset({"job-row-left-behind"})),
    Planted("a worker that died", _dead_worker, "job-claim-ran-out"),
    Planted("a row without its job", _row_without_job, "job-row-left-behind"),
    Planted(
        "a row that did not follow",
        _row_that_did_not_follow,
        "job-row-left-behind",
    ),
    Planted(
        "a row that is gone",
        lambda world, ready: world.store.client.hset(ready, "in_table", "1"),
        "job-row-missing",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_planted_damage_is_found_and_repaired_where_it_can_be(table_world: ServiceWorld, row: Planted) -> None:
    ready = filled(table_world)
    row.plant(table_world, ready)
    report = checked(table_world)
    assert row.code in codes(report)
    assert codes(report) <= {row.code, *row.also}
    assert all(it.what and it.todo for it in report.findings)
    repaired = checked(table_world, repair=True)
    assert (row.code in codes(repaired)) is not row.repaired
    assert (row.code in codes(checked(table_world))) is not row.repaired


def test_files_that_a_sweeper_removes_soon_are_a_note(table_world: ServiceWorld) -> None:
    filled(table_world)
    table_world.bucket.write(f"jobs/{A_JOB}/output.png", b"x", ANY)
    assert checked(table_world).findings == []
    table_world.clock.sleep(SETTINGS.orphan_after_seconds + 1)
    report = checked(table_world)
    assert {(it.code, it.level) for it in report.findings} >= {("job-files-without-job", Severity.NOTE)}


def test_other_keys_of_redis_and_other_objects_are_left_alone(table_world: ServiceWorld) -> None:
    filled(table_world)
    table_world.store.client.set("somebody:else", "x")
    table_world.bucket.write("readme.txt", b"x", ANY)
    (it,) = checked(table_world).findings
    assert (it.code, it.where, it.level) == ("unknown-object", "readme.txt", Severity.NOTE)


def test_the_command_checks_image_jobs(table_world: ServiceWorld, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    table_world.store.client.sadd(scripts.READY, str(uuid4()))
    bucket = {"IMAGES_STORAGE_URL": f"file:{tmp_path}/pictures"}
    result = call_check(table_world, "--json", **bucket)
    assert result.exit_code == 65, result.output
    document = json.loads(result.stdout)
    check_answer("check", document)
    assert {it["code"] for it in document["findings"]} == {"set-member-without-job"}


def test_without_its_bucket_nothing_is_compared(table_world: ServiceWorld, tmp_path: Any, monkeypatch: Any) -> None:
    """The bucket of the pipelines has none of its files."""
    monkeypatch.chdir(tmp_path)
    filled(table_world)
    result = call_check(table_world)
    assert result.exit_code == 78, result.output
    assert "IMAGES_STORAGE_URL is not set" in result.output


def test_where_no_pipeline_has_a_bucket_the_way_to_the_image_jobs_is_reported(
    table_world: ServiceWorld, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["check"], env=environment(table_world, RETAKE_STORAGE_URL="file:nowhere"))
    assert result.exit_code == 75
    assert "file:nowhere does not exist" in result.output
    assert "check --channel images" in result.output


def test_redis_that_is_away_is_reported(table_world: ServiceWorld, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    away = {"REDIS_URL": "redis://:hunter2hunter2@127.0.0.1:1/0", "IMAGES_STORAGE_URL": f"file:{tmp_path}/pictures"}
    result = call_check(table_world, **away)
    assert result.exit_code == 75
    assert "Redis does not answer" in result.output
    assert "hunter2" not in result.output


def test_a_password_that_redis_refuses_is_a_setting_to_correct(
    service_world: ServiceWorld, redis_url: str, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = "redis://:hunter2hunter2@" + redis_url.rpartition("@")[2]
    result = call_check(service_world, REDIS_URL=wrong, IMAGES_STORAGE_URL=f"file:{tmp_path}/pictures")
    assert result.exit_code == 78
    assert "correct REDIS_URL" in result.output


@pytest.mark.parametrize("key", ["9" * 5000, "../../x", "a\0b\n", b"a//\xff", "jobs/x/.retake"])
def test_a_file_that_no_bucket_can_hold_is_gone(service_world: ServiceWorld, key: str | bytes) -> None:
    world, job_id = service_world, service_world.ready()
    world.store.client.hset(job_id, "output_r2_key", key)
    report = checked(world)
    assert codes(report) == {"job-file-missing"}
    assert len(report.findings[0].where) < 200
