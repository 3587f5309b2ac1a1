"""Forms with pictures, read within limits: large parts go to disk, and files that are not pictures are refused."""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from fastapi import Request
from python_multipart.exceptions import FormParserError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from retake.bucket.contract import is_key
from retake.images.access import BodyRefused, ClientGone, bounded_chunks
from retake.images.objects import PictureKind, picture_of
from retake.images.settings import check_user

OVERHEAD = 65_536
"""Maximum bytes of a form besides its files."""

MAX_FIELD_BYTES = 4096  # bytes
MAX_FIELDS = 20
_FIRST_BYTES = 12  # identify the format of a picture


class FormPicture(NamedTuple):
    """A picture in a form. Its bytes are read only when needed."""

    name: str  # the client's file name without folders
    size: int  # bytes
    kind: PictureKind
    file: UploadFile

    def read(self) -> bytes:
        """Return the whole file."""
        self.file.file.seek(0)
        return bytes(self.file.file.read())


class PictureForm:
    """A form with the field userId, and pictures in other fields. Raises HTTPException (413, 415, 422)."""

    def __init__(self, form: FormData, fields: Collection[str]) -> None:
        self._form = form
        if unknown := sorted(set(form) - {"userId", *fields}):
            raise HTTPException(422, f"unknown field: {unknown[0][:80]!r}")
        given = form.getlist("userId")
        if len(given) != 1 or not isinstance(given[0], str):
            raise HTTPException(422, "the field userId must be there once, as text")
        try:
            self.user_id = check_user(given[0])
        except ValueError as error:
            raise HTTPException(422, f"userId: {error}") from None

    def one(self, field: str) -> FormPicture:
        """Return the single picture of a field."""
        found = list(self.several(field))
        if len(found) != 1:
            raise HTTPException(422, f"the field {field} must have one picture")
        return found[0]

    def several(self, field: str) -> Iterator[FormPicture]:
        """Yield the pictures of a field, at least one, in order."""
        given = self._form.getlist(field)
        if not given:
            raise HTTPException(422, f"the field {field} is missing")
        for it in given:
            if not isinstance(it, UploadFile):
                raise HTTPException(422, f"the field {field} is not a file")
            first = it.file.read(_FIRST_BYTES)
            kind = picture_of(first)
            if kind is None:
                raise HTTPException(415, f"{field}: by its first bytes it is not a PNG, JPEG or WebP")
            yield FormPicture(_bare_name(it.filename or ""), it.size or 0, kind, it)


def check_names(user_id: str, pictures: Collection[FormPicture]) -> None:
    """Raise HTTPException (422) if these pictures cannot be kept side by side under their names."""
    seen = set()
    for it in pictures:
        if not it.name.isprintable() or not is_key(f"{user_id}/{it.name}"):
            raise HTTPException(
                422, "a file has a name that cannot be kept: use letters, digits, and at most 250 bytes"
            )
        if it.name in seen:
            raise HTTPException(422, "two files have the same name")
        seen.add(it.name)


@asynccontextmanager
async def read_form(request: Request, *, files: int, file_bytes: int) -> AsyncIterator[FormData]:
    """Yield the form of the request, with at most `files` files of at most `file_bytes` bytes each.

    Raises HTTPException: 400 for a body that is not such a form, 408, 413.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise HTTPException(400, "the body is not multipart/form-data")
    chunks = bounded_chunks(request.headers, request.receive, files * file_bytes + OVERHEAD)

    async def whole() -> AsyncGenerator[bytes, None]:
        async for chunk in chunks:
            yield chunk
        if not parser.ended:
            raise MultiPartException("it ends before its last boundary")

    parser = _FormParser(
        request.headers, whole(), max_files=files, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES
    )
    parser.file_bytes = file_bytes
    try:
        form = await parser.parse()
    except BodyRefused as error:
        headers = {"connection": "close"}  # the rest of the body is not read
        raise HTTPException(error.status, error.message, headers) from None
    except ClientGone:
        raise HTTPException(400, "the client closed the connection") from None
    except MultiPartException as error:
        large = error.message.startswith(("Too many", "Part exceeded"))
        raise HTTPException(413 if large else 400, f"the form cannot be read: {error.message}"[:200]) from None
    except (FormParserError, UnicodeError):  # of older versions of Starlette; of a charset that decodes no text
        raise HTTPException(400, "the form cannot be read") from None
    try:
        yield form
    finally:
        await form.close()


class _FormParser(MultiPartParser):
    """Starlette's parser, which here limits the size of each file too."""

    file_bytes = 0
    ended = False  # whether the last boundary was seen: without it a part may be missing
    _size = 0

    def on_end(self) -> None:
        self.ended = True

    def on_part_begin(self) -> None:
        self._size = 0
        super().on_part_begin()

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._size += end - start
        if self._size > self.file_bytes:
            raise BodyRefused(413, f"a file is larger than {self.file_bytes} bytes (IMAGES.max_upload_bytes)")
        super().on_part_data(data, start, end)


def _bare_name(name: str) -> str:
    return name.replace("\\", "/").rpartition("/")[2]
