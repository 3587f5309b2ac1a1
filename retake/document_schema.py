"""Validates documents against the JSON Schemas in retake/schemas.

Implements the subset of JSON Schema 2020-12 that documents in a bucket need. Only the first fault is reported, with its
field and in words for people. It is stricter than JSON Schema about numbers (1.0 is not a whole number, NaN is not an
amount) and laxer about "date-time", which may be empty and may leave out the zone.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from retake.clock import parse_stamp
from retake.foreign_text import shown

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schemas")
"""The folder of the schemas."""

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

    def __str__(self) -> str:
        return ": ".join(map(str, self.args))


class SchemaFault(NamedTuple):
    """What is wrong with a document, and where: "midjourney_task.task_id", "" for all of it."""

    field: str
    what: str


class DocumentSchema:
    """A schema, named by its file without the suffix. Raises OSError or ValueError if it cannot be read."""

    def __init__(self, name: str) -> None:
        with open(os.path.join(FOLDER, f"{name}.json"), "rb", buffering=0) as file:
            self.schema: Schema = json.loads(file.read())
        self._parts: dict[int, _Part] = {}  # by the id() of the JSON object each was made from

    def check(self, document: object) -> None:
        """Raise InvalidDocument, which names the first fault, if `document` is not valid."""
        if fault := self.part(self.schema).fault(document):
            raise InvalidDocument(fault.field or WHOLE, fault.what)

    def part(self, schema: Schema) -> "_Part":
        """Return the validator of a part of this schema, creating it when it is first needed."""
        if (known := self._parts.get(id(schema))) is None:
            known = self._parts[id(schema)] = _Part(self, schema)
        return known

    def referred(self, reference: str) -> "_Part":
        """Return the validator that a `$ref` names: a part of this schema ("#/$defs/count") or another file
        ("paid_call.json")."""
        if reference.startswith("#/$defs/"):
            return self.part(self.schema["$defs"][reference.removeprefix("#/$defs/")])
        other = schema_named(reference.removesuffix(".json"))
        return other.part(other.schema)


class _Part:
    """The validator of a part of a schema. Keywords are looked up once, when it is made, not for each value."""

    def __init__(self, whole: DocumentSchema, schema: Schema) -> None:
        self._part, self._referred, self._schema = whole.part, whole.referred, schema
        self._types = _types_of(schema["type"]) if "type" in schema else None
        self._rules = [(schema[keyword], rule) for keyword, rule in _RULES.items() if keyword in schema]
        self._message: str = schema.get("errorMessage", "")
        self._reference: str = schema.get("$ref", "")
        self._chooses = "anyOf" in schema or "if" in schema
        self._required: Sequence[str] = schema.get("required", ())
        self._known: Schema = schema.get("properties", {})
        self._others: Any = schema.get("additionalProperties", True)
        self._items: Schema | None = schema.get("items")

    def fault(self, value: object) -> SchemaFault | None:
        """Return the first fault of `value`, with the field relative to it, or None."""
        if self._reference and (fault := self._referred(self._reference).fault(value)):
            return fault
        if self._types and type(value) not in self._types:
            return self._wrong(value, _wrong_type(self._schema["type"]))
        for wanted, rule in self._rules:
            if wrong := rule(wanted, value):
                return self._wrong(value, wrong)
        if self._chooses and (fault := self._fault_of_choice(value)):
            return fault
        if isinstance(value, dict):
            return self._fault_of_keys(value)
        return self._fault_of_items(value) if isinstance(value, list) and self._items is not None else None

    def _wrong(self, value: object, what: str) -> SchemaFault:
        return SchemaFault("", f"{shown(value)} {self._message or what}")

    def _fault_of_choice(self, value: object) -> SchemaFault | None:
        if "anyOf" in self._schema:
            faults = [self._part(inner).fault(value) for inner in self._schema["anyOf"]]
            if all(faults):
                return faults[0]
        if "if" in self._schema and not self._part(self._schema["if"]).fault(value):
            return self._part(self._schema["then"]).fault(value)
        return None

    def _fault_of_keys(self, value: Mapping[str, Any]) -> SchemaFault | None:
        for key in self._required:
            if key not in value:
                return SchemaFault(key, "is missing")
        unknown = () if self._others is True else (key for key in value if key not in self._known)
        for key in chain(self._known, unknown):
            if key in value and (fault := self._part(self._known.get(key, self._others)).fault(value[key])):
                return fault._replace(field=f"{key}.{fault.field}" if fault.field else key)
        return None

    def _fault_of_items(self, value: Sequence[object]) -> SchemaFault | None:
        assert self._items is not None
        item = self._part(self._items)
        for number, it in enumerate(value, 1):
            if fault := item.fault(it):
                return fault._replace(what=f"{fault.what} (item {number})")
        return None


@cache
def schema_named(name: str) -> DocumentSchema:
    """Return the schema called `name`, read once per process. Raises OSError or ValueError if it cannot be read."""
    return DocumentSchema(name)


# --- keywords: (the keyword's value in the schema, the document's value) -> what is wrong, or "" ---


def _types_of(names: str | list[str]) -> frozenset[type]:
    return frozenset(chain.from_iterable(_TYPES[name][0] for name in ([names] if isinstance(names, str) else names)))


def _wrong_type(names: str | list[str]) -> str:
    allowed = [names] if isinstance(names, str) else names
    return f"is not {' or '.join(_TYPES[name][1] for name in allowed if name != 'null')}"


def _enum(values: list[Any], value: object) -> str:
    return "" if value in values else f"is not one of {', '.join(str(it) for it in values if it)}"


def _minimum(limit: float, value: Any) -> str:
    return "" if not _is_number(value) or value >= limit else f"is less than {limit}"


def _maximum(limit: float, value: Any) -> str:
    return "" if not _is_number(value) or value <= limit else f"is more than {limit}"


def _exclusive_maximum(end: float, value: Any) -> str:
    return "" if not _is_number(value) or value < end else f"is not less than {end:g}"


def _min_properties(limit: int, value: object) -> str:
    return "" if not isinstance(value, dict) or len(value) >= limit else f"has fewer than {limit} keys"


def _max_length(limit: int, value: object) -> str:
    return "" if not isinstance(value, str) or len(value) <= limit else f"is longer than {limit} characters"


def _pattern(pattern: str, value: object) -> str:
    return "" if not isinstance(value, str) or re.search(pattern, value) else f"does not match {pattern}"


def _format(name: str, value: object) -> str:
    if name != "date-time" or not isinstance(value, str) or not value:
        return ""
    try:
        parse_stamp(value)
    except ValueError:
        return "is not a time (ISO 8601)"
    return ""


_RULES: Mapping[str, Callable[[Any, Any], str]] = {
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
    {
        *_RULES,
        "type",
        "$ref",
        "$defs",
        "anyOf",
        "if",
        "then",
        "required",
        "properties",
        "additionalProperties",
        "items",
        "errorMessage",
    }
    | {"$schema", "title", "description", "examples"}
)
"""The keywords that schemas may use. Any other would be ignored silently."""


def _is_number(value: object) -> bool:
    return type(value) in (int, float)
