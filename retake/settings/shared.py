"""The settings that all pipelines share: the bucket, the vendors, retry delays, breakers, figures."""

from typing import Any, NamedTuple

from retake.settings.schema import (
    BUCKET_URL,
    ENDPOINT,
    IMPORT,
    LEDGER_URL,
    NAME,
    PATIENCE,
    RATIO,
    SECONDS,
    TEXT,
    UMASK,
    USD,
    YES_OR_NO,
    Field,
    NamedValues,
    Rule,
    Schema,
    above_zero,
    between,
    choice,
    field,
    from_zero,
    schema_of,
    whole,
)


class StorageSettings(NamedTuple):
    """Where state lives."""

    url: str = field(
        BUCKET_URL, "the bucket; a relative path is relative to the current directory", default="file:bucket"
    )
    ledger: str | None = field(
        LEDGER_URL,
        "where runs and their events are kept; null is in the bucket, each pipeline's in its own part",
        default=None,
    )
    umask: str = field(
        UMASK,
        "the permissions that new files and folders of a bucket in a directory deny to others",
        default="077",
    )
    follow_links: bool = field(
        YES_OR_NO, "whether folders of a bucket in a directory may be symbolic links", default=False
    )
    keep_authorization: bool = field(
        YES_OR_NO, "whether B2's authorisation is kept for later processes, in a file of this user's", default=True
    )


class MidjourneySettings(NamedTuple):
    """Pictures."""

    provider: str = field(choice("piapi", "legnext"), "the provider", default="piapi")
    endpoint: str | None = field(
        ENDPOINT, "where tasks are created (piapi) or the base URL (legnext); null is the provider's own", default=None
    )
    task_endpoint: str | None = field(
        ENDPOINT, "where tasks are fetched (piapi only); null is the provider's own", default=None
    )
    process_mode: str = field(choice("relax", "fast", "turbo"), "speed, and with it price", default="fast")
    aspect_ratio: str = field(RATIO, "shape of the pictures", default="16:9")

    def in_sandbox(self, base: str) -> "MidjourneySettings":
        """Return the settings with the provider replaced by its stand-in in the sandbox at `base`."""
        if self.provider == "legnext":
            return self._replace(endpoint=f"{base}/legnext/api", task_endpoint=None)
        return self._replace(endpoint=f"{base}/piapi/api/v1/task", task_endpoint=f"{base}/piapi/mj/v2/fetch")


class RunwaySettings(NamedTuple):
    """Videos."""

    endpoint: str | None = field(ENDPOINT, "base URL; null is the vendor's own", default=None)
    model_name: str = field(TEXT, "the vendor's name for the model", default="gen4_turbo")


class OpenaiSettings(NamedTuple):
    """Texts, from any OpenAI-compatible chat API."""

    endpoint: str = field(ENDPOINT, "base URL, ending in /v1", default="https://api.openai.com/v1")
    model: str = field(TEXT, "the vendor's name for the model", default="gpt-4o")


class RetryingSettings(NamedTuple):
    """The delay before a failed step is retried, counted from its failure."""

    strategy: str = field(
        choice("none", "fixed", "linear", "exponential", "fibonacci"),
        "how the delay grows from one retry of a step to the next; none waits only for the next tick",
        default="none",
    )
    first_seconds: float = field(SECONDS, "seconds before the first retry", default=60)
    factor: float = field(between(1, 100), "the factor by which the delay grows each time, for exponential", default=2)
    max_seconds: float = field(SECONDS, "the longest delay in seconds", default=3600)
    jitter_percent: float = field(
        between(0, 100), "by how much a delay is shortened or lengthened at random, in percent", default=10
    )


class BreakerSettings(NamedTuple):
    """When to stop calling a vendor that keeps failing, and for how long."""

    failures: int | None = field(
        whole(1, 1000), "failures of a vendor that open its circuit breaker; null means no breaker", default=None
    )
    window_seconds: float = field(SECONDS, "seconds within which these failures count", default=300)
    open_seconds: float = field(SECONDS, "seconds without calls to the vendor before one call probes it", default=60)


class KpiSettings(NamedTuple):
    """The figures of runs: which count, and where they are kept."""

    window_seconds: float = field(
        SECONDS,
        "seconds that alerts, metrics and, without --window, the command kpi look back",
        default=86400,
    )
    min_runs: int = field(whole(1, 1_000_000), "runs that must have ended before the rates count", default=10)
    snapshot_seconds: float = field(SECONDS, "seconds between two snapshots of what was counted", default=300)
    textfile: str | None = field(
        TEXT,
        "file for Prometheus that each tick with something to do replaces; null means none",
        default=None,
    )


class Workflow(NamedTuple):
    """Numbers of retries, time limits, and what follows them."""

    max_retries: int = field(whole(0, 100), "how often a failed step is retried", default=3)
    max_tasks_per_run: int = field(whole(1), "tasks that one tick may do", default=1)
    mj_timeout_seconds: float = field(
        PATIENCE,
        "seconds after which a Midjourney task that is not ready is given up and a mock is made",
        default=18000,
    )
    runway_polling_timeout: float = field(PATIENCE, "seconds that one tick waits for a video", default=300)
    runway_polling_interval: float = field(PATIENCE, "seconds between two polls of a video's task", default=15)
    runway_timeout_seconds: float = field(
        PATIENCE,
        "seconds since a Runway task's creation after which a failed or timed-out polling gives it up",
        default=18000,
    )
    script_timeout_seconds: float = field(
        SECONDS, "seconds after which a script is ended; must exceed runway_polling_timeout", default=900
    )
    call_timeout_seconds: float = field(
        SECONDS,
        "seconds that one call of a vendor may take to answer; where the lease runs out (B2, S3) at most 0.8 of "
        "lock_ttl_seconds, and 0.75 of it by default if that is less",
        default=90,
    )
    max_picture_bytes: int = field(
        whole(1), "maximum size of a picture in bytes; a larger one is not downloaded", default=64 * 2**20
    )
    max_video_bytes: int = field(
        whole(1), "maximum size of a video in bytes; a larger one is not downloaded", default=2 * 2**30
    )
    lock_ttl_seconds: float = field(
        SECONDS,
        "seconds after which the lease of a manager that died expires, in a bucket without locks (B2, S3)",
        default=120,
    )
    lock_skew_seconds: float | None = field(
        PATIENCE,
        "seconds by which two clocks of the store may differ; null is a quarter of lock_ttl_seconds, 30 at most",
        default=None,
    )
    on_exhausted: str = field(
        choice("fail", "mock"), "what to do when the retries of a step are used up", default="fail"
    )
    on_unknown_outcome: str = field(
        choice("retry", "hold"),
        "what to do when the outcome of a paid call is unknown",
        default="retry",
    )
    critical_retry_minutes: float = field(
        from_zero(525_600),
        "minutes before a call that failed for a refused key or lack of credit is retried",
        default=60,
    )
    channel_concurrency: int = field(whole(1, 1000), "channels that one tick works on at the same time", default=16)
    remembered_looks: bool = field(
        YES_OR_NO,
        "whether a file in the user's cache remembers what an idle tick saw, so that the next one may rest",
        default=True,
    )
    full_look_minutes: float = field(
        above_zero(1440), "minutes after which a tick looks at everything again, whatever is remembered", default=60
    )
    max_failed_in_a_row: int = field(
        whole(1), "failed generations in a row after which no new one is begun until the operator resumes", default=3
    )
    daily_cap_usd: float | None = field(
        USD,
        "what all channels together may spend in a day (UTC), in US dollars; null means no limit",
        default=None,
    )
    channel_cap_usd: float | None = field(
        USD, "what one channel may spend in a day (UTC), in US dollars; null means no limit of its own", default=None
    )


class Prices(NamedTuple):
    """What a paid call costs, in US dollars. Null means the known price of the vendor, mode and model in use."""

    content: float | None = field(USD, "one call to the chat API", default=None)
    imagine: float | None = field(USD, "one order of four pictures", default=None)
    upscale: float | None = field(USD, "one upscale", default=None)
    runway_second: float | None = field(USD, "one second of video", default=None)
    unknown_factor: float = field(
        above_zero(1000),
        "factor by which the dearest known price is multiplied for a mode or model of unknown price",
        default=2,
    )


SHARED: dict[str, Schema] = {
    "STORAGE": schema_of(StorageSettings),
    "API_KEYS.midjourney": schema_of(MidjourneySettings),
    "API_KEYS.runwayml": schema_of(RunwaySettings),
    "API_KEYS.openai": schema_of(OpenaiSettings),
    "WORKFLOW": schema_of(Workflow),
    "RETRYING": schema_of(RetryingSettings),
    "BREAKER": schema_of(BreakerSettings),
    "KPI": schema_of(KpiSettings),
    "PRICES": schema_of(Prices),
}
"""The shared sections, by their path in the file."""

SANDBOX_VARIABLE = "RETAKE_SANDBOX_URL"
"""The environment variable that points every vendor at a sandbox."""

RESERVED = ("alerts", "breakers", "caps", "kpi", "mode", "music")
"""Folders at the root of the bucket that all channels share: no channel can have their names."""


def _read_channels(value: Any) -> tuple[str, ...]:
    if not value:
        return ()
    if not isinstance(value, list) or len(set(map(str, value))) < len(value):
        raise ValueError
    for name in value:
        bare = TEXT.read(name).replace("-", "").replace("_", "").replace(".", "")
        if not (bare.isascii() and bare.isalnum() and len(name) <= 64 and not name.startswith(".")):
            raise ValueError
        if name.lower() in RESERVED:
            raise ValueError
    return tuple(value)


CHANNELS = Field(
    Rule(
        'list of different names (letters, digits, "-", "_", "."; at most 64 characters, the first not "."), other '
        'than "alerts", "breakers", "caps", "kpi", "mode" and "music"',
        _read_channels,
    ),
    "the pipelines that one tick serves",
    default=(),
)

PIPELINES = Field(
    NamedValues(IMPORT, NAME),
    "pipelines of your own that the console and the dashboard show, by name",
    default={},
)

TOP_LEVEL = {"CHANNELS": CHANNELS, "PIPELINES": PIPELINES}
"""The settings beside the sections."""

OLDER_KEYS = {
    "": "CONTENT SARCASM GENERATE OPENAI_SETTINGS",
    "API_KEYS": "b2",
    "FILE_PATHS": "meta_folder scripts_folder content_output_path final_content_path feedback_file "
    "before_critique_path after_critique_path config_public_local log_folder output_image_format "
    "creative_config prompts_config",
    "WORKFLOW": "enable_russian_translation",
    "IMAGE_GENERATION": "midjourney_version midjourney_style",
    "VIDEO": "placeholder_bg_color placeholder_text_color",
}
"""By section, keys that older settings files contain. They are ignored, even if one resembles a misspelt setting."""

OF_MUSIC = ("MUSIC", "API_KEYS.telegram", "API_KEYS.youtube")
OF_IMAGES = ("IMAGES",)
OF_WEB = ("WEB",)
OF_STORY = ("FILE_PATHS", "IMAGE_GENERATION", "VIDEO")
"""The sections of one pipeline each. The other pipelines, which read the same file, ignore them."""
