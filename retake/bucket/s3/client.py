"""The wire to an S3-compatible store: where the bucket is, one request with a bounded patience, errors in words.

The SDK's own retries are off. It repeats a write whose answer was lost, and then reports its own first write as
somebody else's; so what may be asked again, and what has to be looked at first, is decided here.
"""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlsplit

from retake.bucket import check_key
from retake.clock import Clock
from retake.errors import SettingsError, StorageError, StorageKeyRefused

T = TypeVar("T")

_making = threading.Lock()
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)

_ADVICE = {
    "NoSuchBucket": "there is no such bucket: create it, or correct STORAGE.url",
    "AccessDenied": "the key may not do that: allow it to list, read, write and delete in this bucket",
    "403": "the key may not do that: allow it to list, read, write and delete in this bucket",
    "InvalidAccessKeyId": "the store does not know this key: check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret does not belong to this key: check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session's token is over: get a new one (AWS_SESSION_TOKEN)",
    "InvalidToken": "the session's token is not accepted: get a new one (AWS_SESSION_TOKEN)",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it (timedatectl set-ntp true)",
    "PermanentRedirect": "the bucket is in another region: add ?region=… to STORAGE.url",
    "AuthorizationHeaderMalformed": "the bucket is in another region: add ?region=… to STORAGE.url",
    "QuotaExceeded": "the store is full, or its cap is reached: make room or raise it",
    "XMinioStorageFull": "the store is full: make room",
}
_KEY_TROUBLE = ("AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken")
_LATER = "the store is overloaded or out of order: the next tick tries again"
_UNREACHABLE = "the store cannot be reached: check the network, and the endpoint in STORAGE.url"

_TRANSIENT = ("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling", "TooManyRequests")


class Place(NamedTuple):
    """Where a bucket is."""

    bucket: str
    prefix: str  # "", or ends in «/»
    endpoint: str | None  # None: Amazon's own
    region: str | None


class Lost(Exception):
    """No answer, or one that does not say what became of the request: it may have been carried out."""


class Answered(Exception):
    """The store said no. `status` is HTTP's, `code` the store's."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


def parse_url(url: str) -> Place:
    """The place that s3://BUCKET/PREFIX?endpoint=URL&region=NAME names. Raises SettingsError."""
    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        prefix = parts.path.strip("/")
        if prefix:
            check_key(prefix)
    except ValueError as error:
        raise SettingsError(f"STORAGE.url: {url!r} names no bucket ({error}); {_SHAPE}") from error
    if not parts.netloc or "@" in parts.netloc or ":" in parts.netloc or parts.fragment:
        raise SettingsError(f"STORAGE.url: this names no bucket, and keys belong in the environment; {_SHAPE}")
    unknown = sorted(set(query) - {"endpoint", "region"})
    if unknown:
        raise SettingsError(f"STORAGE.url: unknown {', '.join(unknown)}; {_SHAPE}")
    endpoint = query.get("endpoint") or None
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise SettingsError(f"STORAGE.url: the endpoint {endpoint!r} is no URL; {_SHAPE}")
    return Place(parts.netloc, f"{prefix}/" if prefix else "", endpoint, query.get("region") or None)


_SHAPE = "use s3://BUCKET/PREFIX?endpoint=URL&region=NAME"


def connect(place: Place, *, connect_s: float, read_s: float) -> Any:
    """A boto3 client that asks once. Keys are found as boto3 finds them (environment, files, roles)."""
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        connect_timeout=connect_s,
        read_timeout=read_s,
        retries={"total_max_attempts": 1, "mode": "standard"},
        s3={"addressing_style": "path" if place.endpoint else "auto"},
        # Other stores than Amazon's refuse the checksums that the SDK adds by itself.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        with _making:
            session = _session()
            region = place.region or session.region_name or "us-east-1"
            client = session.client("s3", endpoint_url=place.endpoint, region_name=region, config=config)
            keys = session.get_credentials()
        if keys is None:
            raise SettingsError("no key for the bucket: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    except (BotoCoreError, ValueError) as error:
        raise SettingsError(f"STORAGE.url: {error}; {_SHAPE}") from error
    return client


@cache
def _session() -> Any:
    """One for the process: making one takes twenty times as long as making a client. Not thread safe."""
    from boto3.session import Session

    return Session()


class Wire:
    """Requests to one bucket. Thread safe, as boto3's clients are."""

    def __init__(self, client: Any, place: Place, clock: Clock, patience_s: float) -> None:
        self._client = client
        self._place = place
        self._clock = clock
        self._patience_s = patience_s

    def once(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """One request. Raises Answered if the store says no, Lost if nobody knows, SettingsError without keys."""
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError

        try:
            answer: dict[str, Any] = getattr(self._client, operation)(Bucket=self._place.bucket, **arguments)
            if "Body" in answer:
                answer["Body"] = answer["Body"].read()
        except ClientError as error:
            raise self._answered(error.response, str(error)) from error
        except NoCredentialsError as error:
            raise SettingsError(f"no key for the bucket: {error}") from error
        except (BotoCoreError, HTTPClientError, OSError) as error:
            raise Lost(f"{error}; {_UNREACHABLE}") from error
        return answer

    def _answered(self, response: dict[str, Any], text: str) -> Exception:
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
        code = str(response.get("Error", {}).get("Code") or status)
        if status >= 500 and status != 501:
            return Lost(f"{text}; {_LATER}")
        if status == 429 or code in _TRANSIENT:
            return Lost(f"{text}; {_LATER}")
        return Answered(status, code, f"{text}; {_ADVICE.get(code, 'see what the store says')}")

    def ask(self, doing: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """A request that may be repeated, for as long as patience lasts. Raises Answered, StorageError."""
        return self.repeat(doing, lambda: self.once(operation, **arguments))

    def repeat(self, doing: str, attempt: Callable[[], T]) -> T:
        """Attempt until it is not Lost. Raises StorageError at the end of our patience."""
        began, pauses = self._clock.now().timestamp(), iter(_PAUSES_S)
        while True:
            try:
                return attempt()
            except Lost as error:
                pause = next(pauses, _PAUSES_S[-1])
                if self._clock.now().timestamp() - began + pause > self._patience_s:
                    raise self.failed(doing, error) from error
            self._clock.sleep(pause)

    def failed(self, doing: str, error: Exception) -> StorageError:
        refused = isinstance(error, Answered) and error.code in _KEY_TROUBLE
        kind = StorageKeyRefused if refused else StorageError
        return kind(f"cannot {doing} (s3://{self._place.bucket}): {error}")
