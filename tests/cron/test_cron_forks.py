"""A busy tick starts a single Python: its script is a fork, and a poll loads no more than it needs."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cron_buckets import KINDS, BucketMachine, bucket_machine, places_in_clouds
from cron_machine import MANAGER, Machine, Vendors

UNUSED = {"click", "email", "http.client", "httpx", "requests", "ssl", "urllib3", "subprocess", "PIL", "pydantic"}
"""Modules that polls and busy ticks do not need."""


def imported(machine: Machine) -> list[str]:
    """Run a tick that succeeds; return every module that its processes loaded, as often as it was loaded."""
    machine.env["PYTHONPROFILEIMPORTTIME"] = "1"
    process = machine.start(MANAGER)
    _, err = process.communicate()
    assert process.returncode == 0, err
    return re.findall(r"import time: +\d+ \| +\d+ \| *([\w.]+)", err)


def test_a_poll_is_a_fork_that_loads_what_it_needs(patient: Machine) -> None:
    patient.plant("imagine")
    assert patient.tick().exit_code == 0
    before = len(patient.calls("fetch"))
    modules = imported(patient)
    assert len(patient.calls("fetch")) == before + 1
    assert modules.count("site") == 1, "a single Python was started"
    assert modules.count("retake.story.settings") == 1, "each module was loaded once"
    assert "h11" in modules
    assert not UNUSED & set(modules)


@pytest.fixture(params=KINDS)
def anywhere(
    request: pytest.FixtureRequest, tmp_path: Path, patient_vendors: Vendors, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BucketMachine]:
    """Run on B2 and S3, where a thread of the manager renews the lease."""
    with (
        places_in_clouds() as place,
        bucket_machine(request.param, tmp_path, patient_vendors, place, monkeypatch) as machine,
    ):
        yield machine


def test_a_paid_call_is_a_fork_too(anywhere: BucketMachine) -> None:
    anywhere.plant("imagine")
    modules = imported(anywhere)
    assert anywhere.billed("imagine") == 1
    assert modules.count("site") == 1
    assert modules.count("retake.story.settings") == 1
    assert modules.count("requests") == 1


def test_a_poll_of_a_video_does_without_the_sdk(machine: Machine) -> None:
    machine.plant("poll")
    modules = imported(machine)
    assert len(machine.files("666")) == 3, "the video is there"
    assert not {"runwayml", "httpx", "pydantic"} & set(modules)


def test_with_ticks_until_all_is_done_each_script_is_a_python_of_its_own(patient: Machine, tmp_path: Path) -> None:
    """A process that lives long may be older than the files that its forks would load."""
    patient.plant("imagine")
    patient.env["PYTHONPROFILEIMPORTTIME"] = "1"
    with open(tmp_path / "err", "w") as err:
        process = patient.start(MANAGER, "--until-done", "--interval", "0", stderr=err)
        patient.await_call("fetch")
        process.terminate()
        process.wait()
    assert len(re.findall(r"\| *site\b", (tmp_path / "err").read_text())) >= 3, "the manager, the order, the poll"
