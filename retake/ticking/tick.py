"""One tick of a pipeline: take the lease, read and check everything, decide, act, until there is a reason to wait.

The loop knows nothing of what a pipeline does; a pipeline knows nothing of leases held by others, of breakers, or of
the order in which a tick begins and ends. What a tick needs besides its bucket is here too: the scripts that do the
work, and the ledgers of the pipelines, each in the pipeline's part of the bucket or in one database that all share.
"""

from collections.abc import Callable
from datetime import datetime
from logging import getLogger
from threading import Lock
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from retake.bucket import Bucket, Lease
from retake.clock import Clock
from retake.errors import ErrorRecord, LeaseHeld
from retake.exit_codes import ExitCode
from retake.logs import bind

if TYPE_CHECKING:
    from retake.runs import Ledger
    from retake.ticking.vendor_breakers import VendorBreakers, VendorOff, VendorPermit

_log = getLogger(__name__)

A = TypeVar("A")


class ScriptResult(NamedTuple):
    """How a script ended."""

    exit_code: int  # negative: killed by that signal
    timed_out: bool = False  # it was still running when its time was over, and was killed
    stopped: bool = False  # a signal asked us to stop, and it ended because of that


class Scripts(Protocol):
    """The scripts of a pipeline, by whatever means they are run."""

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        """Run the script to its end, under the lease."""
        ...


class Ledgers:
    """Opens ledgers. `url` is the settings key `STORAGE.ledger`. Thread safe, since channels tick in parallel.

    Ledgers are imported only when needed: an idle tick needs none.
    """

    def __init__(self, url: str | None, clock: Clock) -> None:
        self.apart = url is not None  # runs are not in the bucket
        self._url = url
        self._clock = clock
        self._shared: Ledger | None = None
        self._lock = Lock()

    def of(self, bucket: Bucket, lease: Lease) -> "Ledger":
        """Return the ledger of the pipeline in `bucket`. A ledger in the bucket makes its changes under `lease`.

        Raises SettingsError, StorageError.
        """
        from retake.runs import open_ledger

        if self._url is None:
            return open_ledger(None, bucket, self._clock, lease=lease)
        with self._lock:
            self._shared = self._shared or open_ledger(self._url, bucket, self._clock)
            return self._shared


class Orders(NamedTuple):
    """What the operator wants besides a tick."""

    resume: bool = False  # go on after too many failures, or after a key was fixed
    resolve: str | None = None  # "retry" or "skip" a paid call of unknown outcome
    retake: str | None = None  # the id of a failed generation that is to be requeued


NO_ORDERS = Orders()


class Tick(NamedTuple):
    """The result of a tick."""

    exit_code: int
    why: str
    ended: str | None = None  # "done", "failed" or "cancelled": a generation ended in this tick
    generation_id: str | None = None  # the generation that the tick was about
    resting: bool = False  # nothing changes by itself before the next tick: all is done, or a person is needed
    until: datetime | None = None  # nothing happens before: what failed is due again then


class Pipeline(Protocol[A]):
    """A pipeline during one tick, under its lease. `A` is its type of action."""

    def read(self) -> None:
        """Read and check all state before anything is written. Raises StateError."""
        ...

    def obey(self, orders: Orders) -> None:
        """Carry out what the operator wants besides the tick. Raises StateError where it makes no sense."""
        ...

    def decide(self) -> A:
        """Return the next action, as the state and the caps have it."""
        ...

    def log_fields(self, action: A) -> dict[str, str | None]:
        """Return what log lines about the action carry; `generation_id` is what the tick was about."""
        ...

    def prepare(self, action: A) -> Tick | None:
        """Check the keys the action needs and bring the ledger in line; return the tick's result where it waits."""
        ...

    def vendor(self, action: A) -> str | None:
        """Return the vendor that the action calls, or None."""
        ...

    def off(self, action: A, breaker: "VendorOff") -> Tick:
        """Return the tick's result where the vendor's breaker is open."""
        ...

    def act(self, action: A) -> Tick | None:
        """Carry the action out; return the tick's result, or None to go on."""
        ...

    def new_failure(self, action: A, before: ErrorRecord) -> ErrorRecord:
        """Return the vendor's failure that is on record now and was not `before`; an empty record if there is none."""
        ...

    @property
    def error(self) -> ErrorRecord:
        """The last failure on record."""
        ...

    def record(self) -> None:
        """Write to the ledger what is not there yet."""
        ...

    def close(self) -> None:
        """Give back what other programs can see, whatever has happened. Never raises a RetakeError."""
        ...


class TickRunner(Generic[A]):
    """Runs ticks of the pipeline whose lease in `bucket` is called `lease_name`. `open_pipeline` makes the pipeline
    again for each tick; `owner` names who takes the lease; `take` takes it, by default by `Bucket.lease`. Without
    `breakers` each vendor is called."""

    def __init__(
        self,
        bucket: Bucket,
        lease_name: str,
        owner: str,
        open_pipeline: Callable[[Lease], Pipeline[A]],
        breakers: "VendorBreakers | None",
        take: Callable[[str, str], Lease] | None = None,
    ) -> None:
        self._take = take or bucket.lease
        self._lease_name = lease_name
        self._owner = owner
        self._open_pipeline = open_pipeline
        self._breakers = breakers

    def tick(self, orders: Orders = NO_ORDERS) -> Tick:
        """Run one tick. Raises StateError, StorageError, LeaseLost, SettingsError; the lease is then free again. Raises
        LeaseHeld where there are orders: nothing of them is done."""
        try:
            lease = self._take(self._lease_name, self._owner)
        except LeaseHeld as held:
            if orders != NO_ORDERS:
                raise LeaseHeld(f"{held}. Nothing of what was ordered is done: give the order again") from held
            _log.info("%s", held)
            return Tick(ExitCode.OK, str(held))
        try:
            return self._run(self._open_pipeline(lease), orders)
        finally:
            lease.release()

    def _run(self, pipeline: Pipeline[A], orders: Orders) -> Tick:
        pipeline.read()
        try:
            if orders != NO_ORDERS:
                pipeline.obey(orders)
            while (tick := self._step(pipeline)) is None:
                pass
            pipeline.record()
            return tick
        finally:
            pipeline.close()

    def _step(self, pipeline: Pipeline[A]) -> Tick | None:
        action = pipeline.decide()
        fields = pipeline.log_fields(action)
        with bind(**fields):
            tick = pipeline.prepare(action) or self._carry_out(pipeline, action)
        return tick._replace(generation_id=fields["generation_id"]) if tick else None

    def _carry_out(self, pipeline: Pipeline[A], action: A) -> Tick | None:
        permit = self._breakers.permit(pipeline.vendor(action)) if self._breakers else None
        if permit is None:
            return pipeline.act(action)
        from retake.ticking.vendor_breakers import VendorOff

        return pipeline.off(action, permit) if isinstance(permit, VendorOff) else self._act(pipeline, action, permit)

    def _act(self, pipeline: Pipeline[A], action: A, permit: "VendorPermit") -> Tick | None:
        """Act by permit of the vendor's breaker, and tell it how the call ended."""
        before = pipeline.error
        tick = permit.around(lambda: pipeline.act(action))
        failure = pipeline.new_failure(action, before)
        permit.ended(failure.raw or None, answered=tick is None or tick.exit_code == ExitCode.OK)
        return tick
