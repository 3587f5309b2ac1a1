"""The real servers of `images up`: after being killed and restarted they still have their data."""

import asyncio
import json
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aio_pika
import psycopg
import pytest
import redis
from local_servers import RunningServer, or_skipped
from rabbit_server import RabbitServer
from test_up_children import alive
from waiting import eventually

from retake.clock import SystemClock
from retake.errors import StateError, StorageError
from retake.exit_codes import ExitCode
from retake.images.rows import TableAway
from retake.images.table import JobTable
from retake.images.up import rabbit_server as images_rabbit_server
from retake.images.up.folder import DataFolder
from retake.images.up.postgres_server import PostgresServer, is_of
from retake.images.up.programs import MissingProgram, Programs

QUORUM = {"x-queue-type": "quorum"}


def test_redis_keeps_what_it_answered_through_sigkill(redis_server: RunningServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.set("kept", "1")
        redis_server.kill()
        redis_server.start()
        assert client.get("kept") == b"1"
        assert client.config_get("appendfsync", "maxmemory-policy", "appendonly") == {
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "appendonly": "yes",
        }


def test_redis_refuses_clients_without_the_password(redis_server: RunningServer) -> None:
    address = redis_server.url.partition("@")[2]
    with redis.Redis.from_url(f"redis://{address}") as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_rabbitmq_keeps_a_confirmed_message_through_sigkill(new_rabbit: RabbitServer) -> None:
    async def send() -> None:
        async with await aio_pika.connect(new_rabbit.url) as connection, connection.channel() as channel:
            await channel.declare_queue("TextQueue", durable=True, arguments=QUORUM)
            message = aio_pika.Message(b"kept", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, "TextQueue")

    async def receive() -> bytes:
        async with await aio_pika.connect(new_rabbit.url) as connection, connection.channel() as channel:
            queue = await channel.get_queue("TextQueue")
            message = await queue.get(timeout=20)
            assert message is not None
            await message.ack()
            return message.body

    asyncio.run(send())
    new_rabbit.wait_for_queue("TextQueue")
    new_rabbit.kill()
    new_rabbit.start()
    assert once_recovered(receive) == b"kept"


def once_recovered(receive: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
    """Return what `receive` returns. A RabbitMQ that already answers may still be recovering its queues."""
    end = time.monotonic() + 60
    while True:
        try:
            return asyncio.run(receive())
        except (aio_pika.exceptions.AMQPError, TimeoutError):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def test_rabbitmq_makes_its_user_also_after_a_first_start_that_was_killed(tmp_path: Path) -> None:
    with or_skipped():
        programs = Programs(os.environ)
        server = images_rabbit_server.RabbitServer(DataFolder(tmp_path), programs, os.environ)
    started = RunningServer(server, tmp_path)

    async def connect() -> None:
        await (await aio_pika.connect(server.url)).close()

    try:
        # It was killed between creating the virtual host and the user, so only the host exists.
        control = programs.rabbitmq().with_name("rabbitmqctl")
        command = [control, "--quiet", "delete_user", "retake"]
        subprocess.run(command, env=server.commands()[-1].environ, check=True, timeout=60)
        started.stop()
        started.start()
        asyncio.run(connect())
    finally:
        started.end()


def test_postgres_runs_where_its_user_cannot_go_and_continues_after_sigkill(tmp_path: Path) -> None:
    place = tmp_path / "not for others" / "données"
    with or_skipped():
        server = PostgresServer(DataFolder(place), Programs(os.environ), os.environ)
    place.parent.chmod(0o700)
    started = RunningServer(server, place)
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1")
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
            assert connection.execute("SHOW unix_socket_directories").fetchone() == ("",)
        below = [
            int(pid) for it in Path(f"/proc/{started.pid}/task").glob("*/children") for pid in it.read_text().split()
        ]
        assert below
        started.kill()
        eventually(lambda: not any(map(alive, below)))  # PostgreSQL does not start beside leftovers of the old one
        pid_file = place / "postgres/data/postmaster.pid"
        text = pid_file.read_text().split("\n", 1)[1]
        pid_file.write_text(f"{os.getpid()}\n{text}")  # the killed server's pid now belongs to another program
        started.start()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT * FROM kept").fetchall() == [(1,)]
    finally:
        started.end()


def test_a_password_that_postgres_refuses_is_a_setting_to_correct(tmp_path: Path) -> None:
    with or_skipped():
        server = PostgresServer(DataFolder(tmp_path), Programs(os.environ), os.environ)
    started = RunningServer(server, tmp_path)
    try:
        wrong = JobTable("postgresql://retake:hunter2hunter2@" + server.url.rpartition("@")[2], SystemClock())
        with pytest.raises(TableAway, match="password authentication failed") as raised:
            wrong.prepare()
        assert raised.value.exit_code == ExitCode.CONFIG
        assert "hunter2" not in str(raised.value)
    finally:
        started.end()


def test_the_pid_of_a_killed_postgres_may_be_that_of_another_one(tmp_path: Path) -> None:
    """This happens after a power cut on a machine that runs several."""
    with or_skipped():
        places = [tmp_path / name for name in ("one", "two")]
        servers = [PostgresServer(DataFolder(it), Programs(os.environ), os.environ) for it in places]
    started: list[RunningServer] = []
    try:
        started += [RunningServer(server, place) for server, place in zip(servers, places, strict=True)]
        pid_file = places[0] / "postgres/data/postmaster.pid"
        text = pid_file.read_text().split("\n", 1)[1]
        started[0].stop()
        pid_file.write_text(f"{started[1].pid}\n{text}")
        shutil.chown(pid_file, places[0].joinpath("postgres").stat().st_uid)
        started[0].start()
        for server in servers:
            psycopg.connect(server.url).close()
    finally:
        for it in started:
            it.end()


def test_incomplete_data_of_postgres_are_reported(tmp_path: Path) -> None:
    with or_skipped():
        server = PostgresServer(DataFolder(tmp_path), Programs(os.environ), os.environ)
    data = tmp_path / "postgres/data"
    (data / "base").mkdir(parents=True)
    with pytest.raises(StorageError, match="postgres/data is incomplete, PG_VERSION is missing: restore it, or remove"):
        server.prepare()
    shutil.rmtree(data)
    data.touch()
    with pytest.raises(StorageError, match="is incomplete"):
        server.prepare()


def test_a_missing_server_is_named_with_what_to_type(tmp_path: Path) -> None:
    programs = Programs({"PATH": str(tmp_path)}, root=tmp_path)
    for find, package in (
        (programs.redis, "redis-server"),
        (programs.rabbitmq, "rabbitmq-server"),
        (programs.epmd, "rabbitmq-server"),
        (programs.postgres, "postgresql"),
    ):
        with pytest.raises(MissingProgram) as raised:
            find()
        assert str(raised.value) == f"not installed: {package}; type: sudo apt install {package}"
        assert raised.value.exit_code == 69


def test_programs_are_found_where_debian_puts_them(tmp_path: Path) -> None:
    for name in (
        *("usr/bin/redis-server", "usr/bin/epmd", "usr/lib/rabbitmq/bin/rabbitmq-server"),
        *(f"usr/lib/postgresql/{version}/bin/{name}" for version in (9, 15, 17) for name in ("initdb", "postgres")),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    programs = Programs({"PATH": ""}, root=tmp_path)
    assert programs.redis() == tmp_path / "usr/bin/redis-server"
    assert programs.rabbitmq() == tmp_path / "usr/lib/rabbitmq/bin/rabbitmq-server"
    assert programs.epmd() == tmp_path / "usr/bin/epmd"
    assert programs.postgres() == tmp_path / "usr/lib/postgresql/17/bin"
    assert programs.postgres("15") == tmp_path / "usr/lib/postgresql/15/bin"  # the one that created the data


def test_ports_and_secrets_are_the_same_the_next_time_and_private(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path / "images"), DataFolder(tmp_path / "images")
    assert (first.port("redis"), first.secret("key")) == (second.port("redis"), second.secret("key"))
    assert first.port("redis") != first.port("rabbitmq")
    assert stat.S_IMODE((tmp_path / "images/secrets.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "images").stat().st_mode) == 0o700


@pytest.mark.parametrize("secret", [None, 5, "", "a b", "p@ss", "a/b", "ä", ["x"]])
def test_a_secret_that_cannot_stand_in_a_url_is_reported(tmp_path: Path, secret: Any) -> None:
    (tmp_path / "secrets.json").write_text(json.dumps({"redis": secret}))
    with pytest.raises(StateError, match=r"secrets.json: redis must be a text of letters, digits, _ and -; correct it"):
        DataFolder(tmp_path).secret("redis")


@pytest.mark.parametrize("port", [True, 0, -5, 99999, 1e30, None, "x"])
def test_an_invalid_port_is_replaced(tmp_path: Path, port: Any) -> None:
    (tmp_path / "ports.json").write_text(json.dumps({"redis": port}))
    assert 17_000 <= DataFolder(tmp_path).port("redis") < 25_000


def test_secrets_that_are_no_json_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text("{")
    with pytest.raises(StateError, match=r"secrets\.json"):
        DataFolder(tmp_path).secret("key")
    assert (tmp_path / "secrets.json").read_text() == "{"


@pytest.mark.parametrize(
    ("major", "told", "of_it"),
    [
        ("15", "postgres (PostgreSQL) 15.16 (Debian 15.16-0+deb12u1)\n", True),
        ("16", "postgres (PostgreSQL) 15.16 (Debian 15.16-0+deb12u1)\n", False),
        ("18", "postgres (PostgreSQL) 18.1\n", True),
        ("1", "postgres (PostgreSQL) 18.1\n", False),
        ("9.6", "postgres (PostgreSQL) 9.6.24\n", True),
        ("15", "", False),
    ],
)
def test_data_of_another_major_version_are_distinguished_from_a_minor_one(major: str, told: str, of_it: bool) -> None:
    assert is_of(major, told) is of_it
