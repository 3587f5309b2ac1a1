"""Output that a person or a program asked for, on a stream that may be a full disk or a pipe without a reader."""

from typing import TextIO

from retake.errors import RetakeError
from retake.exit_codes import ExitCode
from retake.logs import forget_unwritten


class NotWritten(RetakeError):
    """What was asked for could not be written."""

    exit_code = ExitCode.TRY_LATER


def write(text: str, stream: TextIO, what: str = "the answer") -> None:
    """Write `text` to `stream`, at once. Raises NotWritten, which says `what` it was."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        raise not_written(error, stream, what) from error


def not_written(error: OSError, stream: TextIO, what: str = "the answer") -> NotWritten:
    """Return the error for what could not be written. The stream then takes everything, and writes nothing."""
    forget_unwritten(stream, for_good=True)
    return NotWritten(f"{what} could not be written: {error.strerror}")
