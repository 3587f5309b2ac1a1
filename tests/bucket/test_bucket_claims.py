"""The lease by claims, case by case: messages, wrong clocks, and stores that lie."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from retake.bucket import LeaseTerms
from retake.bucket.claims.lease import LeaseClock
from retake.bucket.claims.names import nonce_of, owner_of, place_of
from retake.bucket.claims.protocol import break_lease, join, take
from retake.bucket.claims.store import Claims, Stamped
from retake.clock import FakeClock
from retake.errors import LeaseHeld, LeaseLost, StorageError

TERMS = LeaseTerms(ttl_s=120, skew_s=30, margin_s=5)


class Store:
    """A `ClaimStore` in memory, on `clock`. `meanwhile(operation, name)` is called before each request."""

    def __init__(self, clock: FakeClock, *, conditional: bool = False, dated: bool = True) -> None:
        self.conditional = conditional
        self.objects: dict[str, list[tuple[float, str]]] = {}
        self.hidden: set[str] = set()
        self.meanwhile: Callable[[str, str], None] = lambda operation, name: None
        self.clock = clock
        self.asked: list[str] = []
        self._dated = dated

    @property
    def now(self) -> float:
        return self.clock.now().timestamp()

    @property
    def names(self) -> list[str]:
        return sorted(self.objects)

    def _request(self, operation: str, name: str) -> None:
        self.asked.append(operation)
        self.meanwhile(operation, name)

    def claims(self, prefix: str) -> Claims:
        self._request("claims", prefix)
        names = [name for name in self.objects if name.startswith(prefix) and name not in self.hidden]
        found = tuple(Stamped(name, stamp) for name in names for stamp, _ in self.objects[name])
        return Claims(found, self.now if self._dated else None)

    def claim(self, name: str) -> float:
        self._request("claim", name)
        self.objects.setdefault(name, []).append((self.now, ""))
        return self.now

    def claim_if_absent(self, name: str, nonce: str) -> bool:
        self._request("claim_if_absent", name)
        self.objects.setdefault(name, [(self.now, nonce)])
        return self.objects[name][0][1] == nonce

    def nonce(self, name: str) -> str | None:
        self._request("nonce", name)
        return self.objects[name][0][1] if name in self.objects else None

    def withdraw(self, name: str) -> None:
        self._request("withdraw", name)
        self.objects.pop(name, None)

    def withdraw_all(self, names: Sequence[str]) -> None:
        for name in names:
            with suppress(StorageError):
                self.withdraw(name)


class World:
    """A store and both clocks of one machine, controlled by the test."""

    def __init__(self, *, conditional: bool = False, dated: bool = True) -> None:
        self.store_clock, self.wall = FakeClock(), FakeClock()
        self.monotonic = 0.0
        self.store = Store(self.store_clock, conditional=conditional, dated=dated)
        self.clock = LeaseClock(self.wall, lambda: self.monotonic)
        self.wall.sleep = lambda seconds: self.let_pass(seconds)  # type: ignore[method-assign]

    def let_pass(self, seconds: float) -> None:
        for clock in (self.store_clock, self.wall):
            FakeClock.sleep(clock, seconds)
        self.monotonic += seconds

    def take(self, owner: str = "host-a:17"):
        return take(self.store, "story", owner, clock=self.clock, terms=TERMS)

    def join(self, handed: str):
        return join(self.store, "story", handed, clock=self.clock, terms=TERMS)


@pytest.fixture(params=["claims", "numbered", "claims without a date"])
def world(request: pytest.FixtureRequest) -> World:
    return World(conditional=request.param == "numbered", dated="without" not in request.param)


def fail(operation: str, name: str = "") -> Callable[[str, str], None]:
    def meanwhile(asked: str, asked_name: str) -> None:
        if asked == operation and name in asked_name:
            raise StorageError("no answer")

    return meanwhile


# --- taking and releasing
# ----------------------------------------------------------------------------------------------


def test_an_uncontended_tick_costs_two_listings_and_two_writes(world: World) -> None:
    world.take().release()
    world.store.asked.clear()
    lease = world.take()
    for _ in range(100):
        lease.check()
    lease.release()
    first = "claim_if_absent" if world.store.conditional else "claim"
    assert world.store.asked == ["claims", first, "claims", "claim", "withdraw", "withdraw"]


def test_what_stays_is_the_end_of_the_highest_token(world: World) -> None:
    tokens = []
    for _ in range(3):
        lease = world.take()
        tokens.append(lease.token)
        lease.release()
    assert tokens == [1, 2, 3]
    assert [name.rpartition(".")[2] for name in world.store.names] == ["end"]
    assert "/000000000003." in world.store.names[0]


def test_a_latecomer_is_told_who_holds_it_and_until_when(world: World) -> None:
    world.take("host-a:17")
    with pytest.raises(
        LeaseHeld, match=r"held by host-a:17, seen at 2026-01-01T00:00:00Z.*free at 2026-01-01T00:03:00Z"
    ):
        world.take("host-b:18")
    assert len(world.store.names) == 1


def test_a_dead_holder_is_followed_after_its_term_and_twice_the_skew(world: World) -> None:
    world.take("host-a:17")
    world.let_pass(180)
    with pytest.raises(LeaseHeld):
        world.take("host-b:18")
    world.let_pass(1)
    assert world.take("host-b:18").token == 2


def test_a_renewed_lease_goes_on(world: World) -> None:
    lease = world.take()
    for _ in range(5):
        world.let_pass(100)
        lease.renew()
    lease.check()
    assert len(world.store.names) == 1
    with pytest.raises(LeaseHeld, match="host-a:17"):
        world.take("host-b:18")
    lease.release()
    assert world.take("host-b:18").token == 2


def test_without_renewal_it_ends_before_the_term_does(world: World) -> None:
    lease = world.take()
    world.let_pass(114)
    lease.check()
    world.let_pass(1)
    with pytest.raises(LeaseLost, match="has expired"):
        lease.check()
    lease.release()
    world.take("host-b:18").check()


def test_a_rivals_claim_alone_takes_nothing_away(world: World) -> None:
    lease = world.take()
    nonce = nonce_of(b"rivaling", "host-b")
    world.store.objects[f"leases/story/000000000001.{nonce}.0000"] = [(world.store.now, "")]
    world.let_pass(10)
    lease.renew()
    lease.check()


def test_what_was_not_given_back_is_remembered(world: World) -> None:
    lease = world.take()
    world.store.meanwhile = fail("claim", ".end")
    lease.release()
    world.store.meanwhile = lambda operation, name: None
    with pytest.raises(LeaseHeld):
        world.take()
    world.let_pass(181)
    assert world.take().token == 2


def test_odd_owners_and_long_names_are_kept(world: World) -> None:
    owner = "дом.example/~x %41:17"
    assert owner_of(nonce_of(b"12345678", owner)) == owner[: len(owner_of(nonce_of(b"12345678", owner)))]
    long = "/".join(["ж" * 110] * 4)
    assert place_of(long) != place_of(f"{long[:-1]}x")
    assert all(len(place_of(name)) < 250 for name in (long, "x" * 250))
    lease = take(world.store, long, owner, clock=world.clock, terms=TERMS)
    with pytest.raises(LeaseHeld, match="дом"):
        take(world.store, long, "other", clock=world.clock, terms=TERMS)
    lease.release()


# --- stores that lie, and lost answers
# ---------------------------------------------------------------------------------


def test_a_store_whose_listing_lacks_our_claim_is_refused(world: World) -> None:
    def hide(operation: str, name: str) -> None:
        if operation.startswith("claim_") or operation == "claim":
            world.store.hidden.add(name)

    world.store.meanwhile = hide
    with pytest.raises(StorageError, match="strongly consistent"):
        world.take()
    assert not [name for name in world.store.names if name.startswith("leases/")]


@pytest.mark.parametrize("number", range(1, 5))
def test_a_failure_at_any_request_leaves_no_lease_that_lasts(world: World, number: int) -> None:
    def meanwhile(operation: str, name: str) -> None:
        if len(world.store.asked) == number:
            raise StorageError("no answer")

    world.store.meanwhile = meanwhile
    try:
        world.take().release()
    except StorageError:
        world.store.meanwhile = lambda operation, name: None
        world.let_pass(181)
    world.take("host-b:18").check()


def test_a_renewal_without_an_answer_can_be_tried_again_until_the_deadline(world: World) -> None:
    lease = world.take()
    world.let_pass(50)
    world.store.meanwhile = fail("claim")
    with pytest.raises(StorageError):
        lease.renew()
    lease.check()
    world.store.meanwhile = lambda operation, name: None
    world.let_pass(50)
    lease.renew()
    world.let_pass(100)
    lease.check()


def test_a_renewal_that_is_answered_too_late_does_not_count(world: World) -> None:
    lease = world.take()
    world.let_pass(100)
    world.store.meanwhile = lambda operation, name: world.let_pass(20) if operation == "claim" else None
    with pytest.raises(LeaseLost, match="too late"):
        lease.renew()
    with pytest.raises(LeaseLost):
        lease.check()


def test_a_claim_that_took_as_long_as_a_lease_is_not_a_lease(world: World) -> None:
    world.store.meanwhile = lambda operation, name: world.let_pass(120) if operation.startswith("claim") else None
    with pytest.raises(LeaseHeld, match="longer to answer"):
        world.take()


def test_a_claim_that_is_removed_ends_the_lease_at_its_next_renewal(world: World) -> None:
    lease = world.take()
    world.store.objects.clear()
    with pytest.raises(LeaseLost, match="gone"):
        lease.renew()
    with pytest.raises(LeaseLost, match="gone"):
        lease.check()


def test_what_is_not_a_claim_is_an_error_that_names_it(world: World) -> None:
    world.store.objects["leases/story/notes.txt"] = [(world.store.now, "")]
    with pytest.raises(StorageError, match=r"leases/story/notes\.txt"):
        world.take()


def test_a_folder_marker_is_nothing(world: World) -> None:
    world.store.objects["leases/story/"] = [(world.store.now, "")]
    world.take().check()


def test_of_two_simultaneous_claims_the_lower_waits_and_the_other_withdraws() -> None:
    world = World()
    rival = f"leases/story/000000000001.{nonce_of(b'zzzzzzzz', 'host-b')}.0000"
    lists = 0

    def meanwhile(operation: str, name: str) -> None:
        nonlocal lists
        lists += operation == "claims"
        if operation == "claim" and name != rival:
            world.store.objects[rival] = [(world.store.now + 1, "")]
        if operation == "claims" and lists == 4:
            world.store.objects.pop(rival)

    world.store.meanwhile = meanwhile
    assert world.take().token == 1
    assert lists == 4


def test_a_rival_that_never_gives_way_is_not_waited_for_for_ever() -> None:
    world = World()
    rival = f"leases/story/000000000001.{nonce_of(b'zzzzzzzz', 'host-b')}.0000"

    def meanwhile(operation: str, name: str) -> None:
        if operation == "claim":
            world.store.objects[rival] = [(world.store.now + 1, "")]

    world.store.meanwhile = meanwhile
    with pytest.raises(LeaseHeld, match="host-b"):
        world.take()
    assert world.store.names == [rival]
    assert world.monotonic < 10


def test_a_numbered_claim_that_somebody_else_had_first_is_held_by_that() -> None:
    world = World(conditional=True)

    def meanwhile(operation: str, name: str) -> None:
        if operation == "claim_if_absent":
            world.store.objects.setdefault(name, [(world.store.now, nonce_of(b"zzzzzzzz", "host-b"))])

    world.store.meanwhile = meanwhile
    with pytest.raises(LeaseHeld, match="host-b"):
        world.take()
    assert world.store.names == ["leases/story/000000000001"]


# --- clocks ----------------------------------------------------------------------------------------------------------


def test_a_machine_that_slept_has_lost_its_lease(world: World) -> None:
    lease = world.take()
    FakeClock.sleep(world.wall, 120)
    with pytest.raises(LeaseLost, match="suspended, or its clock set forward"):
        lease.check()


def test_a_clock_set_back_keeps_no_lease_alive(world: World) -> None:
    lease = world.take()
    world.let_pass(120)
    world.wall.moment = FakeClock().moment
    with pytest.raises(LeaseLost):
        lease.check()


def test_each_bound_of_elapsed_time_is_wrong_on_its_safe_side_only(world: World) -> None:
    began = world.clock.mark()
    world.let_pass(10)
    FakeClock.sleep(world.wall, 50)  # suspended, or set forward
    assert (world.clock.at_least(began), world.clock.at_most(began)) == (10, 60)
    world.wall.moment = world.wall.moment.replace(year=2020)
    assert (world.clock.at_least(began), world.clock.at_most(began)) == (10, 10)


def test_a_rival_is_judged_by_the_stores_clock_not_by_ours() -> None:
    world = World()
    world.take("host-a:17")
    world.wall.moment = world.wall.moment.replace(year=2030)
    with pytest.raises(LeaseHeld):
        world.take("host-b:18")


# --- scripts ---------------------------------------------------------------------------------------------------------


def test_a_script_asks_the_store_before_each_act(world: World) -> None:
    lease = world.take()
    joined = world.join(lease.handover().text)
    world.let_pass(100)
    joined.check()
    lease.renew()
    world.let_pass(100)
    assert joined.left() < 0, "as far as it has asked"
    joined.check()
    assert joined.left() == lease.left() == 15
    assert joined.handover() == lease.handover()
    world.let_pass(15)
    with pytest.raises(LeaseLost, match="has expired"):
        joined.check()


def test_a_script_does_not_act_under_a_lease_that_was_given_back(world: World) -> None:
    lease = world.take()
    handed = lease.handover().text
    joined, released = world.join(handed), world.join(handed)
    released.release()
    with pytest.raises(LeaseLost, match="was released"):
        released.check()
    joined.check()
    world.store.meanwhile = fail("withdraw")
    lease.release()
    for act in (joined.check, lambda: world.join(handed)):
        with pytest.raises(LeaseLost, match="is over"):
            act()


def test_a_script_is_not_fooled_by_its_dead_managers_late_renewal(world: World) -> None:
    lease = world.take("host-a:17")
    joined = world.join(lease.handover().text)
    world.let_pass(181)
    world.take("host-b:18").check()
    world.store.objects[f"leases/story/{lease._stem.handed}.0001"] = [(world.store.now, "")]
    with pytest.raises(LeaseLost, match="took over"):
        joined.check()


def test_a_script_is_not_fooled_by_a_stranger_with_the_same_number() -> None:
    world = World(conditional=True)
    joined = world.join(world.take().handover().text)
    world.store.objects["leases/story/000000000001"] = [(world.store.now, nonce_of(b"zzzzzzzz", "host-b"))]
    with pytest.raises(LeaseLost):
        joined.check()


def test_a_script_that_cannot_ask_does_not_act(world: World) -> None:
    joined = world.join(world.take().handover().text)
    world.store.meanwhile = fail("claims")
    with pytest.raises(StorageError):
        joined.check()


def test_a_script_whose_question_was_answered_slowly_counts_the_time() -> None:
    world = World()
    joined = world.join(world.take().handover().text)
    world.let_pass(100)
    joined.check()
    claims = world.store.claims

    def slow(prefix: str) -> Claims:
        answer = claims(prefix)
        world.let_pass(20)
        return answer

    world.store.claims = slow  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        joined.check()


# --- the operator ----------------------------------------------------------------------------------------------------


def test_an_operator_can_end_a_lease_and_its_holder_notices(world: World) -> None:
    lease = world.take()
    joined = world.join(lease.handover().text)
    assert break_lease(world.store, "story", "operator") == 2
    with pytest.raises(LeaseLost):
        joined.check()
    with pytest.raises(LeaseLost, match="broken"):
        lease.renew()
    with pytest.raises(LeaseLost):
        lease.check()
    lease.release()
    assert world.take("host-b:18").token == 3


# --- threads and signals ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_thread_renews_it_with_a_client_of_its_own() -> None:
    store, made = Store(FakeClock()), threading.Event()
    store.__class__ = type("Live", (Store,), {"now": property(lambda self: time.time())})
    renewed: list[str] = []

    def connect() -> Store:
        made.set()
        store.meanwhile = lambda operation, name: renewed.append(name) if operation == "claim" else None
        return store

    lease = take(store, "story", "me", clock=LeaseClock(), terms=LeaseTerms(3.0, 0.0, 0.0))
    lease.keep(connect)
    end = time.monotonic() + 60
    while len(renewed) < 4 and time.monotonic() < end:  # each renews at a third of its term: run beyond the first one
        lease.check()
        time.sleep(0.02)
    lease.check()
    assert (made.is_set(), len(renewed) >= 4) == (True, True)
    lease.release()
    assert lease._thread.stop(60)


def test_the_kill_timer_is_set_at_each_renewal_and_cleared_at_the_end(world: World) -> None:
    timer: list[float] = []
    lease = take(world.store, "story", "me", clock=world.clock, terms=TERMS)
    lease.arm(timer.append)
    world.let_pass(100)
    lease.renew()
    lease.release()
    lease.release()
    with pytest.raises(LeaseLost):
        lease.renew()  # as by the thread, which was under way
    assert timer == [117.5, 117.5, 0.0]
