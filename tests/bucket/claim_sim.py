"""The real lease code in a world where every order of events is possible and can be repeated.

Each actor runs `take`, `renew` and `release` in a thread of its own, but only one thread runs at a time: at each
request to the store it stops until the schedule lets the request take effect, be answered, be lost, be doubled, arrive
late, or disappear. Time passes only as an event of the schedule. In every state:

    I1  at most one lease passes its own check
    I2  tokens rise from holder to holder
    I3  a script's check passes only while no other lease than its manager's does (a manager waits for its scripts
        before it releases its lease, so afterwards nothing is asked)
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from retake.bucket import LeaseTerms
from retake.bucket.claims.lease import ClaimLease, LeaseClock
from retake.bucket.claims.protocol import join, take
from retake.bucket.claims.store import Claims, ClaimStore, Stamped
from retake.bucket.s3.client import AnswerLost, RequestRefused, S3Client, S3Place
from retake.bucket.s3.leases import S3ClaimStore
from retake.errors import LeaseHeld, LeaseLost, StorageError

START = 1000


class Broken(AssertionError):
    """An invariant is violated."""


class _Ended(BaseException):
    """The schedule is over; unwinds an actor."""


class Bounds(NamedTuple):
    """The size of the world to explore."""

    actors: int = 2
    scripts: bool = False  # whether the first holder also runs a script
    attempts: int = 2
    renewals: int = 1
    ttl: int = 3
    skew: int = 0
    horizon: int = 20
    conditional: bool = False
    doubles: bool = True
    steps: int = 160


class Schedule:
    """Picks the next of the possible events: from `choices`, then at random, or the first one if there is no seed.

    Each seed prefers certain kinds of events (some crash often, some never), staying with the same actor, and freezing
    one for a while: otherwise an actor would hardly ever be late by a whole term.
    """

    def __init__(self, seed: int | None = None, choices: tuple[int, ...] = ()) -> None:
        self.made: list[int] = []
        self.widths: list[int] = []
        self._choices = choices
        self._random = None if seed is None else random.Random(seed)
        self._tastes: dict[str, float] = {}
        self._sticks = self._random.choice((1.0, 5.0, 25.0)) if self._random else 1.0
        self._freezes = self._random.choice((0.0, 0.02, 0.05, 0.1)) if self._random else 0.0
        self._frozen: dict[int | None, int] = {}
        self._last: int | None = None

    def pick(self, events: list["Event"], now: int, term: int) -> "Event":
        at = len(self.made)
        chosen = self._choices[at] if at < len(self._choices) else self._any(events, now, term)
        self.made.append(chosen)
        self.widths.append(len(events))
        self._last = events[chosen].actor
        return events[chosen]

    def _any(self, events: list["Event"], now: int, term: int) -> int:
        if self._random is None:
            return 0
        if self._last is not None and self._random.random() < self._freezes:
            self._frozen[self._last] = now + self._random.randint(1, 2 * term)
        weights = [self._weight(event, now) for event in events]
        return self._random.choices(range(len(events)), weights)[0]

    def _weight(self, event: "Event", now: int) -> float:
        if self._frozen.get(event.actor, now) > now:
            return 0.001
        return self._taste(event.kind) * (self._sticks if event.actor == self._last is not None else 1.0)

    def _taste(self, kind: str) -> float:
        if kind not in self._tastes:
            assert self._random is not None
            usual = {"effect": 4.0, "answer": 4.0, "tick": 1.0, "jump": 0.15, "land": 0.5}.get(kind, 0.08)
            self._tastes[kind] = usual * self._random.choice((0.1, 1.0, 1.0, 4.0))
        return self._tastes[kind]


class Event(NamedTuple):
    """A possible next event."""

    kind: str
    happen: Callable[[], None]
    actor: int | None = None


class Request:
    """A request to the store, in transit or received."""

    def __init__(self, effect: Callable[[int], Any], *, writes: bool) -> None:
        self.effect = effect
        self.writes = writes
        self.done = False
        self.doubled = False
        self.result: Any = None


class Actor:
    """A process: its thread, what it waits for, and what it holds."""

    def __init__(self, world: "World", number: int, program: Callable[["Actor"], None]) -> None:
        self.number = number
        self.waits_for: Request | None = None
        self.lease: ClaimLease | None = None
        self.alive = True
        self._world = world
        self._go = threading.Lock()
        self._go.acquire()
        self._error: BaseException | None = None
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(program,), daemon=True)
        self._thread.start()

    def _run(self, program: Callable[["Actor"], None]) -> None:
        self._go.acquire()
        try:
            if not self._world.over:
                program(self)
        except _Ended:
            pass
        except BaseException as error:  # noqa: BLE001  raised again in the world's thread
            self.failure = error
        self.alive = False
        self._world.back.release()

    def resume(self, error: BaseException | None = None) -> None:
        """Let it run until it waits again or has ended."""
        self._error = error
        self._go.release()
        self._world.back.acquire()
        if self.failure:
            raise self.failure

    def perform(self, request: Request) -> Any:
        """Wait for the answer, in the actor's thread."""
        if self._world.over:
            raise _Ended
        self.waits_for = request
        self._world.back.release()
        self._go.acquire()
        self.waits_for = None
        if self._world.over:
            raise _Ended
        if self._error:
            raise self._error
        return request.result

    def finish(self) -> None:
        if self.alive:
            self._go.release()
            self._world.back.acquire()
        self._thread.join()


class World:
    """A run of one schedule. Raises Broken."""

    def __init__(self, schedule: Schedule, bounds: Bounds) -> None:
        self.bounds, self.schedule = bounds, schedule
        self.terms = LeaseTerms(float(bounds.ttl), float(bounds.skew), 0.0)
        self.now = START
        self.objects: dict[str, list[tuple[float, bytes]]] = {}
        self.flight: list[Request] = []
        self.token = 0
        self.handed = ""
        self.given_back: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.over = False
        self.back = threading.Lock()
        self.back.acquire()
        self.crashed: set[int] = set()
        programs = [self._manage] * bounds.actors + [self._script] * bounds.scripts
        self.actors = [Actor(self, number, program) for number, program in enumerate(programs)]
        self.started: set[int] = set()

    def run(self) -> Counter[str]:
        try:
            for _ in range(self.bounds.steps):
                events = list(self._events())
                if not any(event.kind not in ("tick", "jump", "land") for event in events):
                    break
                event = self.schedule.pick(events, self.now, self.bounds.ttl)
                self.counts[event.kind] += 1
                event.happen()
                self._check()
        finally:
            self.over = True
            for actor in self.actors:
                actor.finish()
        return self.counts

    def _check(self) -> None:
        holders = [actor for actor in self.actors if self._holds(actor)]
        if len(holders) > 1:
            raise Broken(f"I1: actors {[actor.number for actor in holders]} both hold the lease at {self.now - START}")

    def _holds(self, actor: Actor) -> bool:
        """Return whether the actor holds a lease. A crashed one counts: it may just be slow."""
        try:
            if actor.lease:
                actor.lease.check()
                return True
        except LeaseLost:
            pass
        return False

    # --- what can happen --------------------------------------------------------------------------------------------

    def _events(self) -> Iterator[Event]:
        running = [it for it in self.actors if it.alive and it.number not in self.crashed]
        for actor in running:
            if actor.number not in self.started:
                yield Event("effect", lambda actor=actor: self._start(actor), actor.number)
            elif actor.waits_for:
                yield from self._events_of(actor, actor.waits_for)
        yield from self._late()
        if self.now < START + self.bounds.horizon:
            yield Event("tick", lambda: self._pass(1))
            yield Event("jump", lambda: self._pass(self.bounds.ttl))
            yield Event("jump", lambda: self._pass(self.bounds.ttl + 2 * self.bounds.skew + 1))

    def _events_of(self, actor: Actor, request: Request) -> Iterator[Event]:
        if request.done:
            yield Event("answer", actor.resume, actor.number)
            yield Event("lost", lambda: actor.resume(AnswerLost("no answer")), actor.number)
        else:
            for skew in self._skews():
                yield Event("effect", lambda skew=skew: self._take_effect(request, skew), actor.number)
            yield Event("given up", lambda: self._give_up(actor, request), actor.number)
        if request.writes and not request.doubled and self.bounds.doubles:
            yield Event("doubled", lambda: self._double(request), actor.number)
        yield Event("crash", lambda: self._crash(actor, request), actor.number)

    def _late(self) -> Iterator[Event]:
        for request in self.flight:
            for skew in self._skews():
                yield Event("land", lambda request=request, skew=skew: self._land(request, skew))

    def _skews(self) -> tuple[int, ...]:
        skew = self.bounds.skew
        return (0, -skew, skew) if skew else (0,)

    def _start(self, actor: Actor) -> None:
        self.started.add(actor.number)
        actor.resume()

    def _pass(self, ticks: int) -> None:
        self.now += ticks

    def _take_effect(self, request: Request, skew: int) -> None:
        request.result = request.effect(skew)
        request.done = True

    def _land(self, request: Request, skew: int) -> None:
        self.flight.remove(request)
        request.effect(skew)

    def _give_up(self, actor: Actor, request: Request) -> None:
        if request.writes:
            self.flight.append(Request(request.effect, writes=True))
        actor.resume(AnswerLost("timed out"))

    def _double(self, request: Request) -> None:
        request.doubled = True
        self.flight.append(Request(request.effect, writes=True))

    def _crash(self, actor: Actor, request: Request) -> None:
        self.crashed.add(actor.number)
        if request.writes and not request.done:
            self.flight.append(request)

    # --- the store --------------------------------------------------------------------------------------------------

    def put(self, name: str, body: bytes, *, absent: bool, versions: bool) -> Request:
        def effect(skew: int) -> tuple[bool, float]:
            there = self.objects.get(name, [])
            if absent and there:
                return False, 0.0
            stamp = float(self.now + skew)
            self.objects[name] = [*(there if versions else []), (stamp, body)]
            return True, stamp

        return Request(effect, writes=True)

    def listing(self, prefix: str) -> Request:
        def effect(skew: int) -> Claims:
            found = [Stamped(name, at) for name, all_of in self.objects.items() for at, _ in all_of]
            return Claims(tuple(it for it in found if it.name.startswith(prefix)), float(self.now + skew))

        return Request(effect, writes=False)

    def get(self, name: str) -> Request:
        return Request(lambda skew: self.objects.get(name, [(0.0, None)])[-1][1], writes=False)

    def removal(self, name: str) -> Request:
        return Request(lambda skew: self.objects.pop(name, None), writes=False)  # late or now makes no difference

    # --- the programs -----------------------------------------------------------------------------------------------

    def _store(self, actor: Actor) -> ClaimStore:
        if self.bounds.conditional:
            return _NumberedStore(SimWire(self, actor), S3Place("sim", "", None, None))
        return SimStore(self, actor)

    def _clock(self, actor: Actor) -> LeaseClock:
        return LeaseClock(_Clock(self, actor), lambda: float(self.now))

    def _pause(self, actor: Actor) -> None:
        with suppress(AnswerLost):
            actor.perform(Request(lambda skew: None, writes=False))

    def _manage(self, actor: Actor) -> None:
        store, clock = self._store(actor), self._clock(actor)
        for attempt in range(self.bounds.attempts):
            nonce = bytes([(actor.number + attempt) % 2, actor.number, attempt]).ljust(8, b"\0")
            with suppress(LeaseHeld, StorageError):
                lease = take(
                    store, "story", f"a{actor.number}", clock=clock, terms=self.terms, random=lambda n, it=nonce: it
                )
                self._granted(actor, lease)
                self._renew(actor, lease)
                self.given_back.add(lease.token)
                lease.release()

    def _granted(self, actor: Actor, lease: ClaimLease) -> None:
        self.counts["granted"] += 1
        if lease.token <= self.token:
            raise Broken(f"I2: token {lease.token} after {self.token}")
        self.token, actor.lease = lease.token, lease
        with suppress(LeaseLost):
            self.handed = self.handed or lease.handover().text

    def _renew(self, actor: Actor, lease: ClaimLease) -> None:
        for _ in range(self.bounds.renewals):
            self._pause(actor)
            with suppress(StorageError):
                try:
                    lease.renew()
                except LeaseLost:
                    self.counts["lost the lease"] += 1
                    return
                self.counts["renewed"] += 1
        self._pause(actor)

    def _script(self, actor: Actor) -> None:
        while not self.handed:
            self._pause(actor)
        with suppress(LeaseLost, StorageError):
            lease = join(self._store(actor), "story", self.handed, clock=self._clock(actor), terms=self.terms)
            while True:
                others = [it for it in self.actors if self._holds(it) and it.lease and it.lease.token != lease.token]
                if others and lease.token not in self.given_back:
                    raise Broken(f"I3: a script goes on while actor {others[0].number} holds the lease")
                self.counts["script checked"] += 1
                self._pause(actor)
                lease.check()


class _Clock:
    """The time of day, the same for all actors. Sleeping waits for an event."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world, self._actor = world, actor

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._world.now, UTC)

    def sleep(self, seconds: float) -> None:
        self._world._pause(self._actor)


class _InTurn:  # sends the requests of one actor in turn, last first: real stores send them concurrently
    def withdraw_all(self, names: Sequence[str]) -> None:
        for name in reversed(names):
            with suppress(StorageError):
                self.withdraw(name)  # type: ignore[attr-defined]


class SimStore(_InTurn):
    """A `ClaimStore` without conditions that keeps every version, as B2 does."""

    conditional = False

    def __init__(self, world: World, actor: Actor) -> None:
        self._world, self._actor = world, actor

    def _perform(self, request: Request) -> Any:
        try:
            return self._actor.perform(request)
        except AnswerLost as error:
            raise StorageError(str(error)) from error

    def claims(self, prefix: str) -> Claims:
        return self._perform(self._world.listing(prefix))  # type: ignore[no-any-return]

    def claim(self, name: str) -> float:
        return self._perform(self._world.put(name, b"", absent=False, versions=True))[1]  # type: ignore[no-any-return]

    def withdraw(self, name: str) -> None:
        self._perform(self._world.removal(name))

    def claim_if_absent(self, name: str, nonce: str) -> bool:
        raise NotImplementedError

    def nonce(self, name: str) -> str | None:
        raise NotImplementedError


class _NumberedStore(_InTurn, S3ClaimStore):
    """The real S3 claim store, on the client below."""

    conditional = True  # type: ignore[assignment]


class SimWire(S3Client):
    """S3's answers to the requests of `S3ClaimStore`."""

    def __init__(self, world: World, actor: Actor) -> None:
        super().__init__(None, S3Place("sim", "", None, None), _Clock(world, actor), 0.0)
        self._world, self._actor = world, actor

    def once(self, operation: str, **given: Any) -> dict[str, Any]:
        return getattr(self, f"_{operation}")(**given)  # type: ignore[no-any-return]

    def _put_object(self, Key: str, Body: bytes, IfNoneMatch: str = "") -> dict[str, Any]:  # noqa: N803
        put = self._world.put(Key, Body, absent=bool(IfNoneMatch), versions=False)
        stored, stamp = self._actor.perform(put)
        if not stored:
            raise RequestRefused(412, "PreconditionFailed", "it is there")
        return self._dated({}, stamp)

    def _list_objects_v2(self, Prefix: str) -> dict[str, Any]:  # noqa: N803
        found = self._actor.perform(self._world.listing(Prefix))
        contents = [{"Key": it.name, "LastModified": datetime.fromtimestamp(it.stamp, UTC)} for it in found.found]
        return self._dated({"Contents": contents}, found.date)

    def _get_object(self, Key: str) -> dict[str, Any]:  # noqa: N803
        body = self._actor.perform(self._world.get(Key))
        if body is None:
            raise RequestRefused(404, "NoSuchKey", "nothing there")
        return {"Body": body}

    def _delete_object(self, Key: str) -> dict[str, Any]:  # noqa: N803
        self._actor.perform(self._world.removal(Key))
        return {}

    def _dated(self, answer: dict[str, Any], moment: float) -> dict[str, Any]:
        date = datetime.fromtimestamp(moment, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        return {**answer, "ResponseMetadata": {"HTTPHeaders": {"date": date}}}


def explore(bounds: Bounds, seeds: range) -> Counter[str]:
    """Run a random schedule for each seed. Raise Broken with the seed."""
    return sum((_run(Schedule(seed), bounds, f"{seed}") for seed in seeds), Counter())


def exhaust(bounds: Bounds, deviations: int) -> Counter[str]:
    """Run every schedule that differs at no more than `deviations` points from the plain one (in sequence, no
    faults)."""
    total: Counter[str] = Counter()
    pending: list[tuple[int, ...]] = [()]
    while pending:
        choices = pending.pop()
        schedule = Schedule(choices=choices)
        total += _run(schedule, bounds, f"choices={choices}")
        total["schedules"] += 1
        if sum(1 for choice in choices if choice) < deviations:
            for at in range(len(choices), len(schedule.widths)):
                pending += [(*schedule.made[:at], other) for other in range(1, schedule.widths[at])]
    return total


def _run(schedule: Schedule, bounds: Bounds, given: str) -> Counter[str]:
    try:
        return World(schedule, bounds).run()
    except Broken as error:
        raise Broken(f"{error}; {bounds}: World(Schedule({given}), bounds).run()") from error
