"""The contract on B2: the real client against a stand-in that speaks B2's API over HTTP."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from contract import BucketContract, Connect

from retake.bucket.b2.bucket import open_b2
from retake.sandbox.b2 import B2Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[B2Sandbox]:
    with B2Sandbox() as running:
        yield running


class TestB2(BucketContract):
    tells_the_time = True
    all_may_withdraw = True

    @pytest.fixture
    def connect(self, sandbox: B2Sandbox) -> Connect:
        url = sandbox.storage_url(uuid4().hex)
        return lambda: open_b2(url, environ=sandbox.environment())
