#!/usr/bin/env python3
"""Goal: gates are recorded, inspected and calibrated by one command each; what comes of it is served; mistakes get one line;
an interrupted run goes on to the same result. Method: the real binary on a tiny model with random gates."""
import csv
import json
import os
import pty
import re
import signal
import subprocess
import unittest

import harness
from harness import PROGRAM, Server, TINY, environment, folder, run, wait_until

OTHER = harness.tiny("qwen2moe-q8_0")
QUICK = ["--steps", "60", "--batch", "64", "--chunk", "64", "--tokens", "3000"]


def words(n=6000):
    return " ".join(f"{(i * 7919) % 1000} parcel {chr(97 + i % 26)}" for i in range(n // 3))


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = folder()
        cls.tmp = cls.holder.__enter__()
        cls.text = cls.tmp / "text"
        cls.text.write_text(words())

    @classmethod
    def tearDownClass(cls):
        cls.holder.__exit__(None, None, None)

    def fine(self, *arguments, code=0):
        done = run("calibrate", "--model", TINY, *arguments)
        self.assertEqual((done.returncode, done.stderr), (code, ""), done.stdout)
        return done.stdout

    def fails(self, code, arguments, *parts):
        done = run(*arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)


class Record(Case):
    def test_record_is_what_the_model_saw(self):
        states = self.tmp / "a.states"
        said = self.fine("record", "--text", self.text, "--out", states, "--tokens", "500", "--chunk", "64")
        self.assertRegex(said, r"a\.states: 500 of \d+ tokens, \d+ layers, \d+ chunks, [\d.]+ MiB\n")
        first = states.read_bytes()
        self.fine("record", "--text", self.text, "--out", states, "--tokens", "500", "--chunk", "64", "--threads", "1")
        self.assertEqual(states.read_bytes(), first, "another number of threads changes nothing")

    def test_inspect(self):
        states = self.tmp / "b.states"
        self.fine("record", "--text", self.text, "--out", states, "--chunk", "64")
        done = run("calibrate", "inspect", "--model", TINY, "--states", states)
        self.assertIn(done.returncode, (0, 1))
        self.assertIn("max/mean", done.stdout)
        facts = json.loads(run("calibrate", "inspect", "--model", TINY, "--states", states, "--json").stdout)
        self.assertEqual(facts["well"], done.returncode == 0)
        direct = json.loads(run("calibrate", "inspect", "--model", TINY, "--text", self.text, "--chunk", "64",
                                "--json").stdout)
        self.assertEqual(direct, facts)

    def test_foreign_and_broken_states(self):
        states, cut = self.tmp / "c.states", self.tmp / "cut.states"
        self.fine("record", "--text", self.text, "--out", states, "--tokens", "200", "--chunk", "64")
        self.fails(2, ["calibrate", "--model", OTHER, "--states", states, "--out", self.tmp / "x"],
                   "c.states: was recorded from another model", "record it from this one")
        cut.write_bytes(states.read_bytes()[:-1])
        self.fails(65, ["calibrate", "--model", TINY, "--states", cut, "--out", self.tmp / "x"], "cut.states: has")
        self.fails(65, ["calibrate", "--model", TINY, "--states", self.text, "--out", self.tmp / "x"],
                   "is no recording of gate states")
        self.assertFalse((self.tmp / "x").exists())


class Mistakes(Case):
    def test_options(self):
        text, out = ["--text", self.text], ["--out", self.tmp / "x"]
        model = ["calibrate", "--model", TINY]
        for arguments, part in (
                (["calibrate", *text, *out], "--model PATH is needed"), ([*model, *out], "either --text FILE"),
                ([*model, *text, "--states", "y", *out], "either --text FILE"), ([*model, *text], "--out FILE is needed"),
                ([*model, "record", "--states", "y", *out], "record needs --text"),
                ([*model, *text, *out, "--method", "magic"], "it must be bias, router or both"),
                ([*model, *text, *out, "--method", "bias", "--reset", "0"], "--reset needs --method"),
                ([*model, *text, *out, "--reset", "0,x"], "write layers as 0,3,5"),
                ([*model, *text, *out, "--reset", "99"], "--reset names layer 99"),
                ([*model, *text, *out, "--target", "1"], "--target"),
                ([*model, *text, "--out", TINY], "is read, too"), ([*model, *text, *out, "--log", self.text], "is read, too"),
                ([*model, *text, *out, "--chunk", "1000000"], "the model's context"),
                ([*model, "--states", "y", *out, "--rounds", "2"], "--rounds needs --text")):
            with self.subTest(part):
                self.fails(2, arguments, part)

    def test_too_little_text(self):
        small = self.tmp / "small"
        small.write_text("a b c")
        self.fails(65, ["calibrate", "--model", TINY, "--text", small, "--out", self.tmp / "x"], "not enough text")
        small.write_text(words(45))
        self.fails(65, ["calibrate", "--model", TINY, "--text", small, "--out", self.tmp / "x", "--chunk", "64"],
                   "at least 5 are needed")

    def test_outputs_that_cannot_be_written(self):
        self.fails(66, ["calibrate", "record", "--model", TINY, "--text", self.text, "--chunk", "64", "--out",
                        "/no/such/folder/x"], "/no/such/folder/x")


class Calibrate(Case):
    def tune(self, method, *more):
        out = self.tmp / f"{method}.gguf"
        return out, json.loads(self.fine("--text", self.text, "--method", method, "--out", out, "--json", *QUICK, *more))

    def test_every_method_makes_a_model_more_even(self):
        for method in ("bias", "router", "both"):
            with self.subTest(method):
                _, facts = self.tune(method, "--rounds", "1")
                for layer in facts["layers"]:
                    self.assertLess(layer["after"]["max_over_mean"], layer["before"]["max_over_mean"])
                    self.assertEqual(len(layer["output_variance"]), 8)
                    self.assertIn(layer["end"], ("reached", "exhausted"))
                self.assertGreater(facts["perplexity"]["tokens"], 100)

    def test_reset(self):
        _, facts = self.tune("router", "--reset", "1", "--rounds", "1")
        self.assertGreater(facts["layers"][1]["gradient_norm_max"], facts["layers"][0]["gradient_norm_max"])

    def test_table_and_log(self):
        log = self.tmp / "looks.csv"
        said = self.fine("--text", self.text, "--method", "both", "--out", self.tmp / "t.gguf", "--log", log, *QUICK)
        self.assertRegex(said, r"perplexity of the \d+ tokens kept back: [\d.]+ before, [\d.]+ after \([+-][\d.]+ %\)")
        rows = list(csv.DictReader(log.open()))
        self.assertEqual({row["round"] for row in rows}, {"1", "2"})
        for row in rows:
            self.assertGreaterEqual(float(row["max_over_mean"]), 1)
            self.assertGreater(float(row["gradient_norm"]) + (row["method"] == "bias"), 0)

    def test_explosion_is_told(self):
        out = self.tmp / "boom.gguf"
        done = run("calibrate", "--model", TINY, "--text", self.text, "--method", "router", "--out", out, "--rate", "1e6",
                   "--z-weight", "1", "--rounds", "1", *QUICK)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stderr, r"evenkeel: layer \d+: explosion: .* expert \d+.*; lower --rate")
        self.assertIn("exploded", done.stdout)
        self.assertEqual(run("logits", "--model", TINY, "--gate-overlay", out, "--prompt-file", self.text).returncode, 65,
                         "the text is too long, but the overlay is a good one")

    def test_overlay_is_served_and_bound(self):
        overlay, _ = self.tune("both", "--rounds", "1")
        prompt = self.tmp / "prompt"
        prompt.write_text("where is my parcel")
        plain = json.loads(run("logits", "--model", TINY, "--prompt-file", prompt, "--json").stdout)["logits"]
        tuned = json.loads(run("logits", "--model", TINY, "--prompt-file", prompt, "--json", "--gate-overlay",
                               overlay).stdout)["logits"]
        self.assertNotEqual(plain, tuned)
        with Server("--gate-overlay", overlay) as server:
            listed = json.loads(server.request("GET", "/v1/models")[2])["data"][0]["meta"]["gate_overlay"]
            self.assertEqual(listed["method"], "both")
            self.assertRegex(listed["sha256"], "^[0-9a-f]{64}$")
            self.assertEqual(server.chat("hello", max_tokens=4)[0], 200)
        with Server() as server:
            self.assertNotIn(b"gate_overlay", server.request("GET", "/v1/models")[2])
        self.assertEqual(run("serve", "--check", "--model", TINY, "--gate-overlay", overlay).returncode, 0)
        self.fails(78, ["serve", "--check", "--model", OTHER, "--gate-overlay", overlay], "was made for another model")
        self.fails(2, ["logits", "--model", OTHER, "--gate-overlay", overlay, "--prompt-file", prompt],
                   "was made for another model", "serve it without the overlay")
        self.fails(65, ["models", overlay], "evenkeel-gate-overlay")

    def test_reload_says_that_gates_take_a_restart(self):
        settings = self.tmp / "settings.yaml"
        settings.write_text("log:\n  level: info\n")
        with Server("--config", settings) as server:
            settings.write_text("model:\n  gate_overlay: other.gguf\n")
            server.send_signal(signal.SIGHUP)
            wait_until(lambda: 'needs_restart="model.gate_overlay"' in server.log_text(), "the reload")

    def test_overlays_build_on_each_other(self):
        overlay, _ = self.tune("bias", "--rounds", "1")
        states = self.tmp / "again.states"
        self.fine("record", "--text", self.text, "--gate-overlay", overlay, "--out", states, "--chunk", "64")
        before = json.loads(run("calibrate", "inspect", "--model", TINY, "--text", self.text, "--chunk", "64",
                                "--json").stdout)
        after = json.loads(run("calibrate", "inspect", "--model", TINY, "--states", states, "--gate-overlay", overlay,
                               "--json").stdout)
        for old, new in zip(before["layers"], after["layers"]):
            self.assertLess(new["max_over_mean"], old["max_over_mean"])


class Resume(Case):
    ARGUMENTS = ["--method", "both", "--steps", "4000", "--batch", "64", "--chunk", "64", "--tokens", "3000", "--rounds",
                 "2", "--target", "1.01", "--passes", "50"]

    def test_interrupted_run_goes_on_to_the_same_gates(self):
        whole, parts = self.tmp / "whole.gguf", self.tmp / "parts.gguf"
        keep = self.tmp / "keep"
        self.fine("--text", self.text, "--out", whole, *self.ARGUMENTS)
        command = [str(PROGRAM), "calibrate", "--model", str(TINY), "--text", str(self.text), "--out", str(parts),
                   "--checkpoint", str(keep), *self.ARGUMENTS]
        n_interrupted = 0
        for looks in (3, 40, 60):
            log = self.tmp / f"log{looks}"
            process = subprocess.Popen([*command, "--log", str(log)], env=environment(), stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            wait_until(lambda: process.poll() is not None or (log.exists() and log.read_text().count("\n") > looks), "looks")
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=harness.PATIENCE_S)[1].decode()
            self.assertIn(process.returncode, (0, 130), said)
            if process.returncode == 130:
                n_interrupted += 1
                self.assertEqual(said, "evenkeel: interrupted; the same command goes on from there\n")
        self.assertGreater(n_interrupted, 0)
        self.fine("--text", self.text, "--out", parts, "--checkpoint", keep, *self.ARGUMENTS)
        self.assertEqual(parts.read_bytes(), whole.read_bytes())
        # Of another run, damaged, or no checkpoint at all.
        other = ["calibrate", "--model", TINY, "--text", self.text, "--out", parts, "--checkpoint", keep]
        self.fails(2, [*other, *self.ARGUMENTS, "--seed", "9"], "keep: is of another run")
        damaged = bytearray(keep.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        keep.write_bytes(damaged)
        self.fails(65, [*other, *self.ARGUMENTS], "keep: is damaged")
        keep.write_text("no checkpoint, but longer than one has to be " * 9)
        self.fails(65, [*other, *self.ARGUMENTS], "is no checkpoint")


class Terminal(Case):
    def test_bar_on_a_terminal_only(self):
        out = self.tmp / "bar.gguf"
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [str(PROGRAM), "calibrate", "--model", str(TINY), "--text", str(self.text), "--out", str(out), *QUICK],
            env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        shown = harness.read_terminal(ours)
        self.assertEqual(process.wait(harness.PATIENCE_S), 0)
        text = shown.decode()
        self.assertTrue(re.search(r"\[#*\.*\] ", text), text[:200])
        self.assertTrue(text.rstrip().endswith("\x1b[K"), "the bar is taken away")


if __name__ == "__main__":
    harness.main()
