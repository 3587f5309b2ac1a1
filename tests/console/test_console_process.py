"""The real command line, in processes of its own: on a terminal, in a pipe, as JSON, beside a manager at work; over a
bucket in which the real scripts made real generations."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cron_machine import Machine, serving
from reading_world import CHECKOUT, command_line, in_terminal, run_console

from retake.bucket.directory import DirectoryBucket

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Make one generation that recovered from two failures, one that failed for good, and one whose call is held."""
    for vendors in serving(0):
        machine = Machine(tmp_path_factory.mktemp("machine"), vendors)
        machine.set(
            WORKFLOW={"on_unknown_outcome": "hold", "daily_cap_usd": 9}, IMAGE_GENERATION={"output_size": "64x36"}
        )
        machine.order("upscale#1-2=500")
        while not machine.files("spend"):
            machine.tick()
        machine.order("imagine=task-rejected")
        publish(machine)
        while not machine.files("dead_letters"):
            machine.tick()
        machine.sandbox.withdraw_orders()
        machine.order("runway#1=cut-after")
        machine.until_done()
        yield machine
        machine.end()


def publish(machine: Machine) -> None:
    """Move everything that is ready into the archive."""
    for key in [key for folder in ("444", "555", "666") for key in machine.files(folder)]:
        target = machine.bucket / "archive" / Path(key).name
        target.parent.mkdir(exist_ok=True)
        (machine.bucket / key).rename(target)


def text_of(machine: Machine, *arguments: str) -> str:
    return run_console(*arguments, env=machine.env).stdout.decode()


def generation(machine: Machine, status: str) -> str:
    [run] = json.loads(text_of(machine, "runs", "--status", status, "--json"))["runs"]
    return str(run["task_id"])


DONE, FAILED = "DONE", "FAILED"
READING = (("status",), ("runs",), ("spend",), ("kpi",), ("show", FAILED), ("report", DONE))
"""Each command; a word in capitals stands for a generation that ended that way."""


def every(machine: Machine, *more: tuple[str, ...]) -> list[tuple[str, ...]]:
    ids = {DONE: generation(machine, "succeeded"), FAILED: generation(machine, "failed")}
    return [tuple(ids.get(word, word) for word in words) for words in (*READING, *more)]


def test_status_says_that_a_person_is_needed(machine: Machine) -> None:
    run = run_console("status", env=machine.env)
    assert run.returncode == 69
    assert run.stderr == b""
    text = run.stdout.decode()
    assert "a person is needed: nobody can tell whether the runway call" in text
    assert "1 succeeded, 1 failed" in text
    assert ": a paid call of unknown outcome is held" in text.splitlines()[0]


def test_every_answer_is_one_json_document_and_nothing_else(machine: Machine) -> None:
    for words in every(machine, ("doctor", "--offline")):
        run = run_console(*words, "--json", env=machine.env)
        assert run.returncode in (0, 69), run.stderr
        assert run.stderr == b"", words
        assert isinstance(json.loads(run.stdout), dict), words


def test_in_a_pipe_there_are_no_colours_and_no_lines_are_cut(machine: Machine) -> None:
    for words in every(machine):
        text = text_of(machine, *words)
        assert "\x1b" not in text
        assert "…" not in text or words[0] in ("doctor", "show", "status", "report")
        assert not [line for line in text.splitlines() if line != line.rstrip()], words


@pytest.mark.parametrize("width", [40, 100])
def test_on_a_terminal_nothing_but_an_id_is_wider_than_it(machine: Machine, width: int) -> None:
    for words in every(machine):
        code, seen = in_terminal(*words, env=machine.env, width=width)
        assert code in (0, 69), seen
        lines = [ESCAPES.sub("", line) for line in seen.replace("\r", "").split("\n")]
        if words[0] != "report":  # Markdown is printed as it is
            assert not [line for line in lines if len(line) > width and not UUID.search(line)], (words, width)
        assert "\x1b[" in seen or words[0] == "report"


def test_without_colours_a_terminal_gets_none(machine: Machine) -> None:
    for environ in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        _, seen = in_terminal("status", env={**machine.env, **environ})
        assert not re.search(r"\x1b\[3[0-9]m|\x1b\[[0-9;]*3[1-3]", seen), environ
        assert "runway" in seen


def test_a_stream_that_is_not_utf8_is_not_a_reason_to_fail(machine: Machine) -> None:
    for encoding, commands in (("ascii", every(machine)), ("cp1251", every(machine)[-1:])):
        env = {**machine.env, "PYTHONIOENCODING": encoding}
        for words in commands:
            run = run_console(*words, env=env)
            assert run.returncode in (0, 69), (words, run.stderr)
            assert run.stdout.decode(encoding)
        document = run_console(*commands[-1], "--json", env=env).stdout
        assert json.loads(document.decode(encoding))


def test_a_reader_that_leaves_is_not_a_bug(machine: Machine) -> None:
    process = subprocess.Popen(
        command_line("show", generation(machine, "failed")),
        env=machine.env,
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read().decode()
    process.stderr.close()
    process.wait()
    assert "Traceback" not in said


def test_a_full_disk_is_a_sentence(machine: Machine) -> None:
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            command_line("status"), env=machine.env, cwd=CHECKOUT, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert run.returncode == 75
    assert b"error: the answer could not be written" in run.stderr
    assert b"Traceback" not in run.stderr


def test_the_report_of_what_recovered_has_its_outage_and_of_what_failed_its_cause(machine: Machine) -> None:
    recovered = json.loads(text_of(machine, "report", generation(machine, "succeeded"), "--json"))
    assert recovered["recovered"]
    assert [(it["step"], it["failures"]) for it in recovered["outages"]] == [("upscale", 2)]
    assert recovered["mttr_s"] < 60
    failed = json.loads(text_of(machine, "report", generation(machine, "failed"), "--json"))
    assert failed["cause"]["error_code"] == "ERR_BUSINESS_REJECTED"
    assert any("moderation" in it for it in failed["recommendations"])


def test_the_spend_is_what_the_vendors_billed(machine: Machine) -> None:
    document = json.loads(text_of(machine, "spend", "--json"))
    counted = {row["step"]: row["calls"] for row in document["by_step"]}
    assert counted["upscale"] == machine.billed("upscale")
    assert counted["imagine"] == machine.billed("imagine")
    assert counted["content"] == machine.billed("chat")
    assert counted["runway"] == machine.billed("runway") - 1  # of one of them nobody knows yet
    assert document["today"]["pipelines"][0]["reserved_usd"] > 0


def test_a_look_changes_nothing(machine: Machine) -> None:
    before = machine.snapshot()
    for words in every(machine):
        text_of(machine, *words)
    assert machine.snapshot() == before


def test_a_look_disturbs_no_manager_at_work(machine: Machine) -> None:
    lease = DirectoryBucket(str(machine.bucket)).lease("story", "host-a:17")
    try:
        run = run_console("status", "--json", env=machine.env)
        assert json.loads(run.stdout)["pipelines"][0]["lease"]["owner"] == "host-a:17"
        lease.check()
    finally:
        lease.release()
    assert not machine.leased


def test_the_doctor_in_the_sandbox_pays_nothing(machine: Machine) -> None:
    before = machine.sandbox.bill().total
    env = {**machine.env, "RETAKE_SANDBOX_URL": machine.sandbox.url}
    run = run_console("doctor", "--test-request", env=env)
    assert run.returncode == 0, run.stdout.decode()
    assert machine.sandbox.bill().total == before


def test_no_key_is_shown_by_any_command(machine: Machine) -> None:
    for words in every(machine):
        seen = text_of(machine, *words) + text_of(machine, *words, "--json")
        assert "the-key-for" not in seen


def test_a_missing_bucket_is_reported(machine: Machine, tmp_path: Path) -> None:
    env = {**machine.env, "RETAKE_STORAGE_URL": f"file:{tmp_path}/none/bucket"}
    run = run_console("status", env=env)
    assert run.returncode == 75
    assert run.stderr.startswith(b"error: ")
    assert run.stdout == b""


def test_help_is_quick(machine: Machine) -> None:
    """Help loads neither rich nor a database; its time is measured against that of a bare Python."""
    code = "import sys; from retake.console.command import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in ('rich', 'sqlalchemy', 'runwayml', 'requests', 'botocore') if m in sys.modules])"
    run = subprocess.run(
        [*command_line()[:1], "-c", code], env=machine.env, cwd=CHECKOUT, capture_output=True, check=True
    )
    assert run.stdout.decode().splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [["status"], ["dead-letters", "list"], ["spend"]])
def test_a_look_loads_nothing_that_acts_or_checks(machine: Machine, words: list[str]) -> None:
    code = f"import sys; from retake.console.command import main\ntry: main({words})\nexcept SystemExit: pass\n"
    code += "print(*(m for m in sys.modules if m.startswith(tuple(sys.argv[1:]))))"
    acting = ("story.operator_actions", "story.operator_checks", "story.run_mirror", "ticking.tick", "runs.listing")
    unwanted = [*(f"retake.{name}" for name in acting), "asyncio", "concurrent", "hashlib", "pathlib", "random"]
    unwanted += ["PIL", "requests", "rich", "sqlalchemy", "urllib"]
    run = subprocess.run(
        [*command_line()[:1], "-c", code, *unwanted], env=machine.env, cwd=CHECKOUT, capture_output=True, check=True
    )
    assert run.stdout.decode().splitlines()[-1] == ""
