"""A TCP proxy before a server: it cuts a request in the middle, and refuses for a while."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class CuttingProxy:
    """Passes bytes on to `port`.

    cut_after  bytes of a PUT's connection after which it is cut, once; the proxy then refuses until
               `come_back`. None passes everything.
    """

    def __init__(self, port: int) -> None:
        self._port, self.cut_after = port, None  # type: int, int | None
        self.cuts, self._is_away = 0, False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def come_back(self) -> None:
        self._is_away = False

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self._is_away:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._port))
            for source, target, is_request in ((client, server, True), (server, client, False)):
                arguments = (source, target, is_request)
                threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        passed = 0  # bytes of the PUT that is under way
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                passed = 0 if data.startswith((b"PUT", b"GET", b"HEAD", b"POST")) else passed
                is_put = data.startswith(b"PUT") or passed
                limit = self.cut_after
                if is_request and is_put and limit is not None and passed + len(data) > limit:
                    self.cuts, self.cut_after, self._is_away = self.cuts + 1, None, True
                    target.sendall(data[: limit - passed])
                    break
                passed += len(data) if is_put else 0
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cutting_proxy(port: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
