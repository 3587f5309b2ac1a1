"""The examples for cron, systemd and GitHub Actions work as written: checked line by line, run with a stand-in for the
program, and read by the real tools where those are installed."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from retake import errors
from retake.keys import KEYS
from retake.story import options, work

ROOT = Path(__file__).parent.parent
CRONTAB = ROOT / "crontab.example"
UNITS = sorted((ROOT / "systemd").iterdir())
WORKFLOWS = sorted((ROOT / ".github/workflows").iterdir())
RUNNING = (ROOT / "docs/running.md").read_text("utf-8")
INSTALLED_IN = "/opt/retake"
KEYS_FILE = "/etc/retake.env"
FIELDS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]  # minute, hour, day, month, weekday


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Create a folder like /opt/retake whose program records how it was called, and exits with `$CODE`."""
    program = tmp_path / "opt/.venv/bin/python"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$PWD $* $RUNWAYML_API_SECRET $RETAKE_STORAGE_URL"\nexit ${CODE:-0}\n')
    program.chmod(0o755)
    (tmp_path / "keys").write_text("RUNWAYML_API_SECRET=a-key\n")
    return tmp_path


def moved(text: str, place: Path) -> str:
    return text.replace(INSTALLED_IN, str(place / "opt")).replace(KEYS_FILE, str(place / "keys"))


def run(
    *command: str | Path, env: Mapping[str, str] = os.environ, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command], env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


# cron


def cron_job() -> tuple[list[str], str]:
    """Return the five fields and the command of the only job in the example."""
    lines = [line for line in CRONTAB.read_text().splitlines() if line.strip() and not line.startswith("#")]
    jobs = [line for line in lines if not re.match(r"[A-Z_]+=", line)]
    assert len(jobs) == 1
    *fields, command = jobs[0].split(maxsplit=5)
    return fields, command


def test_the_crontab_has_five_fields_in_range() -> None:
    for field, (low, high) in zip(cron_job()[0], FIELDS, strict=True):
        for part in field.split(","):
            times, _, step = part.partition("/")
            assert not step or 1 <= int(step) <= high
            assert times == "*" or all(low <= int(number) <= high for number in times.split("-"))
    assert "%" not in cron_job()[1]  # cron would read it as the end of the line
    assert CRONTAB.read_bytes().endswith(b"\n")  # cron ignores a last line without it


@pytest.mark.skipif("dry run" not in str(shutil.which("crontab") and run("crontab", "-h")), reason="a cron without -n")
def test_cron_itself_accepts_the_crontab() -> None:
    checked = run("crontab", "-n", CRONTAB)
    assert checked.returncode == 0, checked.stderr


def test_the_cron_line_runs_a_tick_with_the_keys_and_appends_to_the_log(installed: Path) -> None:
    env = {"HOME": str(installed), "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}  # the environment that cron provides
    for _ in range(2):
        run("/bin/sh", "-c", moved(cron_job()[1], installed), env=env)
    line = f"{installed}/opt b2_storage_manager.py a-key \n"
    assert (installed / "retake.log").read_text() == line * 2


def test_a_cron_line_without_its_keys_runs_nothing_and_the_log_says_why(installed: Path) -> None:
    (installed / "keys").unlink()
    env = {"HOME": str(installed), "PATH": "/usr/bin:/bin"}
    assert run("/bin/sh", "-c", moved(cron_job()[1], installed), env=env).returncode != 0
    assert f"{installed}/keys" in (installed / "retake.log").read_text()


# systemd


def unit(name: str) -> dict[str, dict[str, str]]:
    """Return the sections of a unit file; fail on a line that is not a section, a setting or a comment."""
    sections: dict[str, dict[str, str]] = {}
    for line in (ROOT / "systemd" / name).read_text().splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            settings = sections.setdefault(heading[1], {})
        elif line and not line.startswith("#"):
            setting = re.fullmatch(r"([A-Z]\w+)=(.*)", line)
            assert setting, line
            assert setting[1] not in settings, line
            settings[setting[1]] = setting[2]
    return sections


def test_the_service_runs_one_tick_as_its_own_user() -> None:
    assert unit("retake.service").keys() == {"Unit", "Service"}
    service = unit("retake.service")["Service"]
    assert service["Type"] == "oneshot"
    assert service["User"] not in ("", "root")
    assert service["WorkingDirectory"] == INSTALLED_IN
    program, script = service["ExecStart"].split()
    assert program == f"{INSTALLED_IN}/.venv/bin/python"
    assert (ROOT / script).is_file()


def test_what_is_tried_again_by_the_next_tick_is_not_a_failure_of_the_service() -> None:
    assert unit("retake.service")["Service"]["SuccessExitStatus"] == str(errors.StorageError.exit_code)


def test_a_stop_waits_longer_than_a_script_may_take() -> None:
    from retake.story.settings import Workflow

    assert int(unit("retake.service")["Service"]["TimeoutStopSec"]) > Workflow().script_timeout_seconds
    assert unit("retake.service")["Service"]["KillMode"] == "mixed"


def test_the_timer_starts_the_service_every_few_minutes_and_at_boot() -> None:
    timer = unit("retake.timer")
    assert re.fullmatch(r"\*:0/([1-9]|[1-5]\d)", timer["Timer"]["OnCalendar"])
    assert timer["Install"]["WantedBy"] == "timers.target"
    names = {path.name for path in UNITS} - {"retake-music.service"}
    assert names == {"retake.service", "retake.timer"}  # they share a name, so the timer starts the service


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="a machine without systemd")
def test_systemd_itself_accepts_the_units(installed: Path) -> None:
    copies = [installed / path.name for path in UNITS]
    for path, copy in zip(UNITS, copies, strict=True):
        copy.write_text(moved(path.read_text(), installed))
    checked = run("systemd-analyze", "verify", *copies)
    assert checked.returncode == 0, checked.stderr
    assert [line for line in checked.stderr.splitlines() if "retake" in line] == []  # it warns of unknown settings


# GitHub Actions


def workflow(name: str) -> Any:
    return YAML(typ="safe").load(ROOT / ".github/workflows" / name)


def step(name: str, starts: str) -> dict[str, Any]:
    """Return the only step of the workflow whose command contains `starts`."""
    (job,) = workflow(name)["jobs"].values()
    (found,) = [step for step in job["steps"] if starts in step.get("run", "")]
    return dict(found)


def test_the_workflows_are_what_github_accepts() -> None:
    checked = run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)
    assert checked.returncode == 0, checked.stdout


def test_a_scheduled_tick_is_never_cancelled_by_the_next_one() -> None:
    generate = workflow("generate.yml")
    assert generate["concurrency"]["cancel-in-progress"] is False
    assert "schedule" in generate["on"]
    assert "workflow_dispatch" in generate["on"]
    for text in generate["on"]["schedule"]:
        assert re.fullmatch(r"\*/\d+ \* \* \* \*", text["cron"])


def test_the_state_is_kept_where_it_outlives_the_run() -> None:
    (job,) = workflow("generate.yml")["jobs"].values()
    assert job["runs-on"] == "ubuntu-latest"
    assert job["timeout-minutes"] > 0
    assert (
        step("generate.yml", "b2_storage_manager.py")["env"]["RETAKE_STORAGE_URL"] == "${{ vars.RETAKE_STORAGE_URL }}"
    )


@pytest.mark.parametrize(("code", "seen"), [(0, 0), (75, 0), (69, 69), (65, 65), (70, 70), (78, 78)])
def test_a_run_is_red_only_when_a_person_is_needed(installed: Path, code: int, seen: int) -> None:
    command = step("generate.yml", "b2_storage_manager.py")["run"]
    done = run("bash", "-e", "-c", command, env={"PATH": "/usr/bin:/bin", "CODE": str(code)}, cwd=installed / "opt")
    assert done.returncode == seen
    assert ("::warning::" in done.stdout) == (code == 75)


def test_the_tests_run_on_every_python_that_is_promised() -> None:
    (job,) = workflow("test.yml")["jobs"].values()
    promised = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    assert promised[:1] == ["3.11"]
    assert job["strategy"]["matrix"]["python"] == promised
    assert step("test.yml", "make test")


# all of them


def test_the_examples_and_the_page_name_each_key_as_the_program_reads_it() -> None:
    secrets = {name for name in step("generate.yml", "b2_storage_manager.py")["env"] if name != "RETAKE_STORAGE_URL"}
    bucket = {"B2_APPLICATION_KEY_ID", "B2_APPLICATION_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert secrets == {variables[0] for variables, _ in KEYS.values()} | bucket
    for name in secrets - bucket:
        assert f"\n    {name}=" in RUNNING
    assert all(f"`{name}`" in RUNNING for name in bucket)


def test_the_page_explains_every_exit_code_that_there_is() -> None:
    explained = {int(code) for code in re.findall(r"^\| (\d+) \|", RUNNING, re.MULTILINE)}
    raised = {kind.exit_code for kind in vars(errors).values() if hasattr(kind, "exit_code")}
    helped = CliRunner().invoke(options.main, ["--help"]).output
    assert explained >= raised
    assert explained == {int(code) for code in re.findall(r"^ +(\d+)  ", helped, re.MULTILINE)}


def test_the_page_names_only_files_and_options_that_exist() -> None:
    for path in re.findall(r"`((?:\.github|systemd|config|docs)/[\w./-]*)`|\]\(([\w.-]+\.md)\)", RUNNING):
        assert (ROOT / path[0]).exists() if path[0] else (ROOT / "docs" / path[1]).exists(), path
    helped = "".join(CliRunner().invoke(it, ["--help"]).output for it in (options.main, work.main))
    assert set(re.findall(r"(?:py |`)(--[a-z-]+)", RUNNING)) <= set(re.findall(r"--[a-z-]+", helped))


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_keep_no_credentials(workflow: Path) -> None:
    text = workflow.read_text("utf-8")
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, version in used:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r"  # v\d+\.\d+\.\d+", version), action
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
