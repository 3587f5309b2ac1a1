"""Runs: attempts to do a task, their states and their events.

A ledger keeps runs and their events in a bucket, in SQLite or in PostgreSQL. All stores give the same guarantees, which
one test suite checks (tests/runs/ledger_contract.py).

states.py, run.py        the state diagram as data, and the pure rules by which a run changes
ledger.py                the interface of a ledger, and what a store has to implement; validation.py: what is refused
bucket_ledger.py         the ledger in a bucket; run_document.py, bucket_index.py
sql_ledger.py            the ledger in SQLite or PostgreSQL; database.py, tables.py, statements.py, schema.py;
                         postgres_connection.py: for how long an answer is waited for
listing.py               all runs as a list, read by the page; sql_listing.py: the same in a database
history.py               all runs in bulk, for figures; sql_history.py: the same in a database
worker.py, run_handle.py a worker that claims one run at a time and sends heartbeats while it works
recovery.py              takes care of runs whose worker died
failure_injection.py     failures on demand, for tests
"""

from retake.runs.ledger import Ledger, open_ledger

__all__ = ["Ledger", "open_ledger"]
