"""The settings of the image-job service: the shared sections, its own (IMAGES), and the environment."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from retake.errors import SettingsError
from retake.settings.reader import DEFAULT_FILE, read_settings
from retake.settings.schema import (
    BUCKET_URL,
    ENDPOINT,
    SECONDS,
    Field,
    above_zero,
    field,
    from_zero,
    read_field,
    schema_of,
    several,
    whole,
)
from retake.settings.shared import (
    OF_MUSIC,
    OF_STORY,
    OF_WEB,
    OLDER_KEYS,
    SHARED,
    TOP_LEVEL,
    StorageSettings,
    Workflow,
)

_USER = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

EVERYBODY = "*"
"""In IMAGES_KEYS, in place of a user: this key acts for every user."""

RESERVED_USER = "jobs"
"""A name that no user can have: the files of jobs are below it."""


class ImageJobSettings(NamedTuple):
    """Settings of the image-job service. Seconds may have fractions."""

    comfyui_urls: tuple[str, ...] = field(several(ENDPOINT), "the ComfyUI servers", default=())
    comfyui_discovery_url: str | None = field(
        ENDPOINT, "URL of a JSON list of ComfyUI servers; null means none", default=None
    )
    comfyui_check_seconds: float = field(
        SECONDS, "seconds between two checks of which ComfyUI servers answer", default=10
    )
    comfyui_timeout_seconds: float = field(SECONDS, "seconds that an attempt may take on ComfyUI", default=600)
    active_seconds: float = field(SECONDS, "seconds between two cycles of the dispatcher", default=5)
    idle_seconds: float = field(SECONDS, "the same while nobody makes jobs or asks for results", default=60)
    idle_after_seconds: float = field(from_zero(31_536_000), "seconds without either until it is idle", default=30)
    cache_ttl_seconds: float = field(SECONDS, "seconds that a dispatcher keeps a result in its memory", default=60)
    result_grace_seconds: float = field(
        from_zero(31_536_000), "seconds that a result is kept after its first delivery", default=60
    )
    result_ttl_seconds: float = field(SECONDS, "seconds that a result is kept if nobody asks for it", default=86_400)
    resend_after_seconds: float = field(
        SECONDS, "seconds without a change until a job may be sent to its queue again", default=30
    )
    worker_silence_seconds: float = field(
        above_zero(86_400), "seconds without a heartbeat before a worker, or ComfyUI with a prompt, is given up",
        default=15,
    )  # fmt: skip
    orphan_after_seconds: float = field(
        SECONDS, "age in seconds at which files of an unknown job are deleted", default=3600
    )
    task_execution_max_retries: int = field(whole(0, 100), "how often a failed execution is retried", default=2)
    retry_seconds: float = field(
        from_zero(86_400), "seconds before the first retry; doubled before each further one", default=5
    )
    delivery_limit: int = field(whole(1, 1000), "how many workers may die of one job before it is given up", default=5)
    comfyui_death_limit: int = field(
        whole(1, 1000), "how often ComfyUI may go away while it executes one job before that is a failed attempt",
        default=5,
    )  # fmt: skip
    rate_per_minute: int = field(
        whole(1, 1_000_000), "maximum number of jobs and uploads of one user in a minute", default=60
    )
    max_upload_bytes: int = field(whole(1, 2**30), "maximum size of an uploaded picture in bytes", default=20_971_520)
    max_files: int = field(whole(1, 1000), "maximum number of pictures in one upload", default=20)
    start_seconds: float = field(
        from_zero(86_400), "seconds within which each service must answer at the start", default=30
    )


SECTIONS = {"STORAGE": SHARED["STORAGE"], "WORKFLOW": SHARED["WORKFLOW"], "IMAGES": schema_of(ImageJobSettings)}
"""The sections of the settings file that the image-job service reads."""

_OTHERS = (*OF_STORY, *OF_MUSIC, *OF_WEB, *(name for name in SHARED if name not in SECTIONS), "ALERTS", "MODES")

ENVIRONMENT = {
    "REDIS_URL": "Redis, which holds the jobs: redis://HOST:PORT/N, or rediss:// with TLS; :PASSWORD@ before HOST",
    "RABBITMQ_URL": "RabbitMQ, which holds messages: amqp://HOST:PORT/VHOST, or amqps://; USER:PASSWORD@ before HOST",
    "DATABASE_URL": "PostgreSQL, which holds jobs2; not set, or empty: POST /jobs answers 503",
    "IMAGES_STORAGE_URL": "the bucket of the image-job service, written like STORAGE.url; not the same one",
    "IMAGES_KEYS": "who may call the API: alice=KEY,*=KEY; the key of * acts for every user",
    "RETAKE_COMFYUI_URLS": "the ComfyUI servers, separated by commas, instead of IMAGES.comfyui_urls",
}
"""The variables that the image-job service reads, from the environment or .env, and the purpose of each."""

_SCHEMES = {
    "REDIS_URL": ("redis", "rediss"),
    "RABBITMQ_URL": ("amqp", "amqps"),
    "DATABASE_URL": ("postgresql", "postgres"),
}


class Places(NamedTuple):
    """The URLs of the services, with passwords: never logged or shown in full."""

    redis: str = ""
    rabbitmq: str = ""
    database: str = ""  # empty: there is none

    def __repr__(self) -> str:
        return "Places(…)"

    def passwords(self) -> Iterator[str]:
        """Yield the passwords, as they appear in the URLs and decoded, for masking."""
        for url in self:
            if password := urlsplit(url).password:
                yield password
                yield unquote(password)


def is_user(name: str) -> bool:
    """Return whether this is a valid user name."""
    return bool(_USER.fullmatch(name)) and name != RESERVED_USER


class AccessKeys:
    """The keys of the API, by user. `repr` shows no key."""

    def __init__(self, by_user: Mapping[str, str]) -> None:
        self._by_user = dict(by_user)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield each user (or "*") with its key."""
        return iter(self._by_user.items())

    def __bool__(self) -> bool:
        return bool(self._by_user)

    def __repr__(self) -> str:
        return f"AccessKeys({', '.join(self._by_user)})"


class ImagesSettings(NamedTuple):
    """All settings of the image-job service, validated. `source` is the file they were read from."""

    images: ImageJobSettings = ImageJobSettings()
    storage: StorageSettings = StorageSettings()  # with the URL of IMAGES_STORAGE_URL
    workflow: Workflow = Workflow()
    places: Places = Places()
    keys: AccessKeys = AccessKeys({})
    source: str = DEFAULT_FILE
    warnings: tuple[str, ...] = ()


def load_images_settings(environ: Mapping[str, str], needed: tuple[str, ...] = ()) -> ImagesSettings:
    """Read the settings from `environ` and from the file that RETAKE_CONFIG names, or config/config.json.

    `needed` are the variables of ENVIRONMENT that the caller requires. Raises SettingsError with every fault, one per
    line, without passwords or keys.
    """
    file = read_settings(environ, SECTIONS, TOP_LEVEL, OLDER_KEYS, _OTHERS)
    faults: list[str] = []
    given = {name: environ.get(name, "").strip() for name in ENVIRONMENT}
    faults += [f"{name} is not set: {ENVIRONMENT[name]}" for name in needed if not given[name]]
    images = file.values["IMAGES"]
    if given["RETAKE_COMFYUI_URLS"]:
        urls = [url.strip() for url in given["RETAKE_COMFYUI_URLS"].split(",") if url.strip()]
        found = read_field(Field(several(ENDPOINT), "", ()), urls, "RETAKE_COMFYUI_URLS", faults)
        images = images._replace(comfyui_urls=found)
    settings = ImagesSettings(
        images=images,
        storage=_storage(file.values["STORAGE"], given["IMAGES_STORAGE_URL"], faults),
        workflow=file.values["WORKFLOW"],
        places=Places(*(_place(name, given[name], faults) for name in _SCHEMES)),
        keys=_access_keys(given["IMAGES_KEYS"], faults),
        source=file.source,
        warnings=file.warnings,
    )
    try:
        file.check(iter(()))
    except SettingsError as error:
        faults.insert(0, str(error))
    if faults:
        raise SettingsError("\n".join(faults))
    return settings


def check_user(user: str) -> str:
    """Return `user` if it is a valid user id. Raises ValueError."""
    if not is_user(user):
        raise ValueError('a userId is 1 to 64 of A-Z, a-z, 0-9, "_" and "-", and not "jobs"')
    return user


def _storage(storage: StorageSettings, url: str, faults: list[str]) -> StorageSettings:
    if not url:
        return storage
    read = read_field(Field(BUCKET_URL, "", ""), url, "IMAGES_STORAGE_URL", faults)
    if read.rstrip("/") == storage.url.rstrip("/"):
        faults.append("IMAGES_STORAGE_URL: the same bucket as STORAGE.url; give the image-job service its own")
    return storage._replace(url=read)


def _place(name: str, url: str, faults: list[str]) -> str:
    """Return the URL of a service. A fault does not quote the URL, which may contain a password."""
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in _SCHEMES[name] and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        sound = False
    if not sound:
        faults.append(f"{name}: not a URL of the form {_SCHEMES[name][0]}://HOST; {ENVIRONMENT[name]}")
        return ""
    return url


def _access_keys(text: str, faults: list[str]) -> AccessKeys:
    """Parse "alice=KEY,*=KEY"."""
    keys: dict[str, str] = {}
    for number, part in enumerate(filter(None, (it.strip() for it in text.split(","))), 1):
        user, _, key = (it.strip() for it in part.partition("="))
        fault = _fault_of_key(user, key, keys)
        if fault:
            faults.append(f"IMAGES_KEYS: entry {number} {fault}")
        else:
            keys[user] = key
    return AccessKeys(keys)


def _fault_of_key(user: str, key: str, known: Mapping[str, Any]) -> str | None:
    if user != EVERYBODY and not is_user(user):
        return "has no userId before its =: 1 to 64 of A-Z, a-z, 0-9, _ and -, not jobs; or * for every user"
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        return "needs a key without spaces after its ="
    if user in known or key in known.values():
        return "has a user or a key twice"
    return None
