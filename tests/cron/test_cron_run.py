"""The command that `make run` shows, in a folder with nothing but settings: no account, no keys, and real pictures and
videos."""

import os
import re
import shlex
import subprocess

import pytest
from cron_machine import CHECKOUT, KEYS, MANAGER, PUBLIC, Machine
from PIL import Image

from retake.media.video import check_video


def arguments_of_make_run() -> list[str]:
    [line] = re.findall(rf"^\tRETAKE_STORAGE_URL=\S+ \S+ {MANAGER} (.*)$", (CHECKOUT / "Makefile").read_text(), re.M)
    return shlex.split(line)


@pytest.fixture
def fresh(machine: Machine) -> Machine:
    """Return a machine with the checkout's own settings, no keys, and an empty bucket."""
    machine.settings_file.write_text((CHECKOUT / "config/config.json").read_text())
    for name in KEYS:
        del machine.env[name]
    return machine


def test_a_generation_with_two_failures_from_topic_to_video(fresh: Machine) -> None:
    arguments = arguments_of_make_run()
    assert arguments == ["--sandbox", "--until-done", "--order", "upscale#1-2=500"]
    run = fresh.tick(*arguments)
    assert run.exit_code == 0, run.err
    [name] = {key.partition(".")[0] for key in fresh.files("666")}
    with Image.open(fresh.bucket / f"{name}.png") as picture:
        picture.load()
        assert (picture.format, picture.size) == ("PNG", (1280, 720))
    video = check_video((fresh.bucket / f"{name}.mp4").read_bytes())
    assert (video.width, video.height, video.codec, video.pixel_format) == (1280, 720, "h264", "yuv420p")
    assert video.duration_s == pytest.approx(10, abs=0.2)
    assert fresh.read(f"{name}.json")["topic"] in run.err
    assert run.out.count("upscale failed") == 2
    assert "attempt 2/3 for status upscale_trigger_failed: retried" in run.out
    for suffix in ("json", "png", "mp4"):
        assert f"{fresh.bucket}/{name}.{suffix}" in run.out
    assert re.search(r"upscale +3 calls, +1 carried out", run.out)
    assert re.search(r"total +0\.\d+ USD", run.out)
    assert fresh.read(PUBLIC)["processing_lock"] is False
    told = run.out.partition("To look closer\n")[2].split("\n")
    for line, expected in zip(told, ("No generation is under way", "the upscaled picture is ready"), strict=False):
        command, env = ["/bin/sh", "-c", line], {"PATH": os.environ["PATH"]}
        looked = subprocess.run(command, cwd=fresh.cwd, env=env, capture_output=True, text=True, check=False)
        assert looked.returncode == 0, (line, looked.stderr)
        assert expected in looked.stdout


def test_the_sandbox_stays_away_from_a_live_bucket(fresh: Machine) -> None:
    fresh.env["RETAKE_STORAGE_URL"] = "b2://stories/live"
    run = fresh.tick("--sandbox")
    assert run.exit_code == 78
    assert "RETAKE_STORAGE_URL=file:PATH" in run.error
