"""Checks documents against their JSON Schemas: the subset of JSON Schema 2020-12 that the state documents need.

The schemas are the files of retake/schemas. Only the first fault is reported, by field and in words for people. What a
document must never be in Python but may be in JSON Schema is refused: 1.0 is no whole number, NaN is no amount. A text
of "date-time" may be empty, and may leave the zone out.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from retake.clock import parse_stamp
from retake.foreign_text import shown

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schemas")
"""Where the schemas are."""

WHOLE = "the whole document"
"""The field of a fault that is not about one field."""

Schema = Mapping[str, Any]

_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "null": ((type(None),), "null"),
    "boolean": ((bool,), "true or false"),
    "string": ((str,), "a text"),
    "integer": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "array": ((list,), "a list"),
    "object": ((dict,), "an object"),
}


class InvalidDocument(Exception):
    """A document that cannot be acted on. `args` is (field, what is wrong with it)."""


class SchemaFault(NamedTuple):
    """What is wrong with a document, and where: "midjourney_task.task_id", "" for all of it."""

    field: str
    what: str


class DocumentSchema:
    """A schema, by its file's name without the suffix. Raises OSError and ValueError for one that is not there."""

    def __init__(self, name: str) -> None:
        with open(os.path.join(FOLDER, f"{name}.json"), "rb", buffering=0) as file:
            self.schema: Schema = json.loads(file.read())

    def check(self, document: object) -> None:
        """Raises InvalidDocument, naming the first fault."""
        for fault in self._faults(self.schema, document, ""):
            raise InvalidDocument(fault.field or WHOLE, fault.what)

    def _faults(self, schema: Schema, value: object, field: str) -> Iterator[SchemaFault]:
        if "$ref" in schema:
            yield from self._faults(self.schema["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, field)
        for keyword, rule in _RULES.items():
            if keyword in schema and (wrong := rule(schema[keyword], value)):
                yield SchemaFault(field, f"{shown(value)} {schema.get('errorMessage', wrong)}")
        if "if" in schema and not any(self._faults(schema["if"], value, field)):
            yield from self._faults(schema["then"], value, field)
        if isinstance(value, dict):
            yield from self._faults_of_keys(schema, value, f"{field}." if field else "")
        elif isinstance(value, list) and "items" in schema:
            for number, item in enumerate(value, 1):
                for fault in self._faults(schema["items"], item, field):
                    yield fault._replace(what=f"{fault.what} (item {number})")

    def _faults_of_keys(self, schema: Schema, value: Mapping[str, Any], prefix: str) -> Iterator[SchemaFault]:
        for key in schema.get("required", ()):
            if key not in value:
                yield SchemaFault(f"{prefix}{key}", "is missing")
        known: Schema = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        for key in chain(known, (key for key in value if key not in known) if others is not True else ()):
            if key in value:
                yield from self._faults(known.get(key, others), value[key], f"{prefix}{key}")


# --- the keywords: (what the schema says, the value) -> what is wrong, or "" ---


def _type(names: str | list[str], value: object) -> str:
    allowed = [names] if isinstance(names, str) else names
    if any(type(value) in _TYPES[name][0] for name in allowed):
        return ""
    return f"is not {' or '.join(_TYPES[name][1] for name in allowed if name != 'null')}"


def _enum(values: list[Any], value: object) -> str:
    return "" if value in values else f"is none of {', '.join(str(it) for it in values if it)}"


def _minimum(least: float, value: Any) -> str:
    return "" if not _is_number(value) or value >= least else f"is less than {least}"


def _maximum(most: float, value: Any) -> str:
    return "" if not _is_number(value) or value <= most else f"is more than {most}"


def _exclusive_maximum(end: float, value: Any) -> str:
    return "" if not _is_number(value) or value < end else f"is not less than {end:g}"


def _min_properties(least: int, value: object) -> str:
    return "" if not isinstance(value, dict) or len(value) >= least else f"has fewer than {least} keys"


def _max_length(most: int, value: object) -> str:
    return "" if not isinstance(value, str) or len(value) <= most else f"is longer than {most} characters"


def _pattern(pattern: str, value: object) -> str:
    return "" if not isinstance(value, str) or re.search(pattern, value) else f"does not match {pattern}"


def _format(name: str, value: object) -> str:
    if name != "date-time" or not isinstance(value, str) or not value:
        return ""
    try:
        parse_stamp(value)
    except ValueError:
        return "is no time (ISO 8601)"
    return ""


_RULES: Mapping[str, Callable[[Any, Any], str]] = {
    "type": _type,
    "enum": _enum,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMaximum": _exclusive_maximum,
    "minProperties": _min_properties,
    "maxLength": _max_length,
    "pattern": _pattern,
    "format": _format,
}

KEYWORDS = frozenset(
    {*_RULES, "$ref", "$defs", "if", "then", "required", "properties", "additionalProperties", "items", "errorMessage"}
    | {"$schema", "title", "description", "examples"}
)
"""What a schema of a state document may say. Another keyword would be ignored."""


def _is_number(value: object) -> bool:
    return type(value) in (int, float)
