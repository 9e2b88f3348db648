#!/usr/bin/env python3
"""Hold the documents against the program: what they say is done here and compared.

    tools/check_docs.py BUILD_DIR
    tools/check_docs.py --self-test

- Fenced blocks marked `sh run` are run, in order, in one shell per file, with the bundled model served at the default
  address (another port stands in for it and for each other one, as another folder may stand in for build/ and does for
  /tmp/); one that is followed by a block marked `text output` has to print that. What they leave running is ended.
  In the expected text `...` stands for anything, within a line or as a line of its own for any number of lines.
- Links to files lead somewhere, and their #anchors are headings there.
- docs/CONFIG.md is what `evenkeel config reference` prints.
- The manual page names the commands and options that --help does, and no others, and renders without a warning.
- Every [key] that a command's help names is a configuration key.
- The table of rooms in docs/ARCHITECTURE.md is the one of tools/rooms.py.
- Every ADR is listed in docs/ARCHITECTURE.md; every make target that a document names exists.
"""
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile

import rooms

ROOT = rooms.ROOT
SECONDS_PER_FILE = 300


def documents():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in listed if name and (ROOT / name).exists()]


# ---- fenced blocks ----

def blocks(text):
    """(info string, content, line) of each fenced block."""
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield match.group(1).strip(), match.group(2), text.count("\n", 0, match.start()) + 1


def output_pattern(expected):
    """A regular expression for expected output with `...` in it."""
    parts = []
    for line in expected.rstrip("\n").split("\n"):
        if line.strip() == "...":
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            parts.append(".*?".join(re.escape(piece) for piece in line.split("...")) + r"\n")
    return re.compile("".join(parts) + r"\Z")


def output_matches(expected, found):
    text = re.sub(r"[ \t]+\n", "\n", found.rstrip("\n") + "\n")
    return output_pattern(re.sub(r"[ \t]+\n", "\n", expected)).match(text) is not None


DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_PROGRAM = "build/evenkeel"


def run_shell(script, env):
    """(output, errors) of a shell script; what it started and left behind ends with it."""
    process = subprocess.Popen(["bash", "-c", script], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        return process.communicate(timeout=SECONDS_PER_FILE)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it left nothing
        process.wait()


def free_ports(text):
    """(written, free) for each port of this machine that a document's text names."""
    ports = sorted(set(re.findall(r"(?<=\b127\.0\.0\.1:)[1-9]\d{3,4}\b", text)))
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in ports]  # all at once, so that they differ
    found = [(f"127.0.0.1:{port}", "127.0.0.1:%d" % s.getsockname()[1]) for port, s in zip(ports, sockets)]
    for s in sockets:
        s.close()
    return found


def run_blocks(path, text, env, stand_ins=()):
    """Run a document's marked blocks in one shell, so that later ones build on earlier ones."""
    for written, meant in stand_ins:
        text = text.replace(written, meant)
    for written, meant in free_ports(text):
        if not any(meant_before.endswith(written) for _, meant_before in stand_ins):
            text = text.replace(written, meant)
    problems = []
    marked = list(blocks(text))
    steps = []
    for index, (info, content, line) in enumerate(marked):
        if info != "sh run":
            continue
        follower = marked[index + 1] if index + 1 < len(marked) else ("", "", 0)
        steps.append((content, line, follower[1] if follower[0] == "text output" else None))
    if not steps:
        return problems, 0
    mark = "=-=-=-= block"
    script = "set -e\n" + "".join(f"{content}\necho; echo '{mark} {line}'\n" for content, line, _ in steps)
    with tempfile.TemporaryDirectory() as folder:
        output, errors = run_shell(script.replace("/tmp/", f"{folder}/"), {**env, "TMPDIR": folder})
    output = output.replace(f"{folder}/", "/tmp/")
    rest = output
    for content, line, expected in steps:
        found, reached, rest = rest.partition(f"\n{mark} {line}\n")
        if not reached:
            problems.append(f"{path}:{line}: failed: {content.strip()}\n{output[-500:]}{errors[-1500:]}")
            break
        if expected is not None and not output_matches(expected, found):
            problems.append(f"{path}:{line}: prints\n{found}\ninstead of\n{expected}")
    return problems, len(steps)


class Server:
    """The bundled model on a free port, for the documents' commands."""

    def __init__(self, program, model):
        self.process = subprocess.Popen(
            [program, "serve", "--model", model, "--listen", "127.0.0.1:0", "--log-level", "error", "--set",
             "gateway.drain_settle=0s"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        match = re.search(r" on (http://\S+):", line)
        if not match:
            self.process.kill()
            raise RuntimeError(f"serve said {line!r}")
        self.url = match.group(1)

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()


def check_blocks(build_dir):
    program = build_dir.resolve() / "evenkeel"
    server = Server(program, ROOT / "models/evenkeel-demo.gguf")
    env = {**os.environ, "PATH": f"{build_dir.resolve()}:{os.environ['PATH']}", "EVENKEEL_URL": server.url}
    stand_ins = ((DEFAULT_URL, server.url), (DEFAULT_PROGRAM, str(program)))
    problems, n = [], 0
    try:
        for path in documents():
            more, n_run = run_blocks(path.relative_to(ROOT), path.read_text(), env, stand_ins)
            problems += more
            n += n_run
    finally:
        server.stop()
    return problems, n


# ---- links ----

def anchor(heading):
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")


def without_code(text):
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(path):
    return {anchor(match) for match in re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)}


def link_problems(path, text):
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            yield f"{path.relative_to(ROOT)}: {target} leads nowhere"
        elif fragment and file.suffix == ".md" and fragment not in anchors(file):
            yield f"{path.relative_to(ROOT)}: {target}: no such heading"


# ---- program against pages ----

def help_of(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout


def options_in_help(text):
    return set(re.findall(r"^  --([a-z-]+)", text, re.MULTILINE))


def manual_sections(page):
    """command -> options of its subsection."""
    parts = re.split(r"^\.Ss (\w+)$", page.split(".Sh ENVIRONMENT")[0], flags=re.MULTILINE)
    return {name: set(re.findall(r"^\.It Fl -([a-z-]+)", body, re.MULTILINE))
            for name, body in zip(parts[1::2], parts[2::2])}


def check_manual(program):
    commands = re.findall(r"^  ([a-z]+) ", help_of(program, "help"), re.MULTILINE)
    manual = manual_sections((ROOT / "docs/evenkeel.1").read_text())
    problems = [f"docs/evenkeel.1: {name} is no command" for name in manual if name not in commands]
    for name in commands:
        if name not in manual:
            problems.append(f"docs/evenkeel.1: {name} is missing")
            continue
        known = options_in_help(help_of(program, name, "--help"))
        problems += [f"docs/evenkeel.1: {name} --{option} is missing" for option in sorted(known - manual[name])]
        problems += [f"docs/evenkeel.1: {name} --{option} is no option" for option in sorted(manual[name] - known)]
    return problems


def check_rendering():
    done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", "docs/evenkeel.1"], cwd=ROOT, text=True,
                          env={**os.environ, "LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANWIDTH": "80"}, check=False,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return [f"docs/evenkeel.1: {line}" for line in done.stderr.splitlines()]


def keys_in_reference(page):
    """Every section.key of docs/CONFIG.md."""
    parts = re.split(r"^## (\w+)$", page, flags=re.MULTILINE)
    return {f"{section}.{key}" for section, body in zip(parts[1::2], parts[2::2])
            for key in re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE)}


def check_keys(program):
    known = keys_in_reference((ROOT / "docs/CONFIG.md").read_text())
    named = set(re.findall(r"\[(\w+\.\w+)\]$", help_of(program, "serve", "--help"), re.MULTILINE))
    return [f"evenkeel serve --help: {key} is no key of docs/CONFIG.md" for key in sorted(named - known)] + (
        [] if named else ["evenkeel serve --help: names no key"])


def check_config(program):
    page = (ROOT / "docs/CONFIG.md").read_text()
    return [] if page == help_of(program, "config", "reference") else [
        "docs/CONFIG.md: is not what `evenkeel config reference` prints; run make docs"]


def rooms_in_table(page):
    """room -> rooms it may include, from rows of the form | `room` | holds | includes | touches |."""
    table = {}
    for name, included in re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|[^|]*\|$", page, re.MULTILINE):
        table[name] = set(re.findall(r"\w+", included)) if "every" not in included else None
    return table


def check_rooms():
    page = (ROOT / "docs/ARCHITECTURE.md").read_text()
    table, problems = rooms_in_table(page), []
    present = {room for room, _ in rooms.sources() if room}
    for room in sorted(present):
        if room not in table:
            problems.append(f"docs/ARCHITECTURE.md: the table lacks {room}")
        elif table[room] is not None and not table[room] <= set(rooms.ARROWS[room]) | {"params"}:
            problems.append(f"docs/ARCHITECTURE.md: {room} includes {sorted(table[room])}, tools/rooms.py says "
                            f"{sorted(rooms.ARROWS[room])}")
        elif table[room] is not None and not {r for r in rooms.ARROWS[room] if r in present} <= table[room]:
            problems.append(f"docs/ARCHITECTURE.md: {room} may also include "
                            f"{sorted(set(rooms.ARROWS[room]) & present - table[room])}")
    problems += [f"docs/ARCHITECTURE.md: {name} is not listed" for name in
                 sorted(path.name for path in (ROOT / "docs/adr").glob("*.md")) if name not in page]
    return problems


def check_targets():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)) | {"setup-test"}
    problems = []
    for path in documents():
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", path.read_text(), re.MULTILINE):
            if target not in targets:
                problems.append(f"{path.relative_to(ROOT)}: make {target} does not exist")
    return problems


def self_test():
    expect = lambda condition, what: None if condition else what
    page = "```sh run\necho one; echo 22\n```\n```text output\none\n...2\n```\n```sh\nfalse\n```\n```sh run\nfalse\n```\n"
    problems, n = run_blocks(pathlib.Path("x.md"), page, dict(os.environ))
    wrong, _ = run_blocks(pathlib.Path("x.md"), "```sh run\necho a\n```\n```text output\nb\n```\n", dict(os.environ))
    links = list(link_problems(ROOT / "README.md", "[a](no/such.md) `[c](d)` [b](https://x.y) [e](LICENSE) [f](#no-such)"))
    checks = [
        expect(n == 2 and len(problems) == 1 and "false" in problems[0], f"blocks: {problems}"),
        expect(len(wrong) == 1 and "instead of" in wrong[0], f"output: {wrong}"),
        expect(output_matches("a\n...\nz", "a\n1\n2\nz\n") and output_matches("a\n...\nz", "a\nz"), "any lines"),
        expect(not output_matches("a\nz", "a\n1\nz\n"), "exact lines"),
        expect(len(links) == 2, f"links: {links}"),
        expect(manual_sections(".Ss run\n.It Fl -one Ar x\n.Ss go\n.Sh ENVIRONMENT\n.It Fl -no\n") ==
               {"run": {"one"}, "go": set()}, "manual"),
        expect(rooms_in_table("| `a` | x | b c | y |\n| `b` | x | - | y |\n") == {"a": {"b", "c"}, "b": set()}, "rooms"),
        expect(keys_in_reference("# x\n## a\n| key | v |\n| `b` | 1 |\n## c\n| `d` | 2 |\n") == {"a.b", "c.d"}, "keys"),
        expect(anchor("What `it` is, and *why*") == "what-it-is-and-why", "anchors"),
    ]
    failed = [what for what in checks if what]
    return "self-test: " + "; ".join(failed) if failed else None


def main():
    failure = self_test()
    if failure:
        print(failure)
        return 1
    if sys.argv[1:] == ["--self-test"]:
        print("docs: the self-test finds every kind of mistake")
        return 0
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    build_dir = pathlib.Path(sys.argv[1])
    program = build_dir / "evenkeel"
    problems = []
    for path in documents():
        problems += link_problems(path, path.read_text())
    problems += check_manual(program)
    problems += check_rendering()
    problems += check_keys(program)
    problems += check_config(program)
    problems += check_rooms()
    problems += check_targets()
    more, n_blocks = check_blocks(build_dir)
    problems += more
    print("\n".join(problems) if problems else
          f"docs: {len(documents())} pages agree with the program; {n_blocks} of their commands ran")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
