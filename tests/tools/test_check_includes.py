#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_includes.py: small trees with one offence each."""
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import check_includes

HEAD = "// SPDX-License-Identifier: Apache-2.0\n"
# What the trees include; each is clean by itself.
BASE = [
    "common/base/status.h", "common/log/log.h", "proto/wire/frame.h", "proto/rpc/rpc.h", "kernels/partial.h", "kernels/attention.h", "reduce/plan.h", "reduce/engine.h",
    "worker/store/store.h", "worker/session/session.h", "coordinator/http.h", "coordinator/core.h",
    "coordinator/turn.h", "coordinator/store/store.h",
    "coordinator/cluster/plan.h", "coordinator/session/session.h", "coordinator/steps/item.h", "client/banyan.h", "client/lib/core/call.h", "client/lib/rows/read.h", "tests/help.h", "bench/help.h", "examples/help.h",
    "research/help.h",
]


def check(files):
    """Runs the tool over the base tree with these files (name -> text): status and output."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in {**{n: HEAD for n in BASE}, **files}.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        os.environ["GIT_CEILING_DIRECTORIES"] = os.path.dirname(root)  # whatever lies around the scratch directory
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            status = check_includes.main(["--root", root])
        return status, out.getvalue()


class CheckIncludes(unittest.TestCase):
    def assert_forbidden(self, name, line, word=""):
        status, out = check({name: HEAD + line + "\n"})
        self.assertEqual(status, 1, f"{name}: {line}")
        self.assertEqual(out.count("\n"), 1, out)
        self.assertTrue(out.startswith(f"{name}:2: "), out)
        self.assertIn(word, out)

    def test_table(self):
        may = {
            "common": "common/base/status.h common/log/log.h",
            "common/base": "common/base/status.h",
            "common/memory": "common/base/status.h",
            "common/log": "common/base/status.h common/log/log.h",
            "common/cli": "common/base/status.h common/log/log.h",
            "proto": "common/base/status.h common/log/log.h proto/wire/frame.h proto/rpc/rpc.h proto/banyan.pb-c.h",
            "proto/model": "common/base/status.h common/log/log.h proto/banyan.pb-c.h",
            "proto/wire": "common/base/status.h common/log/log.h proto/wire/frame.h proto/banyan.pb-c.h",
            "proto/stream": "common/base/status.h common/log/log.h proto/wire/frame.h proto/rpc/rpc.h proto/banyan.pb-c.h",
            "kernels": "common/base/status.h common/log/log.h kernels/attention.h kernels/partial.h",
            "reduce": "common/base/status.h common/log/log.h proto/wire/frame.h proto/rpc/rpc.h kernels/partial.h reduce/engine.h reduce/plan.h",
            "coordinator": "common/base/status.h common/log/log.h proto/wire/frame.h proto/rpc/rpc.h reduce/plan.h coordinator/http.h coordinator/core.h coordinator/turn.h "
                           "coordinator/store/store.h coordinator/cluster/plan.h coordinator/session/session.h "
                           "coordinator/steps/item.h proto/banyan.pb-c.h",
            "coordinator/store": "common/base/status.h common/log/log.h coordinator/store/store.h",
            "coordinator/cluster": "common/base/status.h common/log/log.h proto/wire/frame.h proto/rpc/rpc.h reduce/plan.h coordinator/core.h coordinator/turn.h "
                                   "coordinator/store/store.h coordinator/cluster/plan.h proto/banyan.pb-c.h",
            "coordinator/session": "common/base/status.h common/log/log.h proto/wire/frame.h proto/rpc/rpc.h reduce/plan.h coordinator/core.h coordinator/turn.h "
                                   "coordinator/store/store.h coordinator/cluster/plan.h "
                                   "coordinator/session/session.h proto/banyan.pb-c.h",
            "coordinator/steps": "common/base/status.h common/log/log.h proto/wire/frame.h proto/rpc/rpc.h reduce/plan.h coordinator/core.h coordinator/turn.h "
                                 "coordinator/store/store.h coordinator/cluster/plan.h coordinator/session/session.h "
                                 "coordinator/steps/item.h proto/banyan.pb-c.h",
            "worker": "worker/store/store.h worker/session/session.h",
            "worker/store": "common/base/status.h common/log/log.h proto/wire/frame.h proto/rpc/rpc.h kernels/attention.h kernels/partial.h reduce/engine.h "
                            "reduce/plan.h worker/store/store.h proto/banyan.pb-c.h",
            "worker/session": "common/base/status.h common/log/log.h proto/wire/frame.h proto/rpc/rpc.h kernels/attention.h kernels/partial.h reduce/engine.h "
                              "reduce/plan.h worker/store/store.h worker/session/session.h proto/banyan.pb-c.h",
            "client": "common/base/status.h common/log/log.h proto/wire/frame.h proto/rpc/rpc.h client/banyan.h client/lib/core/call.h client/lib/rows/read.h "
                      "proto/banyan.pb-c.h",
            "client/lib": "common/base/status.h common/log/log.h proto/wire/frame.h proto/rpc/rpc.h client/banyan.h client/lib/core/call.h client/lib/rows/read.h "
                          "proto/banyan.pb-c.h",
            "client/lib/core": "common/base/status.h common/log/log.h proto/wire/frame.h proto/rpc/rpc.h client/banyan.h client/lib/core/call.h "
                               "proto/banyan.pb-c.h",
            "client/lib/rows": "common/base/status.h common/log/log.h proto/wire/frame.h proto/rpc/rpc.h client/banyan.h client/lib/core/call.h "
                               "client/lib/rows/read.h proto/banyan.pb-c.h",
        }
        everything = BASE + ["proto/banyan.pb-c.h"]
        text = HEAD + "".join(f'#include "{target}"\n' for target in everything)
        for folder, allowed in may.items():
            status, out = check({f"{folder}/x.c": text})
            expected = [f"{folder}/x.c:{i}" for i, t in enumerate(everything, 2) if t not in allowed.split()]
            self.assertEqual((status, [line.split(": ")[0] for line in out.splitlines()]), (1, expected))
        for folder in ("tests/unit", "bench", "examples", "research", "research/tests"):
            self.assertEqual(check({f"{folder}/x.c": text}), (0, ""))

    def test_every_kind_of_file_and_line(self):
        for name in ("kernels/x.h", "kernels/cuda/deep/x.cu", "kernels/x.cuh"):
            self.assert_forbidden(name, '#include "worker/store/store.h"', "kernels may include only common")
        for line in ("#include <worker/store/store.h>", '  #  include "worker/store/store.h" // why', '#include\t"worker/store/store.h"'):
            self.assert_forbidden("kernels/x.c", line, "worker/store/store.h")

    def test_paths(self):
        self.assert_forbidden("worker/x.c", '#include "store.h"', "from the root")
        self.assert_forbidden("worker/store/x.c", '#include "../common/log/log.h"', "from the root")
        self.assert_forbidden("worker/store/x.c", '#include "common/absent.h"', "does not exist")
        self.assert_forbidden("tests/x.c", '#include "common/log/log.c"', "nobody includes .c files")
        self.assert_forbidden("stray/x.c", '#include "common/log/log.h"', "stray")

    def test_protobuf_stays_out_of_kernels_and_engines(self):
        for folder in ("common", "kernels", "reduce"):
            self.assert_forbidden(f"{folder}/x.c", "#include <protobuf-c/protobuf-c.h>", "no protobuf type")
        status, _ = check({"worker/x.c": HEAD + "#include <protobuf-c/protobuf-c.h>\n#include <event2/event.h>\n"})
        self.assertEqual(status, 0)

    def test_spdx(self):
        for name in ("common/x.c", "common/x.h", "proto/x.proto", "tests/x.py", "deploy/x.sh", "cmake/x.cmake",
                     "worker/CMakeLists.txt"):
            for text in ("", "\n" + HEAD, "// Copyright\n"):
                status, out = check({name: text})
                self.assertEqual((status, out.split(": ")[0]), (1, f"{name}:1"))
        script = "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"
        self.assertEqual(check({"deploy/run": script})[0], 0)
        status, out = check({"deploy/run": "#!/bin/sh\necho\n"})
        self.assertEqual((status, out.split(": ")[0]), (1, "deploy/run:2"))
        self.assertEqual(check({"docs/x.md": "# text\n"})[0], 0)

    def test_exit_status_and_git(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "kernels"))
            for name in ("tracked.c", "ignored.c"):
                with open(os.path.join(root, "kernels", name), "w", encoding="utf-8") as file:
                    file.write("no licence\n")
            git = ["git", "-C", root]
            subprocess.run([*git, "init", "-q"], check=True)
            subprocess.run([*git, "add", "kernels/tracked.c"], check=True)
            command = [sys.executable, check_includes.__file__, "--root", root]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout.split(": ")[0]), (1, "kernels/tracked.c:1"))
            self.assertNotIn("ignored", done.stdout)
            subprocess.run([*git, "rm", "-q", "--cached", "kernels/tracked.c"], check=True)
            self.assertEqual(subprocess.run(command, check=False).returncode, 0)

    def test_every_offence_is_printed(self):
        status, out = check({"kernels/x.c": '#include "worker/store/store.h"\n#include "client/banyan.h"\n'})
        self.assertEqual((status, out.count("\n")), (1, 3))


if __name__ == "__main__":
    unittest.main()
