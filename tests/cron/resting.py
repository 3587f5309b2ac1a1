"""A machine that has nothing to do, and whether its tick rests."""

from cron_machine import GEN, PUBLIC, Machine, Run

from retake.ticking.rest import LookFile, look_file

RESTS = "nothing has changed since the full look"


def put_nothing_to_do(machine: Machine) -> None:
    machine.put(GEN, {"generation_id": None})
    machine.put(PUBLIC, {"processing_lock": False, "generation_id": [], "empty": []})
    for folder, name in (("444", "20250101-0001"), ("555", "20250101-0002"), ("666", "20250101-0003")):
        for suffix in ("json", "png", "mp4"):
            machine.put(f"{folder}/{name}.{suffix}", {})


def look_of(machine: Machine) -> LookFile:
    """Return the file of the remembered look, whether or not it exists."""
    found = look_file({"HOME": str(machine.folder)}, "ticks", str(machine.cwd), machine.env["RETAKE_CONFIG"])
    assert found
    return found


def rested(run: Run) -> bool:
    assert run.exit_code == 0
    return run.said(RESTS)
