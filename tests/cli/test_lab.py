#!/usr/bin/env python3
"""Goal: `evenkeel lab incident` runs a real front and real workers under the same traffic for each policy, says what came of
it in a table, JSON and HTML, leaves no process and no file behind however it ends, and explains what is wrong. Method: the
real binary with the bundled model, three workers and a few seconds of traffic; the process table before and after."""
import html.parser
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import time
import unittest

import harness
from harness import PROGRAM, SOURCE, environment, folder, run, wait_until

DEMO = SOURCE / "models/evenkeel-demo.gguf"
KEYS = ["policy", "qps", "p50_ms", "p99_ms", "balance_max_mean", "balance_cv", "router_cpu_share", "score_loss",
        "perplexity_change", "rerouted", "deferred", "degraded", "failed"]
CHAIN = ["hot_expert_s", "overload_s", "late_s", "alert_s", "breaker_s", "recovery_s", "overloaded_s"]
SMALL = ["--model", str(DEMO), "--workers", "3", "--rate", "6", "--prompt-tokens", "32", "--new-tokens", "8"]
PATIENCE_S = 300


def children(tmp):
    """Processes whose command line or whose parent's directory is that of a lab in `tmp`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if f"{tmp}/evenkeel-lab-" in line:
                found.append((int(entry.name), line.replace("\0", " ")))
    return found


def write_recording(path, experts):
    """An MRT1 file (docs/formats/mrt.md): one sequence, one layer, and for each token its experts."""
    header = struct.pack("<4sIIIHHHHII", b"MRT1", 1, len(experts), 1, 1, 32, len(experts[0]), 0, 0, 0)
    path.write_bytes(header + struct.pack("<I", len(experts)) + bytes(e for token in experts for e in token))


class Plain(html.parser.HTMLParser):
    """What a page refers to, and its words."""

    def __init__(self):
        super().__init__()
        self.outside, self.words, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.outside += [value for key, value in attrs if key in ("src", "href", "srcset", "data")]

    def handle_data(self, data):
        self.words.append(data)


class Lab(unittest.TestCase):
    def setUp(self):
        self.holder = folder()
        self.tmp = self.holder.__enter__()

    def tearDown(self):
        self.assertEqual(children(self.tmp), [])
        self.assertEqual(list(self.tmp.glob("evenkeel-lab-*")), [])
        self.holder.__exit__(None, None, None)

    def lab(self, *arguments):
        return run("lab", "incident", *SMALL, *arguments, env={"TMPDIR": str(self.tmp)}, timeout=PATIENCE_S)

    def test_a_run(self):
        out, figures = self.tmp / "report.html", self.tmp / "figures.json"
        done = self.lab("--minutes", "0.15", "--policy", "static,breaker+replicas", "--out", out, "--json", figures)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        for word in ("mixed", "promotion", "recovery", "the chain", "breaker+replicas", "against static"):
            self.assertIn(word, done.stdout)
        self.check_json(json.loads(figures.read_text()))
        page = Plain()
        page.feed(out.read_text())
        self.assertEqual(page.outside, [])
        self.assertNotIn("url(", out.read_text())
        self.assertNotIn("script", page.tags)
        self.assertEqual(page.tags.count("svg"), 4)  # latency, waiting, and the workers of two policies
        self.assertIn("read again with the policy", " ".join(page.words))

    def check_json(self, found):
        self.assertEqual([policy["policy"] for policy in found["policies"]], ["static", "breaker+replicas"])
        for policy in found["policies"]:
            self.assertEqual(list(policy), KEYS)
            self.assertLess(abs(policy["perplexity_change"]), 0.5)
            self.assertEqual(policy["failed"], 0)
            self.assertGreater(policy["qps"], 0)
            self.assertGreater(policy["p50_ms"], 0)
            self.assertGreaterEqual(policy["p99_ms"], policy["p50_ms"])
            self.assertGreaterEqual(policy["balance_max_mean"], 1)
            self.assertLessEqual(policy["balance_max_mean"], 3)
            self.assertGreater(policy["router_cpu_share"], 0)
            self.assertLess(policy["router_cpu_share"], 1)
            self.assertEqual(list(found["chain"][policy["policy"]]), CHAIN)
        static = found["policies"][0]
        self.assertEqual((static["rerouted"], static["score_loss"], static["degraded"], static["perplexity_change"]),
                         (0, 0, 0, 0))
        self.assertGreater(found["capacity"], 0)
        self.assertGreaterEqual(found["busiest_promotion"], found["busiest_mixed"])

    def test_recorded_routing(self):
        """Ordinary traffic visits all experts in turn, the promotion those of one recorded token."""
        even, skewed, figures = (self.tmp / name for name in ("even.mrt", "skewed.mrt", "figures.json"))
        write_recording(even, [[4 * i + j for j in range(4)] for i in range(8)])
        write_recording(skewed, [[3, 4, 5, 6]])
        done = self.lab("--minutes", "0.1", "--policy", "static", "--json", figures,
                        "--routing", f"{even},{even},{even},{skewed}")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        found = json.loads(figures.read_text())
        self.assertIsNone(found["policies"][0]["perplexity_change"])
        self.assertGreater(found["busiest_promotion"], 1.5 * found["busiest_mixed"])

    def test_recordings_that_are_none(self):
        bad = self.tmp / "bad.mrt"
        bad.write_bytes(b"MRT1 and nothing else that is right")
        done = self.lab("--minutes", "0.1", "--policy", "static", "--routing", bad)
        self.assertEqual(done.returncode, 69, done.stderr)
        self.assertIn("bad.mrt", done.stderr)

    def test_a_sweep(self):
        out, points = self.tmp / "sweep.html", self.tmp / "points.json"
        done = run("lab", "sweep", *SMALL, "--minutes", "0.2", "--traffic", "promotion",
                   "--policy", "static,breaker+replicas", "--p99-limit", "60000", "--out", out, "--json", points,
                   env={"TMPDIR": str(self.tmp)}, timeout=2 * PATIENCE_S)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        found = json.loads(points.read_text())
        self.assertEqual([curve["policy"] for curve in found["policies"]], ["static", "breaker+replicas"])
        self.assertEqual((found["traffic"], found["p99_limit_ms"]), ("promotion", 60000))
        for curve in found["policies"]:
            self.assertEqual([round(10 * point["load"]) for point in curve["points"]], list(range(3, 12)))
            for point in curve["points"]:
                self.assertAlmostEqual(point["offered_qps"], point["load"] * curve["capacity"], delta=0.01)
                self.assertEqual(point["failed"], 0)
            self.assertGreater(curve["points"][-1]["p99_ms"], curve["points"][0]["p50_ms"])
            if curve["knee_load"] is not None:
                self.assertIn(round(10 * curve["knee_load"]), range(4, 11))
            self.assertFalse(curve["limit_passed"])  # a minute is more than any of them takes
            self.assertAlmostEqual(curve["qps_within_limit"], curve["points"][-1]["offered_qps"], delta=0.01)
        self.assertIn("requests/s with a P99 of at most 60000 ms", done.stdout)
        page = Plain()
        page.feed(out.read_text())
        self.assertEqual((page.outside, page.tags.count("svg")), ([], 1))

    def start(self, *arguments):
        command = [str(PROGRAM), "lab", "incident", *SMALL, "--minutes", "5", "--policy", "static", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                env=environment({"TMPDIR": str(self.tmp)}))

    def workers_of(self):
        return [line for _, line in children(self.tmp) if " worker " in line]

    def test_it_can_be_stopped(self):
        process = self.start()
        wait_until(lambda: len(self.workers_of()) == 3, "workers")
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE_S)
        self.assertEqual((process.returncode, stderr),
                         (130, b"evenkeel: lab: stopped; all processes have ended\n"))

    def test_children_end_when_it_is_killed(self):
        process = self.start()
        wait_until(lambda: len(self.workers_of()) == 3, "workers")
        process.kill()
        process.communicate(timeout=PATIENCE_S)
        wait_until(lambda: not children(self.tmp), "the end of all children")
        for left in self.tmp.glob("evenkeel-lab-*"):  # nobody was there to remove it
            subprocess.run(["rm", "-r", str(left)], check=True)

    def test_a_worker_that_dies_is_told(self):
        process = self.start()
        wait_until(lambda: len(self.workers_of()) == 3, "workers")
        time.sleep(2)
        victim = [pid for pid, line in children(self.tmp) if " worker " in line]
        if victim:
            os.kill(victim[0], signal.SIGKILL)
        _, stderr = process.communicate(timeout=PATIENCE_S)
        self.assertEqual(process.returncode, 69, stderr)
        self.assertRegex(stderr.decode(), r"^evenkeel: lab: .+\n$")

    def test_mistakes(self):
        bad = self.tmp / "bad.jsonl"
        bad.write_text('{"lang": "zh", "text": "你好"}\n{"lang": "xx", "text": "?"}\n')
        model = ["--model", str(DEMO)]
        cases = [
            (2, ["lab"], "lab: say what: incident or sweep"),
            (2, ["lab", "accident"], "lab: 'accident' is neither incident nor sweep"),
            (2, ["lab", "incident", "--policy", "static,luck"], "'luck' is none of static, least-load"),
            (2, ["lab", "incident", "--policy", "static,static"], "static is there twice"),
            (2, ["lab", "incident", "--policy", ""], "'' is none of"),
            (2, ["lab", "incident", "--workers", "1"], "--workers is '1'; it must be a whole number from 2 to 64"),
            (2, ["lab", "incident", "--minutes", "0"], "--minutes is '0'"),
            (2, ["lab", "incident", *model, "--workers", "40"], "32 experts in a layer, which 40 workers"),
            (2, ["lab", "incident", *model, "--replicas", "33"], "--replicas is too many"),
            (2, ["lab", "incident", *model, "--prompt-tokens", "4096"], "--prompt-tokens and --new-tokens are more"),
            (66, ["lab", "incident", "--model", "/no/such.gguf"], "/no/such.gguf: no such file"),
            (66, ["lab", "incident", *model, "--prompts", "/no/such.jsonl"], "/no/such.jsonl: no such file"),
            (65, ["lab", "incident", *model, "--prompts", bad], f"{bad}:2: no JSON object with a \"lang\""),
        ]
        for code, arguments, words in cases:
            with self.subTest(arguments):
                done = run(*arguments, env={"TMPDIR": str(self.tmp)})
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(words, done.stderr)
                self.assertRegex(done.stderr, r"^evenkeel: [^\n]*\n$")
        done = run("lab", "incident", *model, env={"TMPDIR": "/no/such/place"})
        self.assertEqual(done.returncode, 66, done.stderr)
        self.assertTrue(re.search("/no/such/place: no directory can be made there", done.stderr), done.stderr)


if __name__ == "__main__":
    harness.main()
