#!/usr/bin/env python3
"""Goal: everything that can be wrong from outside gives one line on standard error that names the place and the
remedy, and the exit code that the manual page promises. Method: the real binary against broken files,
configurations and addresses."""
import socket
import unittest

import harness
from harness import TINY, folder, run


class OneLine(unittest.TestCase):
    def fails(self, code, arguments, *parts, **options):
        done = run(*arguments, **options)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertTrue(lines[0].startswith("evenkeel: "), lines[0])
        for part in parts:
            self.assertIn(part, lines[0])
        return lines[0]


class Models(OneLine):
    def everywhere(self, code, path, *parts):
        """Each command that opens a model says the same."""
        with folder() as tmp:
            text = tmp / "text"
            text.write_text("hello")
            for arguments in (["models", path], ["tokenize", "--model", path, "--text-file", text],
                              ["logits", "--model", path, "--prompt-file", text],
                              ["serve", "--model", path, "--listen", "127.0.0.1:0", "--log-level", "error"],
                              ["serve", "--check", "--model", path]):
                with self.subTest(arguments[0]):
                    self.fails(code, arguments, str(path), *parts)

    def test_missing(self):
        self.everywhere(66, "/no/such/model.gguf", "no such file")

    def test_directory(self):
        with folder() as tmp:
            self.everywhere(66, tmp, "directory")

    def test_empty_file(self):
        with folder() as tmp:
            path = tmp / "empty.gguf"
            path.write_bytes(b"")
            self.everywhere(66, path, "empty")

    def test_not_a_model(self):
        with folder() as tmp:
            path = tmp / "text.gguf"
            path.write_bytes(b"This is no model, whatever its name says. " * 10)
            self.everywhere(65, path)

    def test_truncated(self):
        whole = TINY.read_bytes()
        with folder() as tmp:
            path = tmp / "cut.gguf"
            for size in (3, 20, 100, len(whole) // 2, len(whole) - 1):
                path.write_bytes(whole[:size])
                with self.subTest(size):
                    self.everywhere(65, path)

    def test_missing_shard(self):
        first = harness.tiny("split-00001-of-00003")
        with folder() as tmp:
            path = tmp / "tiny-split-00001-of-00003.gguf"
            path.write_bytes(first.read_bytes())
            self.fails(66, ["models", path], "00002-of-00003")

    def test_unknown_architecture(self):
        with folder() as tmp:
            path = tmp / "other.gguf"
            path.write_bytes(TINY.read_bytes().replace(b"qwen2moe", b"qwen9moe"))
            line = self.fails(65, ["models", path], "qwen9moe")
            self.assertIn("olmoe", line)

    def test_unknown_chat_format(self):
        for arguments in (["--check"], ["--listen", "127.0.0.1:0", "--log-level", "error"]):
            self.fails(78, ["serve", "--model", TINY, "--chat-format", "esperanto", *arguments], "esperanto", "chatml")

    def test_context_beyond_the_model(self):
        self.fails(78, ["serve", "--model", TINY, "--listen", "127.0.0.1:0", "--context", "1000000", "--log-level",
                        "error"], "1000000")

    def test_too_little_memory(self):
        line = self.fails(71, ["serve", "--model", TINY, "--listen", "127.0.0.1:0", "--kv-cache", "1TiB",
                               "--log-level", "error"])
        self.assertRegex(line, r"\d")

    def test_prompt_longer_than_context(self):
        self.fails(65, ["logits", "--model", TINY, "--prompt-file", "-"], "context", stdin="word " * 100000)

    def test_empty_prompt(self):
        self.fails(65, ["logits", "--model", harness.tiny("qwen2moe-f32"), "--prompt-file", "-"], "no tokens", stdin="")

    def test_missing_text(self):
        self.fails(66, ["tokenize", "--model", TINY, "--text-file", "/no/such/text"], "/no/such/text")


class Configuration(OneLine):
    def test_every_mistake_names_file_and_line(self):
        cases = [
            ("engine:\n  thraeds: 2\n", 2, ["thraeds", "did you mean", "threads"]),
            ("gateway:\n  listen: 127.0.0.1:0\n  tiemout: 5s\n", 3, ["tiemout"]),
            ("engine:\n  threads: many\n", 2, ["engine.threads", "many"]),
            ("engine:\n  running_max: 100000\n", 2, ["running_max", "100000"]),
            ("gateway:\n  body_max: 4 parsecs\n", 2, ["body_max"]),
            ("gatewya:\n  listen: x\n", 1, ["gatewya", "did you mean", "gateway"]),
            ("engine:\n  threads: 1\n  threads: 2\n", 3, ["threads"]),
            ("engine: [1, 2\n", None, []),
        ]
        for text, line_number, parts in cases:
            with self.subTest(text), folder() as tmp:
                path = tmp / "evenkeel.yaml"
                path.write_text(text)
                for arguments in (["check", path], ["config", "show", "--config", path],
                                  ["serve", "--model", TINY, "--config", path]):
                    place = f"{path.name}:" if line_number is None else f"{path.name}:{line_number}: "
                    self.fails(78, arguments, place, *parts)
                self.fails(78, ["serve", "--model", TINY], path.name, env={"EVENKEEL_CONFIG": str(path)})

    def test_missing_file(self):
        self.fails(66, ["check", "/no/such.yaml"], "/no/such.yaml")
        self.fails(66, ["serve", "--config", "/no/such.yaml"], "/no/such.yaml")

    def test_flags_and_environment(self):
        self.fails(78, ["serve", "--model", TINY, "--threads", "many"], "--threads", "many")
        self.fails(78, ["serve", "--model", TINY, "--set", "engine.thraeds=1"], "engine.thraeds", "did you mean")
        self.fails(78, ["serve", "--model", TINY], "EVENKEEL_ENGINE_THRAEDS",
                   env={"EVENKEEL_ENGINE_THRAEDS": "1"})
        self.fails(78, ["serve", "--model", TINY], "EVENKEEL_ENGINE_THREADS", env={"EVENKEEL_ENGINE_THREADS": "x"})

    def test_no_model(self):
        self.fails(78, ["serve"], "--model PATH")

    def test_good_file(self):
        with folder() as tmp:
            path = tmp / "evenkeel.yaml"
            path.write_text("version: 1\nengine:\n  threads: 1\n")
            done = run("check", path)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f"{path}: ok\n", ""))

    def test_precedence(self):
        """Flag over environment over file over default, each seen in `config show`."""
        with folder() as tmp:
            path = tmp / "evenkeel.yaml"
            path.write_text("engine:\n  threads: 3\n  running_max: 5\n  queue_max: 7\n")
            done = run("config", "show", "--config", path, "--set", "engine.threads=1",
                       env={"EVENKEEL_ENGINE_THREADS": "2", "EVENKEEL_ENGINE_RUNNING_MAX": "4"})
            self.assertEqual(done.returncode, 0, done.stderr)
            for line in ("  threads: 1\n", "  running_max: 4\n", "  queue_max: 7\n", "  prefill_chunk_tokens: "):
                self.assertIn(line, done.stdout)
            again = tmp / "again.yaml"
            again.write_text(done.stdout)
            self.assertEqual(run("config", "show", "--config", again).stdout, done.stdout)


class Addresses(OneLine):
    def test_port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            self.fails(69, ["serve", "--model", TINY, "--listen", address, "--log-level", "error"], address,
                       "--listen")

    def test_bad_address(self):
        for address in ("nonsense", "127.0.0.1", "127.0.0.1:99999", "300.1.2.3:80"):
            with self.subTest(address):
                self.fails(78, ["serve", "--model", TINY, "--listen", address, "--log-level", "error"], address)

    def test_log_cannot_be_written(self):
        self.fails(78, ["serve", "--model", TINY, "--listen", "127.0.0.1:0", "--set", "log.path=/no/such/dir/log"],
                   "/no/such/dir/log")


class Clients(OneLine):
    def test_server_out_of_reach(self):
        with socket.socket() as unused:  # bound, never listening
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            for arguments in (["chat", "--url", url, "hello"], ["status", "--url", url],
                              ["experts", "--url", url, "top"]):
                with self.subTest(arguments[0]):
                    self.fails(69, arguments, url, "serve")
            self.fails(69, ["status"], url, env={"EVENKEEL_URL": url})

    def test_no_url(self):
        for arguments in (["chat", "hello"], ["status"], ["experts", "top"]):
            with self.subTest(arguments[0]):
                self.fails(2, [*arguments, "--url", "ftp://example"], "ftp://example")
                self.fails(2, [*arguments, "--url", "/"], "URL")

    def test_chat_without_words(self):
        self.fails(2, ["chat"], "standard input is empty", stdin="\n\n")
        self.fails(65, ["chat"], "longer than", stdin="x" * ((1 << 20) + 1))
        self.fails(65, ["chat"], "UTF-8", stdin=b"\xff\xfe")


if __name__ == "__main__":
    harness.main()
