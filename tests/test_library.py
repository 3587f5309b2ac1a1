"""The programs in examples/ do what docs/library.md shows, and survive being killed: nothing is lost or doubled."""

import json
import re
import signal
import socket
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from library_sessions import PAGE, ROOT, Shown, played, sessions, start, timeless
from waiting import eventually

from retake.bucket import ANY, open_bucket
from retake.clock import SystemClock
from retake.errors import LeaseHeld
from retake.runs.run import STEP_DONE
from retake.runs.sql_ledger import open_sql_ledger
from retake.strict_json import parse

PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
SHOWING = [path.name for path in PROGRAMS if path.name != "vendor.py"]
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_CONFIG_FILE": "/dev/null"}


def ended(program: str, *options: str, folder: Path) -> tuple[int, str]:
    """Run a program to its end; return its exit code and output."""
    with start([program, *options], folder, **KEYS) as process:
        output, _ = process.communicate(timeout=60)
    return process.returncode, output


def await_while_it_runs(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    def look() -> bool:
        found = holds()
        assert found or process.poll() is None, process.communicate()
        return found

    eventually(look)


# --- first steps ---


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_a_program_is_short_and_says_at_its_top_how_to_run_it(path: Path, tmp_path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 80
    assert f"\n    python examples/{path.name}" in text
    assert f"(../examples/{path.name})" in PAGE.read_text("utf-8")
    code, output = ended(path.name, "--help", folder=tmp_path)
    assert (code, f"python examples/{path.name}" in output) == (0, True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("program", SHOWING)
def test_without_options_a_program_does_its_work(program: str, tmp_path: Path) -> None:
    code, output = ended(program, folder=tmp_path)
    assert (code, "Traceback" in output) == (0, False), output


def test_the_page_shows_what_the_programs_print(tmp_path: Path) -> None:
    shown = [(it.command, timeless(it.lines)) for session in sessions() for it in session]
    found = [(it.command, timeless(it.lines)) for session in sessions() for it in played(session, tmp_path)]
    assert found == shown
    assert {Path(command.split()[1]).name for command, _ in shown if command != "echo $?"} == {*SHOWING}


def test_a_session_that_prints_something_else_would_be_noticed(tmp_path: Path) -> None:
    [found] = played([Shown("python examples/tenth_robot.py --fail NO_PAPER", [])], tmp_path)
    assert found.lines == ["attempt 1: the printer has no paper", "then: notify slack", "failed: ERR_CRITICAL_NO_PAPER"]


# --- the paid call ---


@pytest.fixture(params=["directory", "S3"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "directory":
        yield f"file:{tmp_path}/bucket"
        return
    from s3_server import moto_server, new_bucket

    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with moto_server() as endpoint:
        yield new_bucket(endpoint)


@contextmanager
def vendor(plan: str, folder: Path) -> Iterator[str]:
    """Start the vendor in its own process, which outlives its callers; yield its address."""
    with start(["vendor.py", "--plan", plan], folder) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def bills(url: str) -> list[str]:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/bills", timeout=10) as answer:
        return list(json.load(answer))


def killed(bucket: str, url: str, folder: Path, when: Callable[[], bool]) -> None:
    """Start the program and kill it as soon as `when` holds; on S3, then end its lease as an operator would."""
    with start(["paid_call.py", "--bucket", bucket, "--vendor", url], folder, **KEYS) as process:
        await_while_it_runs(process, when)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    if bucket.startswith("s3:"):
        code, output = ended("paid_call.py", "--bucket", bucket, "--vendor", url, folder=folder)
        assert (code, "LeaseHeld" in output) == (75, True), output
        open_bucket(bucket).part("paid/posters/").break_lease("calls", "the test")


def pending(bucket: str) -> bool:
    part = open_bucket(bucket).part("paid/posters/")
    return bool(part.find("state.json", [""])) and bool(parse(part.read("state.json")[0]).get("pending"))


@pytest.mark.parametrize(("how", "paid_for"), [("retry", 2), ("drop", 1)])
def test_killed_after_the_vendor_billed_it_nothing_is_paid_for_until_a_person_decides(
    bucket: str, how: str, paid_for: int, tmp_path: Path
) -> None:
    with vendor("hang", tmp_path) as url:
        command = ("paid_call.py", "--bucket", bucket, "--vendor", url)
        killed(bucket, url, tmp_path, lambda: bills(url) == ["aurora"])
        for _ in range(2):
            code, output = ended(*command, folder=tmp_path)
            assert (code, "nobody can tell whether the poster call for aurora" in output) == (75, True), output
        assert bills(url) == ["aurora"]
        code, output = ended(*command, "--resolve", how, folder=tmp_path)
        assert (code, output.splitlines()[0]) == (0, f"aurora: {how}"), output
        again = ended(*command, folder=tmp_path)
        assert again == (0, output.partition("\n")[2])
        assert Counter(bills(url)) == {"aurora": paid_for, "comet": 1}


@pytest.mark.parametrize(("how", "ordered"), [("retry", ["aurora", "comet"]), ("drop", ["comet"])])
def test_killed_before_the_vendor_heard_of_it_the_next_start_does_not_guess(
    bucket: str, how: str, ordered: list[str], tmp_path: Path
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:  # accepts connections and reads nothing
        killed(bucket, f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path, lambda: pending(bucket))
    with vendor("", tmp_path) as url:
        command = ("paid_call.py", "--bucket", bucket, "--vendor", url)
        assert ended(*command, folder=tmp_path)[0] == 75
        assert bills(url) == []
        assert ended(*command, "--resolve", how, folder=tmp_path)[0] == 0
        assert bills(url) == ordered


def test_the_cap_stops_the_next_paid_call(bucket: str, tmp_path: Path) -> None:
    with vendor("", tmp_path) as url:
        command = ("paid_call.py", "--bucket", bucket, "--vendor", url, "a", "b", "c", "d")
        for _ in range(2):
            code, output = ended(*command, "--cap", "0.1", folder=tmp_path)
            assert (code, "CapReached: the daily cap: 0.080 of 0.100 USD" in output) == (75, True), output
        assert bills(url) == ["a", "b"]
        assert ended(*command, "--cap", "0.2", folder=tmp_path)[0] == 0
        assert bills(url) == ["a", "b", "c", "d"]


def test_a_missing_vendor_has_billed_nothing(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    code, output = ended("paid_call.py", "--vendor", url, folder=tmp_path)
    assert (code, "Refused: the vendor was not reached" in output) == (75, True), output
    assert ended("paid_call.py", folder=tmp_path)[0] == 0


def test_a_second_process_waits_its_turn(tmp_path: Path) -> None:
    with vendor("hang", tmp_path) as url, start(["paid_call.py", "--vendor", url], tmp_path) as first:
        await_while_it_runs(first, lambda: bills(url) == ["aurora"])
        code, output = ended("paid_call.py", "--vendor", url, folder=tmp_path)
        assert (code, LeaseHeld.__name__ in output) == (75, True), output
        first.kill()


def test_an_invalid_document_is_named(tmp_path: Path) -> None:
    open_bucket(f"file:{tmp_path}/bucket").write("paid/posters/state.json", b"{", ANY)
    code, output = ended("paid_call.py", "--bucket", f"file:{tmp_path}/bucket", folder=tmp_path)
    assert (code, "paid/posters/state.json" in output) == (65, True), output


# --- the worker ---

TITLES, STEPS = ("aurora", "comet", "meteor"), ("sketch", "colour", "print")


def check_posters(folder: Path) -> None:
    """Check that each poster was made once: its run succeeded, each step is recorded once, and the files are
    complete."""
    ledger = open_sql_ledger(f"sqlite:{folder}/demo/posters/runs.db", SystemClock())
    runs = ledger.runs(pipeline="posters")
    events = {run.task_id: ledger.events(run.run_id) for run in runs}
    ledger.close()
    assert {run.task_id: run.status.value for run in runs} == dict.fromkeys(TITLES, "succeeded")
    for run in runs:
        done = [event.payload["step"] for event in events[run.task_id] if event.kind == STEP_DONE]
        assert done == list(STEPS), run
        for step in STEPS:
            assert (folder / f"demo/posters/{run.task_id}.{step}").read_text() == f"{step} of {run.task_id}\n"


def said_until(process: subprocess.Popen[str], end: str) -> list[str]:
    """Return the lines that a worker prints, up to and including `end`."""
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if lines[-1] == end:
            return lines
    raise AssertionError(lines)


@pytest.mark.parametrize("between", [False, True], ids=["in a step", "between two steps"])
def test_a_worker_that_is_killed_again_and_again_makes_each_poster_once(between: bool, tmp_path: Path) -> None:
    said = list[str]()
    for step in STEPS:  # all three deaths hit the same poster
        with start(["sqlite_worker.py", "--step-s", "2", TITLES[0]], tmp_path) as process:
            said += said_until(process, f"aurora: {step} begins")
            if between:
                await_while_it_runs(process, (tmp_path / f"demo/posters/aurora.{step}").exists)
            process.kill()
    code, output = ended("sqlite_worker.py", folder=tmp_path)
    assert code == 0, output
    resumed = int(re.findall(r"aurora: succeeded \(resumed: (\d)\)", output)[0])
    assert resumed == 3 or (between and resumed == 2), "the last death may come after everything is done and recorded"
    check_posters(tmp_path)
    begun = Counter([*said, *output.splitlines()])
    assert all(begun[f"aurora: {step} begins"] <= 2 for step in STEPS), begun
    assert begun["aurora: done"] == 1 or between


def test_one_of_two_workers_is_killed_and_the_other_makes_the_rest(tmp_path: Path) -> None:
    with start(["sqlite_worker.py", "--step-s", "60"], tmp_path) as doomed:
        said_until(doomed, "aurora: sketch begins")
        with start(["sqlite_worker.py"], tmp_path) as other:
            said_until(other, "comet: sketch begins")
            doomed.kill()
            assert other.communicate(timeout=60)[0].endswith("meteor: succeeded (resumed: 0)\n")
    check_posters(tmp_path)


def test_more_posters_than_a_list_shows_are_all_made(tmp_path: Path) -> None:
    with start(["sqlite_worker.py", "--step-s", "60", "aurora"], tmp_path) as process:
        said_until(process, "aurora: sketch begins")
        process.kill()
    code, output = ended("sqlite_worker.py", "--step-s", "0", "aurora", *map(str, range(60)), folder=tmp_path)
    assert (code, output.count(": succeeded (")) == (0, 61), output
    assert "aurora: succeeded (resumed: 1)" in output


def test_a_poster_that_kills_every_worker_is_given_up(tmp_path: Path) -> None:
    for _ in range(4):
        with start(["sqlite_worker.py", "--step-s", "30", "aurora"], tmp_path) as process:
            said_until(process, "aurora: sketch begins")
            process.kill()
    code, output = ended("sqlite_worker.py", "aurora", folder=tmp_path)
    assert (code, output.splitlines()[-1]) == (0, "aurora: failed (resumed: 3)")
