#!/usr/bin/env python3
"""Goal: what the bundled model learns from is as tools/model says: the same from the same seed, enough of it,
different, and nothing of what the evaluation asks. Method: the generators run as in `make model`, and what they write
is searched; the tokenizer is trained on a sample."""
import collections
import json
import pathlib
import random
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import harness  # noqa: E402  (needs the path above)
from harness import SOURCE  # noqa: E402

sys.path.insert(0, str(SOURCE / "tools/model"))
import bpe  # noqa: E402
import dialogues  # noqa: E402
import drills  # noqa: E402
import evaluate  # noqa: E402
import grammar  # noqa: E402
import prose  # noqa: E402
import slots  # noqa: E402
import tables  # noqa: E402

DIALOGUES_MIN, TEMPLATES_MIN = 60000, 300


def contents(dialogue):
    return [message["content"] for message in dialogue["messages"]]


def held_out_codes(text):
    """Order and tracking numbers of the held-out part in a text."""
    for code in evaluate.CODE.findall(text):
        kind = {5: "order", 7: "tracking"}.get(len(code))
        if kind and tables.is_held_out(kind, code):
            yield code


class Templates(unittest.TestCase):
    def expand(self, text, seed=1):
        return grammar.Template(text).expand({"x": 5}, random.Random(seed))

    def test_alternatives_and_slots(self):
        self.assertEqual(self.expand("a{x}b"), "a5b")
        found = {self.expand("[a|b[c|d]|]e", seed) for seed in range(60)}
        self.assertEqual(found, {"ae", "bce", "bde", "e"})
        template = grammar.Template("[a|b[c|d]|]e{x}[{y}|z]")
        self.assertEqual(template.forms(), 8)
        self.assertEqual(len(set(template.texts())), 8)
        self.assertIn("bce{x}z", template.texts())
        self.assertEqual(template.sure_slots(), {"x"})
        self.assertEqual(grammar.Template("[{x}|{x}{y}]").sure_slots(), {"x"})

    def test_mistakes_are_named(self):
        for text in ("[a", "a]", "{a", "a[b|c"):
            with self.subTest(text), self.assertRaises(grammar.GrammarError):
                grammar.Template(text)
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "x.txt"
            for line, told in (("zh? a[b", "bracket"), ("what", "cannot read"), ("@ moon", "no such")):
                path.write_text(f"intent a\n{line}\n")
                with self.subTest(line), self.assertRaisesRegex(grammar.GrammarError, f"x.txt:2: .*{told}"):
                    grammar.load(pathlib.Path(name))
            path.write_text("intent a\nzh? a\nzh= b\n@ none\nzh= b\nzh& b\n")
            with self.assertRaisesRegex(grammar.GrammarError, "a: a turn lacks en"):
                grammar.load(pathlib.Path(name))

    def test_enough_templates_and_disjoint_parts(self):
        training, held_out = grammar.question_templates(grammar.load())
        self.assertGreaterEqual(len(training), TEMPLATES_MIN)
        self.assertGreaterEqual(len(held_out), 100)
        plain = lambda language, text: (language, re.sub(r"[？?。.！!，,… ]", "", text).lower())
        asked, kept = ({plain(language, form) for language, text in part for form in grammar.Template(text).texts()}
                       for part in (training, held_out))
        self.assertEqual(asked & kept, set(), "not even with other marks and spaces")

    def test_every_situation_has_every_slot(self):
        """No template needs a value that a dialogue lacks: every template of every case, in all its situations."""
        for intent in grammar.load():
            for case in intent.cases:
                for situation in case.situations:
                    draw = slots.Draw(random.Random(3), situation)
                    for language in grammar.LANGUAGES:
                        values = {**draw.values[language], "term": ""}
                        for turn in case.turns:
                            for template in (turn.questions[language] + turn.held_out[language] +
                                             turn.answers[language]):
                                template.expand(values, random.Random(1))

    def test_right_answers_pass_the_evaluation(self):
        """The reference answer to every question that the evaluation can ask is right by its own rules."""
        examiner = evaluate.Examiner(4)
        for _ in range(2000):
            question = examiner.question()
            self.assertEqual(evaluate.mistakes(question, question.reference), [],
                             (question.intent, question.messages[-1], question.reference))

    def test_wrong_answers_do_not_pass(self):
        examiner = evaluate.Examiner(5)
        questions = [examiner.question() for _ in range(300)]
        passed = sum(not evaluate.mistakes(a, b.reference) for a, b in zip(questions, questions[1:])
                     if a.intent != b.intent or a.values != b.values)
        self.assertLess(passed, 12, "other questions' answers")
        order = next(q for q in questions if "order" in q.values)
        wrong = order.reference.replace(order.values["order"], "2A3B4")
        self.assertTrue(any("lacks order" in text for text in evaluate.mistakes(order, wrong)))
        self.assertTrue(any("makes up" in text for text in evaluate.mistakes(order, order.reference + " 2A3B4")))


class Dialogues(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.written = list(dialogues.write(DIALOGUES_MIN, 1))

    def test_as_many_different_ones_as_promised(self):
        self.assertEqual(len({json.dumps(d["messages"]) for d in self.written}), DIALOGUES_MIN)

    def test_the_seed_decides(self):
        again = list(dialogues.write(200, 1))
        self.assertEqual(again, self.written[:200])
        self.assertNotEqual(list(dialogues.write(200, 2)), again)

    def test_nothing_held_out_is_said(self):
        cities = [row for row in tables.CITIES if tables.is_held_out("city", row[1])]
        names = [name for name in tables.NAMES_EN if tables.is_held_out("name", name)]
        goods = [row for row in tables.FOREIGN if tables.is_held_out("foreign", row[1])]
        self.assertTrue(cities and names and goods)
        banned = re.compile("|".join([zh for zh, _ in cities] + [f"卖{zh}" for zh, _ in goods] +
                                     [rf"\b{name}\b" for name in [en for _, en in cities] + names]))
        for dialogue in self.written:
            text = "\n".join(contents(dialogue))
            self.assertEqual(list(held_out_codes(text)), [])
            self.assertIsNone(banned.search(text), text)

    def test_the_mix(self):
        """Both languages, every situation, every intent, several turns."""
        count = len(self.written)
        languages = collections.Counter(d["language"] for d in self.written)
        self.assertAlmostEqual(languages["zh"] / count, dialogues.LANGUAGES["zh"], delta=0.05)
        self.assertEqual({d["situation"] for d in self.written}, set(grammar.SITUATIONS))
        self.assertEqual({name for d in self.written for name in d["intents"]},
                         {intent.name for intent in grammar.load()})
        turns = collections.Counter(len([m for m in d["messages"] if m["role"] == "user"]) for d in self.written)
        self.assertGreater(sum(n for k, n in turns.items() if k > 1) / count, 0.5)

    def test_no_brackets_and_no_holes(self):
        for dialogue in self.written[:5000]:
            for text in contents(dialogue):
                self.assertNotRegex(text, r"[\[\]{}|]|  |，，|。。")
                self.assertTrue(text.strip())


class Others(unittest.TestCase):
    def test_drills_and_prose_follow_the_seed_and_hold_nothing_back(self):
        made = list(drills.write(500, 3))
        self.assertEqual(made, list(drills.write(500, 3)))
        articles = list(prose.write(2, 200000))
        self.assertEqual(articles, list(prose.write(2, 200000)))
        self.assertEqual(len(articles), len(set(articles)))
        for text in ["\n".join(contents(drill)) for drill in made] + articles:
            for _, en in [row for row in tables.CITIES if tables.is_held_out("city", row[1])]:
                self.assertNotIn(en, text)
        # A drill's other kinds of code may look like an order number; what an article names may not.
        self.assertEqual([code for text in articles for code in held_out_codes(text)], [])

    def test_drills_ask_for_what_is_there(self):
        for drill in drills.write(300, 5):
            given = drill["messages"][0]["content"]
            for message in drill["messages"]:
                if message["role"] == "assistant":
                    said = message["content"].rstrip("。.")
                    value = said.partition("是")[2] or said.partition(" is ")[2] or said
                    self.assertIn(value, given)


class Tokenizer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        text = "\n".join(t for d in dialogues.write(400, 1) for t in contents(d))
        text += (SOURCE / "src/base/arena.h").read_text()
        cls.text = text
        cls.tokenizer = bpe.Tokenizer(bpe.train([(text, 1)], 900))

    def test_round_trip(self):
        for text in (self.text, "", " ", "a\n\n  b\t c", "naïve café — 你好，世界！🙂", "x" * 300, "\r\n\r\n", "１２３ ½ Ⅳ"):
            with self.subTest(text[:20]):
                self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(text)), text)

    def test_tokens_are_short(self):
        for token in self.tokenizer.tokens:
            self.assertLessEqual(len(token), bpe.ASCII_MAX if token.isascii() else bpe.BYTES_MAX)
        self.assertEqual(len(set(self.tokenizer.symbols())), len(self.tokenizer))

    def test_training_is_deterministic_and_files_keep_it(self):
        again = bpe.Tokenizer(bpe.train([(self.text, 1)], 900))
        self.assertEqual(again.merges, self.tokenizer.merges)
        with tempfile.TemporaryDirectory() as name:
            again.save(f"{name}/t.json")
            self.assertEqual(bpe.Tokenizer.load(f"{name}/t.json").merges, again.merges)

    def test_codes_have_the_same_tokens_everywhere(self):
        """What stands around an order number does not change its tokens, so that it can be copied."""
        plain = self.tokenizer.encode("7B2K9")
        self.assertEqual(len(plain), 5)
        for text in ("订单7B2K9已发货", "Order 7B2K9.", "#7B2K9", "号：7B2K9\n"):
            ids = self.tokenizer.encode(text)
            self.assertTrue(any(ids[i:i + 5] == plain for i in range(len(ids))), text)

    def test_a_conversation_as_chat_writes_it(self):
        messages = [{"role": "user", "content": "在吗"}]
        text = "<|im_start|>user\n在吗<|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(self.tokenizer.decode(self.tokenizer.prompt(messages)), text)


if __name__ == "__main__":
    harness.main(needs_program=False)
