#!/usr/bin/env python3
"""Texts to calibrate the bundled model with, and to judge it by: what it meets, mixed.

    tools/calibration_text.py FOLDER [--dialogues N] [--seed S] [--kilobytes K]

Writes FOLDER/shop-zh.txt and shop-en.txt, N dialogues of a web shop each in the model's chat format (tools/model/dialogues.py,
with another seed than the training's; without cards, which the model reads but never learned to say), and FOLDER/english.txt, c.txt and python.txt, each K kilobytes of this repository's own
documents and sources. The same arguments give the same files.
"""
import argparse
import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools/model"))
import dialogues  # noqa: E402  (needs the path above)

SEED_OFFSET = 1000  # the training's seeds are below


def chat(messages):
    return "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages
                   if message["role"] != "system")


def shop(count, seed):
    """By language, `count` dialogues each."""
    texts = {"zh": [], "en": []}
    for dialogue in dialogues.write(sys.maxsize, SEED_OFFSET + seed):
        if dialogue["situation"] != "none":
            continue
        if len(texts[dialogue["language"]]) < count:
            texts[dialogue["language"]].append(chat(dialogue["messages"]))
        elif all(len(of_language) >= count for of_language in texts.values()):
            break
    return {language: "".join(of_language) for language, of_language in texts.items()}


def sources(patterns, size, rng):
    """Pieces of files in no particular order, so that every part of the text has some of each."""
    pieces = []
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text()
            pieces += [text[at:at + 2000] for at in range(0, len(text), 2000)]
    rng.shuffle(pieces)
    return "\n".join(pieces).encode()[:size].decode(errors="ignore")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--dialogues", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kilobytes", type=int, default=30)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(arguments.seed)
    texts = {f"shop-{language}": text for language, text in shop(arguments.dialogues, arguments.seed).items()}
    for name, patterns in (("english", ["docs/*.md", "docs/adr/*.md", "README.md"]), ("c", ["src/*/*.c"]),
                           ("python", ["tools/*.py", "tests/*/*.py"])):
        texts[name] = sources(patterns, arguments.kilobytes * 1000, rng)
    for name, text in texts.items():
        path = arguments.folder / f"{name}.txt"
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
