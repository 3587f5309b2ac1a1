"""The contract, on an S3-compatible store over real HTTP."""

import pytest
from contract import BucketContract, Connect
from s3_server import new_bucket

from retake.bucket.s3 import S3Bucket


@pytest.mark.usefixtures("s3_keys")
class TestS3(BucketContract):
    tells_the_time = True
    threads = 3
    rounds = 4
    examples = 5

    @pytest.fixture
    def connect(self, s3_endpoint: str) -> Connect:
        url = new_bucket(s3_endpoint)
        return lambda: S3Bucket(url)


class TestS3Versioned(TestS3):
    @pytest.fixture
    def connect(self, s3_endpoint: str) -> Connect:
        url = new_bucket(s3_endpoint, versioned=True)
        return lambda: S3Bucket(url)
