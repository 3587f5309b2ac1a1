"""The command python -m retake.sandbox."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import requests

from retake.sandbox import FAULTS, KINDS
from retake.sandbox.orders import UPLOAD_FAULTS

ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1"}


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "retake.sandbox", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", env=ENVIRONMENT
    )


def test_it_says_how_to_use_it_shows_the_calls_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with _start("--state", str(tmp_path), "--order", "chat#1=500", "--quick", "--pace", "0") as process:
        lines = [process.stdout.readline() for _ in range(9)]
        url = lines[0].split()[-1]
        assert f"RETAKE_SANDBOX_URL={url}" in lines[1]
        assert any(f"API_KEYS.openai.endpoint = {url}/openai/v1" in line for line in lines)
        assert any(f"endpoint = {url}/legnext/api" in line for line in lines)
        reply = requests.post(
            f"{url}/openai/v1/chat/completions", json={}, headers={"Authorization": "Bearer my-own-key"}, timeout=5
        )
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert reply.status_code == 500
    assert {"chat", "#1", "500"} <= set(line.split())
    assert process.returncode == 0
    assert "Traceback" not in rest
    assert "my-own-key" not in line + rest


def test_a_port_that_is_taken_is_reported_in_one_line() -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        with _start("--port", str(squatter.getsockname()[1])) as process:
            said, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "in use" in said
    assert "Traceback" not in said


def test_a_bad_order_is_reported_before_anything_starts() -> None:
    with _start("--order", "upscael=500") as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "upscael" in said
    assert "histories" in said


def test_the_help_lists_every_kind_of_call_and_every_fault() -> None:
    with _start("--help") as process:
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert {name for name in (*KINDS, *FAULTS, *UPLOAD_FAULTS) if not re.search(rf"\b{name}\b", shown)} == set()
