#!/usr/bin/env python3
"""Goal: what `meson install` puts down works away from the source tree: program, manual page, completion. (The library
is the subject of tests/library.) Method: install into a temporary folder."""
import re
import subprocess
import unittest

import harness
from harness import BUILD, folder

class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.root = cls.folder.__enter__()
        done = subprocess.run(["meson", "install", "-C", str(BUILD), "--no-rebuild", "--destdir", str(cls.root)],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        cls.files = sorted(path.relative_to(cls.root) for path in cls.root.rglob("*") if not path.is_dir())

    @classmethod
    def tearDownClass(cls):
        cls.folder.__exit__(None, None, None)

    def find(self, pattern):
        found = [path for path in self.files if re.search(pattern, str(path))]
        self.assertEqual(len(found), 1, f"{pattern}: {found} of {[str(path) for path in self.files]}")
        return self.root / found[0]

    def test_program(self):
        program = self.find(r"bin/evenkeel$")
        done = subprocess.run([program, "version"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_manual_page(self):
        page = self.find(r"share/man/man1/evenkeel\.1$")
        self.assertIn(".Nm evenkeel", page.read_text())

    def test_completion(self):
        script = self.find(r"share/bash-completion/completions/evenkeel$")
        subprocess.run(["bash", "-n", script], check=True)
        self.assertIn("complete -o default -F _evenkeel evenkeel", script.read_text())

    def test_licence(self):
        self.assertIn("Apache License", self.find(r"share/doc/evenkeel/LICENSE$").read_text())


if __name__ == "__main__":
    harness.main()
