"""E-mail, over SMTP."""

import re
import smtplib
import socket
import ssl
from collections.abc import Callable, Mapping
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, parseaddr
from hashlib import sha256
from typing import Any, BinaryIO

from retake.alerts.channels.sending import Sending
from retake.alerts.message import Ending, Sent
from retake.clock import parse_stamp
from retake.errors import SettingsError
from retake.vendors.certificates import trusted
from retake.vendors.http import Cutter, Overdue, within

ANSWER_LIMIT = 64 * 2**10  # bytes of all replies of the server in one session
_READ_GRACE_S = 5.0
_SEVEN_BITS = SMTP.clone(cte_type="7bit")  # not every server accepts 8-bit text
_PLAIN_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")


def send(sending: Sending) -> Sent:
    """Send one message to all recipients.

    The message is the same at each try, including Message-ID and Date, so that a mailbox can recognise a duplicate.
    """
    try:
        mail = mail_of(sending)
    except (ValueError, IndexError, MessageError):  # raised by the library for malformed addresses
        return Sent(Ending.REFUSED, "one of the channel's addresses (from, to) is not a mail address")
    try:
        tls = None if sending.channel.options["security"] == "none" else trusted()
        refused = within(sending.timeout_s, lambda cutter: _MailSession(cutter, sending, tls).deliver(mail))
    except SettingsError as error:
        return Sent(Ending.FAILED, str(error))
    except Overdue:
        return sending.late()
    except (smtplib.SMTPException, OSError, UnicodeError) as error:
        return _outcome(error, sending)
    return Sent(Ending.DELIVERED, _refusals(refused, len(sending.channel.options["to"])) if refused else "")


def mail_of(sending: Sending) -> EmailMessage:
    """Return the message. Raises ValueError or MessageError for an invalid address."""
    message, options = sending.message, sending.channel.options
    sender = _address(options["from"])
    mail = EmailMessage(policy=_SEVEN_BITS)
    mail["From"] = sender
    mail["To"] = tuple(map(_address, options["to"]))
    mail["Subject"] = message.headline
    mail["Date"] = format_datetime(parse_stamp(message.at))
    mail["Message-ID"] = f"<{_id_of(message.delivery_id)}@{sender.domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.text, charset="utf-8")
    return mail


def _address(text: str) -> Address:
    name, address = parseaddr(text)
    local, _, domain = address.rpartition("@")
    if not local or not text.isprintable():
        raise ValueError("no address")
    return Address(name, addr_spec=f"{local}@{domain.encode('idna').decode()}")


def _id_of(delivery_id: str) -> str:
    plain = _PLAIN_ID.fullmatch(delivery_id) and ".." not in delivery_id
    return delivery_id if plain else sha256(delivery_id.encode("utf-8", "replace")).hexdigest()


class _MailSession(smtplib.SMTP):
    """One connection to the mail server, which `cutter` can cut. `tls` is None for an unencrypted one."""

    def __init__(self, cutter: Cutter, sending: Sending, tls: ssl.SSLContext | None) -> None:
        self._cutter, self._tls, self._left = cutter, tls, ANSWER_LIMIT
        self._options, self._secret = sending.channel.options, sending.secret
        # Without local_hostname, smtplib asks a name server for it. The timeout of a read is longer than that of the
        # whole try, and only ends a thread that was abandoned.
        super().__init__(local_hostname="localhost", timeout=sending.timeout_s + _READ_GRACE_S)
        self._host = self._options["host"]  # STARTTLS verifies it; smtplib would set it only if it connected above

    def deliver(self, mail: EmailMessage) -> dict[str, tuple[int, bytes]]:
        """Send `mail`, and return the recipients that were refused. Raises SMTPRecipientsRefused if all were."""
        options = self._options
        try:
            code, text = self.connect(options["host"], options["port"])
            if code != 220:
                raise smtplib.SMTPConnectError(code, text)
            if options["security"] == "starttls":
                self.starttls(context=self._tls)
            if options["user"] is not None:
                self.login(options["user"], self._secret)
            refused = self.send_message(mail)
            self._leave()
        finally:
            self.close()
        return refused

    def _leave(self) -> None:
        """Send QUIT without waiting for the answer: the message is already delivered."""
        try:
            self.putcmd("quit")
        except (OSError, smtplib.SMTPException):
            return

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        connection: socket.socket = super()._get_socket(host, port, timeout)  # type: ignore[misc]
        self._cutter.watch(connection)
        address = connection.getsockname()[0]
        self.local_hostname = f"[IPv6:{address}]" if ":" in address else f"[{address}]"
        if self._options["security"] != "tls" or self._tls is None:
            return connection
        return self._tls.wrap_socket(connection, server_hostname=host)

    def getreply(self) -> tuple[int, bytes]:
        """Return one reply. Raises SMTPServerDisconnected if the replies exceed ANSWER_LIMIT."""
        if self.file is None:
            assert self.sock is not None, "it is connected"
            self.file = _Replies(self.sock.makefile("rb"), self._count)
        return super().getreply()

    def _count(self, octets: int) -> None:
        self._left -= octets
        if self._left < 0:
            raise smtplib.SMTPServerDisconnected


class _Replies:
    """The lines that a server sends, whose bytes are counted."""

    def __init__(self, stream: BinaryIO, count: Callable[[int], None]) -> None:
        self._stream, self._count = stream, count

    def readline(self, limit: int) -> bytes:
        line = self._stream.readline(limit)
        self._count(len(line))
        return line

    def close(self) -> None:
        self._stream.close()


def _outcome(error: Exception, sending: Sending) -> Sent:
    """Return the result that an error means. smtplib's messages are not used, since some quote what was sent."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = [code for code, _ in error.recipients.values()]
        how = Ending.REFUSED if all(map(_for_good, codes)) else Ending.FAILED
        return Sent(how, _refusals(error.recipients, len(codes)))
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return Sent(_ending_of(error.smtp_code), f"{error.smtp_code}: the server refused the user or the password")
    if isinstance(error, smtplib.SMTPResponseException):
        return Sent(_ending_of(error.smtp_code), _reply(error.smtp_code, error.smtp_error))
    if isinstance(error, smtplib.SMTPServerDisconnected):
        return Sent(Ending.FAILED, "the connection was cut", maybe=True)
    if isinstance(error, smtplib.SMTPException):  # no STARTTLS, no login, or no non-ASCII addresses
        return Sent(Ending.REFUSED, "the server lacks what the channel's settings need (security, user, to)")
    if isinstance(error, UnicodeError):
        return Sent(Ending.REFUSED, f"host, user or {sending.channel.env} has characters that SMTP does not take")
    if isinstance(error, ssl.SSLError):
        return Sent(Ending.FAILED, "no secure connection (certificate or TLS)")
    if isinstance(error, TimeoutError):
        return sending.late()
    return Sent(Ending.FAILED, f"no connection: {getattr(error, 'strerror', None) or 'it failed'}")


def _for_good(code: int) -> bool:
    return 500 <= code < 600


def _ending_of(code: int) -> Ending:
    return Ending.REFUSED if _for_good(code) else Ending.FAILED


def _reply(code: int, text: Any) -> str:
    if code < 0:
        return "the answer is not that of a mail server"
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return f"{code}: {words}"


def _refusals(refused: Mapping[str, tuple[int, bytes]], total: int) -> str:
    return f"{len(refused)} of {total} recipients refused: {_reply(*next(iter(refused.values())))}"
