"""The check at the start: each service is tried, one line names each that is missing, and none shows a password."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from local_servers import RunningServer
from service_world import NOWHERE, ServiceWorld

from retake.bucket.failing import FailingBucket, Fault
from retake.clock import FakeClock, SystemClock
from retake.errors import SettingsError
from retake.exit_codes import ExitCode
from retake.images.redis_calls import open_redis
from retake.images.settings import AccessKeys, ImageJobSettings, ImagesSettings, Places
from retake.images.start import ImageServices, ServicesAway, check_services, memory_warnings, open_services
from retake.images.store import JobStore
from retake.settings.shared import StorageSettings
from retake.testing.logs import CapturedLogs


def test_a_worker_whose_question_is_interrupted_says_so_by_its_exit_code() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(ours, "wb", buffering=0) as terminal, os.fdopen(theirs, "rb") as stdin:
        terminal.write(b"\x04")
        command = [sys.executable, "-m", "retake", "images", "worker"]
        ran = subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (130, "Queue (TextQueue, OutfitQueue) [TextQueue]: \n")


def opened(places: Places, folder: Path, seconds: float = 0.2, *, with_table: bool = True) -> ImageServices:
    settings = ImagesSettings(
        images=ImageJobSettings(start_seconds=seconds),
        storage=StorageSettings(url=f"file:{folder}/bucket"),
        places=places,
        keys=AccessKeys({"ann": "topsecretkey"}),
    )
    return open_services(settings, "test", with_table=with_table)


def missing(places: Places, folder: Path, **options: Any) -> ServicesAway:
    services = opened(places, folder, **options)
    try:
        with pytest.raises(ServicesAway) as raised:
            check_services(services)
    finally:
        services.close()
    assert "hunter2" not in str(raised.value)
    assert "topsecret" not in str(raised.value)
    return raised.value


def test_all_is_well(redis_url: str, rabbitmq_url: str, database_url: str, tmp_path: Path) -> None:
    services = opened(Places(redis_url, rabbitmq_url, database_url), tmp_path, 30)
    check_services(services)
    assert services.table
    assert services.table.open_rows("2026-01-01T00:00:00+00:00") == []
    assert not (tmp_path / "bucket").exists(), "it only looks"
    services.close()


def test_a_line_for_each_that_is_missing(tmp_path: Path) -> None:
    error = missing(NOWHERE, tmp_path / "no" / "such" / "folder")
    told = ("REDIS_URL", "RABBITMQ_URL", "file:", "pg_isready")
    assert [word for line, word in zip(str(error).splitlines(), told, strict=True) if word in line] == [*told]
    assert error.exit_code == ExitCode.TRY_LATER


def test_without_jobs2_postgresql_is_not_asked(redis_url: str, rabbitmq_url: str, tmp_path: Path) -> None:
    services = opened(Places(redis_url, rabbitmq_url, NOWHERE.database), tmp_path, 30, with_table=False)
    assert services.table is None
    check_services(services)
    services.close()


def test_a_service_that_comes_in_time_is_waited_for(
    redis_server: RunningServer, rabbitmq_url: str, tmp_path: Path
) -> None:
    redis_server.stop()
    services = opened(Places(redis_server.url, rabbitmq_url), tmp_path, 60)
    tried = threading.Event()

    class Noticing(SystemClock):
        def sleep(self, seconds: float) -> None:
            tried.set()
            super().sleep(seconds)

    errors: list[BaseException] = []

    def check() -> None:
        try:
            check_services(services, Noticing())
        except BaseException as error:  # noqa: BLE001  examined below
            errors.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    assert tried.wait(30)
    redis_server.start()
    thread.join(60)
    assert errors == []
    services.close()


def test_a_bucket_that_fails_for_good_is_reported(service_world: ServiceWorld) -> None:
    away = FailingBucket(service_world.bucket, Fault(times=1000))
    with pytest.raises(ServicesAway, match="the bucket"):
        check_services(service_world.services(bucket=away), FakeClock())
    shortly = FailingBucket(service_world.bucket, Fault(times=3))
    check_services(service_world.services(bucket=shortly), FakeClock())


def test_a_password_that_redis_refuses_is_a_setting_to_correct(
    redis_url: str, rabbitmq_url: str, tmp_path: Path
) -> None:
    wrong = "redis://:hunter2hunter2@" + redis_url.rpartition("@")[2]
    error = missing(Places(wrong, rabbitmq_url), tmp_path, seconds=20)
    assert "REDIS_URL" in str(error)
    assert error.exit_code == ExitCode.CONFIG


def test_a_redis_that_runs_and_refuses_is_not_told_to_be_away(
    redis_url: str, rabbitmq_url: str, tmp_path: Path
) -> None:
    error = missing(Places(redis_url.rpartition("/")[0] + "/99999", rabbitmq_url), tmp_path, seconds=0)
    assert "refuses: DB index is out of range" in str(error)
    assert error.exit_code == ExitCode.TRY_LATER


def test_a_user_that_rabbitmq_refuses_is_a_setting_to_correct(
    redis_url: str, rabbitmq_url: str, tmp_path: Path
) -> None:
    wrong = "amqp://nobody:hunter2hunter2@" + rabbitmq_url.rpartition("@")[2]
    error = missing(Places(redis_url, wrong), tmp_path, seconds=20)
    assert "RABBITMQ_URL" in str(error)
    assert error.exit_code == ExitCode.CONFIG


def test_a_url_that_cannot_be_used_is_a_setting_to_correct(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        opened(Places(NOWHERE.redis, NOWHERE.rabbitmq, "postgresql://h:port/x"), tmp_path)


def test_the_passwords_are_masked(tmp_path: Path) -> None:
    from retake.logs import masked

    opened(NOWHERE, tmp_path).close()
    assert "hunter2hunter2" not in str(masked("at redis://:hunter2hunter2@h"))
    assert "topsecretkey" not in str(masked("key topsecretkey"))


# --- a Redis that may forget ----------------------------------------------------------------------------------------


def test_a_redis_that_may_forget_jobs_is_warned_about(service_world: ServiceWorld) -> None:
    store, client = service_world.store, service_world.store.client
    before = {name: client.config_get(name)[name] for name in ("appendonly", "maxmemory-policy")}
    try:
        client.config_set("appendonly", "yes")
        client.config_set("maxmemory-policy", "noeviction")
        assert memory_warnings(store) == []
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
        first, second = memory_warnings(store)
        assert "appendonly yes" in first
        assert "allkeys-lru" in second
        with CapturedLogs() as log:
            check_services(service_world.services())
        assert log.warnings == [first, second]
    finally:
        for name, value in before.items():
            client.config_set(name, value)


def test_a_redis_that_does_not_tell_is_not_warned_about(service_world: ServiceWorld) -> None:
    client = service_world.store.client
    client.execute_command("ACL", "SETUSER", "hosted", "on", "nopass", "~*", "+@all", "-info", "-config")
    place = service_world.places.redis.rpartition("@")[2]
    try:
        with open_redis(f"redis://hosted:x@{place}") as hosted:
            assert hosted.ping()
            assert memory_warnings(JobStore(hosted, service_world.clock)) == []
    finally:
        client.execute_command("ACL", "DELUSER", "hosted")
