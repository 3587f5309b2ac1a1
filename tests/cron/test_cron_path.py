"""The number of files that a reader opens who follows one upscale from cron to the bucket and back."""

import json
from pathlib import Path

from cron_machine import Machine

GROUND = ("clock.py", "errors.py", "exit_codes.py", "foreign_text.py", "keys.py", "logs.py", "strict_json.py")
"""Files that every path passes through and no reader follows."""

MOST = 44
"""Files of the package on the path of an upscale, in the tick and in the script; the goal is 25."""

AFTERWARDS = ("alerts/", "degraded/", "kpi/", "operations/", "story/operat", "story/facts.py", "ticking/watch.py")
AFTERWARDS_TOO = {"retrying/breaker.py", "retrying/state_store.py", "runs/history.py"}
"""Files that look at the pipelines after a tick that did something: figures, breakers, alerts. No call goes through
them."""

MOST_AFTERWARDS = 22


def test_one_upscale_passes_through_few_files(patient: Machine, tmp_path: Path) -> None:
    patient.plant("upscale")
    patient.env["RETAKE_PROFILE"] = str(tmp_path / "profile")
    patient.env["PYTHONPATH"] = str(Path(__file__).parent / "profiled")
    assert patient.tick().exit_code == 0
    assert patient.billed("upscale") == 1
    processes = [json.loads(line) for line in (tmp_path / "profile").read_text().splitlines()]
    assert {"b2_storage_manager.py", "generate_media.py"} <= {it["program"] for it in processes}
    found = {name for it in processes if it["program"] != "fetch_media.py" for name in it["files"]}
    afterwards = {name for name in found if name.startswith(AFTERWARDS)} | AFTERWARDS_TOO & found
    path = sorted(found.difference(GROUND, afterwards))
    print(len(found), len(path), *path, *sorted(afterwards), sep="\n")  # noqa: T201  pytest -s shows them
    assert len(path) <= MOST
    assert len(afterwards) <= MOST_AFTERWARDS
