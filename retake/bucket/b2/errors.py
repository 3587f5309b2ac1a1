"""B2's errors as b2sdk raises them: which are transient, and what people can do about the others.

b2sdk's `interpret_b2_error` maps B2's codes to classes.
"""

from retake.errors import redact


def call_errors() -> tuple[type[Exception], ...]:
    """Return the types of all errors that b2sdk raises when B2 or the network is at fault."""
    from b2sdk.v3.exception import B2Error
    from requests import RequestException

    return (B2Error, RequestException, ValueError)  # ValueError: an answer that is not JSON


def is_transient(error: Exception) -> bool:
    """Return whether the same call may succeed in a moment. A change may have taken effect all the same."""
    from b2sdk.v3.exception import B2Error, Unauthorized, UnknownError, UnknownHost

    if not isinstance(error, B2Error) or isinstance(error, UnknownHost):
        return True  # an error of requests, or not JSON: the connection or a proxy failed
    if isinstance(error, UnknownError):
        return not str(error)[:3].isdecimal()  # a connection error that b2sdk does not know has no HTTP status
    if isinstance(error, Unauthorized):
        return False  # b2sdk has fetched a new token already
    return bool(error.should_retry_http() or error.should_retry_upload())


def is_refused(error: Exception) -> bool:
    """Return whether B2 itself says that it did nothing and that another attempt may help."""
    from b2sdk.v3.exception import ServiceError, TooManyRequests

    return isinstance(error, TooManyRequests) or (
        isinstance(error, ServiceError) and "service_unavailable" in str(error)
    )


def is_key_refused(error: Exception) -> bool:
    """Return whether the key is at fault: unknown, expired, or without the capability."""
    from b2sdk.v3.exception import InvalidAuthToken, Unauthorized

    return isinstance(error, (InvalidAuthToken, Unauthorized))


def is_gone(error: Exception) -> bool:
    """Return whether the file version does not exist."""
    from b2sdk.v3.exception import FileNotPresent

    return isinstance(error, FileNotPresent)


def is_no_bucket(error: Exception) -> bool:
    """Return whether B2 does not know the bucket or its id."""
    from b2sdk.v3 import exception as b2

    return isinstance(error, b2.NonExistentBucket | b2.BucketIdNotFound | b2.RestrictedBucket)


def retry_after_s(error: Exception) -> float:
    """Return the seconds that B2 asks to wait."""
    return float(getattr(error, "retry_after_seconds", None) or 0)


def explain(error: Exception, bucket: str) -> str:
    """Return what went wrong and what a person can do about it."""
    from b2sdk.v3 import exception as b2

    said = redact(str(error))
    if isinstance(error, b2.CapExceeded):
        return (
            f"a cap of the Backblaze account is used up: raise it under 'Caps & Alerts', or wait for 00:00 UTC ({said})"
        )
    if isinstance(error, b2.InvalidAuthToken):
        return f"B2 refuses the key: check B2_APPLICATION_KEY_ID and B2_APPLICATION_KEY ({said})"
    if isinstance(error, b2.Unauthorized):
        return (
            "B2 does not let this key do that; it needs listBuckets, listFiles, readFiles, writeFiles and deleteFiles "
            f"for the bucket {bucket}: check B2_APPLICATION_KEY_ID and B2_APPLICATION_KEY ({said})"
        )
    if isinstance(error, b2.ClockSkew):
        return f"this machine's clock is wrong, set it: {said}"
    if is_no_bucket(error):
        return f"there is no bucket {bucket}, or this key may not see it: create it, or check STORAGE.url"
    if isinstance(error, b2.UnknownHost | b2.B2ConnectionError | b2.ConnectionReset | b2.BrokenPipe):
        return f"B2 cannot be reached: check the network and STORAGE.url ({said})"
    return said or type(error).__name__
