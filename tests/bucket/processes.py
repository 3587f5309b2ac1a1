"""The other processes in the tests of the directory bucket: `python processes.py ACTOR ARGUMENTS`.

Each prints "ready" when it has started, and waits for `go`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from retake.bucket import ABSENT, ANY, Bucket, Conflict, NotFound
from retake.bucket.directory import DirectoryBucket
from retake.errors import LeaseLost, StorageError

PUBLIC, ASIDE, OWN = "config/public.json", "config/public.json.displaced-", "config/own.json"


@contextmanager
def started(actor: str, *arguments: object, **options: object):
    """Start the process of an actor, with text pipes. It is killed at the end of the block."""
    command = [sys.executable, __file__, actor, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen(command, **{**pipes, **options}) as process:
        try:
            yield process
        finally:
            process.kill()


def go(*processes: subprocess.Popen[str]) -> None:
    """Let processes begin together once all of them have started."""
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        tell(process)


def tell(process: subprocess.Popen[str]) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def publisher(root: str, count: str) -> None:
    """Read the document, append to it, and replace it, as a program that knows nothing of Retake."""
    path = Path(root, PUBLIC)
    for number in range(int(count)):
        document = json.loads(path.read_bytes())
        document["published"].append(number)
        made = path.with_name("publisher.tmp")
        made.write_text(json.dumps(document))
        made.replace(path)


def manager(root: str, count: str) -> None:
    bucket = DirectoryBucket(root)
    lease = bucket.lease("story", "manager")
    for number in range(int(count)):
        lease.check()
        mark(bucket, number)
    lease.release()


def mark(bucket: Bucket, number: int) -> None:
    """Add our mark to the document that the publisher writes too, and lose nothing that it appended.

    The displaced version is remembered in a document that nobody else writes before it is deleted.
    """
    while True:
        asides = [entry.key for entry in bucket.list(ASIDE)]
        known = remembered(bucket) | {name for key in asides for name in json.loads(bucket.read(key)[0])["published"]}
        if asides:
            bucket.write(OWN, json.dumps(sorted(known)).encode(), ANY)
        for key in asides:
            bucket.delete(key)
        data, version = bucket.read(PUBLIC)
        document = json.loads(data)
        document["published"] = sorted(known | set(document["published"]))
        document["marks"] = sorted({*document["marks"], number})
        try:
            bucket.replace(PUBLIC, json.dumps(document).encode(), version, f"{ASIDE}0")
        except Conflict:
            continue
        return


def remembered(bucket: Bucket) -> set[int]:
    try:
        return set(json.loads(bucket.read(OWN)[0]))
    except NotFound:
        return set()


def counter(root: str, count: str) -> None:
    """Increment a number `count` times."""
    bucket = DirectoryBucket(root)
    for _ in range(int(count)):
        while True:
            data, version = bucket.read("count")
            try:
                bucket.write("count", b"%d" % (int(data) + 1), version)
            except Conflict:
                continue
            break


def writer(root: str, letter: str, count: str) -> None:
    """Write large objects of one letter."""
    bucket = DirectoryBucket(root)
    for number in range(int(count)):
        bucket.write("large", letter.encode() * (50_000 + number), ANY)


def limited(root: str) -> None:
    """Write more than a file of this process may hold."""
    import resource

    sys.dont_write_bytecode = True  # such a limit truncates byte code, which Python keeps
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    try:
        DirectoryBucket(root).write("large", b"x" * 50_000, ABSENT)
    except StorageError as error:
        say(error)


def holder(root: str, name: str) -> None:
    """Hold a lease until told to end, or killed."""
    lease = DirectoryBucket(root).lease(name, "holder:1")
    say(lease.token)
    sys.stdin.readline()


def parent(root: str, name: str) -> None:
    """Take a lease and run a script under it, on this process's pipes."""
    lease = DirectoryBucket(root).lease(name, "parent:1")
    handed = lease.handover()
    command = [sys.executable, __file__, "script", root, name, handed.text]
    subprocess.run(command, pass_fds=handed.fds, check=False)


def script(root: str, name: str, handed: str) -> None:
    """Join the parent's lease and check it whenever a line comes in."""
    lease = DirectoryBucket(root).join(name, handed)
    say(lease.token)
    for _ in sys.stdin:
        try:
            lease.check()
        except LeaseLost as error:
            say(error)
        else:
            say("held")


ACTORS: dict[str, Callable[..., None]] = {
    it.__name__: it for it in (publisher, manager, counter, writer, limited, holder, parent, script)
}

if __name__ == "__main__":
    os.fsync = lambda file: None  # as in the fixture no_fsync, and so that processes collide more often
    say("ready")
    sys.stdin.readline()
    ACTORS[sys.argv[1]](*sys.argv[2:])
