"""A sandbox's calls, tasks, orders and files in SQLite, in memory or in a file that processes share."""

import json
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, Literal

from retake.sandbox.orders import Order, VendorFault, parse_order
from retake.sandbox.task import VendorTask

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts  (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS calls  (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, n INTEGER NOT NULL, at REAL NOT NULL,
                                   request TEXT NOT NULL, outcome TEXT NOT NULL, carried_out INTEGER NOT NULL,
                                   price INTEGER NOT NULL, task_id TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS calls_of_kind ON calls (kind, n);
CREATE TABLE IF NOT EXISTS tasks  (id TEXT PRIMARY KEY, kind TEXT NOT NULL, created REAL NOT NULL,
                                   duration REAL NOT NULL, fate TEXT NOT NULL, request TEXT NOT NULL,
                                   price INTEGER NOT NULL, seed INTEGER NOT NULL, source TEXT NOT NULL,
                                   cancelled REAL);
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, text TEXT NOT NULL, base INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS files  (key TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS things (kind TEXT NOT NULL, id TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, id));
"""
_KEYS = {"facts": "name", "files": "key"}
_CALL = "id, kind, n, at, request, outcome, carried_out, price, task_id"
_TASK = "id, kind, created, duration, fate, request, price, seed, source, cancelled"  # as in VendorTask


@dataclass(frozen=True)
class RecordedCall:
    """One call that a client made. Headers are not recorded; nor are images, only their length."""

    kind: str  # one of orders.KINDS, or another such as cancel, unknown
    n: int  # its number among the calls of its kind, from 1
    when: float  # seconds since the epoch
    request: Any  # the JSON that was sent, or the fields of the query
    outcome: str  # the HTTP status sent, or the fault instead; "" until the call has ended
    carried_out: bool  # whether the vendor did what it was asked to do
    price: Decimal  # USD charged for the call; a refund shows only in the bill
    task_id: str  # of the task that it started or asked about, or ""

    def as_json(self) -> dict[str, Any]:
        fields = {name: value for name, value in asdict(self).items() if name != "price"}
        return fields | {"price_usd": float(self.price)}


class _Connection:
    def __init__(self, path: str) -> None:
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()


class _Things(_Connection):
    """The other things that stand-ins keep besides tasks (messages, videos), as JSON objects."""

    def keep(self, kind: str, thing_id: str, body: dict[str, Any]) -> None:
        """Store a thing, replacing any with the same id."""
        with self._writing() as db:
            db.execute(
                "INSERT INTO things VALUES (?, ?, ?) ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body",
                (kind, thing_id, json.dumps(body, ensure_ascii=False)),
            )

    def drop(self, kind: str, thing_id: str) -> None:
        with self._writing() as db:
            db.execute("DELETE FROM things WHERE kind = ? AND id = ?", (kind, thing_id))

    def thing(self, kind: str, thing_id: str) -> dict[str, Any] | None:
        rows = self._rows("SELECT body FROM things WHERE kind = ? AND id = ?", (kind, thing_id))
        return json.loads(rows[0][0]) if rows else None

    def things(self, kind: str) -> list[dict[str, Any]]:
        """Return the things of one kind, in the order in which they were first stored."""
        rows = self._rows("SELECT body FROM things WHERE kind = ? ORDER BY rowid", (kind,))
        return [json.loads(body) for (body,) in rows]


class SandboxDatabase(_Things):
    """Thread safe; with a `path`, also safe to share among processes. `identity` is unique to each database."""

    def __init__(self, path: str = ":memory:") -> None:
        super().__init__(path)
        self._db.executescript(_SCHEMA)
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO facts VALUES ('identity', ?)", (secrets.token_hex(8),))
        self.identity = str(self.get("facts", "identity"))

    def get(self, table: Literal["facts", "files"], key: str) -> Any:
        """Return a fact (seed, port, identity) as a string, or a file as bytes; None if there is none."""
        rows = self._rows(f"SELECT * FROM {table} WHERE {_KEYS[table]} = ?", (key,))  # noqa: S608
        return rows[0][1] if rows else None

    def put(self, table: Literal["facts", "files"], key: str, value: str | bytes) -> None:
        with self._writing() as db:
            db.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (key, value))  # noqa: S608

    def begin_call(self, kind: str, request: Any, at: float) -> tuple[int, int, VendorFault | None]:
        """Record a call that has arrived; return its row, its number within its kind, and the fault ordered for it.

        Counting and reading the orders are one transaction, so an order for one call applies to exactly one. The oldest
        matching order applies.
        """
        with self._writing() as db:
            n = _count(db, kind) + 1
            row = db.execute(
                f"INSERT INTO calls ({_CALL}) VALUES (NULL, ?, ?, ?, ?, '', 0, 0, '')",  # noqa: S608
                (kind, n, at, json.dumps(request, ensure_ascii=False)),
            ).lastrowid
            placed = db.execute("SELECT text, base FROM orders ORDER BY id").fetchall()
        orders = ((parse_order(text), base) for text, base in placed)
        fault = next((order.fault for order, base in orders if order.kind == kind and order.meets(n - base)), None)
        return int(row or 0), n, fault

    def end_call(self, row: int, outcome: str, carried_out: bool, price: int, task_id: str) -> RecordedCall:
        """Record how the call in `row` ended, and return the call; `price` is in mills."""
        with self._writing() as db:
            db.execute(
                "UPDATE calls SET outcome = ?, carried_out = ?, price = ?, task_id = ? WHERE id = ?",
                (outcome, carried_out, price, task_id, row),
            )
        return _call(self._rows(f"SELECT {_CALL} FROM calls WHERE id = ?", (row,))[0])  # noqa: S608

    def calls(self, kind: str | None = None) -> list[RecordedCall]:
        """Return the calls, or those of one kind, in the order of their arrival."""
        where = "" if kind is None else "WHERE kind = ?"
        rows = self._rows(f"SELECT {_CALL} FROM calls {where} ORDER BY id", () if kind is None else (kind,))  # noqa: S608
        return [_call(row) for row in rows]

    def add_task(self, task: VendorTask) -> None:
        values = vars(task) | {"request": json.dumps(task.request, ensure_ascii=False)}
        with self._writing() as db:
            db.execute(f"INSERT INTO tasks ({_TASK}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values.values(),))  # noqa: S608

    def cancel_task(self, task_id: str, at: float) -> None:
        with self._writing() as db:
            db.execute("UPDATE tasks SET cancelled = ? WHERE id = ?", (at, task_id))

    def task(self, task_id: str) -> VendorTask | None:
        rows = self._rows(f"SELECT {_TASK} FROM tasks WHERE id = ?", (task_id,))  # noqa: S608
        return _task(rows[0]) if rows else None

    def tasks(self) -> list[VendorTask]:
        """Return the tasks in the order in which they were accepted."""
        return [_task(row) for row in self._rows(f"SELECT {_TASK} FROM tasks ORDER BY rowid")]  # noqa: S608

    def add_order(self, order: Order) -> None:
        """Apply `order` to calls from now on."""
        with self._writing() as db:
            base = _count(db, order.kind)
            db.execute("INSERT INTO orders (text, base) VALUES (?, ?)", (str(order), base))

    def orders(self) -> list[Order]:
        return [parse_order(text) for (text,) in self._rows("SELECT text FROM orders ORDER BY id")]

    def clear_orders(self) -> None:
        with self._writing() as db:
            db.execute("DELETE FROM orders")


def _count(db: sqlite3.Connection, kind: str) -> int:
    return int(db.execute("SELECT coalesce(max(n), 0) FROM calls WHERE kind = ?", (kind,)).fetchone()[0])


def _call(row: Sequence[Any]) -> RecordedCall:
    _, kind, n, at, request, outcome, carried_out, price, task_id = row
    return RecordedCall(kind, n, at, json.loads(request), outcome, bool(carried_out), Decimal(price) / 1000, task_id)


def _task(row: Sequence[Any]) -> VendorTask:
    task_id, kind, created, duration, fault, request, price, seed, source, cancelled = row
    return VendorTask(task_id, kind, created, duration, fault, json.loads(request), price, seed, source, cancelled)
