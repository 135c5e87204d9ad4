# SPDX-License-Identifier: Apache-2.0
"""The wire as docs/reference/wire.md describes it, for a client without manners: links whose hello says what
one likes, calls of any method with any body, frames that are wrong. Blocking; every wait ends."""
import ctypes
import hashlib
import hmac
import os
import pathlib
import re
import socket
import ssl
import struct
import types

import schema

PATIENCE_S = 60  # for what hangs; nothing is measured
CLIENT, WORKER, COORDINATOR = 1, 2, 3
REQUEST, REPLY, ONE_WAY = 1, 2, 3
U8, F32 = 6, 1
OK, CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED = 0, 1, 3, 4, 5, 6, 7
RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED, UNIMPLEMENTED, UNAVAILABLE, UNAUTHENTICATED = 8, 9, 10, 12, 14, 16
PREFIX = struct.Struct("<4sHBBIIQ")
PREFIX_BYTES = 32
MASK = (1 << 64) - 1

PROTO = schema.Schema((pathlib.Path(__file__).parents[2] / "proto/banyan.proto").read_text())
METHODS = {name.removeprefix("METHOD_"): number for name, number in PROTO.enums["Method"].items()}


def message_of(method):
    """SESSION_INFO: SessionInfo, of which there are a Request and a Reply."""
    found = "".join(word.capitalize() for word in method.split("_"))
    return {"SessionOpen": ("SessionOpenRequest", "SessionInfoReply"), "ReadOpen": ("ReadOpenRequest", "AttachOpenReply")}.get(
        found, (found + "Request", found + "Reply"))


class Closed(Exception):
    """The peer has ended the connection, or never took it."""


def mix(x):
    x = x + 0x9E3779B97F4A7C15 & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def prefix(header_len, payload_len, kind=REQUEST):
    head = PREFIX.pack(b"BNYN", 1, kind, 0, header_len, 0, payload_len)
    a, b, c = struct.unpack("<QQQ", head)
    return head + struct.pack("<Q", mix(mix(mix(a) ^ b) ^ c))


def align(n):
    return -n % 64


def frame(header, tensors=(), kind=REQUEST):
    """Tensors: bytes, each a tensor of U8."""
    described, payload = [], b""
    for tensor in tensors:
        payload += bytes(align(len(payload)))
        described.append({"dtype": U8, "dims": [len(tensor)], "offset": len(payload), "bytes": len(tensor)})
        payload += tensor
    if described:
        header = {**header, "tensors": described}
    packed = PROTO.pack("Header", header)
    out = prefix(len(packed), len(payload), kind) + packed
    out += bytes(align(len(out))) + payload
    return out + bytes(align(len(out)))


def mac(secret, *parts):
    return hmac.new(secret, b"".join(struct.pack("<Q", len(part)) + part for part in parts), hashlib.sha256).digest()


def read_secret(path):
    return bytes.fromhex(pathlib.Path(path).read_text().strip())


def make_ticket(secret, read=False, **fields):
    """As the coordinator makes it: for a holder of the cluster secret."""
    packed = PROTO.pack("Ticket", fields)
    return packed + (mac(secret, b"read", packed) if read else mac(secret, packed))


def context(ca=None, pair=None, verify=True):
    """pair: the path of a certificate without .pem, beside which its .key is."""
    out = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    out.check_hostname = False
    if not verify:
        out.verify_mode = ssl.CERT_NONE
    if ca:
        out.load_verify_locations(str(ca))
    if pair:
        out.load_cert_chain(f"{pair}.pem", f"{pair}.key")
    return out


def binding(tls):
    """RFC 9266's tls-exporter, which `ssl` does not give: by OpenSSL's own function, on the connection inside
    `tls`."""
    import _ssl
    library = ctypes.CDLL(_ssl.__file__)
    inside = ctypes.cast(id(tls._sslobj), ctypes.POINTER(ctypes.c_void_p))[3]  # reference count, type, socket, SSL
    out, label = ctypes.create_string_buffer(32), b"EXPORTER-Channel-Binding"
    export = library.SSL_export_keying_material
    export.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p,
                       ctypes.c_size_t, ctypes.c_int]
    assert export(inside, out, 32, label, len(label), b"", 0, 1) == 1, "no binding of this connection"
    return out.raw


def address(endpoint):
    host, port = re.fullmatch(r"(?:nng\+)?t(?:cp|ls)://(.+):(\d+)", endpoint).groups()
    return host.strip("[]"), int(port)


def dial(endpoint, tls=None):
    """A connected socket; under TLS where `tls` is there, whatever the endpoint says."""
    if endpoint.startswith("unix://"):
        out = socket.socket(socket.AF_UNIX)
        out.settimeout(PATIENCE_S)
        out.connect(endpoint.removeprefix("unix://"))
        return out
    out = socket.create_connection(address(endpoint), PATIENCE_S)
    out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return tls.wrap_socket(out) if tls else out
    except (OSError, ssl.SSLError) as error:
        out.close()
        raise Closed(f"TLS: {error}") from error


class Link:
    """One connection. With `hello` (the default) ready for calls, or Refused."""

    def __init__(self, endpoint, tls=None, role=CLIENT, token=b"", secret=None, name="trial", hello=True):
        self.socket, self.tls, self.next, self.token = dial(endpoint, tls), tls, 0, token.encode() if isinstance(token, str) else token
        if hello:
            try:
                self.hello(role, secret, name)
            except BaseException:
                self.close()
                raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send_bytes(self, data):
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Closed(str(error)) from error

    def read_bytes(self, n):
        out = bytearray()
        while len(out) < n:
            try:
                got = self.socket.recv(min(n - len(out), 1 << 20))
            except TimeoutError:
                raise AssertionError(f"no answer for {PATIENCE_S} s") from None
            except OSError as error:
                raise Closed(str(error)) from error
            if not got:
                raise Closed("end of the stream")
            out += got
        return bytes(out)

    def hello(self, role, secret=None, name="trial"):
        """Raises Refused. Without a secret a daemon's proof is 32 bytes of nothing."""
        nonce = os.urandom(32)
        reply = self.call("LINK_HELLO", {"version": 1, "role": role, "nonce": nonce, "name": name}, token=b"").must()
        proof = {}
        if role != CLIENT:
            parts = [nonce, reply["nonce"], struct.pack("<I", role), struct.pack("<I", reply["role"])]
            if isinstance(self.socket, ssl.SSLSocket):
                parts.append(binding(self.socket))
            self.peer_proved = secret is not None and hmac.compare_digest(reply["proof"], mac(secret, b"banyan accept", *parts))
            proof = {"proof": mac(secret or bytes(32), b"banyan dial", *parts)}
        self.call("LINK_PROOF", proof).must()

    def send(self, method, body=None, tensors=(), token=None, remaining_s=PATIENCE_S):
        """The request's id."""
        self.next += 1
        packed = body if isinstance(body, bytes) else PROTO.pack(message_of(method)[0], body or {})
        number = METHODS[method] if isinstance(method, str) else method
        header = {"method": number, "request": self.next, "remaining_ns": remaining_s * 10**9, "body": packed}
        token = self.token if token is None else token
        if token and method == "LINK_PROOF":
            header["credentials"] = token
        self.send_bytes(frame(header, tensors))
        return self.next

    def receive(self):
        """(header, tensors)"""
        head = self.read_bytes(PREFIX_BYTES)
        _, _, _, _, header_len, _, payload_len = PREFIX.unpack(head[:24])
        rest = self.read_bytes(header_len + align(PREFIX_BYTES + header_len))
        header = PROTO.unpack("Header", rest[:header_len])
        payload = self.read_bytes(payload_len + align(payload_len))
        return header, [payload[t["offset"]:t["offset"] + t["bytes"]] for t in header["tensors"]]

    def call(self, method, body=None, tensors=(), token=None, remaining_s=PATIENCE_S):
        self.send(method, body, tensors, token, remaining_s)
        return Answer(method, *self.receive())


class Answer:
    def __init__(self, method, header, tensors):
        status = header["status"] or {"code": 0, "message": "", "details": []}
        self.request, self.code, self.message, self.tensors = header["request"], status["code"], status["message"], tensors
        self.status, self.details, self.packed = status, status["details"], header["body"]
        self.body = PROTO.unpack(message_of(method)[1], header["body"]) if self.code == OK and isinstance(method, str) else None

    def must(self):
        if self.code != OK:
            raise Refused(self)
        return self.body

    def __repr__(self):
        return f"code {self.code} '{self.message}'"


class Refused(Exception):
    def __init__(self, answer):
        super().__init__(repr(answer))
        self.code, self.message, self.answer = answer.code, answer.message, answer


# ---- sessions ------------------------------------------------------------------------------------------------------

SHAPE = types.SimpleNamespace(layers=1, heads=1, dim=4, chunk=16)
SPEC = {"layers": SHAPE.layers, "q_heads": SHAPE.heads, "kv_heads": SHAPE.heads, "k_dim": SHAPE.dim, "v_dim": SHAPE.dim, "kv_type": F32,
        "chunk_tokens": SHAPE.chunk}
ROW_BYTES = SHAPE.heads * SHAPE.dim * 4


def rows(n, seed=0):
    """n rows as float32, from a small generator: the same for the same seed."""
    state, out = seed * 2654435761 + 1, []
    for _ in range(n * SHAPE.heads * SHAPE.dim):
        state = mix(state)
        out.append(state / 2**63 - 1)
    return struct.pack(f"<{len(out)}f", *out)



def attend(link, session, first, n=1, append=None, **more):
    """One item; append: seed of its rows, None: it only looks. The Answer of the call, whose `item` is the
    item's status."""
    item = {"session": session, "layer": 0, "first": first, "rows": n, "q_heads": SHAPE.heads, "v_dim": SHAPE.dim,
            "q_bytes": n * ROW_BYTES, **more}
    tensors = [rows(n, seed=first + 77)]
    if append is not None:
        item |= {"append": True, "k_bytes": n * ROW_BYTES, "v_bytes": n * ROW_BYTES}
        tensors += [rows(n, append), rows(n, append + 1)]
    answer = link.call("ATTEND", {"items": [item]}, tensors)
    answer.item = (answer.body["items"][0]["status"] or {"code": 0, "message": "", "details": []}) if answer.body else answer.status
    return answer
