#!/usr/bin/env python3
"""Goal: the program explains itself and refuses mistakes of spelling with one helpful line and exit code 2.
Method: the real binary, every command."""
import re
import unittest

import harness
from harness import run

COMMANDS = ["serve", "chat", "status", "experts", "models", "worker", "cluster", "manifest", "fetch", "place", "lab", "calibrate",
            "tokenize", "logits", "check", "config", "version", "completion", "help"]


class Help(unittest.TestCase):
    def test_help_lists_every_command(self):
        done = run("help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        listed = re.findall(r"^  ([a-z]+) ", done.stdout, re.MULTILINE)
        self.assertEqual(listed, COMMANDS)
        self.assertEqual(run("--help").stdout, done.stdout)
        self.assertEqual(run("-h").stdout, done.stdout)

    def test_every_command_has_help(self):
        for command in COMMANDS:
            with self.subTest(command):
                done = run(command, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertTrue(done.stdout.startswith(f"Usage: evenkeel {command}"))
                self.assertIn("-h, --help", done.stdout)
                self.assertEqual(run("help", command).stdout, done.stdout)
                self.assertEqual(run(command, "-h").stdout, done.stdout)
                for line in done.stdout.split("\n"):
                    self.assertLessEqual(len(line), 110, line)

    def test_no_command_is_a_mistake(self):
        done = run()
        self.assertEqual(done.returncode, 2)
        self.assertIn("Commands:", done.stdout)

    def test_version(self):
        done = run("version")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"^evenkeel \d+\.\d+\.\d+\nkernels: \w+\narchitectures: .*qwen2moe")
        self.assertEqual(run("--version").stdout, done.stdout)
        import json
        facts = json.loads(run("version", "--json").stdout)
        self.assertIn(facts["version"], done.stdout)
        self.assertIn("qwen3moe", facts["architectures"])

    def test_mistakes(self):
        cases = [
            (["sevre"], "evenkeel: unknown command 'sevre'; did you mean serve?\n"),
            (["frobnicate"], "evenkeel: unknown command 'frobnicate'; see evenkeel help\n"),
            (["help", "chatt"], "evenkeel: unknown command 'chatt'; did you mean chat?\n"),
            (["serve", "--lsiten", "x"], "evenkeel: serve: unknown option --lsiten; did you mean --listen?\n"),
            (["serve", "--model"], "evenkeel: serve: --model needs a value: --model PATH\n"),
            (["serve", "x.gguf"],
             "evenkeel: serve: 'x.gguf' is one operand too many; see evenkeel serve --help\n"),
            (["check"], "evenkeel: check: name the file: evenkeel check FILE\n"),
            (["config"], "evenkeel: config: say what: evenkeel config show, or config reference\n"),
            (["completion", "fish"], "evenkeel: completion: the known shell is bash: evenkeel completion bash\n"),
            (["tokenize", "--model", "x"],
             "evenkeel: tokenize: --model PATH and --text-file FILE are needed\n"),
            (["logits", "--prompt-file", "x"],
             "evenkeel: logits: --model PATH and --prompt-file FILE are needed\n"),
            (["logits", "--greedy", "many"],
             "evenkeel: logits: --greedy is 'many'; it must be a whole number from 0 to 65536\n"),
            (["logits", "--kernels", "sse"],
             "evenkeel: logits: --kernels is 'sse'; it must be auto, reference, avx2 or avx512\n"),
            (["models"], "evenkeel: models: name the file: evenkeel models FILE\n"),
            (["serve", "--set", "engine.threads"],
             "evenkeel: serve: --set engine.threads: write it as --set section.key=value\n"),
            (["experts", "bottom"], "evenkeel: experts: 'bottom' is no view; use evenkeel experts top\n"),
        ]
        for arguments, line in cases:
            with self.subTest(arguments):
                done = run(*arguments)
                self.assertEqual((done.returncode, done.stderr, done.stdout), (2, line, ""))

    def test_full_disk_is_no_success(self):
        import subprocess
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([str(harness.PROGRAM), "help"], stdout=full, stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 74)
        self.assertIn(b"writing to standard output failed", done.stderr)


class Completion(unittest.TestCase):
    def complete(self, *words):
        """What bash would offer for the last of these words."""
        import subprocess
        line = " ".join(words)
        script = ('source <("$0" completion bash); COMP_WORDS=($1 "$2"); [ -n "$2" ] || COMP_WORDS=($1 "")\n'
                  'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _evenkeel; printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "-c", script, str(harness.PROGRAM), " ".join(words[:-1]), words[-1]],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "", line)
        return done.stdout.split()

    def test_completion(self):
        self.assertEqual(self.complete("evenkeel", "to"), ["tokenize"])
        self.assertEqual(sorted(self.complete("evenkeel", "")), sorted(COMMANDS))
        self.assertEqual(self.complete("evenkeel", "serve", "--kv"), ["--kv-cache"])
        self.assertEqual(self.complete("evenkeel", "config", "sh"), ["show"])
        self.assertEqual(self.complete("evenkeel", "logits", "--kernels", "avx"), ["avx2", "avx512"])
        self.assertEqual(self.complete("evenkeel", "help", "lo"), ["logits"])


if __name__ == "__main__":
    harness.main()
