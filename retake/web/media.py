"""Pictures and videos of generations: /media/CHANNEL/ID.png and .mp4. Nothing else in the bucket is served."""

import re
from hashlib import sha256
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from retake.bucket import Bucket, Entry, NotFound
from retake.bucket.ranged_reads import read_range
from retake.operations.port import OperatedPipeline
from retake.serving.file_answer import file_answer
from retake.web.desk import Desk

_NAME = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]{0,63})\.(png|mp4)", re.ASCII)


class MediaFile(NamedTuple):
    """The current location of a picture or video."""

    bucket: Bucket
    entry: Entry

    @property
    def tag(self) -> str:
        """The ETag, which is different for every file."""
        told = f"{self.entry.key.rpartition('/')[2]} {self.entry.size} {self.entry.modified}"
        return f'"{sha256(told.encode()).hexdigest()[:20]}"'

    def read(self, first: int, last: int) -> bytes:
        """Return a part of the file, or b"" if it is no longer there. Raises StorageError."""
        try:
            return read_range(self.bucket, self.entry.key, first, last)
        except NotFound:
            return b""


def media_routes(desk: Desk) -> APIRouter:
    """Return the route /media/CHANNEL/NAME."""
    router = APIRouter()

    @router.api_route("/media/{channel}/{name}", methods=["GET", "HEAD"])
    def media(channel: str, name: str, request: Request) -> Response:
        asked = _NAME.fullmatch(name)
        if not asked or b"%" in request.scope.get("raw_path", b""):  # none of our names needs encoding
            raise HTTPException(404)
        return _answer(request, SoughtFile(desk, channel, asked[1], asked[2]))

    return router


class SoughtFile:
    """A file of a generation, wherever the pipeline keeps it now."""

    def __init__(self, desk: Desk, channel: str, item_id: str, suffix: str) -> None:
        self._desk, self._channel = desk, channel
        self._id, self.suffix = item_id, suffix
        self.name = f"{item_id}.{suffix}"

    def find(self, *, anew: bool = False) -> MediaFile:
        """Return the file's location, looked up `anew` or as recently seen. Raises HTTPException (404), BucketSilent,
        StorageError."""
        key = ("media", self._channel, self._id)
        files = self._files() if anew else self._desk.shelf.get(key, self._files)
        pipeline = self._pipeline()
        named = [it for it in files if it.key.rpartition("/")[2] == self.name]
        kept = [it for it in files if it.key.split("/")[-2:-1] == [self._id] and it.key.endswith(f".{self.suffix}")]
        found = next(iter(named or kept), None)  # a dead letter's id may differ from the names of its files
        if found is None or pipeline is None:
            raise HTTPException(404)
        return MediaFile(pipeline.bucket, found)

    def _files(self) -> list[Entry]:
        pipeline = self._pipeline()
        return pipeline.evidence(self._id).files if pipeline else []

    def _pipeline(self) -> OperatedPipeline | None:
        operations, wanted = self._desk.operations, None if self._channel == "-" else self._channel
        return next((it for it in operations.pipelines if operations.named_as(it) == wanted), None)


def _answer(request: Request, sought: SoughtFile) -> Response:
    file = sought.find()
    headers = {"cache-control": "private, no-cache", "etag": file.tag}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)

    def read(first: int, last: int) -> bytes:
        """Return a part of the file. If a tick has moved it meanwhile, it is looked up again."""
        nonlocal file
        size = file.entry.size
        if data := file.read(first, last):
            return data
        file = sought.find(anew=True)
        return file.read(first, last) if file.entry.size == size else b""

    return file_answer(request, sought.name, file.entry.size, read, headers)
