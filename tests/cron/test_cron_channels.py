"""Channels with the real scripts: each paid call runs in its own subprocess, started from a thread of the manager."""

import json

import pytest
from cron_machine import MANAGER, Machine


def two_channels(machine: Machine) -> None:
    settings = json.loads(machine.settings_file.read_text())
    machine.settings_file.write_text(json.dumps({**settings, "CHANNELS": ["north", "south"]}))


def test_one_tick_makes_a_generation_in_each_channel(machine: Machine) -> None:
    two_channels(machine)
    tick = machine.tick()
    assert tick.exit_code == 0, tick.error
    for channel in ("north", "south"):
        files = [path.suffix for path in (machine.bucket / channel / "666").iterdir()]
        assert sorted(files) == [".json", ".mp4", ".png"]
    assert machine.billed("runway") == 2


@pytest.mark.parametrize("named", ["option", "variable"])
def test_what_is_about_one_channel_is_told_which(machine: Machine, named: str) -> None:
    two_channels(machine)
    machine.order("imagine=401")
    arguments = ["--channel", "north"] if named == "option" else []
    if named == "variable":
        machine.env["RETAKE_CHANNEL"] = "north"
    dry = machine.run(MANAGER, "--dry-run", *arguments)
    assert (dry.exit_code, "would begin" in dry.out) == (0, True)
    written = machine.run("generate_content.py", "--generation_id", "20260101-0930", *arguments)
    assert written.exit_code == 0, written.error
    assert (machine.bucket / "north/666/20260101-0930.json").exists()
    assert not (machine.bucket / "south").exists()


@pytest.mark.parametrize(
    "command", [[MANAGER, "--dry-run"], ["fetch_media.py"], ["generate_media.py", "--generation_id", "20260101-0930"]]
)
def test_a_command_that_names_no_channel_is_told_how(machine: Machine, command: list[str]) -> None:
    two_channels(machine)
    run = machine.run(*command)
    assert run.exit_code == 78
    assert "CHANNELS (north, south): name it by --channel NAME, or in RETAKE_CHANNEL" in run.error
