#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of docs/dashboard again, of invented numbers (canned.py): 256 workers on 32 hosts,
    10,000 sessions. screenshots.py [FOLDER]          needs pngquant, too (Debian's package), which makes them
    small
"""
import pathlib
import subprocess
import sys
import time

import browser
import canned

FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2] / "docs" / "dashboard")
LIMIT = 200_000  # bytes of a picture


def main():
    server = canned.serve(256, 10000)
    home = f"http://127.0.0.1:{server.server_port}/"
    big = max((s for s in server.cluster.sessions if s["name"]), key=lambda s: s["tokens"])
    with browser.Browser() as chromium:
        for theme, dark in (("light", False), ("dark", True)):
            for name, view, height, ready in (("cluster", "#/", 900, "document.querySelectorAll('.tree .edge.busy').length"),
                                              ("session", f"#/sessions/{big['id']}/watch", 1240, "!document.querySelector('.scale').hidden")):
                page = chromium.page(1360, height, dark)
                page.go(home + view)
                page.wait(ready)
                time.sleep(9)  # some answers, for the lines
                path = FOLDER / f"{name}-{theme}.png"
                page.screenshot(path)
                subprocess.run(["pngquant", "--force", "--skip-if-larger", "--strip", "--output", path, "256", path], check=True)
                assert path.stat().st_size < LIMIT, (path, path.stat().st_size)
                assert not page.errors, page.errors


if __name__ == "__main__":
    main()
