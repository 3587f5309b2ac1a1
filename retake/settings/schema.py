"""Schemas: the keys of a table in a file, what each may hold, and the value that the table becomes.

The settings file and the robots' policy files declare their tables with them. Reading collects all faults. Each names
the field in full ("last_failure.actions[2].channel"), what was found, and what is allowed there.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from retake.foreign_text import plain, shown

_MAX_TEXT_LENGTH = 500


class Rule(NamedTuple):
    """What one value may be: in words, and as a function that returns the value ready for use or raises ValueError.

    whole(1, 5).read(3)     # 3
    whole(1, 5).allowed     # "whole number, 1 to 5"
    """

    allowed: str
    read: Callable[[Any], Any]
    hidden: bool = False  # whether a wrong value may be a secret, which no message may show


class PictureSize(NamedTuple):
    """Width and height of a picture, in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


def _require(sound: bool) -> None:
    if not sound:
        raise ValueError


def whole(low: int, high: int | None = None) -> Rule:
    def read(value: Any) -> int:
        _require(type(value) is int and low <= value and (high is None or value <= high))
        return int(value)

    return Rule(f"whole number, {low} {'or more' if high is None else f'to {high}'}", read)


def above_zero(high: int) -> Rule:
    def read(value: Any) -> float:
        _require(type(value) in (int, float) and 0 < value <= high)
        return value  # type: ignore[no-any-return]  # an int stays an int: 300, not 300.0, in messages

    return Rule(f"number above 0, up to {high}", read)


def from_zero(high: int) -> Rule:
    return between(0, high)


def between(low: int, high: int) -> Rule:
    def read(value: Any) -> float:
        _require(type(value) in (int, float) and low <= value <= high)
        return value  # type: ignore[no-any-return]

    return Rule(f"number, {low} to {high}", read)


def choice(*choices: str) -> Rule:
    def read(value: Any) -> str:
        _require(isinstance(value, str) and value in choices)
        return str(value)

    return Rule(" or ".join(json.dumps(choice) for choice in choices), read)


def none_or(rule: Rule) -> Rule:
    """Allow "none" for None, in formats without a null such as TOML."""
    return Rule(f'{rule.allowed}, or "none"', lambda value: None if value == "none" else rule.read(value))


def several(rule: Rule) -> Rule:
    """Allow a list, possibly empty, of different values that `rule` allows."""

    def read(value: Any) -> tuple[Any, ...]:
        _require(isinstance(value, list))
        read = tuple(rule.read(item) for item in value)
        _require(len(set(read)) == len(read))
        return read

    return Rule(f"list of different values, each: {rule.allowed}", read)


def some(rule: Rule) -> Rule:
    """Allow what `several` allows, except an empty list."""
    many = several(rule)

    def read(value: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = many.read(value)
        _require(found != ())
        return found

    return Rule(f"{many.allowed}; not empty", read, rule.hidden)


def _read_name(value: Any) -> str:
    text = _read_text(value)
    _require(len(text) <= 64 and text.isascii() and all(sign.isalnum() or sign in "-_." for sign in text))
    _require(not text.startswith("."))
    return text


def _read_variable(value: Any) -> str:
    text = _read_text(value)
    _require(text.isascii() and text.replace("_", "a").isalnum() and not text[0].isdigit() and len(text) <= 64)
    return text


def _read_import(value: Any) -> str:
    module, _, attribute = (text := _read_text(value)).partition(":")
    _require(all(part.isidentifier() for name in (module, attribute) for part in name.split(".")))
    return text


def _read_yes_or_no(value: Any) -> bool:
    _require(type(value) is bool)
    return bool(value)


def _read_text(value: Any) -> str:
    _require(isinstance(value, str) and value.isprintable() and value == value.strip())
    _require(0 < len(value) <= _MAX_TEXT_LENGTH)
    return str(value)


def _without_credentials(url: str) -> str:
    _require("@" not in url.partition("://")[2].partition("/")[0])
    return url


def _read_endpoint(value: Any) -> str:
    text = _read_text(value)
    scheme, _, rest = text.partition("://")
    _require(scheme in ("http", "https") and not rest.startswith(("/", ":", "?")) and rest != "" and " " not in text)
    return _without_credentials(text).rstrip("/")


def _read_bucket_url(value: Any) -> str:
    text = _read_text(value)
    scheme, _, rest = text.partition(":")
    if scheme == "file":
        _require(rest != "")
    else:
        _require(scheme in ("b2", "s3") and rest.startswith("//") and rest[2:3] not in ("", "/", "?"))
    return _without_credentials(text)


def _read_ledger_url(value: Any) -> str:
    text = _read_text(value)
    scheme, _, rest = text.partition(":")
    _require(scheme in ("sqlite", "postgresql") and rest != "" and "password=" not in text.lower())
    if scheme == "postgresql":
        server, _, database = rest.removeprefix("//").partition("/")
        _require(rest.startswith("//") and server != "" and database != "")
        _require(":" not in server.rpartition("@")[0])
    return text


def _read_umask(value: Any) -> str:
    text = _read_text(value)
    _require(3 <= len(text) <= 4 and all(sign in "01234567" for sign in text) and not int(text, 8) & 0o7700)
    return text


def _read_key(value: Any) -> str:
    parts = _read_text(value).split("/")
    _require("\\" not in value and not any(part in ("", ".", "..") or part.startswith(".retake") for part in parts))
    _require(len(value.encode()) <= 900 and all(len(part.encode()) <= 250 for part in parts))  # what a bucket holds
    return "/".join(parts)


def _read_folder(value: Any) -> str:
    return _read_key(_read_text(value).rstrip("/")) + "/"


def _read_ratio(value: Any) -> str:
    width, _, height = _read_text(value).partition(":")
    for part in (width, height):
        _require(part.isascii() and part.isdecimal() and len(part) <= 5 and int(part) > 0)
    return f"{width}:{height}"


def _read_size(value: Any) -> PictureSize:
    if isinstance(value, str):
        parts = [part.strip() for part in value.lower().replace("×", "x").replace("*", "x").split("x")]
        _require(all(part.isascii() and part.isdecimal() and len(part) <= 5 for part in parts))
        value = [int(part) for part in parts]
    _require(isinstance(value, list) and len(value) == 2)
    _require(all(type(side) is int and 16 <= side <= 4096 and side % 2 == 0 for side in value))
    return PictureSize(*value)


ENDPOINT = Rule("http:// or https:// URL without credentials", _read_endpoint)
BUCKET_URL = Rule(
    "file:PATH, b2://BUCKET/PREFIX or s3://BUCKET/PREFIX?endpoint=URL&region=NAME, without credentials",
    _read_bucket_url,
)
LEDGER_URL = Rule("sqlite:PATH or postgresql://USER@HOST:PORT/DATABASE, without a password", _read_ledger_url)
YES_OR_NO = Rule("true or false", _read_yes_or_no)
UMASK = Rule('octal digits that withhold nothing from the owner: "077", "027", "002"', _read_umask)
TEXT = Rule("text, not empty", _read_text)
NAME = Rule('name of letters, digits, "-", "_" and ".", 64 at most', _read_name)
IMPORT = Rule('"MODULE:ATTRIBUTE", as Python imports it', _read_import)
VARIABLE = Rule("name of an environment variable; the secret itself is in no file", _read_variable, hidden=True)
KEY = Rule("key in the bucket: relative, parts of 250 bytes at most, separated by /", _read_key)
FOLDER = Rule("folder in the bucket: relative, parts of 250 bytes at most, separated by /", _read_folder)
RATIO = Rule('"WIDTH:HEIGHT"', _read_ratio)
SIZE = Rule('"WIDTHxHEIGHT" or [WIDTH, HEIGHT], even numbers, 16 to 4096', _read_size)
SECONDS = above_zero(31_536_000)  # a year
PATIENCE = from_zero(31_536_000)  # seconds; 0 means not at all
USD = from_zero(1_000_000)


REQUIRED: Any = object()
"""In place of the default of a field whose key must be given."""


class TableList:
    """A rule for a list of tables, each read by `schema`."""

    def __init__(self, schema: "Schema | SchemaChoice", *, may_be_empty: bool = False) -> None:
        self.schema, self.may_be_empty = schema, may_be_empty
        self.allowed = "a list of tables" if may_be_empty else "a list of tables, not empty"


class OneTable:
    """A rule for one table, read by `schema`."""

    allowed = "an object {…}"

    def __init__(self, schema: "Schema | SchemaChoice") -> None:
        self.schema = schema


class NamedTables:
    """A rule for an object of tables whose names the user chooses, each read by `schema`.

    `named(value, name)` returns a table's value with its name added. `name` is the rule for the names.
    """

    allowed = "an object {…} of objects, by name"

    def __init__(self, schema: "Schema | SchemaChoice", named: Callable[[Any, str], Any], name: Rule) -> None:
        self.schema, self.named, self.name = schema, named, name


class NamedValues:
    """A rule for an object of values whose names the user chooses. `value` and `name` are the rules for each."""

    def __init__(self, value: Rule, name: Rule) -> None:
        self.value, self.name = value, name
        self.allowed = f"an object {{…}} of values, by name, each: {value.allowed}"


class Field(NamedTuple):
    """One key of a table: what it may hold, its meaning in words, and its default."""

    rule: Rule | TableList | OneTable | NamedTables | NamedValues
    meaning: str
    default: Any = REQUIRED


class Schema(NamedTuple):
    """The keys of a table. `make` is called with their values as keyword arguments."""

    make: Callable[..., Any]
    fields: Mapping[str, Field]


class SchemaChoice:
    """Several schemas for a table. The value of its key `key` ("strategy", "do") selects one."""

    def __init__(self, key: str, schemas: Mapping[str, Schema]) -> None:
        self.key, self.schemas = key, schemas


def field(rule: Rule | TableList | OneTable | NamedTables, meaning: str, default: Any = REQUIRED) -> Any:
    """Declare a field as a default of a NamedTuple, for `schema_of` to collect.

    class Cache(NamedTuple):
        ttl_s: float = field(SECONDS, "seconds for which a result may be used")

    CACHE = schema_of(Cache)
    """
    return Field(rule, meaning, default)


def schema_of(table: Any) -> Schema:
    """Return the schema declared by `field` in the NamedTuple `table`, and give `table` the defaults declared there.

    Call it once, right after the class is defined: until then its defaults are the declarations themselves.
    """
    fields: dict[str, Field] = table._field_defaults
    defaults = {name: it.default for name, it in fields.items() if it.default is not REQUIRED}
    table._field_defaults, table.__new__.__defaults__ = defaults, tuple(defaults.values())
    return Schema(table, fields)


def read_table(schema: Schema | SchemaChoice, table: Any, path: str, faults: list[str]) -> Any:
    """Return what `schema` makes of `table`, which is at `path` in the file, or None if it has faults.

    An unknown key is a fault too. Faults are appended to `faults`.
    """
    if not isinstance(table, dict):
        faults.append(f"{path}: found {shown(table)}, allowed: a table of keys and values")
        return None
    before = len(faults)
    if isinstance(schema, SchemaChoice):
        chosen, table = _chosen(schema, table, path, faults)
        if chosen is None:
            return None
        schema = chosen
    faults.extend(unknown_key_faults(table, schema.fields, path))
    values = read_fields(schema, table, path, faults)
    return schema.make(**values) if len(faults) == before else None


def read_fields(schema: Schema, table: Mapping[str, Any], path: str, faults: list[str]) -> dict[str, Any]:
    """Return the values of the fields of `schema` in `table`. Faults are appended to `faults`.

    A field that is missing, null or faulty gets its default. Keys that `schema` does not have are ignored.
    """
    read = ((name, read_field(it, table.get(name), f"{path}.{name}", faults)) for name, it in schema.fields.items())
    return {name: value for name, value in read if value is not REQUIRED}


def read_field(declared: Field, value: Any, path: str, faults: list[str]) -> Any:
    """Return `value` as read by `declared`, or the default if it is None (missing) or faulty."""
    rule = declared.rule
    if value is None:
        if declared.default is REQUIRED:
            faults.append(f"{path}: missing, allowed: {rule.allowed}")
        return declared.default
    if isinstance(rule, TableList) and isinstance(value, list) and (value or rule.may_be_empty):
        return tuple(read_table(rule.schema, it, f"{path}[{number}]", faults) for number, it in enumerate(value, 1))
    if isinstance(rule, OneTable):
        return read_table(rule.schema, value, path, faults) or declared.default
    if isinstance(rule, NamedTables) and isinstance(value, dict):
        return _named_tables(rule, value, path, faults)
    if isinstance(rule, NamedValues) and isinstance(value, dict):
        return _named_values(rule, value, path, faults)
    if isinstance(rule, Rule):
        with suppress(ValueError):
            return rule.read(value)
    found = "something else" if isinstance(rule, Rule) and rule.hidden else shown(value)
    limit = (
        f"; {_MAX_TEXT_LENGTH} characters at most" if isinstance(value, str) and len(value) > _MAX_TEXT_LENGTH else ""
    )
    faults.append(f"{path}: found {found}, allowed: {rule.allowed}{limit}")
    return declared.default


def _named_tables(rule: NamedTables, tables: Mapping[str, Any], path: str, faults: list[str]) -> tuple[Any, ...]:
    found = []
    for name, full in _names(rule.name, tables, path, faults):
        if value := read_table(rule.schema, tables[name], full, faults):
            found.append(rule.named(value, name))
    return tuple(found)


def _named_values(rule: NamedValues, values: Mapping[str, Any], path: str, faults: list[str]) -> dict[str, Any]:
    names = _names(rule.name, values, path, faults)
    return {name: read_field(Field(rule.value, ""), values[name], full, faults) for name, full in names}


def _names(rule: Rule, values: Mapping[str, Any], path: str, faults: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each name that `rule` allows, and its full path in the file."""
    for name in values:
        full = plain(f"{path}.{name}")
        try:
            rule.read(name)
        except ValueError:
            faults.append(f"{full}: not a name, allowed: {rule.allowed}")
        else:
            yield name, full


def unknown_keys(
    table: Mapping[str, Any], known: Collection[str], no_misspellings: Collection[str] = ()
) -> Iterator[tuple[str, str | None]]:
    """Yield each key of `table` that is not in `known`, with the known key that it may be a misspelling of.

    That is None if nothing resembles it, and for keys in `no_misspellings`.
    """
    for key in table:
        if key not in known:
            yield key, None if key in no_misspellings else closest(key, known)


def unknown_key_faults(table: Mapping[str, Any], known: Collection[str], path: str) -> Iterator[str]:
    """Yield a fault for each key of `table`, which is at `path` ("" for the whole file), that is not in `known`."""
    for key, meant in unknown_keys(table, known):
        where = f"{path}.{key}" if path else key
        yield f"{plain(where)}: unknown, allowed: {', '.join(known)}{did_you_mean(meant)}"


def closest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that `name` may be a misspelling of, or None."""
    from difflib import get_close_matches

    by_folded = {it.lower(): it for it in known}
    folded = name[:100].lower().replace("-", "_").replace(" ", "_")
    part_of = [it for it in by_folded if len(folded) > 4 and (it.startswith(folded) or it.endswith(folded))]
    close = part_of or get_close_matches(folded, by_folded, n=1, cutoff=0.75)
    return by_folded[close[0]] if close else None


def did_you_mean(name: str | None) -> str:
    """Return the end of a message that suggests `name`, or "" for None."""
    return f"; did you mean {name}?" if name else ""


def _chosen(
    choices: SchemaChoice, table: Mapping[str, Any], path: str, faults: list[str]
) -> tuple[Schema | None, dict[str, Any]]:
    """Return the schema that `table` selects, and the table without the key that selects it."""
    name = table.get(choices.key)
    rest = {key: value for key, value in table.items() if key != choices.key}
    if isinstance(name, str) and name in choices.schemas:
        return choices.schemas[name], rest
    found = f"found {shown(name)}" if choices.key in table else "missing"
    allowed = choice(*choices.schemas).allowed + did_you_mean(closest(str(name), choices.schemas))
    faults.append(f"{path}.{choices.key}: {found}, allowed: {allowed}")
    known = [choices.key, *(key for schema in choices.schemas.values() for key in schema.fields)]
    faults.extend(unknown_key_faults(rest, known, path))
    return None, rest
