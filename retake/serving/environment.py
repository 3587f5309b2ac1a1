"""The environment of a service: that of the process, extended by a `.env` file."""

import io
import os
from collections.abc import Iterator
from pathlib import Path

from dotenv.parser import Binding, parse_stream

from retake.errors import SettingsError

_MAX_BYTES = 1 << 20


def load_environment(folder: Path = Path(".")) -> dict[str, str]:
    """Return the environment variables, plus those in `folder`/.env that the process does not have.

    Values are taken literally: nothing is expanded. Raises SettingsError for a file that cannot be read or has a line
    that is not NAME=value; the error names the line and quotes nothing.
    """
    return {**dict(_variables(folder / ".env")), **os.environ}


def _variables(path: Path) -> Iterator[tuple[str, str]]:
    for it in parse_stream(io.StringIO(_text(path))):
        if it.error or (it.key is not None and not _is_variable(it)):
            text = it.original.string  # may begin with blank lines
            line = it.original.line + text[: len(text) - len(text.lstrip())].count("\n")
            raise SettingsError(f"{path}, line {line}: not NAME=value; correct it, or take it out")
        if it.key is not None and it.value is not None:
            yield it.key, it.value


def _is_variable(binding: Binding) -> bool:
    name, value = binding.key or "", binding.value
    return value is not None and "\0" not in value and name.isascii() and name.replace(".", "_").isidentifier()


def _text(path: Path) -> str:
    """Return the content of the file, or "" if there is none."""
    try:
        if not path.exists():
            return ""
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            raise SettingsError(f"{path}: not a file of variables; move it away, or run this in another folder")
        return path.read_text("utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: not a text in UTF-8") from None
