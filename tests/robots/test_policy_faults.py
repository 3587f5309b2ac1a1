"""A faulty policy file: whatever is wrong in it, the message names file, robot and field."""

import copy
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retake.errors import SettingsError
from retake.robots.policies import POLICIES, ROBOTS, PolicyError, load_policies, load_policy, read_policy

Document = dict[str, Any]
Path_ = tuple[str | int, ...]

FILTERS = {"classes", "codes", "except_codes"}  # of an action: it may have any of them, or none


def document_of(robot: str) -> Document:
    return tomllib.loads((POLICIES / f"{robot}.toml").read_text("utf-8"))


class NoFault(AssertionError):
    """A fault was expected."""


def faults(document: Document, robot: str) -> list[str]:
    """Return the faults of the document, each a line that begins with file and robot. Raises NoFault."""
    try:
        read_policy(document, f"config/policies/{robot}.toml")
    except PolicyError as error:
        lines = str(error).split("\n")
    else:
        raise NoFault(f"{robot}: nothing is wrong with {document}")
    prefix = f"config/policies/{robot}.toml: {robot}: "
    assert all(line.startswith(prefix) and line.isprintable() for line in lines)
    return [line.removeprefix(prefix) for line in lines]


def leaves(found: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Yield every value of a document that is not a table, with its path; lists of plain values count as one."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from leaves(value, (*path, key))
    elif isinstance(found, list) and any(isinstance(item, dict) for item in found):
        for number, value in enumerate(found):
            yield from leaves(value, (*path, number))
    else:
        yield path, found


def named(path: Path_) -> str:
    """Return the path as messages write it: `last_failure.actions[2].channel`."""
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def changed(document: Document, path: Path_, change: Callable[[Any, Any], None]) -> Document:
    """Return a copy in which `change(table, key)` was applied at `path`."""
    broken = copy.deepcopy(document)
    table: Any = broken
    for part in path[:-1]:
        table = table[part]
    change(table, path[-1])
    return broken


def put(value: Any) -> Callable[[Any, Any], None]:
    def change(table: Any, key: Any) -> None:
        table[key] = value

    return change


def drop(table: Any, key: Any) -> None:
    del table[key]


def wrong_types(value: Any) -> list[Any]:
    kinds: list[Any] = [{"a": 1}, [[1]], "some text", 1.5, True, -7]
    same: tuple[type, ...] = (int, float) if type(value) in (int, float) else (type(value),)
    same += (float,) if value == "none" else ()  # a number may replace "none"
    return [kind for kind in kinds if type(kind) not in same]


def out_of_range(value: Any) -> list[Any]:
    """Return wrong values: below zero, beyond reason, no number at all, a list with such a number, an empty text."""
    numbers = [-1, 1e12, float("nan"), float("inf")]
    if isinstance(value, str):
        return ["", " ", "two\nlines"]
    return [[*value, wrong] for wrong in numbers] if isinstance(value, list) else numbers


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("wrong_ones", [wrong_types, out_of_range])
def test_a_value_that_cannot_be_is_named(robot: str, wrong_ones: Callable[[Any], list[Any]]) -> None:
    document = document_of(robot)
    for path, value in leaves(document):
        for wrong in wrong_ones(value):
            lines = faults(changed(document, path, put(wrong)), robot)
            told = [line for line in lines if line.startswith(f"{named(path)}: found ") and ", allowed: " in line]
            assert told, f"{named(path)} = {wrong!r}: {lines}"


@pytest.mark.parametrize("robot", ROBOTS)
def test_a_value_that_is_missing_is_named(robot: str) -> None:
    document = document_of(robot)
    for path, _ in leaves(document):
        if path[0] == "errors" or (path[-1] in FILTERS and any(isinstance(part, int) for part in path)):
            continue  # a robot may have fewer typical errors, and an action no filter
        lines = faults(changed(document, path, drop), robot)
        assert [line for line in lines if line.startswith(f"{named(path)}: missing, allowed: ")], (
            f"{named(path)}: {lines}"
        )


@pytest.mark.parametrize("robot", ROBOTS)
def test_a_misspelt_key_is_named_with_the_one_that_was_meant(robot: str) -> None:
    document = document_of(robot)
    for path, value in leaves(document):
        if path[0] == "errors":
            continue  # any code may stand there; wrong prefixes are tested elsewhere
        key = str(path[-1])
        misspelt = key[:-2] + key[-1] if len(key) > 3 else key + "x"
        broken = changed(changed(document, path, drop), (*path[:-1], misspelt), put(value))
        lines = faults(broken, robot)
        told = [line for line in lines if line.startswith(f"{named((*path[:-1], misspelt))}: unknown, allowed: ")]
        assert len(told) == 1, f"{named(path)}: {lines}"
        assert len(key) <= 3 or told[0].endswith(f"; did you mean {key}?"), told


@pytest.mark.parametrize("robot", ROBOTS)
def test_a_wrong_number_in_the_intervals_or_in_the_strategy_is_noticed(robot: str) -> None:
    """The list and the strategy are checked against each other, so a typo in either is found."""
    document = document_of(robot)
    for name in [name for name in ("retry", "item_retry") if name in document]:
        table = document[name]
        for number, seconds in enumerate(table["intervals_s"]):
            if table["strategy"] == "intervals":
                continue  # the list is the strategy
            broken = copy.deepcopy(document)
            broken[name]["intervals_s"][number] = seconds + 1
            (line,) = faults(broken, robot)
            assert line.startswith(f"{name}.intervals_s: found ")
        for key in ("first_s", "factor", "unit_s", "step_s", "then_s"):
            if key in table:
                broken = copy.deepcopy(document)
                broken[name][key] += 1
                (line,) = faults(broken, robot)
                assert line.startswith(f"{name}.intervals_s: found ")
        if table["max_retries"] != "unbounded":
            broken = copy.deepcopy(document)
            broken[name]["max_retries"] += 1
            (line,) = faults(broken, robot)
            assert line.startswith(f"{name}.max_retries: found {table['max_retries'] + 1}, allowed: as many as ")


@pytest.mark.parametrize("robot", ROBOTS)
def test_a_section_that_every_robot_has_is_missed(robot: str) -> None:
    for section in ("id", "name", "role", "errors", "retry", "last_failure"):
        lines = faults(changed(document_of(robot), (section,), drop), robot)
        assert any(line.startswith(f"{section}: missing, allowed: ") for line in lines)


@pytest.mark.parametrize("robot", ROBOTS)
def test_a_section_that_is_not_a_table_is_named(robot: str) -> None:
    document = document_of(robot)
    for section in [name for name, value in document.items() if isinstance(value, dict)]:
        wrong_ones: list[Any] = ["text", 3, [], [{}], True]
        for wrong in wrong_ones:
            lines = faults({**document, section: wrong}, robot)
            assert any(line.startswith(f"{section}: found ") and ", allowed: a table" in line for line in lines)


@pytest.mark.parametrize(
    ("robot", "section", "change", "fault"),
    [
        ("NR.NSI.1", "errors", {"TIMEOUT": "x"}, "errors.TIMEOUT: 'TIMEOUT' is not an error code"),
        ("NR.NSI.1", "errors", {"ERR_TEMPORARY_": "x"}, "errors.ERR_TEMPORARY_: "),
        (
            "NR.NSI.1",
            "retry",
            {"except_codes": ["ERR_BUSINESS_INVALID_EVENT"]},
            "retry.except_codes: found ERR_BUSINESS_I",
        ),
        ("NR.NSI.1", "retry", {"classes": []}, "retry.classes: found nothing"),
        ("NR.NSI.1", "retry", {"classes": ["A", "A"]}, 'retry.classes: found ["A", "A"], allowed: list of different'),
        ("NR.NSI.1", "retry", {"classes": ["D"]}, 'retry.classes: found ["D"], allowed: '),
        ("NR.NSI.1", "retry", {"strategy": "exponentiel"}, 'retry.strategy: found "exponentiel", allowed: "fixed" or '),
        ("NR.NSI.1", "retry", {"ceiling_s": 31}, "retry.ceiling_s: found 31, allowed: no less than the longest"),
        (
            "NR.NSI.1",
            "retry",
            {"jitter_percent": 100.5},
            "retry.jitter_percent: found 100.5, allowed: number, 0 to 100",
        ),
        (
            "NR.NSI.2",
            "retry",
            {"codes": ["ERR_BUSINESS_TECH_DOC_NOT_FOUND"]},
            "retry.except_codes: found ERR_BUSINESS_T",
        ),
        (
            "NR.NSI.3",
            "retry",
            {"codes": ["ERR_TEMPORARY_1C_UNAVAILABLEE"]},
            "retry.codes: found ERR_TEMPORARY_1C_UNAVAIL",
        ),
        (
            "NR.NSI.6",
            "locks",
            {"break_after_s": 59},
            "locks.break_after_s: found 59, allowed: no less than locks.wait_s",
        ),
        ("NR.NSI.7", "validation", {"mode": "lax"}, 'validation.mode: found "lax", allowed: "strict" or "liberal" or'),
        ("NR.NSI.8", "retry", {"validate_before_repeat": 3}, "retry.validate_before_repeat: found 3, allowed: 1 to"),
        ("NR.NSI.9", "retry", {"ceiling_s": "none"}, "retry.ceiling_s: found none, allowed: a number of seconds"),
        ("NR.NSI.9", "retry", {"intervals_s": []}, "retry.max_retries: "),
        ("NR.NSI.9", "retry", {"first_s": 0, "intervals_s": [0]}, "retry.intervals_s: found delays that end at 0"),
        (
            "NR.NSI.9",
            "retry",
            {"factor": 0.5, "intervals_s": [1, 0.5]},
            "retry.intervals_s: found delays that end at 0",
        ),
    ],
)
def test_what_cannot_be_true_at_once_is_named(robot: str, section: str, change: Document, fault: str) -> None:
    document = document_of(robot)
    document[section].update(change)
    assert faults(document, robot)[0].startswith(fault)


def test_a_misspelt_code_is_named_with_the_one_that_was_meant() -> None:
    document = document_of("NR.NSI.5")
    document["batch"]["split_after"] = ["ERR_CRITICAL_MEMORY_OVERFLOV"]
    assert faults(document, "NR.NSI.5") == [
        "batch.split_after: found ERR_CRITICAL_MEMORY_OVERFLOV, allowed: a code of [errors]; "
        "did you mean ERR_CRITICAL_MEMORY_OVERFLOW?"
    ]


@pytest.mark.parametrize(
    ("robot", "lacking", "why"),
    [
        ("NR.NSI.5", "item_retry", "since there is [batch]"),
        ("NR.NSI.5", "batch", "since there is [item_retry]"),
        ("NR.NSI.7", "validation", "since last_failure.actions has auto_correct"),
        ("NR.NSI.4", "idempotency", "since last_failure.actions has read_only"),
    ],
)
def test_a_section_that_another_one_needs_is_missed(robot: str, lacking: str, why: str) -> None:
    document = document_of(robot)
    del document[lacking]
    (line, *_) = faults(document, robot)
    assert line.startswith(f"{lacking}: missing, allowed: ")
    assert why in line or lacking == "validation"


def test_a_duplicate_is_known_by_its_codes_alone() -> None:
    document = document_of("NR.NSI.4")
    document["last_failure"]["actions"][0] = {"do": "return_existing", "classes": ["B"]}
    (line,) = faults(document, "NR.NSI.4")
    assert line == "last_failure.actions[1].codes: found none, allowed: the codes by which a duplicate is refused"


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30), st.datetimes(), st.dates(), st.times()
)
TOML = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
)


@settings(max_examples=150, deadline=None, print_blob=True)
@given(data=st.data(), robot=st.sampled_from(ROBOTS), value=TOML)
def test_whatever_stands_in_a_file_it_is_a_policy_or_a_fault_that_is_named(
    data: st.DataObject, robot: str, value: Any
) -> None:
    document = document_of(robot)
    path, _ = data.draw(st.sampled_from([*leaves(document), *(((name,), None) for name in [*document, "new"])]))
    broken = changed(document, path, put(value))
    with suppress(NoFault):
        faults(broken, robot)


def test_a_date_that_stands_for_a_number_is_shown() -> None:
    document = changed(document_of("NR.NSI.6"), ("locks", "wait_s"), put(datetime(2026, 1, 1)))
    assert faults(document, "NR.NSI.6") == ['locks.wait_s: found "2026-01-01 00:00:00", allowed: number, 0 to 31536000']


def test_a_file_under_another_robots_name_is_detected() -> None:
    assert faults(document_of("NR.NSI.1"), "NR.NSI.2") == [
        'id: found "NR.NSI.1", allowed: "NR.NSI.2", as the file is named'
    ]


# --- folders ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a copy of the nine files."""
    for file in POLICIES.glob("*.toml"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")


def test_the_faults_of_several_files_are_reported_together(folder: Path) -> None:
    replace(folder / "NR.NSI.1.toml", "max_retries = 3", "max_retires = 3")
    replace(folder / "NR.NSI.6.toml", "wait_s = 60", "wait_s = -60")
    replace(folder / "NR.NSI.6.toml", 'break_for = "reads"', "")
    (folder / "NR.NSI.9.toml").unlink()
    with pytest.raises(PolicyError) as caught:
        load_policies(folder)
    one, six, nine = (folder / f"NR.NSI.{number}.toml" for number in (1, 6, 9))
    assert [line.split(", allowed")[0] for line in str(caught.value).split("\n")] == [
        f"{one}: NR.NSI.1: retry.max_retires: unknown",
        f"{one}: NR.NSI.1: retry.max_retries: missing",
        f"{six}: NR.NSI.6: locks.wait_s: found -60",
        f"{six}: NR.NSI.6: locks.break_for: missing",
        f"{nine}: NR.NSI.9: the whole file: missing; each robot has one, named for its id",
    ]
    assert isinstance(caught.value, SettingsError)
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[retry", "not TOML: Expected ']' at the end of a table declaration"),
        (b"a = 1\na = 2\n", "not TOML: Cannot overwrite a value"),
        (b"\xff\xfe", "not TOML: byte 1 is not UTF-8"),
        (b"a = " + b"[" * 5000, "not TOML: "),
    ],
)
def test_a_file_that_is_not_toml_is_named(folder: Path, content: bytes, says: str) -> None:
    file = folder / "NR.NSI.4.toml"
    file.write_bytes(content)
    with pytest.raises(PolicyError) as caught:
        load_policies(folder)
    (line,) = str(caught.value).split("\n")
    assert line.startswith(f"{file}: NR.NSI.4: the whole file: {says}")


def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "NR.NSI.4.toml").unlink()
    (folder / "NR.NSI.4.toml").mkdir()
    with pytest.raises(PolicyError, match=r"NR\.NSI\.4: the whole file: cannot be read: Is a directory"):
        load_policies(folder)


def test_a_missing_folder_lacks_every_robot(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policies(tmp_path / "nowhere")
    assert [line.split(": ")[1] for line in str(caught.value).split("\n")] == list(ROBOTS)


def test_a_tenth_robot_is_one_more_file(folder: Path) -> None:
    text = (folder / "NR.NSI.7.toml").read_text("utf-8").replace('id = "NR.NSI.7"', 'id = "NR.NSI.10"')
    (folder / "NR.NSI.10.toml").write_text(text, "utf-8")
    policies = load_policies(folder)
    assert list(policies) == [*ROBOTS, "NR.NSI.10"]
    assert policies["NR.NSI.10"].retry == policies["NR.NSI.7"].retry


def test_one_robot_can_be_read_alone_and_its_faults_are_named_too(folder: Path) -> None:
    path = (folder / "NR.NSI.2.toml").rename(folder / "NR.NSI.12.toml")
    with pytest.raises(PolicyError, match=r'NR\.NSI\.12\.toml: NR\.NSI\.12: id: found "NR\.NSI\.2"'):
        load_policy(path)
    replace(path, 'id = "NR.NSI.2"', 'id = "NR.NSI.12"')
    assert load_policy(path).id == "NR.NSI.12"
    with pytest.raises(PolicyError, match="missing"):
        load_policy(folder / "NR.NSI.13.toml")


def test_robots_that_share_a_breaker_agree_on_its_numbers(folder: Path) -> None:
    replace(folder / "NR.NSI.2.toml", "open_s = 60", "open_s = 61")
    with pytest.raises(PolicyError) as caught:
        load_policies(folder)
    assert (
        f'{folder / "NR.NSI.2.toml"}: NR.NSI.2: breaker.name: found "appius", allowed: the numbers that NR.NSI.1'
        in str(caught.value)
    )


@pytest.mark.parametrize(
    ("robot", "changes", "expected"),
    [
        ("NR.NSI.1", {"timeout_s": 2}, 'timeout_code: missing, allowed: an error code of [errors], or "unknown"'),
        ("NR.NSI.1", {"timeout_code": "unknown"}, "timeout_code: found unknown, allowed: only with a number of"),
        ("NR.NSI.3", {"timeout_s": "none"}, "timeout_code: found ERR_TEMPORARY_1C_UNAVAILABLE, allowed: only with"),
        ("NR.NSI.3", {"timeout_code": "ERR_TEMPORARY_1C"}, "timeout_code: found ERR_TEMPORARY_1C, allowed: a code of"),
    ],
)
def test_a_timeout_says_what_it_means_and_only_there(robot: str, changes: dict[str, Any], expected: str) -> None:
    document = document_of(robot)
    document["retry"].update(changes)
    assert [line for line in faults(document, robot) if line.startswith(f"retry.{expected}")]


def test_nobody_may_know_how_an_abandoned_call_ended() -> None:
    document = document_of("NR.NSI.1")
    document["retry"].update({"timeout_s": 2, "timeout_code": "unknown"})
    retry = read_policy(document, "NR.NSI.1.toml").retry
    assert (retry.timeout_s, retry.timeout_code) == (2, None)
