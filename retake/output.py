"""Output that a person or a program asked for, on a stream that may be a full disk or a pipe without a reader."""

import os
from contextlib import suppress
from typing import TextIO

from retake.errors import RetakeError
from retake.exit_codes import ExitCode


class NotWritten(RetakeError):
    """What was asked for could not be written."""

    exit_code = ExitCode.TRY_LATER


def write(text: str, stream: TextIO) -> None:
    """Write `text` to `stream`, at once. Raises NotWritten; the stream then takes everything, and writes nothing."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        abandon(stream)
        raise NotWritten(f"the answer could not be written: {error.strerror}") from error


def abandon(stream: TextIO) -> None:
    """Empty the stream's buffer into nothing: what could not be written once would fail again when the process ends."""
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
        stream.flush()
