#!/usr/bin/env python3
"""Prove that the rooms of src/ include each other only along the arrows of tools/rooms.py.

    tools/check_layers.py              the #include lines of every file
    tools/check_layers.py BUILD_DIR    besides, the symbols that each room's library really takes from others
    tools/check_layers.py --self-test  the check finds what it is there to find

An include shows what a file reads; an undefined symbol shows what it calls, however it got the declaration. Both
have to follow the arrows. System headers are rationed by room in the same table.
"""
import collections
import pathlib
import re
import subprocess
import sys

import rooms

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)


def include_problem(room, header, quoted):
    """Why `room` may not include `header`; None when it may."""
    if not quoted:
        allowed = rooms.HEADERS.get(room, set())
        if header in rooms.HEADERS_FREE or header in allowed or "*" in allowed:
            return None
        return f"system header <{header}> is not for {room} (tools/rooms.py, HEADERS)"
    parts = pathlib.PurePosixPath(header).parts
    if len(parts) < 2 or ".." in parts:
        return f'"{header}": write the path from src/, room first'
    target = parts[0]
    if target not in rooms.ARROWS:
        return f'"{header}": {target} is no room'
    if target in (room, "base"):
        return None
    if room == rooms.PARAMS_ROOM and parts[-1] == rooms.PARAMS_HEADER:
        return None
    if target not in rooms.ARROWS[room]:
        return f'"{header}": no arrow leads from {room} to {target}'
    doors = rooms.DOORS.get((target, room))
    if doors and header not in doors:
        return f'"{header}": {room} knows {target} only through {", ".join(doors)}'
    return None


def check_file(room, path, text):
    problems = []
    if room not in rooms.ARROWS:
        return [f"{path}: lies in no room of tools/rooms.py"]
    for match in INCLUDE.finditer(text):
        problem = include_problem(room, match.group(2), match.group(1) == '"')
        if problem:
            line = text.count("\n", 0, match.start()) + 1
            problems.append(f"{path}:{line}: {problem}")
    return problems


def check_includes():
    problems, n_files = [], 0
    for room, path in rooms.sources():
        n_files += 1
        problems += check_file(room, path.relative_to(rooms.ROOT), path.read_text())
    return problems, n_files


def check_cycles():
    """The table itself must be a hierarchy."""
    done = set()
    open_rooms = dict(rooms.ARROWS)
    while True:
        ready = [room for room, targets in open_rooms.items() if set(targets) <= done]
        if not ready:
            break
        for room in ready:
            done.add(room)
            del open_rooms[room]
    return [f"tools/rooms.py: {', '.join(sorted(open_rooms))} include each other in a circle"] if open_rooms else []


def nm_symbols(archive, flag):
    """symbol -> member of an archive's defined or undefined external symbols."""
    out = subprocess.run(["nm", "-A", "-P", flag, "--extern-only", str(archive)], capture_output=True, text=True,
                         check=True)
    found = {}
    for line in out.stdout.splitlines():  # "archive[member]: symbol type ..."
        place, _, rest = line.partition(": ")
        found.setdefault(rest.split()[0], place[place.index("[") + 1:-1])
    return found


def room_archives(build_dir):
    """room -> its static libraries (kernels has one per instruction set)."""
    archives = collections.defaultdict(list)
    for archive in sorted(pathlib.Path(build_dir, "src").rglob("libek_*.a")):
        archives[archive.relative_to(pathlib.Path(build_dir, "src")).parts[0]].append(archive)
    return archives


def check_symbols(build_dir):
    archives = room_archives(build_dir)
    home = {}
    for room, files in archives.items():
        for archive in files:
            for symbol in nm_symbols(archive, "--defined-only"):
                home[symbol] = room
    problems = []
    for room, files in archives.items():
        allowed = set(rooms.ARROWS.get(room, ())) | {"base", room}
        for archive in files:
            for symbol, member in nm_symbols(archive, "--undefined-only").items():
                target = home.get(symbol)
                if target and target not in allowed:
                    problems.append(f"{archive.name}({member}): calls {symbol} of {target}; no arrow leads there")
    return problems, len(archives)


def self_test():
    """Each kind of breach must be found, and what is allowed must pass."""
    breaches = {
        ("route", '#include "engine/engine.h"\n'): "no arrow leads from route to engine",
        ("engine", '#include "gateway/gateway.h"\n'): "no arrow leads from engine to gateway",
        ("engine", '#include "link/wire.h"\n'): "no arrow leads from engine to link",
        ("gateway", '#include "engine/kv.h"\n'): "only through engine/engine.h",
        ("gateway", '  #  include   "config/config.h"\n'): "no arrow leads from gateway to config",
        ("gateway", "#include <microhttpd.h>\n"): "system header <microhttpd.h> is not for gateway",
        ("http", '#include "gateway/call.h"\n'): "no arrow leads from http to gateway",
        ("http", '#include "engine/engine.h"\n'): "no arrow leads from http to engine",
        ("config", '#include "engine/engine.h"\n'): "no arrow leads from config to engine",
        ("route", "#include <pthread.h>\n"): "system header <pthread.h> is not for route",
        ("sched", "#include <stdio.h>\n"): "system header <stdio.h> is not for sched",
        ("model", '#include "../quant/types.h"\n'): "write the path from src/",
        ("model", '#include "gguf.h"\n'): "write the path from src/",
        ("base", '#include "attic/old.h"\n'): "attic is no room",
        ("attic", "int x;\n"): "lies in no room",
    }
    for (room, text), wanted in breaches.items():
        found = check_file(room, f"src/{room}/x.c", text)
        if len(found) != 1 or wanted not in found[0]:
            return f"self-test: {text!r} in {room} gave {found}, wanted '{wanted}'"
    for room, text in (("engine", '#include "expert/dispatch.h"\n#include "base/err.h"\n#include <math.h>\n'),
                       ("config", '#include "engine/params.h"\n#include "sys/file.h"\n'),
                       ("gateway", '#include "engine/engine.h"\n#include "http/exchange.h"\n'),
                       ("sys", "#include <sys/mman.h>\n")):
        found = check_file(room, f"src/{room}/x.c", text)
        if found:
            return f"self-test: {text!r} in {room} is allowed, yet gave {found}"
    return None


def main():
    arguments = sys.argv[1:]
    failure = self_test()
    if failure:
        print(failure)
        return 1
    if arguments == ["--self-test"]:
        print("layers: the self-test finds every kind of breach")
        return 0
    problems, n_files = check_includes()
    problems += check_cycles()
    said = f"{n_files} files"
    if arguments:
        more, n_rooms = check_symbols(arguments[0])
        problems += more
        said += f" and the symbols of {n_rooms} rooms"
        if n_rooms == 0:
            problems.append(f"{arguments[0]}: no libraries of rooms there; build first")
    if n_files == 0:
        problems.append("src/ is empty")
    print("\n".join(problems) if problems else f"layers: {said} follow the arrows")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
