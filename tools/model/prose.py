#!/usr/bin/env python3
"""Write Chinese prose about the shop's things, from prose/zh.txt and the grammar's knowledge.

    tools/model/prose.py --megabytes 6 --seed 2 -o prose.txt      articles with NUL between them
    tools/model/prose.py --articles 3                             a few of them, to read

Little Chinese text may be redistributed inside a model; this carries the language between the poems
and the dialogues. No two articles are alike, none has a held-out value.
"""

import argparse
import pathlib
import random
import sys

import grammar
import slots

FILE = pathlib.Path(__file__).parent / "prose" / "zh.txt"
SENTENCES_MIN = 4


def articles(path=FILE):
    """(title, sentences) of each article, as templates."""
    found = []
    for line in path.read_text().split("\n"):
        if line.startswith("article "):
            found.append((grammar.Template(line[8:]), []))
        elif line and not line.startswith("#"):
            found[-1][1].append(grammar.Template(line))
    return found


def explanations(intents):
    """(term, template of its answer) for what the grammar knows in Chinese."""
    return [(intent.term["zh"], turn.answers["zh"][0])
            for intent in intents if intent.term for turn in intent.cases[0].turns[:1]]


class Author:
    def __init__(self, rng):
        self.rng = rng
        self.articles, self.known = articles(), explanations(grammar.load())

    def article(self):
        rng = self.rng
        values = slots.Draw(rng, rng.choice(grammar.STATES)).values["zh"]
        title, sentences = rng.choice(self.articles)
        count = rng.randrange(SENTENCES_MIN, len(sentences) + 1)
        chosen = sorted(rng.sample(range(len(sentences)), count))
        text = "".join(sentences[i].expand(values, rng) for i in chosen)
        if rng.random() < 0.3:
            term, answer = rng.choice(self.known)
            text += f"\n小知识：{term}。{answer.expand(values, rng)}"
        return title.expand(values, rng) + "\n" + text


def write(seed, byte_count):
    """Different articles until they have so many bytes."""
    author, seen = Author(random.Random(seed)), set()
    while byte_count > 0:
        text = author.article()
        if text not in seen:
            seen.add(text)
            byte_count -= len(text.encode()) + 1
            yield text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--megabytes", type=float, default=6)
    parser.add_argument("--articles", type=int, help="print so many, to be read")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("-o", dest="output", metavar="FILE")
    args = parser.parse_args()
    if args.articles:
        author = Author(random.Random(args.seed))
        print("\n\n".join(author.article() for _ in range(args.articles)))
        return
    out = open(args.output, "w") if args.output else sys.stdout
    out.write("\0".join(write(args.seed, args.megabytes * 1e6)))


if __name__ == "__main__":
    main()
