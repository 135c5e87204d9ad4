#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""banyanctl pki: an authority, what it issues, and what the program openssl says of that.

    pki_test.py BIN        BIN: the folder of the programs
"""
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

BIN = sys.argv.pop(1)


class Pki(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="banyan-pki-")
        self.ca = f"{self.folder}/ca"
        self.addCleanup(shutil.rmtree, self.folder)

    def ctl(self, *words, code=0):
        """stdout and stderr. No process listens at this endpoint, and none is asked."""
        env = {"PATH": os.environ["PATH"], "HOME": self.folder, "BANYAN_ENDPOINT": "nowhere"}
        done = subprocess.run([f"{BIN}/banyanctl", *words], capture_output=True, text=True, env=env, check=False, timeout=60)
        self.assertEqual(done.returncode, code, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout, done.stderr

    def show(self, path):
        return json.loads(self.ctl("--json", "pki", "show", path)[0])

    def openssl(self, *words, code=0):
        done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(done.returncode, code, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def test_a_life(self):
        self.ctl("pki", "init", self.ca)
        out = f"{self.folder}/w"
        self.ctl("pki", "issue", self.ca, "--role=worker", "--host=a,10.0.0.5", "--out", out)
        self.assertEqual(sorted(os.listdir(self.ca)), ["ca.key", "ca.pem"])
        self.assertEqual(sorted(os.listdir(out)), ["ca.pem", "worker-a.key", "worker-a.pem"])
        self.assertEqual(stat.S_IMODE(os.stat(out).st_mode), 0o700)
        self.assertEqual(stat.S_IMODE(os.stat(f"{self.ca}/ca.key").st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(f"{out}/worker-a.key").st_mode), 0o600)
        [worker], [authority] = self.show(f"{out}/worker-a.pem"), self.show(f"{out}/ca.pem")
        self.assertEqual((worker["roles"], worker["hosts"], worker["authority"]), (["worker"], "a,10.0.0.5", False))
        self.assertEqual((authority["roles"], authority["authority"]), ([], True))
        self.assertEqual((worker["workers"], authority["workers"]), ("", ""))
        self.ctl("pki", "issue", self.ca, "--role=worker", "--host=a", "--worker=w0,w1", "--name=named", "--out", f"{out}-named")
        self.assertEqual([self.show(f"{out}-named/named.pem")[0][key] for key in ("workers", "roles")], ["w0,w1", ["worker"]])
        self.assertIn("URI:banyan:worker, URI:banyan:worker:w0, URI:banyan:worker:w1, DNS:a",
                      self.openssl("x509", "-in", f"{out}-named/named.pem", "-noout", "-text"))
        self.assertIn("--role worker", self.ctl("pki", "issue", self.ca, "--role=client", "--worker=w0", "--name=n", code=2)[1])
        self.assertEqual(worker["issuer"], authority["subject"])
        self.assertIn(worker["days_left"], (364, 365))
        table = self.ctl("pki", "show", f"{out}/worker-a.pem")[0]
        for word in ("CN=worker-a", "worker", "10.0.0.5", "EC P-256", worker["fingerprint"]):
            self.assertIn(word, table)

        before = worker["fingerprint"]
        self.assertIn("already exists", self.ctl("pki", "init", self.ca, code=9)[1])
        again = ("pki", "issue", self.ca, "--role=worker", "--host=a,10.0.0.5", "--out", out)
        self.assertIn("already exists", self.ctl(*again, code=9)[1])
        self.assertEqual(self.show(f"{out}/worker-a.pem")[0]["fingerprint"], before)
        self.ctl(*again, "--replace", "--days=3")
        [worker] = self.show(f"{out}/worker-a.pem")
        self.assertNotEqual(worker["fingerprint"], before)
        self.assertIn(worker["days_left"], (2, 3))
        self.assertEqual(stat.S_IMODE(os.stat(f"{out}/worker-a.key").st_mode), 0o600)
        self.assertEqual(sorted(os.listdir(out)), ["ca.pem", "worker-a.key", "worker-a.pem"])

    def test_another_certificate_for_the_same_key(self):
        self.ctl("pki", "init", self.ca)
        again = ("pki", "issue", self.ca, "--role=worker", "--host=a", "--name=w")
        self.assertIn("without --keep-key", self.ctl(*again, "--keep-key", code=11)[1])
        self.ctl(*again)
        with open(f"{self.ca}/w.key", encoding="ascii") as file:
            key = file.read()
        [before] = self.show(f"{self.ca}/w.pem")
        self.ctl(*again, "--keep-key", "--days=3")
        with open(f"{self.ca}/w.key", encoding="ascii") as file:
            self.assertEqual(file.read(), key)
        [after] = self.show(f"{self.ca}/w.pem")
        self.assertNotEqual(after["serial"], before["serial"])
        self.assertIn(after["days_left"], (2, 3))
        self.assertEqual(stat.S_IMODE(os.stat(f"{self.ca}/w.key").st_mode), 0o600)

    def test_mistakes(self):
        self.assertIn("'banyanctl pki init' creates", self.ctl("pki", "issue", self.ca, "--role=client", code=11)[1])
        self.ctl("pki", "init", self.ca, "--name=mine", "--days=10")
        for words, code, said in (
                (("--host=a",), 2, "needs --role"),
                (("--role=boss", "--host=a"), 2, "'boss' is not a role"),
                (("--role=worker",), 2, "needs --host"),
                (("--role=client,worker",), 2, "needs --host"),
                (("--role=worker", "--host=a b"), 4, "is not a name or an address"),
                (("--role=worker", "--host=a", "--days=11"), 9, "would outlive its CA"),
                (("--role=worker", "--host=a", "--days=0"), 2, "--days"),
                (("--role=worker", "--host=a", "--name=ca"), 2, "cannot name the files"),
                (("--role=worker", "--host=a", "--name=../x"), 2, "cannot name the files"),
                (("--role=worker", "--host=" + "a" * 60), 2, "give --name"),
        ):
            self.assertIn(said, self.ctl("pki", "issue", self.ca, "--days=1", *words, code=code)[1], words)
        self.assertEqual(sorted(os.listdir(self.ca)), ["ca.key", "ca.pem"])
        os.chmod(f"{self.ca}/ca.key", 0o644)
        self.assertIn("chmod 600", self.ctl("pki", "issue", self.ca, "--role=client", "--days=1", code=11)[1])
        self.assertIn("no certificate", self.ctl("pki", "show", f"{self.ca}/ca.key", code=11)[1])
        self.assertIn("No such file", self.ctl("pki", "show", f"{self.ca}/none", code=11)[1])

    @unittest.skipUnless(shutil.which("openssl"), "the program openssl is not there")
    def test_openssl_agrees(self):
        other = f"{self.folder}/other"
        self.ctl("pki", "init", self.ca)
        self.ctl("pki", "init", other)
        self.ctl("pki", "issue", self.ca, "--role=coordinator,worker", "--host=a,127.0.0.1,::1", "--name=both")
        self.ctl("pki", "issue", self.ca, "--role=client", "--name=me")
        verify = ("verify", "-x509_strict", "-no-CApath", "-no-CAstore", "-CAfile")
        both, me = f"{self.ca}/both.pem", f"{self.ca}/me.pem"
        self.openssl(*verify, f"{self.ca}/ca.pem", "-purpose", "sslserver", "-verify_hostname", "a", both)
        self.openssl(*verify, f"{self.ca}/ca.pem", "-purpose", "sslclient", "-verify_ip", "::1", both)
        self.openssl(*verify, f"{self.ca}/ca.pem", "-purpose", "sslclient", me)
        self.openssl(*verify, f"{self.ca}/ca.pem", "-purpose", "sslserver", me, code=2)
        self.openssl(*verify, f"{self.ca}/ca.pem", "-verify_ip", "127.0.0.2", both, code=2)
        self.openssl(*verify, f"{other}/ca.pem", both, code=2)
        text = self.openssl("x509", "-noout", "-text", "-in", both)
        for said in ("URI:banyan:coordinator, URI:banyan:worker, DNS:a, IP Address:127.0.0.1", "CA:FALSE", "Digital Signature",
                     "prime256v1", "ecdsa-with-SHA256"):
            self.assertIn(said, text)
        text = self.openssl("x509", "-noout", "-text", "-in", f"{self.ca}/ca.pem")
        self.assertIn("CA:TRUE, pathlen:0", text)
        self.assertIn("Certificate Sign, CRL Sign", text)
        prints = self.openssl("x509", "-noout", "-fingerprint", "-sha256", "-in", both)
        self.assertIn(self.show(both)[0]["fingerprint"], prints)


if __name__ == "__main__":
    unittest.main()
