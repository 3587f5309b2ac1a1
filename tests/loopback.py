"""A loopback server with one thread per connection; subclasses define how each connection is served."""

import socket
import threading
from contextlib import suppress


class LoopbackServer:
    """A server that listens from its construction until `close`. No connection holds up a test longer than
    `patience_s`."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._stop = threading.Event()
        self._connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def serve(self, connection: socket.socket, stop: threading.Event) -> None:
        """Serve one connection; OSError and ValueError end it. `stop` is set once the test is over."""
        raise NotImplementedError

    def close(self) -> None:
        self._stop.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:  # it takes a minute to notice that a peer with a closed window has left
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(self._patience_s)

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError):  # the client went away, as it may
            connection.settimeout(self._patience_s)
            self.serve(connection, self._stop)
