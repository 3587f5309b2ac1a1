"""Logs: the fields of a line, the text for people, that secrets never appear, and that logging never ends a program."""

import io
import json
import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pythonjsonlogger import core

from retake.errors import Code, Refused, SettingsError
from retake.logs import _json_logger, alert, bind, relay, setup_logging

ROOT = Path(__file__).parents[1]
log = logging.getLogger("retake.story.media")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raising
    logging.captureWarnings(False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream() -> io.StringIO:
    """Return a stream that receives JSON lines at level DEBUG; the environment holds two secrets."""
    stream = io.StringIO()
    environ = {"SOME_API_KEY": "hush-1234", "DB_PASSWORD": "pä ss/wörd\\", "SHORT_KEY": "abc", "SHELL": "/bin/bash"}
    setup_logging(stream, human=False, level="DEBUG", environ=environ)
    return stream


def records(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def record(stream: io.StringIO) -> dict[str, Any]:
    (only,) = records(stream)
    return only


def human(environ: dict[str, str], stream: io.StringIO | None = None) -> io.StringIO:
    stream = stream or io.StringIO()
    setup_logging(stream, human=True, level="DEBUG", environ=environ)
    return stream


def log_raised(message: str, error: Exception, cause: Exception | None = None) -> None:
    """Log `message` with `error` as it looks after being raised and caught."""

    def fail() -> None:
        raise error from cause

    try:
        fail()
    except type(error):
        log.exception(message)


def test_a_record_is_one_json_line_with_time_level_logger_and_message(stream: io.StringIO) -> None:
    log.info("ordered %d of %s", 4, "четыре")
    assert "четыре" in stream.getvalue()
    line = record(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("timestamp"))
    assert line == {"level": "INFO", "logger": "retake.story.media", "message": "ordered 4 of четыре"}


def test_a_record_stays_one_line_whatever_is_in_it(stream: io.StringIO) -> None:
    text = "a\nb\r\x0b\x0c\x1c\x85\u2028\u2029c"
    log.info(text, extra={"a": text})
    line = record(stream)
    assert (line["message"], line["a"]) == (text, text)


def test_extras_become_fields(stream: io.StringIO) -> None:
    log.info("x", extra={"attempt": 2, "code": SettingsError.exit_code, "nested": {"a": [1, (None, True)], "b": 0.5}})
    line = record(stream)
    assert (line["attempt"], line["code"], line["nested"]) == (2, 78, {"a": [1, [None, True]], "b": 0.5})


def test_bound_fields_are_on_every_record_inside_and_on_none_outside(stream: io.StringIO) -> None:
    with bind(generation_id="20260101-0000", run_id="r1", status=None):
        with bind(step="fetch", run_id=None):
            log.info("inner", extra={"step": "upscale"})
        log.info("outer")
    log.info("after")
    inner, outer, after = records(stream)
    assert {"generation_id", "step"} <= set(inner)
    assert "run_id" not in inner
    assert inner["step"] == "upscale"
    assert (outer["generation_id"], outer["run_id"]) == ("20260101-0000", "r1")
    assert "step" not in outer
    assert "status" not in outer
    assert set(after) == {"timestamp", "level", "logger", "message"}


def test_a_binding_ends_with_the_error_that_ends_its_block(stream: io.StringIO) -> None:
    with pytest.raises(ValueError), bind(step="fetch"):
        raise ValueError
    log.info("after")
    assert "step" not in record(stream)


def test_a_field_cannot_take_the_place_of_a_records_own(stream: io.StringIO) -> None:
    with bind(name="n", message="m"):
        log.info("x", extra={"level": "l", "timestamp": "t"})
    alert("stopped", "y", args=(1,), logger="g")
    first, second = records(stream)
    assert (first["message"], first["level"], first["logger"]) == ("x", "INFO", "retake.story.media")
    assert (first["name_"], first["message_"], first["level_"], first["timestamp_"]) == ("n", "m", "l", "t")
    assert (second["message"], second["args_"], second["logger_"]) == ("y", [1], "g")


def test_an_alert_is_critical_and_says_its_code(stream: io.StringIO) -> None:
    alert("outcome_unknown", "100 % sure that nobody knows", generation_id="20260101-0000")
    line = record(stream)
    assert (line["level"], line["alert"]) == ("CRITICAL", "outcome_unknown")
    assert (line["message"], line["generation_id"]) == ("100 % sure that nobody knows", "20260101-0000")


def test_records_below_the_level_are_dropped() -> None:
    stream = io.StringIO()
    setup_logging(stream, human=False, level=logging.WARNING, environ={})
    log.info("no")
    relay('{"timestamp": "2026-01-01T00:00:00Z", "level": "INFO", "logger": "retake.x", "message": "no"}')
    log.warning("yes")
    assert record(stream)["message"] == "yes"


def test_libraries_are_not_heard_below_warning(stream: io.StringIO) -> None:
    logging.getLogger("httpx").info("HTTP Request: POST https://api.example/v1")
    logging.getLogger("urllib3.connectionpool").debug("GET /")
    logging.getLogger("httpx").warning("trouble")
    assert record(stream)["message"] == "trouble"


def test_setting_up_again_replaces_what_was_there(stream: io.StringIO) -> None:
    again = io.StringIO()
    setup_logging(again, human=False, environ={})
    log.info("x")
    assert stream.getvalue() == ""
    assert len(records(again)) == 1


def test_without_a_stream_nothing_is_written_and_nothing_raised(capfd: pytest.CaptureFixture[str]) -> None:
    setup_logging(None, human=False, environ={})
    log.critical("x")
    assert capfd.readouterr() == ("", "")


def test_pythons_warnings_are_records(stream: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old ways", DeprecationWarning, stacklevel=1)
    line = record(stream)
    assert (line["level"], line["logger"]) == ("WARNING", "py.warnings")
    assert "old ways" in line["message"]


def test_a_bug_has_its_traceback_in_one_field(stream: io.StringIO) -> None:
    log_raised("a bug", KeyError("hush-1234"))
    line = record(stream)
    assert line["message"] == "a bug"
    assert line["traceback"].startswith("Traceback (most recent call last):\n")
    assert "KeyError: '…'" in line["traceback"]


def test_an_error_raised_on_purpose_has_its_sentence_and_no_traceback(stream: io.StringIO) -> None:
    log_raised("refused", Refused(Code.NETWORK, "no connection to https://api.example/v1?sig=abc"))
    line = record(stream)
    assert line["error"] == "Refused: no connection to https://api.example/v1?…"
    assert "traceback" not in line


def test_exc_info_without_an_exception_adds_nothing(stream: io.StringIO) -> None:
    log.warning("x", exc_info=True)
    assert set(record(stream)) == {"timestamp", "level", "logger", "message"}


def test_the_stack_is_a_field_when_it_is_asked_for(stream: io.StringIO) -> None:
    log.info("x", stack_info=True)
    assert "test_logs.py" in record(stream)["stack"]


@pytest.mark.parametrize(
    "text",
    [
        "hush-1234",
        "<hush-1234>",
        "pä ss/wörd\\",
        repr({"password": "pä ss/wörd\\"}),
        json.dumps({"password": "pä ss/wörd\\"}),
        "https://host/path/p%C3%A4%20ss%2Fw%C3%B6rd%5C/x",
        "https://host/path/p%C3%A4%20ss/w%C3%B6rd%5C/x",
        "form: p%C3%A4+ss%2Fw%C3%B6rd%5C",
        str("pä ss/wörd\\".encode()),
        "Authorization: Bearer abcdef",
        "https://bucket.example/x.png?X-Signature=abcdef&e=1",
        "key_0123456789abcdef",
    ],
)
def test_a_secret_is_masked_wherever_it_stands(stream: io.StringIO, text: str) -> None:
    with bind(bound=text):
        log.error(
            text, extra={"a": text, "b": [{"c": (text,)}], "d": {text: 1}, "e": text.encode(), "f": ValueError(text)}
        )
        log.error("%s", text)
    log_raised("a bug", ValueError(text), OSError(text))
    assert len(records(stream)) == 3
    assert not re.search(r"hush|abcdef|ss/w|ss%2Fw", stream.getvalue())


def test_a_secret_that_is_a_number_is_masked_as_a_number_too() -> None:
    stream = io.StringIO()
    setup_logging(stream, human=False, environ={"PIN_TOKEN": "1234567"})
    log.info("x", extra={"pin": 1234567, "other": 7654321, "key_id": 91234567.5})
    line = record(stream)
    assert (line["pin"], line["other"], line["key_id"]) == ("…", 7654321, "9….5")


def test_short_values_and_other_variables_are_not_masked(stream: io.StringIO) -> None:
    log.info("abc /bin/bash")
    assert record(stream)["message"] == "abc /bin/bash"


def test_two_secrets_one_within_the_other_are_masked_completely() -> None:
    stream = io.StringIO()
    setup_logging(
        stream, human=False, environ={"A_KEY": "secret", "B_TOKEN": "secret-and-more", "C_KEY_ID": " padded\n"}
    )
    log.info("secret-and-more secret padded")
    assert record(stream)["message"] == "… … …"


def test_a_secret_that_looks_like_a_known_credential_is_masked_whole() -> None:
    stream = io.StringIO()
    setup_logging(stream, human=False, environ={"RUNWAYML_API_SECRET": "key_0123456789abcdefXYZ"})
    log.info("key_0123456789abcdefXYZ")
    assert record(stream)["message"] == "…"


secrets = (
    st.text(st.characters(codec="utf-8"), min_size=6, max_size=30)
    .map(str.strip)
    .filter(lambda text: len(text) >= 6 and "…" not in text and not set(text) <= set('{}[]",: '))
)


@hypothesis_settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(secret=secrets, before=st.text(max_size=8), after=st.text(max_size=8), for_people=st.booleans())
def test_no_secret_survives(secret: str, before: str, after: str, for_people: bool) -> None:
    stream = io.StringIO()
    setup_logging(stream, human=for_people, environ={"VENDOR_API_KEY": secret})
    text = f"{before}{secret}{after}"
    log.info("%s", text, extra={"a": {"b": [text]}, "c": ValueError(text)})
    log.error("x", exc_info=RuntimeError(text))
    shown = [stream.getvalue()] if for_people else list(texts(records(stream)))
    assert not [found for found in shown if secret in found]


def texts(value: Any) -> Iterator[str]:
    """Yield every text in `value` that is not part of a record's own structure."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name not in ("timestamp", "level", "logger"):
                yield from texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts(part)
    elif isinstance(value, str):
        yield value


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_a_record_that_cannot_be_shown_says_so_and_raises_nothing(stream: io.StringIO) -> None:
    log.info("%d", "four")
    log.error("x", extra={"thing": Unshowable()})
    first, second = records(stream)
    assert (first["level"], first["logger"]) == ("WARNING", "retake.story.media")
    assert re.search(r"retake\.story\.media, line \d+, could not be shown: TypeError", first["message"])
    assert (second["level"], "RuntimeError" in second["message"]) == ("ERROR", True)


def test_what_json_has_no_word_for_becomes_text(stream: io.StringIO) -> None:
    ring: list[Any] = []
    ring.append(ring)
    log.info("x", extra={"ring": ring, "nan": float("nan"), "path": Path("a/b"), "code": Code.MEDIA})
    log.info("\ud800 lone")
    first, second = records(stream)
    assert first["nan"] == "nan"
    assert first["path"] == "a/b"
    assert first["code"] == "ERR_TEMPORARY_MEDIA"
    assert second["message"] == "\ud800 lone"
    assert stream.getvalue().encode()


def test_a_person_sees_time_channel_step_and_message() -> None:
    stream = human({})
    with bind(step="imagine", channel="en"):
        log.info("ordered four pictures")
    log.warning("two\nlines\n")
    first, second, third = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d  en/imagine  ordered four pictures", first)
    assert re.fullmatch(r"\d\d:\d\d:\d\d  media     warning: two", second)
    assert third == "          lines"


def test_a_person_sees_what_went_wrong_below_the_message() -> None:
    stream = human({})
    log.error("failed", exc_info=Refused(Code.NETWORK, "no connection"))
    log.error("failed", exc_info=KeyError("k"))
    for error in ("Refused: no connection", "KeyError: 'k'"):
        assert f"failed\n          {error}\n" in stream.getvalue()


def test_a_message_cannot_control_the_terminal() -> None:
    stream = human({})
    log.info("\x1b[2Jgone\x07\r")
    assert stream.getvalue().endswith("   [2Jgone \n")


@pytest.mark.parametrize(
    ("environ", "terminal", "coloured"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "xterm"}, False, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(environ: dict[str, str], terminal: bool, coloured: bool) -> None:
    stream = human(environ, Terminal() if terminal else io.StringIO())
    log.error("red")
    log.info("plain")
    red, plain = stream.getvalue().splitlines()
    assert ("\x1b[31m" in red) is coloured
    assert red.endswith("\x1b[0m") is coloured
    assert "\x1b" not in plain


def test_a_scripts_line_keeps_its_time_level_logger_and_fields(stream: io.StringIO) -> None:
    line = (
        '{"timestamp": "2026-01-02T03:04:05.678Z", "level": "ERROR", "logger": "retake.x", "message": "50 %s", '
        '"step": "fetch"}'
    )
    with bind(generation_id="g", step="imagine"):
        relay(line + "\n")
    assert record(stream) == json.loads(line) | {"generation_id": "g"}


def test_a_line_goes_through_two_programs_unchanged(stream: io.StringIO) -> None:
    log.warning("x-api-key: abc", extra={"level": 1, "deep": {"a": [None]}})
    log_raised("a bug", ValueError("https://host/x?sig=1"))
    written = stream.getvalue()
    for line in written.splitlines():
        relay(line)
    assert stream.getvalue() == written * 2


def test_a_scripts_line_is_readable_for_a_person() -> None:
    stream = human({})
    relay('{"timestamp":"2026-01-02T03:04:05Z","level":"INFO","logger":"retake.x","message":"done","step":"fetch"}')
    assert re.fullmatch(r"\d\d:\d\d:05  fetch     done\n", stream.getvalue())


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        "{not json}",
        "[1]",
        "3",
        "{}",
        '{"timestamp": "2026-01-01T00:00:00Z", "level": "LOUD", "logger": "x", "message": "m"}',
        '{"timestamp": "2026-01-01T00:00:00Z", "level": [], "logger": "x", "message": "m"}',
        '{"timestamp": "now", "level": "INFO", "logger": "x", "message": "m"}',
        '{"timestamp": 5, "level": "INFO", "logger": "x", "message": "m"}',
        '{"timestamp": "0001-01-01T00:00:00+23:59", "level": "INFO", "logger": "x", "message": "m"}',
        "[" * 100_000,
    ],
)
def test_any_other_line_is_a_warning_of_the_script(stream: io.StringIO, line: str) -> None:
    relay(line + "\r\n")
    found = record(stream)
    assert (found["level"], found["logger"], found["message"]) == ("WARNING", "script", line)


def test_blank_lines_are_dropped(stream: io.StringIO) -> None:
    relay("\n")
    relay("  ")
    assert stream.getvalue() == ""


def test_a_secret_in_a_scripts_line_is_masked(stream: io.StringIO) -> None:
    relay("hush-1234")
    relay('{"timestamp":"2026-01-01T00:00:00Z","level":"INFO","logger":"x","message":"hush-1234","a":["hush-1234"]}')
    assert "hush" not in stream.getvalue()
    assert len(records(stream)) == 2


def run(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, check=False, timeout=60, **options)


SURVIVOR = """
import logging, os, pathlib, sys
from retake.logs import alert, relay, setup_logging
{first}
setup_logging(sys.stderr, human={human})
log = logging.getLogger("retake.script")
log.info("paid")
log.error("a longer line " * 5000)
{between}
alert("code", "message")
relay("more")
pathlib.Path({file!r}).write_text("saved")
log.info("saved")
"""


@pytest.mark.parametrize("for_people", [False, True])
def test_a_script_whose_reader_is_gone_survives(tmp_path: Path, for_people: bool) -> None:
    file = tmp_path / "id"
    between = "print('not a record', file=sys.stderr, flush=True)"
    code = SURVIVOR.format(human=for_people, file=str(file), first="", between=between)
    reading, writing = os.pipe()
    os.close(reading)
    ran = run(code, stderr=writing, stdout=subprocess.PIPE)
    os.close(writing)
    assert (ran.returncode, ran.stdout, file.read_text()) == (0, "", "saved")


def test_a_script_whose_reader_goes_away_while_it_writes_survives(tmp_path: Path) -> None:
    file = tmp_path / "id"
    first = "reading, writing = os.pipe(); os.dup2(writing, 2); os.close(writing)"
    between = "os.close(reading); log.info('to nobody')"
    code = SURVIVOR.replace(" * 5000", "").format(human=False, file=str(file), first=first, between=between)
    assert (run(code).returncode, file.read_text()) == (0, "saved")


def test_a_full_disk_under_the_log_ends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "id"
    with open("/dev/full", "w") as full:
        ran = run(
            SURVIVOR.format(human=False, file=str(file), first="", between=""), stderr=full, stdout=subprocess.PIPE
        )
    assert (ran.returncode, file.read_text()) == (0, "saved")


def test_a_closed_stream_ends_nothing() -> None:
    stream = io.StringIO()
    setup_logging(stream, human=False, environ={})
    stream.close()
    log.error("x")


@pytest.mark.parametrize(("level", "lines"), [("debug", 0), ("info", 1)])
def test_a_program_pays_for_no_line_that_it_does_not_write_and_for_no_encoder(level: str, lines: int) -> None:
    code = (
        "import logging, sys; before = {*sys.modules}; from datetime import *; from retake.logs import setup_logging; "
        "setup_logging(sys.stderr, human=False, environ={'A_KEY': 'secret'}); more = {'at': datetime.now(UTC)}; "
        f"logging.getLogger('retake').{level}('x', extra=more); print(*{{'pythonjsonlogger', 'dataclasses', 'inspect', "
        "'uuid', 'platform', 'base64', 'urllib', 'pathlib'} & ({*sys.modules} - before))"
    )
    ran = run(code, capture_output=True)
    assert (ran.returncode, ran.stdout.strip(), ran.stderr.count("\n")) == (0, "", lines)


def test_a_formatter_that_is_not_a_file_is_imported(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.machinery.PathFinder.find_spec", lambda name: None)
    monkeypatch.setattr("retake.logs._json_logger", _json_logger.__wrapped__)
    log.info("x")
    assert (record(stream)["message"], _json_logger.__wrapped__()) == ("x", core)
