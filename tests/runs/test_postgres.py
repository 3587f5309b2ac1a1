"""The tests' own PostgreSQL server: where its programs are found, and what happens to tests without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from postgres import MISSING, NoServer, programs

HERE = Path(__file__).parent
ONE = "test_ledger_sql.py::TestPostgres::test_a_new_run_is_queued_and_seen_by_another_client"


def test_a_folder_that_is_named_is_the_one(tmp_path: Path) -> None:
    for name in ("initdb", "pg_ctl", "postgres"):
        (tmp_path / name).touch()
    assert programs({"RETAKE_POSTGRES": str(tmp_path), "PATH": os.environ["PATH"]}) == tmp_path


def test_a_folder_without_the_programs_is_ignored() -> None:
    with pytest.raises(NoServer, match="sudo apt install postgresql"):
        programs({"RETAKE_POSTGRES": "none"})


def without_server(**more: str) -> str:
    """Return pytest's output for a test that needs the missing server."""
    environ = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", str(HERE / ONE)],
        env={**environ, "RETAKE_POSTGRES": "none", **more},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout


def test_without_a_server_its_tests_are_skipped_and_say_what_to_install() -> None:
    said = without_server()
    assert "1 skipped" in said
    assert MISSING in said


def test_on_a_build_machine_they_fail() -> None:
    said = without_server(CI="true")
    assert "1 error" in said
    assert MISSING in said
