"""The policies of the robots: one TOML file per robot in config/policies, read strictly.

There are no defaults: a value that is missing, misspelt, of the wrong type, out of range or that contradicts another is
a fault. All faults of all files are reported together, one per line, each with file, robot, field and the
allowed values.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retake.data import default_file
from retake.errors import SettingsError, class_of
from retake.foreign_text import plain, shown
from retake.retrying.policy import RetryPolicy
from retake.robots import repeats, sections
from retake.robots.follow_ups import CODE_KEYS, Do
from retake.robots.repeats import REPEATS, Repeats
from retake.robots.sections import SECTIONS
from retake.settings.reader import read_file
from retake.settings.schema import TEXT, Schema, SchemaChoice, closest, read_table, unknown_key_faults
from retake.strict_json import MAX_DEPTH, deeper_than

ROBOTS = tuple(f"NR.NSI.{number}" for number in range(1, 10))
"""The robots of docs/protocol.md, section "Robots". A policy folder has a file for each, and may have more."""

POLICIES = Path(default_file("config/policies"))
"""The policy folder that comes with the code."""

MAX_FILE_BYTES = 16 * 1024
"""Maximum size of a policy file in bytes, several times that of the longest one that comes with the code.

The time that Python takes to parse TOML can grow with the square of its length.
"""

_WHOLE = "the whole file"


class PolicyFault(NamedTuple):
    """Something wrong with a policy file."""

    file: str
    robot: str
    field: str  # "retry.max_retries", or "the whole file"
    what: str
    line: int | None = None  # of the syntax error, if the file is not TOML

    def __str__(self) -> str:
        return f"{self.file}: {self.robot}: {self.field}: {self.what}"


class PolicyError(SettingsError):
    """A policy file is missing or has faults. Each line of the message names file, robot and field."""

    def __init__(self, faults: Sequence[PolicyFault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = tuple(faults)


class RobotPolicy(NamedTuple):
    """The protocol of one robot. A section that is not in its file is None."""

    id: str  # "NR.NSI.1"
    name: str
    role: str
    errors: Mapping[str, str]  # the meaning of each of its error codes
    retry: RetryPolicy
    last_failure: sections.LastFailure
    validate_before_repeat: int | None = None
    item_retry: RetryPolicy | None = None  # of one item; `retry` then applies to the batch
    recovery: sections.RecoverySteps | None = None
    escalation: sections.Escalation | None = None
    breaker: sections.NamedBreaker | None = None
    cache: sections.CacheRules | None = None
    idempotency: sections.Idempotency | None = None
    compensation: sections.Compensation | None = None
    batch: sections.Batch | None = None
    locks: sections.LockRules | None = None
    validation: sections.Validation | None = None
    consistency: sections.Consistency | None = None
    stores: sections.StoreOrder | None = None
    snapshots: sections.SnapshotRules | None = None


_TEXTS = ("id", "name", "role")
_TABLES: Mapping[str, Schema | SchemaChoice] = {"retry": REPEATS, "item_retry": REPEATS, **SECTIONS}
_REQUIRED = ("retry", "last_failure")
_NEEDED = {
    Do.AUTO_CORRECT: "validation",
    Do.SUGGEST_NEAREST: "validation",
    Do.SPLIT_BATCH: "batch",
    Do.READ_ONLY: "idempotency",
    Do.RETURN_EXISTING: "idempotency",
}
"""The table that each action requires."""


def load_policies(folder: Path = POLICIES) -> dict[str, RobotPolicy]:
    """Return the policies by robot id, read from ID.toml in `folder`. Raises PolicyError with every fault."""
    policies, faults = read_policies(policy_files(folder))
    if faults:
        raise PolicyError(faults)
    return policies


def load_policy(path: Path) -> RobotPolicy:
    """Return the policy of one robot, read from a file named for its id. Raises PolicyError with all of its faults.

    >>> load_policy(POLICIES / "NR.NSI.1.toml").name
    'detect_new_scrap_need'
    """
    return read_policy(read_document(path), str(path))


def policy_files(folder: Path) -> list[Path]:
    """Return the policy files of a folder: those that it must have, then any others in it."""
    found = sorted(path.stem for path in folder.glob("*.toml"))
    return [folder / f"{robot}.toml" for robot in dict.fromkeys([*ROBOTS, *found])]


def read_policies(paths: Sequence[Path]) -> tuple[dict[str, RobotPolicy], list[PolicyFault]]:
    """Return the policies of the valid files, by robot, and the faults of all files. Each file is ID.toml.

    Contradictions between files are reported only if no file has a fault of its own.
    """
    policies: dict[str, RobotPolicy] = {}
    faults: list[PolicyFault] = []
    files = {path.stem: path for path in paths}
    for path in paths:
        try:
            policies[path.stem] = load_policy(path)
        except PolicyError as error:
            faults.extend(error.faults)
    if not faults:
        faults = [_fault(files[robot], fault) for robot, fault in _shared_breakers(policies)]
    return policies, faults


def read_policy(document: Mapping[str, Any], source: str) -> RobotPolicy:
    """Return the policy in `document`, read from the file `source` (ID.toml).

    Raises PolicyError with all of its faults.
    """
    path = Path(source)
    faults: list[str] = []
    errors = _errors(document, faults)
    filled = _filled(document, faults)
    faults.extend(_texts(document, path.stem))
    faults.extend(unknown_key_faults(document, [*_TEXTS, "errors", *_TABLES], ""))
    faults.extend(_unknown_codes({name: document.get(name) for name in _TABLES}, errors, ""))
    faults = faults or list(_contradictions(filled))
    if faults:
        raise PolicyError([_fault(path, fault) for fault in dict.fromkeys(faults)])
    texts = {name: document[name] for name in _TEXTS}
    retry, item_retry = filled.pop("retry"), filled.pop("item_retry", None)
    return RobotPolicy(
        **texts,
        errors=errors,
        retry=retry.policy,
        validate_before_repeat=retry.validate_before_repeat,
        item_retry=item_retry.policy if item_retry else None,
        **filled,
    )


def read_document(path: Path) -> dict[str, Any]:
    """Return the content of a policy file, unchecked. Raises PolicyError if it is missing or not TOML."""
    try:
        document = tomllib.loads(read_file(path, MAX_FILE_BYTES).decode("utf-8-sig"))
    except FileNotFoundError:
        raise _unreadable(path, "missing; each robot has one, named for its id") from None
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror}; fix that") from None
    except RecursionError:
        raise _unreadable(path, "not TOML: nested too deeply; fix it there") from None
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"not TOML: byte {error.start + 1} is not UTF-8; fix it there") from None
    except ValueError as error:  # tomllib.TOMLDecodeError is one
        line = re.search(r"\(at line (\d{1,9}),", str(error))
        raise _unreadable(path, f"not TOML: {plain(str(error))}; fix it there", line and int(line[1])) from None
    if deeper_than(MAX_DEPTH, document):
        raise _unreadable(path, f"nested more than {MAX_DEPTH} levels deep; fix it there")
    return document


def _unreadable(path: Path, what: str, line: int | None = None) -> PolicyError:
    return PolicyError([PolicyFault(plain(str(path)), plain(path.stem), _WHOLE, what, line)])


def _fault(path: Path, text: str) -> PolicyFault:
    """Return the fault in `text`, which reads "FIELD: what is wrong with it"."""
    field, _, what = text.partition(": ")
    return PolicyFault(plain(str(path)), plain(path.stem), field, what)


def _texts(document: Mapping[str, Any], robot: str) -> Iterator[str]:
    for name in _TEXTS:
        if name not in document:
            yield f"{name}: missing, allowed: {TEXT.allowed}"
            continue
        try:
            value = TEXT.read(document[name])
        except ValueError:
            yield f"{name}: found {shown(document[name])}, allowed: {TEXT.allowed}"
            continue
        if name == "id" and value != robot:
            yield f"id: found {shown(value)}, allowed: {shown(robot)}, as the file is named"


def _errors(document: Mapping[str, Any], faults: list[str]) -> dict[str, str]:
    """Return [errors], whose keys are codes; append its faults to `faults`."""
    table = document.get("errors")
    if not isinstance(table, dict) or not table:
        found = f"found {shown(table)}" if "errors" in document else "missing"
        faults.append(f"errors: {found}, allowed: a table of error codes and what they mean")
        return {}
    for code, meaning in table.items():
        try:
            class_of(code)
        except ValueError as error:
            faults.append(f"errors.{plain(code)}: {plain(str(error))}")
        try:
            TEXT.read(meaning)
        except ValueError:
            faults.append(f"errors.{plain(code)}: found {shown(meaning)}, allowed: {TEXT.allowed}")
    return table


def _filled(document: Mapping[str, Any], faults: list[str]) -> dict[str, Any]:
    faults.extend(f"{name}: missing, allowed: a table of keys and values" for name in _REQUIRED if name not in document)
    return {
        name: read_table(schema, document[name], name, faults) for name, schema in _TABLES.items() if name in document
    }


def _unknown_codes(found: Any, errors: Mapping[str, str], path: str) -> Iterator[str]:
    """Yield a fault for each code in the file that is not one of the robot's codes."""
    if isinstance(found, dict):
        for key, value in found.items():
            where = f"{path}.{key}" if path else str(key)
            if key in CODE_KEYS and isinstance(value, list | str):
                codes = [it for it in (value,) if it != repeats.UNKNOWN] if isinstance(value, str) else value
                yield from (f"{plain(where)}: {it}" for code in codes if (it := _unknown_code(code, errors)))
            else:
                yield from _unknown_codes(value, errors, where)
    elif isinstance(found, list):
        for number, value in enumerate(found, 1):
            yield from _unknown_codes(value, errors, f"{path}[{number}]")


def _unknown_code(code: Any, errors: Mapping[str, str]) -> str | None:
    if not isinstance(code, str) or code in errors:
        return None
    meant = closest(code, list(errors))
    return f"found {plain(code)}, allowed: a code of [errors]" + (f"; did you mean {meant}?" if meant else "")


def _contradictions(filled: Mapping[str, Any]) -> Iterator[str]:
    for name in ("retry", "item_retry"):
        if isinstance(it := filled.get(name), Repeats):
            yield from (f"{name}.{field}: {fault}" for field, fault in repeats.contradictions(it))
    if ("batch" in filled) != ("item_retry" in filled):
        has, lacks = ("batch", "item_retry") if "batch" in filled else ("item_retry", "batch")
        yield f"{lacks}: missing, allowed: a table, since there is [{has}]"
    locks: sections.LockRules | None = filled.get("locks")
    if locks and locks.break_after_s < locks.wait_s:
        yield f"locks.break_after_s: found {locks.break_after_s}, allowed: no less than locks.wait_s, {locks.wait_s}"
    actions = [it.do for it in filled["last_failure"].actions]
    for do, needed in _NEEDED.items():
        if do in actions and needed not in filled:
            yield f"{needed}: missing, allowed: a table, since last_failure.actions has {do}"
    for number, action in enumerate(filled["last_failure"].actions, 1):
        if action.do is Do.RETURN_EXISTING and not action.when.codes:
            field = f"last_failure.actions[{number}].codes"
            yield f"{field}: found none, allowed: the codes by which a duplicate is refused"


def _shared_breakers(policies: Mapping[str, RobotPolicy]) -> Iterator[tuple[str, str]]:
    """Yield a fault for each robot whose settings for a shared breaker differ from another robot's."""
    first: dict[str, RobotPolicy] = {}
    for robot, policy in policies.items():
        if breaker := policy.breaker:
            other = first.setdefault(breaker.name, policy)
            if other.breaker and other.breaker.policy != breaker.policy:
                yield (
                    robot,
                    f"breaker.name: found {shown(breaker.name)}, allowed: the numbers that {other.id} has for it",
                )
