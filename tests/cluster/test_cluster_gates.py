#!/usr/bin/env python3
"""Goal: a front is ready only when a sample of what its gates choose is sane: a healthy model is; gates that send every
token to one expert, or compute no numbers, keep it from being ready, and readiness and log say in which layer and how
much; so do workers that do not answer; and an operator may overrule it.
Method: real processes; copies of the bundled model whose gates tools/collapse_gates.py breaks."""
import json
import re
import signal
import subprocess
import sys
import unittest

from cluster_rig import MODEL, PROMPTS, Front, Worker, complete, harness, make_certs, metric
from harness import wait_until


def broken(out, *arguments):
    subprocess.run(["/usr/bin/python3",
                    str(harness.SOURCE / "tools/collapse_gates.py"), str(MODEL), str(out), *arguments], check=True,
                   capture_output=True)
    return out


def find_address(server):
    """Of one that is not ready: from its log."""
    match = wait_until(lambda: re.search(r"event=listening addr=(\S+)", server.log_text()), "an address")
    server.address = match.group(1)


def readiness(server):
    status, _, body = server.request("GET", "/readyz")
    return status, json.loads(body)


class Gates(unittest.TestCase):
    def setUp(self):
        self.tmp = self.enterContext(harness.folder())

    def rig(self, model, *sets):
        certs = make_certs(self.tmp / "certs", *[f"w{i}" for i in range(len(sets))])
        workers = [self.enterContext(Worker(certs / f"w{i}", "--experts", which, model=model))
                   for i, which in enumerate(sets)]
        return certs / "front", workers

    def test_healthy(self):
        certs, workers = self.rig(MODEL, "*:0-15", "*:16-31")
        with Front(certs, workers) as front:
            self.assertEqual(readiness(front), (200, {"status": "ok"}))
            self.assertRegex(front.log_text(), r"event=gates_sane tokens=\d{3} tries=1")
            self.assertEqual(metric(front, "evenkeel_gates_sane"), 1)

    def held(self, front, pattern):
        """It is not ready, says why everywhere, and ends when it is asked to."""
        find_address(front)
        wait_until(lambda: readiness(front)[1]["status"] == "held", "a reason")
        status, body = readiness(front)
        self.assertEqual(status, 503)
        self.assertRegex(body["why"], pattern)
        self.assertRegex(front.log_text(), rf'event=gates_not_sane ready=false why="{pattern}')
        self.assertEqual(front.request("GET", "/health/live")[0], 200)
        self.assertEqual(complete(front, PROMPTS[0])[0], 503)
        self.assertEqual(metric(front, "evenkeel_gates_sane"), 0)
        done = harness.run("status", "--url", front.url)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, rf": held: {pattern}")
        front.send_signal(signal.SIGTERM)
        self.assertEqual(front.wait(), 143)

    def test_collapsed(self):
        model = broken(self.tmp / "collapsed.gguf", "--layers", "2")
        certs, workers = self.rig(model, "all")
        self.held(Front(certs, workers, model=model, wait_ready=False),
                  r"layer 2: expert 7 gets (99|100)\.\d % of \d{3} tokens \(at most 99 % is sane\)")
        with Front(certs, workers, "--set", "engine.gate_check=warn", model=model) as front:
            self.assertEqual(readiness(front)[0], 200)
            self.assertRegex(front.log_text(), r"level=warn room=cli event=gates_not_sane ready=true why=\"layer 2: ")
            self.assertEqual(complete(front, PROMPTS[0])[0], 200)
        with Front(certs, workers, "--set", "engine.gate_check=off", model=model) as front:
            self.assertNotIn("gates_", front.log_text())

    def test_no_numbers(self):
        model = broken(self.tmp / "nan.gguf", "--factor", "nan", "--layers", "1", "--expert", "3")
        with harness.Server("--threads", "1", model=model) as server:  # in one process it has to be asked for
            self.assertEqual(readiness(server)[0], 200)
        self.held(harness.Server("--threads", "1", "--set", "engine.gate_check=require", model=model, wait_ready=False),
                  r"layer 1: \d+ of \d+ gate logits are no finite numbers")

    def test_workers_that_do_not_answer(self):
        # The front has seen its worker, which then stops: it is ready by itself when the worker goes on.
        certs, (a, b) = self.rig(MODEL, "*:0-15", "*:16-31")
        front = Front(certs, [a, b], "--set", "cluster.hung_after=500ms", "--set", "cluster.loss_wait=0s",
                      wait_ready=False)
        wait_until(lambda: front.log_text().count("event=joined") == 2, "both workers")
        b.send_signal(signal.SIGSTOP)
        find_address(front)
        first = wait_until(lambda: re.search("gates_not_sane|gates_sane", front.log_text()), "a sample")
        b.send_signal(signal.SIGCONT)
        if first.group(0) == "gates_not_sane":
            self.assertIn("do not answer", front.log_text())
        wait_until(lambda: readiness(front)[0] == 200, "its being ready")
        self.assertEqual(complete(front, PROMPTS[0])[0], 200)
        front.send_signal(signal.SIGTERM)
        self.assertEqual(front.wait(), 0)


if __name__ == "__main__":
    harness.main()
