"""Sends a message by an HTTP request, and interprets the answer."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from retake.alerts.channels.sending import Sending
from retake.alerts.message import Ending, Sent
from retake.errors import Code, SettingsError
from retake.vendors.answers import NoReply, Reply, retry_after_s
from retake.vendors.http import bare, check_route, exchange

ANSWER_LIMIT = 64 * 2**10  # bytes; a longer answer is judged only by its status
_TEMPORARY_REFUSALS = (408, 429)


def judged(reply: Reply, reason: str = "") -> Sent:
    """Return the result that an answer's status means. `reason` is what the service says about it."""
    if reply.ok:
        return Sent(Ending.DELIVERED)
    why = f"{reply.status}: {reason}" if reason else f"{reply.status}"
    if reply.status >= 500 or reply.status in _TEMPORARY_REFUSALS:
        return Sent(Ending.FAILED, why, retry_after_s(reply.headers))
    return Sent(Ending.REFUSED, f"{reply.status}: a redirect, which is not followed" if reply.status < 400 else why)


def post(
    sending: Sending,
    url: str,
    judge: Callable[[Reply], Sent] = judged,
    headers: Mapping[str, str] | None = None,
    **content: Any,
) -> Sent:
    """POST `content` (the argument `json` or `data` of requests), and return the result.

    A user and password in the URL become basic authentication. The whole exchange takes at most `sending.timeout_s`
    seconds. The result contains no URL, although the errors of requests do.
    """
    if not url.isprintable() or any(map(str.isspace, url)):
        return _no_url(sending)
    try:
        check_route(url)
        every = {**_authorization(url), **(headers or {})}
        timeout_s = sending.timeout_s
        reply = exchange(None, "POST", url, timeout_s=timeout_s, limit=ANSWER_LIMIT, headers=every, **content)
    except SettingsError as error:  # about proxies or certificates in the environment
        return Sent(Ending.FAILED, str(error))
    except NoReply as trouble:
        if trouble.code is Code.CONFIGURATION:
            return _no_url(sending)
        if trouble.head is not None:
            return judge(trouble.head)
        return Sent(Ending.FAILED, str(trouble).replace(f" to {bare(url)}", ""), maybe=trouble.sent)
    except ValueError:
        return _no_url(sending)
    return judge(reply)


def basic(user: str, password: str) -> dict[str, str]:
    """Return the header for basic authentication."""
    return {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode('utf-8', 'replace')).decode()}"}


def _authorization(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    return basic(unquote(parts.username), unquote(parts.password or "")) if parts.username else {}


def _no_url(sending: Sending) -> Sent:
    endpoint = ", or the channel's endpoint," if "endpoint" in sending.channel.options else ""
    return Sent(Ending.REFUSED, f"{sending.channel.env}{endpoint} does not make a valid URL")
