"""The sections that the settings of every pipeline share: the bucket, the vendors, retry delays, breakers, figures."""

from typing import NamedTuple

from retake.settings.schema import (
    BUCKET_URL,
    ENDPOINT,
    LEDGER_URL,
    RATIO,
    SECONDS,
    TEXT,
    UMASK,
    YES_OR_NO,
    Schema,
    between,
    choice,
    field,
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
    factor: float = field(between(1, 100), "by which the delay is multiplied each time, for exponential", default=2)
    max_seconds: float = field(SECONDS, "the longest delay in seconds", default=3600)
    jitter_percent: float = field(
        between(0, 100), "by how much a delay is shortened or lengthened at random, in percent", default=10
    )


class BreakerSettings(NamedTuple):
    """When a vendor that keeps failing is not called for a while."""

    failures: int | None = field(
        whole(1, 1000), "failures of a vendor that open its circuit breaker; null is no breaker", default=None
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
        "file for Prometheus that each tick with something to do replaces; null is none",
        default=None,
    )


SHARED: dict[str, Schema] = {
    "STORAGE": schema_of(StorageSettings),
    "API_KEYS.midjourney": schema_of(MidjourneySettings),
    "API_KEYS.runwayml": schema_of(RunwaySettings),
    "API_KEYS.openai": schema_of(OpenaiSettings),
    "RETRYING": schema_of(RetryingSettings),
    "BREAKER": schema_of(BreakerSettings),
    "KPI": schema_of(KpiSettings),
}
"""By where they stand in the file."""
