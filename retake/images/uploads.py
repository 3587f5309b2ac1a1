"""Uploaded pictures: kept below their userId, answered, and deleted after they were answered.

The bucket cannot delete a specific version of an object, so no race must ever delete a newer upload. Redis orders both
sides, for each name of each user:

- A writer registers first (BEGIN_WRITE), which is refused while somebody deletes. The registration lasts WRITE_S
  seconds, longer than any write takes.
- A deleter registers first (BEGIN_DELETE), which is refused while somebody writes. Then it reads the object, since only
  the version that was answered may be deleted. It deletes only if less than DELETE_WITHIN_S seconds have passed, so
  that a process that was suspended in between does not delete much later what others have written since.

A newer upload has another version, to which earlier answers do not apply. All this is in Redis, so that answered
uploads are deleted after a crash too, by whichever instance sweeps next.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from logging import getLogger
from uuid import uuid4

from retake.bucket import ANY, Bucket, NotFound
from retake.bucket.contract import is_key
from retake.errors import RetakeError, StorageError
from retake.exit_codes import ExitCode
from retake.images import scripts
from retake.images.forms import FormPicture
from retake.images.redis_calls import RedisAway, WrongType, milliseconds, pairs
from retake.images.settings import is_user
from retake.images.store import JobStore
from retake.images.turns import Turns
from retake.images.unfinished import Unfinished
from retake.serving.bounded_calls import BoundedCalls

WRITE_S = 180.0
DELETE_S = 180.0
DELETE_WITHIN_S = 40.0
_WAIT_S, _POLL_S = 3.0, 0.05  # how long a writer waits for a deleter, which takes moments, and between attempts
_PAGE = 500
_MAX_PASS_S = 20.0  # after which no further upload is tried if one has failed

_log = getLogger(__name__)


class UploadBusy(RetakeError):
    """The file of this name is being deleted at this moment."""

    exit_code = ExitCode.TRY_LATER


class UploadedVersion:
    """One write of an upload. If it ends when nobody waits for it any longer, the upload is deleted again."""

    def __init__(self, forsake: Callable[[str], None]) -> None:
        self._forsake, self._lock = forsake, threading.Lock()
        self._version, self._forsaken = "", False

    def written(self, version: str) -> None:
        """Record that this version is in the bucket."""
        with self._lock:
            self._version, forsaken = version, self._forsaken
        if forsaken:
            self._forsake(version)

    def undo(self) -> None:
        """Have this version deleted, now or when it is written."""
        with self._lock:
            version, self._forsaken = self._version, True
        if version:
            self._forsake(version)


class Uploads:
    """The uploads of all users. `files` limits the bucket calls that a request waits for."""

    def __init__(
        self, store: JobStore, bucket: Bucket, files: BoundedCalls, unfinished: Unfinished, grace_s: float
    ) -> None:
        self._store, self._bucket, self._files, self._unfinished = store, bucket, files, unfinished
        self._grace_ms, self._turns = round(grace_s * 1000), Turns()

    # --- keeping ----------------------------------------------------------------------------------------------------

    def keep(self, user_id: str, pictures: Sequence[FormPicture]) -> list[dict[str, object]]:
        """Store these pictures and return the facts of each; if one fails, none is kept.

        Raises RedisAway, StorageError, NotInTime, UploadBusy.
        """
        done: list[UploadedVersion] = []
        try:
            for it in pictures:
                write = UploadedVersion(partial(self._forsake, user_id, it.name))
                done.append(write)
                self._write(user_id, it.name, it.read(), write)
        except RetakeError:
            for write in done:
                write.undo()
            try:
                self._files.run(lambda: self.delete_answered(user_id), 1.0)
            except RetakeError as error:
                _log.info("the stored files of a failed upload will be deleted later: %s", error)
            raise
        return [
            {"key": f"{user_id}/{it.name}", "name": it.name, "size": it.size, "type": it.kind.media_type}
            for it in pictures
        ]

    def _write(self, user_id: str, name: str, data: bytes, write: UploadedVersion) -> None:
        writers, deleter = _writers(user_id, name), _deleter(user_id, name)
        token, until = uuid4().hex, time.monotonic() + _WAIT_S
        while not self._store.run(scripts.BEGIN_WRITE, [writers, deleter], [token, milliseconds(WRITE_S)]):
            if time.monotonic() > until:
                raise UploadBusy(f"{name} is being deleted; try again")
            time.sleep(_POLL_S)

        def put() -> None:
            try:
                write.written(self._bucket.write(f"{user_id}/{name}", data, ANY))
            finally:
                self._end_write(writers, token)

        self._files.run(put)

    def _end_write(self, writers: str, token: str) -> None:
        def end() -> None:
            self._store.ask(lambda: self._store.client.zrem(writers, token))

        self._unfinished.attempt(f"end of write {token}", end)

    def _forsake(self, user_id: str, name: str, version: str) -> None:
        """Have this version deleted in the next cycle."""
        ago = self._grace_ms + 1000
        self._unfinished.attempt(f"forsake {user_id}/{name}", lambda: self._note(user_id, {name: version}, ago))

    # --- answering --------------------------------------------------------------------------------------------------

    def read(self, user_id: str) -> Iterator[tuple[str, bytes, str]]:
        """Yield the name, the bytes and the version of each upload of a user. Raises StorageError, NotInTime."""
        prefix = f"{user_id}/"
        entries = self._files.run(lambda: self._bucket.list(prefix))
        for entry in entries:
            try:
                data, version = self._files.run(partial(self._bucket.read, entry.key))
            except NotFound:  # deleted in the meantime
                continue
            yield entry.key.removeprefix(prefix), data, version

    def answered(self, user_id: str, versions: Mapping[str, str]) -> None:
        """Record, as soon as Redis answers, that these were answered: each is deleted after the grace period."""

        def note() -> None:
            self._note(user_id, versions, 0)
            if not self._grace_ms:
                self.delete_answered(user_id)

        if versions:
            self._unfinished.attempt(f"answered {user_id} {uuid4()}", note)

    def _note(self, user_id: str, versions: Mapping[str, str], ago_ms: int) -> None:
        given = pairs(versions)
        for at in range(0, len(given), _PAGE):
            page = given[at : at + _PAGE]
            self._store.run(scripts.ANSWERED, [_answers(user_id), scripts.UPLOADS_OF], [user_id, ago_ms, *page])

    # --- deleting ---------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Delete the uploads of all users whose grace period is over; once per cycle. Raises RedisAway,
        StorageError."""
        users = self._store.ask(lambda: list(self._store.client.sscan_iter(scripts.UPLOADS_OF, count=_PAGE)))
        over = (it for user_id in users for it in self._over(user_id))
        self._delete_all(self._turns.ordered(over, _key))

    def delete_answered(self, user_id: str) -> None:
        """Delete the uploads of one user whose grace period is over."""
        self._delete_all(self._over(user_id))

    def _over(self, user_id: str) -> Iterator[tuple[str, str, str]]:
        """Yield the user, the name and the answer of each upload whose grace period is over."""
        client = self._store.client
        seconds, micros = self._store.ask(client.time)
        latest_ms = seconds * 1000 + micros // 1000 - self._grace_ms
        try:
            answers = self._store.ask(lambda: list(client.hscan_iter(_answers(user_id), count=_PAGE)))
        except WrongType as error:
            _log.warning("%s: %s", _answers(user_id), error)
            return
        for name, answer in answers:
            when = answer.partition(" ")[0]
            if not (when.isdecimal() and len(when) < 19 and is_user(user_id) and is_key(f"{user_id}/{name}")):
                self._end_delete(user_id, name, [answer, "", "1"])  # not written by us: the upload stays
            elif int(when) <= latest_ms:
                yield user_id, name, answer

    def _delete_all(self, uploads: Iterable[tuple[str, str, str]]) -> None:
        """Delete these uploads. One that cannot be deleted does not hold up the others, unless the bucket is slow to
        refuse.

        Raises the last error of the bucket.
        """
        began, failed = time.monotonic(), None
        for upload in uploads:
            try:
                with self._turns.processing(_key(upload)):
                    self._delete(*upload)
            except StorageError as error:
                failed = error
                if time.monotonic() - began > _MAX_PASS_S:
                    break
        if failed:
            raise failed

    def _delete(self, user_id: str, name: str, answer: str) -> None:
        answers, writers, deleter = _answers(user_id), _writers(user_id, name), _deleter(user_id, name)
        token, began, settled = uuid4().hex, time.monotonic(), False
        given = [name, answer, token, milliseconds(DELETE_S)]
        if not self._store.run(scripts.BEGIN_DELETE, [answers, writers, deleter], given):
            return
        key, version = f"{user_id}/{name}", answer.partition(" ")[2]
        try:
            same = self._bucket.read(key)[1] == version
        except NotFound:
            same = False
        except RetakeError:
            self._end_delete(user_id, name, [answer, token, ""])
            raise
        if same and time.monotonic() - began < DELETE_WITHIN_S:
            self._bucket.delete(key)  # a failed call may take effect later: the registration is left to expire
            settled = True
        self._end_delete(user_id, name, [answer, token, "1" if settled or not same else ""])

    def _end_delete(self, user_id: str, name: str, given: Sequence[str]) -> None:
        keys = [_answers(user_id), scripts.UPLOADS_OF, _deleter(user_id, name)]
        try:
            self._store.run(scripts.END_DELETE, keys, [user_id, name, *given])
        except RedisAway as error:
            _log.info("the registration of a deletion is left to expire: %s", error)


def _key(upload: tuple[str, str, str]) -> str:
    return f"{upload[0]}/{upload[1]}"


def _answers(user_id: str) -> str:
    return f"{scripts.UPLOADS_OF}:{user_id}"


def _writers(user_id: str, name: str) -> str:
    return f"uploads:writing:{user_id}:{name}"


def _deleter(user_id: str, name: str) -> str:
    return f"uploads:deleting:{user_id}:{name}"
