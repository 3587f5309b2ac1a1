"""A pipeline moves to another bucket with a generation under way, as docs/running.md says: its commands, real scripts,
the usual tools for copying, and a forgotten schedule on the old bucket."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from b2sdk.v3 import B2Api, InMemoryAccountInfo, ScanPoliciesManager, Synchronizer, SyncReport, parse_folder
from cron_buckets import BucketMachine, Clouds, Place
from cron_machine import CHECKOUT, MIDJOURNEY, Vendors, serving

from retake.bucket import open_bucket
from retake.bucket.b2.bucket import parse_url
from retake.bucket.s3.client import connect
from retake.bucket.s3.client import parse_url as parse_s3_url

SECTION = (CHECKOUT / "docs/running.md").read_text("utf-8").partition("\n## Another bucket\n")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^ +\.venv/bin/python (-m retake .*)$", SECTION, re.MULTILINE)
BEFORE, AFTER = COMMANDS[:2], COMMANDS[2:]
ONLY = {"chat": 3, "imagine": 1, "upscale": 1, "runway": 1}


class MovingMachine(BucketMachine):
    """A machine whose bucket is moved; `at` has it use a copy."""

    def at(self, place: Place, environ: pytest.MonkeyPatch) -> None:
        for name, value in place.environ.items():
            environ.setenv(name, value)
        self.kind, self.store = place.kind, open_bucket(place.url)
        self.env |= {"RETAKE_STORAGE_URL": place.url, **place.environ}

    def console(self, command: str) -> str:
        """Run a command of the page; return what it says."""
        words = [sys.executable, *shlex.split(command)]
        environ = {**self.env, "PYTHONPATH": str(CHECKOUT)}
        done = subprocess.run(words, cwd=self.cwd, env=environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    @property
    def bills(self) -> dict[str, int]:
        return {kind: self.billed(kind) for kind in ONLY}


@pytest.fixture(scope="module")
def slow_vendors() -> Iterator[Vendors]:
    """Yield vendors whose tasks take an hour: on a busy machine, four moves take minutes."""
    yield from serving(3600)


@pytest.fixture
def machine(tmp_path: Path, slow_vendors: Vendors) -> Iterator[MovingMachine]:
    machine = MovingMachine(tmp_path, slow_vendors, directory(tmp_path / "first"))
    yield machine
    machine.end()


def directory(path: Path) -> Place:
    return Place("directory", f"file:{path}", {}, lambda before: None)


# --- copying ----------------------------------------------------------------------------------------------------------


def copy(old: Place, new: Place, through: Path) -> None:
    """Copy every object. Between two services they go through the folder `through`, which does not exist yet."""
    folder = new if new.kind == "directory" else old if old.kind == "directory" else directory(through)
    if old.kind == new.kind == "directory":
        line = re.findall(r"^ +(cp .*)$", SECTION, re.MULTILINE)[0]
        there = {"OLD": shlex.quote(path_of(old)), "NEW": shlex.quote(path_of(new))}
        subprocess.run(["/bin/sh", "-c", re.sub("OLD|NEW", lambda it: there[it[0]], line)], check=True, timeout=60)
        return
    for cloud in (old, new):
        Path(path_of(folder)).mkdir(exist_ok=True)
        {"b2": sync_b2, "s3": sync_s3, "directory": lambda *_: None}[cloud.kind](cloud, path_of(folder), cloud is old)


def path_of(place: Place) -> str:
    return place.url.removeprefix("file:")


def sync_b2(place: Place, folder: str, download: bool) -> None:
    """Do what `b2 sync` does, with the page's pattern."""
    there, pattern = parse_url(place.url), re.findall(r"b2 sync --exclude-regex '(.*?)'", SECTION)[0]
    api = B2Api(InMemoryAccountInfo())
    keys = {name.lower().removeprefix("b2_"): value for name, value in place.environ.items()}
    api.authorize_account(**keys, realm=there.realm)
    ends = [parse_folder(f"b2://{there.bucket}/{there.prefix}".rstrip("/"), api), parse_folder(folder, api)]
    source, target = ends if download else reversed(ends)
    tool = Synchronizer(2, policies_manager=ScanPoliciesManager(exclude_file_regexes=[pattern]))
    with open(os.devnull, "w") as out, SyncReport(out, False) as report:
        tool.sync_folders(source, target, now_millis=int(time.time() * 1000), reporter=report)


def sync_s3(place: Place, folder: str, download: bool) -> None:
    """Do what `aws s3 sync` does with the page's pattern."""
    assert "aws s3 sync OLD NEW --exclude '*.retake/*'" in SECTION
    there = parse_s3_url(place.url)
    client: Any = connect(there, connect_s=5, read_s=10)
    if not download:
        for path in Path(folder).rglob("*"):
            if path.is_file() and ".retake" not in path.parts:
                name = there.prefix + str(path.relative_to(folder))
                client.put_object(Bucket=there.bucket, Key=name, Body=path.read_bytes())
        return
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=there.bucket, Prefix=there.prefix)
    for name in [it["Key"] for page in pages for it in page["Contents"]]:
        if ".retake/" not in name:
            path = Path(folder, name.removeprefix(there.prefix))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(client.get_object(Bucket=there.bucket, Key=name)["Body"].read())


# --- the test ---------------------------------------------------------------------------------------------------------


def has_a_video_in_flight(machine: MovingMachine) -> str:
    """Return the id of a generation whose video is being made, beside a dead letter, an alert and counted records."""
    for hour in range(120):
        generation_id, at = f"202601{hour // 24 + 1:02}-{hour % 24:02}00", "2026-01-06T09:30:10Z"
        call = {"step": "imagine", "requested_at_utc": at, "price_usd": 0.045, "outcome": "accepted"}
        record = {"generation_id": generation_id, "outcome": "done", "ended_at_utc": at, "paid_calls": [call]}
        machine.put(f"spend/{generation_id}.json", record)
    machine.order("chat#1=400")
    assert machine.tick().exit_code == 69
    machine.tick()
    while not machine.doc.get("runway_task"):
        machine.vendors.later()
        machine.tick()
    machine.console("-m retake spend --days 3650")
    assert machine.files("kept/spend")
    assert machine.files("dead_letters")
    return str(machine.generation_id)


def move(machine: MovingMachine, old: Place, new: Place, environ: pytest.MonkeyPatch) -> None:
    """Move the state as the page says."""
    for command in BEFORE:
        machine.console(command)
    copy(old, new, machine.folder / f"through-{new.kind}")
    had = machine.snapshot()
    machine.at(new, environ)
    assert machine.snapshot() == had
    for command in AFTER:
        machine.console(command)
    assert "Everything fits together" in machine.console("-m retake check")


def does_nothing_at(machine: MovingMachine, place: Place, environ: pytest.MonkeyPatch) -> None:
    """Check what a schedule does that was forgotten on the old bucket."""
    machine.at(place, environ)
    was, calls = machine.read(MIDJOURNEY), len(machine.calls())
    assert machine.tick().exit_code == 0
    assert (machine.read(MIDJOURNEY), len(machine.calls())) == (was, calls)


def test_a_moved_generation_goes_on_and_nothing_is_paid_twice(
    machine: MovingMachine, clouds: Clouds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [command.split()[2] for command in (*BEFORE, *AFTER)] == ["mode", "status", "check", "status", "mode"]
    machine.set(WORKFLOW={"max_retries": 20})  # each tick polls in vain for a video that takes long
    generation_id = has_a_video_in_flight(machine)
    places = [directory(tmp_path / "first"), clouds("b2"), clouds("s3"), *(directory(tmp_path / it) for it in "23")]
    for old, new in pairwise(places):
        move(machine, old, new, monkeypatch)
        machine.tick()
        assert (machine.generation_id, machine.bills) == (generation_id, ONLY)
        does_nothing_at(machine, old, monkeypatch)
        machine.at(new, monkeypatch)
    machine.vendors.later()
    for _ in range(3):
        machine.tick()
    assert machine.read(f"spend/{generation_id}.json")["outcome"] == "done"
    assert machine.billed("runway") == ONLY["runway"]
