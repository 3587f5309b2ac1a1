"""The settings of the music pipeline: the shared sections and its own, read from the same file as the story's."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from retake.alerts.settings import ALERTS, AlertSettings, missing_secrets, secrets_written, unknown_channels
from retake.degraded.settings import MODES, ModeSettings
from retake.errors import SettingsError
from retake.settings.reader import DEFAULT_FILE, read_settings
from retake.settings.schema import (
    ENDPOINT,
    LEDGER_URL,
    SECONDS,
    TEXT,
    USD,
    YES_OR_NO,
    Rule,
    choice,
    field,
    from_zero,
    schema_of,
    whole,
)
from retake.settings.shared import (
    OF_IMAGES,
    OF_STORY,
    OF_WEB,
    OLDER_KEYS,
    SHARED,
    TOP_LEVEL,
    BreakerSettings,
    KpiSettings,
    MidjourneySettings,
    OpenaiSettings,
    Prices,
    StorageSettings,
    Workflow,
)

CHUNK_UNIT = 262_144
"""YouTube accepts chunks whose size is a multiple of this, except the last one."""

_PAUSE = from_zero(31_536_000)
_WEBHOOK_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}", re.ASCII)
_HOST = re.compile(r"[0-9A-Za-z_.:%-]{1,253}")


def _read_pauses(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= 100:
        raise ValueError
    return tuple(_PAUSE.read(pause) for pause in value)


def _read_chunk(value: Any) -> int:
    if type(value) is not int or not CHUNK_UNIT <= value <= 1024 * CHUNK_UNIT or value % CHUNK_UNIT:
        raise ValueError
    return value


def _read_users(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(user) is int and 0 < user < 2**53 for user in value):
        raise ValueError
    return tuple(value)


def _read_chat(value: Any) -> int | str:
    if type(value) is int and 0 < abs(value) < 2**53:
        return value
    if isinstance(value, str) and re.fullmatch(r"@[A-Za-z]\w{3,63}|-?[1-9]\d{0,15}", value, re.ASCII):
        return value
    raise ValueError


def _read_host(value: Any) -> str:
    if not isinstance(value, str) or not _HOST.fullmatch(value):
        raise ValueError
    return value


def _read_category(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,3}", value, re.ASCII):
        raise ValueError
    return value


PAUSES = Rule("list of 1 to 100 numbers, each 0 to 31536000", _read_pauses)
CHUNK = Rule("whole number, a multiple of 262144, 268435456 at most", _read_chunk)
USERS = Rule("list of the numbers of Telegram users", _read_users)
CHAT = Rule('number of a Telegram chat, or its "@name"', _read_chat)
HOST = Rule("name or address of this machine", _read_host)
CATEGORY = Rule("number of a category, as text", _read_category)


class TelegramSettings(NamedTuple):
    """Messages and buttons."""

    endpoint: str | None = field(
        ENDPOINT, "base URL, before /bot<TOKEN>/METHOD; null is the vendor's own", default=None
    )


class YoutubeSettings(NamedTuple):
    """Publishing."""

    endpoint: str | None = field(
        ENDPOINT, "base URL, before /youtube/v3 and /upload/youtube/v3; null is the vendor's own", default=None
    )
    token_endpoint: str | None = field(
        ENDPOINT, "URL that exchanges the refresh token for an access token; null is the vendor's own", default=None
    )


class ServiceSettings(NamedTuple):
    """The music pipeline and its service."""

    database: str = field(
        LEDGER_URL, "where its pipelines and their runs are kept", default="sqlite:music/music.sqlite3"
    )
    audio_folder: str = field(TEXT, "folder (not in the bucket) of the tracks", default="music/audio")
    host: str = field(HOST, "where the service listens", default="127.0.0.1")
    port: int = field(whole(0, 65535), "the port it listens on; 0 is any free one", default=8787)
    step_max_retries: int = field(whole(0, 100), "how often a failed step is retried; publish never is", default=2)
    step_retry_backoff_sec: tuple[float, ...] = field(
        PAUSES, "seconds before each retry of a step, one after another; the last one repeats", default=(5, 15)
    )
    poll_seconds: float = field(
        SECONDS, "seconds between two polls of an image task, and between two checks for messages to send", default=5
    )
    image_timeout_seconds: float = field(SECONDS, "seconds that an attempt waits for an image task", default=900)
    stuck_seconds: float = field(SECONDS, "seconds without a heartbeat after which a step is resumed", default=60)
    workers: int = field(whole(1, 64), "steps that one process works on at the same time", default=2)
    upload_chunk_bytes: int = field(CHUNK, "size of one part of an upload in bytes", default=8_388_608)
    upload_resumes: int = field(
        whole(0, 100), "how often in a row a broken upload is resumed without progress", default=5
    )
    publish_look_seconds: float = field(
        from_zero(86_400), "seconds to search for a video whose upload may have succeeded", default=300
    )
    privacy: str = field(choice("private", "unlisted", "public"), "who sees a new video", default="private")
    category_id: str = field(CATEGORY, "YouTube's category of a new video; 10 is music", default="10")
    made_for_kids: bool = field(YES_OR_NO, "whether new videos are declared as made for kids", default=False)
    uploads_per_day: int = field(
        whole(0, 100_000), "maximum number of uploads begun in a day of YouTube's quota (Pacific time)", default=100
    )
    daily_cap_usd: float | None = field(
        USD,
        "what all processes on the database may spend in a day (UTC), in US dollars; null means no limit",
        default=None,
    )
    telegram: str = field(
        choice("off", "poll", "webhook"), "how taps and replies on Telegram arrive; off means not at all", default="off"
    )
    telegram_chat_id: int | str | None = field(CHAT, "the chat that gets the messages", default=None)
    telegram_allowed_users: tuple[int, ...] = field(
        USERS, "users whose taps and replies count; [] means nobody", default=()
    )
    telegram_poll_seconds: float = field(from_zero(50), "seconds that a request for updates waits", default=25)
    public_url: str | None = field(ENDPOINT, "URL under which Telegram reaches this service, for webhook", default=None)


SECTIONS = {
    **{name: SHARED[name] for name in SHARED if name != "RETRYING"},
    "API_KEYS.telegram": schema_of(TelegramSettings),
    "API_KEYS.youtube": schema_of(YoutubeSettings),
    "ALERTS": ALERTS,
    "MODES": MODES,
    "MUSIC": schema_of(ServiceSettings),
}
"""The sections of the settings file that the music pipeline reads."""


class MusicSettings(NamedTuple):
    """All settings of the music pipeline, validated. `source` is the file they were read from."""

    music: ServiceSettings = ServiceSettings()
    telegram: TelegramSettings = TelegramSettings()
    youtube: YoutubeSettings = YoutubeSettings()
    storage: StorageSettings = StorageSettings()
    midjourney: MidjourneySettings = MidjourneySettings()
    openai: OpenaiSettings = OpenaiSettings()
    workflow: Workflow = Workflow()
    breaker: BreakerSettings = BreakerSettings()
    prices: Prices = Prices()
    alerts: AlertSettings = AlertSettings()
    modes: ModeSettings = ModeSettings()
    kpi: KpiSettings = KpiSettings()
    source: str = DEFAULT_FILE
    warnings: tuple[str, ...] = ()
    missing_secrets: tuple[tuple[str, str], ...] = ()  # alert channels whose secret is not set, each with its variable


def load_music_settings(environ: Mapping[str, str]) -> MusicSettings:
    """Read the settings from the file that RETAKE_CONFIG names, or config/config.json in the current directory.

    Raises SettingsError if the file is missing or not JSON, or with every fault that concerns music, one per line.
    """
    file = read_settings(environ, SECTIONS, TOP_LEVEL, OLDER_KEYS, (*OF_STORY, *OF_IMAGES, *OF_WEB, "RETRYING"))
    found = file.values
    settings = MusicSettings(
        music=found["MUSIC"],
        telegram=found["API_KEYS.telegram"],
        youtube=found["API_KEYS.youtube"],
        storage=found["STORAGE"],
        midjourney=found["API_KEYS.midjourney"],
        openai=found["API_KEYS.openai"],
        workflow=found["WORKFLOW"],
        breaker=found["BREAKER"],
        prices=found["PRICES"],
        alerts=found["ALERTS"],
        modes=found["MODES"],
        kpi=found["KPI"],
        source=file.source,
        warnings=file.warnings,
        missing_secrets=tuple(missing_secrets(found["ALERTS"], environ)),
    )
    file.check(chain(secrets_written(settings.alerts, file.document, environ), _contradictions(settings)))
    return settings


def _contradictions(settings: MusicSettings) -> Iterator[str]:
    music = settings.music
    if music.telegram != "off" and music.telegram_chat_id is None:
        yield f'MUSIC.telegram_chat_id: not given, needed where MUSIC.telegram is "{music.telegram}"'
    if music.telegram == "webhook" and music.public_url is None:
        yield 'MUSIC.public_url: not given, needed where MUSIC.telegram is "webhook"'
    yield from unknown_channels(settings.alerts)


def sandboxed(settings: MusicSettings, base_url: str) -> MusicSettings:
    """Return `settings` with every vendor replaced by its stand-in at `base_url`, and without alert channels."""
    base = base_url.rstrip("/")
    return settings._replace(
        midjourney=settings.midjourney.in_sandbox(base),
        openai=settings.openai._replace(endpoint=f"{base}/openai/v1"),
        telegram=settings.telegram._replace(endpoint=f"{base}/telegram"),
        youtube=settings.youtube._replace(endpoint=base, token_endpoint=f"{base}/youtube/token"),
        alerts=settings.alerts._replace(channels=(), escalate=()),
    )


class MusicKeys(NamedTuple):
    """The secrets of the music pipeline; None for each that is not set."""

    api: str | None = None
    openai: str | None = None
    midjourney: str | None = None
    youtube_client_id: str | None = None
    youtube_client_secret: str | None = None
    youtube_refresh_token: str | None = None
    telegram: str | None = None
    telegram_webhook: str | None = None

    def __repr__(self) -> str:
        """Name the keys that are set without showing them: tracebacks contain this."""
        return f"MusicKeys({', '.join(name for name, key in self._asdict().items() if key)})"


MUSIC_KEYS = {
    "api": ("MUSIC_API_KEY", "for callers of the service's API"),
    "openai": ("OPENAI_API_KEY", "for texts (the chat API)"),
    "midjourney": ("MIDJOURNEY_API_KEY", "for pictures"),
    "youtube_client_id": ("YOUTUBE_CLIENT_ID", "for publishing (OAuth client)"),
    "youtube_client_secret": ("YOUTUBE_CLIENT_SECRET", "for publishing (OAuth client)"),
    "youtube_refresh_token": ("YOUTUBE_REFRESH_TOKEN", "for publishing (the channel's consent)"),
    "telegram": ("TELEGRAM_BOT_TOKEN", "for Telegram"),
    "telegram_webhook": ("TELEGRAM_WEBHOOK_SECRET", "for Telegram's webhook"),
}
"""By field of MusicKeys: its environment variable, and the purpose of the key."""

SANDBOX_KEYS = MusicKeys(*("sandbox" for _ in MusicKeys._fields))._replace(telegram="1:sandbox")


def is_needed(name: str, telegram: str) -> bool:
    """Return whether a key, a field of MusicKeys, is needed; `telegram` is MUSIC.telegram."""
    return {"telegram": telegram != "off", "telegram_webhook": telegram == "webhook"}.get(name, True)


def read_music_keys(environ: Mapping[str, str], telegram: str) -> MusicKeys:
    """Return the secrets; `telegram` is MUSIC.telegram.

    Raises SettingsError with a line for each that is missing or has characters that no key has.
    """
    found, faults = {}, []
    for name, (variable, what_for) in MUSIC_KEYS.items():
        value = environ.get(variable, "").strip()
        needed = is_needed(name, telegram)
        if not value.isascii() or not value.isprintable() or " " in value:
            faults.append(f"{variable}: has characters that no key contains; copy the key again")
        elif name == "telegram_webhook" and needed and value and not _WEBHOOK_SECRET.fullmatch(value):
            faults.append(f"{variable}: Telegram takes 1 to 256 of A-Z, a-z, 0-9, _ and -; choose another")
        elif value:
            found[name] = value
        elif needed:
            faults.append(f"{variable} is not set; it is needed {what_for}: put it in the environment")
    if faults:
        raise SettingsError("\n".join(faults))
    return MusicKeys(**found)
