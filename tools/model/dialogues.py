#!/usr/bin/env python3
"""Write customer-service dialogues, Chinese and English, from the grammar.

    tools/model/dialogues.py --count 80000 --seed 1 -o dialogues.jsonl
    tools/model/dialogues.py --count 3 --show         a few of them, to read
    tools/model/dialogues.py --stats                  what the grammar holds

Each line of the output is an object with `messages` (role, content), `language`, `situation` and
`intents`. The same count and seed give the same file. No two dialogues are alike, and none has a
held-out question or a held-out value (grammar.py, tables.py).
"""

import argparse
import json
import random
import sys

import grammar
import slots

# How often a customer's question is of each topic. The many questions outside the shop count as one
# intent, so they have a share of their own.
TOPICS = {"logistics": 0.28, "orders": 0.30, "products": 0.19, "knowledge": 0.10, "talk": 0.07,
          "outside": 0.06}
SITUATIONS = {"none": 0.42, "product": 0.10, "waiting": 0.12, "moving": 0.13, "arriving": 0.10,
              "done": 0.13}
LANGUAGES = {"zh": 0.55, "en": 0.45}
ROUNDS = {1: 0.40, 2: 0.30, 3: 0.20, 4: 0.10}
ROUNDS_LONG = {4: 0.4, 5: 0.3, 6: 0.3}

SYSTEM = {
    "zh": ("你是网店的客服助手。", "你是一名耐心的网店客服。", "你是客服，请简短回答。"),
    "en": ("You are the assistant of an online shop.", "You are a helpful shop assistant.",
           "You work in customer service. Answer briefly."),
}
BEFORE = {
    "zh": ("你好，", "您好，", "请问", "请问一下，", "麻烦问下，", "那个，", "想问下，"),
    "en": ("Hi, ", "Hello, ", "Please, ", "Excuse me, ", "OK, ", "Hey, "),
}
AFTER_ZH = ("呀", "啊", "呢")


def draw(rng, shares):
    return rng.choices(list(shares), list(shares.values()))[0]


def topic_of(intent):
    return "outside" if intent.name in ("outside", "not_sold") else intent.topic


class Writer:
    """Puts dialogues together; every choice comes from `rng`."""

    def __init__(self, intents, rng):
        self.rng = rng
        self.by_situation = {
            situation: [(intent, case) for intent in intents for case in intent.cases
                        if situation in case.situations]
            for situation in grammar.SITUATIONS}

    def choose(self, situation, used):
        """An intent and its case, topic first, so that a topic's share is not its size; or None."""
        cases = [pair for pair in self.by_situation[situation] if pair[0].name not in used]
        if not cases:
            return None
        topics = {topic_of(intent) for intent, _ in cases}
        topic = draw(self.rng, {name: TOPICS[name] for name in TOPICS if name in topics})
        return self.rng.choice([pair for pair in cases if topic_of(pair[0]) == topic])

    def values(self, language, intent, case_draw):
        return {**case_draw.values[language], "term": intent.term.get(language, "")}

    def dialogue(self, rounds=None):
        rng = self.rng
        language = draw(rng, LANGUAGES)
        situation = draw(rng, {name: share for name, share in SITUATIONS.items()
                               if self.by_situation[name]})
        known = slots.Draw(rng, situation)
        messages, used = [], []
        lines = slots.card(language, situation, known.values[language], rng)
        if lines or rng.random() < 0.5:
            messages.append(("system", "\n".join([rng.choice(SYSTEM[language])] + lines)))
        if rng.random() < 0.5 and lines:
            messages[0] = ("system", "\n".join(lines))
        for _ in range(draw(rng, rounds or ROUNDS)):
            chosen = self.choose(situation, used)
            if not chosen:
                break
            intent, case = chosen
            used.append(intent.name)
            if situation == "none":
                known.goods()  # another question may be about another product
            values = self.values(language, intent, known)
            for turn in case.turns:
                if turn is not case.turns[0] and rng.random() < 0.35:
                    break
                question = rng.choice(turn.questions[language]).expand(values, rng)
                answer = rng.choice(turn.answers[language]).expand(values, rng)
                messages.append(("user", self.spoken(language, question)))
                messages.append(("assistant", tidy(language, answer)))
        return {"language": language, "situation": situation, "intents": used,
                "messages": [{"role": role, "content": text} for role, text in messages]}

    def spoken(self, language, text):
        """As people type: with a greeting, without the full stop, with a slip."""
        rng = self.rng
        text = tidy(language, text)
        if rng.random() < 0.15:
            text = joined(language, rng.choice(BEFORE[language]), text)
        if rng.random() < 0.2:
            text = text.rstrip("？?。.！!") or text
        if language == "zh":
            if rng.random() < 0.05 and text.endswith("？") and text[-2:-1] not in "吗呢":
                text = text[:-1] + rng.choice(AFTER_ZH) + "？"
        elif rng.random() < 0.15:
            words = text.split(" ")
            text = " ".join(w if any(c.isdigit() for c in w) else w.lower() for w in words)
        elif rng.random() < 0.05:
            words = text.split(" ")
            place = rng.randrange(len(words))
            if len(words[place]) > 3 and words[place].islower():
                cut = rng.randrange(1, len(words[place]))
                words[place] = words[place][:cut] + words[place][cut + 1:]
                text = " ".join(words)
        return text


def tidy(language, text):
    """Without what an empty alternative leaves: a leading comma, doubled spaces, a small letter."""
    text = text.strip(" ，,")
    if language == "en":
        text = " ".join(text.split()).replace(" ?", "?")
        text = text[:1].upper() + text[1:]
    return text


def joined(language, before, text):
    if language == "en" and not text.startswith("I ") and text[1:2].islower():
        text = text[:1].lower() + text[1:]
    return before + text


def write(count, seed, rounds=None, seen=None):
    """`count` different dialogues, and none that is in `seen`."""
    rng = random.Random(seed)
    writer = Writer(grammar.load(), rng)
    seen = set() if seen is None else seen
    while count > 0:
        dialogue = writer.dialogue(rounds)
        text = json.dumps(dialogue["messages"])
        if text not in seen:
            seen.add(text)
            count -= 1
            yield dialogue


def stats():
    intents = grammar.load()
    training, held_out = grammar.question_templates(intents)
    cases = [case for intent in intents for case in intent.cases]
    answers = {t.text for case in cases for turn in case.turns
               for language in grammar.LANGUAGES for t in turn.answers[language]}
    forms = sum(grammar.Template(text).forms() for _, text in training)
    return (f"{len(intents)} intents, {len(cases)} cases, {len(training)} question templates "
            f"({forms} forms with slots counted once), {len(held_out)} held out, "
            f"{len(answers)} answer templates")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=80000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--long", action="store_true", help="many turns each")
    parser.add_argument("--show", action="store_true", help="print them to be read")
    parser.add_argument("--stats", action="store_true")
    parser.add_argument("-o", dest="output", metavar="FILE")
    args = parser.parse_args()
    if args.stats:
        print(stats())
        return
    out = open(args.output, "w") if args.output else sys.stdout
    for dialogue in write(args.count, args.seed, ROUNDS_LONG if args.long else None):
        if args.show:
            print("\n".join(f"{m['role']}: {m['content']}" for m in dialogue["messages"]) + "\n")
        else:
            out.write(json.dumps(dialogue, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
