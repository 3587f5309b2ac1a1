"""A tick that rests: if nothing has changed since the last idle one and nothing is due, it says so and ends. Any change
wakes it up."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from cron_machine import CHECKOUT, GEN, MANAGER, MIDJOURNEY, PUBLIC, Machine, Run
from resting import RESTS, look_of, put_nothing_to_do, rested
from waiting import eventually

from retake.bucket.directory import DirectoryBucket
from retake.ticking.rest import RememberedLook, version_of


@pytest.fixture
def idle(machine: Machine) -> Machine:
    """Return a machine that has nothing to do."""
    put_nothing_to_do(machine)
    return machine


def remembered(machine: Machine) -> RememberedLook:
    look = look_of(machine).read()
    assert look
    return look


def as_if_settled(machine: Machine, look: RememberedLook, ago_s: float = 10.0, due_s: float = 3600.0) -> None:
    """Remember the look as if a tick had found everything as it is now, `ago_s` seconds ago."""
    at = time.time() - ago_s
    seen = {path: version_of(path) for path in look.seen}
    assert look_of(machine).write(RememberedLook(look.basis, seen, at, at + due_s, at - 60))


def first_look(machine: Machine) -> RememberedLook:
    """Tick until the documents have been there for long enough to be trusted."""
    eventually(lambda: rested(machine.tick()))
    return remembered(machine)


def test_it_rests_once_nothing_has_changed_for_two_seconds(idle: Machine) -> None:
    written_at = max(path.stat().st_mtime for path in idle.bucket.rglob("*"))
    assert idle.tick().messages == ["nothing to do: 666/ holds a ready group"]
    first_look(idle)
    assert time.time() - written_at > 2
    before = idle.snapshot(), {it: version_of(it) for it in remembered(idle).seen}
    tick = idle.tick()
    assert (tick.exit_code, tick.out, len(tick.lines)) == (0, "", 1)
    [line] = tick.lines
    assert line.keys() == {"timestamp", "level", "logger", "message", "run_id"}
    assert (line["level"], line["logger"]) == ("INFO", "retake.ticking.rest")
    assert line["message"].startswith("nothing to do: ")
    assert (idle.snapshot(), {it: version_of(it) for it in remembered(idle).seen}) == before


# --- whatever changes wakes it up ---------------------------------------------------------------------------------


@contextmanager
def written(path: Path, data: bytes | None = None) -> Iterator[None]:
    """Write these bytes, or those that the file has already; restore it afterwards."""
    before = path.read_bytes() if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data if data is not None else before or b"{}")
    yield
    path.unlink(missing_ok=True)
    if before is not None:
        path.write_bytes(before)


@contextmanager
def same_size_and_time(path: Path) -> Iterator[None]:
    """Write other bytes of the same length and restore the file's time, as another program might."""
    before, found = path.read_bytes(), path.stat()
    path.write_bytes(before.replace(b": ", b" :", 1))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    yield
    path.write_bytes(before)


@contextmanager
def away(path: Path, *, instead: Callable[[Path], object] = lambda beside: None) -> Iterator[None]:
    """Rename what is there; `instead` may put something in its place."""
    beside = path.with_name(f"{path.name}.away")
    path.rename(beside)
    instead(beside)
    yield
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    beside.rename(path)


def linked(path: Path) -> AbstractContextManager[None]:
    return away(path, instead=path.symlink_to)


def copied(path: Path) -> AbstractContextManager[None]:
    return away(path, instead=lambda beside: shutil.copytree(beside, path))


@contextmanager
def variable(machine: Machine, name: str, value: str) -> Iterator[None]:
    env = machine.env
    machine.env = {**env, name: value}
    yield
    machine.env = env


@contextmanager
def setting(machine: Machine, name: str, value: object) -> Iterator[None]:
    with written(machine.settings_file):
        machine.set(WORKFLOW={name: value})
        yield


@contextmanager
def leased(machine: Machine) -> Iterator[None]:
    lease = DirectoryBucket(str(machine.bucket)).lease("story", "another")
    yield
    lease.release()


@contextmanager
def spoilt(machine: Machine, spoil: Callable[[Path], object]) -> Iterator[None]:
    """Damage the file that remembers the look."""
    path = Path(look_of(machine).path)
    before = path.read_bytes()
    spoil(path)
    yield
    path.parent.chmod(0o700)
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_bytes(before)


BY_HAND = b'{"mode": {"hand": {"mode": 1, "why": "a test", "since": "2026-01-01T00:00:00.000Z"}}}'


def changes(machine: Machine, code: Path) -> dict[str, AbstractContextManager[None]]:
    """Return changes to everything that an idle tick depends on."""
    bucket = machine.bucket
    return {
        "a document": written(bucket / GEN),
        "the publisher's list": written(bucket / PUBLIC),
        "a document that was not there": written(bucket / MIDJOURNEY),
        "a document with the size and time it had": same_size_and_time(bucket / GEN),
        "a document by way of a link": linked(bucket / PUBLIC),
        "a document that was displaced": written(bucket / f"{PUBLIC}.displaced-0"),
        "alerts": written(bucket / "alerts/state.json", b'{"channels": {}}'),
        "the mode": written(bucket / "alerts/state.json", BY_HAND),
        "a file in 444": written(bucket / "444/note.txt"),
        "a file in 555": written(bucket / "555/note.txt"),
        "a file in 666": written(bucket / "666/note.txt"),
        "a folder in 666": written(bucket / "666/notes/note.txt"),
        "a file gone": away(bucket / "666/extra.txt"),
        "a folder gone": away(bucket / "config"),
        "a folder by way of a link": linked(bucket / "config"),
        "another folder of the same name": copied(bucket / "444"),
        "another bucket of the same name": copied(bucket),
        "the lease of another": leased(machine),
        "the settings": setting(machine, "max_retries", 2),
        "the settings, written again": written(machine.settings_file),
        "no remembered looks": setting(machine, "remembered_looks", False),
        "no settings": away(machine.settings_file),
        "a variable": variable(machine, "RETAKE_DIAGNOSE", "1"),
        "a key": variable(machine, "OPENAI_API_KEY", "another"),
        "another program's variable": variable(machine, "TZ", "UTC"),
        "another name of the settings": variable(machine, "RETAKE_CONFIG", f"{machine.folder}/./settings.json"),
        "no home": variable(machine, "HOME", ""),
        "the code": written(code / "retake/story/tidy.py"),
        "the code that rests": written(code / "retake/ticking/rest.py"),
        "the script": written(code / MANAGER),
        "no look": spoilt(machine, Path.unlink),
        "a look cut short": spoilt(machine, lambda it: it.write_bytes(it.read_bytes()[:-1])),
        "a look that is none": spoilt(machine, lambda it: it.write_bytes(b"\0" * 500)),
        "a look that others may read": spoilt(machine, lambda it: it.chmod(0o644)),
        "a look in a folder that others may write to": spoilt(machine, lambda it: it.parent.chmod(0o777)),
    }


def test_whatever_it_decides_from_wakes_it_up(idle: Machine) -> None:
    code = idle.folder / "code"
    code.mkdir()
    ours = shutil.ignore_patterns("*.pyc.*")  # drafts of byte code, which concurrent tests write
    shutil.copytree(CHECKOUT / "retake", code / "retake", ignore=ours)
    shutil.copy2(CHECKOUT / MANAGER, code)
    idle.put("666/extra.txt", {})

    def tick() -> Run:
        return idle.run(str(code / MANAGER))

    eventually(lambda: rested(tick()))
    look, slept = remembered(idle), []
    for what, change in changes(idle, code).items():
        as_if_settled(idle, look)
        assert rested(tick()), f"before {what}"
        with change:
            slept += [what] if tick().said(RESTS) else []
    assert slept == []
    assert idle.calls() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_look_that_another_user_wrote_wakes_it_up(idle: Machine) -> None:
    as_if_settled(idle, first_look(idle))
    os.chown(look_of(idle).path, 12345, -1)
    assert not rested(idle.tick())


TIMES = [
    (10, 3600, True),
    (3540, 3600, True),
    (3600, 3600, False),  # WORKFLOW.full_look_minutes
    (100, 99, False),  # something is due
    (24 * 3600, 48 * 3600, False),  # whatever was written
    (-500, 3600, False),  # the clock was set back
]


def test_time_wakes_it_up(idle: Machine) -> None:
    idle.set(WORKFLOW={"full_look_minutes": 7})
    look = first_look(idle)
    assert look.due_at
    assert look.due_at - look.looked_at == pytest.approx(7 * 60)
    found = []
    for ago_s, due_s, _ in TIMES:
        as_if_settled(idle, look, ago_s, due_s)
        found.append((ago_s, due_s, idle.tick().said(RESTS)))
    assert found == TIMES


def test_what_a_person_asks_for_is_done(idle: Machine) -> None:
    look = first_look(idle)
    for arguments in (["--dry-run"], ["--resume"], ["--until-done"], ["--diagnose"]):
        as_if_settled(idle, look)
        assert not idle.run(MANAGER, *arguments).said(RESTS), arguments


def test_turned_off_nothing_is_remembered(idle: Machine) -> None:
    idle.set(WORKFLOW={"remembered_looks": False})
    time.sleep(2.1)  # the kernel's clock, which dates the files, cannot be moved
    idle.tick()
    idle.tick()
    assert not (idle.folder / ".cache").exists()


# --- what is not idle -----------------------------------------------------------------------------------------------


def test_work_forgets_the_look(idle: Machine) -> None:
    first_look(idle)
    idle.plant("fetch")
    idle.order("fetch#1=500")
    tick = idle.tick()
    assert not tick.said(RESTS)
    assert look_of(idle).read() is None


# --- what a rest costs ------------------------------------------------------------------------------------------------


WATCHED = """
import atexit, os, sys
opened = []
sys.addaudithook(lambda event, found: opened.append(str(found[0])) if event == "open" else None)
def told(write=os.write):
    names = [it for it in opened if not it.endswith((".py", ".pyc"))]
    loaded = [it for it in sys.modules if it.startswith("retake") or it in
              ("typing", "json", "logging", "re", "hashlib", "collections", "datetime", "contextlib", "click")]
    write(1, ("OPENED " + " ".join(names) + "\\nLOADED " + " ".join(sorted(loaded)) + "\\n").encode())
atexit.register(told)
"""


def test_a_rest_opens_the_look_and_loads_next_to_nothing(idle: Machine) -> None:
    watching = idle.folder / "watching"
    watching.mkdir()
    (watching / "sitecustomize.py").write_text(WATCHED)
    idle.env = {**idle.env, "PYTHONPATH": f"{watching}:{CHECKOUT}"}
    first_look(idle)
    tick = idle.tick()
    assert rested(tick)
    opened, loaded = tick.out.splitlines()
    inside = [it for it in opened.split()[1:] if it.startswith(str(idle.folder))]
    assert inside == [look_of(idle).path]
    assert loaded.split()[1:] == [
        "retake",
        "retake.story",
        "retake.ticking",
        "retake.ticking.rest",
    ]
