"""The circuit breaker as pure data: what leads from one state to another, and what never happens."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.errors import Code, CodedError, OutcomeUnknown, PollFailed, Refused, RobotError, TaskFailed
from retake.retrying.breaker import (
    BreakerOpen,
    BreakerPolicy,
    BreakerRefusal,
    BreakerState,
    Phase,
    Probe,
    allow,
    decoded,
    encoded,
    failed,
    probe_ordered,
    released,
    succeeded,
    within,
)
from retake.retrying.policy import LONGEST_S, RetryIf

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PROTOCOL = BreakerPolicy()
FAILURE = RobotError("ERR_TEMPORARY_API_TIMEOUT", "no answer")


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def after_failures(*seconds: float, policy: BreakerPolicy = PROTOCOL) -> BreakerState:
    state = BreakerState()
    for moment in seconds:
        state = failed(state, policy, FAILURE, at(moment), "somebody")
    return state


def opened(policy: BreakerPolicy = PROTOCOL) -> BreakerState:
    """Return a breaker opened at NOW."""
    return after_failures(*[0] * policy.failures, policy=policy)


# --- it opens ---------------------------------------------------------------------------------------------------------


def test_the_numbers_match_the_protocol() -> None:
    assert (PROTOCOL.failures, PROTOCOL.window_s, PROTOCOL.open_s) == (10, 300, 60)


def test_ten_failures_within_five_minutes_open_it_for_a_minute() -> None:
    nine = after_failures(*range(0, 270, 30))
    assert nine.phase(at(270)) is Phase.CLOSED
    ten = failed(nine, PROTOCOL, FAILURE, at(299), "me")
    assert (ten.phase(at(299)), ten.open_until, ten.opened_at) == (Phase.OPEN, at(359), at(299))
    assert ten.code == FAILURE.code
    assert (ten.phase(at(358.9)), ten.phase(at(359))) == (Phase.OPEN, Phase.HALF_OPEN)


def test_failures_that_are_older_than_five_minutes_count_no_more() -> None:
    state = after_failures(0, *range(60, 300, 30), 300)
    assert state.phase(at(300)) is Phase.CLOSED
    assert len(within(state, PROTOCOL, at(300))) == 9
    assert failed(state, PROTOCOL, FAILURE, at(301), "me").phase(at(301)) is Phase.OPEN


def test_successes_in_between_take_no_failure_back() -> None:
    state = after_failures(*range(9))
    assert succeeded(state, "me") == state


@given(st.lists(st.integers(0, 400), max_size=60).map(sorted), st.integers(1, 12))
def test_it_opens_at_the_first_failure_that_makes_enough_within_the_window(moments: list[int], enough: int) -> None:
    policy, state = BreakerPolicy(failures=enough, window_s=100), BreakerState()
    for number, moment in enumerate(moments):
        state = failed(state, policy, FAILURE, at(moment), "me")
        recent = [it for it in moments[: number + 1] if it > moment - 100]
        assert (state.open_until is not None) == (len(recent) >= enough)
        assert len(state.failures) < enough
        if state.open_until:
            return


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (RobotError("ERR_TEMPORARY_API_TIMEOUT", "x"), True),
        (Refused(Code.UNAVAILABLE, "x"), True),
        (Refused(Code.RATE_LIMIT, "x"), True),
        (OutcomeUnknown(Code.TIMEOUT, "x"), True),
        (PollFailed(Code.NETWORK, "x"), True),
        (TaskFailed(Code.TASK_FAILED, "x"), True),
        (Refused(Code.REJECTED, "x"), False),
        (RobotError("ERR_BUSINESS_TECH_DOC_NOT_FOUND", "x"), False),
        (Refused(Code.UNAUTHORIZED, "x"), False),
        (Refused(Code.OUT_OF_CREDIT, "x"), False),
        (RobotError("ERR_CRITICAL_DATA_CORRUPTION", "x"), False),
        (PollFailed(Code.MEDIA, "x"), False),
        (PollFailed(Code.SCRIPT_DIED, "x"), False),
        (BreakerOpen("another one", 5), False),
    ],
    ids=lambda it: f"{type(it).__name__}-{it.code}" if isinstance(it, CodedError) else "",
)
def test_only_what_tells_of_the_other_sides_health_counts(error: CodedError, counts: bool) -> None:
    state = failed(BreakerState(), PROTOCOL, error, NOW, "me")
    assert (state != BreakerState()) == counts


def test_a_policy_may_count_other_codes() -> None:
    policy = PROTOCOL._replace(counts=RetryIf(codes=frozenset({"ERR_CRITICAL_SERVICE_DOWN"})))
    assert failed(BreakerState(), policy, RobotError("ERR_CRITICAL_SERVICE_DOWN", "x"), NOW, "me").failures == (NOW,)


# --- while it is open -------------------------------------------------------------------------------------------------


def test_what_has_no_end_is_a_year() -> None:
    endless = BreakerPolicy(failures=2, window_s=math.inf, open_s=math.inf, probe_s=math.inf)
    state = opened(endless)
    assert state.open_until == at(LONGEST_S)
    state, refusal = allow(state, endless, at(LONGEST_S), "me")
    assert (refusal, state.probe) == (None, Probe("me", at(LONGEST_S)))
    assert allow(state, endless, at(LONGEST_S + 1), "you")[1]


def test_closed_it_lets_everybody_through_and_nothing_is_to_be_kept() -> None:
    state = after_failures(0, 1)
    assert allow(state, PROTOCOL, at(2), "me") == (state, None)


def test_open_it_refuses_and_says_until_when() -> None:
    state = opened()
    assert allow(state, PROTOCOL, at(20), "me") == (state, BreakerRefusal("open until 2026-01-01T00:01:00Z", 40))


def test_half_open_it_lets_one_through_and_refuses_the_others() -> None:
    probing, refusal = allow(opened(), PROTOCOL, at(60), "first")
    assert (refusal, probing.probe) == (None, Probe("first", at(60)))
    same, refusal = allow(probing, PROTOCOL, at(61), "second")
    assert same == probing
    assert refusal == BreakerRefusal("first has been trying since 2026-01-01T00:01:00Z", 5)


def test_a_probe_that_succeeds_closes_it_as_if_nothing_had_been() -> None:
    probing, _ = allow(opened(), PROTOCOL, at(60), "first")
    assert succeeded(probing, "first") == BreakerState()


def test_a_probe_that_fails_opens_it_for_another_minute() -> None:
    probing, _ = allow(opened(), PROTOCOL, at(60), "first")
    again = failed(probing, PROTOCOL, FAILURE, at(75), "first")
    assert again == BreakerState(open_until=at(135), opened_at=NOW, code=FAILURE.code)


@pytest.mark.parametrize("code", [Code.REJECTED, Code.UNAUTHORIZED])
def test_a_probe_that_ends_with_an_error_that_says_nothing_leaves_the_probe_to_the_next(code: Code) -> None:
    probing, _ = allow(opened(), PROTOCOL, at(60), "first")
    after = failed(probing, PROTOCOL, Refused(code, "no"), at(61), "first")
    assert (after.phase(at(61)), after.probe) == (Phase.HALF_OPEN, None)
    assert allow(after, PROTOCOL, at(61), "second")[1] is None


def test_a_probe_that_dies_runs_out() -> None:
    probing, _ = allow(opened(), PROTOCOL, at(60), "dead")
    assert allow(probing, PROTOCOL, at(60 + 899), "next")[1] == BreakerRefusal(
        "dead has been trying since 2026-01-01T00:01:00Z", 1
    )
    again, none = allow(probing, PROTOCOL, at(60 + 900), "next")
    assert (none, again.probe) == (None, Probe("next", at(960)))


@pytest.mark.parametrize("end", ["failed", "succeeded", "released"])
def test_whoever_began_before_it_opened_or_lost_the_probe_changes_nothing(end: str) -> None:
    probing, _ = allow(opened(), PROTOCOL, at(60), "first")
    for state in (opened(), probing):
        ended = {
            "failed": failed(state, PROTOCOL, FAILURE, at(70), "late"),
            "succeeded": succeeded(state, "late"),
            "released": released(state, "late"),
        }[end]
        assert ended == state


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_an_ordered_probe_lets_exactly_one_call_through_while_it_is_open() -> None:
    ordered = probe_ordered(opened())
    probing, refusal = allow(ordered, PROTOCOL, at(10), "first")
    assert refusal is None
    assert allow(probing, PROTOCOL, at(11), "second")[1] is not None
    assert failed(probing, PROTOCOL, FAILURE, at(12), "first").open_until == at(72)
    assert succeeded(probing, "first") == BreakerState()


def test_an_ordered_probe_that_says_nothing_is_used_up() -> None:
    probing, _ = allow(probe_ordered(opened()), PROTOCOL, at(10), "first")
    after = released(probing, "first")
    assert after == opened()
    assert allow(after, PROTOCOL, at(11), "second")[1] is not None


def test_closed_there_is_nothing_to_probe() -> None:
    assert probe_ordered(after_failures(0)) == after_failures(0)


# --- as a document ----------------------------------------------------------------------------------------------------

moments = st.datetimes(timezones=st.just(UTC))
states = st.builds(
    BreakerState,
    failures=st.lists(moments, max_size=9).map(tuple),
    open_until=st.none() | moments,
    opened_at=st.none() | moments,
    code=st.none() | st.text(),
    probe=st.none() | st.builds(Probe, st.text(), moments),
    probe_ordered=st.booleans(),
)


@given(states)
def test_a_document_says_all_of_a_state(state: BreakerState) -> None:
    assert decoded(encoded(state)) == state


def test_no_document_and_an_empty_one_are_a_closed_breaker() -> None:
    assert decoded(None) == decoded({}) == BreakerState()


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"failures": "x"}, "failures: is not a list"),
        ({"failures": [1]}, "failures: 1 is not a time"),
        ({"open_until": "soon"}, "open_until: 'soon' is not a time"),
        ({"opened_at": {}}, "opened_at: {} is not a time"),
        ({"code": 5}, "code: is not text"),
        ({"probe": "me"}, 'probe: is not {"who", "since"}'),
        ({"probe": {"who": 1}}, 'probe: is not {"who", "since"}'),
        ({"probe": {"who": "me"}}, "probe.since: None is not a time"),
        ({"probe_ordered": "yes"}, "probe_ordered: is neither true nor false"),
    ],
)
def test_an_invalid_document_is_reported_by_its_field(document: dict[str, object], fault: str) -> None:
    with pytest.raises(ValueError) as raised:
        decoded(document)
    assert str(raised.value) == fault


# --- whatever happens -------------------------------------------------------------------------------------------------

NAMES = st.sampled_from("abc")
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["call", "fail", "succeed", "reject", "die", "order", "reset"]), NAMES, st.integers(0, 90)
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_whatever_happens_there_is_one_probe_at_most_and_it_never_stays_open_for_good(
    operations: list[tuple[str, str, int]],
) -> None:
    """Three callers have at most one call each under way; some of them die."""
    policy = BreakerPolicy(failures=2, window_s=100, open_s=60, probe_s=120)
    state, clock, calls = BreakerState(), 0, 0
    under_way: dict[str, tuple[str, int | None]] = {}  # caller: permit, and since when it probes
    for what, who, seconds in operations:
        clock += seconds
        now, (permit, _) = at(clock), under_way.get(who, ("", None))
        phase = state.phase(now)
        if what == "call":
            calls += 1
            new, refusal = allow(state, policy, now, f"{who}{calls}")
            if refusal is None:
                under_way[who] = (f"{who}{calls}", clock if new != state else None)
            if phase is not Phase.CLOSED and refusal is None:
                probes = [since for _, since in under_way.values() if since is not None and clock - since < 120]
                live = new.probe is not None and new.probe.who == under_way[who][0]
                assert live
                assert len(probes) == 1
                assert phase is Phase.HALF_OPEN or state.probe_ordered
            if refusal:
                assert new == state
                assert 0 < refusal.wait_s <= 60
            state = new
        elif what in ("fail", "succeed", "reject") and permit:
            del under_way[who]
            if what == "succeed":
                state = succeeded(state, permit)
            else:
                state = failed(state, policy, FAILURE if what == "fail" else Refused(Code.REJECTED, "x"), now, permit)
        elif what == "die":
            under_way.pop(who, None)
        elif what == "order":
            state = probe_ordered(state)
        elif what == "reset":
            state, under_way = BreakerState(), {}
        assert decoded(encoded(state)) == state
        assert state.open_until is None or state.open_until <= now + timedelta(seconds=60)
    assert allow(state, policy, at(clock + 120), "the next")[1] is None
