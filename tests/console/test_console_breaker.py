"""`breaker show|probe|reset`: every state of a breaker against every command."""

from datetime import timedelta

import pytest
from acting_world import STATES, World, act, papers

from retake.bucket import ABSENT
from retake.console.breaker import probe, reset, show_breakers
from retake.errors import Code, PollFailed, StateError
from retake.operations.port import Refusal
from retake.retrying.breaker import Breaker, BreakerOpen, BreakerState, Permit, breakers_of

ERROR = PollFailed(Code.UNAVAILABLE, "HTTP 503")


def breaker(world: World, name: str = "midjourney") -> Breaker:
    return Breaker(name, breakers_of(world.bucket, world.clock), clock=world.clock, owner="host-a:17")


def failing(world: World, times: int) -> World:
    for _ in range(times):
        breaker(world).failed(Permit("x", probing=False), ERROR)
    return world


def closed() -> World:
    return failing(STATES["no generation"](), 3)


def opened() -> World:
    return failing(STATES["no generation"](), 10)


def half_open() -> World:
    world = opened()
    world.later(seconds=61)
    return world


def probing() -> World:
    world = half_open()
    breaker(world).allow()
    return world


def probe_ordered() -> World:
    world = opened()
    breaker(world).probe()
    return world


def calm() -> World:
    """Return a closed breaker whose failures are long past."""
    world = closed()
    world.later(minutes=10)
    return world


PHASES = {
    # what show says, then what probe and reset say when they refuse
    closed: ("closed: calls are let through", "is closed: every call is let through", ""),
    calm: ("closed: calls are let through", "is closed: every call is let through", "nothing to reset"),
    opened: ("open: no call is made", "", ""),
    probe_ordered: ("open, and the next call is let through: the operator", "anyway: a probe is ordered", ""),
    half_open: ("half-open: the next call is let through, alone", "anyway: it is due", ""),
    probing: ("half-open: host-a:17 is trying", "host-a:17 is already trying; wait .* or reset midjourney", ""),
}


@pytest.mark.parametrize("make", PHASES)
def test_each_state_is_reported_in_words_and_changed_only_where_that_makes_sense(make: object) -> None:
    words, no_probe, no_reset = PHASES[make]  # type: ignore[index]
    world = make()  # type: ignore[operator]
    [shown] = act(show_breakers, world, name="midjourney").document["breakers"]
    assert shown["in_words"].startswith(words)
    assert words in papers(act(show_breakers, world, name=None))
    for command, refusal in ((probe, no_probe), (reset, no_reset)):
        world = make()  # type: ignore[operator]
        before = world.everything()
        if refusal:
            with pytest.raises(Refusal, match=refusal):
                act(command, world, name="midjourney")
            assert world.everything() == before, "a refusal changes nothing"
        else:
            answer = act(command, world, name="midjourney")
            assert answer.exit_code == 0
            assert papers(answer).startswith("Done: ")


def test_failures_in_the_window_are_counted() -> None:
    text = papers(act(show_breakers, closed(), name=None))
    assert "3 within 5 min; 10 open it, the last one 0 s ago" in text
    assert "A UNAVAILABLE" in text
    assert "0 within 5 min; 10 open it" in papers(act(show_breakers, calm(), name=None))


def test_until_when_it_is_open_is_reported() -> None:
    answer = act(show_breakers, opened(), name="midjourney")
    assert "00:01:00 (in 1 min)" in papers(answer)
    [shown] = answer.document["breakers"]
    assert (shown["opened_at"], shown["open_until"]) == ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z")


def test_a_probe_lets_exactly_one_call_through() -> None:
    world = opened()
    act(probe, world, name="midjourney")
    permit = breaker(world).allow()
    assert permit.probing
    with pytest.raises(BreakerOpen):
        breaker(world).allow()
    breaker(world).succeeded(permit)
    assert not breaker(world).allow().probing


def test_a_probe_of_one_that_another_operator_resets_meanwhile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world, order = opened(), Breaker.probe

    def late(it: Breaker) -> BreakerState:
        breaker(world).reset()
        return order(it)

    monkeypatch.setattr(Breaker, "probe", late)
    with pytest.raises(Refusal, match="the breaker midjourney has closed meanwhile: every call is let through"):
        act(probe, world, name="midjourney")
    assert breaker(world).state() == BreakerState()


def test_a_probe_that_fails_opens_it_anew() -> None:
    world = opened()
    act(probe, world, name="midjourney")
    world.later(seconds=30)
    breaker(world).failed(breaker(world).allow(), ERROR)
    state = breaker(world).state()
    assert state.open_until == world.clock.now() + timedelta(seconds=60)


def test_a_reset_forgets_what_failed() -> None:
    world = opened()
    act(reset, world, name="midjourney")
    assert not breaker(world).allow().probing
    failing(world, 9)
    breaker(world).allow()


@pytest.mark.parametrize("data", [b"no JSON", b"[]", b'{"failures": 3}'])
def test_an_invalid_breaker_hides_no_other(data: bytes) -> None:
    world = opened()
    world.bucket.write("breakers/runway.json", data, ABSENT)
    answer = act(show_breakers, world, name=None)
    midjourney, runway = answer.document["breakers"]
    assert (midjourney["state"], runway["state"]) == ("open", "unreadable")
    assert "unreadable, and no call is made: breakers/runway.json" in papers(answer)
    assert "fix it or remove it" in runway["in_words"]
    for command in (show_breakers, probe, reset):
        with pytest.raises(StateError, match="fix it or remove it"):
            act(command, world, name="runway")


@pytest.mark.parametrize("command", [show_breakers, probe, reset])
@pytest.mark.parametrize("name", ["runway", "../config/config_gen", "a/b", "x" * 300, "é"])
def test_a_breaker_that_is_not_on_record_is_reported_with_those_that_are(command: object, name: str) -> None:
    world = opened()
    before = world.everything()
    with pytest.raises(Refusal, match="there are: midjourney"):
        act(command, world, name=name)  # type: ignore[arg-type]
    assert world.everything() == before


def test_without_any_breaker_there_is_nothing_to_show() -> None:
    answer = act(show_breakers, STATES["no generation"](), name=None)
    assert (answer.document, answer.exit_code) == ({"breakers": []}, 0)


def test_a_vendors_breaker_has_the_numbers_of_the_settings() -> None:
    world = closed()
    world.settings = world.settings._replace(breaker=world.settings.breaker._replace(failures=4, window_seconds=120.0))
    [shown] = act(show_breakers, world, name="midjourney").document["breakers"]
    assert (shown["failures"], shown["opens_at_failures"], shown["window_s"]) == (3, 4, 120.0)


def test_a_robots_breaker_has_the_numbers_of_its_policy() -> None:
    from retake.robots.policies import load_policies

    [named] = {policy.breaker for policy in load_policies().values() if policy.breaker}
    world = STATES["no generation"]()
    breaker(world, named.name).failed(Permit("x", probing=False), ERROR)
    [shown] = act(show_breakers, world, name=named.name).document["breakers"]
    assert (shown["opens_at_failures"], shown["window_s"]) == (named.policy.failures, named.policy.window_s)
