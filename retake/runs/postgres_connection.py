"""A connection to PostgreSQL on which an answer is waited for a limited time."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import Any

from psycopg import Connection, OperationalError
from psycopg.abc import RV, PQGen


class PostgresConnection(Connection[Any]):
    """Closes itself, with an OperationalError, if the server sends nothing for `silence_s` seconds of a statement.

    A server that is frozen acknowledges what it receives, so the limits of TCP do not apply. `statement_timeout` does
    not either, since the server would have to end the statement. No thread watches: psycopg wakes ten times a second
    while it waits, and since 3.2.13 its C code tells the generator, too.
    """

    silence_s = inf
    _ends = inf

    @contextmanager
    def until(self, ends: float) -> Iterator[None]:
        """Wait for no answer beyond `ends`, a time of `time.monotonic`, within the `with` block."""
        self._ends = ends
        try:
            yield
        finally:
            self._ends = inf

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        """Consume a generator of psycopg's, which yields what it waits for and is sent what is ready."""
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: PQGen[RV]) -> PQGen[RV]:
        begun = heard = monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = monotonic()
                if ready:
                    heard = now
                elif now >= min(heard + self.silence_s, self._ends):
                    self.pgconn.finish()
                    raise OperationalError(f"no answer for {now - begun:.0f} s, so the connection was closed.")
                wanted = gen.send(ready)
        except StopIteration as ended:
            answer: RV = ended.value
            return answer
