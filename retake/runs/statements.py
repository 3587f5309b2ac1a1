"""The SQL of a ledger, written once for SQLite and PostgreSQL.

A write changes one row of `task_runs`, returning `run_id` and `last_seq`, and inserts the events that go with it (see
`Write`). On PostgreSQL it is one statement, which takes one round trip and no explicit transaction. On SQLite it is two
or three, in a transaction.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    CTE,
    ClauseElement,
    ColumnElement,
    CompoundSelect,
    Dialect,
    Select,
    bindparam,
    func,
    insert,
    literal_column,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from retake.errors import StateError
from retake.runs.run import Event, Run
from retake.runs.states import TAKEN_UP, RunStatus
from retake.runs.tables import events, run_counts, task_runs

RUN = tuple(task_runs.c)[: len(Run._fields)]
EVENT = tuple(events.c)
RUN_ID_AND_LAST_SEQ = (task_runs.c.run_id, task_runs.c.last_seq)
MOVED = (
    *("run_status", "updated_at", "version", "attempt", "next_retry_at", "error_code", "worker", "heartbeat_at"),
    *("resumes", "retries", "crashes"),
)
"""The columns that a transition may change."""

CLAIMS_LOOKED_AT = 100
"""Maximum number of waiting runs that a claim looks at if the next one is unreadable."""

Change = ReturningInsert[Any] | ReturningUpdate[Any]
Row = tuple[Any, ...]
Unreadable = Callable[[StateError], object]
"""Called with the error of each row that is left out because it cannot be read."""


class Prepared:
    """A statement compiled for one kind of database, with the conversion of values to the driver's types and back.

    It runs on the driver's own cursor: SQLAlchemy's connections take several times as long as the statement.
    """

    def __init__(self, statement: ClauseElement, dialect: Dialect) -> None:
        compiled: Any = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        self.sql = str(compiled)
        self._fixed = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
        into = {name: bind.type.dialect_impl(dialect).bind_processor(dialect) for name, bind in compiled.binds.items()}
        self._names = tuple(compiled.positiontup)
        self._pick = itemgetter(*self._names) if len(self._names) > 1 else None
        self._into = [(place, process) for place, name in enumerate(self._names) if (process := into[name])]
        columns = getattr(statement, "exported_columns", ())
        self._columns = [str(next(iter(column.base_columns))) for column in columns]  # names in the table, for errors
        self._out = [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns]
        self._converts = any(self._out)

    def run(self, cursor: Any, values: Mapping[str, Any], unreadable: Unreadable | None = None) -> list[Row]:
        """Execute the statement and return its rows.

        Raises the driver's errors, and StateError for a value that is not of the column's type, which SQLite allows.
        With `unreadable` such a row is left out, and the error passed to `unreadable`.
        """
        cursor.execute(self.sql, self.given(values))
        if not self._out:
            return []
        found: list[Row] = cursor.fetchall()
        if not self._converts:
            return found
        return [*self._readable(found, unreadable)] if unreadable else [self._row(row) for row in found]

    def given(self, values: Mapping[str, Any]) -> Row:
        """Return `values` as the driver takes them, in the statement's order. Unused values are ignored."""
        if self._fixed:
            values = {**self._fixed, **values}
        return self.converted(self._pick(values) if self._pick else [values[name] for name in self._names])

    def converted(self, values: Sequence[Any]) -> Row:
        """Return `values`, given in the statement's order, as the driver takes them."""
        given = [*values]
        for place, process in self._into:
            given[place] = process(given[place])
        return tuple(given)

    def _row(self, row: Sequence[Any]) -> Row:
        try:
            return tuple([process(it) if process else it for process, it in zip(self._out, row, strict=True)])
        except _CONVERSION_ERRORS as error:
            raise self._unreadable(row) from error

    def _readable(self, rows: Sequence[Row], unreadable: Unreadable) -> Iterator[Row]:
        for row in rows:
            try:
                yield self._row(row)
            except StateError as error:
                unreadable(error)

    def _unreadable(self, row: Sequence[Any]) -> StateError:
        """Return the error for a row with a column that cannot be converted."""
        for name, process, it in zip(self._columns, self._out, row, strict=True):
            try:
                _ = process(it) if process else it
            except _CONVERSION_ERRORS as error:
                where = f"{name} in the row that begins with {str(row[0])[:60]!r}"
                return StateError(f"{where}: {str(it)[:60]!r} is invalid ({error}). Fix the row or remove it")
        raise AssertionError


_CONVERSION_ERRORS = (ValueError, TypeError, OverflowError, RecursionError)
"""What column types raise for a value that is not of the type."""

_prepared: dict[tuple[str, Callable[[str], ClauseElement]], Prepared] = {}


def prepared(query: Callable[[str], ClauseElement], dialect: Dialect) -> Prepared:
    """Return the compiled statement of `query(NAME)`, where NAME is the kind of database.

    Each is compiled once per process, for all databases of a kind: compiling takes longer than many statements do.
    """
    key = dialect.name, query
    if key not in _prepared:
        _prepared[key] = Prepared(query(dialect.name), dialect)
    return _prepared[key]


class Write:
    """A change of a run and its events (at least one), made together or not at all."""

    def __init__(self, change: Change, dialect: Dialect) -> None:
        self._statement, self._dialect = change, dialect
        self._change = Prepared(change, dialect)
        self._event = Prepared(insert(events).values({it.name: bindparam(it.name) for it in EVENT}), dialect)
        self._at_once = dialect.name == "postgresql"
        self._whole: dict[int, Prepared] = {}

    def run(self, cursor: Any, values: Mapping[str, Any], new: Sequence[Event]) -> int | None:
        """Make the change. Return the number of the last event, or None if there was no row to change.

        The events get the run's next numbers; their own are ignored. Raises the driver's errors, and StateError if the
        last number in SQLite is not a number.
        """
        if self._at_once:
            named = dict(values)
            for n, (_, _, kind, at, trace_id, payload) in enumerate(new):
                named |= {f"kind_{n}": kind, f"at_{n}": at, f"trace_id_{n}": trace_id, f"payload_{n}": payload}
            rows = self._with_events(len(new)).run(cursor, named)
            return max(seq for (seq,) in rows) if rows else None
        rows = self._change.run(cursor, values)
        if not rows:
            return None
        run_id, last = rows[0]
        if type(last) is not int:
            raise StateError(f"task_runs.last_seq of {run_id} is not a whole number. Fix the row")
        for number, event in enumerate(new, last - len(new) + 1):
            cursor.execute(self._event.sql, self._event.converted((run_id, number, *event[2:])))
        return last

    def _with_events(self, number: int) -> Prepared:
        if number not in self._whole:
            self._whole[number] = Prepared(_with_events(self._statement, number), self._dialect)
        return self._whole[number]


def _with_events(change: Change, number: int) -> ReturningInsert[Any]:
    """Return the change and its events as a single statement, for PostgreSQL."""
    changed = change.cte("changed")
    rows = union_all(*(_event_of(changed, n, number) for n in range(number)))
    return insert(events).from_select([it.name for it in EVENT], rows).returning(events.c.seq)


def _event_of(changed: CTE, n: int, number: int) -> Select[Any]:
    seq = changed.c.last_seq - literal_column(str(number - n - 1))
    given = (bindparam(f"{it.name}_{n}", type_=it.type) for it in EVENT[2:])
    return select(changed.c.run_id, seq, *given)


class _Statements:
    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def _prepare(self, statement: ClauseElement) -> Prepared:
        return Prepared(statement, self._dialect)


class Queries(_Statements):
    """The statements that read, for one kind of database. Each is compiled on first use."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._listings: dict[tuple[frozenset[RunStatus], bool], Prepared] = {}

    @cached_property
    def get(self) -> Prepared:
        return self._prepare(select(*RUN).where(task_runs.c.run_id == bindparam("of_run")))

    @cached_property
    def find(self) -> Prepared:
        return self._prepare(select(*RUN).where(task_runs.c.idempotency_key == bindparam("key")))

    @cached_property
    def of_task(self) -> Prepared:
        query = select(*RUN).where(task_runs.c.task_id == bindparam("task"))
        return self._prepare(query.order_by(task_runs.c.attempt))

    @cached_property
    def events(self) -> Prepared:
        query = select(*EVENT).where(events.c.run_id == bindparam("of_run"))
        return self._prepare(query.order_by(events.c.seq))

    @cached_property
    def next_attempt(self) -> Prepared:
        return self._prepare(_next_attempt())

    @cached_property
    def known_or_next(self) -> Prepared:
        """Selects one row: the task's next attempt, and the run with the key, or NULLs."""
        following = _next_attempt().subquery("following")
        known = task_runs.c.idempotency_key == bindparam("key")
        return self._prepare(select(following.c.next, *RUN).select_from(following.outerjoin(task_runs, known)))

    @cached_property
    def silent(self) -> Prepared:
        # A constraint guarantees that only running runs have a `heartbeat_at`.
        query = select(*RUN).where(task_runs.c.heartbeat_at < bindparam("since"))
        return self._prepare(query.order_by(task_runs.c.heartbeat_at, task_runs.c.run_id))

    @cached_property
    def counts(self) -> Prepared:
        return self._prepare(_counts("all"))

    @cached_property
    def pipeline_counts(self) -> Prepared:
        of_one = run_counts.c.pipeline == bindparam("pipeline")
        return self._prepare(_counts("pipeline").where(of_one))

    def count(self, cursor: Any, pipeline: str | None) -> Counter[RunStatus]:
        """Return how many runs of the pipeline, or of all, are in each state."""
        counts: Counter[RunStatus] = Counter()
        statement = self.counts if pipeline is None else self.pipeline_counts
        for status, runs in statement.run(cursor, {"pipeline": pipeline}):
            counts[status] += runs
        return counts

    def listing(self, statuses: frozenset[RunStatus], *, of_pipeline: bool) -> Prepared:
        """Return the statement for the last `number` runs in these states."""
        asked = statuses, of_pipeline
        if asked not in self._listings:
            self._listings[asked] = self._prepare(last_runs(RUN, statuses, [of_the_pipeline()] if of_pipeline else []))
        return self._listings[asked]


class Updates(_Statements):
    """The statements that write, for one kind of database. Each is compiled on first use."""

    @cached_property
    def create(self) -> Write:
        """Inserts nothing if the key exists, or if the attempt was taken meanwhile."""
        values: dict[str, Any] = {it.name: bindparam(it.name) for it in RUN} | {"last_seq": bindparam("new_events")}
        dialect: Any = postgresql if self._dialect.name == "postgresql" else sqlite
        inserted = dialect.insert(task_runs).values(values).on_conflict_do_nothing()
        return Write(inserted.returning(*RUN_ID_AND_LAST_SEQ), self._dialect)

    @cached_property
    def move(self) -> Write:
        counted = {"last_seq": task_runs.c.last_seq + bindparam("new_events")}
        changed = (
            update(task_runs).where(*_is_this_version()).values({name: bindparam(name) for name in MOVED} | counted)
        )
        return Write(changed.returning(*RUN_ID_AND_LAST_SEQ), self._dialect)

    @cached_property
    def note(self) -> Write:
        counted = update(task_runs).values(last_seq=task_runs.c.last_seq + literal_column("1"))
        return Write(
            counted.where(task_runs.c.run_id == bindparam("of_run")).returning(*RUN_ID_AND_LAST_SEQ), self._dialect
        )

    @cached_property
    def heartbeat(self) -> Prepared:
        ours = update(task_runs).where(*_is_this_version(), _has_status(RunStatus.RUNNING))
        return self._prepare(ours.values(heartbeat_at=bindparam("heartbeat_at")).returning(*RUN))

    @cached_property
    def claim(self) -> Prepared:
        return self._prepare(_claim(of_pipeline=False))

    @cached_property
    def pipeline_claim(self) -> Prepared:
        return self._prepare(_claim(of_pipeline=True))

    def next_to_claim(self, cursor: Any, values: Mapping[str, Any], unreadable: Unreadable) -> list[Row]:
        """Return a row with the next run to claim (of `values["pipeline"]`, unless that is None) and its task's next
        attempt, or nothing if none waits. Unreadable runs are skipped, up to `CLAIMS_LOOKED_AT`."""
        of_pipeline = values["pipeline"] is not None
        try:
            return (self.pipeline_claim if of_pipeline else self.claim).run(cursor, values)
        except StateError:
            several = self._prepare(_claim(of_pipeline=of_pipeline, number=CLAIMS_LOOKED_AT))
            return several.run(cursor, values, unreadable)


_statements: dict[str, tuple[Queries, Updates]] = {}


def statements(dialect: Dialect) -> tuple[Queries, Updates]:
    """Return the statements for a kind of database. All ledgers of a process share them (see `prepared`)."""
    if dialect.name not in _statements:
        _statements[dialect.name] = Queries(dialect), Updates(dialect)
    return _statements[dialect.name]


def _has_status(status: RunStatus) -> ColumnElement[bool]:
    return task_runs.c.run_status == literal_column(f"'{status.value}'")


def _is_this_version() -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return task_runs.c.run_id == bindparam("of_run"), task_runs.c.version == bindparam("of_version")


def of_the_pipeline() -> ColumnElement[bool]:
    """Return the condition that a run belongs to the pipeline asked for."""
    return task_runs.c.pipeline == bindparam("pipeline")


def of_these_runs(number: int) -> ColumnElement[bool]:
    """Return the condition that a run is one of a batch (see `batches`) of `number` runs."""
    return task_runs.c.run_id.in_([bindparam(f"run_{n}") for n in range(number)])


def batches(run_ids: Iterable[str], number: int) -> Iterator[dict[str, str]]:
    """Yield the values for statements that read `number` runs each. The last batch is filled up with its last id."""
    wanted = [*run_ids]
    for start in range(0, len(wanted), number):
        some = wanted[start : start + number]
        yield {f"run_{n}": some[min(n, len(some) - 1)] for n in range(number)}


def _next_attempt() -> Select[Any]:
    last = func.coalesce(func.max(task_runs.c.attempt), literal_column("0"))
    return select((last + literal_column("1")).label("next")).where(task_runs.c.task_id == bindparam("task"))


def _counts(scope: str) -> Select[Any]:
    """Return the query for the counts that triggers keep. A state may have several rows, which have to be added up."""
    return select(run_counts.c.run_status, run_counts.c.runs).where(run_counts.c.scope == literal_column(f"'{scope}'"))


def _claim(*, of_pipeline: bool, number: int = 1) -> CompoundSelect[Any]:
    """Return the query for the next run to claim, and its task's next attempt.

    It finds and locks at most `number` rows. The second kind is searched only if the first has too few.
    """
    limit: ColumnElement[int] = literal_column(str(number))
    task = task_runs.alias("of_the_task")
    following = select(func.max(task.c.attempt) + literal_column("1")).where(task.c.task_id == task_runs.c.task_id)
    kinds = []
    due, changed = task_runs.c.next_retry_at, task_runs.c.updated_at
    for status in TAKEN_UP:
        found = [("", changed, _has_status(status))]
        if status is RunStatus.RETRY_SCHEDULED:  # a constraint guarantees that only these have a next_retry_at
            ahead = _has_status(status) & (changed > bindparam("ahead"))
            found = [("", due, due <= bindparam("now")), ("_ahead", changed, ahead)]
        for name, since, condition in found:
            query = select(*RUN, following.scalar_subquery().label("next")).where(condition)
            if of_pipeline:
                query = query.where(of_the_pipeline())
            first = query.order_by(since, task_runs.c.run_id).limit(limit)
            locked = first.with_for_update(skip_locked=True, of=task_runs)
            kinds.append(select(locked.subquery(f"{status.value}{name}")))
    return union_all(*kinds).limit(limit)


def last_runs(
    columns: Sequence[ColumnElement[Any]],
    statuses: frozenset[RunStatus],
    conditions: Sequence[ColumnElement[bool]],
    per_status: str = "number",
) -> Select[Any]:
    """Return the query for these columns of the last `number` runs in these states.

    It takes the last `per_status` runs in each state, which an index serves, and of those the last `number`.
    """
    kinds = []
    for status in sorted(statuses):
        query = select(*columns).where(_has_status(status), *conditions)
        last = query.order_by(task_runs.c.updated_at.desc(), task_runs.c.run_id.desc()).limit(bindparam(per_status))
        kinds.append(select(last.subquery(status.value)))
    found = union_all(*kinds).subquery("found")
    return select(found).order_by(found.c.updated_at.desc(), found.c.run_id.desc()).limit(bindparam("number"))
