"""A form: which keys a table of a policy file has, what each may hold, and the value that a filled one becomes.

Whoever fills a form in collects faults instead of stopping at the first one. Each names the field in full
(«last_failure.actions[2].channel»), what was found and what is allowed.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, Union

from retake.foreign_text import plain, shown
from retake.settings.rules import Rule, choice


class Field(NamedTuple):
    """One key of a table. One that may be left out is left to the default of what the form makes."""

    rule: Union[Rule, "Tables"]
    meaning: str
    required: bool = True


class Form(NamedTuple):
    """The keys of a table, and what their values become: `make` is called with them by name."""

    make: Callable[..., Any]
    fields: Mapping[str, Field]


class Forms(NamedTuple):
    """Forms for the same table, of which the value of its key `key` chooses one («strategy», «do»)."""

    key: str
    forms: Mapping[str, Form]


class Tables(NamedTuple):
    """A list of tables, each to be filled in by itself."""

    blank: Form | Forms


def declared(rule: Rule | Tables, meaning: str) -> Any:
    """Declare a key of a section, as a default of its NamedTuple: `form_of` reads it off."""
    return Field(rule, meaning)


def form_of(section: Any) -> Form:
    """The form that is declared in the NamedTuple `section`, all of whose fields must be given from then on."""
    fields: dict[str, Field] = section._field_defaults
    section._field_defaults, section.__new__.__defaults__ = {}, None
    return Form(section, fields)


def fill(blank: Form | Forms, table: Any, path: str, faults: list[str]) -> Any:
    """What the form makes of `table`, which stands at `path` of the file; None where it has faults: see `faults`."""
    if not isinstance(table, dict):
        faults.append(f"{path}: found {shown(table)}, allowed: a table of keys and values")
        return None
    found = len(faults)
    form, rest = (blank, table) if isinstance(blank, Form) else _chosen(blank, table, path, faults)
    if form is None:
        return None
    faults.extend(strangers(rest, form.fields, path))
    values = {key: _read(it, rest[key], f"{path}.{key}", faults) for key, it in form.fields.items() if key in rest}
    for key, it in form.fields.items():
        if it.required and key not in rest:
            faults.append(f"{path}.{key}: missing, allowed: {_allowed(it)}")
    return form.make(**values) if len(faults) == found else None


def _chosen(blank: Forms, table: Mapping[str, Any], path: str, faults: list[str]) -> tuple[Form | None, dict[str, Any]]:
    """The form that `table` asks for, and the table without what asks for it."""
    rule = choice(*blank.forms)
    name = table.get(blank.key)
    rest = {key: value for key, value in table.items() if key != blank.key}
    if isinstance(name, str) and name in blank.forms:
        return blank.forms[name], rest
    found = f"found {shown(name)}" if blank.key in table else "missing"
    faults.append(f"{path}.{blank.key}: {found}, allowed: {rule.allowed}{_meant(str(name), blank.forms)}")
    faults.extend(strangers(rest, [blank.key, *(key for it in blank.forms.values() for key in it.fields)], path))
    return None, rest


def _read(it: Field, value: Any, path: str, faults: list[str]) -> Any:
    if isinstance(it.rule, Tables):
        if not isinstance(value, list) or not value:
            faults.append(f"{path}: found {shown(value)}, allowed: {_allowed(it)}")
            return None
        return tuple(fill(it.rule.blank, table, f"{path}[{number}]", faults) for number, table in enumerate(value, 1))
    try:
        return it.rule.read(value)
    except ValueError:
        faults.append(f"{path}: found {shown(value)}, allowed: {it.rule.allowed}")
        return None


def _allowed(it: Field) -> str:
    return it.rule.allowed if isinstance(it.rule, Rule) else "a list of tables, not empty"


def strangers(table: Mapping[str, Any], known: Collection[str], path: str) -> Iterator[str]:
    """A fault for each key of `table` that is not known there."""
    for key in table:
        if key not in known:
            where = f"{path}.{key}" if path else key
            yield f"{plain(where)}: unknown, allowed: {', '.join(known)}{_meant(key, known)}"


def _meant(name: str, known: Collection[str]) -> str:
    meant = resembled(name, list(known))
    return f"; did you mean {meant}?" if meant else ""


def resembled(key: str, names: list[str]) -> str | None:
    """The one of `names` that whoever wrote `key` may have meant."""
    from difflib import get_close_matches

    by_folded = {name.lower(): name for name in names}
    folded = key[:100].lower().replace("-", "_").replace(" ", "_")
    part_of = [name for name in by_folded if len(folded) > 4 and (name.startswith(folded) or name.endswith(folded))]
    close = part_of or get_close_matches(folded, by_folded, n=1, cutoff=0.75)
    return by_folded[close[0]] if close else None
