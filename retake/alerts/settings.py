"""The section ALERTS of the settings."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from retake.alerts.hours import CLOCK_TIME, DAYS, TIMEZONE, WEEK, WorkingHours
from retake.foreign_text import shown
from retake.settings.schema import (
    ENDPOINT,
    NAME,
    PATIENCE,
    SECONDS,
    TEXT,
    VARIABLE,
    YES_OR_NO,
    Field,
    NamedTables,
    OneTable,
    Rule,
    Schema,
    SchemaChoice,
    choice,
    field,
    schema_of,
    several,
    some,
    whole,
)
from retake.settings.shared import SANDBOX_VARIABLE

LEVELS = ("warning", "error", "critical")
"""The levels, the most severe last."""

REPORTS = ("daily", "weekly")
"""The reports that a channel can take."""


def _read_chat(value: Any) -> int | str:
    return value if type(value) is int else str(TEXT.read(value))


_CHAT = Rule('number, or text such as "@name"', _read_chat)

_KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Field]]] = {
    "slack": ("SLACK_WEBHOOK_URL", {"levels": ("warning", "error")}, {}),
    "email": (
        "SMTP_PASSWORD",
        {"levels": (), "reports": REPORTS},
        {
            "host": Field(TEXT, "the mail server"),
            "port": Field(whole(1, 65535), "its port", 587),
            "security": Field(choice("starttls", "tls", "none"), "how the connection is encrypted", "starttls"),
            "user": Field(TEXT, "the account that sends; null sends without signing in", None),
            "from": Field(TEXT, "the address of the sender"),
            "to": Field(some(TEXT), "the addresses of the recipients"),
        },
    ),
    "pagerduty": (
        "PAGERDUTY_ROUTING_KEY",
        {"levels": ("critical",), "hours": "work"},
        {"endpoint": Field(ENDPOINT, "the whole URL of the Events API", "https://events.pagerduty.com/v2/enqueue")},
    ),
    "sms": (
        "TWILIO_AUTH_TOKEN",
        {"levels": ("critical",), "hours": "off", "resolved": False},
        {
            "endpoint": Field(ENDPOINT, "the base URL of the API", "https://api.twilio.com"),
            "account": Field(TEXT, "the account SID"),
            "from": Field(TEXT, "the number that sends"),
            "to": Field(some(TEXT), "the numbers of the recipients"),
        },
    ),
    "telegram": (
        "TELEGRAM_BOT_TOKEN",
        {},
        {
            "endpoint": Field(ENDPOINT, "the base URL of the Bot API", "https://api.telegram.org"),
            "chat_id": Field(_CHAT, "the chat, its number or its @name"),
        },
    ),
    "webhook": ("ALERT_WEBHOOK_URL", {}, {}),
    "apprise": ("APPRISE_URL", {}, {}),
}
"""By kind: the default of `env`, other defaults that differ from the common ones, and the keys that only it has."""


VARIABLES = {env: f"the secret of a channel of alerts, kind {kind}" for kind, (env, _, _) in _KINDS.items()}
"""The default environment variables of the channels' secrets, and what each is for."""


class AlertChannel(NamedTuple):
    """A channel that alerts are sent to. `options` are the keys that only its kind has."""

    name: str
    kind: str
    env: str  # the environment variable that holds the secret
    levels: tuple[str, ...]
    hours: str  # "any", "work", "off"
    classes: tuple[str, ...]  # error classes; empty: all
    resolved: bool  # whether it is notified when an alert is resolved
    reports: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def needs_secret(self) -> bool:
        """Whether it cannot send while the variable `env` is not set. True for all but e-mail without a login."""
        return self.kind != "email" or self.options["user"] is not None


def _channel(kind: str) -> Schema:
    env, defaults, own = _KINDS[kind]
    every = {
        "env": Field(VARIABLE, "the environment variable that holds the secret", env),
        "levels": Field(several(choice(*LEVELS)), "the levels that it takes", defaults.get("levels", LEVELS)),
        "hours": Field(choice("any", "work", "off"), "when it takes them", defaults.get("hours", "any")),
        "classes": Field(several(choice("A", "B", "C")), "the error classes that it takes; [] is all", ()),
        "resolved": Field(YES_OR_NO, "whether it is notified when an alert ends", defaults.get("resolved", True)),
        "reports": Field(several(choice(*REPORTS)), "the reports that it takes", defaults.get("reports", ())),
    }

    def make(**values: Any) -> AlertChannel:
        shared = {name: values[name] for name in every}
        return AlertChannel("", kind, options={name: values[name] for name in own}, **shared)

    return Schema(make, {**every, **own})


def _working_hours(**values: Any) -> WorkingHours:
    return WorkingHours(values["days"], values["from"], values["to"])


CHANNELS = NamedTables(
    SchemaChoice("kind", {kind: _channel(kind) for kind in _KINDS}),
    lambda channel, name: channel._replace(name=name),
    NAME,
)

WORKING_HOURS = OneTable(
    Schema(
        _working_hours,
        {
            "days": Field(DAYS, 'the days: "mon-fri", "mon,wed", "" for none', "mon-fri"),
            "from": Field(CLOCK_TIME, "when they begin, HH:MM", "09:00"),
            "to": Field(CLOCK_TIME, 'when they end, HH:MM, to "24:00"; earlier than `from`: the next day', "18:00"),
        },
    )
)


class AlertSettings(NamedTuple):
    """When alerts are raised, and which channels they are sent to."""

    group_seconds: float = field(
        PATIENCE,
        "seconds after its end within which an alert raised again is the same one; it is sent when they have passed",
        default=300,
    )
    repeat_seconds: float = field(
        SECONDS, "seconds after which an alert that nobody acknowledged is sent again", default=900
    )
    failures_before_warning: int = field(whole(1, 1000), "failed tries of a step that raise a warning", default=2)
    tick_wait_seconds: float = field(
        PATIENCE, "the longest time in seconds that a tick waits for its channels at its end", default=2
    )
    timeout_seconds: float = field(SECONDS, "the longest time in seconds that one delivery may take", default=10)
    retry_seconds: float = field(
        SECONDS, "seconds before a failed delivery is tried again; they double up to ten minutes", default=30
    )
    escalate: tuple[str, ...] = field(
        several(NAME), "channels that also get an alert when it is sent again", default=()
    )
    timezone: str = field(TIMEZONE, "the time zone of the hours below", default="UTC")
    working_hours: WorkingHours = field(
        WORKING_HOURS, "the working hours: `days`, `from`, `to`", default=WorkingHours()
    )
    report_at: str = field(CLOCK_TIME, "when reports are due, HH:MM", default="07:00")
    report_day: str = field(choice(*WEEK), "the day of the weekly report", default="mon")
    web_url: str | None = field(ENDPOINT, "the dashboard's base URL, for links in texts", default=None)
    channels: tuple[AlertChannel, ...] = field(
        CHANNELS, "the channels that are notified, by name; docs/alerts.md has their keys", default=()
    )


ALERTS = schema_of(AlertSettings)


def why_no_channel(environ: Mapping[str, str]) -> str:
    """Return why there is no channel: a sandbox is in use, or the settings name none."""
    if environ.get(SANDBOX_VARIABLE):
        return f"{SANDBOX_VARIABLE} is set, and a sandbox notifies none"
    return "ALERTS.channels is empty"


def missing_secrets(settings: AlertSettings, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the variable of each channel whose secret is not in the environment."""
    for it in settings.channels:
        if it.needs_secret and not environ.get(it.env, "").strip():
            yield it.name, it.env


def unknown_channels(settings: AlertSettings) -> Iterator[str]:
    """Yield a fault for each channel in ALERTS.escalate that is not in ALERTS.channels."""
    names = [it.name for it in settings.channels]
    known = ", ".join(names) or "none"
    for name in settings.escalate:
        if name not in names:
            yield f"ALERTS.escalate: found {shown(name)}, allowed: one of ALERTS.channels ({known})"


def secrets_written(settings: AlertSettings, document: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a fault, without the secret, for each channel whose secret is in the settings file."""
    if not settings.channels:
        return
    section = document.get("ALERTS") or {}
    tables = section.get("channels") or {}
    for channel in settings.channels:
        secret = environ.get(channel.env, "").strip()
        written = json.dumps(tables.get(channel.name), ensure_ascii=False)
        if (len(secret) >= _MIN_SECRET_LENGTH and secret in written) or re.search(_REVEALING_URLS, written):
            mend = f"take it out, make a new one, and put it in {channel.env}"
            yield f"ALERTS.channels.{channel.name}: a secret in a file; {mend}"


_MIN_SECRET_LENGTH = 6
_REVEALING_URLS = r"hooks\.slack\.com/services/|/bot\d+:"  # URLs that contain a secret
