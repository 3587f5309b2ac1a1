"""The line that says where a service listens."""

from io import StringIO

from retake.serving.server import announce
from retake.testing.logs import CapturedLogs


def test_it_is_written_at_once() -> None:
    out = StringIO()
    announce("Listening on http://127.0.0.1:8080", out)
    assert out.getvalue() == "Listening on http://127.0.0.1:8080\n"


def test_a_full_disk_is_logged_and_stops_no_service() -> None:
    with CapturedLogs() as log, open("/dev/full", "w") as full:
        announce("Listening on http://127.0.0.1:8080", full)
    (warning,) = [it.getMessage() for it in log.records]
    assert "http://127.0.0.1:8080" in warning
    assert "No space left on device" in warning
