#!/usr/bin/env python3
"""Goal: the bundled model is what its pages say: it answers questions that it has not seen, it is small enough, and it
gives the same tokens in another program. Method: the first questions of the evaluation through the real server; greedy
tokens that llama.cpp's family gave for twenty prompts (bundled_prompts.json)."""
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402  (needs the path above)
from harness import PROGRAM, SOURCE, folder, run  # noqa: E402

sys.path.insert(0, str(SOURCE / "tools/model"))
import evaluate  # noqa: E402
import serving  # noqa: E402

MODEL = SOURCE / "models/evenkeel-demo.gguf"
CASES = pathlib.Path(__file__).parent / "bundled_prompts.json"
BYTES_MAX = 24 << 20
QUESTIONS = 200
# Of the first questions of the evaluation; docs/MODEL.md has the share of all 500. Raise it with the model.
RIGHT_MIN = 188


class Bundled(unittest.TestCase):
    def test_size_and_shape(self):
        self.assertLessEqual(MODEL.stat().st_size, BYTES_MAX)
        done = run("models", MODEL, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual((found["architecture"], found["chat_format"]), ("qwen2moe", "chatml"))
        self.assertGreater(found["shared_expert_width"], 0)
        self.assertLessEqual(found["context"], 512, "no longer than it was trained for")

    def test_answers_what_it_has_not_seen(self):
        examiner = evaluate.Examiner(evaluate.SEED)
        questions = [examiner.question() for _ in range(QUESTIONS)]
        with serving.Server(PROGRAM, MODEL) as server:
            answers = evaluate.ask(server, questions)
        wrong = [(q.messages[-1]["content"], answer) for q, answer in zip(questions, answers)
                 if evaluate.mistakes(q, answer)]
        self.assertGreaterEqual(QUESTIONS - len(wrong), RIGHT_MIN, wrong)

    def test_same_tokens_as_another_program(self):
        cases = json.loads(CASES.read_text())["cases"]
        self.assertGreaterEqual(len(cases), 20)
        for case in cases:
            with self.subTest(case["prompt"]), folder() as tmp:
                path = tmp / "prompt"
                path.write_text(case["prompt"])
                done = run("logits", "--model", MODEL, "--prompt-file", path, "--greedy", len(case["greedy"]), "--json")
                self.assertEqual(done.returncode, 0, done.stderr)
                found = json.loads(done.stdout)
                self.assertEqual(found["tokens"], case["tokens"])
                self.assertEqual(found["greedy"], case["greedy"])


if __name__ == "__main__":
    harness.main()
