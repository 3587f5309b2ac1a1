"""What Slack, PagerDuty, Twilio, Telegram and a webhook are sent, to the byte where it matters."""

import base64
import json
import re
import subprocess
import sys
from typing import Any
from urllib.parse import parse_qs

import pytest
from notices import FIELDS, LINK, MESSAGE, REPORT, channel
from scripted_vendor import ScriptedVendor, cut, hang, says
from waiting import eventually

from retake.alerts.channels import pagerduty, sms
from retake.alerts.channels.sending import Sending, combined, length, send, without_secret
from retake.alerts.channels.slack import TEXT_LIMIT
from retake.alerts.message import AlertEvent, Ending, Message, Sent
from retake.alerts.settings import AlertChannel
from retake.foreign_text import utf16_cut


def sent(service: ScriptedVendor, found: AlertChannel, secret: str, message: Message = MESSAGE) -> Any:
    """Send `message`; return the request that arrived."""
    service.script = [says(200, {})]
    assert send(found, secret, message, 10.0) == Sent(Ending.DELIVERED)
    seen = service.seen[-1]
    assert seen.method == "POST"
    return seen


# --- Slack ----------------------------------------------------------------------------------------------------------


def test_slack(service: ScriptedVendor) -> None:
    seen = sent(service, channel("slack"), f"{service.url}/services/T0/B0/X0")
    assert seen.target == "/services/T0/B0/X0"
    assert seen.headers["content-type"] == "application/json"
    title = "Stopped: 3 failures &amp; counting &lt;now&gt;"
    assert seen.json == {"text": f"*{title}*\n{FIELDS['text']}"}


@pytest.mark.parametrize("before", range(6))
def test_a_text_that_is_too_long_for_slack_is_cut_between_characters(service: ScriptedVendor, before: int) -> None:
    message = MESSAGE._replace(title="t", text="x" * before + "&" * TEXT_LIMIT)
    text = sent(service, channel("slack"), f"{service.url}/x", message).json["text"]
    assert TEXT_LIMIT - 6 < len(text) <= TEXT_LIMIT
    assert text.endswith("&amp;…")


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, "channel_not_found", "404: channel_not_found"),
        (400, "invalid_payload", "400: invalid_payload"),
        (410, "channel_is_archived\n", "410: channel_is_archived"),
        (403, "<html>Go away, T0/B0/X0</html>", "403"),
        (404, '{"error": "x"}', "404"),
    ],
)
def test_slack_gives_its_reason_in_a_word(service: ScriptedVendor, status: int, body: str, why: str) -> None:
    service.script = [says(status, body)]
    assert send(channel("slack"), f"{service.url}/x", MESSAGE, 10.0) == Sent(Ending.REFUSED, why)


# --- PagerDuty ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pager(service: ScriptedVendor) -> AlertChannel:
    return channel("pagerduty", endpoint=f"{service.url}/v2/enqueue")


@pytest.mark.parametrize("event", [AlertEvent.TRIGGER, AlertEvent.REPEAT])
def test_pagerduty_is_triggered(service: ScriptedVendor, pager: AlertChannel, event: AlertEvent) -> None:
    seen = sent(service, pager, "r0ut1ng", MESSAGE._replace(event=event))
    assert (seen.target, seen.headers["content-type"]) == ("/v2/enqueue", "application/json")
    assert seen.json == {
        "routing_key": "r0ut1ng",
        "event_action": "trigger",
        "dedup_key": "a1",
        "payload": {
            "summary": FIELDS["title"],
            "source": "retake",
            "severity": "critical",
            "timestamp": "2026-11-22T08:51:21Z",
            "component": "runway",
            "group": "story, news",
            "class": "UNAUTHORIZED",
            "custom_details": FIELDS,
        },
        "links": [{"href": LINK, "text": "The alert on the dashboard"}],
    }


@pytest.mark.parametrize("event", [AlertEvent.ACKNOWLEDGE, AlertEvent.RESOLVE])
def test_pagerduty_acknowledges_and_resolves_by_the_key(
    service: ScriptedVendor, pager: AlertChannel, event: AlertEvent
) -> None:
    seen = sent(service, pager, "r0ut1ng", MESSAGE._replace(event=event))
    assert seen.json == {"routing_key": "r0ut1ng", "event_action": event.value, "dedup_key": "a1"}


def test_a_report_is_information_for_pagerduty(service: ScriptedVendor, pager: AlertChannel) -> None:
    body = sent(service, pager, "r0ut1ng", REPORT).json
    assert (body["event_action"], body["dedup_key"]) == ("trigger", "daily-2026-11-22")
    assert body["payload"]["severity"] == "info"
    assert body["payload"]["custom_details"] == {"text": "made: 4", "made": 4, "failed": 1}
    assert "links" not in body


def test_what_pagerduty_takes_is_bounded(service: ScriptedVendor, pager: AlertChannel) -> None:
    many = {**FIELDS, "pipelines": [f"pipeline-{n:05}" for n in range(60_000)]}
    message = MESSAGE._replace(title="🎬" * 2000, text="🎬" * 300_000, subject_id="a" * 300, fields=many)
    seen = sent(service, pager, "r0ut1ng", message)
    assert len(seen.body) < 512_000
    payload = seen.json["payload"]
    assert len(payload["summary"]) <= pagerduty.SUMMARY_LIMIT
    assert payload["group"].startswith("pipeline-00000, ")
    assert len(payload["group"]) <= 255
    assert len(seen.json["dedup_key"]) == 255
    assert set(payload["custom_details"]) == {"text"}


def test_pagerduty_gives_its_reasons(service: ScriptedVendor, pager: AlertChannel) -> None:
    body = {"status": "invalid event", "message": "Event object is invalid", "errors": ["'severity' is invalid", 7]}
    service.script = [says(400, body)]
    expected = Sent(Ending.REFUSED, "400: Event object is invalid; 'severity' is invalid")
    assert send(pager, "r0ut1ng", MESSAGE, 10.0) == expected


# --- Telegram -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chat_id", [-1001234, "@channel"])
def test_telegram(service: ScriptedVendor, chat_id: int | str) -> None:
    found = channel("telegram", endpoint=f"{service.url}/", chat_id=chat_id)
    seen = sent(service, found, "7001:AAE-s3cr3t_Tok3n")
    assert seen.target == "/bot7001:AAE-s3cr3t_Tok3n/sendMessage"
    assert seen.json == {
        "chat_id": chat_id,
        "text": f"{FIELDS['title']}\n\n{FIELDS['text']}",
        "link_preview_options": {"is_disabled": True},
    }


def test_a_text_that_is_too_long_for_telegram_is_cut(service: ScriptedVendor) -> None:
    found = channel("telegram", endpoint=service.url, chat_id=1)
    text = sent(service, found, "7001:x", MESSAGE._replace(text="a🎬" * 4000)).json["text"]
    assert 4090 <= length(text) <= 4096
    assert text.endswith("…")


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (
            429,
            {"ok": False, "description": "Too Many Requests: retry after 35", "parameters": {"retry_after": 35}},
            Sent(Ending.FAILED, "429: Too Many Requests: retry after 35", 35.0),
        ),
        (429, {"ok": False, "parameters": {"retry_after": 99_999}}, Sent(Ending.FAILED, "429", 3600.0)),
        (429, {"ok": False, "parameters": {"retry_after": "x"}}, Sent(Ending.FAILED, "429")),
        (429, {"ok": False, "parameters": []}, Sent(Ending.FAILED, "429")),
        (
            400,
            {"ok": False, "description": "Bad Request: chat not found"},
            Sent(Ending.REFUSED, "400: Bad Request: chat not found"),
        ),
        (
            400,
            {"ok": False, "description": "group was upgraded", "parameters": {"migrate_to_chat_id": -100777}},
            Sent(Ending.REFUSED, "400: group was upgraded; its chat_id is now -100777"),
        ),
        (200, {"ok": False, "description": "no"}, Sent(Ending.REFUSED, "200: no")),
        (200, {"ok": True, "result": {"message_id": 4}}, Sent(Ending.DELIVERED)),
    ],
)
def test_what_telegram_answers(service: ScriptedVendor, status: int, body: dict[str, Any], expected: Sent) -> None:
    service.script = [says(status, body)]
    found = channel("telegram", endpoint=service.url, chat_id=1)
    assert send(found, "7001:x", MESSAGE, 10.0) == expected


# --- webhook --------------------------------------------------------------------------------------------------------


def test_a_webhook_is_sent_what_list_has(service: ScriptedVendor) -> None:
    seen = sent(service, channel("webhook"), f"{service.url}/in?token=t0k3n")
    assert (seen.target, seen.headers["content-type"]) == ("/in?token=t0k3n", "application/json")
    assert seen.json == {"event": "trigger", "at": "2026-11-22T08:51:21Z", **FIELDS}
    assert "authorization" not in seen.headers


def test_a_webhook_is_sent_a_reports_figures(service: ScriptedVendor) -> None:
    seen = sent(service, channel("webhook"), f"{service.url}/in", REPORT)
    assert seen.json == {"event": "report", "at": "2026-11-22T08:51:21Z", "made": 4, "failed": 1}


def test_a_name_and_a_password_in_a_webhooks_url_sign_in(service: ScriptedVendor) -> None:
    url = service.url.replace("://", "://ann:p%40ss@")
    seen = sent(service, channel("webhook"), f"{url}/in")
    assert seen.target == "/in"
    assert seen.headers["authorization"] == "Basic " + base64.b64encode(b"ann:p@ss").decode()


# --- SMS ------------------------------------------------------------------------------------------------------------

ANN, BEN, CAT = "+15550001", "+15550002", "+15550003"


def texting(service: ScriptedVendor, *to: str) -> AlertChannel:
    return channel("sms", endpoint=service.url, account="AC01", **{"from": "+15559999", "to": list(to or [ANN])})


def recipients(service: ScriptedVendor) -> list[str]:
    return [parse_qs(seen.body.decode())["To"][0] for seen in service.seen]


def test_sms(service: ScriptedVendor) -> None:
    seen = sent(service, texting(service), "t0k3n")
    assert seen.target == "/2010-04-01/Accounts/AC01/Messages.json"
    assert seen.headers["content-type"] == "application/x-www-form-urlencoded"
    assert seen.headers["authorization"] == "Basic " + base64.b64encode(b"AC01:t0k3n").decode()
    assert parse_qs(seen.body.decode()) == {
        "To": [ANN],
        "From": ["+15559999"],
        "Body": [f"[CRITICAL] {FIELDS['title']}\n{FIELDS['text']}\n{LINK}"],
    }


@pytest.mark.parametrize("text", ["x" * 1000, "🎬" * 1000, "a🎬b" * 300, "word " * 300, "é" * 1000, "\n" * 500, ""])
@pytest.mark.parametrize("link", [None, LINK, "https://dash.example/" + "a" * 200, "https://x.example/" + "b" * 400])
def test_an_sms_has_at_most_320_characters(text: str, link: str | None) -> None:
    for title in ("Stopped", "🎬" * 400):
        body = sms.body_of(MESSAGE._replace(title=title, text=text, link=link))
        assert len(body) <= length(body) <= 320
        assert body.startswith("[CRITICAL] " + title[:20])
        assert link != LINK or body.endswith(LINK)
        body.encode()  # no half of a surrogate pair


def test_a_link_that_the_text_has_is_not_sent_twice() -> None:
    short = MESSAGE._replace(text=f"Findings: {LINK}")
    assert sms.body_of(short).count(LINK) == 1
    early, late = f"Findings: {LINK} " + "x" * 400, "x" * 400 + f" Findings: {LINK}"
    assert sms.body_of(MESSAGE._replace(text=early)).count(LINK) == 1
    assert sms.body_of(MESSAGE._replace(text=late)).endswith(LINK)


def test_whoever_has_an_sms_is_not_sent_it_again(service: ScriptedVendor) -> None:
    found = texting(service, ANN, BEN, CAT)
    service.script = [says(201, {"sid": "SM1"}), says(500), says(201, {"sid": "SM3"})]
    first = send(found, "t0k3n", MESSAGE, 10.0)
    assert first == Sent(Ending.FAILED, "1 of 3 recipients: 500", None, (ANN, CAT))
    service.script = [cut]
    second = send(found, "t0k3n", MESSAGE, 10.0, first.done)
    assert second == Sent(Ending.FAILED, "1 of 3 recipients: the connection was cut", None, (ANN, CAT), maybe=True)
    service.script = [says(201, {"sid": "SM2"})]
    assert send(found, "t0k3n", MESSAGE, 10.0, second.done) == Sent(Ending.DELIVERED)
    assert recipients(service) == [ANN, BEN, CAT, BEN, BEN]


def test_a_number_that_twilio_refuses_does_not_keep_the_others_from_being_told(service: ScriptedVendor) -> None:
    refusal = says(400, {"code": 21211, "message": "Invalid 'To' Phone Number", "status": 400})
    service.script = [refusal, says(201, {})]
    expected = Sent(Ending.DELIVERED, "1 of 2 recipients: 400: 21211 Invalid 'To' Phone Number")
    assert send(texting(service, ANN, BEN), "t0k3n", MESSAGE, 10.0) == expected
    service.script = [refusal, refusal]
    assert send(texting(service, ANN, BEN), "t0k3n", MESSAGE, 10.0).how is Ending.REFUSED
    service.script = [refusal]
    expected = Sent(Ending.REFUSED, "400: 21211 Invalid 'To' Phone Number")
    assert send(texting(service, ANN), "t0k3n", MESSAGE, 10.0) == expected


def test_recipients_share_the_time(service: ScriptedVendor) -> None:
    service.script = [hang] * 3
    outcome = send(texting(service, ANN, BEN, CAT), "t0k3n", MESSAGE, 1.0)
    assert outcome.how is Ending.FAILED
    # The first one gets the time that is left when its turn comes: a little less than all of it on a busy machine.
    assert re.fullmatch(r"3 of 3 recipients: no answer within (1|0\.\d+) s", outcome.why), outcome.why
    assert eventually(lambda: bool(service.seen))
    assert recipients(service) == [ANN]


def test_an_account_that_is_not_part_of_a_path_is_quoted(service: ScriptedVendor) -> None:
    found = channel("sms", endpoint=service.url, account="A/../C ?", **{"from": "+1", "to": [ANN]})
    assert sent(service, found, "t0k3n").target == "/2010-04-01/Accounts/A%2F..%2FC%20%3F/Messages.json"


# --- in common ------------------------------------------------------------------------------------------------------


def test_recipients_in_all_combinations() -> None:
    good, bad, late = Sent(Ending.DELIVERED), Sent(Ending.REFUSED, "no"), Sent(Ending.FAILED, "later", 5.0)
    assert combined({}, ("a",)) == Sent(Ending.DELIVERED)
    assert combined({"b": bad}, ("a",)) == Sent(Ending.DELIVERED, "1 of 2 recipients: no")
    assert combined({"a": bad, "b": late}, ()) == Sent(Ending.FAILED, "2 of 2 recipients: later", 5.0, ())
    waits = {"a": late, "b": Sent(Ending.FAILED, "x", 9.0), "c": Sent(Ending.FAILED, "y"), "d": good}
    assert combined(waits, ("e",)) == Sent(Ending.FAILED, "3 of 5 recipients: later", 9.0, ("e", "d"))


@pytest.mark.parametrize("text", ["", "abc", "abcd", "abcde" * 9, "🎬" * 9, "a🎬" * 9, "🎬a" * 9, "\ud800" * 9])
@pytest.mark.parametrize("limit", range(1, 12))
def test_a_text_is_cut_to_length_between_characters(text: str, limit: int) -> None:
    cut_text, text = utf16_cut(text, limit), text.replace("\ud800", "?")
    assert length(cut_text) <= limit
    assert cut_text == text or (cut_text.endswith("…") and text.startswith(cut_text[:-1]))
    assert cut_text == text or length(cut_text) >= limit - 1


def test_parts_of_a_secret_are_masked_too() -> None:
    url = "https://ann:pass%20word@hooks.example/services/T0AAAA/abcdefgh?sig=zyxwvuts"
    told = f"no {url}, no /services/T0AAAA/abcdefgh, no ABCDEFGH, no pass word, no pass%20word, no zyxwvuts"
    masked = without_secret(told, url)
    for part in ("T0AAAA", "abcdefgh", "pass word", "pass%20word", "zyxwvuts"):
        assert part.lower() not in masked.lower()
    assert without_secret("a b c", "") == "a b c"
    assert without_secret("the code is abc", "abc") == "the code is …"


def test_a_try_is_shown_without_its_secret() -> None:
    assert repr(Sending(channel("slack"), "https://hooks.example/T0", MESSAGE, 1.0)) == "Sending('it', 'd-0001')"


def test_no_kind_is_imported_before_a_message_is_due() -> None:
    code = (
        "import sys, retake.alerts.settings, retake.alerts.message, retake.alerts.channels.sending\n"
        "print([m for m in sys.modules if m.startswith('retake.alerts.channels.') and not m.endswith('.sending')"
        " or m in ('smtplib', 'requests', 'apprise')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "[]\n"


def test_a_fields_value_that_is_not_ascii_arrives(service: ScriptedVendor) -> None:
    message = MESSAGE._replace(fields={"title": "Größe 🎬"})
    assert json.loads(sent(service, channel("webhook"), f"{service.url}/in", message).body)["title"] == "Größe 🎬"
