"""All other services, through Apprise: the secret is one of its URLs, or several separated by commas or spaces.

Apprise takes most of a second to import, so it is imported when a message is due, within the time limit of the try.
"""

import logging
import re
from typing import Any

from retake.alerts.channels.sending import Sending, combined
from retake.alerts.message import AlertEvent, Ending, Sent
from retake.errors import SettingsError
from retake.extras import require
from retake.vendors.http import Overdue, within

_BETWEEN_URLS = re.compile(r"[\s,]+(?=[A-Za-z][\w+.-]*://)")
_TYPES = {"critical": "failure", "error": "failure", "warning": "warning"}
_CHATTY = ("apprise", "oauthlib", "requests_oauthlib")  # they log URLs, which are secrets


def send(sending: Sending) -> Sent:
    """Send title and text to each URL that has not received them yet. `done` names URLs by their position, from 1."""
    for name in _CHATTY:
        logging.getLogger(name).disabled = True
    outcomes: dict[str, Sent] = {}
    try:
        within(sending.timeout_s, lambda _cutter: _send_all(sending, outcomes))
    except SettingsError as error:
        return Sent(Ending.FAILED, str(error))
    except Overdue:
        found = dict(outcomes)  # a copy: the abandoned thread may still change `outcomes`
        waiting = {name: sending.late() for name in _urls(sending) if name not in found}
        return combined({**found, **waiting}, sending.done)
    return combined(outcomes, sending.done)


def _urls(sending: Sending) -> dict[str, str]:
    """Return the URLs that do not have the message yet, by their position."""
    urls = _BETWEEN_URLS.split(sending.secret.strip(" ,"))
    return {str(n): url for n, url in enumerate(urls, 1) if str(n) not in sending.done}


def _send_all(sending: Sending, outcomes: dict[str, Sent]) -> None:
    require("apprise", f"the channel {sending.channel.name!r}")
    import apprise

    # In Apprise's async mode, a service that hangs would delay the exit of the process.
    asset = apprise.AppriseAsset(async_mode=False)
    for name, url in _urls(sending).items():
        try:
            outcomes[name] = _send_one(apprise, asset, url, sending)
        except Exception as error:  # noqa: BLE001  nearly two hundred plugins may raise anything
            outcomes[name] = Sent(Ending.FAILED, f"apprise failed with {type(error).__name__}")


def _send_one(apprise: Any, asset: Any, url: str, sending: Sending) -> Sent:
    service = apprise.Apprise.instantiate(url, asset=asset)
    if service is None:
        return Sent(Ending.REFUSED, f"{sending.channel.env} has a URL that apprise does not understand")
    service.redirects = False
    if "overflow=" not in url:  # Apprise's default is to send all at once, and a text that is too long would be refused
        service.overflow_mode = apprise.OverflowMode.SPLIT
    service.socket_connect_timeout = min(service.socket_connect_timeout, sending.timeout_s)
    service.socket_read_timeout = min(service.socket_read_timeout, sending.timeout_s)
    notifier = apprise.Apprise(asset=asset)
    notifier.add(service)
    message = sending.message
    kind = "success" if message.event is AlertEvent.RESOLVE else _TYPES.get(message.level or "", "info")
    if notifier.notify(body=message.text, title=message.title, notify_type=kind, body_format="text"):
        return Sent(Ending.DELIVERED)
    return Sent(Ending.FAILED, "apprise could not deliver it")
