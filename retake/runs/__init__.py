"""Runs: attempts to do a task, their states, and everything that happened to them.

A ledger keeps runs and their events, in a bucket, in SQLite or in PostgreSQL. Every store keeps the same promises, and
one suite of tests (tests/runs/ledger_contract.py) checks them all.

states.py, run.py        the state diagram as data, and the pure rules by which a run changes
ledger.py                the interface of a ledger, and what a store has to implement; validation.py: what is refused
bucket_ledger.py         the ledger in a bucket; run_document.py, bucket_index.py
sql_ledger.py            the ledger in SQLite or PostgreSQL; database.py, tables.py, statements.py, schema.py
worker.py, run_handle.py a worker that takes one run at a time and sends heartbeats while it works
recovery.py              what happens to runs whose worker died
failure_injection.py     failures on demand, for tests
"""

from typing import TYPE_CHECKING

from retake.errors import SettingsError, redact
from retake.runs.ledger import Ledger

if TYPE_CHECKING:
    from retake.bucket import Bucket, Lease
    from retake.clock import Clock

__all__ = ["Ledger", "open_ledger"]


def open_ledger(
    url: str | None, bucket: "Bucket", clock: "Clock", *, lease: "Lease | None" = None, read_only: bool = False
) -> Ledger:
    """Open the ledger that `url` names; None means the bucket itself, under "runs/".

    "sqlite:PATH" is a file on this machine; "postgresql://USER@HOST:PORT/DATABASE" is a server, whose password libpq
    finds in PGPASSWORD or ~/.pgpass. Tables are created and migrated when the ledger is opened. With `read_only`
    nothing is created or changed.

    A ledger in the bucket makes its changes under `lease`; without one it takes a lease of its own for each change.

    Raises SettingsError for a URL that names no ledger, StorageError, and StateError for tables of a newer version.
    """
    if url is None:
        from retake.runs.bucket_ledger import BucketLedger

        return BucketLedger(bucket, clock, lease=lease)
    if url.startswith(("sqlite:", "postgresql:")):
        from retake.runs.sql_ledger import open_sql_ledger

        return open_sql_ledger(url, clock, read_only=read_only)
    named = redact(url)
    raise SettingsError(
        f"STORAGE.ledger: {named!r} names no ledger; use sqlite:PATH or postgresql://USER@HOST/DATABASE"
    )
