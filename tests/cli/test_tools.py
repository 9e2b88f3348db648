#!/usr/bin/env python3
"""Goal: the tools that guard this tree notice what they are there for. Method: their own self-tests, and made-up test
records for the counting of results."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

import harness
from harness import SOURCE

sys.path.insert(0, str(SOURCE / "tools"))
import run_tests  # noqa: E402  (needs the path above)


def record(result="OK", stdout="", stderr="", returncode=0):
    return {"name": "evenkeel:x/y", "result": result, "stdout": stdout, "stderr": stderr, "returncode": returncode}


class Guards(unittest.TestCase):
    def test_self_tests(self):
        for tool in ("check_layers", "check_purity", "tidy", "check_docs", "guard_instructions", "wrap_comments"):
            with self.subTest(tool):
                done = subprocess.run([sys.executable, SOURCE / f"tools/{tool}.py", "--self-test"], capture_output=True,
                                      text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("self-test", done.stdout)

    def test_forbidden_include_is_found_in_a_tree(self):
        """The whole check, run over a copy of src/ with one line too many, names that line."""
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            subprocess.run(["cp", "-r", SOURCE / "src", SOURCE / "tools", root], check=True)
            check = [sys.executable, root / "tools/check_layers.py"]
            before = subprocess.run(check, capture_output=True, text=True, check=False)
            self.assertNotIn("route.c:1:", before.stdout)
            path = root / "src/route/route.c"
            path.write_text('#include "engine/engine.h"\n' + path.read_text())
            done = subprocess.run(check, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("src/route/route.c:1: \"engine/engine.h\": no arrow leads from route to engine", done.stdout)


class Counting(unittest.TestCase):
    def count(self, **fields):
        counts, problem = run_tests.count_executable(record(**fields))
        return (counts.passed, counts.failed, counts.skipped), problem

    def test_cases_are_added_up(self):
        text = "[  PASSED  ] 5 test(s).\n[  PASSED  ] 2 test(s).\n[  SKIPPED ] 1 test(s), listed below:\n"
        self.assertEqual(self.count(stderr=text), ((7, 0, 1), None))

    def test_failures(self):
        text = "[  PASSED  ] 5 test(s).\n[  FAILED  ] 2 test(s), listed below:\n"
        self.assertEqual(self.count(result="FAIL", stderr=text, returncode=2)[0], (5, 2, 0))

    def test_crash_and_timeout_count(self):
        self.assertEqual(self.count(result="FAIL", stdout="[ RUN      ] test_x", returncode=-11),
                         ((0, 1, 0), "ended with -11"))
        self.assertEqual(self.count(result="TIMEOUT"), ((0, 1, 0), "timed out"))
        self.assertEqual(self.count(result="ERROR", stderr="[  PASSED  ] 3 test(s).")[0], (3, 1, 0))

    def test_nothing_ran(self):
        self.assertEqual(self.count(), ((0, 1, 0), "ran no test case"))
        self.assertEqual(self.count(stderr="[  PASSED  ] 0 test(s).")[0], (0, 1, 0))

    def test_named_failures_cannot_end_well(self):
        counts, problem = self.count(stderr="[  PASSED  ] 1 test(s).\n[  FAILED  ] 1 test(s), listed below:\n")
        self.assertEqual(counts, (1, 1, 0))
        self.assertIsNotNone(problem)

    def test_corpus_is_one_case(self):
        self.assertEqual(self.count(stdout="[  PASSED  ] 40 corpus file(s)."), ((1, 0, 0), None))

    def test_skipped_executable(self):
        self.assertEqual(self.count(result="SKIP", returncode=77), ((0, 0, 1), None))

    def test_last_line(self):
        """Over a made-up project: one good test, one that fails, one that crashes."""
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            (root / "meson.build").write_text(
                "project('x')\nsh = find_program('sh')\n"
                "test('a/good', sh, args: ['-c', 'echo \"[  PASSED  ] 3 test(s).\"'])\n"
                "test('a/bad', sh, args: ['-c', 'echo \"[  PASSED  ] 1 test(s).\"; "
                "echo \"[  FAILED  ] 2 test(s), listed below:\"; exit 2'])\n"
                "test('b/crash', sh, args: ['-c', 'kill -SEGV $$'])\n")
            subprocess.run(["meson", "setup", root / "build", root], check=True, capture_output=True)
            command = [sys.executable, SOURCE / "tools/run_tests.py", str(root / "build")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(done.stdout.splitlines()[-1], "4 passed, 3 failed, 0 skipped")
            self.assertEqual(done.returncode, 1)
            self.assertIn("FAILED a/bad: 2 case(s) failed", done.stdout)
            self.assertIn("FAILED b/crash", done.stdout)
            self.assertRegex(done.stdout, r"slowest: [ab]/\w+ \d+ s, [ab]/\w+ \d+ s, [ab]/\w+ \d+ s\n")
            done = subprocess.run([*command, "--suite", "b"], capture_output=True, text=True, check=False)
            self.assertEqual(done.stdout.splitlines()[-1], "0 passed, 1 failed, 0 skipped")
            done = subprocess.run([*command, "--suite", "none"], capture_output=True, text=True, check=False)
            self.assertEqual(done.stdout.splitlines()[-1], "0 passed, 1 failed, 0 skipped")
            self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    harness.main(needs_program=False)
