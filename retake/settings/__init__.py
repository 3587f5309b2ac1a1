"""The settings (one JSON file), and the keys (environment only).

Each setting is declared once, as a field of its section: name, type, default, what is allowed, what it means.
Reading and checking a file, and the test that holds docs/settings.md against the code, derive from that.

An idle tick loads this module: named tuples, no regular expressions compiled, nothing imported that a sound file does
not need.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from retake.errors import SettingsError
from retake.foreign_text import plain, shown
from retake.keys import written_down
from retake.settings.rules import (
    BUCKET_URL,
    CHANNELS,
    ENDPOINT,
    FOLDER,
    KEY,
    LEDGER_URL,
    PATIENCE,
    RATIO,
    SECONDS,
    SIZE,
    TEXT,
    UMASK,
    USD,
    YES_OR_NO,
    Rule,
    Size,
    above_zero,
    between,
    choice,
    from_zero,
    whole,
)
from retake.settings.schema import resembled
from retake.strict_json import parse

T = TypeVar("T")

DEFAULT_FILE = "config/config.json"

ENVIRONMENT = {
    "RETAKE_CONFIG": "the settings file, instead of config/config.json",
    "RETAKE_STORAGE_URL": "the bucket, instead of STORAGE.url",
    "RETAKE_CHANNEL": "the channel that a command run by hand is about, where it is not named by --channel",
    "RETAKE_SANDBOX_URL": "the base URL of a running sandbox; the vendors' endpoints are then its stand-ins",
}


class Declared(NamedTuple):
    """What is known of one setting beside its name and type."""

    default: Any
    rule: Rule
    meaning: str


class Section(NamedTuple):
    """One section: its type, and its settings by name."""

    type: Any
    settings: dict[str, Declared]


SECTIONS: dict[str, Section] = {}
"""The sections by where they stand in the file («WORKFLOW», «API_KEYS.openai»), in the order of their declaration."""


def _setting(default: T, rule: Rule, meaning: str) -> T:
    """Declare a field of a section, as dataclasses.field does: `_stands_at` puts the default in its place."""
    return Declared(default, rule, meaning)  # type: ignore[return-value]


def _stands_at(path: str) -> Callable[[type[T]], type[T]]:
    """Register the section that stands at `path`, and give its fields their defaults."""

    def register(section: Any) -> Any:
        settings: dict[str, Declared] = section._field_defaults
        section.__new__.__defaults__ = tuple(setting.default for setting in settings.values())
        section._field_defaults = {name: setting.default for name, setting in settings.items()}
        SECTIONS[path] = Section(section, settings)
        return section

    return register


@_stands_at("STORAGE")
class Storage(NamedTuple):
    """Where state lives."""

    url: str = _setting("file:bucket", BUCKET_URL, "the bucket; a relative path is relative to the current directory")
    ledger: str | None = _setting(
        None, LEDGER_URL, "where runs and their events are kept; null is in the bucket, each pipeline's in its own part"
    )
    umask: str = _setting(
        "077", UMASK, "the permissions that new files and folders of a bucket in a directory withhold from others"
    )
    follow_links: bool = _setting(False, YES_OR_NO, "whether folders of a bucket in a directory may be symbolic links")


@_stands_at("API_KEYS.midjourney")
class Midjourney(NamedTuple):
    """Pictures."""

    provider: str = _setting("piapi", choice("piapi", "legnext"), "who sells them")
    endpoint: str | None = _setting(
        None, ENDPOINT, "where tasks are created (piapi) or the base URL (legnext); null is the provider's own"
    )
    task_endpoint: str | None = _setting(
        None, ENDPOINT, "where tasks are asked for (piapi alone); null is the provider's own"
    )
    process_mode: str = _setting("fast", choice("relax", "fast", "turbo"), "how quickly, and so for how much")
    aspect_ratio: str = _setting("16:9", RATIO, "shape of the pictures")


@_stands_at("API_KEYS.runwayml")
class Runwayml(NamedTuple):
    """Videos."""

    endpoint: str | None = _setting(None, ENDPOINT, "base URL; null is the vendor's own")
    model_name: str = _setting("gen4_turbo", TEXT, "the vendor's name of the model")


@_stands_at("API_KEYS.openai")
class Openai(NamedTuple):
    """Texts, from any OpenAI-compatible chat API."""

    endpoint: str = _setting("https://api.openai.com/v1", ENDPOINT, "base URL, ending in /v1")
    model: str = _setting("gpt-4o", TEXT, "the vendor's name of the model")


@_stands_at("FILE_PATHS")
class FilePaths(NamedTuple):
    """Keys in the bucket. Folders end in «/»."""

    config_public: str = _setting("config/config_public.json", KEY, "document shared with the publisher")
    config_gen: str = _setting("config/config_gen.json", KEY, "document that names the present generation")
    config_midjourney: str = _setting("config/config_midjourney.json", KEY, "document of the generation's progress")
    folder_444: str = _setting("444/", FOLDER, "last folder: next to be published")
    folder_555: str = _setting("555/", FOLDER, "middle folder")
    folder_666: str = _setting("666/", FOLDER, "first folder: where new files are made")
    archive_folder: str = _setting("archive/", FOLDER, "where published files go")
    prompts: str | None = _setting(
        None,
        TEXT,
        "file (not in the bucket) of the prompts; null is prompts.json beside the settings file, else the one "
        "beside the code",
    )


@_stands_at("WORKFLOW")
class Workflow(NamedTuple):
    """How often, how long, and what then."""

    max_retries: int = _setting(3, whole(0, 100), "how many times a failed step is tried again")
    max_tasks_per_run: int = _setting(1, whole(1), "how many tasks one tick may do")
    mj_timeout_seconds: float = _setting(
        18000, PATIENCE, "seconds after which a Midjourney task in flight is given up and a mock is made"
    )
    runway_polling_timeout: float = _setting(300, PATIENCE, "seconds that one tick waits for a video")
    runway_polling_interval: float = _setting(15, PATIENCE, "seconds between two looks at a video's task")
    runway_timeout_seconds: float = _setting(
        18000, PATIENCE, "seconds since a Runway task's creation after which a failed or timed-out polling gives it up"
    )
    script_timeout_seconds: float = _setting(
        900, SECONDS, "seconds after which a script is ended; must exceed runway_polling_timeout"
    )
    call_timeout_seconds: float = _setting(
        90,
        SECONDS,
        "seconds that one call of a vendor may take to answer; where the lease runs out (B2, S3) at most 0.8 of "
        "lock_ttl_seconds, and 0.75 of it by default if that is less",
    )
    max_picture_bytes: int = _setting(64 * 2**20, whole(1), "bytes of a picture; a larger one is not downloaded")
    max_video_bytes: int = _setting(2 * 2**30, whole(1), "bytes of a video; a larger one is not downloaded")
    lock_ttl_seconds: float = _setting(
        120, SECONDS, "seconds after which the lease of a manager that died is free, in a bucket without locks (B2, S3)"
    )
    lock_skew_seconds: float | None = _setting(
        None,
        PATIENCE,
        "seconds by which two clocks of the store may differ; null is a quarter of the above, 30 at most",
    )
    on_exhausted: str = _setting("fail", choice("fail", "mock"), "what follows when the attempts of a step are used up")
    on_unknown_outcome: str = _setting(
        "retry", choice("retry", "hold"), "what follows when nobody can know whether a paid call was carried out"
    )
    critical_retry_minutes: float = _setting(
        60, from_zero(525_600), "minutes before a call that met a refused key or lack of credit is tried again"
    )
    channel_concurrency: int = _setting(16, whole(1, 1000), "channels that one tick works on at the same time")
    max_failed_in_a_row: int = _setting(
        3, whole(1), "failed generations in a row after which none is begun until the operator resumes"
    )
    daily_cap_usd: float | None = _setting(
        None, USD, "what all channels together may spend in a day (UTC), in US dollars; null is as much as it takes"
    )
    channel_cap_usd: float | None = _setting(
        None, USD, "what one channel may spend in a day (UTC), in US dollars; null is no limit of its own"
    )


@_stands_at("RETRYING")
class Retrying(NamedTuple):
    """How long what failed waits before it is tried again, counted from its failure."""

    strategy: str = _setting(
        "none",
        choice("none", "fixed", "linear", "exponential", "fibonacci"),
        "how the wait grows from one retry of a step to the next; none is no wait but that for the next tick",
    )
    first_seconds: float = _setting(60, SECONDS, "seconds before the first retry")
    factor: float = _setting(2, between(1, 100), "what the wait is multiplied by each time, for exponential")
    max_seconds: float = _setting(3600, SECONDS, "seconds that no wait exceeds")
    jitter_percent: float = _setting(
        10, between(0, 100), "by how much a wait is shortened or lengthened at random, in percent"
    )


@_stands_at("BREAKER")
class BreakerSettings(NamedTuple):
    """When a vendor that fails again and again is left alone for a while."""

    failures: int | None = _setting(
        None, whole(1, 1000), "failures of a vendor that open its circuit breaker; null is no breaker"
    )
    window_seconds: float = _setting(300, SECONDS, "seconds within which these failures count")
    open_seconds: float = _setting(60, SECONDS, "seconds that the vendor is left alone before one call tries it")


@_stands_at("PRICES")
class Prices(NamedTuple):
    """What a paid call costs, in US dollars. Null is the price that is known of the vendor, mode and model in use."""

    content: float | None = _setting(None, USD, "one call to the chat API")
    imagine: float | None = _setting(None, USD, "one order of four pictures")
    upscale: float | None = _setting(None, USD, "one upscale")
    runway_second: float | None = _setting(None, USD, "one second of video")
    unknown_factor: float = _setting(
        2, above_zero(1000), "how many times the dearest known price a mode or model of unknown price counts as"
    )


@_stands_at("IMAGE_GENERATION")
class Image(NamedTuple):
    """The still picture."""

    output_size: Size = _setting(Size(1280, 720), SIZE, "size of the saved picture and of the mock video, in pixels")
    pick: str = _setting("first", choice("first", "vision"), "which of the four pictures is upscaled")


@_stands_at("VIDEO")
class Video(NamedTuple):
    """The video, and the mock that stands in for it."""

    mock_duration: float = _setting(10, above_zero(600), "length of a mock video, in seconds")
    mock_fps: int = _setting(24, whole(1, 120), "frames a second of a mock video")
    mock_codec: str = _setting("libx264", TEXT, "ffmpeg's name of the encoder of a mock video")
    runway_duration: int = _setting(10, whole(2, 30), "length of a Runway video, in seconds")
    runway_ratio: str = _setting("1280:720", RATIO, "shape of a Runway video, in pixels")


class Settings(NamedTuple):
    """All settings, checked. `source` is the file they were read from; `warnings` are for the caller to log, once."""

    storage: Storage = Storage()
    midjourney: Midjourney = Midjourney()
    runwayml: Runwayml = Runwayml()
    openai: Openai = Openai()
    paths: FilePaths = FilePaths()
    workflow: Workflow = Workflow()
    retrying: Retrying = Retrying()
    breaker: BreakerSettings = BreakerSettings()
    prices: Prices = Prices()
    image: Image = Image()
    video: Video = Video()
    source: str = DEFAULT_FILE
    warnings: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()  # names; none: one pipeline, at the root of the bucket


_PREDECESSOR = {
    "": "CONTENT SARCASM GENERATE OPENAI_SETTINGS",
    "API_KEYS": "b2",
    "FILE_PATHS": "meta_folder scripts_folder content_output_path final_content_path feedback_file "
    "before_critique_path after_critique_path config_public_local log_folder output_image_format "
    "creative_config prompts_config",
    "WORKFLOW": "enable_russian_translation",
    "IMAGE_GENERATION": "midjourney_version midjourney_style",
    "VIDEO": "placeholder_bg_color placeholder_text_color",
}
"""By section, unknown names that are no misspellings, however much they look like it: the predecessor's files have
them."""


def load_settings(environ: Mapping[str, str]) -> Settings:
    """The settings, from the file that RETAKE_CONFIG names or config/config.json in the current directory.

    RETAKE_STORAGE_URL takes the place of STORAGE.url. What a file leaves out, or sets to null, has its default.
    Raises SettingsError: no such file, not JSON, or every fault of the file, one a line.
    """
    source = environ.get("RETAKE_CONFIG") or DEFAULT_FILE
    document = _read_document(source)
    faults = list(written_down(document))
    sections = {path: section.type(**_read(document, path, section, faults)) for path, section in SECTIONS.items()}
    if override := environ.get("RETAKE_STORAGE_URL"):
        sections["STORAGE"] = sections["STORAGE"]._replace(url=_read_override(override, faults))
    channels = _channels(document, faults)
    warnings = _warnings(source, _unknown(document, faults))
    if _lease_runs_out(sections["STORAGE"].url) and _at(document, "WORKFLOW", []).get("call_timeout_seconds") is None:
        workflow = sections["WORKFLOW"]
        fitting = min(workflow.call_timeout_seconds, 0.75 * workflow.lock_ttl_seconds)
        sections["WORKFLOW"] = workflow._replace(call_timeout_seconds=fitting)
    settings = Settings._make([*sections.values(), source, warnings, channels])
    faults = faults or list(_contradictions(settings))
    if faults:
        raise SettingsError(
            "\n".join([f"{plain(source)}: these settings cannot be used; nothing was changed:", *faults])
        )
    return settings


def _read_document(source: str) -> dict[str, Any]:
    named = plain(source)
    try:
        with open(source, "rb") as file:
            document = parse(file.read().decode("utf-8-sig"))
    except FileNotFoundError:
        raise SettingsError(
            f"{named}: there is no such settings file; run from the folder that has it, or name it in RETAKE_CONFIG"
        ) from None
    except OSError as error:
        raise SettingsError(f"{named}: the settings file cannot be read: {error.strerror}; mend that") from None
    except json.JSONDecodeError as error:
        raise SettingsError(
            f"{named}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}; mend it there"
        ) from None
    except ValueError as error:  # not UTF-8, a name given twice, nested or long beyond reason
        raise SettingsError(f"{named}: the settings file makes no sense: {error}") from None
    if not isinstance(document, dict):
        raise SettingsError(
            f'{named}: the settings must be a JSON object, such as {{"WORKFLOW": {{"max_retries": 3}}}}'
        )
    return document


def _read(document: dict[str, Any], path: str, section: Section, faults: list[str]) -> dict[str, Any]:
    """The values that `document` gives for `section`; what is wrong with them goes to `faults`."""
    found = _at(document, path, faults)
    values = {}
    for name, (_, rule, _) in section.settings.items():
        value = found.get(name)
        if value is None:
            continue
        try:
            values[name] = rule.read(value)
        except ValueError:
            faults.append(f"{path}.{name}: found {shown(value)}, allowed: {rule.allowed}")
    return values


def _at(document: dict[str, Any], path: str, faults: list[str]) -> dict[str, Any]:
    """The object at `path` («API_KEYS.openai»); an empty one if there is none."""
    found: Any = document
    walked = []
    for part in path.split("."):
        walked.append(part)
        found = found.get(part)
        if found is None:
            return {}
        if not isinstance(found, dict):
            fault = f"{'.'.join(walked)}: found {shown(found)}, allowed: an object {{…}}"
            if fault not in faults:  # API_KEYS is on the way of three sections
                faults.append(fault)
            return {}
    return found  # type: ignore[no-any-return]


def _read_override(url: str, faults: list[str]) -> str:
    try:
        return str(BUCKET_URL.read(url.strip()))
    except ValueError:
        faults.append(f"RETAKE_STORAGE_URL: found {shown(url)}, allowed: {BUCKET_URL.allowed}")
        return ""


def _channels(document: dict[str, Any], faults: list[str]) -> tuple[str, ...]:
    """CHANNELS, a list beside the sections."""
    try:
        return tuple(CHANNELS.read(document.get("CHANNELS") or []))
    except ValueError:
        faults.append(f"CHANNELS: found {shown(document['CHANNELS'])}, allowed: {CHANNELS.allowed}")
        return ()


LONGEST_CALL = 0.8
"""The part of `lock_ttl_seconds` that a call may take where the lease runs out.

A renewal at each third of the term leaves at least two thirds of it, so a paid call waits for one and then has 0.8 of
the term before the kernel ends it (retake.story.intent)."""


def _lease_runs_out(url: str) -> bool:
    """Whether the bucket at `url` has leases that no kernel watches over, so that they end by the clock."""
    return url.startswith(("b2:", "s3:"))


def _contradictions(settings: Settings) -> Iterator[str]:
    workflow, paths = settings.workflow, settings.paths._asdict()
    call_s, ttl_s = workflow.call_timeout_seconds, workflow.lock_ttl_seconds
    if _lease_runs_out(settings.storage.url) and call_s > LONGEST_CALL * ttl_s:
        yield (
            f"WORKFLOW.call_timeout_seconds: found {call_s:g}, allowed: at most {LONGEST_CALL * ttl_s:g}, which is "
            f"{LONGEST_CALL:g} of WORKFLOW.lock_ttl_seconds ({ttl_s:g}), in a bucket whose lease runs out: a paid call "
            "must end while the lease lasts. Lower the one or raise the other"
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
    del paths["prompts"]
    for name, place in paths.items():
        for other, folder in paths.items():
            # Of two folders one in the other, a listing of the outer one would show the files of the inner one.
            if name != other and place.startswith(folder) and (place != folder or name > other):
                yield f"FILE_PATHS.{name}: found {shown(place)}, allowed: a place outside FILE_PATHS.{other}"


def _known() -> dict[str, list[str]]:
    """The names that may stand in each object of the file: {"": [sections], "WORKFLOW": [settings], …}."""
    known: dict[str, list[str]] = {"": ["CHANNELS"]}
    for path, section in SECTIONS.items():
        parent, _, name = path.rpartition(".")
        if parent and parent not in known:
            known[""].append(parent)
        known.setdefault(parent, []).append(name)
        known[path] = list(section.settings)
    return known


def _unknown(document: dict[str, Any], faults: list[str]) -> list[str]:
    """The keys of `document` that no setting has. Those that look like a misspelt one go to `faults` instead."""
    unknown = []
    for path, names in _known().items():
        for key in _at(document, path, []) if path else document:
            full = f"{path}.{key}" if path else key
            if key in names:
                continue
            if key not in _PREDECESSOR.get(path, "").split() and (meant := resembled(key, names)):
                faults.append(f"{plain(full)}: unknown setting, did you mean {meant}?")
            else:
                unknown.append(plain(full))
    return unknown


def _warnings(source: str, unknown: list[str]) -> tuple[str, ...]:
    if not unknown:
        return ()
    listed = ", ".join(unknown[:30]) + (f" and {len(unknown) - 30} more" if len(unknown) > 30 else "")
    return (f"{plain(source)}: settings that are not known here are left alone: {listed}",)


def sandboxed(settings: Settings, base_url: str) -> Settings:
    """`settings` with every vendor replaced by its stand-in at `base_url`, which is polled each second at least."""
    base, legnext = base_url.rstrip("/"), settings.midjourney.provider == "legnext"
    return settings._replace(
        midjourney=settings.midjourney._replace(
            endpoint=f"{base}/legnext/api" if legnext else f"{base}/piapi/api/v1/task",
            task_endpoint=None if legnext else f"{base}/piapi/mj/v2/fetch",
        ),
        runwayml=settings.runwayml._replace(endpoint=f"{base}/runway"),
        openai=settings.openai._replace(endpoint=f"{base}/openai/v1"),
        workflow=settings.workflow._replace(runway_polling_interval=min(1, settings.workflow.runway_polling_interval)),
    )
