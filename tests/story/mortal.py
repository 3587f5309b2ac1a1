"""A world whose machine can die before or after any operation on it: each bucket operation, each call of a vendor."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any, NamedTuple, TypeVar

from story_world import FakeVendors, World

from retake.bucket import Bucket
from retake.bucket.failing import Crash
from retake.bucket.memory import MemoryBucket, MemoryStore
from retake.bucket.wrappers import Wrapper
from retake.clock import parse_stamp
from retake.errors import StorageError
from retake.vendors.piapi import BEFORE

T = TypeVar("T")


class Fate:
    """Counts the operations of one life, and ends it at the `due`-th, before or after its effect.

    `watch(number, after)` is called before and after each operation.
    """

    def __init__(self) -> None:
        self.watch: Callable[[int, bool], None] = lambda number, after: None
        self.log: list[str] = []
        self.due: int | None = None
        self.after = False
        self.dead = False

    def live(self, due: int | None = None, *, after: bool = False) -> None:
        self.log, self.due, self.after, self.dead = [], due, after, False

    def around(self, what: str, call: Callable[[], T]) -> T:
        if self.dead:
            raise Crash(what)
        self.log.append(what)
        number = len(self.log)
        strikes = number == self.due
        self.watch(number, False)
        if strikes and not self.after:
            self.dead = True
            raise Crash(f"before {what}")
        try:
            result = call()
        finally:  # a machine can also die after a failed operation
            self.watch(number, True)
        if strikes:
            self.dead = True
            raise Crash(f"after {what}")
        return result


class Chance(Fate):
    """Does at random what `happens` lists, at each operation, but not within another actor's turn. `share` is the
    fraction of operations that each kind of fault strikes."""

    def __init__(self, random: Random, share: float = 0.004) -> None:
        super().__init__()
        self.random = random
        self.share = share
        self.happens: list[tuple[float, Callable[[], None]]] = []
        self.calm = False

    def around(self, what: str, call: Callable[[], T]) -> T:
        if self.dead:
            raise Crash(what)
        if self.calm:
            return call()
        self._something()
        fault, share = self.random.random(), self.share
        if fault < share:
            self._die()
        if fault > 1 - share and not what.startswith(("pay", "ask", "find")):
            raise StorageError(f"simulated, before {what}")
        result = call()
        if share < fault < 2 * share:
            self._die()
        if 1 - 2 * share < fault < 1 - share and what.startswith(("write", "delete", "copy")):
            raise StorageError(f"simulated, after {what}")
        return result

    def _die(self) -> None:
        self.dead = True
        raise Crash

    def _something(self) -> None:
        for share, happening in self.happens:
            if self.random.random() < share:
                self.calm = True
                try:
                    happening()
                finally:
                    self.calm = False


class MortalBucket(Wrapper):
    def __init__(self, bucket: Bucket, fate: Fate) -> None:
        super().__init__(bucket)
        self._fate = fate

    def around(self, operation: str, key: str, call: Callable[[], T]) -> T:
        return self._fate.around(f"{operation} {key}", call)


class RenamingBucket(MemoryBucket):
    """Moves as a directory does: each file is renamed in one step, and the machine can die between two."""

    def __init__(self, store: MemoryStore, fate: Fate) -> None:
        super().__init__(store)
        self._fate = fate

    def move(self, moves: Sequence[tuple[str, str]]) -> None:
        for source, target in moves:
            self._fate.around(f"rename {source}", lambda names=(source, target): self._rename(*names))

    def _rename(self, source: str, target: str) -> None:
        self.store.put(target, self.store.objects.pop(source).data)


class Order(NamedTuple):
    """What a vendor has carried out."""

    step: str
    wanted: str  # the text by which Midjourney can find it
    at: datetime
    task_id: str


class MortalVendors(FakeVendors):
    """Vendors that outlive the machine and know their orders: Midjourney can be asked for a lost one."""

    def __init__(self, fate: Fate, now: Callable[[], datetime]) -> None:
        super().__init__()
        self._fate = fate
        self._now = now
        self._order = ""
        self.made: list[Order] = []

    def imagine(self, prompt: str, nonce: int) -> str:
        self._order = str(nonce)
        return super().imagine(prompt, nonce)

    def upscale(self, task_id: str, index: int) -> str:
        self._order = f"{task_id} {index}"
        return super().upscale(task_id, index)

    def pay(self, kind: str) -> str:
        return self._fate.around(f"pay {kind}", lambda: self._noted(kind))

    def look(self, kind: str, result: dict[str, Any]) -> Any:
        return self._fate.around(f"ask {kind}", lambda: super(MortalVendors, self).look(kind, result))

    def find(self, asked: Mapping[str, Any]) -> str | None:
        step, since = asked["step"], parse_stamp(asked["requested_at_utc"]) - BEFORE
        wanted = str(asked["nonce"]) if step == "imagine" else f"{asked['origin_task_id']} {asked['index']}"
        found = [it.task_id for it in self.made if (it.step, it.wanted) == (step, wanted) and it.at >= since]
        return self._fate.around("find", lambda: found[-1] if found else None)

    def _noted(self, kind: str) -> str:
        task_id = super().pay(kind)
        self.made.append(Order(kind, self._order, self._now(), task_id))
        return task_id


class Moment(NamedTuple):
    """All that outlives the machine at a point of its life. Deaths at equal moments have equal futures."""

    objects: Mapping[str, Any]
    time: datetime
    plans: Mapping[str, Sequence[str]]
    billed: Mapping[str, int]
    asked: Mapping[str, int]
    made: Sequence[Order]
    ended: Sequence[str]


class MortalWorld(World):
    """A world that ticks until a generation has ended; `live` says whether the machine died, and can be called
    again."""

    def __init__(self, **workflow: Any) -> None:
        super().__init__(**workflow)
        self.fate = Fate()
        self.vendors: MortalVendors = MortalVendors(self.fate, self.clock.now)
        self.memory = self.bucket
        self.bucket = MortalBucket(self.memory, self.fate)  # type: ignore[assignment]

    def rename_on_moves(self) -> None:
        """Let files move as on a directory. Otherwise they are copied, compared and deleted, as on B2 and S3."""
        self.memory = RenamingBucket(self.memory.store, self.fate)
        self.bucket = MortalBucket(self.memory, self.fate)  # type: ignore[assignment]

    def live(self, due: int | None = None, *, after: bool = False, ticks: int = 60) -> bool:
        """Return True once a generation has ended, False if the machine died. The leases of the dead are free."""
        self.fate.live(due, after=after)
        try:
            while not self.ended:
                assert ticks, f"no end in sight; the last operations: {self.fate.log[-12:]}"
                ticks -= 1
                if self.tick().resting:  # it had ended just before the machine died, and there is no room for another
                    self.ended.append("done")
        except Crash:
            self._die()
            return False
        return True

    def moments(self) -> dict[tuple[int, bool], Moment]:
        """Live on until a generation has ended; return what every death would have left, before and after each
        operation.

        The keys are the operations' numbers, in the order of time.
        """
        found: dict[tuple[int, bool], Moment] = {}
        self.fate.watch = lambda number, after: found.update({(number, after): self.moment()})
        assert self.live()
        self.fate.watch = lambda number, after: None
        return found

    def moment(self) -> Moment:
        vendors = self.vendors
        plans = {kind: tuple(outcomes) for kind, outcomes in vendors.plans.items()}
        counts, made = (dict(vendors.billed), dict(vendors.asked)), tuple(vendors.made)
        return Moment(dict(self.memory.store.objects), self.clock.moment, plans, *counts, made, tuple(self.ended))

    def die_at(self, moment: Moment) -> None:
        """Go back to a moment at which the machine dies."""
        self.memory.store.objects = dict(moment.objects)
        self.clock.moment = moment.time
        vendors = self.vendors
        vendors.plans = defaultdict(deque, {kind: deque(outcomes) for kind, outcomes in moment.plans.items()})
        vendors.billed, vendors.asked = Counter(moment.billed), Counter(moment.asked)
        vendors.made, vendors.last_id = list(moment.made), sum(moment.billed.values())
        self.ended = list(moment.ended)
        self._die()

    def _die(self) -> None:
        self.memory.store.end_leases()
        self.clock.sleep(self.interval_s)
        self.fate.live()
