"""ALERTS and MODES: a mistake ends with 78, names the key, and shows no secret."""

import json
import zoneinfo
from pathlib import Path
from typing import Any

import pytest

from retake.errors import SettingsError
from retake.story.settings import Settings, load_settings

SLACK = "https://hooks.slack.com/services/T0123/B0123/abcdefABCDEF0123456789"
BOT = "7654321:AAabcdefghijklmnopqrstuvwxyz0123456"
MAIL = {"kind": "email", "host": "mail.example", "from": "a@mail.example", "to": ["b@mail.example"]}
SMS = {"kind": "sms", "account": "AC1", "from": "+1", "to": ["+2"]}


def load(tmp_path: Path, environ: dict[str, str] | None = None, **sections: Any) -> Settings:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(sections))
    return load_settings({"RETAKE_CONFIG": str(file), **(environ or {})})


def channel(**keys: Any) -> dict[str, Any]:
    return {"channels": {"it": keys}}


def test_the_defaults_match_the_documentation(tmp_path: Path) -> None:
    alerts, modes = load(tmp_path).alerts, load(tmp_path).modes
    assert alerts._asdict() == {
        "group_seconds": 300,
        "repeat_seconds": 900,
        "failures_before_warning": 2,
        "tick_wait_seconds": 2,
        "timeout_seconds": 10,
        "retry_seconds": 30,
        "escalate": (),
        "timezone": "UTC",
        "working_hours": ("mon-fri", "09:00", "18:00"),
        "report_at": "07:00",
        "report_day": "mon",
        "web_url": None,
        "channels": (),
    }
    assert modes._asdict() == {
        "auto": False,
        "error_share": 0.2,
        "return_share": 0.05,
        "window_seconds": 3600,
        "min_tries": 10,
        "hold_seconds": 900,
        "auto_max": 2,
        "video_mock": False,
        "schedule": (),
    }


LEVELS = ("warning", "error", "critical")


@pytest.mark.parametrize(
    ("keys", "env", "levels", "hours", "resolved", "reports"),
    [
        ({"kind": "slack"}, "SLACK_WEBHOOK_URL", ("warning", "error"), "any", True, ()),
        (MAIL, "SMTP_PASSWORD", (), "any", True, ("daily", "weekly")),
        ({"kind": "pagerduty"}, "PAGERDUTY_ROUTING_KEY", ("critical",), "work", True, ()),
        (SMS, "TWILIO_AUTH_TOKEN", ("critical",), "off", False, ()),
        ({"kind": "telegram", "chat_id": -5}, "TELEGRAM_BOT_TOKEN", LEVELS, "any", True, ()),
        ({"kind": "webhook"}, "ALERT_WEBHOOK_URL", LEVELS, "any", True, ()),
        ({"kind": "apprise"}, "APPRISE_URL", LEVELS, "any", True, ()),
    ],
)
def test_the_defaults_of_each_kind(
    keys: dict[str, Any], env: str, levels: Any, hours: str, resolved: bool, reports: Any, tmp_path: Path
) -> None:
    [it] = load(tmp_path, ALERTS=channel(**keys)).alerts.channels
    assert (it.name, it.env, it.levels, it.hours, it.classes, it.resolved, it.reports) == (
        *("it", env, levels, hours),
        (),
        resolved,
        reports,
    )


FAULTS: list[tuple[dict[str, Any], str]] = [
    (channel(kind="pigeon"), "ALERTS.channels.it.kind"),
    (channel(), "ALERTS.channels.it.kind"),
    (channel(kind="slack", level=["error"]), "ALERTS.channels.it.level"),
    (channel(kind="slack", url=SLACK), "ALERTS.channels.it.url"),
    (channel(kind="slack", endpoint="https://x.example"), "ALERTS.channels.it.endpoint"),
    (channel(kind="slack", levels=["loud"]), "ALERTS.channels.it.levels"),
    (channel(kind="slack", levels="error"), "ALERTS.channels.it.levels"),
    (channel(kind="slack", hours="night"), "ALERTS.channels.it.hours"),
    (channel(kind="slack", classes=["D"]), "ALERTS.channels.it.classes"),
    (channel(kind="slack", resolved="yes"), "ALERTS.channels.it.resolved"),
    (channel(kind="slack", reports=["hourly"]), "ALERTS.channels.it.reports"),
    (channel(kind="slack", env=SLACK), "ALERTS.channels.it.env"),
    (channel(kind="telegram", env=BOT, chat_id=1), "ALERTS.channels.it.env"),
    (channel(kind="telegram"), "ALERTS.channels.it.chat_id"),
    (channel(kind="telegram", chat_id=True), "ALERTS.channels.it.chat_id"),
    (channel(kind="telegram", chat_id=1, endpoint="nowhere"), "ALERTS.channels.it.endpoint"),
    (channel(kind="telegram", chat_id=1, token=BOT), "ALERTS.channels.it.token"),
    (channel(kind="telegram", chat_id=1, endpoint=f"https://api.telegram.org/bot{BOT}"), "ALERTS.channels.it"),
    (channel(**{**MAIL, "to": []}), "ALERTS.channels.it.to"),
    (channel(**{**MAIL, "to": "b@mail.example"}), "ALERTS.channels.it.to"),
    (channel(**{**MAIL, "port": 0}), "ALERTS.channels.it.port"),
    (channel(**{**MAIL, "security": "ssl"}), "ALERTS.channels.it.security"),
    (channel(**{**MAIL, "password": "correct horse battery"}), "ALERTS.channels.it.password"),
    (channel(kind="email"), "ALERTS.channels.it.host"),
    (channel(kind="sms", **{"from": "+1", "to": ["+2"]}), "ALERTS.channels.it.account"),
    ({"channels": {"it": 5}}, "ALERTS.channels.it"),
    ({"channels": {"not a name!": {"kind": "slack"}}}, "ALERTS.channels"),
    ({"channels": []}, "ALERTS.channels"),
    ({"escalate": ["boss"]}, "ALERTS.escalate"),
    ({"escalate": "boss"}, "ALERTS.escalate"),
    ({"group_second": 1}, "ALERTS.group_second"),
    ({"repeat_seconds": 0}, "ALERTS.repeat_seconds"),
    ({"repeat_seconds": "often"}, "ALERTS.repeat_seconds"),
    ({"failures_before_warning": 0}, "ALERTS.failures_before_warning"),
    ({"failures_before_warning": 1.5}, "ALERTS.failures_before_warning"),
    ({"tick_wait_seconds": -1}, "ALERTS.tick_wait_seconds"),
    ({"timeout_seconds": []}, "ALERTS.timeout_seconds"),
    ({"timezone": "Mars/Olympus"}, "ALERTS.timezone"),
    ({"timezone": "../../etc/passwd"}, "ALERTS.timezone"),
    ({"timezone": ""}, "ALERTS.timezone"),
    ({"working_hours": {"days": "mon-foo"}}, "ALERTS.working_hours.days"),
    ({"working_hours": {"from": "9:00"}}, "ALERTS.working_hours.from"),
    ({"working_hours": {"to": "24:01"}}, "ALERTS.working_hours.to"),
    ({"working_hours": {"til": "18:00"}}, "ALERTS.working_hours.til"),
    ({"working_hours": "mon-fri"}, "ALERTS.working_hours"),
    ({"report_at": "7"}, "ALERTS.report_at"),
    ({"report_day": "monday"}, "ALERTS.report_day"),
    ({"web_url": "dash"}, "ALERTS.web_url"),
]


def test_a_channel_that_is_not_there_is_quoted_as_every_other_wrong_value(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r'ALERTS\.escalate: found "boss", allowed: one of'):
        load(tmp_path, ALERTS={"escalate": ["boss"]})


def test_a_machine_without_time_zones_says_what_to_install(tmp_path: Path) -> None:
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    try:
        with pytest.raises(SettingsError, match=r'found "Europe/Berlin", .*where tzdata is installed'):
            load(tmp_path, ALERTS={"timezone": "Europe/Berlin"})
    finally:
        zoneinfo.reset_tzpath()


@pytest.mark.parametrize(("alerts", "where"), FAULTS, ids=[f"{n}-{where}" for n, (_, where) in enumerate(FAULTS)])
def test_a_fault_names_its_key_and_shows_no_secret(alerts: dict[str, Any], where: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as raised:
        load(tmp_path, ALERTS=alerts)
    assert raised.value.exit_code == 78
    words = str(raised.value)
    assert where in words
    for secret in ("abcdefABCDEF", "T0123", "AAabcdef", "correct horse"):
        assert secret not in words, words


@pytest.mark.parametrize(
    ("modes", "where"),
    [
        ({"atuo": True}, "MODES.atuo"),
        ({"auto": 1}, "MODES.auto"),
        ({"error_share": 1.1}, "MODES.error_share"),
        ({"return_share": -0.1}, "MODES.return_share"),
        ({"window_seconds": 0}, "MODES.window_seconds"),
        ({"min_tries": 0}, "MODES.min_tries"),
        ({"auto_max": 4}, "MODES.auto_max"),
        ({"auto_max": 0}, "MODES.auto_max"),
        ({"video_mock": "no"}, "MODES.video_mock"),
        ({"schedule": {}}, "MODES.schedule"),
        ({"schedule": [{"from": "22:00", "to": "06:00"}]}, "MODES.schedule"),
        ({"schedule": [{"from": "22:00", "to": "06:00", "mode": 4}]}, "MODES.schedule"),
        ({"schedule": [{"from": "22", "to": "06:00", "mode": 1}]}, "MODES.schedule"),
        ({"schedule": [{"from": "22:00", "to": "06:00", "mode": 1, "day": "mon"}]}, "MODES.schedule"),
        ({"schedule": [5]}, "MODES.schedule"),
    ],
)
def test_a_fault_in_modes_names_its_key(modes: dict[str, Any], where: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=where.replace(".", r"\.")):
        load(tmp_path, MODES=modes)


@pytest.mark.parametrize(
    ("keys", "environ"),
    [
        ({**MAIL, "user": "correct horse"}, {"SMTP_PASSWORD": "correct horse"}),
        (
            {"kind": "pagerduty", "endpoint": "https://x.example/abcdefAB"},
            {"PAGERDUTY_ROUTING_KEY": "abcdefAB"},
        ),
        ({**SMS, "account": "AAabcdef"}, {"TWILIO_AUTH_TOKEN": "AAabcdef"}),
    ],
)
def test_a_secret_that_stands_in_the_file_too_is_a_fault(
    keys: dict[str, Any], environ: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=r"ALERTS\.channels\.it: a secret in a file") as raised:
        load(tmp_path, environ, ALERTS=channel(**keys))
    assert next(iter(environ.values())) not in str(raised.value)
    assert load(tmp_path, ALERTS=channel(**keys)).alerts.channels


def test_what_is_right_is_taken(tmp_path: Path) -> None:
    alerts = {
        "escalate": ["boss"],
        "timezone": "Europe/Berlin",
        "working_hours": {"days": "", "from": "22:00", "to": "06:00"},
        "report_at": "24:00",
        "web_url": "https://dash.example/retake",
        "channels": {
            "boss": {**SMS, "resolved": True, "classes": ["C"]},
            "team": {"kind": "slack", "env": "TEAM_URL", "levels": [], "hours": "off"},
            "chat": {"kind": "telegram", "chat_id": "@ops"},
        },
    }
    modes = {"schedule": [{"from": "22:00", "to": "24:00", "mode": 2}], "auto": True, "auto_max": 3}
    settings = load(tmp_path, {"TEAM_URL": SLACK}, ALERTS=alerts, MODES=modes)
    assert [it.name for it in settings.alerts.channels] == ["boss", "team", "chat"]
    assert settings.alerts.web_url == "https://dash.example/retake"
    assert (settings.modes.schedule[0].hours.days, settings.modes.schedule[0].mode) == ("mon-sun", 2)


def test_a_missing_secret_is_not_a_fault_and_is_named(tmp_path: Path) -> None:
    alerts = {"channels": {"team": {"kind": "slack"}, "mail": MAIL, "boss": {**SMS, "env": "BOSS"}}}
    settings = load(tmp_path, {"BOSS": " "}, ALERTS=alerts)
    assert settings.missing_secrets == (("team", "SLACK_WEBHOOK_URL"), ("boss", "BOSS"))
