"""The built-in validator of the state documents, compared with an independent one on the same schemas."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemas import ANSWERS, SCHEMAS, check, commands, faults

from retake.document_schema import KEYWORDS, DocumentSchema, InvalidDocument
from retake.story.documents import Status, Step, safe_id

STATE = ["config_public", "config_gen", "config_midjourney"]
CHECKED = [*STATE, "content", "topics", "dead_letter", "error_record", "paid_call"]


def parts(schema: object) -> Iterator[dict[str, Any]]:
    """Yield every schema nested in a schema."""
    if isinstance(schema, dict):
        yield schema
        for keyword, value in schema.items():
            if keyword in ("properties", "$defs"):
                for inner in value.values():
                    yield from parts(inner)
            elif keyword in ("items", "additionalProperties", "if", "then"):
                yield from parts(value)
            elif keyword == "anyOf":
                for inner in value:
                    yield from parts(inner)


def why(name: str, document: object) -> tuple[str, str]:
    with pytest.raises(InvalidDocument) as caught:
        DocumentSchema(name).check(document)
    field, what = caught.value.args
    return field, what


def refusal(name: str, document: object) -> str:
    """Return what is wrong with the document, or ""."""
    try:
        DocumentSchema(name).check(document)
    except InvalidDocument as error:
        return str(error.args[1])
    return ""


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_schema_is_one_and_is_explained(name: str) -> None:
    schema = SCHEMAS[name]
    Draft202012Validator.check_schema(schema)
    assert schema["title"]
    assert schema["description"].endswith(".")
    for example in schema.get("examples", []):
        check(name, example)


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_key_has_a_description(name: str) -> None:
    keys = [(key, inner) for part in parts(SCHEMAS[name]) for key, inner in part.get("properties", {}).items()]
    shared = {"price_usd"} if name == "config_midjourney" else set()
    assert {key for key, inner in keys if not inner.get("description")} == shared


@pytest.mark.parametrize("name", CHECKED)
def test_the_schema_of_a_document_that_is_checked_says_nothing_that_is_not_checked(name: str) -> None:
    assert {keyword for part in parts(SCHEMAS[name]) for keyword in part} <= KEYWORDS


def test_every_command_has_a_schema_of_its_answer_and_every_schema_a_command() -> None:
    why = "write retake/schemas/answer_NAME.json, and name it in ANSWERS of tests/schemas.py"
    assert ANSWERS.keys() == commands().keys(), why
    named = {name for names in ANSWERS.values() for name in names} | {"answer_error", "answer_alert"}
    assert named == {name for name in SCHEMAS if name.startswith("answer_")}


def test_statuses_and_steps_match_the_code() -> None:
    keys = SCHEMAS["config_midjourney"]["properties"]
    assert keys["status"]["enum"] == [*Status, "", None]
    assert keys["failed_step"]["enum"] == [*Step, "", None]


@given(st.text(max_size=5) | st.text("aZ0-_.\n", max_size=66))
def test_ids_of_generations_are_those_that_are_safe(text: str) -> None:
    schema = SCHEMAS["config_gen"]["properties"]["generation_id"]
    matches = re.search(schema["pattern"], text) is not None and len(text) <= schema["maxLength"]
    assert matches == (safe_id(text) or text == "")


LETTER = {"failed_at_utc": "2026-01-01T00:00:00Z", "last_error": None, "files": []}


@pytest.mark.parametrize(
    ("name", "document", "fault"),
    [
        ("config_public", {"processing_lock": 1}, ("processing_lock", "1 is not true or false")),
        ("config_public", {"empty": ["a", 2]}, ("empty", "2 is not a text (item 2)")),
        (
            "config_gen",
            {"generation_id": "a b"},
            ("generation_id", '"a b" is not an id (at most 64 letters, digits, "-", "_", ".")'),
        ),
        ("config_gen", {"failed_in_a_row": 1.0}, ("failed_in_a_row", "1.0 is not a whole number from 0 up")),
        ("config_midjourney", {"runway_task": {"task_type": "x"}}, ("runway_task.task_id", "is missing")),
        ("config_midjourney", {"failed_step": "x"}, ("failed_step", f'"x" is not one of {", ".join(Step)}')),
        (
            "config_midjourney",
            {"paid_calls": [{}, {"price_usd": -1}]},
            ("paid_calls.price_usd", "-1 is not an amount (item 2)"),
        ),
        ("config_midjourney", [], ("the whole document", "[] is not an object")),
        (
            "dead_letter",
            {**LETTER, "last_error": {"error_class": "D"}},
            ("last_error.error_class", '"D" is not one of A, B, C'),
        ),
        ("dead_letter", {**LETTER, "paid_calls": [{"step": 1}]}, ("paid_calls.step", "1 is not a text (item 1)")),
    ],
)
def test_a_fault_is_reported_in_words(name: str, document: object, fault: tuple[str, str]) -> None:
    assert why(name, document) == fault


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 6),
    st.floats(allow_nan=False),
    st.sampled_from(["", " ", "x", "imagine", "content", "mock", "2026-01-01T09:00:00Z", "a b", ".a"]),
)
NAMES = "task_id task_type task_result image_url picked step attempt price_usd outcome day settled_usd requested_at_utc"
OBJECTS = st.dictionaries(st.sampled_from(NAMES.split()), VALUES, max_size=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", STATE)
@given(st.data())
def test_what_is_accepted_is_valid_for_others_too_and_what_is_refused_differs_in_numbers_and_times_alone(
    name: str, data: st.DataObject
) -> None:
    keys = st.sampled_from(sorted(SCHEMAS[name]["properties"]))
    document = data.draw(st.dictionaries(keys, VALUES | OBJECTS | st.lists(VALUES | OBJECTS, max_size=2), max_size=3))
    found = refusal(name, document)
    if not found:
        check(name, document)
    elif not faults(name, document):
        assert re.search(r"is not a (time|whole number)|not one of the four", found)


def test_a_text_that_may_be_a_secret_is_not_shown() -> None:
    assert "xxx" not in why("config_midjourney", {"status": "sk-" + "x" * 30})[1]
