"""The settings of the dashboard: the section WEB, and its token."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from retake.errors import SettingsError
from retake.settings.reader import read_settings
from retake.settings.schema import SECONDS, Rule, field, schema_of
from retake.settings.shared import OF_IMAGES, OF_MUSIC, OF_STORY, OLDER_KEYS, SHARED, TOP_LEVEL

TOKEN = "RETAKE_WEB_TOKEN"  # noqa: S105  the variable's name
ENVIRONMENT = {TOKEN: "for signing in to the dashboard, at least 16 characters"}
"""The environment variable that the dashboard reads, and its purpose."""

MIN_TOKEN_LENGTH = 16

_HOST = re.compile(r"[0-9a-z._-]{1,253}|\[[0-9a-f:]{2,45}\]", re.ASCII)


def _read_hosts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(it, str) and _HOST.fullmatch(it.lower()) for it in value):
        raise ValueError
    return tuple(it.lower() for it in value)


class WebSettings(NamedTuple):
    """The settings of the dashboard."""

    look_seconds: float | None = field(
        SECONDS,
        "seconds between two looks at the bucket while somebody watches; null is 2 for a directory, 15 elsewhere",
        default=None,
    )
    hosts: tuple[str, ...] = field(
        Rule("list of host names, without ports", _read_hosts),
        "host names by which browsers may reach it, besides loopback and --host",
        default=(),
    )


SECTIONS = {"WEB": schema_of(WebSettings)}
_OTHERS = (*OF_STORY, *OF_MUSIC, *OF_IMAGES, *(it for it in SHARED if it != "STORAGE"), "ALERTS", "MODES")


def load_web_settings(environ: Mapping[str, str]) -> WebSettings:
    """Read the section WEB of the settings file. Raises SettingsError."""
    file = read_settings(environ, SECTIONS | {"STORAGE": SHARED["STORAGE"]}, TOP_LEVEL, OLDER_KEYS, _OTHERS)
    file.check(iter(()))
    found: WebSettings = file.values["WEB"]
    return found


def read_token(environ: Mapping[str, str]) -> str:
    """Return the token that signs people and programs in. Raises SettingsError."""
    token = environ.get(TOKEN, "").strip()
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        what = "cannot be used" if token else "is not set"
        raise SettingsError(
            f"{TOKEN} {what}: put at least {MIN_TOKEN_LENGTH} characters without spaces into the environment, such as "
            "the output of: openssl rand -hex 24"
        )
    return token
