#!/usr/bin/env python3
"""Prove from the object files that pure rooms are pure and that no room keeps mutable globals.

    tools/check_purity.py BUILD_DIR
    tools/check_purity.py --self-test

Pure rooms may call each other, base, and a short list of the C library that depends on its arguments only
(tools/rooms.py, PURE_CALLS): no clock, files, threads or heap. In every room, .data and .bss hold nothing but what
STATE_ALLOWED names, so that all state has an owner that somebody passes around.
"""
import fnmatch
import pathlib
import re
import subprocess
import sys
import tempfile

import check_layers
import rooms

# Symbols that may be in .data or .bss, by room ("*": every room), each with its reason.
STATE_ALLOWED = {
    # A log call site's own counters (sys/log.h): rate limiting has to live where the line is written.
    ("*", "ek_site_.*"),
    # The log is the one object that everything may write to without being handed it.
    ("sys", "log_state"),
    # The CPUs that the process was given at its start, read once before any thread can be pinned.
    ("sys", "start_mask*"),
}
SECTION = re.compile(r"^[0-9a-f]+\s+(.)(.{6})\s+(\S+)\s+([0-9a-f]+)\s+(?:\.hidden\s+)?(\S+)$")


def call_allowed(room, symbol):
    if symbol.startswith("ek_") or symbol in rooms.PURE_CALLS:
        return True
    return any(fnmatch.fnmatchcase(symbol, pattern) for pattern in rooms.PURE_CALLS_BY_ROOM.get(room, ()))


def impure_calls(room, archive):
    return [f"{archive.name}({member}): calls {symbol}, which {room} may not (tools/rooms.py, PURE_CALLS)"
            for symbol, member in check_layers.nm_symbols(archive, "--undefined-only").items()
            if not call_allowed(room, symbol)]


def state_allowed(room, symbol):
    return any(where in ("*", room) and fnmatch.fnmatchcase(symbol, pattern) for where, pattern in STATE_ALLOWED)


def mutable_globals(room, archive):
    """Objects in sections that are writable while the program runs (.data.rel.ro is not)."""
    out = subprocess.run(["objdump", "-t", str(archive)], capture_output=True, text=True, check=True)
    problems = []
    for line in out.stdout.splitlines():
        match = SECTION.match(line)
        if not match:
            continue
        section, size, symbol = match.group(3), int(match.group(4), 16), match.group(5)
        writable = section in ("*COM*",) or re.match(r"\.(data|bss|tdata|tbss)\b", section)
        if not writable or section.startswith(".data.rel.ro") or size == 0 or symbol.startswith("."):
            continue
        if not state_allowed(room, symbol):
            problems.append(f"{archive.name}: {symbol} is mutable state in {section}; pass it to whoever needs it")
    return problems


def check(build_dir):
    problems = []
    archives = check_layers.room_archives(build_dir)
    for room, files in archives.items():
        for archive in files:
            if room in rooms.PURE:
                problems += impure_calls(room, archive)
            problems += mutable_globals(room, archive)
    return problems, archives


SELF_TEST_SOURCE = """
#include <stdio.h>
#include <time.h>
static int calls;
_Thread_local int per_thread;
int common = 3;
const char *const names[] = {"a", "b"};
static const int fixed = 7;
long impure(int n);
long impure(int n)
{
    static long ek_site_;
    calls += n + fixed;
    per_thread++;
    ek_site_++;
    puts(names[n & 1]);
    return calls + time(0) + ek_site_ + common + per_thread;
}
"""


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        source, built = pathlib.Path(folder, "x.c"), pathlib.Path(folder, "x.o")
        archive = pathlib.Path(folder, "libek_route.a")
        source.write_text(SELF_TEST_SOURCE)
        subprocess.run(["cc", "-c", "-fPIC", "-O0", str(source), "-o", str(built)], check=True)
        subprocess.run(["ar", "rc", str(archive), str(built)], check=True, capture_output=True)
        calls = impure_calls("route", archive)
        state = mutable_globals("route", archive)
    found = {re.search(r"(?:calls|: ) ?(\w+)(?:,| is mutable)", problem).group(1) for problem in calls + state}
    wanted = {"puts", "time", "calls", "per_thread", "common"}
    found.discard("__tls_get_addr")
    return None if found == wanted else f"self-test: found {sorted(found)}, wanted {sorted(wanted)}"


def main():
    failure = self_test()
    if failure:
        print(failure)
        return 1
    if sys.argv[1:] == ["--self-test"]:
        print("purity: the self-test finds every kind of breach")
        return 0
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    problems, archives = check(sys.argv[1])
    pure = sorted(set(rooms.PURE) & set(archives))
    if not pure:
        problems.append(f"{sys.argv[1]}: no libraries of rooms there; build first")
    print("\n".join(problems) if problems else
          f"purity: {', '.join(pure)} are pure; {len(archives)} rooms keep no mutable globals")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
