"""Channels with the real scripts: what pays runs in a subprocess of its own, begun from a thread of the manager."""

import json

from cron_machine import Machine


def test_one_tick_makes_a_generation_in_each_channel(machine: Machine) -> None:
    settings = json.loads(machine.settings_file.read_text())
    machine.settings_file.write_text(json.dumps({**settings, "CHANNELS": ["north", "south"]}))
    tick = machine.tick()
    assert tick.exit_code == 0, tick.error
    for channel in ("north", "south"):
        files = [path.suffix for path in (machine.bucket / channel / "666").iterdir()]
        assert sorted(files) == [".json", ".mp4", ".png"]
    assert machine.billed("runway") == 2
