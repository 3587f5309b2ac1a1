"""A fast sandbox and a client of its vendors."""

from collections.abc import Iterator

import pytest
import requests
from sandbox_customer import AT_ONCE, Customer

from retake.sandbox import Sandbox


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(seed=7, pace=AT_ONCE, quick=True) as started:
        yield started


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        opened.trust_env = False
        yield opened


@pytest.fixture
def customer(sandbox: Sandbox, session: requests.Session) -> Customer:
    return Customer(sandbox, session)
