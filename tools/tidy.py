#!/usr/bin/env python3
"""House rules that no compiler checks (docs/STYLE.md): sizes, banned calls, headers, names, dead files.

    tools/tidy.py BUILD_DIR      check the tree; BUILD_DIR gives symbols and the list of compiled files
    tools/tidy.py --self-test

A breach that has a good reason stands in tools/tidy_exceptions.txt, one line "rule place  # reason". The list may only
shrink: an entry that is no longer needed is a breach itself, and EXCEPTIONS_MAX below is lowered with each one that goes.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import check_layers
import rooms

EXCEPTIONS_MAX = 2

FILE_LINES_MAX = 800
HEADER_LINES_MAX = 250
LINE_COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
KERNEL_LINES_MAX = 150

BANNED = {
    "strcpy": "no bound; use a counted copy",
    "strcat": "no bound; use a counted copy",
    "sprintf": "no bound; use snprintf",
    "vsprintf": "no bound; use vsnprintf",
    "gets": "no bound",
    "strtok": "hidden state; use ek_str",
    "atoi": "cannot fail; use strtol and look at the rest",
    "atol": "cannot fail; use strtol and look at the rest",
    "atof": "cannot fail; use strtod and look at the rest",
    "rand": "hidden state; use ek_rng",
    "srand": "hidden state; use ek_rng",
    "alloca": "unbounded stack",
    "setjmp": "skips clean-up",
    "longjmp": "skips clean-up",
    "assert": "use ek_assert, which is always on",
    "exit": "only main leaves, by returning",
    "system": "runs a shell",
}
HEAP = ("malloc", "calloc", "realloc", "free", "aligned_alloc", "posix_memalign", "strdup", "strndup", "mmap", "munmap")
# Tests and benchmarks are programs of their own: they may leave, and take their memory from the heap.
ONLY_IN_SRC = ("exit", *HEAP)


def without_comments(text):
    """The text with comments and string contents blanked, line structure kept."""
    def blank(match):
        token = match.group(0)
        if token[0] in "\"'":
            return token[0] + " " * (len(token) - 2) + token[-1]
        return re.sub(r"[^\n]", " ", token)
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.DOTALL)


def functions(code):
    """(name, first line, lines) of each function body: its braces stand alone in column 0 (the formatter's doing)."""
    lines = code.split("\n")
    start, name = None, ""
    for number, line in enumerate(lines, 1):
        if line == "{" and start is None:
            head = " ".join(lines[max(0, number - 8):number - 1])
            names = re.findall(r"(\w+)\s*\((?=[^()]*(?:\([^()]*\)[^()]*)*\)\s*$)", head)
            start, name = number, names[-1] if names else "?"
        elif line.startswith("}") and start is not None:
            yield name, start, number - start + 1
            start = None


def is_code(path):
    """Headers of kernels/x86 are pieces of one translation unit per instruction set: code that is included, not
    declarations. Those named *_body.h are included several times, with other macros each time."""
    return path.parts[:3] == ("src", "kernels", "x86")


def check_text(path, text):
    """Rules that need one file only. Yields (rule, place, message)."""
    room = path.parts[1] if path.parts[0] == "src" else ""
    lines = text.split("\n")
    code = without_comments(text)
    if len(lines) - 1 > FILE_LINES_MAX:
        yield "file-size", f"{path}", f"{len(lines) - 1} lines, at most {FILE_LINES_MAX}"
    if path.suffix == ".h" and not is_code(path) and len(lines) - 1 > HEADER_LINES_MAX:
        yield "header-size", f"{path}", f"{len(lines) - 1} lines, at most {HEADER_LINES_MAX}"
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_COLUMNS_MAX:
            yield "line-length", f"{path}:{number}", f"{len(line)} columns, at most {LINE_COLUMNS_MAX}"
        if re.search(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))", line):
            yield "todo", f"{path}:{number}", "a TODO carries an issue number: TODO(#12)"
    limit = KERNEL_LINES_MAX if room == "kernels" else FUNCTION_LINES_MAX
    for name, number, length in functions(code):
        if length > limit:
            yield "function-size", f"{path}:{name}", f"{length} lines, at most {limit}"
    for match in re.finditer(r"(?<![\w.>])(\w+)\s*\(", code):
        name = match.group(1)
        number = code.count("\n", 0, match.start()) + 1
        if name in ONLY_IN_SRC and room in ("", "sys"):
            continue
        if name in BANNED:
            yield "banned-call", f"{path}:{name}", f"line {number}: {BANNED[name]}"
        elif name in HEAP:
            yield "heap", f"{path}:{name}", f"line {number}: memory comes from sys/mem.h or an arena"
    if path.suffix == ".h" and path.parts[0] == "src":
        yield from check_header(path, text, code)


def check_header(path, text, code):
    guard = "EK_" + re.sub(r"\W", "_", str(path.relative_to("src"))).upper()
    if f"#ifndef {guard}\n#define {guard}\n" not in text and not path.name.endswith("_body.h"):
        yield "guard", f"{path}", f"the include guard is {guard}"
    if not text.startswith("/*"):
        yield "docstring", f"{path}", "begins with what it is, who owns what, which thread"
    # Prototypes of fallible functions say what they return.
    for match in re.finditer(r"^EK_MUST (?:static inline )?ek_status\s+(\w+)\(", code, re.MULTILINE):
        above = text[:match.start()].rstrip()
        comment = above[above.rfind("/*"):] if above.endswith("*/") else ""
        if match.group(0).startswith("EK_MUST static inline"):
            continue
        # A comment over a group may speak for all of its members.
        if "@return" not in comment and " All return " not in text[:match.start()]:
            yield "docstring", f"{path}:{match.group(1)}", "its comment lacks @return with every status"


def check_build_files():
    for path in [rooms.ROOT / "Makefile", *sorted(rooms.ROOT.glob("**/meson.build"))]:
        relative = path.relative_to(rooms.ROOT)
        if relative.parts[0].startswith("build"):
            continue
        for number, line in enumerate(path.read_text().split("\n"), 1):
            if re.search(r"-ffast-math|-Ofast|-funsafe-math", line.split("#")[0]):
                yield "fast-math", f"{relative}:{number}", "changes results process-wide"


def c_files():
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.c", "*.h"], cwd=rooms.ROOT,
                         capture_output=True, text=True, check=True)
    return [pathlib.Path(name) for name in out.stdout.split("\n") if name and (rooms.ROOT / name).exists()]


def check_dead(files, build_dir):
    """Every .c is compiled by the build, every header is included by somebody."""
    compiled = set()
    for entry in json.loads((build_dir / "compile_commands.json").read_text()):
        compiled.add((pathlib.Path(entry["directory"]) / entry["file"]).resolve())
    included = set()
    for path in files:
        for match in check_layers.INCLUDE.finditer((rooms.ROOT / path).read_text()):
            included.add(pathlib.PurePosixPath(match.group(2)).name)
    for path in files:
        if path.suffix == ".c" and (rooms.ROOT / path).resolve() not in compiled:
            yield "dead-file", f"{path}", "no meson.build compiles it"
        if path.suffix == ".h" and path.name not in included and path.parts[0] != "include":
            yield "dead-file", f"{path}", "nobody includes it"


def check_symbols(build_dir):
    """What a room exports carries the room's name."""
    for room, archives in check_layers.room_archives(build_dir).items():
        prefix = "ek_" if room == "base" else f"ek_{room}_"
        for archive in archives:
            for symbol in check_layers.nm_symbols(archive, "--defined-only"):
                if not symbol.startswith(prefix):
                    yield "symbol-prefix", f"{room}:{symbol}", f"exported names of {room} begin with {prefix}"


def check_self_contained(files):
    """Every header compiles alone."""
    with tempfile.TemporaryDirectory() as folder:
        unit = pathlib.Path(folder, "unit.c")
        for path in files:
            if path.suffix != ".h" or path.parts[0] != "src" or is_code(path):
                continue
            unit.write_text(f'#include "{path.relative_to("src")}"\ntypedef int ek_not_empty;\n')
            run = subprocess.run(["cc", "-std=c17", "-D_POSIX_C_SOURCE=200809L", "-fsyntax-only", "-w",
                                  f"-I{rooms.ROOT / 'src'}", str(unit)], capture_output=True, text=True, check=False)
            if run.returncode:
                first = next((line for line in run.stderr.split("\n") if "error" in line), run.stderr[:200])
                yield "self-contained", f"{path}", first


def read_exceptions(text):
    """(rule, place) -> reason."""
    found = {}
    for line in text.split("\n"):
        entry, _, reason = line.partition("#")
        if entry.strip():
            rule, place = entry.split(None, 1)
            found[(rule, place.strip())] = reason.strip()
    return found


def apply_exceptions(breaches, exceptions, entries_max=EXCEPTIONS_MAX):
    """Breaches that no exception covers, and exceptions that cover nothing."""
    used, left = set(), []
    for rule, place, message in breaches:
        key = (rule, place)
        if key in exceptions:
            used.add(key)
        else:
            left.append(f"{place}: {message} [{rule}]")
    for key in exceptions:
        if key not in used:
            left.append(f"tools/tidy_exceptions.txt: '{' '.join(key)}' is not needed any more; remove it and lower "
                        "EXCEPTIONS_MAX")
        elif not exceptions[key]:
            left.append(f"tools/tidy_exceptions.txt: '{' '.join(key)}' has no reason behind a #")
    if len(exceptions) > entries_max:
        left.append(f"tools/tidy_exceptions.txt: {len(exceptions)} entries; the list may only shrink "
                    f"(EXCEPTIONS_MAX is {entries_max})")
    return left


def self_test():
    long_body = "void f(int a)\n{\n" + "    a++;\n" * 80 + "}\n"
    cases = {
        "function-size": ("src/route/x.c", long_body),
        "line-length": ("src/route/x.c", "int x; /* " + "x" * 100 + " */\n"),
        "file-size": ("src/route/x.c", "\n" * 801),
        "banned-call": ("src/route/x.c", "int f(void) { return atoi(z); }\n"),
        "heap": ("src/gateway/x.c", "void f(void *p) { free(p); }\n"),
        "todo": ("src/route/x.c", "/* TODO later */\n"),
        "guard": ("src/route/x.h", "/* x */\n#ifndef X_H\n#define X_H\n#endif\n"),
        "docstring": ("src/route/x.h", "/* x */\n#ifndef EK_ROUTE_X_H\n#define EK_ROUTE_X_H\n"
                                       "EK_MUST ek_status ek_route_x(int a);\n#endif\n"),
    }
    for rule, (name, text) in cases.items():
        found = {breach[0] for breach in check_text(pathlib.Path(name), text)}
        if found != {rule}:
            return f"self-test: {name} for {rule} gave {sorted(found)}"
    fine = ('/* atoi( and malloc( in a comment */\nconst char *z = "free(";\n'
            "void f(int a)\n{\n    ek_sys_free(p); x.free(p); /* TODO(#7) */\n}\n")
    found = list(check_text(pathlib.Path("src/route/x.c"), fine))
    if found:
        return f"self-test: fine text gave {found}"
    left = apply_exceptions([("heap", "a:free", "m")], {("heap", "a:free"): "", ("todo", "b:1"): "gone"}, 1)
    if len(left) != 3:
        return f"self-test: exceptions gave {left}"
    return None


def main():
    failure = self_test()
    if failure:
        print(failure)
        return 1
    if sys.argv[1:] == ["--self-test"]:
        print("tidy: the self-test finds every kind of breach")
        return 0
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    build_dir = pathlib.Path(sys.argv[1])
    files = c_files()
    breaches = []
    for path in files:
        breaches += check_text(path, (rooms.ROOT / path).read_text())
    breaches += check_build_files()
    breaches += check_dead(files, build_dir)
    breaches += check_symbols(build_dir)
    breaches += check_self_contained(files)
    exceptions = read_exceptions((rooms.ROOT / "tools/tidy_exceptions.txt").read_text())
    left = apply_exceptions(breaches, exceptions)
    print("\n".join(left) if left else f"tidy: {len(files)} files keep the house rules")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
