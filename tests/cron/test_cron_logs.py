"""What people and programs see (log lines, the display on a terminal, --help, --dry-run) and what nobody may see."""

import json
import os
import pty
import re
import sys
from contextlib import suppress

import pytest
from cron_machine import DOORS, ID, KEYS, LONG_S, MANAGER, MIDJOURNEY, Machine, Run

SIGNED = "X-Amz-Signature=0123456789abcdef"


def test_each_line_of_a_generation_names_it_and_its_step(machine: Machine) -> None:
    machine.order("upscale#1=500")
    ticks = [machine.tick() for _ in range(3)]
    [generation_id] = {line.get("generation_id") for tick in ticks for line in tick.lines}
    assert re.fullmatch(r"\d{8}-\d{4}", generation_id)
    assert {line["step"] for tick in ticks for line in tick.lines} >= {"content", "imagine", "upscale", "runway"}
    [retry] = (line for line in ticks[1].lines if line["level"] == "WARNING")
    told = {name: retry[name] for name in ("status", "step", "attempt", "message")}
    assert told == {
        "status": "upscale_trigger_failed",
        "step": "upscale",
        "attempt": 1,
        "message": "attempt 1/3 for status upscale_trigger_failed",
    }
    assert [len({line["run_id"] for line in tick.lines}) for tick in ticks] == [1, 1, 1]
    assert len({tick.lines[0]["run_id"] for tick in ticks}) == 3
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"]) for line in ticks[0].lines)
    assert [tick.out for tick in ticks] == [""] * 3


def test_neither_keys_nor_signatures_are_shown_or_kept(machine: Machine) -> None:
    """The link has a signature, and cannot be downloaded."""
    machine.plant("download")
    doc = machine.doc
    result = doc["midjourney_results"]["task_result"]
    result["image_url"] += f"?{SIGNED}"
    machine.put(MIDJOURNEY, doc)
    machine.set(WORKFLOW={"max_retries": 0})
    machine.order("download=500")
    runs = [machine.tick() for _ in range(2)]
    assert [run.exit_code for run in runs] == [75, 69]
    assert SIGNED not in "".join(run.out + run.err for run in runs)
    report = (machine.bucket / f"dead_letters/{ID}/report.json").read_text()
    assert SIGNED not in report
    assert "/picture.png" in report  # the report still says which link it was
    documents = b"".join(machine.snapshot().values()).decode("utf-8", "replace")
    assert not [key for key in KEYS.values() if key in documents]


def test_keys_are_not_kept_by_anything_that_a_generation_writes(machine: Machine) -> None:
    machine.order("imagine#1=401", "runway=500")
    machine.tick()
    machine.tick("--resume")
    written = b"".join(path.read_bytes() for path in machine.bucket.rglob("*") if path.is_file())
    assert not [key for key in KEYS.values() if key.encode() in written]


def test_settings_of_an_older_program_are_warned_of_once_a_tick_and_not_by_each_script(machine: Machine) -> None:
    machine.set(WORKFLOW={"enable_russian_translation": True}, CREATIVE={"mood": "dry"})
    tick = machine.tick()
    assert sum("unknown settings" in message for message in tick.messages) == 1
    assert tick.said("CREATIVE")


def on_a_terminal(machine: Machine, *arguments: str, **env: str) -> Run:
    """Run a tick whose stderr is a terminal of that width and those capabilities; its display is the run's `err`."""
    ours, theirs = pty.openpty()
    machine.env = {"TERM": "xterm-256color", "COLUMNS": "120", **machine.env, **env}
    process = machine.start(MANAGER, *arguments, stderr=theirs)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # EIO: the other end is closed everywhere
        while data := os.read(ours, 65536):
            shown += data
    os.close(ours)
    assert process.stdout
    out = process.stdout.read()
    return Run(process.wait(LONG_S), out, shown.decode())


@pytest.mark.skipif(sys.platform != "linux", reason="a terminal is left in another way elsewhere")
def test_a_person_at_a_terminal_sees_lines_to_read_and_how_far_it_is(machine: Machine) -> None:
    machine.order("upscale#1=500", "imagine#1=slow=0.5")
    run = on_a_terminal(machine, "--until-done", "--interval", "0")
    assert run.exit_code == 0, run.err
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", run.err)
    assert re.search(r"\d\d:\d\d:\d\d  upscale +warning: attempt 1/3 for status upscale_trigger_failed", plain)
    assert '{"timestamp"' not in plain
    for part in ("text", "pictures", "upscale", "video"):
        assert re.search(rf"[✓·⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] +{part}", plain), part
    assert "retried 1" in plain
    assert "What happened" in run.out
    assert not [key for key in KEYS.values() if key in run.err + run.out]


@pytest.mark.skipif(sys.platform != "linux", reason="a terminal is left in another way elsewhere")
def test_colours_are_left_out_where_they_are_not_wanted(machine: Machine) -> None:
    machine.plant("upscale")
    machine.order("upscale=500")
    assert "\x1b[31m" in on_a_terminal(machine).err
    machine.tick()
    run = on_a_terminal(machine, NO_COLOR="1")
    assert (run.exit_code, "\x1b" in run.err) == (75, False)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_says_what_a_script_is_for_and_names_its_options(machine: Machine, door: str, flag: str) -> None:
    run = machine.run(door, flag)
    assert (run.exit_code, run.err) == (0, "")
    assert run.out.startswith(f"Usage: {door} ")
    options = {
        MANAGER: ["--until-done", "--interval", "--dry-run", "--sandbox", "--order", "--resolve", "--resume"],
        "generate_content.py": ["--generation_id", "--generation-id"],
        "generate_media.py": ["--generation_id", "--use-mock"],
        "fetch_media.py": [],
    }[door]
    assert all(option in run.out for option in options)
    if door == MANAGER:
        assert all(re.search(rf"^ +{code} ", run.out, re.MULTILINE) for code in (0, 75, 69, 65, 78, 70))
        assert all(name in run.out for name in (*KEYS, "RETAKE_CONFIG", "config/config.json"))
    assert not machine.bucket.exists()


WRONG = [
    (MANAGER, "--nonsense"),
    (MANAGER, "word"),
    (MANAGER, "--interval", "soon"),
    (MANAGER, "--interval", "-1"),
    (MANAGER, "--resolve", "perhaps"),
    ("generate_content.py",),
    ("generate_media.py", "--use-mock"),
    (MANAGER, "--retake", ""),
    (MANAGER, "--channel", " "),
    ("fetch_media.py", "--generation_id", ID),
]


@pytest.mark.parametrize("command", WRONG, ids=" ".join)
def test_a_command_line_that_is_wrong_is_answered_with_how_it_is_right(machine: Machine, command: tuple[str]) -> None:
    run = machine.run(*command)
    assert run.exit_code == 2
    assert run.err.startswith("Usage: ")
    assert "Error: " in run.err
    assert not machine.bucket.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--order", "upscale=500"), "--sandbox"),
        (("--sandbox", "--order", "upscale"), "is not an order"),
        (("--sandbox", "--order", "tea=500"), "'tea' is not a kind of call"),
    ],
)
def test_an_order_that_cannot_be_placed_is_named(machine: Machine, arguments: tuple[str, ...], said: str) -> None:
    run = machine.tick(*arguments)
    assert (run.exit_code, machine.bucket.exists()) == (78, False)
    assert said in run.error


STEPS = {
    "imagine": "order the pictures",
    "fetch": "ask Midjourney for the task's state",
    "upscale": "order the upscale",
    "runway": "order the video",
    "poll": "wait for the video",
}


@pytest.mark.parametrize("step", STEPS)
def test_a_dry_run_says_what_a_tick_would_do_and_changes_nothing(machine: Machine, step: str) -> None:
    machine.plant(step)
    before = machine.snapshot()
    run = machine.tick("--dry-run")
    assert (run.exit_code, machine.snapshot(), machine.calls(), run.err) == (0, before, [], "")
    assert f"{ID}: would {STEPS[step]}" in run.out
    assert not (machine.bucket / ".retake").exists()


def test_a_dry_run_of_a_beginning_names_the_moves_and_the_id(machine: Machine) -> None:
    for suffix in ("json", "png", "mp4"):
        machine.put(f"666/20250101-0000.{suffix}", {})
    before = machine.snapshot()
    run = machine.tick("--dry-run", "--until-done")
    assert (run.exit_code, machine.snapshot(), machine.calls()) == (0, before, [])
    assert "would move 666/20250101-0000.png to 555/20250101-0000.png" in run.out
    assert re.search(r"would begin \d{8}-\d{4}$", run.out.strip())


def test_a_dry_run_needs_neither_a_bucket_nor_keys(machine: Machine) -> None:
    for name in KEYS:
        del machine.env[name]
    run = machine.tick("--dry-run")
    assert run.exit_code == 0
    assert "would begin" in run.out
    assert not machine.bucket.exists()


def test_a_log_that_nobody_reads_any_more_stops_nothing(machine: Machine) -> None:
    """cron's mail program is gone: stderr is a pipe without a reader."""
    machine.order("chat#1=slow=0.3")
    manager = machine.start(MANAGER)
    assert manager.stderr
    manager.stderr.close()
    assert manager.wait(LONG_S) == 0
    assert machine.billed("runway") == 1
    assert machine.generation_id is None


def test_a_full_disk_under_the_log_stops_nothing(machine: Machine) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    machine.plant("poll")
    with open("/dev/full", "wb") as full:
        assert machine.start(MANAGER, stderr=full).wait(LONG_S) == 0
    assert machine.generation_id is None


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_stops_nothing(machine: Machine, closed: str) -> None:
    """The next file, the lock of the lease, would get its number, under which a script has a stream of its own."""
    machine.plant("poll")
    without = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh"]
    assert machine.tick("--dry-run", by=without).exit_code == 0
    assert machine.tick(by=without).exit_code == 0
    assert machine.generation_id is None
    by_hand = machine.run("fetch_media.py", by=without)
    assert (by_hand.exit_code, machine.leased) == (0, False)


def test_a_summary_that_cannot_be_written_is_reported_and_the_generation_has_ended(machine: Machine) -> None:
    machine.plant("poll")
    with open("/dev/full", "wb") as full:
        manager = machine.start(MANAGER, "--until-done", "--interval", "0", stdout=full)
        _, err = manager.communicate(timeout=LONG_S)
    assert (manager.returncode, machine.generation_id) == (0, None)
    assert "the summary could not be written: No space left on device" in err
    assert "Traceback" not in err


def test_a_dry_run_that_cannot_be_written_says_so(machine: Machine) -> None:
    with open("/dev/full", "wb") as full:
        dry = machine.start(MANAGER, "--dry-run", stdout=full)
        _, err = dry.communicate(timeout=LONG_S)
    assert (dry.returncode, [json.loads(line)["message"] for line in err.splitlines()]) == (
        75,
        ["the answer could not be written: No space left on device"],
    )
