#!/usr/bin/env python3
"""Goal: bench/cluster carries rows over each way that this machine has, finds them as they went, allocates nothing
meanwhile, and says what each way took.
Method: the small sizes once, without MPI; no time is asserted."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(os.environ["EK_BUILD_ROOT"])
SOURCE = pathlib.Path(os.environ["EK_SOURCE_ROOT"])
PROGRAM = ROOT / "bench/cluster"


def run(*arguments):
    return subprocess.run([PROGRAM, "--model", SOURCE / "models/evenkeel-demo.gguf", *arguments], capture_output=True,
                          text=True, timeout=240, check=False)


class Cluster(unittest.TestCase):
    def test_every_way_is_measured(self):
        done = run("--turns", "1", "--tokens-max", "32", "--no-mpi", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        trips = {(trip["way"], trip["tokens"]): trip for trip in report["round_trips"]}
        for way in ("tcp", "tls"):
            for tokens in (1, 32):
                trip = trips[way, tokens]
                self.assertGreater(trip["us"], 0)
                self.assertGreater(trip["cpu_us_per_token"], 0)
                self.assertLessEqual(trip["allocations"], 0, trip)  # below: this build does not count
        overlap = {line["way"]: line for line in report["overlap"]}
        self.assertGreater(overlap["tcp"]["hidden_2"], overlap["tcp"]["hidden_1"])

    def test_bad_arguments(self):
        for arguments in (("--turns", "0"), ("--turns", "x"), ("--tokens-max",), ("more",)):
            self.assertEqual(run(*arguments).returncode, 64)


if __name__ == "__main__":
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(
        unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"]))
    print(f"[  PASSED  ] {result.testsRun - len(result.failures) - len(result.errors)} test(s).")
    for case, _ in result.failures + result.errors:
        print(f"[  FAILED  ] {case.id()}")
    sys.exit(0 if result.wasSuccessful() else 1)
