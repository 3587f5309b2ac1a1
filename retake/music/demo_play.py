"""Plays `python -m retake.music.demo`.

The chat API fails until a step has failed for good, and a tap on Telegram's button retries it; the upload is cut off in
the middle and resumed.
"""

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar

import httpx

from retake.foreign_text import one_line
from retake.logs import setup_logging
from retake.media.audio import demo_track
from retake.music.service import run_service
from retake.music.settings import SANDBOX_KEYS, load_music_settings, sandboxed
from retake.sandbox import Pace, Sandbox
from retake.sandbox.people import TelegramPhone
from retake.ticking.process import exit_code_of

API = "/api/music/pipeline"
TIMEOUT_S = 180.0
ORDERS = ("chat#1-3=500", "upload.put#2=cut-midway")
CHAT = USER = 1

Found = TypeVar("Found")

_log = getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Play the demo in the given folder, which is created."""
    folder = Path(arguments[0] if arguments else "demo/music")
    setup_logging(sys.stderr, human=True)
    return exit_code_of(lambda: _play(folder))


def _play(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps(_document(folder), indent=2) + "\n")
    demo_track(folder / "demo.wav")
    with Sandbox(folder / "sandbox", pace=Pace(1, 1, 1)) as sandbox:
        for order in ORDERS:
            sandbox.order(order)
        with _service(config, sandbox.url) as url:
            person = _Person(url, sandbox.telegram)
            shown = person.publish()
        _account(shown, sandbox, config)
    return 0


def _document(folder: Path) -> dict[str, Any]:
    return {
        "STORAGE": {"url": f"file:{folder / 'files'}"},
        "MUSIC": {
            "database": f"sqlite:{folder / 'music.sqlite3'}",
            "audio_folder": str(folder),
            "port": 0,
            "poll_seconds": 0.5,
            "step_retry_backoff_sec": [1],
            "upload_chunk_bytes": 262_144,
            "telegram": "poll",
            "telegram_chat_id": CHAT,
            "telegram_allowed_users": [USER],
            "telegram_poll_seconds": 1,
        },
    }


@contextmanager
def _service(config: Path, sandbox_url: str) -> Iterator[str]:
    """Run the service in a thread of this process, and yield its URL."""
    settings = sandboxed(load_music_settings({"RETAKE_CONFIG": str(config)}), sandbox_url)
    out, stopped = io.StringIO(), threading.Event()

    def serve() -> None:
        run_service(settings, SANDBOX_KEYS, signals=lambda: int(stopped.is_set()), out=out)

    thread = threading.Thread(target=serve, name="service")
    thread.start()
    try:
        yield str(_until(lambda: out.getvalue().strip(), "the service to listen")).split()[-1]
    finally:
        stopped.set()
        thread.join()


class _Person:
    """Approves each result: on Telegram if there is a button for it, else through the API."""

    def __init__(self, url: str, phone: TelegramPhone) -> None:
        headers = {"Authorization": f"Bearer {SANDBOX_KEYS.api}"}
        self._http = httpx.Client(base_url=f"{url}{API}", headers=headers, timeout=30)
        self._phone, self._number = phone, 0

    def publish(self) -> dict[str, Any]:
        """Take a track from the start to YouTube; return the pipeline."""
        with self._http:
            body = {"track_title": "Night Drive", "audio": "demo.wav", "style": "warm, slow"}
            self._number = self._http.post("", json=body).raise_for_status().json()["id"]
            _say(f"a pipeline begins: #{self._number}, from demo.wav")
            while (shown := self._settled())["state"] != "published":
                self._answer(shown["state"])
            _until(lambda: any("youtu.be" in it["text"] for it in self._phone.messages()), "the last message")
            return shown

    def _answer(self, state: str) -> None:
        if state == "failed":
            _say("tap 🔄 Retry on Telegram")
            self._tap(f"ytpub_retry_{self._number}")
        elif state == "cover_pending":
            _say("tap ✅ Approve on Telegram: the cover is good")
            self._tap(f"ytpub_approve_{self._number}_")
        else:
            _say(f"POST approve: yes to {state.removesuffix('_pending')}")
            self._http.post(f"/{self._number}/approve").raise_for_status()

    def _tap(self, begins: str) -> None:
        def button() -> str | None:
            rows = [it.get("reply_markup", {}).get("inline_keyboard", []) for it in self._phone.messages()]
            found = [str(it["callback_data"]) for keyboard in rows for row in keyboard for it in row]
            return next((it for it in reversed(found) if it.startswith(begins)), None)

        before = self._shown()["state"]
        self._phone.tap(_until(button, "Telegram's message"), from_id=USER)
        _until(lambda: self._shown()["state"] != before, "the tap to act")

    def _settled(self) -> dict[str, Any]:
        """Return the pipeline once no step runs."""
        _until(lambda: not self._shown()["state"].endswith("_running"), "the step to end")
        return self._shown()

    def _shown(self) -> dict[str, Any]:
        return dict(self._http.get(f"/{self._number}").raise_for_status().json())


def _account(shown: dict[str, Any], sandbox: Sandbox, config: Path) -> None:
    """Print what happened, the messages on Telegram, the video on YouTube, and the bill."""
    print(f"\nWhat happened (#{shown['id']}, {shown['track_title']})")  # noqa: T201
    for job in shown["jobs"]:
        line = f"  {job['started_at'][11:19]}  {job['step']:<8} attempt {job['attempt']}  {job['status']}"
        print(f"{line}  {job['error_code'] or ''}".rstrip())  # noqa: T201
    print("\nWhat was sent to Telegram")  # noqa: T201
    for message in sandbox.telegram.messages():
        print(f"  {one_line(message['text'].partition(chr(10))[0])}"[:79])  # noqa: T201
    print("\nHow it was uploaded")  # noqa: T201
    for call in sandbox.calls():
        if call.kind.startswith("upload."):
            print(f"  {call.kind:<13} {call.outcome}")  # noqa: T201
    print("\nWhat is on YouTube")  # noqa: T201
    for video in sandbox.youtube.videos():
        print(f"  {video['id']}  {video['title']}"[:79])  # noqa: T201
        print(f"  {video['size']:,} bytes, in {len(sandbox.youtube.sessions())} upload session")  # noqa: T201
    print("\nWhat the vendors would have billed")  # noqa: T201
    bill = sandbox.bill()
    for kind, billed in bill.lines.items():
        if billed.price:
            print(f"  {kind:<10} {billed.counts}   {billed.price:.3f} USD")  # noqa: T201
    print(f"  {'total':<10} {bill.total:.3f} USD")  # noqa: T201
    print("\nTo look closer")  # noqa: T201
    python = os.path.relpath(sys.executable)
    print(f"  RETAKE_CONFIG={config} {python} -m retake music show {shown['id']}")  # noqa: T201


def _say(what: str) -> None:
    _log.info("%s", what, extra={"step": "you"})


def _until(look: Callable[[], Found | None], what: str) -> Found:
    """Return the first truthy result of `look`. Raises TimeoutError."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.1)
    raise TimeoutError(f"waiting for {what} took longer than {TIMEOUT_S:g} s")
