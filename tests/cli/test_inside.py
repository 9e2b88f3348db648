#!/usr/bin/env python3
"""Goal: the commands that look inside a model tell the truth, in the stable form that other programs read.
Method: the project's own tiny models for form and self-consistency; the ids, logits and greedy tokens of an
independent implementation in ../shared where that is present."""
import base64
import hashlib
import json
import math
import os
import re
import struct
import subprocess
import sys
import unittest

import harness
from harness import TINY, folder, need_shared, run

# The generator needs numpy, which apt installs for Debian's own interpreter.
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable

# A close race may fall either way under rounded activations; further apart than this it may not.
CLOSE_RACE = 0.05


def logits(model, prompt, *arguments):
    with folder() as tmp:
        path = tmp / "prompt"
        path.write_text(prompt)
        done = run("logits", "--model", model, "--prompt-file", path, "--json", *arguments)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


def tokenize(model, text, *arguments):
    with folder() as tmp:
        path = tmp / "text"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        done = run("tokenize", "--model", model, "--text-file", path, *arguments)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    lines = done.stdout.split("\n")
    assert lines[1:] == [""], "one line"
    return [int(word) for word in lines[0].split()]


def nmse(found, wanted):
    return sum((a - b) ** 2 for a, b in zip(found, wanted)) / sum(b * b for b in wanted)


class Tiny(unittest.TestCase):
    def test_logits_object(self):
        found = logits(TINY, "Where is my parcel?", "--greedy", "8")
        self.assertEqual(list(found), ["tokens", "greedy", "logits"])
        self.assertGreater(len(found["tokens"]), 3)
        self.assertLessEqual(len(found["greedy"]), 8)
        self.assertTrue(all(isinstance(value, (int, float)) and math.isfinite(value) for value in found["logits"]))
        best = max(range(len(found["logits"])), key=lambda i: (found["logits"][i], -i))
        self.assertEqual(found["greedy"][0], best)

    def test_greedy_goes_on_from_itself(self):
        """The second greedy token is the first one of the prompt that ends with the first."""
        first = logits(TINY, "abc abc", "--greedy", "3", "--kernels", "reference")
        again = logits(TINY, "abc abc", "--greedy", "3", "--kernels", "reference")
        self.assertEqual(first, again)

    def test_no_greedy_asked(self):
        self.assertEqual(logits(TINY, "abc")["greedy"], [])

    def test_kernels_and_threads_agree(self):
        one = logits(TINY, "a longer prompt, so that more than one row is computed", "--threads", "1")
        two = logits(TINY, "a longer prompt, so that more than one row is computed", "--threads", "2")
        self.assertEqual(one, two)
        reference = logits(TINY, "a longer prompt, so that more than one row is computed", "--kernels", "reference")
        self.assertLess(max(abs(a - b) for a, b in zip(one["logits"], reference["logits"])), 2e-4)

    def test_table_for_people(self):
        done = run("logits", "--model", TINY, "--prompt-file", "-", "--greedy", "2", stdin="hello")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = logits(TINY, "hello", "--greedy", "2")
        ranks = re.findall(r"^ +(\d+) +(\d+) +(-?[\d.]+)  ", done.stdout, re.MULTILINE)
        self.assertEqual([int(rank) for rank, _, _ in ranks], list(range(1, 11)))
        order = sorted(range(len(found["logits"])), key=lambda i: (-found["logits"][i], i))
        self.assertEqual([int(token) for _, token, _ in ranks], order[:10])
        self.assertIn("greedy: 2 tokens", done.stdout)

    def test_special_tokens_only_where_asked(self):
        text = "<|im_start|>user\nhello<|im_end|>"
        plain, special = tokenize(TINY, text), tokenize(TINY, text, "--special")
        self.assertLess(len(special), len(plain))
        self.assertEqual(logits(TINY, text)["tokens"], special)

    def test_empty_text_has_no_ids(self):
        self.assertEqual(tokenize(TINY, ""), [])

    def test_standard_input(self):
        done = run("tokenize", "--model", TINY, "--text-file", "-", stdin="hello world")
        self.assertEqual([int(word) for word in done.stdout.split()], tokenize(TINY, "hello world"))

    def test_models(self):
        for arch in ("qwen2moe", "qwen3moe", "olmoe", "llama"):
            with self.subTest(arch):
                path = harness.tiny(f"{arch}-f32")
                text = run("models", path)
                self.assertEqual((text.returncode, text.stderr), (0, ""))
                facts = json.loads(run("models", "--json", path).stdout)
                self.assertEqual(facts["architecture"], arch)
                self.assertIn(arch, text.stdout)
                self.assertGreater(facts["parameters_total"], facts["parameters_active"])
                self.assertGreater(facts["parameters_active"], 0)
                self.assertGreaterEqual(facts["experts"], facts["experts_used"])
                self.assertEqual(sum(kind["tensors"] for kind in facts["types"].values()), facts["tensors"])
                self.assertEqual(set(facts["types"]), {"F32"})
                memory = facts["memory"]
                parts = memory["weights_bytes"] + memory["kv_cache_bytes"] + memory["buffers_bytes"]
                self.assertAlmostEqual(memory["needed_bytes"], 1.2 * parts, delta=16)

    def test_models_scale_memory(self):
        one = json.loads(run("models", "--json", "--context", "256", TINY).stdout)["memory"]
        two = json.loads(run("models", "--json", "--context", "512", TINY).stdout)["memory"]
        many = json.loads(run("models", "--json", "--context", "256", "--running-max", "4", TINY).stdout)["memory"]
        self.assertEqual(two["kv_cache_bytes"], 2 * one["kv_cache_bytes"])
        self.assertEqual(many["kv_cache_bytes"], 4 * one["kv_cache_bytes"])
        self.assertEqual(two["weights_bytes"], one["weights_bytes"])

    def test_split_model_is_one_model(self):
        split = json.loads(run("models", "--json", harness.tiny("split-00001-of-00003")).stdout)
        whole = json.loads(run("models", "--json", harness.tiny("qwen2moe-q8_0")).stdout)
        self.assertEqual(split["parameters_total"], whole["parameters_total"])
        self.assertEqual(split["types"], whole["types"])

    def test_type_histogram(self):
        facts = json.loads(run("models", "--json", harness.tiny("qwen2moe-q4_k")).stdout)
        self.assertIn("Q4_K", facts["types"])
        self.assertIn("F32", facts["types"])


def unpacked(encoded):
    raw = base64.b64decode(encoded)
    return struct.unpack(f"<{len(raw) // 4}f", raw)


class Golden(unittest.TestCase):
    """Against what an independent implementation says."""

    def test_demo(self):
        model = need_shared("data/models/demo-q8_0.gguf")
        """Both sides round activations, and a near tie in a gate may then fall either way: hence the wide bound, and
        hence the exact comparison of what is said."""
        cases = json.loads(need_shared("data/models/expected_demo.json").read_text())["cases"]
        self.assertGreaterEqual(len(cases), 10)
        for case in cases:
            with self.subTest(case["prompt"][:40]):
                found = logits(model, case["prompt"], "--greedy", str(len(case["greedy"])))
                self.assertEqual(found["tokens"], case["tokens"])
                self.assertLessEqual(nmse(found["logits"], unpacked(case["logits_b64"])), 1e-2)
                self.assertEqual(found["greedy"], case["greedy"])

    def test_every_architecture_and_type(self):
        """Tolerances as the data's README gives them."""
        maker = need_shared("tools/make_gguf.py")
        expected = json.loads(need_shared("data/models/expected_logits.json").read_text())
        known = json.loads(run("version", "--json").stdout)["architectures"]
        n_files = 0
        with folder() as tmp:
            for name, entry in expected.items():
                arch = {"mixtral": "llama"}.get(entry["preset"].split("-")[1], entry["preset"].split("-")[1])
                if arch not in known:
                    continue
                n_files += 1
                path = tmp / name
                subprocess.run([PYTHON, maker, entry["preset"], "--quant", entry["quant"], "-o", path], check=True,
                               stdout=subprocess.DEVNULL)
                if hashlib.sha256(path.read_bytes()).hexdigest() != entry["file_sha256"]:
                    self.skipTest(f"{name} comes out differently on this machine: no Debian 12 licence texts?")
                for case in entry["cases"]:
                    with self.subTest(f"{name}: {case['prompt'][:30]!r}"):
                        self.check_case(path, entry["quant"] == "f32", case)
                path.unlink()
        self.assertGreaterEqual(n_files, 13)

    def check_case(self, path, exact, case):
        found = logits(path, case["prompt"], "--greedy", str(len(case["greedy"])))
        self.assertEqual(found["tokens"], case["tokens"])
        if exact:
            worst = max(abs(a - b) for a, b in zip(found["logits"], unpacked(case["logits_b64"])))
            self.assertLessEqual(worst, 2e-4)
            self.assertEqual(found["greedy"], case["greedy"])
            return
        wanted = unpacked(case["exact_logits_b64"])
        self.assertLessEqual(nmse(found["logits"], wanted), max(2 * case["nmse_of_peer"], 1e-4))
        if case["top1_margin"] > CLOSE_RACE:
            self.assertEqual(found["greedy"][0], case["exact_greedy"][0])
        plain = logits(path, case["prompt"], "--kernels", "reference")
        self.assertLessEqual(max(abs(a - b) for a, b in zip(plain["logits"], wanted)), 1e-3)

    def test_tokens(self):
        maker = need_shared("tools/make_gguf.py")
        expected = json.loads(need_shared("data/models/expected_tokens.json").read_text())
        with folder() as tmp:
            for preset in ("tiny-qwen2moe", "tiny-mixtral"):
                path = tmp / f"{preset}.gguf"
                subprocess.run([PYTHON, maker, preset, "--quant", "q8_0", "-o", path], check=True,
                               stdout=subprocess.DEVNULL)
                for text, (plain, special) in list(zip(expected["strings"], expected["models"][preset]))[::6]:
                    with self.subTest(f"{preset}: {text[:30]!r}"):
                        self.assertEqual(tokenize(path, text), plain)
                        self.assertEqual(tokenize(path, text, "--special"), special)


if __name__ == "__main__":
    harness.main()
