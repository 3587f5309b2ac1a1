"""Fallback stores: what one store refuses the next one takes, and in the end the first has everything."""

from collections.abc import Callable
from typing import Any

import pytest

from retake.clock import FakeClock
from retake.errors import ErrorClass, LeaseLost, RobotError, Stopped, StorageError
from retake.retrying.state_store import MemoryStateStore, StateStore
from retake.robots.fallback import NoStore, Stores

Open = Callable[[], StateStore]


class Place:
    """A store that is there or away."""

    def __init__(self, name: str) -> None:
        self.name, self.away, self.kept = name, False, dict[str, Any]()
        self.log: list[tuple[str, Any]] = []

    def put(self, key: str, value: Any) -> None:
        if self.away:
            raise RobotError("ERR_TEMPORARY_METRICS_STORAGE_UNAVAILABLE", f"{self.name} is away")
        self.kept[key] = value
        self.log.append((key, value))


def three() -> list[Place]:
    return [Place(name) for name in ("InfluxDB", "Redis", "JSON files")]


def over(places: list[Place], states: StateStore, clock: FakeClock) -> Stores:
    return Stores([(place.name, place.put) for place in places], buffer=states, clock=clock)


def test_the_first_store_that_takes_it_has_it(opened: Open, clock: FakeClock) -> None:
    """A first store, a second one, and emergency files (docs/protocol.md, NR.NSI.9)."""
    places = three()
    stores = over(places, opened(), clock)
    for number, place in enumerate(places):
        assert stores.put(f"m{number}", number) == place.name
        place.away = True
    assert [place.kept for place in places] == [{"m0": 0}, {"m1": 1}, {"m2": 2}]


def test_what_a_lower_store_took_goes_back_to_the_first_in_order(opened: Open, clock: FakeClock) -> None:
    """What lower stores took is brought back automatically (docs/protocol.md, NR.NSI.9)."""
    first, second, third = places = three()
    first.away = True
    for key, value in (("m1", 1), ("m2", {"made": 2})):
        assert over(places, opened(), clock).put(key, value) == "Redis"
    second.away = True
    assert over(places, opened(), clock).put("m3", 3) == "JSON files"
    assert over(places, opened(), clock).sync() == 0
    first.away = False
    assert over(places, opened(), clock).put("m4", 4) == "InfluxDB"
    assert over(places, opened(), clock).sync() == 3
    assert over(places, opened(), clock).sync() == 0
    assert first.log == [("m4", 4), ("m1", 1), ("m2", {"made": 2}), ("m3", 3)]
    assert third.kept == {"m3": 3}


def test_the_newest_value_of_each_key_comes_back(opened: Open, clock: FakeClock) -> None:
    first, *_ = places = three()
    stores = over(places, opened(), clock)
    first.away = True
    for value in (1, 2):
        stores.put("a", value)
        stores.put("b", value)
    first.away = False
    assert stores.put("b", 3) == "InfluxDB"
    assert first.kept == {"b": 3}
    assert stores.sync() == 2
    assert first.kept == {"a": 2, "b": 3}
    stores.put("a", 4)
    assert stores.sync() == 0
    assert first.kept == {"a": 4, "b": 3}


def test_it_stops_where_the_first_store_fails_again(opened: Open, clock: FakeClock) -> None:
    first, *_ = places = three()
    stores = over(places, opened(), clock)
    first.away = True
    for key in "abc":
        stores.put(key, key)
    first.away = False
    take = first.put

    def twice(key: str, value: Any) -> None:
        take(key, value)
        first.away = len(first.log) == 2

    first.put = twice
    assert over(places, opened(), clock).sync() == 2
    first.away = False
    assert over(places, opened(), clock).sync() == 1
    assert [key for key, _ in first.log] == ["a", "b", "c"]


def test_what_no_store_takes_is_buffered_and_told(opened: Open, clock: FakeClock) -> None:
    """Metrics are buffered until a store is back (docs/protocol.md, NR.NSI.9)."""
    places = three()
    for place in places:
        place.away = True
    with pytest.raises(NoStore, match=r"a is only buffered; no store took it \(InfluxDB: InfluxDB is away; ") as caught:
        over(places, opened(), clock).put("a", 1)
    assert (caught.value.code, caught.value.error_class) == ("ERR_TEMPORARY_NO_STORE", ErrorClass.TEMPORARY)
    places[0].away = False
    assert over(places, opened(), clock).sync() == 1
    assert places[0].kept == {"a": 1}


def test_a_value_that_comes_meanwhile_is_not_lost_to_an_older_one(opened: Open, clock: FakeClock) -> None:
    first, *_ = places = three()
    first.away = True
    over(places, opened(), clock).put("a", "old")
    first.away = False
    take = first.put

    def meanwhile(key: str, value: Any) -> None:
        if value == "old":
            assert over(places, opened(), clock).put("a", "new") == "InfluxDB"
        take(key, value)  # the old one comes last

    first.put = meanwhile
    over(places, opened(), clock).sync()
    over(places, opened(), clock).sync()
    assert first.kept == {"a": "new"}


@pytest.mark.parametrize("error", [OSError("https://example.org/?token=secret"), ValueError("a bug in the client")])
def test_any_error_means_that_a_store_does_not_take_it(clock: FakeClock, error: Exception, logged: list[str]) -> None:
    second = Place("Redis")

    def refuse(key: str, value: Any) -> None:
        raise error

    stores = Stores([("InfluxDB", refuse), ("Redis", second.put)], buffer=MemoryStateStore(), clock=clock)
    assert stores.put("a", 1) == "Redis"
    assert logged == [f"InfluxDB did not take a: {type(error).__name__}"]


@pytest.mark.parametrize("error", [Stopped("asked to"), LeaseLost("taken over")])
def test_a_request_to_stop_is_raised(clock: FakeClock, error: Exception) -> None:
    def stop(key: str, value: Any) -> None:
        raise error

    second = Place("Redis")
    stores = Stores([("InfluxDB", stop), ("Redis", second.put)], buffer=MemoryStateStore(), clock=clock)
    with pytest.raises(type(error)):
        stores.put("a", 1)
    assert second.kept == {}


def test_a_store_alone_has_the_buffer_to_fall_back_on(clock: FakeClock) -> None:
    place = Place("kpi/")
    place.away = True
    stores = over([place], MemoryStateStore(), clock)
    with pytest.raises(NoStore):
        stores.put("a", 1)
    place.away = False
    assert (stores.sync(), place.kept) == (1, {"a": 1})
    with pytest.raises(ValueError, match="there is no store"):
        over([], MemoryStateStore(), clock)


def test_a_buffer_that_is_away_is_reported_before_a_lower_store_is_tried(clock: FakeClock) -> None:
    class Full(MemoryStateStore):
        def change(self, name: str, change: Any) -> Any:
            raise StorageError("the buffer is full")

    first, second, _ = places = three()
    first.away = True
    with pytest.raises(StorageError, match="the buffer is full"):
        over(places, Full(), clock).put("a", 1)
    assert second.kept == {}
    with pytest.raises(ValueError, match="not JSON"):
        over(places, MemoryStateStore(), clock).put("a", object())
