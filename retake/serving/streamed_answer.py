"""Answers that are sent piece by piece."""

from logging import getLogger

from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Send

from retake.errors import RetakeError

_log = getLogger(__name__)


class StreamedAnswer(StreamingResponse):
    """An answer in pieces. If reading one fails, the connection is closed: the client sees that more is missing."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except (RetakeError, HTTPException) as error:  # the status is sent already
            _log.warning("an answer was cut off: %s", error)
