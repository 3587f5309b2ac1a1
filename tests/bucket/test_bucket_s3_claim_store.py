"""The meaning of the store's answers to a conditional claim."""

from typing import Any, cast

import pytest

from retake.bucket.s3.client import AnswerLost, RequestRefused, S3Client, S3Place
from retake.bucket.s3.leases import S3ClaimStore
from retake.bucket.s3.looks import LookingS3Claims
from retake.errors import StorageError


class Answers:
    """A client whose conditional claim is answered with `error`; afterwards the claim `left`, if any, is there."""

    def __init__(self, error: Exception, left: bytes | None) -> None:
        self._error, self._left = error, left

    def once(self, operation: str, **request: Any) -> dict[str, Any]:
        if "IfNoneMatch" not in request:
            return {"ResponseMetadata": {"HTTPHeaders": {"date": "Thu, 01 Jan 2026 00:00:00 GMT"}}}
        raise self._error

    def ask(self, doing: str, operation: str, **request: Any) -> dict[str, Any]:
        if self._left is None:
            raise RequestRefused(404, "NoSuchKey", "there is no such key")
        return {"Body": self._left}

    def failed(self, doing: str, error: Exception) -> StorageError:
        return StorageError(f"{doing}: {error}")


def claimed(error: Exception, left: bytes | None) -> bool:
    client = cast(S3Client, Answers(error, left))
    return S3ClaimStore(client, S3Place("bucket", "", "http://127.0.0.1:1", None)).claim_if_absent("claim", "ours")


def test_a_claim_that_was_refused_and_is_gone_since_was_somebody_elses() -> None:
    assert claimed(RequestRefused(412, "PreconditionFailed", "it is there"), None) is False


def test_whose_claim_is_there_says_the_nonce() -> None:
    for error in (RequestRefused(412, "PreconditionFailed", "it is there"), AnswerLost("cut")):
        assert claimed(error, b"theirs") is False
        assert claimed(error, b"ours") is True


@pytest.mark.parametrize("error", [AnswerLost("cut"), RequestRefused(409, "ConditionalRequestConflict", "at it")])
def test_a_claim_of_unknown_outcome_is_a_failure_of_the_store(error: Exception) -> None:
    with pytest.raises(StorageError):
        claimed(error, None)


def test_storing_an_object_to_learn_the_time_wins_no_claim() -> None:
    client = cast(S3Client, Answers(RequestRefused(412, "PreconditionFailed", "it is there"), b"theirs"))
    store = LookingS3Claims(client, S3Place("bucket", "", "http://127.0.0.1:1", None))
    store.claim("scratch/0123456789abcdef")
    assert store.claim_if_absent("claim", "ours") is False
