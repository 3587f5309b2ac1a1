"""No key, bot URL or session URI appears in a log, an answer, a message or a row, whatever the vendors answer."""

import asyncio
import io
import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
from rig import Rig

from retake.errors import RetakeError
from retake.logs import mask, setup_logging
from retake.music.api import PREFIX, music_app
from retake.music.outbox import TelegramOutbox
from retake.music.settings import MusicKeys
from retake.music.telegram import TelegramInbox
from retake.vendors.telegram import TelegramBot

Rigs = Callable[..., Rig]

KEYS = MusicKeys(
    api="Api-7c1e55d0a94b",
    openai="sk-Chat0f3b8d77a1e2",
    midjourney="MjKey4be1c09fd23344aa",
    youtube_client_id="client-id-9.apps",
    youtube_client_secret="GoSecret-51aa7b90cc3d",
    youtube_refresh_token="1//Refresh-8d90ab12ef77",
    telegram="123456:BotToken-a0b1c2d3e4f5",
    telegram_webhook="Hook-99aa88bb77cc",
)
HIDDEN = [key.removeprefix("1//") for name, key in KEYS._asdict().items() if key and name != "youtube_client_id"]
SESSION = "AEnB2UqSessionSecret0123456789"

FAULTS = ("400", "401", "500", "502-html", "cut-after", "not-json")
CALLS = {
    "cover": ("imagine", "fetch", "download"),
    "meta": ("chat",),
    "publish": ("token", "upload.start", "upload.put", "upload.ask", "thumbnail", "youtube"),
}


class EchoHandler(BaseHTTPRequestHandler):
    """A vendor that refuses everything and repeats what it was sent, keys included."""

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode("utf-8", "replace")
        status = int(self.server.status)  # type: ignore[attr-defined]
        headers = {}
        if "/token" in self.path and status == 500:
            self._answer(200, {"access_token": "Access-77fe10ab55cd", "expires_in": 3000, "token_type": "Bearer"})
            return
        if "/upload/" in self.path and self.command == "POST" and "uploadType=resumable" in self.path:
            host, port = self.server.server_address[:2]
            headers["Location"] = f"http://{host}:{port}/upload/youtube/v3/videos?upload_id={SESSION}"
            status = 200
        keys = [self.headers[name] for name in ("Authorization", "x-api-key") if self.headers[name]]
        parts = (*keys, unquote(sent[:500]), sent[:500]) if self.server.keys_first else (self.path, *keys)  # type: ignore[attr-defined]
        words = f"refused: {' '.join(parts)}"
        self._answer(
            status, {"error": {"message": words}, "message": words, "description": words, "ok": False}, headers
        )

    do_GET = do_PUT = do_POST  # noqa: N815  (the names of http.server)

    def _answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Yield the service's log, in which keys are masked wherever they come from."""
    monkeypatch.setattr("retake.errors._hidden", set())
    monkeypatch.setattr("retake.logs._masked", set())
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    setup_logging(stream, human=False, environ={})
    mask(key for key in KEYS if key)
    yield stream
    logging.captureWarnings(False)
    root.handlers[:], logging.raiseExceptions = handlers, raising
    root.setLevel(level)


@pytest.fixture
def echo() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), EchoHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def rows_of(database: Path) -> str:
    """Return every value of every table, except `upload_session`."""
    texts = []
    with sqlite3.connect(database) as connection:
        connection.row_factory = sqlite3.Row
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            for row in connection.execute(f"SELECT * FROM {name}"):  # noqa: S608
                texts += [str(row[column]) for column in row.keys() if column != "upload_session"]  # noqa: SIM118
    connection.close()
    return "\n".join(texts)


def answers_of(rig: Rig) -> str:
    """Return the API's answers about each pipeline, and its refusals."""
    texts = []
    app = music_app(rig.actions, rig.bucket, str(KEYS.api))

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://music") as client:
            client.headers["Authorization"] = f"Bearer {KEYS.api}"
            texts.append((await client.get(PREFIX, params={"limit": 1000})).text)
            for row in rig.actions.listing(limit=1000):
                texts.append((await client.get(f"{PREFIX}/{row.id}")).text)
                texts.append((await client.post(f"{PREFIX}/{row.id}/approve")).text)
            texts.append((await client.get(PREFIX, headers={"Authorization": "Bearer wrong"})).text)

    asyncio.run(ask())
    return "\n".join(texts)


def speak(rig: Rig, url: str) -> None:
    """Send the waiting messages, take a tap, and ask for updates, ignoring failures."""
    bot = TelegramBot(str(KEYS.telegram), f"{url}/telegram", 2.0)
    TelegramOutbox(rig.database, bot, 42, "me").send(30)
    inbox = TelegramInbox(rig.actions, bot, [1])
    tap = {"id": "q1", "data": "ytpub_retry_1", "from": {"id": 1}}
    inbox.take({"update_id": len(rig.actions.listing()) + 1, "callback_query": tap})
    for act in (bot.delete_webhook, lambda: bot.updates(None, 0), lambda: bot.set_webhook(url, "Hook-99aa88bb77cc")):
        try:
            act()
        except RetakeError as error:
            logging.getLogger("retake").warning("%s", error)


def check_hidden(text: str, where: str, secrets: list[str]) -> None:
    for secret in secrets:
        at = text.find(secret)
        assert at < 0, (where, secret, text[max(0, at - 300) : at + 100])


def check_everything(rig: Rig, log: io.StringIO, tmp_path: Path, *more: str) -> None:
    secrets = [*HIDDEN, "/bot123456", *more]
    check_hidden(log.getvalue(), "log", secrets)
    check_hidden(rows_of(tmp_path / "music.sqlite3"), "rows", secrets)
    check_hidden(answers_of(rig), "answers", secrets)
    check_hidden(json.dumps(rig.sandbox.telegram.messages()), "messages", secrets)
    assert len(log.getvalue()) > 1000


def test_whatever_fails_no_secret_is_revealed(rigs: Rigs, log: io.StringIO, tmp_path: Path) -> None:
    rig = rigs(keys=KEYS, step_max_retries=0, upload_resumes=0, publish_look_seconds=0)
    for step, kinds in CALLS.items():
        for kind in kinds:
            for fault in FAULTS:
                rig.sandbox.order(f"{kind}={fault}")
                if kind in ("upload.ask", "youtube"):
                    rig.sandbox.order("upload.put#3=cut-before")
                row = rig.begun(step)
                rig.settle(hours=0.1)
                if kind in ("upload.ask", "youtube") and rig.get(row).state == "failed":
                    if kind == "youtube":
                        rig.sandbox.youtube.expire_sessions()
                    rig.actions.retry(row.id)
                    rig.settle(hours=0.1)
                rig.sandbox.withdraw_orders()
    for fault in FAULTS:
        rig.sandbox.order(f"telegram#1={fault}")
        rig.sandbox.order(f"updates={fault}")
        speak(rig, rig.sandbox.url)
        rig.sandbox.withdraw_orders()
    sessions = [session["id"] for session in rig.sandbox.youtube.sessions()]
    assert len(sessions) > 20
    assert rig.actions.counts()["failed"] > 20
    check_everything(rig, log, tmp_path, *sessions, "sandbox-access-")


@pytest.mark.parametrize("keys_first", [True, False])
@pytest.mark.parametrize("status", [400, 401, 500])
def test_a_vendor_that_repeats_the_keys_tells_nobody(
    rigs: Rigs, log: io.StringIO, tmp_path: Path, echo: ThreadingHTTPServer, *, status: int, keys_first: bool
) -> None:
    echo.status, echo.keys_first = status, keys_first  # type: ignore[attr-defined]
    url = f"http://127.0.0.1:{echo.server_address[1]}"
    rig = rigs(keys=KEYS, vendors_url=url, step_max_retries=0, upload_resumes=0)
    rows = [rig.begun(step) for step in CALLS]
    rig.settle(hours=0.1)
    assert {rig.get(row).state for row in rows} == {"failed"}
    speak(rig, url)
    assert log.getvalue().count("refused: ") > 5
    check_everything(rig, log, tmp_path, SESSION, "Access-77fe10ab55cd")


def test_vendors_that_are_away_tell_nobody(rigs: Rigs, log: io.StringIO, tmp_path: Path) -> None:
    rig = rigs(keys=KEYS, vendors_url="http://127.0.0.1:9", step_max_retries=0, upload_resumes=0)
    row = rig.before("publish", upload_session=f"http://127.0.0.1:9/upload?upload_id={SESSION}")
    rig.actions.approve(row.id)
    for step in CALLS:
        rig.begun(step)
    rig.settle(hours=0.1)
    speak(rig, "http://127.0.0.1:9")
    check_everything(rig, log, tmp_path, SESSION)
