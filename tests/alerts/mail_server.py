"""A mail server with scripted replies: SMTP on loopback, with STARTTLS or with TLS from the start."""

import base64
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import BinaryIO, NamedTuple

from loopback import LoopbackServer

WAIT_S = 120.0  # limits an act that the test forgot to end

Reply = str | Callable[[socket.socket, threading.Event], None]
"""The reply to a command: a line, "" to close silently, or a function that acts on the connection."""


class Mail(NamedTuple):
    """An accepted message."""

    sender: str
    recipients: tuple[str, ...]
    data: bytes
    encrypted: bool
    user: str  # "" if the session did not sign in
    password: str


class MailServer(LoopbackServer):
    """A context manager that serves mail. `replies` overrides the usual replies by command: {"RCPT": "450 later"}.

    A key may include the argument, as in "RCPT TO:<ann@x.example>", or be "greeting" or "body" (the end of DATA).
    """

    def __init__(
        self,
        replies: Mapping[str, Reply] | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        implicit: bool = False,
        offers: tuple[str, ...] = ("STARTTLS", "AUTH PLAIN LOGIN"),
    ) -> None:
        self.replies = {_spelt(command): reply for command, reply in (replies or {}).items()}
        self._tls, self._implicit, self._offers = tls, implicit, offers
        self.mails: list[Mail] = []
        self.commands: list[str] = []
        super().__init__(WAIT_S)

    def __enter__(self) -> "MailServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self, connection: socket.socket, stop: threading.Event) -> None:
        if self._implicit and self._tls:
            with self._tls.wrap_socket(connection, server_side=True) as secured:
                _Conversation(self, secured, stop, encrypted=True).run(greeting=True)
        elif _Conversation(self, connection, stop, encrypted=False).run(greeting=True) and self._tls:
            with self._tls.wrap_socket(connection, server_side=True) as secured:
                _Conversation(self, secured, stop, encrypted=True).run(greeting=False)

    def reply(self, command: str, usual: str) -> Reply:
        return self.replies.get(_spelt(command), self.replies.get(command.split(" ")[0], usual))

    def offers(self, encrypted: bool) -> list[str]:
        return [it for it in self._offers if it != "STARTTLS" or (self._tls and not encrypted)]


class _Conversation:
    """The server's side of a conversation. `run` returns true if STARTTLS comes next."""

    def __init__(
        self, server: MailServer, connection: socket.socket, stop: threading.Event, *, encrypted: bool
    ) -> None:
        self._server, self._connection, self._stop, self._encrypted = server, connection, stop, encrypted
        self._lines: BinaryIO = connection.makefile("rb")
        self._sender, self._recipients, self._user, self._password = "", list[str](), "", ""

    def run(self, *, greeting: bool) -> bool:
        with self._lines:
            going = not greeting or self._say(self._server.reply("greeting", "220 mail.example"))
            while going:
                line = self._lines.readline().decode("latin-1").rstrip("\r\n")
                if not line:
                    return False
                verb, space, rest = line.partition(" ")
                verb, line = verb.upper(), f"{verb.upper()}{space}{rest}"
                self._server.commands.append(line)
                if verb == "STARTTLS" and self._server.reply(line, "220 go ahead") == "220 go ahead":
                    return self._say("220 go ahead")
                going = self._answer(verb, line) and verb != "QUIT"
        return False

    def _answer(self, verb: str, line: str) -> bool:
        usual = {"QUIT": "221 bye", "DATA": "354 go on", "AUTH": "235 welcome"}.get(verb, "250 fine")
        if verb == "EHLO":
            offers = ["mail.example", *self._server.offers(self._encrypted)]
            usual = "\r\n".join(f"250{'-' if n < len(offers) else ' '}{it}" for n, it in enumerate(offers, 1))
        reply = self._server.reply(line, usual)
        if verb == "AUTH" and line.upper().startswith("AUTH PLAIN "):
            _, self._user, self._password = base64.b64decode(line.split(" ")[2]).decode().split("\0")
        if reply == usual:
            self._note(verb, line)
        if not self._say(reply):
            return False
        return self._body() if verb == "DATA" and reply == usual else True

    def _note(self, verb: str, line: str) -> None:
        address = line.partition("<")[2].partition(">")[0]
        if verb == "MAIL":
            self._sender, self._recipients = address, []
        elif verb == "RCPT":
            self._recipients.append(address)

    def _body(self) -> bool:
        lines = []
        while (line := self._lines.readline()) not in (b".\r\n", b""):
            lines.append(line[1:] if line.startswith(b"..") else line)
        reply = self._server.reply("body", "250 taken")
        if isinstance(reply, str) and reply.startswith("2"):
            whole, people = b"".join(lines), tuple(self._recipients)
            self._server.mails.append(Mail(self._sender, people, whole, self._encrypted, self._user, self._password))
        return self._say(reply)

    def _say(self, reply: Reply) -> bool:
        if callable(reply):
            reply(self._connection, self._stop)
            return False
        if reply:
            self._connection.sendall(f"{reply}\r\n".encode())
        return bool(reply)


def _spelt(command: str) -> str:
    """Return "RCPT TO:<…>" for "RCPT to:<…>", too, which smtplib of Python 3.13 sends."""
    before, colon, rest = command.partition(":")
    return f"{before.upper()}{colon}{rest}" if colon else command
