#!/usr/bin/env python3
"""Ask a model questions that it has not seen, through the real server, and count the right answers.

    tools/model/evaluate.py models/evenkeel-demo.gguf [--program build/evenkeel] [--show]

Each question comes from a held-out template and, where its kind of value has a held-out part, from
held-out values; a later turn of a conversation comes with the right answers to the earlier ones. An
answer is right if it has the intent's key words, every value that all of the intent's answers have,
and no order or tracking number that was not in the conversation. Ends with 1 below --require.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import pathlib
import random
import re
import sys

import dialogues
import grammar
import serving
import slots

COUNT, SEED = 500, 99
CODE = re.compile(r"\d(?:[A-Z]\d)+")


@dataclasses.dataclass
class Question:
    intent: str
    topic: str
    language: str
    situation: str
    messages: list
    keys: list  # of lists: one of each has to be in the answer
    values: dict  # slot to value: each has to be in the answer
    reference: str


def holds(text, value):
    """Whether a value is in the text, a number as a whole number."""
    value = str(value)
    if value.isdigit():
        return re.search(rf"(?<!\d){value}(?!\d)", text) is not None
    return value.lower() in text.lower()


def mistakes(question, answer):
    """What is wrong with an answer; empty if it is right."""
    found = []
    for group in question.keys:
        if not any(holds(answer, word) for word in group):
            found.append("says none of " + "|".join(group))
    found += [f"lacks {slot} {value}" for slot, value in question.values.items()
              if not holds(answer, value)]
    known = CODE.findall(" ".join(m["content"] for m in question.messages))
    found += [f"makes up {code}" for code in CODE.findall(answer) if code not in known]
    return found


def sure_values(templates, values, free):
    """The slots that all of these answers have, with this dialogue's values."""
    sure = set.intersection(*(template.sure_slots() for template in templates))
    return {slot: values[slot] for slot in sorted(sure - set(free) - {"term"})}


class Examiner:
    """Makes questions as dialogues.Writer makes dialogues, but of the held-out part."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.writer = dialogues.Writer(grammar.load(), self.rng)

    def question(self):
        rng = self.rng
        language = dialogues.draw(rng, dialogues.LANGUAGES)
        situation = dialogues.draw(rng, dialogues.SITUATIONS)
        intent, case = self.writer.choose(situation, ())
        known = slots.Draw(rng, situation, held_out=True)
        values = self.writer.values(language, intent, known)
        place = rng.randrange(len(case.turns))
        messages = []
        lines = slots.card(language, situation, values, rng)
        if lines or rng.random() < 0.5:
            messages.append({"role": "system", "content": "\n".join(
                [rng.choice(dialogues.SYSTEM[language])] + lines)})
        for turn in case.turns[:place + 1]:
            asked = turn.held_out[language] or turn.questions[language]
            question = dialogues.tidy(language, rng.choice(asked).expand(values, rng))
            answer = rng.choice(turn.answers[language]).expand(values, rng)
            answer = dialogues.tidy(language, answer)
            messages += [{"role": "user", "content": question},
                         {"role": "assistant", "content": answer}]
        keys = [[word.expand(values, rng) for word in group] for group in turn.keys[language]]
        return Question(intent.name, dialogues.topic_of(intent), language, situation, messages[:-1],
                        keys, sure_values(turn.answers[language], values, intent.free), answer)


def ask(server, questions, at_once=8):
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda question: server.chat(question.messages), questions))


def table(title, groups):
    lines = [f"| {title} | right | of | % |", "|---|---|---|---|"]
    lines += [f"| {name} | {right} | {total} | {100 * right / total:.1f} |"
              for name, (right, total) in sorted(groups.items())]
    return "\n".join(lines)


def report(questions, answers, show):
    wrong = [mistakes(question, answer) for question, answer in zip(questions, answers)]
    for key, title in (("topic", "topic"), ("language", "language"), ("situation", "situation"),
                       ("intent", "intent")):
        groups = collections.defaultdict(lambda: [0, 0])
        for question, found in zip(questions, wrong):
            groups[getattr(question, key)][0] += not found
            groups[getattr(question, key)][1] += 1
        print(table(title, groups) + "\n")
    for question, answer, found in zip(questions, answers, wrong):
        if show and found:
            print(f"{question.language} {question.intent} ({question.situation}): "
                  f"{question.messages[-1]['content']}\n  says    {answer}\n"
                  f"  wanted  {question.reference}\n  but     {'; '.join(found)}")
    right = sum(not found for found in wrong)
    keys = sum(not any(text.startswith("says") for text in found) for found in wrong)
    values = sum(not any(text.startswith(("lacks", "makes")) for text in found) for found in wrong)
    exact = sum(question.reference == answer for question, answer in zip(questions, answers))
    print(f"{right} of {len(questions)} right ({100 * right / len(questions):.1f} %): intent "
          f"{100 * keys / len(questions):.1f} %, values {100 * values / len(questions):.1f} %; "
          f"{exact} word for word as written")
    return right / len(questions)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model")
    parser.add_argument("--program", type=pathlib.Path, default=serving.default_program())
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--require", type=float, default=95, help="per cent that must be right")
    parser.add_argument("--show", action="store_true", help="print what was answered wrongly")
    parser.add_argument("--json", metavar="FILE", help="write questions and answers")
    args = parser.parse_args()
    examiner = Examiner(args.seed)
    questions = [examiner.question() for _ in range(args.count)]
    with serving.Server(args.program, args.model) as server:
        answers = ask(server, questions)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(
            [{**dataclasses.asdict(q), "answer": a} for q, a in zip(questions, answers)],
            ensure_ascii=False, indent=1) + "\n")
    share = report(questions, answers, args.show)
    sys.exit(0 if 100 * share >= args.require else 1)


if __name__ == "__main__":
    main()
