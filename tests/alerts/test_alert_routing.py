"""Which channel takes what: levels, classes, hours, and messages that no channel takes."""

from datetime import UTC, datetime

import pytest
from alert_world import AlertWorld, alert_settings, condition

from retake.alerts.board import Alert
from retake.alerts.routing import takers

MAIL = {"kind": "email", "host": "mail.example", "from": "retake@mail.example", "to": ["ops@mail.example"]}
ALL_KINDS = {
    "slack": {"kind": "slack"},
    "mail": MAIL,
    "pager": {"kind": "pagerduty"},
    "sms": {"kind": "sms", "account": "AC1", "from": "+1", "to": ["+2"]},
    "chat": {"kind": "telegram", "chat_id": 7},
}
WORK, NIGHT, SUNDAY = (
    datetime(2026, 3, 2, 10, tzinfo=UTC),
    datetime(2026, 3, 2, 23, tzinfo=UTC),
    datetime(2026, 3, 1, 10, tzinfo=UTC),
)


def alert(level: str = "warning", error_class: str | None = None, key: str = "step_failing/imagine") -> Alert:
    at = "2026-03-02T10:00:00Z"
    return Alert("a", key, key.partition("/")[0], level, "it fails", 1, {}, at, at, error_class=error_class)


@pytest.mark.parametrize(
    ("level", "when", "expected"),
    [
        ("warning", WORK, "slack chat"),
        ("error", NIGHT, "slack chat"),
        ("critical", WORK, "pager chat"),
        ("critical", NIGHT, "sms chat"),
        ("critical", SUNDAY, "sms chat"),
    ],
)
def test_each_kind_takes_by_default_what_it_is_for(level: str, when: datetime, expected: str) -> None:
    assert " ".join(takers(alert(level), alert_settings(channels=ALL_KINDS), when)) == expected


def test_what_no_channel_takes_goes_to_all() -> None:
    settings = alert_settings(channels={name: it for name, it in ALL_KINDS.items() if name in ("mail", "pager", "sms")})
    assert takers(alert("warning"), settings, WORK) == ("mail", "pager", "sms")


def test_classes_choose_too() -> None:
    settings = alert_settings(channels={"slack": {"kind": "slack", "classes": ["B"]}, "web": {"kind": "webhook"}})
    assert takers(alert(error_class="B"), settings, WORK) == ("slack", "web")
    assert takers(alert(error_class="A"), settings, WORK) == ("web",)
    assert takers(alert(), settings, WORK) == ("web",)


def test_a_channel_is_not_told_that_it_refused() -> None:
    settings = alert_settings(channels={"one": {"kind": "webhook"}, "two": {"kind": "webhook"}})
    assert takers(alert(key="channel_refused/one"), settings, WORK) == ("two",)


@pytest.mark.parametrize(
    ("hours", "zone", "moment", "working"),
    [
        ({"days": "mon-fri", "from": "09:00", "to": "18:00"}, "UTC", "2026-03-02T08:59", False),
        ({"days": "mon-fri", "from": "09:00", "to": "18:00"}, "UTC", "2026-03-02T09:00", True),
        ({"days": "mon-fri", "from": "09:00", "to": "18:00"}, "UTC", "2026-03-02T18:00", False),
        ({"days": "mon,wed", "from": "00:00", "to": "24:00"}, "UTC", "2026-03-03T12:00", False),
        ({"days": "mon,wed", "from": "00:00", "to": "24:00"}, "UTC", "2026-03-04T23:59", True),
        ({"days": "fri-mon", "from": "00:00", "to": "24:00"}, "UTC", "2026-03-01T12:00", True),
        ({"days": "mon", "from": "22:00", "to": "06:00"}, "UTC", "2026-03-02T21:59", False),
        ({"days": "mon", "from": "22:00", "to": "06:00"}, "UTC", "2026-03-02T22:00", True),
        ({"days": "mon", "from": "22:00", "to": "06:00"}, "UTC", "2026-03-03T22:00", False),
        ({"days": "mon", "from": "22:00", "to": "06:00"}, "UTC", "2026-03-03T05:59", True),
        ({"days": "mon", "from": "22:00", "to": "06:00"}, "UTC", "2026-03-03T06:00", False),
        ({"days": "sun", "from": "22:00", "to": "06:00"}, "UTC", "2026-03-02T02:00", True),
        ({"days": "mon", "from": "09:00", "to": "09:00"}, "UTC", "2026-03-03T08:59", True),
        ({"days": "mon", "from": "22:00", "to": "06:00"}, "UTC", "2026-03-02T05:00", False),
        ({"days": "", "from": "09:00", "to": "18:00"}, "UTC", "2026-03-02T12:00", False),
        ({"days": "mon-fri", "from": "09:00", "to": "18:00"}, "Asia/Tokyo", "2026-03-02T00:00", True),
        ({"days": "mon-fri", "from": "09:00", "to": "18:00"}, "Asia/Tokyo", "2026-03-02T10:00", False),
    ],
)
def test_working_hours(hours: dict[str, str], zone: str, moment: str, working: bool) -> None:
    channels = {"day": {"kind": "webhook", "hours": "work"}, "night": {"kind": "webhook", "hours": "off"}}
    settings = alert_settings(channels=channels, working_hours=hours, timezone=zone)
    found = takers(alert(), settings, datetime.fromisoformat(moment).replace(tzinfo=UTC))
    assert found == (("day",) if working else ("night",))


def test_an_acknowledgement_goes_to_pagerduty_and_an_end_to_all_who_were_told() -> None:
    world = AlertWorld(channels=ALL_KINDS)
    world.look(condition(level="critical"))
    assert {name: world.sent(name) for name in ALL_KINDS} == {
        "slack": [], "mail": [], "pager": ["trigger"], "sms": [], "chat": ["trigger"]
    }  # fmt: skip
    world.acknowledge()
    assert {name: world.sent(name) for name in ALL_KINDS if world.queue(name)} == {"pager": ["acknowledge"]}
    world.look()
    assert {name: world.sent(name) for name in ALL_KINDS if world.queue(name)} == {
        "pager": ["resolve"],
        "chat": ["resolve"],
    }
