"""Errors: their classes and codes, the exit codes they lead to, their records, and the redaction of texts."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.errors import (
    Code,
    ErrorClass,
    LeaseHeld,
    LeaseLost,
    OutcomeUnknown,
    PollFailed,
    Refused,
    RetakeError,
    SettingsError,
    StateError,
    Stopped,
    StorageError,
    TaskFailed,
    VendorError,
    error_record,
    escalate,
    hide,
    in_words,
    redact,
    retry_in,
)

NOW = datetime(2026, 5, 4, 3, 2, 1, 999_999, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("prefix", "error_class", "exit_code"),
    [
        ("ERR_TEMPORARY_", ErrorClass.TEMPORARY, 75),
        ("ERR_BUSINESS_", ErrorClass.BUSINESS, 69),
        ("ERR_CRITICAL_", ErrorClass.CRITICAL, 78),
    ],
)
def test_the_prefix_of_a_code_is_its_class_and_the_class_is_the_exit_code(
    prefix: str, error_class: ErrorClass, exit_code: int
) -> None:
    codes = [code for code in Code if code.value.startswith(prefix)]
    assert codes
    assert {code.error_class for code in codes} == {error_class}
    assert {VendorError(code, "x").exit_code for code in codes} == {exit_code}


def test_every_code_has_a_class_and_a_name_of_its_own() -> None:
    assert all(re.fullmatch(r"ERR_(TEMPORARY|BUSINESS|CRITICAL)_[A-Z_]+", code.value) for code in Code)
    assert len({code.value for code in Code}) == len(Code.__members__)


@pytest.mark.parametrize(
    ("code", "error_class"),
    [
        (Code.RATE_LIMIT, "A"),
        (Code.CONFLICT, "A"),
        (Code.TASK_FAILED, "A"),
        (Code.REJECTED, "B"),
        (Code.MISSING, "B"),
        (Code.UNAUTHORIZED, "C"),
        (Code.OUT_OF_CREDIT, "C"),
    ],
)
def test_what_trying_again_can_and_cannot_mend(code: Code, error_class: str) -> None:
    assert Refused(code, "x").error_class == error_class


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (RetakeError("x"), 70),
        (SettingsError("x"), 78),
        (StateError("x"), 65),
        (StorageError("x"), 75),
        (LeaseHeld("x"), 75),
        (LeaseLost("x"), 75),
        (Stopped("x"), 75),
        (Refused(Code.NETWORK, "x"), 75),
        (TaskFailed(Code.REJECTED, "x"), 69),
        (OutcomeUnknown(Code.UNAUTHORIZED, "x"), 78),
    ],
)
def test_an_error_knows_what_a_command_ends_with(error: RetakeError, exit_code: int) -> None:
    assert (error.exit_code, str(error)) == (exit_code, "x")


def test_the_four_ways_a_vendor_fails_are_kept_apart() -> None:
    kinds = [Refused, OutcomeUnknown, PollFailed, TaskFailed]
    for kind in kinds:
        assert [other for other in kinds if issubclass(kind, other)] == [kind]
        assert issubclass(kind, VendorError)


def test_a_vendor_error_carries_how_long_to_wait() -> None:
    assert Refused(Code.RATE_LIMIT, "x", retry_after_s=2.5).retry_after_s == 2.5
    assert Refused(Code.RATE_LIMIT, "x").retry_after_s is None


def test_the_record_has_the_fields_of_the_protocol() -> None:
    record = error_record(
        OutcomeUnknown(Code.TIMEOUT, "no answer from https://api.example/v1?key=abc"),
        now=NOW,
        robot_id="generate_media",
        correlation_id="20260504-0102",
        retry_count=2,
        input_data={"step": "imagine"},
        recovery_actions=(retry_in(5), escalate("operator", "look at the vendor's page")),
    )
    assert UUID(record.pop("error_id")).version == 4
    assert record == {
        "correlation_id": "20260504-0102",
        "timestamp": "2026-05-04T01:02:01Z",
        "robot_id": "generate_media",
        "error_class": "A",
        "error_code": "ERR_TEMPORARY_TIMEOUT",
        "message": "no answer from https://api.example/v1?…",
        "details": {
            "input_data": {"step": "imagine"},
            "system_context": {"error": "OutcomeUnknown"},
            "retry_count": 2,
            "last_attempt": "2026-05-04T01:02:01Z",
        },
        "recovery_actions": [
            {"action": "RETRY", "delay_seconds": 5},
            {"action": "ESCALATE", "recipient": "operator", "what": "look at the vendor's page"},
        ],
    }


def test_the_record_is_plain_json_with_an_id_of_its_own() -> None:
    error = Refused(Code.NETWORK, "x")
    first, second = (
        error_record(error, now=datetime(2026, 1, 1, tzinfo=UTC), robot_id="r", correlation_id="c", retry_count=0)
        for _ in range(2)
    )
    assert json.loads(json.dumps(first)) == first
    assert first["error_id"] != second["error_id"]
    assert (first["details"]["input_data"], first["recovery_actions"]) == ({}, [])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET https://cdn.example/a.png?X-Amz-Signature=abc&e=1 failed", "GET https://cdn.example/a.png?… failed"),
        ('{"url": "http://h/x?sig=abc", "n": 1}', '{"url": "http://h/x?…", "n": 1}'),
        ("https://a/1?x=1 and https://b/2?y=2", "https://a/1?… and https://b/2?…"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer …"),
        ("x-api-key: abcdef, status 401", "x-api-key: …, status 401"),
        ("key_0123456789abcdef was refused", "key_… was refused"),
    ],
)
def test_credentials_and_signatures_are_cut_out(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text", ["", "why? because", "https://host/path", "key_frame", "API key missing", "а как же? https://хост/путь"]
)
def test_what_is_not_a_credential_stays(text: str) -> None:
    assert redact(text) == text


WORDS = st.sampled_from(
    ["https://h/p?s=1", "?", "…", "Bearer", "basic", "x-api-key:", "key_0123456789abcdef", "'a'", "="]
)


@given(st.lists(WORDS, max_size=12).map(" ".join))
def test_cutting_twice_cuts_no_more(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@given(st.from_regex(r"[A-Za-z0-9%&=_.-]{8,40}", fullmatch=True), st.sampled_from(['"', "'", " ", "\n", ">", ""]))
def test_nothing_of_a_urls_query_survives(query: str, end: str) -> None:
    assert query not in redact(f"see https://bucket.example/file.mp4?{query}{end}")


@pytest.mark.parametrize(
    "around", ["Authorization: Bearer {}", "{{'X-API-Key': '{}'}}", '{{"x-api-key":"{}"}}', "BASIC {}"]
)
@given(token=st.from_regex(r"zq[A-Za-z0-9_.-]{6,60}", fullmatch=True))
def test_no_credential_of_a_header_survives(around: str, token: str) -> None:
    assert token not in redact(around.format(token))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:pass@host/a", "https://…@host/a"),
        ("the key sk-abcdefgh1234 is bad", "the key sk-… is bad"),
        ("basically basic", "basically basic"),
    ],
)
def test_redact_hides_no_less_and_no_more(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_only_the_type_of_another_librarys_error_is_shown() -> None:
    assert in_words(OSError("https://hooks.example/T0/secret")) == "OSError"
    assert in_words(StorageError("https://bucket.example/a?token=1 is away")) == redact(
        "https://bucket.example/a?token=1 is away"
    )
    assert "token" not in in_words(StorageError("https://bucket.example/a?token=1 is away"))


def test_a_secret_that_begins_with_another_is_hidden_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retake.errors._hidden", set())
    secrets = ["correct-horse"[:length] for length in range(8, 14)]
    hide(secrets)
    assert [redact(f"{it} is refused") for it in secrets] == ["… is refused"] * 6
