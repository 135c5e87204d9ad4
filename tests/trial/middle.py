# SPDX-License-Identifier: Apache-2.0
"""A machine in the middle: a TCP proxy that has every byte of both directions, and does with it what a test
says."""
import socket
import threading
import time


class Middle:
    """Listens at (host, port) and dials `to` for each connection. Modes may be changed at any time, for all
    connections."""

    def __init__(self, to, host="127.0.0.1", port=0):
        self.to, self.delay_s, self.flips, self.flipped, self.lock = to, 0, 0, 0, threading.Lock()
        self.recorded = []  # a pair for each connection: bytes of the dialler, bytes of the acceptor
        self.open = []
        self.listener = socket.create_server((host, port), backlog=128)
        self.host, self.port = host, self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def everything(self):
        return b"".join(bytes(up) + b"|" + bytes(down) + b"|" for up, down in self.recorded)

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.to, 30)
            except OSError:
                near.close()
                continue
            for one in (near, far):
                one.settimeout(None)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (bytearray(), bytearray())
            with self.lock:
                self.recorded.append(pair)
                self.open.append((near, far))
            threading.Thread(target=self.both, args=(near, far, pair), daemon=True).start()

    def both(self, near, far, pair):
        with near, far:
            back = threading.Thread(target=self.pump, args=(far, near, pair[1]), daemon=True)
            back.start()
            self.pump(near, far, pair[0])
            back.join()

    def pump(self, a, b, record):
        try:
            while data := a.recv(1 << 16):
                record += data
                if self.delay_s:
                    time.sleep(self.delay_s)
                with self.lock:
                    if self.flips and len(data) > 40:  # a byte in the middle of what comes: of a record's contents, or of its head
                        at = len(data) * self.flips // 17 % len(data)
                        data = data[:at] + bytes([data[at] ^ 1 << self.flips % 8]) + data[at + 1:]
                        self.flips, self.flipped = 0, self.flipped + 1
                b.sendall(data)
        except OSError:
            pass
        for one in (a, b):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def flip(self, which):
        """One bit of the next piece that passes; which: 1 and on, another place for each."""
        with self.lock:
            self.flips = which

    def cut(self):
        with self.lock:
            gone, self.open = self.open, []
        for pair in gone:
            for one in pair:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self):
        self.listener.close()
        self.cut()
