"""Writes a command's output to a stream that may be a full disk or a pipe without a reader."""

from typing import TextIO

from retake.errors import RetakeError
from retake.exit_codes import ExitCode
from retake.logs import forget_unwritten


class NotWritten(RetakeError):
    """The output could not be written."""

    exit_code = ExitCode.TRY_LATER


def write(text: str, stream: TextIO, what: str = "the answer") -> None:
    """Write `text` to `stream` and flush it. Raises NotWritten, whose message names the output as `what`."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        raise not_written(error, stream, what) from error


def not_written(error: OSError, stream: TextIO, what: str = "the answer") -> NotWritten:
    """Return the error for a failed write. From then on the stream discards everything."""
    forget_unwritten(stream, for_good=True)
    return NotWritten(f"{what} could not be written: {error.strerror}")
