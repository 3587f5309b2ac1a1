"""What a `.env` file adds to the environment."""

import os
from pathlib import Path

import pytest

from retake.errors import SettingsError
from retake.exit_codes import ExitCode
from retake.serving.environment import load_environment


def test_without_a_file_it_is_that_of_the_process(tmp_path: Path) -> None:
    assert load_environment(tmp_path) == dict(os.environ)


def test_the_file_adds_what_the_process_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://the-process")
    monkeypatch.setenv("DATABASE_URL", "")
    (tmp_path / ".env").write_text("# both\nREDIS_URL=redis://the-file\nDATABASE_URL=x\nRABBITMQ_URL=amqp://the-file\n")
    found = load_environment(tmp_path)
    assert found["REDIS_URL"] == "redis://the-process"
    assert found["DATABASE_URL"] == ""
    assert found["RABBITMQ_URL"] == "amqp://the-file"
    assert "RABBITMQ_URL" not in os.environ


def test_values_are_taken_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("export FIRST='a b'\nSECOND=$HOME-${HOME}\nTHIRD=a#b # a comment\nFOURTH=\n")
    found = load_environment(tmp_path)
    assert [found[name] for name in ("FIRST", "SECOND", "THIRD", "FOURTH")] == ["a b", "$HOME-${HOME}", "a#b", ""]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"A=1\n\nsesame\n", 3),
        (b'A=1\nB="sesame\nC=2\n', 2),
        (b"=sesame\n", 1),
        (b"\0=sesame\n", 1),
        (b"A=ses\0ame\n", 1),
        (b"two words=sesame\n", 1),
    ],
)
def test_a_line_that_is_not_a_variable_is_named_and_not_quoted(tmp_path: Path, content: bytes, line: int) -> None:
    (tmp_path / ".env").write_bytes(content)
    with pytest.raises(SettingsError, match=rf"\.env, line {line}: not NAME=value") as caught:
        load_environment(tmp_path)
    assert "sesame" not in str(caught.value)
    assert caught.value.exit_code == ExitCode.CONFIG


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    place = tmp_path / ".env"
    place.write_bytes(b"A=\xff\n")
    with pytest.raises(SettingsError, match="not a text in UTF-8"):
        load_environment(tmp_path)
    place.write_bytes(b"A=" + b"x" * (1 << 20))
    with pytest.raises(SettingsError, match="not a file of variables"):
        load_environment(tmp_path)
    place.unlink()
    place.mkdir()
    with pytest.raises(SettingsError, match="not a file of variables"):
        load_environment(tmp_path)
