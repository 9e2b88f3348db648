#!/usr/bin/env python3
"""Goal: the container file would build: what it copies is there and is enough, its packages are those that the build needs
and that the program runs with, and its command is one that the program takes.
Method: no container engine is needed, and none is used. Files copied as it says are configured as it says; the program's
libraries are looked up in the package list; its RUN lines go through shellcheck; its command is run."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402

FILE = harness.SOURCE / "deploy/container/Containerfile"


def instructions():
    """[(word, rest)] with continued lines joined."""
    text = re.sub(r"\\\n\s*", "", FILE.read_text())
    return [tuple(line.split(" ", 1)) for line in text.split("\n") if line and not line.startswith("#")]


def stages():
    """One list of instructions for each FROM."""
    found = []
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found


def packages_of(stage):
    runs = " && ".join(rest for word, rest in stage if word == "RUN")
    match = re.search(r"apt-get install -y --no-install-recommends ([^&]*)", runs)
    return set(match.group(1).split()) if match else set()


class Container(unittest.TestCase):
    def test_debian_12_in_two_stages_without_root(self):
        build, image = stages()
        self.assertEqual((build[0][1], image[0][1]), ("docker.io/library/debian:12-slim AS build", "docker.io/library/debian:12-slim"))
        self.assertRegex(dict(image)["USER"], r"^[1-9]\d*:[1-9]\d*$")
        self.assertIn("rm -rf /var/lib/apt/lists/*", dict(image)["RUN"])

    def test_the_build_installs_what_setup_lists(self):
        # setup.sh itself is run there; its group "build" has to be what this build dir was made with.
        build = stages()[0]
        runs = [rest for word, rest in build if word == "RUN"]
        self.assertIn("apt-get update && tools/setup.sh build ", runs[0])
        copies = [rest for word, rest in build if word == "COPY"]
        self.assertEqual(copies[0], "tools/setup.sh tools/setup.sh")
        done = subprocess.run(["tools/setup.sh", "build"], cwd=harness.SOURCE, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("everything needed for 'build' is here", done.stdout)

    def test_what_is_copied_can_be_configured(self):
        build = stages()[0]
        command = next(rest for word, rest in build if word == "RUN" and "meson setup" in rest)
        setup, compile_, install = (part.split() for part in command.split(" && "))
        self.assertEqual(compile_, ["meson", "compile", "-C", "build"])
        self.assertEqual(install[:4], ["meson", "install", "-C", "build"])
        with harness.folder() as tmp:
            for word, rest in build:
                if word != "COPY":
                    continue
                *sources, target = rest.split()
                for source in sources:
                    place = tmp / (source if target == "./" else target)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    if (harness.SOURCE / source).is_dir():
                        shutil.copytree(harness.SOURCE / source, place, dirs_exist_ok=True)
                    else:
                        shutil.copy(harness.SOURCE / source, place)
            done = subprocess.run(setup, cwd=tmp, capture_output=True, text=True, check=False,
                                  env={**os.environ, "PATH": f"/usr/bin:{os.environ['PATH']}"})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            listed = subprocess.run(["meson", "introspect", "--installed", "build"], cwd=tmp, capture_output=True, text=True,
                                    check=True).stdout
            places = {str(pathlib.PurePath(install[install.index("--destdir") + 1] + place)) for place in json.loads(listed).values()}
            # Every source that the build knows was copied.
            known = subprocess.run(["ninja", "-C", "build", "-t", "inputs", "evenkeel"], cwd=tmp, capture_output=True, text=True,
                                   check=True).stdout.split()
            self.assertTrue(any(name.endswith("src/cli/main.c") for name in known))
            for name in known:
                if name.startswith("../"):
                    self.assertTrue((tmp / "build" / name).exists(), name)
        copied = next(rest for word, rest in stages()[1] if word == "COPY" and "--from=build" in rest).split()
        self.assertIn(copied[1], places)

    def test_the_image_has_what_the_program_runs_with(self):
        image = stages()[1]
        if shutil.which("dpkg-query") is None:
            print("skipped: no dpkg-query, so no packages to look libraries up in")
            self.skipTest("not Debian")
        has = packages_of(image)
        needed = subprocess.run(["readelf", "-d", harness.PROGRAM], capture_output=True, text=True, check=True).stdout
        paths = dict(re.findall(r"^\s*(\S+) => (\S+)", subprocess.run(["ldd", harness.PROGRAM], capture_output=True, text=True,
                                                                      check=True).stdout, re.MULTILINE))
        n = 0
        for library in re.findall(r"NEEDED.*\[(.*)\]", needed):
            if re.match(r"(libc|libm|libdl|libgcc_s|libpthread|lib[atu]+san|ld-linux.*)\.so", library):
                continue  # of every Debian, or of a sanitizer
            path = os.path.realpath(paths[library])
            owner = subprocess.run(["dpkg-query", "-S", path], capture_output=True, text=True, check=False).stdout.split(":")[0]
            if not owner:  # a merged /usr, where dpkg knows the other name
                owner = subprocess.run(["dpkg-query", "-S", path.removeprefix("/usr")], capture_output=True, text=True,
                                       check=True).stdout.split(":")[0]
            self.assertIn(owner, has, f"{library} is in {owner}")
            n += 1
        self.assertGreater(n, 5)
        # Loaded only when they are asked for.
        self.assertLessEqual({"libucx0", "libopenblas0-pthread", "ca-certificates"}, has)

    def test_runs_are_good_shell(self):
        if shutil.which("shellcheck") is None:
            print("skipped: shellcheck is not installed")
            self.skipTest("no shellcheck")
        script = "#!/bin/sh\nset -e\n" + "\n".join(rest for word, rest in instructions() if word == "RUN") + "\n"
        done = subprocess.run(["shellcheck", "-"], input=script, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_its_command_serves(self):
        image = dict(stages()[1])
        copied = {rest.split()[-1]: rest.split()[-2] for word, rest in stages()[1] if word == "COPY"}
        self.assertEqual(json.loads(image["ENTRYPOINT"]), ["/usr/bin/evenkeel"])
        self.assertIn("/usr/bin/evenkeel", copied)
        words = [str(harness.SOURCE / copied[word]) if word in copied else word for word in json.loads(image["CMD"])]
        self.assertTrue(pathlib.Path(words[2]).exists())
        done = harness.run(*words, "--check")
        self.assertEqual((done.returncode, done.stdout), (0, "configuration and model are fit to be served\n"), done.stderr)
        ports = {int(word.rsplit(":", 1)[1]) for word in words if re.fullmatch(r"0\.0\.0\.0:\d+", word)}
        self.assertLessEqual(ports, {int(port) for port in image["EXPOSE"].split()})


if __name__ == "__main__":
    harness.main()
