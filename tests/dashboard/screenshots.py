#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of docs/dashboard again, of invented numbers (canned.py): clusters of 1, 42 and 256
workers and a session, on a desktop and on a phone, light and dark. screenshots.py [FOLDER]
    needs pngquant, too (Debian's package), which makes them small
"""
import pathlib
import subprocess
import sys
import time

import browser
import canned

FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2] / "docs" / "dashboard")
LIMIT, ALL = 110_000, 1_400_000  # bytes of a picture, and of all
DESKTOP, PHONE = "", "-phone"
LONG = "gpu-a100-rack{:02}-worker-0"
CLUSTER = "#/", "document.querySelectorAll('.tree .edge.busy, .tree .node:only-of-type').length && document.querySelectorAll('.chart').length"


def views(server):
    """(name, address, what is there once it is drawn, height on a desktop)"""
    workers = len(server.cluster.workers)
    yield f"cluster-{workers}", *CLUSTER, 1040
    if workers == 256:
        big = max((s for s in server.cluster.sessions if s["name"]), key=lambda s: s["tokens"])
        yield "session", f"#/sessions/{big['id']}/watch", "!document.querySelector('.scale').hidden", 1240
        yield "sessions", "#/sessions", "/tokens|GiB/.test(document.querySelector('.grid-row').textContent)", 760


def take(page, path):
    page.screenshot(path)
    subprocess.run(["pngquant", "--force", "--skip-if-larger", "--strip", "--output", path, "64", path], check=True)
    assert path.stat().st_size < LIMIT, (path, path.stat().st_size)
    assert not page.errors, page.errors
    return path.stat().st_size


def main():
    size = 0
    with browser.Browser() as chromium:
        for workers, sessions, name in ((1, 60, "w{:03}"), (42, 400, LONG), (256, 10000, "w{:03}")):
            server = canned.serve(workers, sessions, name=name)
            for picture, view, ready, height in views(server):
                for theme in ("light", "dark"):
                    for device in (DESKTOP, PHONE):
                        page = chromium.page(*((390, 844) if device else (1360, height)), dark=theme == "dark", scale=1)
                        page.go(f"http://127.0.0.1:{server.server_port}/{view}")
                        page.wait(ready)
                        time.sleep(9)  # some answers, for the lines
                        size += take(page, FOLDER / f"{picture}{device}-{theme}.png")
            server.shutdown()
            server.server_close()
    assert size < ALL, size
    print(f"{size} bytes")


if __name__ == "__main__":
    main()
