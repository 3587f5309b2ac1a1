"""Where leases expire, a call must end before its lease does."""

import json
from pathlib import Path
from typing import Any

import pytest

from retake.errors import SettingsError
from retake.story.settings import load_settings

RUNS_OUT = ("b2://bucket/story", "s3://bucket/story?endpoint=http://127.0.0.1:1")


def call_timeout(tmp_path: Path, url: str, **workflow: Any) -> float:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"STORAGE": {"url": url}, "WORKFLOW": workflow}))
    return load_settings({"RETAKE_CONFIG": str(file)}).workflow.call_timeout_seconds


@pytest.mark.parametrize("url", RUNS_OUT)
@pytest.mark.parametrize(("ttl", "left_out"), [(40, 30), (120, 90), (600, 90)])
def test_left_out_it_is_90_or_three_quarters_of_the_lease(
    tmp_path: Path, url: str, ttl: float, left_out: float
) -> None:
    assert call_timeout(tmp_path, url, lock_ttl_seconds=ttl) == left_out
    assert call_timeout(tmp_path, "file:bucket", lock_ttl_seconds=ttl) == 90


@pytest.mark.parametrize("url", RUNS_OUT)
def test_one_that_a_lease_may_not_outlast_is_refused_naming_both(tmp_path: Path, url: str) -> None:
    assert call_timeout(tmp_path, url, lock_ttl_seconds=100, call_timeout_seconds=80) == 80
    with pytest.raises(SettingsError) as refused:
        call_timeout(tmp_path, url, lock_ttl_seconds=100, call_timeout_seconds=81)
    assert refused.value.exit_code == 78
    assert "WORKFLOW.call_timeout_seconds: found 81, allowed: at most 80" in str(refused.value)
    assert "WORKFLOW.lock_ttl_seconds (100)" in str(refused.value)


def test_the_bucket_that_the_environment_names_counts(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"WORKFLOW": {"call_timeout_seconds": 100}}))
    environ = {"RETAKE_CONFIG": str(file)}
    assert load_settings(environ).workflow.call_timeout_seconds == 100
    with pytest.raises(SettingsError, match="lock_ttl_seconds"):
        load_settings({**environ, "RETAKE_STORAGE_URL": RUNS_OUT[0]})


def test_on_a_directory_a_call_may_take_as_long_as_it_likes(tmp_path: Path) -> None:
    assert call_timeout(tmp_path, "file:bucket", lock_ttl_seconds=1, call_timeout_seconds=900) == 900
