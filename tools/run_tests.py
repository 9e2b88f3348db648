#!/usr/bin/env python3
"""Run the tests of a build directory and say in one last line how many cases passed, failed, were skipped.

    tools/run_tests.py BUILD_DIR [--suite ROOM]... [--counts FILE] [--timeout-multiplier N]

Meson counts executables; people count cases. Each executable prints cmocka's summary lines ("[  PASSED  ] 5
test(s)."), which are added up here from meson's own record of the run. An executable that crashes, times out or
ends with an error without naming a failed case counts as one failure; one that ran no case at all is a failure too,
and so is a run without any test. Exit code 0 only when nothing failed.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

PASSED = re.compile(r"\[  PASSED  \] (\d+) test\(s\)")
FAILED = re.compile(r"\[  FAILED  \] (\d+) test\(s\), listed below")
SKIPPED = re.compile(r"\[  SKIPPED \] (\d+) test\(s\), listed below")
CORPUS = re.compile(r"\[  PASSED  \] (\d+) corpus file\(s\)")
EVERYDAY = re.compile(r"^\[       OK \]| level=(info|debug) | \.\.\. ok$")
OUTPUT_LINES_SHOWN = 80
OUTPUT_COLUMNS_SHOWN = 300
SLOWEST_SHOWN = 12


class Counts:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def line(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def count_executable(record):
    """The cases of one executable, and why it counts as failed if it does (else None)."""
    text = (record.get("stdout") or "") + "\n" + (record.get("stderr") or "")
    total = lambda pattern: sum(int(n) for n in pattern.findall(text))
    counts = Counts(total(PASSED), total(FAILED), total(SKIPPED))
    result = record["result"]
    if result == "SKIP":
        counts.skipped = max(counts.skipped, 1)
        return counts, None
    if result in ("OK", "EXPECTEDFAIL"):
        if total(CORPUS) > 0:
            counts.passed += 1  # a whole corpus is one case
        if counts.passed + counts.skipped == 0:
            counts.failed += 1
            return counts, "ran no test case"
        if counts.failed:
            return counts, "names failed cases, yet ended well"
        return counts, None
    if counts.failed == 0:
        counts.failed = 1
        return counts, {"TIMEOUT": "timed out"}.get(result, f"ended with {record.get('returncode')}")
    return counts, f"{counts.failed} case(s) failed"


def skip_reasons(record):
    """What each skipped case printed between its start and its skip, so that nothing is left out without a word."""
    text = (record.get("stdout") or "") + (record.get("stderr") or "")
    reasons, said = [], None  # said: what the case that runs has printed; None between cases
    for line in text.splitlines():
        if line.startswith("[ RUN"):
            said = []
        elif line.startswith("[  SKIPPED ]") and "listed below" not in line:
            reasons += said[-1:] if said else []
            said = None
        elif line.startswith("skipped: "):
            reasons.append(line[len("skipped: "):])
        elif said is not None and line.strip() and not line.startswith("["):
            said.append(line.strip())
    return reasons


def telling_lines(record):
    """A failed executable's output without what went well and without the program's own everyday log."""
    output = ((record.get("stdout") or "") + "\n" + (record.get("stderr") or "")).splitlines()
    return [line for line in output if line.strip() and not EVERYDAY.search(line)]


def short_name(record):
    return record["name"].split(":")[-1].split(" / ")[-1]


def slowest(records):
    """Where the time went, for whoever wants the run to be shorter."""
    longest = sorted(records, key=lambda record: -record.get("duration", 0))[:SLOWEST_SHOWN]
    return "slowest: " + ", ".join(f"{short_name(r)} {r.get('duration', 0):.0f} s" for r in longest)


def report(records):
    total = Counts()
    for record in records:
        name = short_name(record)
        counts, problem = count_executable(record)
        total.add(counts)
        if problem:
            print(f"FAILED {name}: {problem}")
            for line in telling_lines(record)[-OUTPUT_LINES_SHOWN:]:
                print("    " + line[:OUTPUT_COLUMNS_SHOWN])
        elif counts.skipped:
            reasons = skip_reasons(record) or ["no reason given"]
            print(f"skipped {counts.skipped} of {name}: {'; '.join(sorted(set(reasons)))}")
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build_dir", type=pathlib.Path)
    parser.add_argument("--suite", action="append", default=[])
    parser.add_argument("--counts", type=pathlib.Path, help="also write the last line to this file")
    parser.add_argument("--timeout-multiplier", default="1")
    args = parser.parse_args()

    log = args.build_dir / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    command = ["meson", "test", "-C", str(args.build_dir), "--no-rebuild", "--quiet",
               "--timeout-multiplier", args.timeout_multiplier]
    listed = subprocess.run(["meson", "test", "-C", str(args.build_dir), "--no-rebuild", "--list"],
                            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wanted = []
    if args.suite:
        wanted = [line.split(" / ")[-1].split(":")[-1].strip() for line in listed.stdout.splitlines()
                  if any(f"{suite}/" in line for suite in args.suite)]
        if not wanted:
            print(f"no tests in {', '.join(args.suite)}")
    if wanted or not args.suite:
        run = subprocess.run(command + wanted, stdin=subprocess.DEVNULL, check=False, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if not log.exists():
            print(run.stdout.strip())
    records = []
    if log.exists():
        records = [json.loads(line) for line in log.read_text().splitlines() if line.strip()]
    total = report(records)
    if records:
        print(slowest(records))
    if total.passed + total.failed == 0:
        print("no test ran")
        total.failed += 1
    print(total.line())
    if args.counts:
        args.counts.write_text(total.line() + "\n")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
