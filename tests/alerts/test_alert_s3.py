"""Alerts in an S3 bucket over real HTTP, with several machines at once."""

import pytest
from delivery_world import send_once
from s3_server import new_bucket

from retake.bucket import open_bucket


@pytest.fixture
def url(s3_endpoint: str, s3_keys: None) -> str:
    return new_bucket(s3_endpoint)


def test_one_of_several_machines_sends(url: str) -> None:
    send_once(lambda: open_bucket(url))
