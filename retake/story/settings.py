"""The settings of the story: the shared sections and its own, read from one JSON file and checked together.

Each setting is declared once, as a field of its section: name, type, rule, meaning and default. Reading and checking a
file, and the test that compares docs/settings.md with the code, are derived from that.

The functions at the end set up what every command of the story needs: keys, the bucket, the part of a channel.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from retake.alerts.settings import ALERTS, AlertSettings, missing_secrets, secrets_written, unknown_channels
from retake.bucket import Bucket, open_configured
from retake.degraded.settings import MODES, ModeSettings
from retake.errors import SettingsError
from retake.foreign_text import shown
from retake.keys import Keys, read_keys
from retake.settings.reader import DEFAULT_FILE, read_settings
from retake.settings.schema import (
    FOLDER,
    KEY,
    RATIO,
    SIZE,
    TEXT,
    PictureSize,
    above_zero,
    choice,
    field,
    schema_of,
    whole,
)
from retake.settings.shared import (
    OF_IMAGES,
    OF_MUSIC,
    OF_WEB,
    OLDER_KEYS,
    RESERVED,
    SHARED,
    TOP_LEVEL,
    BreakerSettings,
    KpiSettings,
    MidjourneySettings,
    OpenaiSettings,
    Prices,
    RetryingSettings,
    RunwaySettings,
    StorageSettings,
    Workflow,
)
from retake.settings.shared import (
    SANDBOX_VARIABLE as SANDBOX_VARIABLE,
)


class Folders(NamedTuple):
    """The folders of the groups, each a key prefix that ends in "/", in the order in which groups move up."""

    entrance: str  # 666/: where a generation puts its files
    middle: str  # 555/
    exit: str  # 444/: where the publisher takes them from
    archive: str

    @property
    def staged(self) -> tuple[str, str, str]:
        return (self.exit, self.middle, self.entrance)


class FilePaths(NamedTuple):
    """Keys in the bucket. Folders end in "/"."""

    config_public: str = field(KEY, "document shared with the publisher", default="config/config_public.json")
    config_gen: str = field(KEY, "document that names the current generation", default="config/config_gen.json")
    config_midjourney: str = field(
        KEY, "document of the generation's progress", default="config/config_midjourney.json"
    )
    folder_444: str = field(FOLDER, "last folder: next to be published", default="444/")
    folder_555: str = field(FOLDER, "middle folder", default="555/")
    folder_666: str = field(FOLDER, "first folder: where new files are made", default="666/")
    archive_folder: str = field(FOLDER, "where published files go", default="archive/")
    prompts: str | None = field(
        TEXT,
        "file (not in the bucket) of the prompts; null is prompts.json next to the settings file, else the one "
        "next to the code",
        default=None,
    )

    @property
    def documents(self) -> tuple[str, str, str]:
        """The keys of the three state documents."""
        return self.config_public, self.config_gen, self.config_midjourney

    @property
    def kept_document(self) -> str:
        """The name of config_midjourney.json in a dead letter."""
        return self.config_midjourney.rpartition("/")[2]

    @property
    def folders(self) -> Folders:
        return Folders(self.folder_666, self.folder_555, self.folder_444, self.archive_folder)


class ImageSettings(NamedTuple):
    """The still picture."""

    output_size: PictureSize = field(
        SIZE, "size of the saved picture and of the mock video, in pixels", default=PictureSize(1280, 720)
    )
    pick: str = field(choice("first", "vision"), "which of the four pictures is upscaled", default="first")


class VideoSettings(NamedTuple):
    """The video, and the mock that replaces it."""

    mock_duration: float = field(above_zero(600), "length of a mock video, in seconds", default=10)
    mock_fps: int = field(whole(1, 120), "frames per second of a mock video", default=24)
    mock_codec: str = field(TEXT, "ffmpeg's encoder for a mock video", default="libx264")
    runway_duration: int = field(whole(2, 30), "length of a Runway video, in seconds", default=10)
    runway_ratio: str = field(RATIO, "shape of a Runway video, in pixels", default="1280:720")


SECTIONS = {
    "STORAGE": SHARED["STORAGE"],
    "API_KEYS.midjourney": SHARED["API_KEYS.midjourney"],
    "API_KEYS.runwayml": SHARED["API_KEYS.runwayml"],
    "API_KEYS.openai": SHARED["API_KEYS.openai"],
    "FILE_PATHS": schema_of(FilePaths),
    "WORKFLOW": SHARED["WORKFLOW"],
    "RETRYING": SHARED["RETRYING"],
    "BREAKER": SHARED["BREAKER"],
    "ALERTS": ALERTS,
    "MODES": MODES,
    "KPI": SHARED["KPI"],
    "PRICES": SHARED["PRICES"],
    "IMAGE_GENERATION": schema_of(ImageSettings),
    "VIDEO": schema_of(VideoSettings),
}
"""The sections of the file, by their path, in the order of docs/settings.md."""


class Settings(NamedTuple):
    """All settings, checked. `source` is the file they were read from. The caller logs `warnings`, once."""

    storage: StorageSettings = StorageSettings()
    midjourney: MidjourneySettings = MidjourneySettings()
    runwayml: RunwaySettings = RunwaySettings()
    openai: OpenaiSettings = OpenaiSettings()
    paths: FilePaths = FilePaths()
    workflow: Workflow = Workflow()
    retrying: RetryingSettings = RetryingSettings()
    breaker: BreakerSettings = BreakerSettings()
    alerts: AlertSettings = AlertSettings()
    modes: ModeSettings = ModeSettings()
    kpi: KpiSettings = KpiSettings()
    prices: Prices = Prices()
    image: ImageSettings = ImageSettings()
    video: VideoSettings = VideoSettings()
    source: str = DEFAULT_FILE
    warnings: tuple[str, ...] = ()
    missing_secrets: tuple[tuple[str, str], ...] = ()  # alert channels without their secret, with its variable
    channels: tuple[str, ...] = ()  # names; empty: one pipeline, at the root of the bucket
    pipelines: Mapping[str, str] = {}  # your own: "MODULE:ATTRIBUTE" by name
    music: bool = False  # whether the file has settings of the music pipeline


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Read the settings from the file that RETAKE_CONFIG names, or config/config.json in the current directory.

    RETAKE_STORAGE_URL overrides STORAGE.url. A setting that is left out or null has its default. Raises SettingsError
    if there is no such file, if it is not JSON, or with all faults of the file, one per line.
    """
    file = read_settings(environ, SECTIONS, TOP_LEVEL, OLDER_KEYS, (*OF_MUSIC, *OF_IMAGES, *OF_WEB))
    found = file.values
    workflow, storage = found["WORKFLOW"], found["STORAGE"]
    if _lease_expires(storage.url) and not file.gives("WORKFLOW", "call_timeout_seconds"):
        fitting = min(workflow.call_timeout_seconds, 0.75 * workflow.lock_ttl_seconds)
        workflow = workflow._replace(call_timeout_seconds=fitting)
    settings = Settings(
        storage=storage,
        midjourney=found["API_KEYS.midjourney"],
        runwayml=found["API_KEYS.runwayml"],
        openai=found["API_KEYS.openai"],
        paths=found["FILE_PATHS"],
        workflow=workflow,
        retrying=found["RETRYING"],
        breaker=found["BREAKER"],
        alerts=found["ALERTS"],
        missing_secrets=tuple(missing_secrets(found["ALERTS"], environ)),
        modes=found["MODES"],
        kpi=found["KPI"],
        prices=found["PRICES"],
        image=found["IMAGE_GENERATION"],
        video=found["VIDEO"],
        source=file.source,
        warnings=file.warnings,
        channels=found["CHANNELS"],
        pipelines=found["PIPELINES"],
        music="MUSIC" in file.document,
    )
    file.check(chain(secrets_written(settings.alerts, file.document, environ), _contradictions(settings)))
    return settings


_TAKEN = (*RESERVED, "dead_letters", "images", "kept", "paid", "robot", "runs", "spend", "story")
"""Names that no pipeline of your own can have: folders of the bucket, and pipelines on the ledger."""

MAX_CALL_SHARE = 0.8
"""Maximum share of `lock_ttl_seconds` that a call may take in a bucket whose lease expires.

The lease is renewed every third of its term, and a paid call waits for a renewal, so the kill timer leaves it 0.8 of
the term."""


def _lease_expires(url: str) -> bool:
    """Return whether leases of the bucket at `url` expire with time, since no kernel releases them."""
    return url.startswith(("b2:", "s3:"))


def _contradictions(settings: Settings) -> Iterator[str]:
    workflow, paths = settings.workflow, settings.paths._asdict()
    call_s, ttl_s = workflow.call_timeout_seconds, workflow.lock_ttl_seconds
    if _lease_expires(settings.storage.url) and call_s > MAX_CALL_SHARE * ttl_s:
        yield (
            f"WORKFLOW.call_timeout_seconds: found {call_s:g}, allowed: at most {MAX_CALL_SHARE * ttl_s:g}, which is "
            f"{MAX_CALL_SHARE:g} of WORKFLOW.lock_ttl_seconds ({ttl_s:g}), in a bucket whose lease expires: a paid "
            "call must end while the lease lasts. Lower the one or raise the other"
        )
    if workflow.script_timeout_seconds <= workflow.runway_polling_timeout:
        yield (
            f"WORKFLOW.script_timeout_seconds: found {workflow.script_timeout_seconds}, allowed: more than "
            f"WORKFLOW.runway_polling_timeout ({workflow.runway_polling_timeout})"
        )
    provider, endpoint = settings.midjourney.provider, settings.midjourney.endpoint or ""
    if any(f"{other}.ai" in endpoint for other in ("piapi", "legnext") if other != provider):
        yield (
            f"API_KEYS.midjourney.endpoint: found {shown(endpoint)}, allowed: null or an address of "
            f"API_KEYS.midjourney.provider ({provider})"
        )
    yield from unknown_channels(settings.alerts)
    del paths["prompts"]
    yield from _names_taken(settings, paths.values())
    for name, place in paths.items():
        for other, folder in paths.items():
            # If one folder is inside another, a listing of the outer one would show the files of the inner one.
            if name != other and place.startswith(folder) and (place != folder or name > other):
                yield f"FILE_PATHS.{name}: found {shown(place)}, allowed: a place outside FILE_PATHS.{other}"


def _names_taken(settings: Settings, paths: Iterable[str]) -> Iterator[str]:
    """Yield a fault for each of the PIPELINES whose name is already taken. `paths` are those of FILE_PATHS."""
    by_channel = {it.lower(): it for it in settings.channels}
    taken = {*_TAKEN, *(it.partition("/")[0].lower() for it in paths)}
    for name in settings.pipelines:
        if channel := by_channel.get(name.lower()):
            yield f"PIPELINES.{name}: {shown(channel)} is one of the CHANNELS too: give one of them another name"
        elif name.lower() in taken:
            yield f"PIPELINES.{name}: {shown(name)} is a pipeline or a folder of Retake's own: choose another name"


def sandboxed(settings: Settings, base_url: str) -> Settings:
    """Return `settings` with every vendor replaced by its stand-in at `base_url`, polled at least once a second, and
    without alert channels."""
    base = base_url.rstrip("/")
    return settings._replace(
        midjourney=settings.midjourney.in_sandbox(base),
        alerts=settings.alerts._replace(channels=(), escalate=()),
        runwayml=settings.runwayml._replace(endpoint=f"{base}/runway"),
        openai=settings.openai._replace(endpoint=f"{base}/openai/v1"),
        workflow=settings.workflow._replace(runway_polling_interval=min(1, settings.workflow.runway_polling_interval)),
    )


LEASE = "story"
"""The name of the pipeline's lease in its bucket."""

CHANNEL_VARIABLE = "RETAKE_CHANNEL"
"""The environment variable that names the channel to a script."""

SANDBOX_KEYS = Keys("sandbox", "key_sandbox", "sandbox")


def settings_and_keys(environ: Mapping[str, str], *, warn: bool) -> tuple[Settings, Keys]:
    """Return the settings and keys. If the environment names a sandbox, the vendors are replaced by it, and the keys
    are not real ones. Raises SettingsError."""
    settings = load_settings(environ)
    if warn and settings.warnings:
        from logging import getLogger

        for warning in settings.warnings:
            getLogger(__name__).warning("%s", warning)
    if settings.alerts.channels:
        from retake.logs import mask

        mask(environ.get(channel.env, "") for channel in settings.alerts.channels)
    url = environ.get(SANDBOX_VARIABLE)
    return (sandboxed(settings, url), SANDBOX_KEYS) if url else (settings, read_keys(environ))


def open_storage(settings: Settings, *, dead_mans_switch: bool = False) -> Bucket:
    """Open the bucket that the settings name. With `dead_mans_switch`, the kernel ends this process when its lease
    expires."""
    return open_configured(settings.storage, settings.workflow, dead_mans_switch=dead_mans_switch)


def part_of(bucket: Bucket, settings: Settings, channel: str | None) -> Bucket:
    """Return the part of the bucket that belongs to the channel's pipeline, or all of it without channels.

    Raises SettingsError for a channel that is not one of CHANNELS, or for None if one must be named.
    """
    if not settings.channels and not channel:
        return bucket
    if channel not in settings.channels:
        if not settings.channels:
            raise SettingsError(f"{channel!r} is named as the channel, but the settings have no CHANNELS: leave it out")
        what = f"{channel!r} is not one of the" if channel else "this is about one of the"
        named = ", ".join(settings.channels)
        raise SettingsError(f"{what} CHANNELS ({named}): name it by --channel NAME, or in {CHANNEL_VARIABLE}")
    part = bucket.part(prefix_of(channel))
    if channel and _lease_expires(bucket.url):
        from retake.ticking.channel_versions import MarkedPart

        return MarkedPart(part, bucket, channel, deciding_places(settings.paths))
    return part


def deciding_places(paths: FilePaths) -> tuple[str, ...]:
    """Return the documents and folders that decide whether a tick finds nothing to do, or only waits for a picture."""
    return (*paths.documents, *paths.folders.staged)


def prefix_of(channel: str | None) -> str:
    """Return the prefix of a channel's part of the bucket, or "" without channels. It also distinguishes generations of
    several channels that have the same id."""
    return f"{channel}/" if channel else ""


def pipeline_of(channel: str | None) -> str:
    """Return the name of a channel's pipeline on the ledger."""
    return f"story/{channel}" if channel else "story"
