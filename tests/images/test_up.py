"""`retake images up` as a newcomer runs it: real servers, real processes."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from local_servers import or_skipped
from test_up_children import alive
from waiting import eventually

from retake.images.settings import ImagesSettings, load_images_settings
from retake.images.up.children import Child, ChildCommand
from retake.images.up.command import Machine, UpOptions, introduction
from retake.images.up.folder import DataFolder
from retake.images.up.programs import MissingProgram, Programs

ROOT = Path(__file__).parents[2]
START_S = 120
ELSEWHERE = {
    "REDIS_URL": "redis://:secret@10.0.0.1:6379/0",
    "RABBITMQ_URL": "amqp://ann:secret@10.0.0.2:5672/",
    "DATABASE_URL": "postgresql://ann:secret@10.0.0.3:5432/images",
}
"""Somebody else's servers."""


def environment(**more: str) -> dict[str, str]:
    """Return a newcomer's environment, without variables of the service."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONPATH": str(ROOT)} | more


class Running:
    """An `images up` that runs until the test is over."""

    def __init__(self, folder: Path, *options: str, **environ: str) -> None:
        config = json.loads((ROOT / "config/config.json").read_bytes())
        config["IMAGES"] = {"result_grace_seconds": 3600}  # a job is polled again after a slow restart
        (folder / "config").mkdir(exist_ok=True)
        (folder / "config/config.json").write_text(json.dumps(config))
        self.output = folder / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "retake", "images", "up", "--data", str(folder / "dir"), *options],
                cwd=folder,
                env=environment(**environ),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def told(self) -> str:
        return self.output.read_text("utf-8")

    def wait_until_ready(self) -> None:
        end = time.monotonic() + START_S
        while "Ctrl-C stops everything" not in self.told():
            assert self.process.poll() is None, self.told()
            assert time.monotonic() < end, self.told()
            time.sleep(0.1)

    def family(self) -> list[int]:
        """Return all processes below it."""
        found = [self.process.pid]
        for pid in found:
            with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
                for tasks in list(Path(f"/proc/{pid}/task").glob("*/children")):
                    with suppress(FileNotFoundError, ProcessLookupError):  # that thread has ended
                        found += map(int, tasks.read_text().split())
        return found[1:]

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(180)


def commandline(pid: int) -> list[str]:
    """Return the command line of a process, nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    with or_skipped():
        Machine(DataFolder(tmp_path / "look"), settings_of({}), {}).find_servers(Programs(os.environ))
    started: list[Running] = []

    def start(*options: str, **environ: str) -> Running:
        started.append(Running(tmp_path, *options, **environ))
        return started[-1]

    yield start
    for it in started:
        it.process.kill()
        it.process.wait()


def shell(*lines: str) -> str:
    """Run the lines in one shell; return their output."""
    script = "\n".join(lines)
    return subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True, timeout=60).stdout


def commands(told: str) -> list[str]:
    """Return the commands that a newcomer is told to type."""
    return [line.removeprefix("  ") for line in told.splitlines() if line.startswith("  ")]


def order(told: str) -> str:
    """Order a picture with the printed commands; return the job's id."""
    first, second, third, fourth, *_ = commands(told)
    return shell(first, second, third, fourth, "echo $id").strip()


def answered(told: str, job_id: str) -> httpx.Response:
    url, key = (re.search(pattern, told)[1] for pattern in (r"url=(\S+)", r"Bearer (\S+)'"))  # type: ignore[index]
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{url}/jobResult", params={"jobId": job_id}, headers=headers, trust_env=False, timeout=20)


def test_a_newcomer_gets_a_picture_and_nothing_is_left_running(run: Callable[..., Running], tmp_path: Path) -> None:
    """From the first start to the last: a picture, a second `up`, children that die, SIGKILL, and a restart."""
    it = run("--port", "0")
    it.wait_until_ready()
    told = it.told()
    job_id = order(told)
    eventually(lambda: answered(told, job_id).json()["status"] == "completed")
    *_, fetch, save, look = commands(told)
    assert '"completed"' in shell(*commands(told)[:2], f"id={job_id}", fetch)
    shell(f"cd '{tmp_path}'", *commands(told)[:2], f"id={job_id}", save)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"^text-1 +TextQueue ", shell(f"cd '{tmp_path}'; export PYTHONPATH='{ROOT}'", look), re.MULTILINE)

    second = Running(tmp_path, "--port", "0")  # on the same DIR
    assert second.process.wait(60) == 75
    assert "is in use by another" in second.told()

    def working() -> set[int]:  # not the whole family: PostgreSQL has a process for each connection
        return {pid for pid in it.family() if {"comfyui", "api", "TextQueue"} & {*commandline(pid)}}

    lost = working()
    assert len(lost) == 3
    for pid in lost:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(working() - lost) == 3)
    assert it.told().count("it is restarted now") == 3
    family = it.family()
    it.process.kill()  # SIGKILL of `up`
    it.process.wait()
    eventually(lambda: not any(map(alive, family)))

    again = run("--port", "0")
    again.wait_until_ready()
    assert commands(again.told()) == commands(told)  # the same port, the same key
    assert answered(told, job_id).json()["status"] == "completed"
    family = again.family()
    assert again.end(signal.SIGINT) == 0
    eventually(lambda: not any(map(alive, family)))


def test_a_signal_during_the_start_ends_everything(run: Callable[..., Running]) -> None:
    it = run("--port", "0")
    eventually(lambda: "Starting epmd" in it.told())
    eventually(lambda: len(it.family()) >= 5)
    family = it.family()
    assert it.end() == 0
    eventually(lambda: not any(map(alive, family)))


def test_a_port_that_is_taken_is_reported_before_anything_is_started(run: Callable[..., Running]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        it = run("--port", str(port))
        assert it.process.wait(60) == 75
    assert f"port {port} of 127.0.0.1 is taken" in it.told()
    assert "Starting" not in it.told()


def test_wrong_settings_end_it_at_once(run: Callable[..., Running]) -> None:
    it = run("--port", "0", REDIS_URL="http://nowhere")
    assert it.process.wait(60) == 78
    assert "REDIS_URL" in it.told()


class Recorder:
    """Replaces the supervisor, and records what would be started."""

    def __init__(self) -> None:
        self.commands: dict[str, ChildCommand] = {}

    def start(self, commands: Sequence[ChildCommand]) -> list[Child]:
        self.commands |= {command.name: command for command in commands}
        return [Child(command) for command in commands]

    def wait_until_ready(self, children: Sequence[Child], seconds: float, stopping: Callable[[], bool]) -> bool:
        return True


def planned(folder: Path, options: UpOptions, **environ: str) -> tuple[dict[str, ChildCommand], Machine]:
    """Return what would be run, in its order."""
    machine = Machine(DataFolder(folder / "dir"), settings_of(environ), environ)
    with or_skipped():
        machine.find_servers(Programs(os.environ))
    recorder = Recorder()
    assert machine.start(recorder, options, lambda: False)  # type: ignore[arg-type]
    return recorder.commands, machine


def settings_of(environ: Mapping[str, str]) -> ImagesSettings:
    return load_images_settings({**environ, "RETAKE_CONFIG": str(ROOT / "config/config.json")})


def test_a_server_whose_url_is_set_is_not_started(tmp_path: Path) -> None:
    theirs = {**ELSEWHERE, "REDIS_URL": ""}
    commands, _ = planned(tmp_path, UpOptions(), **theirs)
    assert list(commands) == ["redis", "comfyui", "api", "text-1", "outfit-1"]
    seen = commands["api"].environ
    assert seen["RABBITMQ_URL"] == ELSEWHERE["RABBITMQ_URL"]
    assert re.fullmatch(r"redis://:[\w-]{32}@127\.0\.0\.1:\d+/0", seen["REDIS_URL"])


def test_another_shell_finds_the_servers_that_were_started(tmp_path: Path) -> None:
    commands, _ = planned(tmp_path, UpOptions(), **{**ELSEWHERE, "REDIS_URL": ""})
    file = tmp_path / "dir/environment"
    assert shell(f". {file}; echo $REDIS_URL").strip() == commands["api"].environ["REDIS_URL"]
    assert ELSEWHERE["RABBITMQ_URL"] not in file.read_text(), "the caller's own variables are kept"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    told = introduction("http://127.0.0.1:8080", "demo", None, tmp_path / "dir")
    assert f"  (. {file}; " in told


def test_a_bucket_a_key_and_comfyui_of_ones_own_are_used(tmp_path: Path) -> None:
    own = {
        "IMAGES_STORAGE_URL": "s3://pictures",
        "IMAGES_KEYS": "*=any,ann=a-key-of-ann",
        "RETAKE_COMFYUI_URLS": "http://10.0.0.4:8188",
    }
    commands, machine = planned(tmp_path, UpOptions(text_workers=2, outfit_workers=0), **ELSEWHERE, **own)
    assert list(commands) == ["api", "text-1", "text-2"]
    assert {name: commands["text-2"].environ[name] for name in own} == own
    assert (machine.user, machine.key) == ("ann", None)
    told = introduction("http://127.0.0.1:8080", machine.user, machine.key, tmp_path)
    assert "a-key-of-ann" not in told
    assert '"userId": "ann"' in told


def test_servers_see_neither_settings_nor_keys(tmp_path: Path) -> None:
    commands, machine = planned(tmp_path, UpOptions(), **{**ELSEWHERE, "REDIS_URL": ""}, OPENAI_API_KEY="secret")
    assert "OPENAI_API_KEY" not in commands["redis"].environ
    secrets = [machine.key, commands["api"].environ["REDIS_URL"].split(":")[2].split("@")[0]]
    for command in commands.values():  # any user of the machine sees command lines
        assert not any(str(secret) in " ".join(map(str, command.command)) for secret in secrets)


def test_what_is_printed_fits_80_columns() -> None:
    told = introduction("http://127.0.0.1:65535", "demo", "k" * 32, Path("/srv/images"))
    assert max(map(len, told.splitlines())) <= 80


def test_all_missing_servers_are_named_at_once(tmp_path: Path) -> None:
    machine = Machine(DataFolder(tmp_path / "dir"), settings_of({}), {"DATABASE_URL": ELSEWHERE["DATABASE_URL"]})
    with pytest.raises(MissingProgram) as raised:
        machine.find_servers(Programs({"PATH": str(tmp_path)}, root=tmp_path))
    assert str(raised.value).endswith("type: sudo apt install redis-server rabbitmq-server")
    assert (raised.value.exit_code, len(str(raised.value).splitlines())) == (69, 1)


def test_output_that_cannot_be_written_is_reported_and_no_bug(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "retake", "images", "up", "--data", str(tmp_path / "dir"), "--port", "0"],
            cwd=ROOT,
            env=environment(**ELSEWHERE),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=START_S,
            check=False,
        )
    assert (done.returncode, b"what the service says could not be written" in done.stderr) == (75, True), done.stderr
