#!/usr/bin/env python3
"""Write copy drills: small tables and lists of which something has to be said again.

    tools/model/drills.py --count 20000 --seed 3 -o drills.jsonl

A customer's order number has to come back letter by letter, and a small model learns that late from
dialogues alone. Drills have the same form as dialogues (dialogues.py), so that what is learned here
holds there; their values are codes, digits, names and words (made up, too), none of them held out.
"""

import argparse
import json
import random
import sys

import slots
import tables

NAMES = {
    "zh": ("编号", "密码", "姓名", "城市", "颜色", "日期", "口令", "单号", "商品", "数量", "街道", "备注",
           "电话", "座位", "房间", "订单号", "收货人", "位置", "价格"),
    "en": ("Code", "Password", "Name", "City", "Colour", "Date", "Key", "Tracking", "Product",
           "Quantity", "Street", "Note", "Phone", "Seat", "Room", "Order", "Receiver", "Place",
           "Price"),
}
ASK = {
    "zh": ("{key}是什么？", "{key}是多少？", "{key}？", "告诉我{key}。"),
    "en": ("What is the {key}?", "{key}?", "Tell me the {key}.", "Which {key} is it?"),
}
SAY = {"zh": "{key}是{value}。", "en": "The {key} is {value}."}
REPEAT = {"zh": ("请重复：{text}", "跟我念：{text}", "照着说：{text}"),
          "en": ("Repeat: {text}", "Say this: {text}", "Please repeat: {text}")}
DIGITS = "0123456789"
CHARACTERS = sorted(set("".join((*tables.SURNAMES_ZH, *tables.GIVEN_ZH,
                                 *(zh for zh, _ in tables.CITIES)))))
CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"


def code(rng):
    """As order and tracking numbers, but also as others write them."""
    kind = rng.randrange(4)
    digits = rng.sample(slots.CODE_DIGITS, 4)
    if kind == 0:
        return slots.code(rng, "order", False, tables.ORDER_LETTERS, digits[:3])
    if kind == 1:
        return slots.code(rng, "tracking", False, tables.TRACKING_LETTERS, digits)
    if kind == 2:
        return "".join(rng.choice(DIGITS) for _ in range(rng.randrange(2, 7)))
    letters = tables.ORDER_LETTERS + tables.TRACKING_LETTERS
    return "".join(rng.choice(DIGITS) + rng.choice(letters) for _ in range(rng.randrange(1, 4)))


def word(rng, language):
    """A name that nobody has, so that names have to be copied and not recognised."""
    if language == "zh":
        return "".join(rng.sample(CHARACTERS, rng.randrange(2, 5)))
    syllables = (rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randrange(2, 4)))
    return ("".join(syllables) + rng.choice(("", *CONSONANTS))).capitalize()


def value(rng, language, known):
    slot = rng.choice(("code", "code", "code", "word", "word", "name", "city", "colour", "day",
                       "product", "address", "item", "courier"))
    if slot == "code":
        return code(rng)
    return word(rng, language) if slot == "word" else str(known[slot])


def table(rng, language, known):
    """Keys with values in the system prompt, and one to three questions about them."""
    keys = rng.sample(NAMES[language], rng.randrange(2, 7))
    rows = [(key, value(rng, language, known)) for key in keys]
    colon = "：" if language == "zh" else ": "
    messages = [("system", "\n".join(key + colon + text for key, text in rows))]
    for key, text in rng.sample(rows, min(len(rows), rng.randrange(1, 4))):
        shown = key if language == "zh" else key.lower()
        messages.append(("user", rng.choice(ASK[language]).format(key=shown)))
        messages.append(("assistant", SAY[language].format(key=shown, value=text)))
    return messages


def repetition(rng, language, known):
    words = [value(rng, language, known) for _ in range(rng.randrange(1, 9))]
    text = ("，" if language == "zh" else ", ").join(words)
    return [("user", rng.choice(REPEAT[language]).format(text=text)), ("assistant", text)]


def write(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        language = rng.choice(("zh", "en"))
        known = slots.Draw(rng, rng.choice(tuple(tables.STATES))).values[language]
        kind = table if rng.random() < 0.5 else repetition
        yield {"language": language,
               "messages": [{"role": role, "content": text}
                            for role, text in kind(rng, language, known)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("-o", dest="output", metavar="FILE")
    args = parser.parse_args()
    out = open(args.output, "w") if args.output else sys.stdout
    for drill in write(args.count, args.seed):
        out.write(json.dumps(drill, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
