"""The calls of an idle tick to its store, recorded once and replayed by the bare client, without Retake's own work."""

import fcntl
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from retake.bucket import Bucket
from retake.bucket.wrappers import Wrapper

T = TypeVar("T")

B2_CALLS = ("list_file_versions", "download_file_from_url", "upload_file", "delete_file_version", "copy_file")


class Call(NamedTuple):
    """One call of the bare client."""

    name: str
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = {}  # noqa: RUF012 (never changed)


Calls = list[Call]


class Recording(Wrapper):
    """Records the operations on a bucket."""

    def __init__(self, bucket: Bucket, calls: Calls) -> None:
        super().__init__(bucket)
        self._calls = calls

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        self._calls.append(Call(operation, (key,)))
        return call()


@contextmanager
def record_b2(calls: Calls) -> Iterator[None]:
    """Record the calls to b2sdk's session inside the `with` block."""
    from b2sdk.v3 import B2Session

    def recording(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(session: Any, *args: Any, **named: Any) -> Any:
            calls.append(Call(name, args, named))
            return original(session, *args, **named)

        return call

    changed: dict[str, Any] = {name: recording(name, getattr(B2Session, name)) for name in B2_CALLS}
    with patch.multiple(B2Session, **changed):
        yield


@contextmanager
def record_s3(calls: Calls) -> Iterator[None]:
    """Record the calls to botocore's clients inside the `with` block."""
    from botocore import xform_name
    from botocore.client import BaseClient

    original = BaseClient._make_api_call

    def call(client: Any, operation: str, named: dict[str, Any]) -> Any:
        calls.append(Call(xform_name(operation), (), dict(named)))
        return original(client, operation, named)

    with patch.object(BaseClient, "_make_api_call", call):
        yield


def replay_directory(root: str, calls: Calls) -> Callable[[], None]:
    """Return a function that makes the system calls of the operations: open and read, scandir and stat, flock with a
    durable token."""
    actions = {"read": read, "list": scan, "lease": lock}
    work = [(actions[call.name], os.path.join(root, call.args[0])) for call in calls]

    def replay() -> None:
        for do, path in work:
            do(path)

    return replay


def read(path: str) -> None:
    with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
        file.readall()


def scan(prefix: str) -> None:
    folder, _, start = prefix.rpartition("/")
    with suppress(FileNotFoundError), os.scandir(folder) as found:
        for item in found:
            if item.name.startswith(start):
                item.stat(follow_symlinks=False)


def lock(path: str) -> None:
    """Lock as the lease does: its token is on disk before anything is done under it."""
    file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.pread(file, 256, 0)
    os.pwrite(file, b"\n".rjust(256), 0)
    os.fsync(file)
    os.close(file)


def replay_b2(realm: str, calls: Calls) -> Callable[[], None]:
    """Return a function that makes the same calls with a bare b2sdk session. It deletes the files it has uploaded."""
    from b2sdk.v3 import B2HttpApiConfig, B2Session, DummyCache, InMemoryAccountInfo

    session = B2Session(InMemoryAccountInfo(), DummyCache(), B2HttpApiConfig())
    session.authorize_account(realm, os.environ["B2_APPLICATION_KEY_ID"], os.environ["B2_APPLICATION_KEY"])
    uploaded: deque[tuple[str, str]] = deque()

    def replay() -> None:
        for name, args, named in calls:
            if name == "delete_file_version":
                session.delete_file_version(*uploaded.popleft())
                continue
            answer = getattr(session, name)(*args, **named)
            if name == "upload_file":
                uploaded.append((answer["fileId"], answer["fileName"]))
            elif name == "download_file_from_url":
                with answer as response:
                    _ = response.content

    return replay


def replay_s3(endpoint: str, calls: Calls) -> Callable[[], None]:
    """Return a function that makes the same calls with one bare botocore client."""
    from botocore.exceptions import ClientError
    from botocore.session import Session

    client = Session().create_client("s3", endpoint_url=endpoint, region_name="us-east-1")

    def replay() -> None:
        for name, _, named in calls:
            with suppress(ClientError):  # "not found" is an answer too
                answer = getattr(client, name)(**named)
                if "Body" in answer:
                    answer["Body"].read()

    return replay
