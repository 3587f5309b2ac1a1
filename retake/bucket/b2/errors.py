"""B2's errors (b2sdk): which of them pass, and what a person is told about those that do not.

Classes and codes: b2sdk's `interpret_b2_error`.
"""

from retake.errors import redact


def passing() -> tuple[type[Exception], ...]:
    """The types of everything that a call of b2sdk raises when B2 or the way to it is at fault."""
    from b2sdk.v3.exception import B2Error
    from requests import RequestException

    return (B2Error, RequestException, ValueError)  # ValueError: an answer that is not JSON


def is_transient(error: Exception) -> bool:
    """Whether the same call may go well in a moment. A change may have been carried out all the same."""
    from b2sdk.v3.exception import B2Error, Unauthorized, UnknownError, UnknownHost

    if not isinstance(error, B2Error) or isinstance(error, UnknownHost):
        return True  # requests' own, and what is not JSON: the connection, or something in between
    if isinstance(error, UnknownError):
        return not str(error)[:3].isdecimal()  # an exception of the connection that b2sdk has no name for
    if isinstance(error, Unauthorized):
        return False  # b2sdk has fetched a new token already
    return bool(error.should_retry_http() or error.should_retry_upload())


def is_refused(error: Exception) -> bool:
    """Whether B2 itself says that it did nothing, and that asking again may help."""
    from b2sdk.v3.exception import ServiceError, TooManyRequests

    return isinstance(error, TooManyRequests) or (
        isinstance(error, ServiceError) and "service_unavailable" in str(error)
    )


def is_key_refused(error: Exception) -> bool:
    """Whether the key itself is the trouble: unknown, expired, or not allowed to do what is needed."""
    from b2sdk.v3.exception import InvalidAuthToken, Unauthorized

    return isinstance(error, (InvalidAuthToken, Unauthorized))


def is_gone(error: Exception) -> bool:
    """Whether the file version asked for is not there (any more)."""
    from b2sdk.v3.exception import FileNotPresent

    return isinstance(error, FileNotPresent)


def asked_to_wait(error: Exception) -> float:
    """Seconds that B2 asks to be left alone."""
    return float(getattr(error, "retry_after_seconds", None) or 0)


def in_words(error: Exception, bucket: str) -> str:
    """What is wrong with the call, and what a person can do about it."""
    from b2sdk.v3 import exception as b2

    if isinstance(error, b2.CapExceeded):
        return (
            "a cap of the Backblaze account is used up: raise it under «Caps & Alerts», or wait for 00:00 UTC "
            f"({redact(str(error))})"
        )
    if isinstance(error, b2.InvalidAuthToken):
        return f"B2 refuses the key: check B2_APPLICATION_KEY_ID and B2_APPLICATION_KEY ({redact(str(error))})"
    if isinstance(error, b2.Unauthorized):
        return (
            "B2 does not let this key do that; it needs listBuckets, listFiles, readFiles, writeFiles and deleteFiles "
            f"for the bucket {bucket}: check B2_APPLICATION_KEY_ID and B2_APPLICATION_KEY ({redact(str(error))})"
        )
    if isinstance(error, b2.ClockSkew):
        return f"this machine's clock is wrong, set it: {redact(str(error))}"
    if isinstance(error, b2.NonExistentBucket | b2.BucketIdNotFound | b2.RestrictedBucket):
        return f"there is no bucket {bucket}, or this key may not see it: make it, or check STORAGE.url"
    if isinstance(error, b2.UnknownHost | b2.B2ConnectionError | b2.ConnectionReset | b2.BrokenPipe):
        return f"B2 cannot be reached: check the network and STORAGE.url ({redact(str(error))})"
    return redact(str(error)) or type(error).__name__
