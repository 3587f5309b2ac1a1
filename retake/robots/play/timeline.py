"""What happens in a play, with the time of each event: attempts, waits, the breaker, actions, and the alerts they
raise."""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from retake.alerts.message import Ending, Message, Sent
from retake.alerts.settings import AlertChannel, AlertSettings
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock
from retake.plural import count
from retake.retrying.breaker import Breaker, BreakerState
from retake.retrying.policy import LONGEST_S, RetryPolicy
from retake.robots.action_sink import Record, RecordingSink
from retake.robots.alert_sink import AlertPlace, AlertSink
from retake.robots.follow_ups import FollowUp
from retake.robots.wording import action_in_words, length

BEGINS = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
"""The time at which every play begins: a Monday, in the working hours of a default ALERTS section."""

CACHE_AGE = timedelta(hours=1)
"""How long before that the robot obtained the result in its cache."""


class PlayedEvent(NamedTuple):
    """One thing that happened."""

    at_s: float  # seconds since the play began
    what: str
    attempt: int | None = None  # the attempt that ended here
    error_code: str | None = None  # the code with which it failed
    wait_s: float | None = None  # the wait that begins here
    action: str | None = None  # the action of the policy that follows


class PlayTimeline:
    """The clock of a play, and what happened. Each wait on the clock is an event; nothing really waits."""

    def __init__(self, retry: RetryPolicy) -> None:
        self.events: list[PlayedEvent] = []
        self._retry = retry
        self._clock = FakeClock(BEGINS - CACHE_AGE)
        self._piece = 0  # index of the event with which the current piece of work began
        self._announced: str | None = None  # the reason for the next wait; None: no wait was announced
        self._breaker: Breaker | None = None
        self._state = BreakerState()

    def now(self) -> datetime:
        return self._clock.now()

    def sleep(self, seconds: float) -> None:
        """Advance the clock and add the wait as an event. An unannounced wait is for an open breaker or a lock."""
        self.check_breaker()
        why = self._announced
        if why is None:
            why = f": the breaker {self._breaker.name} is open" if self._breaker and self._state.open_until else ""
        self._announced = None
        if seconds > 0:
            self.add(f"waits {length(round(seconds, 2))}{why}", wait_s=round(seconds, 3))
        self._clock.sleep(seconds)

    def until(self, moment: datetime) -> None:
        """Advance the clock while no robot is waiting."""
        self._clock.sleep((moment - self.now()).total_seconds())

    def add(self, what: str, **fields: Any) -> None:
        """Add an event; `fields` are those of PlayedEvent."""
        at_s = round((self.now() - BEGINS).total_seconds(), 3)
        self.events.append(PlayedEvent(at_s, what, **fields))

    def begin(self, what: str) -> None:
        """Add the beginning of a piece of work."""
        self._piece = len(self.events)
        self.add(what)

    def failed(self, attempt: int, code: str, what: str) -> None:
        """Add a failed attempt."""
        self.add(what, attempt=attempt, error_code=code)

    def failed_as_recorded(self, record: Record) -> None:
        """Add the failed attempt in this record, unless it was added when it happened."""
        attempt, code = record["details"]["retry_count"] + 1, str(record["error_code"])
        ended = next((it for it in reversed(self.events[self._piece :]) if it.attempt is not None), None)
        if ended is None or (ended.attempt, ended.error_code) != (attempt, code):
            self.failed(attempt, code, f"fails: {record['message']}")

    def repeated(self, record: Record) -> None:
        """Add that the attempt in this record is retried, and when. A wait is added only when it begins."""
        self.failed_as_recorded(record)
        self.check_breaker()
        delay_s = record["recovery_actions"][0]["delay_seconds"]
        if delay_s:
            retry = self._retry
            usual_s = min(retry.backoff.delay_s(record["details"]["retry_count"] + 1), retry.ceiling_s or LONGEST_S)
            self._announced = f" ({usual_s:g} s ± {retry.jitter_percent:g} %)" if retry.jitter_percent else ""
        else:
            self.add("tries again at once", wait_s=0.0)

    def watch(self, breaker: Breaker) -> None:
        """Add an event each time this breaker opens, half-opens or closes from now on."""
        self._breaker = breaker

    def check_breaker(self) -> None:
        """Add an event if the breaker has changed."""
        if self._breaker is None:
            return
        before, self._state = self._state, self._breaker.state()
        name, policy, now = self._breaker.name, self._breaker.policy, self._state
        if now.open_until and now.open_until != before.open_until:
            why = (
                "the probe failed"
                if before.open_until
                else f"{count(policy.failures, 'failure')} within {length(policy.window_s)}"
            )
            self.add(f"the breaker {name} opens for {length(policy.open_s)}: {why}")
        elif now.probe and not before.probe:
            self.add(f"the breaker {name} is half-open: the next call is its probe")
        elif before.open_until and not now.open_until:
            self.add(f"the breaker {name} closes")


class PlaySink:
    """Adds to the timeline every action that follows a failure, and the messages that alerts would send."""

    def __init__(self, timeline: PlayTimeline, settings: AlertSettings) -> None:
        self._timeline, self._channels = timeline, [it.name for it in settings.channels]
        self._sent: list[tuple[AlertChannel, Message]] = []
        secrets = {it.env: "a secret of the play" for it in settings.channels}
        place = AlertPlace(MemoryBucket(), settings, _SenderClock(timeline), secrets, self._send)
        self._alerts = AlertSink(place, RecordingSink())

    def carry_out(self, action: FollowUp, record: Record) -> None:
        """Add what the action does, and the alert it raises."""
        if "statistics" not in record["details"]["system_context"]:  # the calls of a batch have been added already
            self._timeline.failed_as_recorded(record)
        self._timeline.check_breaker()
        self._timeline.add(action_in_words(action), action=action.do.value)
        self._alerts.carry_out(action, record)
        self._add_sent()

    def recovered(self, robot_id: str) -> None:
        """Add which channels are told that an alert is over."""
        self._timeline.check_breaker()
        self._alerts.recovered(robot_id)
        self._add_sent()

    def _send(
        self, channel: AlertChannel, secret: str, message: Message, seconds: float, done: tuple[str, ...]
    ) -> Sent:
        self._sent.append((channel, message))
        return Sent(Ending.DELIVERED)

    def _add_sent(self) -> None:
        self._alerts.wait(10)
        sent, self._sent = sorted(self._sent, key=lambda it: self._channels.index(it[0].name)), []
        for channel, message in sent:
            kind = f" ({channel.kind})" if channel.kind != channel.name else ""
            self._timeline.add(f"alert to {channel.name}{kind}: {message.headline}")


class _SenderClock:
    """The clock of the threads that send alerts, which must not advance the clock of the play."""

    def __init__(self, timeline: PlayTimeline) -> None:
        self._timeline = timeline

    def now(self) -> datetime:
        return self._timeline.now()

    def sleep(self, seconds: float) -> None:
        """Return at once."""
