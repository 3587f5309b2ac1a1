"""What an idle tick asks of its store, recorded once and asked again by the bare client, without Retake's work."""

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
    """Notes what is asked of a bucket."""

    def __init__(self, bucket: Bucket, noted: Calls) -> None:
        super().__init__(bucket)
        self._noted = noted

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        self._noted.append(Call(operation, (key,)))
        return call()


@contextmanager
def b2_recorded(noted: Calls) -> Iterator[None]:
    """Notes what is asked of b2sdk's session inside the `with`."""
    from b2sdk.v3 import B2Session

    def noting(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(session: Any, *args: Any, **named: Any) -> Any:
            noted.append(Call(name, args, named))
            return usual(session, *args, **named)

        return call

    changed: dict[str, Any] = {name: noting(name, getattr(B2Session, name)) for name in B2_CALLS}
    with patch.multiple(B2Session, **changed):
        yield


@contextmanager
def s3_recorded(noted: Calls) -> Iterator[None]:
    """Notes what is asked of botocore's clients inside the `with`."""
    from botocore import xform_name
    from botocore.client import BaseClient

    usual = BaseClient._make_api_call

    def call(client: Any, operation: str, named: dict[str, Any]) -> Any:
        noted.append(Call(xform_name(operation), (), dict(named)))
        return usual(client, operation, named)

    with patch.object(BaseClient, "_make_api_call", call):
        yield


def directory_again(root: str, noted: Calls) -> Callable[[], None]:
    """The system calls that the operations need: open and read, scandir and stat, flock with a durable token."""
    doings = {"read": read, "list": scan, "lease": lock}
    work = [(doings[call.name], os.path.join(root, call.args[0])) for call in noted]

    def again() -> None:
        for do, path in work:
            do(path)

    return again


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
    """As the lease has it: its token is on the disk before anything is done under it."""
    file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.pread(file, 256, 0)
    os.pwrite(file, b"\n".rjust(256), 0)
    os.fsync(file)
    os.close(file)


def b2_again(realm: str, noted: Calls) -> Callable[[], None]:
    """The same calls by a session of b2sdk's own. What it has uploaded is what it deletes."""
    from b2sdk.v3 import B2HttpApiConfig, B2Session, DummyCache, InMemoryAccountInfo

    session = B2Session(InMemoryAccountInfo(), DummyCache(), B2HttpApiConfig())
    session.authorize_account(realm, os.environ["B2_APPLICATION_KEY_ID"], os.environ["B2_APPLICATION_KEY"])
    uploaded: deque[tuple[str, str]] = deque()

    def again() -> None:
        for name, args, named in noted:
            if name == "delete_file_version":
                session.delete_file_version(*uploaded.popleft())
                continue
            answer = getattr(session, name)(*args, **named)
            if name == "upload_file":
                uploaded.append((answer["fileId"], answer["fileName"]))
            elif name == "download_file_from_url":
                with answer as response:
                    _ = response.content

    return again


def s3_again(endpoint: str, noted: Calls) -> Callable[[], None]:
    """The same calls by one client of botocore's own."""
    from botocore.exceptions import ClientError
    from botocore.session import Session

    client = Session().create_client("s3", endpoint_url=endpoint, region_name="us-east-1")

    def again() -> None:
        for name, _, named in noted:
            with suppress(ClientError):  # that nothing is there is an answer too
                answer = getattr(client, name)(**named)
                if "Body" in answer:
                    answer["Body"].read()

    return again
