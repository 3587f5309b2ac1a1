"""Uploads to S3 that are cut between a vendor's answer and its record: nothing is paid for twice.

After a cut upload the store has either nothing of it or everything, without an answer: both are tested.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from s3_server import KEYS, moto_server, new_bucket
from s3_zoo import Animal, Answer, Asked, Zoo, loses_the_answer, loses_the_request, tame, times, zoo
from test_full_disk import assert_paid_once, tick
from test_paid_calls import BEFORE, DOCUMENT, before

from retake.bucket.s3 import S3Bucket
from retake.bucket.s3.conditions import forget
from retake.clock import FakeClock


@pytest.fixture(scope="module")
def proxy() -> Iterator[Zoo]:
    with moto_server() as endpoint, zoo(endpoint) as it:
        yield it


@pytest.fixture
def bucket(proxy: Zoo, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NO_PROXY", "*")
    forget()
    proxy.animal = tame
    yield S3Bucket(new_bucket(proxy.endpoint), clock=FakeClock(), patience_s=5)
    proxy.animal = tame


def saves_the_document(asked: Asked) -> bool:
    return asked.method == "PUT" and asked.path.endswith(f"/{DOCUMENT}")


@pytest.mark.parametrize("cut", [loses_the_request, loses_the_answer])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("kind", BEFORE)
def test_an_answer_whose_upload_is_cut_is_saved_in_the_end(
    kind: str, count: int, cut: Animal, proxy: Zoo, bucket: Any
) -> None:
    world, cuts = before(kind, bucket), []
    pay = world.vendors.pay

    def cutting(asked: Asked) -> Answer:
        cuts.append(asked.path)
        return cut(asked)

    def paid(what: str) -> str:
        answer = pay(what)
        if what == kind:
            proxy.animal = times(count, saves_the_document, cutting)
        return answer

    world.vendors.pay = paid
    tick(world)
    proxy.animal = tame
    assert_paid_once(world, kind, f"after {len(cuts)} cuts")
    assert len(cuts) == (count if cut is loses_the_request else len(cuts)) >= 1
