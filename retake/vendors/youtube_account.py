"""Requests on behalf of a YouTube channel: OAuth tokens, one exchange each, and the meaning of YouTube's errors.

google-auth decides when a token is due and refreshes it; the requests themselves are those of all vendors (see
http.py): bounded, with the same proxies and certificates, and never silently repeated.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from retake.errors import Code, PollFailed, VendorError, hide
from retake.vendors.answers import (
    NoReply,
    Reply,
    as_dict,
    joined,
    parse,
    quote,
    retry_after_s,
    without_secrets,
)
from retake.vendors.http import JSON_LIMIT, bare, exchange

NAME = "YouTube"
KEY_NAMES = ("YOUTUBE_CLIENT_ID", "YOUTUBE_CLIENT_SECRET", "YOUTUBE_REFRESH_TOKEN")
TOKEN_ENDPOINT = "https://oauth2.googleapis.com/token"  # noqa: S105

_MIN_BYTES_PER_S = 64 * 2**10  # bytes/s; a slower network cannot upload a video
_MIN_SECRET_LENGTH = 16  # characters; a part of a session's URI of at least this length may be its secret
_REASONS = {
    "quotaExceeded": Code.OUT_OF_CREDIT,
    "dailyLimitExceeded": Code.OUT_OF_CREDIT,
    "uploadLimitExceeded": Code.OUT_OF_CREDIT,
    "rateLimitExceeded": Code.RATE_LIMIT,
    "userRateLimitExceeded": Code.RATE_LIMIT,
}
_STATUSES = {401: Code.UNAUTHORIZED, 403: Code.UNAUTHORIZED, 408: Code.CONFLICT, 429: Code.RATE_LIMIT}
_LATER = "Look at YouTube's status page if this persists."
_ADVICE = {
    Code.UNAUTHORIZED: f"Check {', '.join(KEY_NAMES)}, and that the channel may do this.",
    Code.OUT_OF_CREDIT: "The quota or the channel's limit is used up: wait for the next day (Pacific time).",
    Code.RATE_LIMIT: "Ask less often.",
    Code.INVALID_INPUT: "Change the request: the same one will be refused again.",
    Code.CONFIGURATION: "Check API_KEYS.youtube in the settings.",
    Code.NETWORK: "Check the network and API_KEYS.youtube if this persists.",
}


@dataclass(frozen=True)
class YouTubeKeys:
    """An OAuth client, and the refresh token that the channel's owner gave it."""

    client_id: str
    client_secret: str = field(repr=False)
    refresh_token: str = field(repr=False)


class TokenReply(NamedTuple):
    """An answer of the token endpoint, in the form that google-auth expects."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class YouTubeAccount:
    """Sends requests with a valid access token. Thread-safe.

    `timeout_s` limits a request; one with a large body may take longer, depending on its size.
    """

    def __init__(self, keys: YouTubeKeys, token_endpoint: str | None, timeout_s: float) -> None:
        from google.oauth2.credentials import Credentials

        self._keys, self._timeout_s = keys, timeout_s
        self._lock = Lock()
        self._credentials: Any = Credentials(  # type: ignore[no-untyped-call]
            None,
            refresh_token=keys.refresh_token,
            token_uri=token_endpoint or TOKEN_ENDPOINT,
            client_id=keys.client_id,
            client_secret=keys.client_secret,
        )

    def send(self, what: str, method: str, uri: str, body: bytes | str | None, headers: Mapping[str, str]) -> Reply:
        """Send one request and return the answer, whatever its status.

        `what` completes the sentence "YouTube was asked to …". A PUT goes to the URI of an upload session, which no
        message shows. If the token is refused (401) it is refreshed once, and the request is sent again. Raises
        PollFailed if no answer or no token arrives.
        """
        content = body.encode() if isinstance(body, str) else body
        token = self._token(what)
        reply = self._once(what, method, uri, content, {**headers, "Authorization": f"Bearer {token}"})
        if reply.status != 401:
            return reply
        token = self._token(what, refused=token)
        return self._once(what, method, uri, content, {**headers, "Authorization": f"Bearer {token}"})

    def failure(self, what: str, reply: Reply, uri: str = "") -> PollFailed:
        """Return the error for an answer that is not a success. It quotes nothing of the session's URI `uri`."""
        code = _code_of(reply)
        words = quote(self._without_secrets(_words(reply), uri))
        quoted = f': "{words}"' if words else ""
        text = f"{NAME} was asked to {what} and answered HTTP {reply.status}{quoted}. {_ADVICE.get(code, _LATER)}"
        return PollFailed(code, text, retry_after_s=retry_after_s(reply.headers))

    def unusable(self, what: str, why: str) -> PollFailed:
        """Return the error for a success that lacks what was requested."""
        return PollFailed(Code.BAD_ANSWER, f"{NAME} was asked to {what}; its answer cannot be used: {why}. {_LATER}")

    def _once(self, what: str, method: str, uri: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        timeout_s = self._timeout_s + len(body or b"") // _MIN_BYTES_PER_S
        try:
            return exchange(None, method, uri, timeout_s=timeout_s, limit=JSON_LIMIT, headers=headers, data=body)
        except NoReply as trouble:
            place = "the upload session" if method == "PUT" else bare(uri)
            why = str(trouble).replace(repr(bare(uri)), place).replace(bare(uri), place)
            advice = _ADVICE.get(trouble.code, _LATER)
            raise PollFailed(trouble.code, f"{NAME} was asked to {what}: {why}. {advice}") from None

    def _token(self, what: str, refused: str = "") -> str:
        """Return an access token other than `refused`."""
        from google.auth.exceptions import GoogleAuthError

        with self._lock:
            credentials = self._credentials
            if not credentials.valid or credentials.token == refused:
                try:
                    credentials.refresh(lambda **request: self._token_reply(what, **request))
                except VendorError:
                    raise
                except (GoogleAuthError, ValueError, TypeError, OverflowError):
                    raise self.unusable(f"{what} (to give an access token)", "it is not a token") from None
            return str(credentials.token)

    def _token_reply(self, what: str, *, url: str, body: bytes, headers: Mapping[str, str], **_: Any) -> TokenReply:
        """POST to the token endpoint. Raises PollFailed unless it returns a token: google-auth would repeat a failed
        call."""
        what = f"{what} (to give an access token)"
        reply = self._once(what, "POST", url, body, {"Content-Type": "application/x-www-form-urlencoded", **headers})
        if not reply.ok:
            error = self.failure(what, reply)
            if 400 <= reply.status < 500 and reply.status not in (408, 429):  # invalid_grant comes with 400
                message = str(error).removesuffix(_ADVICE[error.code]) + _ADVICE[Code.UNAUTHORIZED]
                error = PollFailed(Code.UNAUTHORIZED, message)
            raise error
        token = as_dict(parse(reply.body)).get("access_token")
        if not (isinstance(token, str) and token and token.isascii() and token.isprintable() and " " not in token):
            raise self.unusable(what, "it holds no access token")
        return TokenReply(200, reply.headers, reply.body)

    def _without_secrets(self, text: str, uri: str) -> str:
        """Return `text` without the keys, the access token, and anything that identifies the session `uri`."""
        secrets = {self._keys.client_secret, self._keys.refresh_token, self._credentials.token or ""}
        if uri:
            secrets |= _identifying(uri)
        return without_secrets(text, secrets)


def hide_session(uri: str) -> None:
    """Hide the session `uri` from logs and errors.

    YouTube's secret is in the query, which `redact` removes from every URL; another server may have it in the path.
    """
    with suppress(ValueError):  # not a URL, which the call will report
        hide(_long_parts(urlsplit(uri).path.split("/")))


def _long_parts(parts: Iterable[str]) -> set[str]:
    return {part for part in parts if len(part) >= _MIN_SECRET_LENGTH}


def _identifying(uri: str) -> set[str]:
    """Return the parts of a session's URI that must not be shown."""
    parts = urlsplit(uri)
    long = _long_parts([*parts.path.split("/"), *dict(parse_qsl(parts.query)).values()])
    return {uri, f"{parts.path}?{parts.query}" if parts.query else "", parts.query, *long}


def _code_of(reply: Reply) -> Code:
    if not 400 <= reply.status < 500:
        return Code.UNAVAILABLE if reply.status >= 500 else Code.BAD_ANSWER
    return _REASONS.get(reason_of(reply), _STATUSES.get(reply.status, Code.INVALID_INPUT))


def reason_of(reply: Reply) -> str:
    """Return YouTube's own name of an error: error.errors[0].reason."""
    errors = as_dict(as_dict(parse(reply.body)).get("error")).get("errors")
    first = as_dict(errors[0]) if isinstance(errors, list) and errors else {}
    return str(first.get("reason") or "")


def _words(reply: Reply) -> str:
    """Return the reason that YouTube, or its token endpoint, gives."""
    body = as_dict(parse(reply.body))
    error = body.get("error")
    if isinstance(error, str):  # OAuth: {"error": "invalid_grant", "error_description": "…"}
        return ": ".join(it for it in (error, body.get("error_description")) if isinstance(it, str))
    own = ": ".join(filter(None, (reason_of(reply), joined([as_dict(error).get("message")]))))
    if own or not body:
        return own or reply.body.decode("utf-8", "replace")
    return json.dumps(body, ensure_ascii=False)
