"""The cache: for how long, for which errors, and that it never prevents a result."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from protocol_robots import POLICIES, Workshop

from retake.clock import FakeClock
from retake.errors import StateError, StorageError
from retake.retrying.state_store import MemoryStateStore, StateStore
from retake.robots.cache import Cache
from retake.robots.follow_ups import Do

Open = Callable[[], StateStore]
SLOW = "ERR_TEMPORARY_API_TIMEOUT"
A_DAY = 24 * 3600


def test_a_value_is_there_for_a_day_with_its_age(opened: Open, clock: FakeClock) -> None:
    """Successful results are kept for 24 hours (docs/protocol.md, NR.NSI.2)."""
    cache = Cache(opened(), clock)
    assert cache.get("document-7") is None
    cache.put("document-7", {"length": 12})
    for age in (0, 1, A_DAY - 1):
        clock.moment = FakeClock().now()
        clock.sleep(age)
        assert Cache(opened(), clock).get("document-7") == ({"length": 12}, age)
    clock.sleep(1)
    assert Cache(opened(), clock).get("document-7") is None
    assert Cache(opened(), clock, ttl_s=A_DAY + 1).get("document-7") == ({"length": 12}, A_DAY)
    assert cache.get("document-8") is None


def test_the_last_value_counts_as_it_was(opened: Open, clock: FakeClock) -> None:
    cache, value = Cache(opened(), clock), {"lengths": [1]}
    cache.put("a", None)
    assert cache.get("a") == (None, 0)
    cache.put("a", value)
    value["lengths"].append(2)
    assert cache.get("a") == ({"lengths": [1]}, 0)
    with pytest.raises(ValueError, match="not JSON"):
        cache.put("a", {"a": object()})
    assert cache.get("a") == ({"lengths": [1]}, 0)


def test_a_clock_that_was_set_back_makes_no_negative_age(clock: FakeClock) -> None:
    states = MemoryStateStore()
    later = FakeClock()
    later.sleep(60)
    Cache(states, later).put("a", 1)
    assert Cache(states, clock).get("a") == (1, 0)


def test_a_value_from_a_clock_far_ahead_is_ignored(clock: FakeClock) -> None:
    states = MemoryStateStore()
    later = FakeClock()
    later.sleep(A_DAY)
    Cache(states, later).put("a", 1)
    assert Cache(states, clock).get("a") is None


@pytest.mark.parametrize("key", ["a/b", "", "..", "~a", "x" * 400])
def test_any_text_is_a_key(opened: Open, clock: FakeClock, key: str) -> None:
    cache = Cache(opened(), clock)
    cache.put(key, 1)
    cache.put(f"{key}x", 2)
    assert cache.get(key) == (1, 0)


def test_an_invalid_document_is_reported(clock: FakeClock) -> None:
    states = MemoryStateStore()
    states.change("cache.a", lambda _: ({"value": 1, "at": "noon"}, None))
    with pytest.raises(StateError, match="left as it is"):
        Cache(states, clock).get("a")


# --- of robots ------------------------------------------------------------------------------------------------------


def fetching(states: StateStore, clock: FakeClock, code: str | None, robot: str = "NR.NSI.2") -> tuple[Workshop, Any]:
    shop = Workshop(POLICIES[robot]._replace(breaker=None), states=states, clock=clock)
    work = shop.failing(code or SLOW, times=None if code else 0)
    return shop, shop.robot.run(work, correlation_id="one", cache_key="document-7")


def test_a_cached_result_replaces_an_unavailable_one_and_the_failure_is_reported(
    opened: Open, clock: FakeClock
) -> None:
    """A cached result is used, for reading only, while the service is away (docs/protocol.md, NR.NSI.2)."""
    _, result = fetching(opened(), clock, None)
    assert (result.value, result.done, result.cached_age_s) == ("result", True, None)
    clock.sleep(3600)
    shop, result = fetching(opened(), clock, SLOW)
    assert (result.value, result.cached_age_s, result.attempts) == ("result", 3612, 6)
    assert (result.done, result.failures[0].error.code) == (False, SLOW)
    assert shop.sink.done == [Do.DEFERRED_RETRY, Do.JOURNAL, Do.INCIDENT]


@pytest.mark.parametrize("code", ["ERR_BUSINESS_TECH_DOC_NOT_FOUND", "ERR_CRITICAL_DATA_CORRUPTION"])
def test_after_an_error_of_another_class_there_is_no_cached_value(clock: FakeClock, code: str) -> None:
    states = MemoryStateStore()
    fetching(states, clock, None)
    _, result = fetching(states, clock, code)
    assert (result.value, result.cached_age_s, result.failures[0].error.code) == (None, None, code)


def test_a_value_of_the_day_before_is_ignored(clock: FakeClock) -> None:
    states = MemoryStateStore()
    fetching(states, clock, None)
    clock.sleep(A_DAY - 12)
    _, result = fetching(states, clock, SLOW)
    assert (result.value, result.cached_age_s, result.done) == (None, None, False)


def test_without_a_key_nothing_is_kept(clock: FakeClock) -> None:
    shop = Workshop("NR.NSI.2", states=(states := MemoryStateStore()), clock=clock)
    shop.robot.run(shop.failing(SLOW, times=0), correlation_id="one")
    assert states.names() == []


def test_a_key_that_is_not_text_is_refused_before_any_call(clock: FakeClock) -> None:
    """Noticed only after the work, it would lose the result."""
    shop, number = Workshop("NR.NSI.2", clock=clock), cast(Any, 7)
    with pytest.raises(ValueError, match="cache_key: 7 is not text"):
        shop.robot.run(shop.failing(SLOW, times=0), correlation_id="document-7", cache_key=number)
    assert shop.calls == []


def test_a_robot_without_a_section_keeps_what_it_is_told_to_for_a_day(clock: FakeClock) -> None:
    states, away = MemoryStateStore(), "ERR_TEMPORARY_APPIUS_UNAVAILABLE"
    fetching(states, clock, None, "NR.NSI.1")
    _, result = fetching(states, clock, away, "NR.NSI.1")
    assert (result.value, result.cached_age_s) == ("result", 42)


def test_the_times_and_classes_match_the_policy(clock: FakeClock) -> None:
    rules = POLICIES["NR.NSI.2"].cache
    assert rules
    assert (rules.ttl_s, rules.classes, rules.read_only) == (A_DAY, ("A",), True)
    policy = POLICIES["NR.NSI.2"]._replace(breaker=None, cache=rules._replace(ttl_s=13))
    states = MemoryStateStore()
    for age, value in ((0, "result"), (1, None)):
        shop = Workshop(policy, states=states, clock=clock)
        shop.robot.run(shop.failing(SLOW, times=0), correlation_id="one", cache_key="a")
        clock.sleep(age)
        failing = shop.robot.run(lambda call, shop=shop: shop.failing(SLOW)(call), correlation_id="one", cache_key="a")
        assert failing.value == value


class Away(MemoryStateStore):
    def read(self, name: str) -> Any:
        if name.startswith("cache."):
            raise StorageError("the store is away")
        return super().read(name)

    def change(self, name: str, change: Any) -> Any:
        if name.startswith("cache."):
            raise StorageError("the store is full")
        return super().change(name, change)


def test_a_cache_that_is_out_of_order_stands_in_no_results_way(clock: FakeClock, logged: list[str]) -> None:
    assert fetching(Away(), clock, None)[1].value == "result"
    _, result = fetching(Away(), clock, SLOW)
    assert (result.value, result.failures[0].error.code) == (None, SLOW)
    shop = Workshop("NR.NSI.2")
    assert shop.robot.run(lambda call: object, correlation_id="one", cache_key="a").value is object
    assert [line.partition(": ")[2].partition("renewed: ")[2][:12] for line in logged] == [
        "the store is",
        "the store is",
        "not JSON: Ob",
    ]
