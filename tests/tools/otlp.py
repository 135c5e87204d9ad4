# SPDX-License-Identifier: Apache-2.0
"""A strict reader of ExportTraceServiceRequest in OTLP's JSON (opentelemetry/proto/trace/v1/trace.proto, as
https://opentelemetry.io/docs/specs/otlp/ encodes it), and a collector that answers as a test says.

read(text) returns the spans, or raises Wrong: members that the messages do not have, ids that are not
lower-case hexadecimal of their length or are zero, 64-bit numbers that are no strings, enums that are no
numbers, a span that ends before it begins.
"""
import dataclasses
import http.server
import json
import re
import threading

INT64 = re.compile(r"-?(0|[1-9][0-9]*)$")


class Wrong(Exception):
    pass


@dataclasses.dataclass
class Span:
    service: str
    resource: dict
    trace: str
    id: str
    parent: str
    name: str
    kind: int
    start: int
    end: int
    flags: int
    attributes: dict
    error: str


def check(good, what, why):
    if not good:
        raise Wrong(f"{why}: {what!r:.400}")


def members(value, must, may=()):
    check(isinstance(value, dict), value, "no object")
    check(set(must) <= set(value) <= set(must) | set(may), value, f"not the members {must}, {may}")


def integer(text, what):
    check(isinstance(text, str) and INT64.match(text) and -(1 << 63) <= int(text) < 1 << 64, what, "no 64-bit number")
    return int(text)


def hexadecimal(text, digits, what):
    check(isinstance(text, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", text) and text.strip("0"), what, "no id")
    return text


def attributes(found):
    out = {}
    check(isinstance(found, list), found, "no list of attributes")
    for pair in found:
        members(pair, ("key", "value"))
        check(pair["key"] and pair["key"] not in out and len(pair["value"]) == 1, pair, "attribute")
        (kind, value), = pair["value"].items()
        check(kind in ("stringValue", "intValue"), pair, "value")
        check(isinstance(value, str), pair, "value")
        out[pair["key"]] = integer(value, pair) if kind == "intValue" else value
    return out


def read_span(span, resource):
    members(span, ("traceId", "spanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano", "attributes", "status", "flags"),
            ("parentSpanId",))
    check(isinstance(span["name"], str) and span["name"], span, "name")
    check(isinstance(span["kind"], int) and 1 <= span["kind"] <= 5, span, "kind")
    check(isinstance(span["flags"], int) and span["flags"] & ~0x3ff == 0 and span["flags"] & 0x101 == 0x101, span, "flags")
    members(span["status"], (), ("code", "message"))
    check(span["status"].get("code", 2) == 2, span, "status")
    start, end = integer(span["startTimeUnixNano"], span), integer(span["endTimeUnixNano"], span)
    check(0 < start <= end, span, "times")
    return Span(resource["service.name"], resource, hexadecimal(span["traceId"], 32, span), hexadecimal(span["spanId"], 16, span),
                hexadecimal(span["parentSpanId"], 16, span) if "parentSpanId" in span else "", span["name"], span["kind"],
                start, end, span["flags"], attributes(span["attributes"]), span["status"].get("message", ""))


def read(text):
    spans = []
    request = json.loads(text)
    members(request, ("resourceSpans",))
    for of_resource in request["resourceSpans"]:
        members(of_resource, ("resource", "scopeSpans"))
        members(of_resource["resource"], ("attributes",))
        resource = attributes(of_resource["resource"]["attributes"])
        check("service.name" in resource, resource, "no service.name")
        for of_scope in of_resource["scopeSpans"]:
            members(of_scope, ("scope", "spans"))
            members(of_scope["scope"], ("name", "version"))
            check(of_scope["spans"], of_scope, "no spans")
            spans += [read_span(span, resource) for span in of_scope["spans"]]
    return spans


class Collector:
    """Listens on 127.0.0.1. `answers` are taken one by one, (status, headers, body); then it is 200. While
    `hold` is not set a request has no answer. What is wrong with a request is in `wrong`."""

    def __init__(self, port=0):
        self.answers, self.spans, self.bodies, self.wrong = [], [], [], []
        self.hold, self.lock = threading.Event(), threading.Condition()
        self.hold.set()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                status, headers, text = collector.take(self.path, self.headers, body)
                collector.hold.wait()
                try:
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text.encode())
                except OSError:
                    pass  # the daemon has ended meanwhile

            def log_message(self, *arguments):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, headers, body):
        with self.lock:
            try:
                check(path == "/v1/traces", path, "path")
                check(headers["Content-Type"] == "application/json" and headers["Host"], dict(headers), "headers")
                spans = read(body)
            except (Wrong, ValueError) as error:
                self.wrong.append(str(error))
                spans = []
            status, more, text = self.answers.pop(0) if self.answers else (200, {}, "{}")
            self.bodies.append(body)
            if 200 <= status < 300:
                self.spans += spans
            self.lock.notify_all()
            return status, more, text

    def wait(self, good):
        """Until good(self)."""
        with self.lock:
            while not good(self):
                if self.wrong:
                    raise Wrong(self.wrong[0])
                check(self.lock.wait(60), self.bodies[-1:], "nothing more has come in a minute")

    def close(self):
        self.hold.set()
        self.server.shutdown()
        self.server.server_close()
