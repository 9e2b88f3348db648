#!/usr/bin/env python3
"""Goal: `evenkeel cluster drain` and `resume` need the front's admin key where it has one, and get it from a file or from
the environment; a file of keys is checked at start and read again on SIGHUP.
Method: a real front and worker, with and without keys."""
import json
import signal
import unittest

from cluster_rig import MODEL, Front, Worker, harness, make_certs
from harness import run, wait_until

KEY, NEXT = "0123456789abcdef-A", "fedcba9876543210-B"


class Admin(unittest.TestCase):
    def setUp(self):
        folder = harness.folder()
        self.tmp = folder.__enter__()
        self.addCleanup(folder.__exit__, None, None, None)
        self.keys = self.tmp / "admin.key"

    def drain(self, front, worker, *arguments, verb="drain", env=None):
        return run("cluster", verb, worker.address, "--url", front.url, *arguments, env=env)

    def test_drain_and_resume_with_a_key(self):
        certs = make_certs(self.tmp / "certs", "w0")
        self.keys.write_text(f"# operators\n{KEY}\n")
        with Worker(certs / "w0") as worker, \
                Front(certs / "front", [worker], "--set", f"gateway.admin_key_file={self.keys}") as front:
            for why, env in (("401: this takes an admin key", None), ("401: this is not an admin key", {"EVENKEEL_ADMIN_KEY": NEXT})):
                done = self.drain(front, worker, env=env)
                self.assertEqual(done.returncode, 1)
                self.assertIn(why, done.stderr)
            self.assertEqual(self.state(front), "serving")
            self.assertEqual(self.drain(front, worker, env={"EVENKEEL_ADMIN_KEY": KEY}).returncode, 0)
            self.assertEqual(self.state(front), "draining")
            done = self.drain(front, worker, "--admin-key-file", self.keys, verb="resume", env={"EVENKEEL_ADMIN_KEY": NEXT})
            self.assertEqual((done.returncode, done.stdout), (0, f"{worker.address}: takes work again\n"), done.stderr)
            # A new key in the file counts from SIGHUP on, beside the old one, and then alone; a mistake changes nothing.
            for text, old, new in ((f"{KEY}\n{NEXT}\n", 0, 0), (f"{NEXT}\n", 1, 0), ("short\n", 1, 0)):
                self.keys.write_text(text)
                said = front.log_text().count("event=reload")
                front.send_signal(signal.SIGHUP)
                wait_until(lambda: front.log_text().count("event=reload") > said, "the reload")
                self.assertEqual(self.drain(front, worker, env={"EVENKEEL_ADMIN_KEY": KEY}).returncode, old)
                self.assertEqual(self.drain(front, worker, verb="resume", env={"EVENKEEL_ADMIN_KEY": NEXT}).returncode, new)
            self.assertIn(f"gateway.admin_key_file: {self.keys}: line 1 is no key", front.log_text())
            log = front.log_text()
            self.assertNotIn(KEY, log)
            self.assertNotIn(NEXT, log)

    @staticmethod
    def state(front):
        return json.loads(front.request("GET", "/v1/cluster")[2])["workers"][0]["state"]

    def test_keys_that_do_not_do(self):
        for text, why in (("", "there is no key in it"), ("short", "line 1 is no key")):
            self.keys.write_text(text)
            done = run("serve", "--model", MODEL, "--listen", "127.0.0.1:0", "--set", f"gateway.admin_key_file={self.keys}")
            self.assertEqual(done.returncode, 78)
            self.assertIn(f"gateway.admin_key_file: {self.keys}: {why}", done.stderr)
        done = run("serve", "--model", MODEL, "--listen", "127.0.0.1:0", "--set", "gateway.admin_key_file=/no/such/file")
        self.assertEqual(done.returncode, 78)
        self.assertIn("/no/such/file: no such file", done.stderr)
        done = run("cluster", "drain", "w0:7070", "--admin-key-file", "/no/such/file")
        self.assertEqual(done.returncode, 66)
        self.keys.write_text("# nothing\n")
        done = run("cluster", "drain", "w0:7070", "--admin-key-file", self.keys)
        self.assertEqual(done.returncode, 65)
        self.assertIn("there is no admin key in it", done.stderr)


if __name__ == "__main__":
    harness.main()
