"""The contract, on an S3-compatible store over real HTTP."""

from collections.abc import Iterator

import pytest
from contract import BucketContract, Connect
from s3_server import KEYS, moto_server, new_bucket

from retake.bucket.s3 import S3Bucket


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


class TestS3(BucketContract):
    tells_the_time = True
    threads = 3
    rounds = 4
    examples = 5

    @pytest.fixture
    def connect(self, endpoint: str) -> Connect:
        url = new_bucket(endpoint)
        return lambda: S3Bucket(url)


class TestS3Versioned(TestS3):
    @pytest.fixture
    def connect(self, endpoint: str) -> Connect:
        url = new_bucket(endpoint, versioned=True)
        return lambda: S3Bucket(url)
