"""Unusable documents, settings, keys and disks: one sentence says what to do, and nothing is harmed."""

import json
import os
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from cron_machine import GEN, ID, KEYS, MANAGER, MIDJOURNEY, PUBLIC, SCRIPTS, Machine, Run, in_order

UNREADABLE = [
    (GEN, b"", "not JSON"),
    (GEN, b'{"generation_id": "2026', "not JSON"),
    (GEN, b"[]", "not an object"),
    (GEN, b'{"generation_id": 7}', "generation_id"),
    (GEN, b'{"generation_id": "../x"}', "generation_id"),
    (MIDJOURNEY, b"\xff\xfe\x00", "not JSON"),
    (MIDJOURNEY, b"null", "not an object"),
    (MIDJOURNEY, b"[" * 100_000, "not JSON"),
    (MIDJOURNEY, b'{"status": "waiting_for_godot"}', "status"),
    (MIDJOURNEY, b'{"status": {"a": 1}}', "status"),
    (MIDJOURNEY, b'{"retry_count": -1}', "retry_count"),
    (MIDJOURNEY, b'{"retries": {"upscale": "two"}}', "retries.upscale"),
    (MIDJOURNEY, b'{"generation": "yes"}', "generation"),
    (MIDJOURNEY, b'{"midjourney_task": {"task_id": ""}}', "midjourney_task.task_id"),
    (MIDJOURNEY, b'{"midjourney_task": {"task_id": "a", "requested_at_utc": "noon"}}', "requested_at_utc"),
    (MIDJOURNEY, b'{"midjourney_results": [1]}', "midjourney_results"),
    (MIDJOURNEY, b'{"pending_call": {"attempt": 1}}', "pending_call.step"),
    (PUBLIC, b'{"generation_id": ["a", 1]}', "generation_id"),
    (PUBLIC, b'{"processing_lock": "no"}', "processing_lock"),
    (PUBLIC, b"{'processing_lock': False}", "not JSON"),
]


def besides_alerts(machine: Machine) -> dict[str, bytes]:
    """Return everything in the bucket but the alerts, which report the failed tick."""
    return {key: data for key, data in machine.snapshot().items() if not key.startswith("alerts/")}


@pytest.mark.parametrize(("key", "content", "field"), UNREADABLE)
def test_a_document_without_sense_is_kept_as_it_is_and_copied_and_nothing_is_done(
    machine: Machine, key: str, content: bytes, field: str
) -> None:
    machine.plant("upscale")
    machine.put(key, content)
    before = machine.snapshot()
    tick = machine.tick()
    assert tick.exit_code == 65
    assert in_order(tick.error, key, field, "fix it by hand", "Do not remove it, nor put an older one", "unreadable/")
    copy = f"unreadable/{Path(key).name}.{sha256(content).hexdigest()[:16]}"
    assert besides_alerts(machine) == {**before, copy: content}
    assert machine.calls() == []


@pytest.mark.parametrize("script", [("fetch_media.py",), ("generate_media.py", "--generation_id", ID)])
def test_a_script_by_hand_refuses_it_too(machine: Machine, script: tuple[str, ...]) -> None:
    machine.plant("upscale")
    machine.put(GEN, b"{")
    done = machine.run(*script)
    assert (done.exit_code, machine.calls()) == (65, [])
    assert in_order(done.error, GEN, "not JSON", "unreadable/")


def test_a_dry_run_of_it_copies_nothing(machine: Machine) -> None:
    machine.put(GEN, b"{")
    assert machine.tick("--dry-run").exit_code == 65
    assert machine.snapshot() == {GEN: b"{"}


def test_a_mended_document_is_all_it_takes(machine: Machine) -> None:
    machine.plant("poll")
    sound = (machine.bucket / MIDJOURNEY).read_bytes()
    machine.put(MIDJOURNEY, sound[:-20])
    assert [machine.tick().exit_code for _ in range(2)] == [65, 65]
    machine.put(MIDJOURNEY, sound)
    assert machine.tick().exit_code == 0
    assert len(machine.files("unreadable")) == 1


def test_a_text_that_is_not_json_is_named(machine: Machine) -> None:
    machine.plant("imagine")
    machine.put(f"666/{ID}.json", b"{")
    tick = machine.tick()
    assert tick.exit_code == 65
    assert in_order(tick.error, f"666/{ID}.json", "not JSON")
    assert machine.calls() == []


@pytest.mark.parametrize("script", SCRIPTS[:2])
@pytest.mark.parametrize("generation_id", ["20990101-0000", "../../etc", "", "a b", "x" * 200])
def test_an_id_that_is_not_under_way_is_refused(machine: Machine, script: str, generation_id: str) -> None:
    machine.plant("upscale")
    before = machine.snapshot()
    done = machine.run(script, "--generation_id", generation_id)
    assert (done.exit_code, machine.snapshot(), machine.calls()) == (65, before, [])
    assert "generation" in done.error


SETTINGS = [
    ({"WORKFLOW": {"max_retries": "three"}}, "WORKFLOW.max_retries"),
    ({"WORKFLOW": {"max_retires": 3}}, "did you mean max_retries"),
    ({"WORKFLOWS": {}}, "did you mean WORKFLOW"),
    ({"WORKFLOW": {"runway_polling_timeout": 900}}, "WORKFLOW.script_timeout_seconds"),
    ({"WORKFLOW": {"on_exhausted": "panic"}}, "WORKFLOW.on_exhausted"),
    ({"IMAGE_GENERATION": {"output_size": "huge"}}, "IMAGE_GENERATION.output_size"),
    ({"API_KEYS": {"openai": {"api_key": "not-a-real-secret"}}}, "API_KEYS.openai.api_key"),
    ({"FILE_PATHS": {"folder_666": "/"}}, "FILE_PATHS.folder_666"),
]


@pytest.mark.parametrize(("settings", "named"), SETTINGS)
def test_settings_that_cannot_be_used_are_named(machine: Machine, settings: object, named: str) -> None:
    machine.settings_file.write_text(json.dumps(settings))
    tick = machine.tick()
    assert (tick.exit_code, machine.bucket.exists()) == (78, False)
    assert named in tick.error
    assert "not-a-real-secret" not in tick.err


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\xff"])
@pytest.mark.parametrize("script", [(MANAGER,), ("fetch_media.py",)])
def test_an_invalid_settings_file_is_named(machine: Machine, script: tuple[str], content: bytes | None) -> None:
    machine.settings_file.unlink()
    if content is not None:
        machine.settings_file.write_bytes(content)
    done = machine.run(*script)
    assert (done.exit_code, machine.bucket.exists()) == (78, False)
    assert str(machine.settings_file) in done.error


@pytest.mark.parametrize("name", KEYS)
def test_a_missing_key_is_named_before_anything_is_changed(machine: Machine, name: str) -> None:
    for folder in ("444", "555"):
        for suffix in ("json", "png", "mp4"):
            machine.put(f"{folder}/20250101-0000.{suffix}", {})
    machine.put(PUBLIC, {"generation_id": ["20250101-0000"]})
    before = machine.snapshot()
    del machine.env[name]
    tick = machine.tick()
    assert (tick.exit_code, besides_alerts(machine), machine.calls()) == (78, before, [])
    assert name in tick.error


def test_a_key_is_asked_for_only_where_it_is_needed(machine: Machine) -> None:
    machine.plant("poll")
    for name in ("MIDJOURNEY_API_KEY", "OPENAI_API_KEY"):
        del machine.env[name]
    machine.env["RUNWAY_API_KEY"] = machine.env.pop("RUNWAYML_API_SECRET")  # its other name
    assert machine.tick().exit_code == 0


def test_a_script_by_hand_names_the_key_it_lacks(machine: Machine) -> None:
    machine.plant("imagine")
    before = machine.snapshot()
    machine.env["MIDJOURNEY_API_KEY"] = ""
    done = machine.run("generate_media.py", "--generation_id", ID)
    assert (done.exit_code, machine.snapshot()) == (78, before)
    assert "MIDJOURNEY_API_KEY" in done.error


PROMPTS = {
    "missing": (None, "cannot be read"),
    "broken": ("{", "line 1"),
    "of another kind": ("[]", "calls"),
    "incomplete": ('{"calls": []}', "no call asks for first_frame_description"),
    "with an unknown key": ('{"calls": [{"name": "a", "keys": ["poem"], "system": "", "user": ""}]}', "poem"),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts_that_cannot_be_used_are_named_and_nothing_is_paid(machine: Machine, case: str) -> None:
    content, said = PROMPTS[case]
    prompts = machine.folder / "prompts.json"
    if content is not None:
        prompts.write_text(content)
    machine.set(FILE_PATHS={"prompts": str(prompts)})
    tick = machine.tick()
    assert (tick.exit_code, machine.calls()) == (78, [])
    assert in_order(tick.error, "prompts.json", said)
    assert machine.status is None


def no_place(machine: Machine) -> str:
    return f"file:{machine.folder / 'not-mounted' / 'bucket'}"


def a_file(machine: Machine) -> str:
    machine.bucket.write_text("here lies a file")
    return f"file:{machine.bucket}"


def below_a_file(machine: Machine) -> str:
    (machine.folder / "file").write_text("here lies a file")
    return f"file:{machine.folder / 'file' / 'bucket'}"


def not_writable(machine: Machine) -> str:
    """Return a path at which not even root may create a folder."""
    return "file:/proc/bucket"


NO_BUCKET = [
    *((place, script) for place in (no_place, a_file, below_a_file) for script in ("", "--dry-run", "fetch_media.py")),
    *((not_writable, script) for script in ("", "fetch_media.py") if sys.platform == "linux"),
]


@pytest.mark.parametrize(("place", "script"), NO_BUCKET)
def test_a_missing_bucket_is_named(machine: Machine, script: str, place: Callable[[Machine], str]) -> None:
    machine.env["RETAKE_STORAGE_URL"] = url = place(machine)
    done = machine.run(script) if script in SCRIPTS else machine.tick(*filter(None, [script]))
    assert (done.exit_code, machine.calls()) == (75, [])
    assert Path(url.removeprefix("file:")).parent.name in done.error


def test_a_folder_where_a_document_should_be_is_named(machine: Machine) -> None:
    (machine.bucket / PUBLIC).mkdir(parents=True)
    (machine.bucket / PUBLIC / "a.txt").touch()
    tick = machine.tick()
    assert (tick.exit_code, machine.calls()) == (75, [])
    assert tick.said("a folder has that name")


def with_a_disk_for(machine: Machine, size: int) -> Run:
    """Run a tick that can write no file of more than `size` bytes, as a full disk does to all but tiny files."""
    limited = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0})); os.execv(sys.argv[1], {1})"
    )
    return machine.tick(by=[sys.executable, "-c", limited.format(size, "sys.argv[1:]")])


@pytest.mark.parametrize("size", [0, 24])
def test_with_a_full_disk_nothing_is_begun(machine: Machine, size: int) -> None:
    tick = with_a_disk_for(machine, size)
    assert (tick.exit_code, machine.files(), machine.calls()) == (75, set(), [])
    assert tick.said("File too large")
    assert tick.said("ulimit")
    assert machine.tick("--dry-run").exit_code == 0


def test_a_disk_that_is_full_before_a_paid_call_costs_nothing_and_the_next_tick_goes_on(machine: Machine) -> None:
    machine.plant("download")
    before = machine.snapshot()
    machine.set(IMAGE_GENERATION={"output_size": "1920x1080"})
    tick = with_a_disk_for(machine, 5_000)  # enough for documents, but not for a picture
    assert (tick.exit_code, machine.billed("runway")) == (75, 0)
    assert tick.said(f"write 666/{ID}.png")
    assert machine.doc == json.loads(before[MIDJOURNEY])
    assert machine.read(PUBLIC)["processing_lock"] is False
    assert machine.tick().exit_code == 0
    assert machine.generation_id is None


def test_a_bucket_of_an_older_program_is_taken_over(machine: Machine) -> None:
    """Its documents contain only what an earlier program wrote, and its lock was left by a crash."""
    machine.plant("upscale")
    machine.put(PUBLIC, {"processing_lock": True, "generation_id": [], "empty": []})
    doc = machine.doc
    machine.put(MIDJOURNEY, {"midjourney_task": None, "midjourney_results": doc["midjourney_results"], "status": ""})
    tick = machine.tick()
    assert (tick.exit_code, machine.generation_id) == (0, None)
    assert tick.said("the last tick did not finish")
    assert machine.read(PUBLIC)["processing_lock"] is False


def test_no_environment_at_all_is_told_what_is_needed(machine: Machine) -> None:
    machine.env = {"RETAKE_CONFIG": machine.env["RETAKE_CONFIG"]}
    machine.cwd = machine.folder / "empty"
    machine.cwd.mkdir()
    tick = machine.tick()
    assert tick.exit_code == 78
    assert all(name in tick.error for name in KEYS)
    assert os.listdir(machine.cwd) in ([], ["bucket"])
