"""Requests to an S3-compatible store: URLs, a client, bounded retries, errors with advice.

The SDK's own retries are off: it would repeat a write whose answer was lost, and then report its own first write as
somebody else's. We decide which requests may be repeated, and which need a look at the object first.
"""

import os
import threading
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from retake.attempts import attempts, countdown, repeating
from retake.bucket import check_key
from retake.bucket.contract import Unreadable
from retake.clock import Clock
from retake.errors import SettingsError, StorageError, StorageKeyRefused

T = TypeVar("T")

_session_lock = threading.Lock()
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)  # the last one repeats

_ARCHIVED = "InvalidObjectState"

_ADVICE = {
    _ARCHIVED: "it is in an archive class: restore it, and exempt Retake's documents from the lifecycle rule",
    "NoSuchBucket": "there is no such bucket: create it, or correct STORAGE.url",
    "AccessDenied": "the key may not do that: allow it to list, read, write and delete in this bucket",
    "403": "the key may not do that: allow it to list, read, write and delete in this bucket",
    "InvalidAccessKeyId": "the store does not know this key: check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret does not belong to this key: check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired: get a new one (AWS_SESSION_TOKEN)",
    "InvalidToken": "the session token is not accepted: get a new one (AWS_SESSION_TOKEN)",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it (timedatectl set-ntp true)",
    "PermanentRedirect": "the bucket is in another region: add ?region=… to STORAGE.url",
    "AuthorizationHeaderMalformed": "the bucket is in another region: add ?region=… to STORAGE.url",
    "QuotaExceeded": "the store is full, or its cap is reached: make room or raise it",
    "XMinioStorageFull": "the store is full: make room",
}
_KEY_TROUBLE = ("AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken")
_LATER = "the store is overloaded or broken: the next tick tries again"
_UNREACHABLE = "the store cannot be reached: check the network, and the endpoint in STORAGE.url"

_TRANSIENT = ("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling", "TooManyRequests")


class S3Place(NamedTuple):
    """The location of a bucket."""

    bucket: str
    prefix: str  # "" or ending in "/"
    endpoint: str | None  # None: Amazon's own
    region: str | None


class AnswerLost(Exception):
    """There was no answer, or the answer does not say whether the request took effect."""


class RequestRefused(Exception):
    """The store refused the request, with HTTP status `status` and its own `code`."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


def parse_url(url: str) -> S3Place:
    """Parse s3://BUCKET/PREFIX?endpoint=URL&region=NAME. Raises SettingsError."""
    place, _, options = url.partition("?")
    if "@" in place.removeprefix("s3://").partition("/")[0] or "@" in unquote(options):
        raise SettingsError(f"STORAGE.url: keys belong in the environment, not into the URL or its endpoint; {_FORM}")
    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        prefix = parts.path.strip("/")
        if prefix:
            check_key(prefix)
    except ValueError as error:
        raise SettingsError(f"STORAGE.url: {url!r} names no bucket ({error}); {_FORM}") from error
    if not parts.netloc or ":" in parts.netloc or parts.fragment:
        raise SettingsError(f"STORAGE.url: this names no bucket, and keys belong in the environment; {_FORM}")
    unknown = sorted(set(query) - {"endpoint", "region"})
    if unknown:
        raise SettingsError(f"STORAGE.url: unknown {', '.join(unknown)}; {_FORM}")
    endpoint = query.get("endpoint") or None
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise SettingsError(f"STORAGE.url: the endpoint {endpoint!r} is not a URL; {_FORM}")
    return S3Place(parts.netloc, f"{prefix}/" if prefix else "", endpoint, query.get("region") or None)


_FORM = "use s3://BUCKET/PREFIX?endpoint=URL&region=NAME"


def date_of(answer: dict[str, Any]) -> float | None:
    """Return the store's time of the answer, in whole seconds since the epoch, or None if it does not say."""
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except ValueError:
        return None


def connect(place: S3Place, *, connect_s: float, read_s: float) -> Any:
    """Return a botocore client that makes one attempt per request. Raises SettingsError.

    botocore looks for the keys in the environment, in the AWS CLI's files, and in roles.
    """
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        connect_timeout=connect_s,
        read_timeout=read_s,
        retries={"total_max_attempts": 1, "mode": "standard"},
        s3={"addressing_style": "path" if place.endpoint else "auto"},
        # Stores other than Amazon's refuse the checksums that the SDK adds by default.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        with _session_lock:
            session = _session()
            region = place.region or session.get_config_variable("region") or "us-east-1"
            client = session.create_client("s3", endpoint_url=place.endpoint, region_name=region, config=config)
            keys = session.get_credentials()
        if keys is None:
            raise SettingsError("no key for the bucket: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    except (BotoCoreError, ValueError) as error:
        raise SettingsError(f"STORAGE.url: {error}; {_FORM}") from error
    return client


@cache
def _session() -> Any:
    """Return the session of this process: creating one takes twenty times as long as a client. Not thread safe.

    It is not boto3's, which also loads resources and transfers, a fifth more for each process.
    """
    from botocore.session import Session

    return Session()


class S3Client:
    """Requests to one bucket, retried for `patience_s` seconds. Thread safe, as botocore's clients are."""

    def __init__(self, client: Any, place: S3Place, clock: Clock, patience_s: float) -> None:
        self._client = client
        self._place = place
        self._clock = clock
        self._patience_s = patience_s
        self._process = os.getpid()

    def once(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Send one request. Raises RequestRefused, AnswerLost, or SettingsError without keys."""
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError

        if self._process != os.getpid():  # after a fork, old connections would deliver the parent's answers
            self._client.close()
            self._process = os.getpid()
        try:
            answer: dict[str, Any] = getattr(self._client, operation)(Bucket=self._place.bucket, **arguments)
            if "Body" in answer:
                answer["Body"] = answer["Body"].read()
        except ClientError as error:
            raise self._error_of(error.response, str(error)) from error
        except NoCredentialsError as error:
            raise SettingsError(f"no key for the bucket: {error}") from error
        except (BotoCoreError, HTTPClientError, OSError) as error:
            raise AnswerLost(f"{error}; {_UNREACHABLE}") from error
        return answer

    def _error_of(self, response: dict[str, Any], text: str) -> Exception:
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
        code = str(response.get("Error", {}).get("Code") or status)
        if status >= 500 and status != 501:
            return AnswerLost(f"{text}; {_LATER}")
        if status == 429 or code in _TRANSIENT:
            return AnswerLost(f"{text}; {_LATER}")
        return RequestRefused(status, code, f"{text}; {_ADVICE.get(code, 'see what the store says')}")

    def ask(self, doing: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Send a request that may be repeated. Raises RequestRefused, StorageError."""
        return self.repeat(doing, lambda: self.once(operation, **arguments))

    def must(self, doing: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Send a request that may be repeated, and treat a refusal as a failure. Raises StorageError."""
        try:
            return self.ask(doing, operation, **arguments)
        except RequestRefused as error:
            raise self.failed(doing, error) from error

    def repeat(self, doing: str, request: Callable[[], T]) -> T:
        """Call `request` until it does not raise AnswerLost. Raises StorageError when patience runs out.

        `doing` completes "cannot …".
        """
        pauses, left = repeating(*_PAUSES_S), countdown(self._patience_s, self._clock)
        for attempt in attempts(pauses, self._clock.sleep, left=left):
            try:
                return request()
            except AnswerLost as error:
                if attempt.last:
                    raise self.failed(doing, error) from error
        raise AssertionError("the last attempt returns or raises")

    def failed(self, doing: str, error: Exception) -> StorageError:
        """Return the StorageError for `error`."""
        code = error.code if isinstance(error, RequestRefused) else ""
        kind = StorageKeyRefused if code in _KEY_TROUBLE else Unreadable if code == _ARCHIVED else StorageError
        return kind(f"cannot {doing} (s3://{self._place.bucket}): {error}")
