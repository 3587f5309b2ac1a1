"""The state documents: what is read from them, what is refused by name, and what stays unchanged."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retake.document_schema import InvalidDocument
from retake.story.documents import (
    FAILED_STEP,
    GROUP,
    Documents,
    GenDocument,
    MidjourneyDocument,
    PendingCall,
    PublicDocument,
    Results,
    Status,
    Step,
    Task,
    parse_gen,
    parse_midjourney,
    parse_public,
    safe_id,
)

PARSERS = {"public": parse_public, "gen": parse_gen, "midjourney": parse_midjourney}


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def midjourney(**keys: Any) -> MidjourneyDocument:
    return parse_midjourney(encoded(keys))


def refused(document: str, value: object) -> str:
    """Return the field for which the document is refused."""
    with pytest.raises(InvalidDocument) as caught:
        PARSERS[document](value if isinstance(value, bytes) else encoded(value))
    field, what = caught.value.args
    assert what
    return str(field)


def properties(document: object) -> dict[str, Any]:
    """Read every property of the document."""
    names = (name for name in dir(type(document)) if isinstance(getattr(type(document), name), property))
    return {name: getattr(document, name) for name in names}


# --- what is read ---------------------------------------------------------------------------------------------------


def test_an_empty_document_says_that_nothing_is_under_way() -> None:
    public, gen, doc = parse_public(b"{}"), parse_gen(b"{}"), parse_midjourney(b"{}")
    assert (public.processing_lock, public.published, public.empty) == (False, [], None)
    assert (gen.generation_id, gen.failed_in_a_row, gen.warned, gen.remembered) == (None, 0, [], [])
    assert (doc.status, doc.generation, doc.task, doc.runway_task, doc.results) == (None, False, None, None, None)
    assert (doc.pending, doc.error.raw, doc.failed_step, doc.retries, doc.draft) == (None, {}, None, {}, {})
    assert doc.present_step is Step.CONTENT
    assert doc.blank


def test_null_means_the_same_as_missing_for_every_key() -> None:
    empty = {name: properties(parse(b"{}")) for name, parse in PARSERS.items()}
    keys = {
        "public": "processing_lock generation_id empty",
        "gen": "generation_id failed_in_a_row warned remembered",
        "midjourney": "status generation midjourney_task midjourney_results runway_task pending_call "
        "retry_count retries last_error content_draft paid_calls failed_step",
    }
    for name, parse in PARSERS.items():
        assert properties(parse(encoded(dict.fromkeys(keys[name].split())))) == empty[name]


def test_the_public_document_is_read() -> None:
    doc = parse_public(encoded({"processing_lock": True, "generation_id": ["a", "b"], "empty": ["444/"]}))
    assert (doc.processing_lock, doc.published, doc.empty) == (True, ["a", "b"], ["444/"])


def test_the_document_of_the_generation_is_read() -> None:
    written = {"generation_id": "20260101-0930", "failed_in_a_row": 2, "warned": ["x"], "remembered": ["y"]}
    doc = parse_gen(encoded(written))
    assert (doc.generation_id, doc.failed_in_a_row, doc.warned, doc.remembered) == ("20260101-0930", 2, ["x"], ["y"])


def test_an_empty_generation_id_means_none() -> None:
    assert parse_gen(encoded({"generation_id": ""})).generation_id is None


@pytest.mark.parametrize("status", Status)
def test_every_status_is_read(status: Status) -> None:
    assert midjourney(status=status.value).status is status


def test_an_empty_status_means_none() -> None:
    assert midjourney(status="").status is None


def test_a_task_is_read_with_its_time_in_utc() -> None:
    task = {"task_id": "t1", "task_type": "upscale", "requested_at_utc": "2026-01-01T10:00:00+01:00"}
    assert midjourney(midjourney_task=task).task == Task("t1", "upscale", datetime(2026, 1, 1, 9, tzinfo=UTC))
    film = {"task_id": "r1", "requested_at_utc": "2026-01-01T09:00:00"}
    assert midjourney(runway_task=film).runway_task == Task("r1", "image_to_video", datetime(2026, 1, 1, 9, tzinfo=UTC))


def test_a_task_without_a_type_is_an_imagine_until_there_are_results_to_upscale() -> None:
    task = {"task_id": "t1"}
    alone = midjourney(midjourney_task=task).task
    after = midjourney(midjourney_task=task, midjourney_results={"task_id": "t0"}).task
    assert alone == Task("t1", "imagine", None)
    assert after == Task("t1", "upscale", None)


def test_results_are_read_and_the_four_pictures_tell_an_imagine_where_the_type_is_missing() -> None:
    four = {"image_url": "g", "temporary_image_urls": ["1", "2", "3", "4"]}
    full = {"task_id": "t1", "task_type": "imagine", "task_result": four, "picked": 2}
    assert midjourney(midjourney_results=full).results == Results("t1", "imagine", four, 2, False)
    assert midjourney(midjourney_results={"task_result": four}).results == Results("", "imagine", four, None, False)
    one = {"image_url": "u"}
    assert midjourney(midjourney_results={"task_result": one}).results == Results("", "upscale", one, None, False)


def test_a_pending_call_is_read_with_everything_that_was_asked() -> None:
    raw = {"step": "imagine", "attempt": 2, "requested_at_utc": "2026-01-01T09:00:00Z", "nonce": 7}
    moment = datetime(2026, 1, 1, 9, tzinfo=UTC)
    assert midjourney(pending_call=raw).pending == PendingCall(Step.IMAGINE, 2, moment, None, 0, raw)
    held = midjourney(pending_call={"step": "runway", "outcome": "unknown"}).pending
    assert held is not None
    assert (held.step, held.attempt, held.requested_at, held.outcome) == (Step.RUNWAY, 1, None, "unknown")


@pytest.mark.parametrize("empty", [None, {}])
@pytest.mark.parametrize("key", ["midjourney_task", "midjourney_results", "runway_task", "pending_call"])
def test_an_empty_object_is_nothing(key: str, empty: object) -> None:
    assert midjourney(**{key: empty}).blank


@pytest.mark.parametrize(
    "something",
    [
        {"midjourney_task": {"task_id": "t"}},
        {"midjourney_results": {"task_id": "t"}},
        {"runway_task": {"task_id": "t"}},
        {"pending_call": {"step": "imagine"}},
        {"content_draft": {"topic": "t"}},
    ],
)
def test_what_was_paid_for_is_not_blank(something: dict[str, Any]) -> None:
    assert not midjourney(**something).blank


def test_a_generation_is_complete_with_its_three_files() -> None:
    documents = Documents(PublicDocument({}), GenDocument({}), MidjourneyDocument({}), frozenset(GROUP))
    assert documents.complete
    assert not documents._replace(files=frozenset({"json", "png"})).complete


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", PARSERS)
@pytest.mark.parametrize(
    "data",
    [
        *(b"", b" ", b"{", b"not json", b'{"a": 1} x', b"[]", b'"text"', b"1", b"null"),
        *(b"\xff", b"\x00", b'{"a": "\xc3"}', b"[" * 100_000, b'{"a": ' * 100_000, b"1" * 5000),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_not_a_json_object_is_refused_as_a_whole(document: str, data: bytes) -> None:
    assert refused(document, data) == "the whole document"


WRONG = [
    ("public", {"processing_lock": "true"}, "processing_lock"),
    ("public", {"processing_lock": 1}, "processing_lock"),
    ("public", {"generation_id": "20260101-0930"}, "generation_id"),
    ("public", {"generation_id": ["a", 1]}, "generation_id"),
    ("public", {"generation_id": {}}, "generation_id"),
    ("public", {"empty": "444/"}, "empty"),
    ("public", {"empty": [None]}, "empty"),
    ("gen", {"generation_id": 20260101}, "generation_id"),
    ("gen", {"generation_id": ["a"]}, "generation_id"),
    ("gen", {"generation_id": "../x"}, "generation_id"),
    ("gen", {"generation_id": ".hidden"}, "generation_id"),
    ("gen", {"generation_id": "a b"}, "generation_id"),
    ("gen", {"generation_id": "a\n"}, "generation_id"),
    ("gen", {"generation_id": "x" * 65}, "generation_id"),
    ("gen", {"failed_in_a_row": -1}, "failed_in_a_row"),
    ("gen", {"failed_in_a_row": True}, "failed_in_a_row"),
    ("gen", {"failed_in_a_row": 1.0}, "failed_in_a_row"),
    ("gen", {"warned": "x"}, "warned"),
    ("gen", {"remembered": [[]]}, "remembered"),
    ("midjourney", {"status": "waiting"}, "status"),
    ("midjourney", {"status": 1}, "status"),
    ("midjourney", {"status": []}, "status"),
    ("midjourney", {"generation": "yes"}, "generation"),
    ("midjourney", {"failed_step": "paint"}, "failed_step"),
    ("midjourney", {"retry_count": -1}, "retry_count"),
    ("midjourney", {"retry_count": "1"}, "retry_count"),
    ("midjourney", {"retry_count": True}, "retry_count"),
    ("midjourney", {"retries": []}, "retries"),
    ("midjourney", {"retries": {"imagine": -1}}, "retries.imagine"),
    ("midjourney", {"retries": {"imagine": 1.5}}, "retries.imagine"),
    ("midjourney", {"midjourney_task": "t"}, "midjourney_task"),
    ("midjourney", {"midjourney_task": {"task_type": "imagine"}}, "midjourney_task.task_id"),
    ("midjourney", {"midjourney_task": {"task_id": " "}}, "midjourney_task.task_id"),
    ("midjourney", {"midjourney_task": {"task_id": 7}}, "midjourney_task.task_id"),
    ("midjourney", {"midjourney_task": {"task_id": "t", "task_type": "zoom"}}, "midjourney_task.task_type"),
    (
        "midjourney",
        {"midjourney_task": {"task_id": "t", "requested_at_utc": "now"}},
        "midjourney_task.requested_at_utc",
    ),
    ("midjourney", {"midjourney_task": {"task_id": "t", "requested_at_utc": 5}}, "midjourney_task.requested_at_utc"),
    ("midjourney", {"runway_task": {"task_id": None, "x": 1}}, "runway_task.task_id"),
    ("midjourney", {"runway_task": {"task_id": "t", "requested_at_utc": "x"}}, "runway_task.requested_at_utc"),
    (
        "midjourney",
        {"runway_task": {"task_id": "t", "requested_at_utc": "0001-01-01T00:00:00+10:00"}},
        "runway_task.requested_at_utc",
    ),
    ("midjourney", {"midjourney_results": ["u"]}, "midjourney_results"),
    ("midjourney", {"midjourney_results": {"task_id": 1}}, "midjourney_results.task_id"),
    ("midjourney", {"midjourney_results": {"task_type": "zoom"}}, "midjourney_results.task_type"),
    ("midjourney", {"midjourney_results": {"task_result": "u"}}, "midjourney_results.task_result"),
    (
        "midjourney",
        {"midjourney_results": {"task_result": {"image_url": 1}}},
        "midjourney_results.task_result.image_url",
    ),
    (
        "midjourney",
        {"midjourney_results": {"task_result": {"temporary_image_urls": "u"}}},
        "midjourney_results.task_result.temporary_image_urls",
    ),
    ("midjourney", {"midjourney_results": {"task_id": "t", "picked": -1}}, "midjourney_results.picked"),
    ("midjourney", {"midjourney_results": {"task_id": "t", "picked": 5}}, "midjourney_results.picked"),
    ("midjourney", {"pending_call": []}, None),
    ("midjourney", {"pending_call": [1]}, "pending_call"),
    ("midjourney", {"pending_call": {"attempt": 1}}, "pending_call.step"),
    ("midjourney", {"pending_call": {"step": "paint"}}, "pending_call.step"),
    ("midjourney", {"pending_call": {"step": 3}}, "pending_call.step"),
    ("midjourney", {"pending_call": {"step": "mock"}}, "pending_call.step"),
    ("midjourney", {"pending_call": {"step": "fetch"}}, "pending_call.step"),
    ("midjourney", {"pending_call": {"step": "imagine", "attempt": "x"}}, "pending_call.attempt"),
    ("midjourney", {"pending_call": {"step": "imagine", "outcome": 1}}, "pending_call.outcome"),
    ("midjourney", {"pending_call": {"step": "imagine", "requested_at_utc": "x"}}, "pending_call.requested_at_utc"),
    ("midjourney", {"pending_call": {"step": "imagine", "price_usd": -1}}, "pending_call.price_usd"),
    ("midjourney", {"spend": {"day": 5}}, "spend.day"),
    ("midjourney", {"spend": {"settled_usd": True}}, "spend.settled_usd"),
    ("midjourney", {"spend": {"reserved_usd": float("nan")}}, "spend.reserved_usd"),
    ("midjourney", {"last_error": "x"}, "last_error"),
    ("midjourney", {"content_draft": []}, None),
    ("midjourney", {"content_draft": "x"}, "content_draft"),
    ("midjourney", {"paid_calls": {"a": 1}}, "paid_calls"),
    ("midjourney", {"paid_calls": ["x"]}, "paid_calls"),
]


@pytest.mark.parametrize(("document", "value", "field"), [row for row in WRONG if row[2]], ids=str)
def test_an_invalid_document_is_refused_and_the_field_is_named(document: str, value: object, field: str) -> None:
    assert refused(document, value) == field


def test_the_fault_is_shown_but_not_at_any_length() -> None:
    with pytest.raises(InvalidDocument) as caught:
        parse_midjourney(encoded({"status": "x" * 10_000}))
    assert len(str(caught.value.args[1])) < 600


def nested(opened: str, depth: int, closed: str) -> bytes:
    return f'{{"note": {opened * depth}1{closed * depth}}}'.encode()


@pytest.mark.parametrize("depth", [100, 500, *range(980, 1000), 5_000, 50_000])
@pytest.mark.parametrize("brackets", ["[]", ('{"a":', "}")], ids=str)
def test_a_document_nested_beyond_reason_is_refused(brackets: tuple[str, str], depth: int) -> None:
    assert refused("midjourney", nested(brackets[0], depth, brackets[1])) == "the whole document"


@pytest.mark.parametrize("brackets", ["[]", ('{"a":', "}")], ids=str)
def test_a_document_nested_within_reason_or_just_long_is_kept(brackets: tuple[str, str]) -> None:
    for data in (nested(brackets[0], 99, brackets[1]), encoded({"note": [[]] * 1000, "more": [{}] * 1000})):
        doc = parse_midjourney(data)
        assert json.loads(doc.updated(status=None).encode())["note"] == json.loads(data)["note"]


@pytest.mark.parametrize("name", ["20260101-0930", "a", "A_b-c.d", "x" * 64, "-"])
def test_ids_that_can_be_part_of_a_file_name_are_safe(name: str) -> None:
    assert safe_id(name)


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "a/b", "a\\b", "a b", "ä", "a\n", "x" * 65, "a\x00"])
def test_ids_that_could_leave_their_folder_are_not_safe(name: str) -> None:
    assert not safe_id(name)


# --- any bytes, any JSON ----------------------------------------------------------------------------------------------


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
MOMENTS = st.sampled_from(["", "2026-01-01T09:00:00Z", "9999-12-31T23:59:59-14:00", "x"])
TASKS = st.fixed_dictionaries(
    {"task_id": st.text(max_size=3) | JSON},
    optional={"task_type": st.sampled_from(["imagine", "upscale", ""]) | JSON, "requested_at_utc": MOMENTS | JSON},
)
RESULTS = st.fixed_dictionaries(
    {},
    optional={
        "task_id": st.text(max_size=3),
        "task_type": st.sampled_from(["imagine", "upscale", ""]),
        "task_result": st.fixed_dictionaries(
            {}, optional={"image_url": st.just("u") | JSON, "temporary_image_urls": st.lists(JSON, max_size=4)}
        )
        | JSON,
        "picked": st.integers(-1, 5),
    },
)
PENDING = st.fixed_dictionaries(
    {"step": st.sampled_from([*Step, ""]) | JSON},
    optional={
        "attempt": st.integers(-1, 3),
        "outcome": st.just("unknown") | JSON,
        "requested_at_utc": MOMENTS | JSON,
    },
)
COUNTS = st.dictionaries(st.sampled_from([*Step, "other"]), st.integers(-1, 5) | st.none(), max_size=3)
DOCUMENT = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from([*Status, "", "x"]) | JSON,
        "generation": st.booleans() | JSON,
        "failed_step": st.sampled_from([*Step, ""]) | JSON,
        "retry_count": st.integers(-1, 9) | JSON,
        "retries": COUNTS | JSON,
        "midjourney_task": TASKS | JSON,
        "runway_task": TASKS | JSON,
        "midjourney_results": RESULTS | JSON,
        "pending_call": PENDING | JSON,
        "last_error": JSON,
        "content_draft": JSON,
        "paid_calls": st.lists(JSON, max_size=2) | JSON,
        "processing_lock": st.booleans() | JSON,
        "generation_id": st.lists(st.text(max_size=3), max_size=2) | st.text(max_size=3) | JSON,
        "empty": JSON,
        "failed_in_a_row": st.integers(-1, 3) | JSON,
        "warned": JSON,
        "remembered": JSON,
    },
).flatmap(lambda known: st.dictionaries(st.text(max_size=8), JSON, max_size=2).map(lambda more: {**more, **known}))


def check_any(data: bytes) -> None:
    """Check that all properties of a document work and that it survives being saved, unless it is an
    InvalidDocument."""
    for parse in PARSERS.values():
        try:
            doc = parse(data)
        except InvalidDocument:
            continue
        asked = properties(doc)
        hash(doc)
        again = parse(doc.encode())
        assert again.encode() == doc.encode()
        assert repr(properties(again)) == repr(asked)
        repr(doc)


@given(st.binary(max_size=60))
@example(b"\xef\xbb\xbf{}")
@example(b"\xff\xfe{\x00}\x00")
@example(b"{\x00")
@example(b'{"a": NaN, "b": Infinity, "c": 1e999}')
@example(b'{"status": "\\ud800"}')
@example(b'{"a\\ud800": "\\udc00"}')
@example(b'{"midjourney_task": {"task_id": "\\ud800", "requested_at_utc": "\\ud800"}}')
@example(b'{"status": NaN}')
@example(b'{"retry_count": 1e999}')
def test_any_bytes_are_a_document_or_refused(data: bytes) -> None:
    check_any(data)


@given(JSON)
def test_any_json_is_a_document_or_refused(value: object) -> None:
    check_any(encoded(value))


@pytest.mark.slow
@given(DOCUMENT)
def test_anything_under_the_known_keys_is_a_document_or_refused(value: object) -> None:
    check_any(encoded(value))


# --- what stays as it is ----------------------------------------------------------------------------------------------


def test_a_byte_order_mark_is_passed_over_and_other_unicode_encodings_are_read() -> None:
    text = json.dumps({"generation_id": "a"})
    for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"):
        assert parse_gen(text.encode(encoding)).generation_id == "a"


def test_unknown_keys_keep_their_values_and_order() -> None:
    raw = {"zeta": {"deep": [1, 2.5, None, "ü", "\ud800"]}, "status": None, "alpha": 10**30, "note": float("inf")}
    doc = parse_midjourney(encoded(raw))
    saved = json.loads(doc.updated(status="content_failed").encode())
    assert [key for key in saved if key in raw] == list(raw)
    assert {key: saved[key] for key in ("zeta", "alpha", "note")} == {
        key: raw[key] for key in ("zeta", "alpha", "note")
    }


def test_texts_are_stored_readably_and_lone_surrogates_escaped() -> None:
    assert "Größe → 日本" in PublicDocument({"note": "Größe → 日本"}).encode().decode()
    assert b"\\ud800" in PublicDocument({"note": "\ud800"}).encode()


def test_a_changed_copy_leaves_the_original_as_it_was() -> None:
    doc = midjourney(status=None, note="kept")
    changed = doc.updated(status="content_failed").without("note")
    assert (doc.status, doc.raw["note"]) == (None, "kept")
    assert changed.status is Status.CONTENT_FAILED
    assert "note" not in changed.raw


def test_documents_are_equal_by_kind_and_content() -> None:
    assert GenDocument({"a": 1}) == GenDocument({"a": 1})
    assert GenDocument({"a": 1}) != GenDocument({"a": 2})
    assert GenDocument({}) != PublicDocument({})
    assert len({GenDocument({"a": 1}), GenDocument({"a": 1})}) == 1
    assert repr(GenDocument({"a": 1})) == "GenDocument({'a': 1})"


# --- counters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", FAILED_STEP)
def test_the_retry_count_of_an_older_document_counts_for_the_step_that_failed(status: Status) -> None:
    doc = midjourney(status=status.value, retry_count=2)
    assert doc.retries == {FAILED_STEP[status].value: 2}


@pytest.mark.parametrize(
    ("keys", "step"),
    [
        ({}, Step.CONTENT),
        ({"generation": True}, Step.IMAGINE),
        ({"midjourney_task": {"task_id": "t"}}, Step.FETCH),
        ({"midjourney_results": {"task_id": "t", "task_type": "imagine"}}, Step.UPSCALE),
        ({"midjourney_results": {"task_id": "t", "task_type": "upscale"}}, Step.RUNWAY),
        ({"runway_task": {"task_id": "t"}}, Step.RUNWAY_POLL),
        ({"pending_call": {"step": "upscale"}}, Step.UPSCALE),
        ({"status": "timed_out_mock_needed"}, Step.MOCK),
        ({"status": "task_failed_max_retries", "failed_step": "runway"}, Step.RUNWAY),
        ({"status": "task_failed_max_retries"}, Step.CONTENT),
        ({"midjourney_task": {"task_id": "t"}, "runway_task": {"task_id": "r"}}, Step.RUNWAY_POLL),
        ({"midjourney_task": {"task_id": "t"}, "midjourney_results": {"task_id": "i"}}, Step.FETCH),
        ({"status": "mj_fetch_failed", "midjourney_task": {"task_id": "t"}}, Step.FETCH),
    ],
)
def test_retry_count_belongs_to_the_step_that_the_generation_is_at(keys: dict[str, Any], step: Step) -> None:
    doc = midjourney(**keys, retry_count=2, retries={"other": 5})
    assert doc.present_step is step
    assert doc.retries == {"other": 5, step.value: 2}


def test_a_retry_count_that_somebody_edited_wins_over_the_counter_of_the_step() -> None:
    doc = midjourney(status="upscale_trigger_failed", retry_count=0, retries={"upscale": 3, "imagine": 1})
    assert doc.retries == {"imagine": 1}
    assert doc.retries_of(Step.UPSCALE) == 0


@pytest.mark.parametrize("missing", [{}, {"retry_count": None}])
def test_a_missing_retry_count_leaves_the_counters_alone(missing: dict[str, Any]) -> None:
    assert midjourney(status="upscale_trigger_failed", retries={"upscale": 3}, **missing).retries == {"upscale": 3}


def test_every_changed_document_shows_the_counter_of_the_step_it_is_at() -> None:
    doc = midjourney(retries={"imagine": 2, "fetch": 1})
    assert doc.updated(generation=True).raw["retry_count"] == 2
    assert doc.updated(midjourney_task={"task_id": "t"}).raw["retry_count"] == 1
    assert doc.updated(midjourney_task={"task_id": "t"}).without("midjourney_task").raw["retry_count"] == 0


@given(st.dictionaries(st.sampled_from([step.value for step in Step]), st.integers(0, 3)), st.sampled_from([*Status]))
def test_a_document_that_was_changed_reads_as_the_same_document(retries: dict[str, int], status: Status) -> None:
    doc = MidjourneyDocument({}).updated(retries=retries, status=status.value)
    assert parse_midjourney(doc.encode()) == doc
