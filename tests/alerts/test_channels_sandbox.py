"""The sandbox accepts what the channels send, as the real services do, and fails when told to."""

import time
from typing import Any

import pytest
import requests
from notices import FIELDS, MESSAGE, channel

from retake.alerts.channels.sending import send
from retake.alerts.message import AlertEvent, Ending, Sent
from retake.alerts.settings import AlertChannel
from retake.sandbox import Sandbox
from retake.sandbox.notices import addresses

OWN: dict[str, dict[str, Any]] = {
    "sms": {"account": "AC01", "from": "+1", "to": ["+2"]},
    "telegram": {"chat_id": 4},
}
KINDS = list(addresses(""))


def made(sandbox: Sandbox, kind: str) -> tuple[AlertChannel, str]:
    address = addresses(sandbox.url)[kind]
    if kind in ("slack", "webhook"):
        return channel(kind), address
    return channel(kind, endpoint=address, **OWN.get(kind, {})), "a-secret"


@pytest.mark.parametrize("event", AlertEvent)
@pytest.mark.parametrize("kind", KINDS)
def test_every_event_is_taken_and_recorded(sandbox: Sandbox, kind: str, event: AlertEvent) -> None:
    before = len(sandbox.calls(kind))
    assert send(*made(sandbox, kind), MESSAGE._replace(event=event), 10.0) == Sent(Ending.DELIVERED)
    [call] = sandbox.calls(kind)[before:]
    assert call.carried_out
    assert "a1" in str(call.request)


def test_the_form_of_an_sms_is_recorded(sandbox: Sandbox) -> None:
    send(*made(sandbox, "sms"), MESSAGE, 10.0)
    form = sandbox.calls("sms")[-1].request
    assert (form["To"], form["From"]) == ("+2", "+1")
    assert form["Body"].startswith(f"[CRITICAL] {FIELDS['title']}\n")


@pytest.mark.parametrize(
    ("fault", "how"),
    [
        *((fault, Ending.FAILED) for fault in ("500", "503-html", "429", "408", "cut-before", "cut-after", "hang")),
        *((fault, Ending.REFUSED) for fault in ("400", "401", "403", "404", "quota")),
        ("not-json", Ending.DELIVERED),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_faults_in_order(sandbox: Sandbox, kind: str, fault: str, how: Ending) -> None:
    sandbox.order(f"{kind}#1={fault}")
    before = len(sandbox.calls(kind))
    outcome = send(*made(sandbox, kind), MESSAGE, 1.0 if fault == "hang" else 10.0)
    assert outcome.how is how, outcome.why
    end = time.monotonic() + 60
    while len(sandbox.calls(kind)) == before and time.monotonic() < end:  # the fault hits the first call that arrives
        time.sleep(0.01)
    assert (outcome.retry_after_s == 1.0) == (fault == "429" and kind != "webhook")
    assert send(*made(sandbox, kind), MESSAGE, 10.0).how is Ending.DELIVERED


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("slack", {"text": ""}, 400),
        ("pagerduty", {"routing_key": "r", "event_action": "explode"}, 400),
        ("pagerduty", {"routing_key": "r", "event_action": "resolve"}, 400),
        ("pagerduty", {"routing_key": "r", "event_action": "trigger", "payload": {"summary": "s"}}, 400),
        ("pagerduty", {"event_action": "acknowledge", "dedup_key": "k"}, 400),
        ("telegram", {"text": "x"}, 400),
        ("telegram", {"text": " ", "chat_id": 1}, 400),
        ("telegram", {"text": "x" * 4097, "chat_id": 1}, 400),
    ],
)
def test_what_a_service_does_not_take(sandbox: Sandbox, kind: str, body: dict[str, Any], status: int) -> None:
    url = addresses(sandbox.url)[kind] + ("/bot1:x/sendMessage" if kind == "telegram" else "")
    assert requests.post(url, json=body, timeout=10).status_code == status


@pytest.mark.parametrize(
    ("form", "auth", "status"),
    [
        ({"To": "+1", "From": "+2", "Body": "x"}, ("AC", "t"), 201),
        ({"To": "+1", "From": "+2", "Body": "x"}, None, 401),
        ({"To": "+1", "From": "+2"}, ("AC", "t"), 400),
    ],
)
def test_what_twilio_takes(sandbox: Sandbox, form: dict[str, str], auth: tuple[str, str] | None, status: int) -> None:
    url = f"{addresses(sandbox.url)['sms']}/2010-04-01/Accounts/AC/Messages.json"
    assert requests.post(url, data=form, auth=auth, timeout=10).status_code == status
