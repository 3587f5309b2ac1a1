"""Alerts in a bucket of S3, over real HTTP: several machines at once."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from delivery_world import send_once

from retake.bucket import open_bucket

sys.path.append(str(Path(__file__).parents[1] / "bucket"))
from s3_server import KEYS, moto_server, new_bucket


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with moto_server() as endpoint:
        yield new_bucket(endpoint)


def test_of_several_machines_one_sends(url: str) -> None:
    send_once(lambda: open_bucket(url))
