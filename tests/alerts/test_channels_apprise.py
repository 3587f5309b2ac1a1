"""Apprise: what a service of its type json:// receives, several URLs, failures, and its verbose loggers."""

import subprocess
import sys
import time
from typing import Any

import pytest
from notices import MESSAGE, REPORT, channel
from scripted_vendor import ScriptedVendor, closed_port, cut, hang, page, says

from retake.alerts.channels.sending import send
from retake.alerts.message import AlertEvent, Ending, Message, Sent

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # some of its plugins import deprecated modules

SECRET = "s3cr3t-p4th"
FAILED = "apprise could not deliver it"


def url_of(service: ScriptedVendor | str, path: str = SECRET) -> str:
    url = service if isinstance(service, str) else service.url
    return f"{url.replace('http:', 'json:')}/{path}"


def sent(secret: str, message: Message = MESSAGE, timeout_s: float = 60.0, done: tuple[str, ...] = ()) -> Sent:
    outcome = send(channel("apprise"), secret, message, timeout_s, done)
    assert SECRET not in outcome.why
    return outcome


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (MESSAGE, "failure"),
        (MESSAGE._replace(level="error", event=AlertEvent.REPEAT), "failure"),
        (MESSAGE._replace(level="warning"), "warning"),
        (MESSAGE._replace(event=AlertEvent.RESOLVE), "success"),
        (REPORT, "info"),
    ],
)
def test_title_and_text_arrive(service: ScriptedVendor, message: Message, kind: str) -> None:
    service.script = [says(200, {})]
    assert sent(url_of(service), message) == Sent(Ending.DELIVERED)
    [seen] = service.seen
    assert (seen.method, seen.target) == ("POST", f"/{SECRET}")
    assert (seen.json["title"], seen.json["message"], seen.json["type"]) == (message.title, message.text, kind)


@pytest.mark.parametrize(("query", "lengths"), [("", [32768, 7232]), ("?overflow=truncate", [32768])])
def test_a_text_that_is_too_long_is_sent_in_parts_unless_the_url_says_otherwise(
    service: ScriptedVendor, query: str, lengths: list[int]
) -> None:
    service.script = [says(200)] * len(lengths)
    sent(url_of(service) + query, MESSAGE._replace(text="x" * 40_000))
    assert [len(seen.json["message"]) for seen in service.seen] == lengths


@pytest.mark.parametrize("between", [",", " ", ", ", "\n"])
def test_several_urls_and_who_has_it_is_not_sent_it_again(service: ScriptedVendor, between: str) -> None:
    secret = between.join(url_of(service, path) for path in ("a?x=1,2", "b", "c"))
    service.script = [says(200), says(500), says(200)]
    first = sent(secret)
    assert first == Sent(Ending.FAILED, f"1 of 3 recipients: {FAILED}", None, ("1", "3"))
    service.script = [says(200)]
    assert sent(secret, done=first.done) == Sent(Ending.DELIVERED)
    assert [seen.target.partition("?")[0] for seen in service.seen] == ["/a", "/b", "/c", "/b"]


@pytest.mark.parametrize("act", [says(404), page(503), cut, says(302, Location="/elsewhere")])
def test_a_failure(service: ScriptedVendor, act: Any) -> None:
    service.script = [act, says(200)]
    assert sent(url_of(service)) == Sent(Ending.FAILED, FAILED)
    assert len(service.seen) == 1


def test_nobody_listens() -> None:
    assert sent(url_of(closed_port())) == Sent(Ending.FAILED, FAILED)


@pytest.mark.parametrize("secret", ["no url", "nosuch://s3cr3t-p4th", ",", "json://", "slack://s3cr3t-p4th"])
def test_a_url_that_apprise_does_not_understand(secret: str) -> None:
    assert sent(secret) == Sent(Ending.REFUSED, "APPRISE_URL has a URL that apprise does not understand")


def test_a_url_that_apprise_does_not_understand_does_not_keep_the_others_from_being_told(
    service: ScriptedVendor,
) -> None:
    service.script = [says(200)]
    outcome = sent(f"nosuch://x {url_of(service)}")
    why = "1 of 2 recipients: APPRISE_URL has a URL that apprise does not understand"
    assert outcome == Sent(Ending.DELIVERED, why)


def test_a_try_has_an_end(service: ScriptedVendor) -> None:
    service.script = [says(200), hang]
    sent(url_of(service))  # loads apprise
    begun = time.monotonic()
    outcome = sent(f"{url_of(service)} {url_of(service)}", timeout_s=0.5)
    assert time.monotonic() - begun < 60
    assert outcome.how is Ending.FAILED
    assert outcome.why in ("2 of 2 recipients: no answer within 0.5 s", f"2 of 2 recipients: {FAILED}")


def test_a_plugin_that_breaks_is_a_failure(service: ScriptedVendor, monkeypatch: pytest.MonkeyPatch) -> None:
    import apprise

    def breaks(*_: Any, **__: Any) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(apprise.Apprise, "notify", breaks)
    assert sent(url_of(service)) == Sent(Ending.FAILED, "apprise failed with RuntimeError")


def test_without_apprise_the_outcome_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    why = "the channel 'it' needs apprise, which is not installed: pip install 'retake[apprise]'"
    assert sent("json://x.example") == Sent(Ending.FAILED, why)


CHATTER = """
import io, logging, sys
from retake.logs import setup_logging
sys.path[:0] = ["tests/alerts"]
lines = io.StringIO()
setup_logging(lines, human=False, level=logging.DEBUG, environ={})
from notices import MESSAGE, channel
from retake.alerts.channels.sending import send
for url in sys.argv[1:]:
    send(channel("apprise"), url, MESSAGE, 20.0)
    setup_logging(lines, human=False, level=logging.DEBUG, environ={})
print(lines.getvalue())
"""


def test_apprise_logs_nothing(service: ScriptedVendor) -> None:
    odd = b"HTTP/1.1 200 OK\r\nno header\r\n\r\n"
    service.script = [says(200), says(500), lambda connection, _: connection.sendall(odd)]
    urls = [*[url_of(service)] * 3, url_of(closed_port()), f"nosuch://{SECRET}", "json://:a:b@/x"]
    ran = subprocess.run([sys.executable, "-c", CHATTER, *urls], capture_output=True, text=True, check=True, timeout=60)
    assert SECRET not in ran.stdout + ran.stderr
    assert "apprise" not in ran.stdout
    assert len(service.seen) == 3


def test_the_text_is_not_markup_for_a_service_that_takes_html(service: ScriptedVendor) -> None:
    service.script = [says(200)]
    sent(f"{url_of(service)}?format=html", MESSAGE._replace(text="a <b> & c"))
    assert service.seen[0].json["message"] == "a&nbsp;&lt;b&gt;&nbsp;&amp;&nbsp;c"
