#!/usr/bin/env python3
"""Goal: what build/bench/engine and build/bench/steps print can be relied on by programs that read it. Method: they run
on the bundled model, and every figure that follows from others is computed again."""
import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402  (needs the path above)
from harness import BUILD, SOURCE  # noqa: E402

DEMO = SOURCE / "models/evenkeel-demo.gguf"
BATCHES = ("1", "4", "16", "64")
PATIENCE_S = 120


def run(program, *arguments):
    return subprocess.run([str(BUILD / "bench" / program), *map(str, arguments)], capture_output=True, text=True,
                          timeout=PATIENCE_S, stdin=subprocess.DEVNULL, check=False)


class Engine(unittest.TestCase):
    def test_json_has_every_key(self):
        with harness.folder() as folder:
            peers = folder / "peers.csv"
            peers.write_text('name,batch,phase,tokens/s\n# of today\nthe "one",512,prefill,10\nthe "one",4,decode,20\n')
            done = run("engine", "--model", DEMO, "--threads", 1, "--windows", 3, "--peer-csv", peers, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        for key in ("machine", "cpus", "compiler", "model", "arch", "file_mib", "kernels", "read_gbs", "peak_gops", "peak",
                    "plan_share", "joules_per_token"):
            self.assertIn(key, found)
        self.assertEqual((found["threads"], found["windows"]), (1, 3))
        self.assertEqual(tuple(found["decode"]), BATCHES)
        self.assertEqual(tuple(found["bandwidth_share"]), BATCHES)
        for name, rate in (("prefill512", found["prefill512"]), *found["decode"].items()):
            low, high = found["spread"][name]
            self.assertTrue(0 < low <= rate <= high, (name, low, rate, high))
        self.assertTrue(all(share > 0 for share in found["bandwidth_share"].values()))
        self.assertGreater(found["rss_mib"], 0)
        if found["peak"] != "none":
            self.assertTrue(0 < found["peak_share"] < 1)
        (peer,) = found["peers"]
        self.assertEqual(peer["name"], 'the "one"')
        self.assertEqual([peer["decode"][batch] for batch in ("1", "16", "64")], [None] * 3)
        for measured, rate, ours in ((peer["prefill512"], 10, found["prefill512"]), (peer["decode"]["4"], 20,
                                                                                  found["decode"]["4"])):
            self.assertEqual(measured["tokens_per_s"], rate)
            self.assertAlmostEqual(measured["ratio"], ours / rate, delta=0.002)

    def test_text_names_what_was_asked(self):
        done = run("engine", "--model", DEMO, "--threads", 1, "--windows", 1, "--kernels", "reference")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("reference kernels", "1 threads", "prefill512", "decode 64", "energy: "):
            self.assertIn(word, done.stdout)

    def test_mistakes(self):
        with harness.folder() as folder:
            peers = folder / "peers.csv"
            peers.write_text("a,512,prefill,1\na,4,decode,fast\n")
            done = run("engine", "--model", DEMO, "--peer-csv", peers)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(f"{peers}:2:12: ", done.stderr)
            self.assertEqual(run("engine", "--model", DEMO, "--peer-csv", folder / "none").returncode, 1)
        self.assertEqual(run("engine", "--model", "/no/such.gguf").returncode, 1)
        for arguments in ((), ("--model", DEMO, "--windows", 0), ("--model", DEMO, "--what", 1), ("--model",)):
            self.assertEqual(run("engine", *arguments).returncode, 64)


class Steps(unittest.TestCase):
    def test_it_runs_what_it_is_told(self):
        for phase, batch, steps in (("prefill", 8, 2), ("decode", 3, 4)):
            done = run("steps", "--model", DEMO, "--kernels", "auto", "--phase", phase, "--batch", batch, "--steps", steps)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["tokens"], batch * steps)

    def test_mistakes(self):
        for arguments in (("--phase", "decode", "--batch", 65), ("--phase", "decode", "--steps", 49), ("--phase", "both"), ()):
            self.assertEqual(run("steps", "--model", DEMO, *arguments).returncode, 64)


if __name__ == "__main__":
    harness.main(needs_program=False)
