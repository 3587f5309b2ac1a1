"""One tick of a pipeline: take the lease, read and check everything, decide, act, until there is a reason to wait.

The loop does not know what a pipeline does. A pipeline does not know about leases held by others, breakers, or the
order in which a tick begins and ends. The other things a tick needs are here, too: the scripts that do the work, and
the ledgers of the pipelines, each in the pipeline's part of the bucket or in one database that all share.
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
    timed_out: bool = False  # it exceeded its time limit, and was killed
    stopped: bool = False  # it ended because a signal asked us to stop


class Scripts(Protocol):
    """Runs the scripts of a pipeline."""

    def run(self, script: str, arguments: list[str], lease: Lease) -> ScriptResult:
        """Run the script to its end, under the lease."""
        ...


class Ledgers:
    """Opens ledgers. `url` is the setting STORAGE.ledger. Thread safe, since channels tick in parallel.

    `retake.runs` is imported only when needed: an idle tick needs no ledger.
    """

    def __init__(self, url: str | None, clock: Clock) -> None:
        self.external = url is not None  # whether they are outside the bucket
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
    """What the operator has ordered in addition to a tick."""

    resume: bool = False  # continue after too many failures, or after a key was fixed
    resolve: str | None = None  # "retry" or "skip" a paid call of unknown outcome
    retake: str | None = None  # the id of a failed generation to requeue


NO_ORDERS = Orders()


class Tick(NamedTuple):
    """The result of a tick."""

    exit_code: int
    why: str
    ended: str | None = None  # "done", "failed" or "cancelled": a generation ended in this tick
    generation_id: str | None = None  # the generation that the tick was about
    resting: bool = False  # another tick would do nothing: all is done, or a person is needed
    until: datetime | None = None  # another tick before this time would do nothing: a retry is due then


class Pipeline(Protocol[A]):
    """A pipeline during one tick, under its lease. `A` is its type of action."""

    def read(self) -> None:
        """Read and check all state, before anything is written. Raises StateError."""
        ...

    def obey(self, orders: Orders) -> None:
        """Carry out the operator's orders. Raises StateError if the state does not allow them."""
        ...

    def decide(self) -> A:
        """Return the next action, according to the state and the caps."""
        ...

    def log_fields(self, action: A) -> dict[str, str | None]:
        """Return the fields of log lines about the action. `generation_id` also goes into the tick's result."""
        ...

    def prepare(self, action: A) -> Tick | None:
        """Check the keys that the action needs, and update the ledger. Return the tick's result if the tick ends here,
        or None to act."""
        ...

    def vendor(self, action: A) -> str | None:
        """Return the vendor that the action calls, or None."""
        ...

    def off(self, action: A, breaker: "VendorOff") -> Tick:
        """Return the tick's result when the vendor's breaker is open."""
        ...

    def act(self, action: A) -> Tick | None:
        """Carry out the action. Return the tick's result, or None to go on with the next action."""
        ...

    def new_failure(self, action: A, before: ErrorRecord) -> ErrorRecord:
        """Return the vendor's failure that is on record now but was not in `before`, or an empty record."""
        ...

    @property
    def error(self) -> ErrorRecord:
        """The last failure on record."""
        ...

    def record(self) -> None:
        """Write to the ledger what is missing there."""
        ...

    def close(self) -> None:
        """Release everything that other programs can see, whatever has happened. Never raises a RetakeError."""
        ...


class TickRunner(Generic[A]):
    """Runs ticks of the pipeline whose lease in `bucket` is called `lease_name`.

    `open_pipeline` creates the pipeline anew for each tick. `owner` names the holder of the lease; `take(lease_name,
    owner)` takes it, by default `Bucket.lease`. Without `breakers` vendors are always called.
    """

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
        """Run one tick. If another process holds the lease, end at once.

        Raises StateError, StorageError, LeaseLost and SettingsError; the lease is then free again. Raises LeaseHeld
        instead of ending if there are orders, which are then not carried out.
        """
        try:
            lease = self._take(self._lease_name, self._owner)
        except LeaseHeld as held:
            if orders != NO_ORDERS:
                raise LeaseHeld(f"{held}. Nothing that was ordered was done: give the order again") from held
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
        """Act with a permit of the vendor's breaker, and report to it how the call ended."""
        before = pipeline.error
        tick = permit.around(lambda: pipeline.act(action))
        failure = pipeline.new_failure(action, before)
        permit.ended(failure.raw or None, answered=tick is None or tick.exit_code == ExitCode.OK)
        return tick
