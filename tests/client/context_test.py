#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Contexts: which one is used, what its file may say, and edits of it.

    context_test.py BIN        BIN: the folder of the programs
"""
import os
import stat
import sys
import unittest

import daily

BIN = sys.argv.pop(1)
NONE = {"BANYAN_ENDPOINT": None}


class Context(unittest.TestCase):
    def setUp(self):
        self.cluster = daily.Cluster(BIN)
        self.path = os.path.join(self.cluster.home, ".config/banyan/contexts")

    def tearDown(self):
        self.cluster.close()

    def ctl(self, *words, **more):
        return self.cluster.ctl(*words, **dict(NONE, **more))

    def used(self, *words, **env):
        """Endpoint, what says so, token file, time-out in seconds."""
        shown = self.cluster.json(*words, "context", "show", **dict(NONE, **env))
        return shown["endpoint"], shown["endpoint_from"], shown["token_file"], shown["timeout_ns"] / 1e9

    def write(self, text, mode=0o600):
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path, mode)

    def text(self):
        with open(self.path, encoding="utf-8") as file:
            return file.read()

    def test_a_life(self):
        self.assertIn("no contexts in", self.ctl("context", "list")[1])
        self.assertIn("needs --endpoint", self.ctl("context", "add", "prod", code=2)[1])
        self.ctl("context", "add", "prod", "--endpoint", "tcp://a:1,tcp://b:2", "--token-file", "/etc/token", "--timeout", "3s")
        self.ctl("context", "add", "test", "--endpoint", self.cluster.endpoint)
        self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o600)
        self.assertEqual(self.text(), "[prod]\nendpoint = tcp://a:1,tcp://b:2\ntoken-file = /etc/token\ntimeout = 3s\n"
                         f"\n[test]\nendpoint = {self.cluster.endpoint}\n")
        self.assertIn("--replace", self.ctl("context", "add", "test", "--endpoint", "tcp://c:3", code=9)[1])
        self.assertEqual(self.used()[:2], ("nng+tcp://127.0.0.1:7411", "the default"))
        self.ctl("context", "use", "test")
        self.assertEqual(self.used(), (self.cluster.endpoint, "context test", None, 10))
        self.cluster.coordinator()
        self.cluster.worker("a")
        self.ctl("wait", "ready") # by the context alone
        self.ctl("context", "use", "prod")
        self.assertEqual(self.used(), ("tcp://a:1,tcp://b:2", "context prod", "/etc/token", 3))
        listed = self.cluster.json("context", "list")
        self.assertEqual([(c["name"], c["current"]) for c in listed], [("prod", True), ("test", False)])
        self.assertRegex(self.ctl("context", "list")[0], r"\* +prod +tcp://a:1,tcp://b:2 +/etc/token +3(\.0+)? s")
        self.assertEqual(self.cluster.json("context", "show", "test")["endpoint"], self.cluster.endpoint)
        self.ctl("context", "add", "prod", "--replace", "--endpoint", "tcp://c:3", "--timeout=1500ms")
        self.assertEqual(self.used(), ("tcp://c:3", "context prod", None, 1.5))
        self.ctl("context", "remove", "prod")
        self.assertEqual(self.used()[1], "the default")
        self.assertNotIn("current", self.text())
        for command in ("show", "use", "remove"):
            self.assertIn("no context 'prod'", self.ctl("context", command, "prod", code=3)[1])
        self.assertEqual([name for name in os.listdir(os.path.dirname(self.path))], ["contexts"])

    def test_precedence(self):
        self.write("current = one\n[one]\nendpoint = tcp://one:1\ntoken-file = /one\n"
                   "[two]\nendpoint = tcp://two:2\ntoken-file = ~/two\ntimeout = 1m\n")
        two = os.path.join(self.cluster.home, "two")
        self.assertEqual(self.used(), ("tcp://one:1", "context one", "/one", 10))
        self.assertEqual(self.used(BANYAN_CONTEXT="two"), ("tcp://two:2", "context two", two, 60))
        self.assertEqual(self.used("--context=one", BANYAN_CONTEXT="two")[0], "tcp://one:1")
        # The environment stands over a context, but not over one that is named on the command line
        env = {"BANYAN_ENDPOINT": "tcp://env:3", "BANYAN_TOKEN_FILE": "/env"}
        self.assertEqual(self.used(**env), ("tcp://env:3", "BANYAN_ENDPOINT", "/env", 10))
        self.assertEqual(self.used(BANYAN_CONTEXT="two", **env)[0], "tcp://env:3")
        self.assertEqual(self.used("--context=two", **env), ("tcp://two:2", "context two", two, 60))
        self.assertEqual(self.used(BANYAN_TOKEN_FILE="/env")[2], "/env")
        # Options stand over all
        self.assertEqual(self.used("--context=two", "--token-file=/flag", "--timeout=2s", **env),
                         ("tcp://two:2", "context two", "/flag", 2))
        # A token goes to no other endpoint than its context's
        self.assertEqual(self.used("--endpoint=tcp://flag:4"), ("tcp://flag:4", "--endpoint", None, 10))
        self.assertEqual(self.used(BANYAN_ENDPOINT="tcp://env:3")[2], None)
        self.assertIn("give only one of them", self.ctl("--context=two", "--endpoint=tcp://x:1", "status", code=2)[1])
        self.assertIn("BANYAN_CONTEXT names the context 'three'", self.ctl("status", code=2, BANYAN_CONTEXT="three")[1])
        self.assertIn("--context names the context 'three'", self.ctl("status", "--context=three", code=2)[1])

    def test_wrong_files(self):
        for text, line, says in (
                ("[a]\nendpoint = tcp://a:1\ntokne-file = /x\n", 3, "unknown key 'tokne-file'"),
                ("[a]\nendpoint = tcp://a:1\ntoken = secret\n", 3, "holds no secrets"),
                ("endpoint = tcp://a:1\n", 1, "only current may come before the first [NAME]"),
                ("# c\n\n[a b]\n", 3, "'a b' is not a name"),
                ("[a\n", 1, "is not a section"),
                ("[a]\nendpoint = tcp://a:1\n[a]\n", 3, "two contexts 'a'"),
                ("[a]\nendpoint = somewhere\n", 2, "somewhere"),
                ("[a]\nendpoint = tcp://a:1\nendpoint = tcp://b:1\n", 3, "A,B"),
                ("[a]\nendpoint = tcp://a:1\ntimeout = soon\n", 3, "'soon' is not a time"),
                ("[a]\nendpoint = tcp://a:1\ntoken-file = x\n", 3, "does not begin with / or ~/"),
                ("[a]\nendpoint =\n", 2, "has no value"),
                ("[a]\nwhat\n", 2, "neither [NAME] nor KEY = VALUE"),
                ("current = a\ncurrent = b\n", 2, "a second current")):
            with self.subTest(text):
                self.write(text)
                err = self.ctl("status", code=2)[1]
                self.assertIn(f"{self.path}:{line}: ", err)
                self.assertIn(says, err)
                self.assertNotIn("secret", err.replace("secrets", ""))
                self.ctl("context", "list", code=2)
                self.ctl("context", "add", "b", "--endpoint=tcp://b:1", code=2)
                self.assertEqual(self.text(), text)
                self.assertEqual(self.used("--endpoint=tcp://flag:1")[0], "tcp://flag:1") # not the file
        self.write("[a]\n")
        self.assertIn("context 'a' has no endpoint", self.ctl("status", code=2)[1])
        self.write("current = b\n[a]\nendpoint = tcp://a:1\n")
        self.assertIn("names the context 'b', which does not exist", self.ctl("status", code=2)[1])
        self.ctl("context", "use", "a")
        self.assertEqual(self.used()[0], "tcp://a:1")

    def test_others_may_not_write_it(self):
        self.write("[a]\nendpoint = tcp://a:1\n", mode=0o664)
        self.assertIn("chmod go-w", self.ctl("context", "list", code=11)[1])
        self.assertIn("chmod go-w", self.ctl("status", code=11)[1])
        os.chmod(self.path, 0o644)
        self.ctl("context", "list")
        os.remove(self.path)
        os.mkdir(self.path)
        self.assertIn("not a regular file", self.ctl("context", "list", code=11)[1])

    def test_edits_keep_the_rest(self):
        self.write("# mine\ncurrent = b\n\n# the first\n[a]\nendpoint = tcp://a:1\n\n# the second\n[b]\n  endpoint=tcp://b:1  ")
        self.ctl("context", "use", "a")
        self.assertEqual(self.text(), "current = a\n# mine\n\n# the first\n[a]\nendpoint = tcp://a:1\n\n# the second\n"
                         "[b]\n  endpoint=tcp://b:1  \n")
        self.ctl("context", "remove", "a")
        self.assertEqual(self.text(), "# mine\n\n# the first\n\n# the second\n[b]\n  endpoint=tcp://b:1  \n")
        # A link goes on to be one
        os.rename(self.path, self.path + ".real")
        os.symlink(self.path + ".real", self.path)
        self.ctl("context", "add", "c", "--endpoint", "tcp://c:1", "--token-file", "here")
        self.assertTrue(os.path.islink(self.path))
        self.assertEqual(self.cluster.json("context", "show", "c")["token_file"], os.path.join(os.getcwd(), "here"))

    def test_names_and_places(self):
        for name in ("a b", "", "x" * 65, "[a]", "a/b"):
            self.ctl("context", "add", name, "--endpoint=tcp://a:1", code=2)
        self.ctl("context", "add", "a", "--endpoint=nowhere", code=2)
        self.assertFalse(os.path.exists(self.path))
        elsewhere = os.path.join(self.cluster.folder, "xdg")
        self.ctl("context", "add", "a", "--endpoint=tcp://a:1", XDG_CONFIG_HOME=elsewhere)
        self.assertTrue(os.path.exists(f"{elsewhere}/banyan/contexts"))
        self.assertEqual(self.used("--context", "a", XDG_CONFIG_HOME=elsewhere)[0], "tcp://a:1")
        offered = self.ctl("--complete", "--context", "", XDG_CONFIG_HOME=elsewhere)[0]
        self.assertEqual(offered, "words\na\ttcp://a:1\n")
        self.assertEqual(self.ctl("--complete", "status", "--context=", XDG_CONFIG_HOME=elsewhere)[0],
                         "words\n--context=a\ttcp://a:1\n")
        self.assertEqual(self.ctl("--complete", "context", "use", "", XDG_CONFIG_HOME=elsewhere)[0], offered)


if __name__ == "__main__":
    unittest.main(verbosity=2)
