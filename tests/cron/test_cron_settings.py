"""The settings that other programs rely on: each has its documented effect."""

import json
import shutil
from itertools import pairwise

import pytest
from cron_machine import CHECKOUT, ID, KEYS, MIDJOURNEY, Machine
from PIL import Image

from retake.media.video import check_video


def test_what_the_vendors_are_asked_for_is_what_the_settings_say(machine: Machine) -> None:
    machine.set(
        API_KEYS={
            "midjourney": {
                **machine.sandbox.endpoints()["midjourney"],
                "process_mode": "relax",
                "aspect_ratio": "3:4",
            },
            "runwayml": {**machine.sandbox.endpoints()["runwayml"], "model_name": "gen4.5"},
            "openai": {**machine.sandbox.endpoints()["openai"], "model": "a-model-of-ours"},
        },
        VIDEO={"runway_duration": 7, "runway_ratio": "960:960"},
        IMAGE_GENERATION={"output_size": "240x200"},
    )
    assert machine.tick().exit_code == 0
    assert {call.request["model"] for call in machine.calls("chat")} == {"a-model-of-ours"}
    assert {call.request["response_format"]["type"] for call in machine.calls("chat")} == {"json_object"}
    [imagine], [upscale], [runway] = (machine.calls(kind) for kind in ("imagine", "upscale", "runway"))
    assert (imagine.request["input"]["process_mode"], imagine.request["input"]["aspect_ratio"]) == ("relax", "3:4")
    assert upscale.request["input"] == {"origin_task_id": imagine.task_id, "index": "1"}
    assert {key: runway.request[key] for key in ("model", "ratio", "duration")} == {
        "model": "gen4.5",
        "ratio": "960:960",
        "duration": 7,
    }
    [picture] = (machine.bucket / "666").glob("*.png")
    with Image.open(picture) as image:
        assert image.size == (240, 200)


def test_runway_is_asked_for_what_its_model_has(machine: Machine) -> None:
    """The ratio of an older settings file and a length that this model lacks become the nearest that it has."""
    machine.set(VIDEO={"runway_duration": 7, "runway_ratio": "1280:768"})
    machine.plant("runway")
    assert machine.tick().exit_code == 0
    [runway] = machine.calls("runway")
    assert (runway.request["ratio"], runway.request["duration"]) == ("1280:720", 5)


def test_documents_and_folders_are_where_the_settings_say(machine: Machine) -> None:
    places = {
        "config_public": "state/public.json",
        "config_gen": "state/gen.json",
        "config_midjourney": "state/mj.json",
        "folder_444": "d/",
        "folder_555": "e/",
        "folder_666": "in/here/",
        "archive_folder": "old/",
    }
    machine.set(FILE_PATHS=places)
    for folder, name in (("d", "20250101-0000"), ("e", "20250102-0000"), ("in/here", "20250103-0000")):
        for suffix in ("json", "png", "mp4"):
            machine.put(f"{folder}/{name}.{suffix}", {})
    machine.put("state/public.json", {"generation_id": ["20250101-0000"]})
    assert machine.tick().exit_code == 0
    folders = {"old/20250101-0000", "d/20250102-0000", "e/20250103-0000"}
    others = ("state/", "config/", "spend/", "caps/", "runs/", "kpi/")
    found = {key.rpartition(".")[0] for key in machine.files() if not key.startswith(others)}
    assert found > folders
    [made] = found - folders
    assert made.startswith("in/here/20")
    assert machine.files("state") == {"state/public.json", "state/gen.json", "state/mj.json"}
    assert machine.read("state/public.json")["empty"] == ["in/here/"]
    assert machine.files("config") == {"config/topics.json"}


def test_the_mock_is_as_long_and_as_large_as_the_settings_say(machine: Machine) -> None:
    machine.set(
        VIDEO={"mock_duration": 1.5, "mock_fps": 12, "mock_codec": "mpeg4"},
        IMAGE_GENERATION={"output_size": [200, 120]},
    )
    machine.plant("imagine")
    machine.put(MIDJOURNEY, {"status": "timed_out_mock_needed"})
    assert machine.tick().exit_code == 0
    video = check_video((machine.bucket / f"666/{ID}.mp4").read_bytes())
    assert (video.width, video.height, video.fps, video.codec) == (200, 120, 12, "mpeg4")
    assert video.duration_s == pytest.approx(1.5, abs=0.1)
    with Image.open(machine.bucket / f"666/{ID}.png") as picture:
        assert picture.size == (200, 120)


def test_a_storage_url_in_the_file_is_overridden_by_the_environment(machine: Machine) -> None:
    machine.set(STORAGE={"url": "file:from-the-file"})
    machine.order("chat=500")
    machine.tick()
    assert machine.generation_id
    assert not (machine.cwd / "from-the-file").exists()
    del machine.env["RETAKE_STORAGE_URL"]
    machine.tick()
    assert (machine.cwd / "from-the-file/config/config_gen.json").exists()  # relative to the current folder


def test_a_tick_does_as_many_tasks_as_it_may(machine: Machine) -> None:
    machine.set(WORKFLOW={"max_tasks_per_run": 2})
    assert machine.tick().exit_code == 0
    assert machine.billed("runway") == 2
    assert len(machine.files("666") | machine.files("555")) == 6


def test_the_picture_that_the_vision_chooses_is_upscaled(machine: Machine) -> None:
    machine.set(IMAGE_GENERATION={"pick": "vision"})
    machine.plant("upscale")
    assert machine.tick().exit_code == 0
    [chat], [upscale] = machine.calls("chat"), machine.calls("upscale")
    assert sum(part["type"] == "image_url" for part in chat.request["messages"][-1]["content"]) == 4
    assert upscale.request["input"]["index"] in ("1", "2", "3", "4")
    assert machine.generation_id is None


def test_a_choice_that_fails_is_the_first_picture(machine: Machine) -> None:
    machine.set(IMAGE_GENERATION={"pick": "vision"})
    machine.plant("upscale")
    machine.order("chat=500", "fetch=401")
    machine.tick()
    assert [call.request["input"]["index"] for call in machine.calls("upscale")] == ["1"]


def test_the_polling_interval_and_time_are_those_of_the_settings(machine: Machine) -> None:
    machine.set(WORKFLOW={"runway_polling_interval": 0.4, "runway_polling_timeout": 4})
    machine.plant("runway")
    machine.order("runway=never-ends")
    assert machine.tick().exit_code == 75
    moments = [call.when for call in machine.calls("poll")]
    assert 2 <= len(moments) <= 11
    assert min(after - before for before, after in pairwise(moments)) >= 0.4


def test_prompts_beside_the_settings_file_are_taken_before_those_of_the_checkout(machine: Machine) -> None:
    prompts = json.loads((CHECKOUT / "config/prompts.json").read_text())
    prompts["calls"][0]["system"] = "Answer in JSON. You speak like a pirate."
    (machine.settings_file.parent / "prompts.json").write_text(json.dumps(prompts))
    machine.order("chat#2=500")
    machine.tick()
    assert "like a pirate" in machine.calls("chat")[0].request["messages"][0]["content"]


def test_topics_that_were_used_are_told_to_the_writer(machine: Machine) -> None:
    machine.put("config/topics.json", {"topics": {"20250101-0000": "Why cats hate Mondays"}})
    machine.order("chat#2=500")
    machine.tick()
    assert "Why cats hate Mondays" in json.dumps(machine.calls("chat")[0].request["messages"])


def test_no_tick_imports_the_pipelines_that_the_console_shows(machine: Machine) -> None:
    """Neither a whole generation with its reports, figures and alerts, nor one tick that finds nothing to do."""
    machine.set(PIPELINES={"poems": "poems:Poems"}, KPI={"textfile": str(machine.folder / "retake.prom")})
    (machine.cwd / "poems.py").write_text("open('imported', 'w').close()\n")
    machine.env["PYTHONPATH"] = str(machine.cwd)  # so that an import would find it
    assert machine.until_done().exit_code == 0
    assert machine.tick().exit_code == 0
    assert not (machine.cwd / "imported").exists()


def test_the_shipped_settings_file_is_one_that_works(machine: Machine) -> None:
    """The file of the checkout, except for its vendors, which the sandbox's variable replaces."""
    shutil.copy(CHECKOUT / "config/config.json", machine.settings_file)
    machine.env["RETAKE_SANDBOX_URL"] = machine.sandbox.url
    for name in KEYS:
        del machine.env[name]
    machine.order("imagine=500")
    tick = machine.tick()
    assert (tick.exit_code, machine.status) == (75, "imagine_trigger_failed")
    assert not [message for message in tick.messages if "not known" in message]
