# SPDX-License-Identifier: Apache-2.0
"""Servers that only pretend: what diallers reveal to the one that they were led to."""
import contextlib
import socket
import ssl
import struct
import threading

import wire


class Pretender:
    """A server with this certificate that speaks the accepting half of the hello, as the role that it likes,
    and notes what it got. With the secret its proof is right."""

    def __init__(self, ground, pair, role=wire.COORDINATOR, secret=None, tls=True):
        self.context = None
        if tls:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(f"{pair}.pem", f"{pair}.key")
            self.context.load_verify_locations(str(ground.pki / "ca.pem"))
            self.context.verify_mode = ssl.CERT_OPTIONAL
        self.role, self.secret = role, secret
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"{'tls' if tls else 'tcp'}://127.0.0.1:{self.listener.getsockname()[1]}"
        self.heard, self.came, self.bytes = [], 0, b""
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                one, _ = self.listener.accept()
            except OSError:
                return
            self.came += 1
            one.settimeout(10)
            with one, contextlib.suppress(OSError, wire.Closed, AssertionError):
                if not self.context:
                    self.talk(one)
                    continue
                with self.context.wrap_socket(one, server_side=True, do_handshake_on_connect=False) as tls:
                    tls.do_handshake()
                    self.talk(tls)

    def talk(self, one):
        link = wire.Link.__new__(wire.Link)
        link.socket = one
        while True:
            header, _ = link.receive()
            method = next(name for name, number in wire.METHODS.items() if number == header["method"])
            self.heard.append(method)
            self.bytes += header["credentials"] + header["body"]
            reply = b""
            if method == "LINK_HELLO":
                hello = wire.PROTO.unpack("LinkHelloRequest", header["body"])
                parts = [hello["nonce"], bytes(32), struct.pack("<I", hello["role"]), struct.pack("<I", self.role)]
                if self.context:
                    parts.append(wire.binding(one))
                reply = wire.PROTO.pack("LinkHelloReply", {"version": 1, "role": self.role, "nonce": bytes(32), "name": "pretender",
                                                           "proof": wire.mac(self.secret or bytes(32), b"banyan accept", *parts)})
            one.sendall(wire.frame({"method": header["method"], "request": header["request"], "body": reply}, kind=wire.REPLY))

    def close(self):
        self.listener.close()
