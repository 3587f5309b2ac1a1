"""A whole generation, made in every way in which the scripts can be run."""

import os
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
from cron_machine import CHECKOUT, ID, LONG_S, MANAGER, PUBLIC, Machine
from PIL import Image

from retake.media.video import check_video
from retake.story.content import KEYS as TEXT_KEYS

PAID = {"chat": 3, "imagine": 1, "upscale": 1, "runway": 1}


def assert_finished(machine: Machine, generation_id: str) -> None:
    """Check that text, picture and video are there and valid, nothing is under way, and each paid call was made
    once."""
    text = machine.read(f"666/{generation_id}.json")
    assert text.keys() == {"generation_id", *TEXT_KEYS, "created_at"}
    with Image.open(machine.bucket / f"666/{generation_id}.png") as picture:
        assert (picture.format, picture.size) == ("PNG", (320, 180))
    assert check_video((machine.bucket / f"666/{generation_id}.mp4").read_bytes()).codec == "h264"
    assert machine.generation_id is None
    assert machine.status is None
    assert machine.read(PUBLIC)["processing_lock"] is False
    assert {kind: machine.billed(kind) for kind in PAID} == PAID


def test_where_the_vendors_are_quick_one_tick_makes_a_generation(machine: Machine) -> None:
    tick = machine.tick()
    assert tick.exit_code == 0, tick.err
    [text] = (key for key in machine.files("666") if key.endswith(".json"))
    assert_finished(machine, Path(text).stem)


def test_ticks_wait_for_each_vendor_in_turn(patient: Machine) -> None:
    statuses = []
    for _ in range(2):
        statuses.append((patient.tick().exit_code, patient.status))  # ordered
        before = patient.doc
        statuses.append((patient.tick().exit_code, patient.status))  # asked: still running
        assert patient.doc == before
        patient.vendors.later()
    generation_id = patient.generation_id
    statuses.append((patient.tick().exit_code, patient.status))  # ordered, and asked until the polling time was over
    statuses.append((patient.tick().exit_code, patient.status))
    patient.vendors.later()
    statuses.append((patient.tick().exit_code, patient.status))
    assert statuses == [
        *[(0, "waiting_for_imagine")] * 2,
        *[(0, "waiting_for_upscale")] * 2,
        (75, "runway_poll_timeout"),
        (0, "waiting_for_runway"),
        (0, None),
    ]
    assert generation_id
    assert_finished(patient, generation_id)
    assert patient.billed("fetch") == 6


def test_until_done_ends_with_the_generation(machine: Machine) -> None:
    machine.order("upscale#1=500", "poll#1=502-html")
    run = machine.until_done()
    assert run.exit_code == 0, run.err
    [text] = (key for key in machine.files("666") if key.endswith(".json"))
    assert_finished(machine, Path(text).stem)
    for what in ("upscale failed", "runway_poll failed", "the generation is finished", text):
        assert what in run.out


def test_until_done_begins_no_other_generation_however_many_tasks_a_tick_may_do(machine: Machine) -> None:
    machine.set(WORKFLOW={"max_tasks_per_run": 2})
    machine.order("upscale#1=500")
    run = machine.until_done()
    assert run.exit_code == 0, run.err
    assert {kind: machine.billed(kind) for kind in PAID} == PAID
    assert machine.generation_id is None


def test_the_three_scripts_by_hand_each_take_the_lease_themselves(machine: Machine) -> None:
    steps = [
        ("generate_content.py", "--generation_id", ID),
        ("generate_media.py", "--generation_id", ID),  # imagine
        ("fetch_media.py",),
        ("generate_media.py", "--generation-id", ID),  # upscale
        ("fetch_media.py",),
        ("generate_media.py", "--generation_id", ID),  # the video
    ]
    for step in steps:
        done = machine.run(*step)
        assert done.exit_code == 0, done.err
    assert machine.generation_id == ID  # only the manager can say that it is finished
    assert machine.tick().exit_code == 0
    assert_finished(machine, ID)


def test_a_script_by_hand_makes_way_for_a_manager_at_work(machine: Machine) -> None:
    by_hand_is_gone = threading.Event()
    machine.set(WORKFLOW={"call_timeout_seconds": LONG_S})
    machine.plant("imagine")
    machine.vendors.on_call = lambda call: by_hand_is_gone.wait(LONG_S)  # the vendor answers nobody before
    manager = machine.start(MANAGER)
    machine.await_call("imagine")
    by_hand = machine.run("generate_media.py", "--generation_id", ID)
    assert by_hand.exit_code == 75
    assert f":{manager.pid} " in by_hand.error  # it says who is at work
    by_hand_is_gone.set()
    assert machine.finish(manager).exit_code == 0
    assert machine.billed("imagine") == 1


def test_a_mock_by_hand_needs_no_vendor(machine: Machine) -> None:
    machine.plant("imagine")
    done = machine.run("generate_media.py", "--generation_id", ID, "--use-mock")
    assert done.exit_code == 0, done.err
    assert machine.calls() == []
    video = check_video((machine.bucket / f"666/{ID}.mp4").read_bytes())
    assert (video.width, video.height, video.fps, video.pixel_format) == (320, 180, 10, "yuv420p")
    assert video.duration_s == pytest.approx(0.5, abs=0.05)
    assert machine.tick().exit_code == 0
    assert machine.generation_id is None


def test_without_any_variable_the_current_folder_has_settings_and_bucket(machine: Machine) -> None:
    machine.plant("runway")
    shutil.copytree(machine.bucket, machine.cwd / "elsewhere" / "bucket")
    (machine.cwd / "elsewhere/config").mkdir()
    machine.settings_file.rename(machine.cwd / "elsewhere/config/config.json")
    machine.cwd = machine.cwd / "elsewhere"
    for variable in ("RETAKE_CONFIG", "RETAKE_STORAGE_URL"):
        del machine.env[variable]
    others = {".hypothesis", ".pytest_cache"}  # which concurrent tests may create
    checkout = set(os.listdir(CHECKOUT)) | others
    done = machine.tick()
    assert done.exit_code == 0, done.err
    assert (machine.cwd / f"bucket/666/{ID}.mp4").exists()
    assert set(os.listdir(CHECKOUT)) | others == checkout


def test_published_generations_move_up_and_end_in_the_archive(machine: Machine) -> None:
    """Three generations, the oldest of which was published."""
    for folder, name in (("444", "20250101-0000"), ("555", "20250102-0000"), ("666", "20250103-0000")):
        for suffix in ("json", "png", "mp4"):
            machine.put(f"{folder}/{name}.{suffix}", {"of": name})
    machine.put(PUBLIC, {"processing_lock": False, "generation_id": ["20250101-0000"], "ours": [1]})
    machine.order("chat=500")
    assert machine.tick().exit_code == 75
    folders = Counter(key.partition(".")[0] for key in machine.files() if "2025" in key)
    assert folders == {"archive/20250101-0000": 3, "444/20250102-0000": 3, "555/20250103-0000": 3}
    public = {"processing_lock": False, "generation_id": [], "ours": [1], "empty": ["666/"]}
    assert machine.read(PUBLIC) == public


def test_a_picture_whose_video_the_cap_holds_back_is_saved(machine: Machine) -> None:
    machine.plant("download")
    machine.set(WORKFLOW={"daily_cap_usd": 0.01})
    for _ in range(2):
        assert machine.tick().exit_code == 75
    assert f"666/{ID}.png" in machine.files()
    assert [call.kind for call in machine.calls()] == ["download"]


def test_a_full_house_rests_without_a_vendor(machine: Machine) -> None:
    for folder in ("444", "555", "666"):
        for suffix in ("json", "png", "mp4"):
            machine.put(f"{folder}/20250101-000{folder[0]}.{suffix}", {})
    assert machine.tick().exit_code == 0
    before = machine.snapshot()
    tick = machine.tick()
    assert (tick.exit_code, machine.snapshot(), machine.calls()) == (0, before, [])
    assert tick.said("nothing to do")


def test_documents_keep_what_is_not_ours(machine: Machine) -> None:
    machine.plant("poll")
    machine.put("config/config_midjourney.json", {**machine.doc, "of_another_program": {"a": 1}})
    assert machine.tick().exit_code == 0
    assert machine.doc["of_another_program"] == {"a": 1}
