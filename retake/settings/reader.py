"""Reads a settings file: one JSON object, whose sections are declared by schemas (schema.py).

The sections that every pipeline has are in shared.py. Each pipeline adds its own and passes all of them to
`read_settings`. An idle tick imports this module, so it compiles no regular expression and imports nothing that a valid
file does not need.
"""

import errno
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from retake.errors import SettingsError
from retake.foreign_text import plain, shown
from retake.keys import secrets_in
from retake.settings.schema import BUCKET_URL, Field, Schema, read_field, read_fields, unknown_keys
from retake.strict_json import parse

DEFAULT_FILE = "config/config.json"

MAX_FILE_BYTES = 4 * 2**20
"""Maximum bytes of a file of settings, prompts or graphs."""

ENVIRONMENT = {
    "RETAKE_CONFIG": "the settings file, instead of config/config.json",
    "RETAKE_STORAGE_URL": "the bucket, instead of STORAGE.url",
    "RETAKE_CHANNEL": "the channel, for a command that needs exactly one and has no --channel",
    "RETAKE_DIAGNOSE": "logs requests, bucket operations and decisions, if set to anything but 0: --diagnose",
    "RETAKE_SANDBOX_URL": "the base URL of a running sandbox; the vendors' endpoints are then its stand-ins",
    "RABBITMQ_URL": "RabbitMQ, for retake work: amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps:// with TLS",
}
"""The environment variables other than the vendors' keys, and what each is for."""


class SettingsFile:
    """A settings file that was read. `faults` says what is wrong with it; faulty fields have their defaults."""

    def __init__(
        self,
        source: str,
        document: Mapping[str, Any],
        values: Mapping[str, Any],
        faults: tuple[str, ...],
        warnings: tuple[str, ...],
    ) -> None:
        self.source, self.document = source, document
        self.values = values  # of each section, and of each field at the top level, by its path
        self.faults, self.warnings = faults, warnings

    def gives(self, section: str, name: str) -> bool:
        """Return whether the file itself sets `name` in `section`."""
        return _table_at(self.document, section, []).get(name) is not None

    def check(self, contradictions: Iterator[str]) -> None:
        """Raise SettingsError with all faults, one per line, or, if there are none, with all `contradictions`."""
        if faults := self.faults or tuple(contradictions):
            first = f"{plain(self.source)}: these settings cannot be used; nothing was changed:"
            raise SettingsError("\n".join([first, *faults]))


def read_settings(
    environ: Mapping[str, str],
    sections: Mapping[str, Schema],
    fields: Mapping[str, Field],
    older_keys: Mapping[str, str],
    others: Collection[str] = (),
) -> SettingsFile:
    """Read the file that RETAKE_CONFIG names, or config/config.json in the current directory.

    `sections` are the sections that the file may have, by their path ("WORKFLOW", "API_KEYS.openai"), and `fields` the
    settings at its top level. `older_keys` are, by section, unknown keys that are not misspellings (names separated by
    spaces). `others` are the paths of sections that other pipelines read; they are not validated. RETAKE_STORAGE_URL
    overrides STORAGE.url. A setting that is left out or null has its default.

    Raises SettingsError if there is no such file or it is not a JSON object. All other faults are in the result:
    `SettingsFile.check` raises them or, if there are none, the contradictions that only the caller can find.
    """
    source = environ.get("RETAKE_CONFIG") or DEFAULT_FILE
    document = _document(source)
    faults = list(secrets_in(document))
    values = {
        path: schema.make(**read_fields(schema, _table_at(document, path, faults), path, faults))
        for path, schema in sections.items()
    }
    if override := environ.get("RETAKE_STORAGE_URL"):
        url = read_field(Field(BUCKET_URL, "", ""), override.strip(), "RETAKE_STORAGE_URL", faults)
        values["STORAGE"] = values["STORAGE"]._replace(url=url)
    values |= {name: read_field(it, document.get(name), name, faults) for name, it in fields.items()}
    warnings = _warnings(source, _unknown(document, _known(sections, fields, others), older_keys, faults))
    return SettingsFile(source, document, values, tuple(faults), warnings)


def _document(source: str) -> dict[str, Any]:
    named = plain(source)
    try:
        document = parse(read_file(source))
    except FileNotFoundError:
        raise no_such_file(source) from None
    except OSError as error:
        raise SettingsError(f"{named}: the settings file cannot be read: {error.strerror}; fix that") from None
    except json.JSONDecodeError as error:
        raise SettingsError(
            f"{named}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}; fix it there"
        ) from None
    except ValueError as error:  # not UTF-8, a name given twice, nested or long beyond reason
        raise SettingsError(f"{named}: the settings file is invalid: {error}") from None
    if not isinstance(document, dict):
        raise SettingsError(
            f'{named}: the settings must be a JSON object, such as {{"WORKFLOW": {{"max_retries": 3}}}}'
        )
    return document


def no_such_file(source: str) -> SettingsError:
    """Return the error for a missing settings file."""
    return SettingsError(
        f"{plain(source)}: there is no such settings file; run from the folder that has it, name it in RETAKE_CONFIG, "
        "or make one: retake init"
    )


def _table_at(document: Mapping[str, Any], path: str, faults: list[str]) -> Mapping[str, Any]:
    """Return the object at `path` ("API_KEYS.openai"), or an empty one if there is none."""
    found: Any = document
    walked = []
    for part in path.split("."):
        walked.append(part)
        found = found.get(part)
        if found is None:
            return {}
        if not isinstance(found, dict):
            fault = f"{'.'.join(walked)}: found {shown(found)}, allowed: an object {{…}}"
            if fault not in faults:  # several sections may share a parent, such as API_KEYS
                faults.append(fault)
            return {}
    return found  # type: ignore[no-any-return]


def _known(
    sections: Mapping[str, Schema], fields: Mapping[str, Field], others: Collection[str]
) -> dict[str, list[str]]:
    """Return the keys that each object of the file may have: {"": [sections], "WORKFLOW": [settings], …}."""
    known: dict[str, list[str]] = {"": list(fields)}
    for path in (*sections, *others):
        parent, _, name = path.rpartition(".")
        if parent and parent not in known:
            known[""].append(parent)
        known.setdefault(parent, []).append(name)
        if path in sections:
            known[path] = list(sections[path].fields)
    return known


def _unknown(
    document: Mapping[str, Any], known: Mapping[str, list[str]], older_keys: Mapping[str, str], faults: list[str]
) -> list[str]:
    """Return the keys of `document` that are unknown. Those that look misspelt are appended to `faults` instead."""
    unknown = []
    for path, names in known.items():
        table = _table_at(document, path, []) if path else document
        for key, meant in unknown_keys(table, names, older_keys.get(path, "").split()):
            full = plain(f"{path}.{key}" if path else key)
            if meant:
                faults.append(f"{full}: unknown setting, did you mean {meant}?")
            else:
                unknown.append(full)
    return unknown


def _warnings(source: str, unknown: list[str]) -> tuple[str, ...]:
    if not unknown:
        return ()
    listed = ", ".join(unknown[:30]) + (f" and {len(unknown) - 30} more" if len(unknown) > 30 else "")
    return (f"{plain(source)}: unknown settings, which are ignored: {listed}",)


def read_file(path: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a file that a person has named.

    Raises OSError, with a `strerror` for people, also for a file of more than `max_bytes` bytes and for a pipe or a
    device, which might never end; ValueError for a path that contains a NUL.
    """
    with open(path, "rb", opener=_opened) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes // 1024:,} KiB")
    return data


def _opened(path: str, flags: int) -> int:
    """Open the file. A pipe is opened without waiting for somebody to write to it."""
    return os.open(path, flags | os.O_NONBLOCK)
