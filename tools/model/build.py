#!/usr/bin/env python3
"""Make the default model from an empty folder: data, tokenizer, rows, training, GGUF file.

    tools/model/build.py [--work training] [--steps N] [--data]
    tools/model/build.py --work training-more --from models/evenkeel-demo.gguf [--again-steps N]

Stages run in order; one whose result lies in the folder is not run again, and training goes on
from its last checkpoint. Everything but the fetched packages is made from seeds, so an empty folder
gives the same data each time, and the same model with the same libraries. Training goes over the
data twice, the second time from the file that the first one ended with and with a rate that begins
anew; the model is a mean of both ends. --from makes the second pass alone, from a model that is
there and with its vocabulary.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys

import bpe
import dialogues
import drills
import pack
import packages
import prose

HERE = pathlib.Path(__file__).parent
DIALOGUES, LONG_DIALOGUES, DRILLS = 130000, 12000, 30000
PROSE_MEGABYTES = 6
VALID = 400  # dialogues and drills each
TOKENS = 4096
# What the vocabulary is learned from: file, weight, megabytes.
VOCABULARY = (("dialogue.jsonl", 1, 4), ("drill.jsonl", 1, 0.5), ("zh.train.txt", 1, 2),
              ("en.train.txt", 1, 2), ("c.train.txt", 1, 1), ("py.train.txt", 1, 1))
POEMS_TIMES = 3  # the poems are little beside the articles
STEPS, AGAIN_STEPS = 6000, 4000
MATCH_STEP = 680  # when match.py gives the second layer its beginning


def write_lines(path, objects):
    temporary = path.with_suffix(".part")
    with open(temporary, "w") as file:
        for item in objects:
            file.write(json.dumps(item, ensure_ascii=False) + "\n")
    os.replace(temporary, path)


def make_dialogues(work, _):
    seen = set()
    write_lines(work / "dialogue_long.jsonl",
                dialogues.write(LONG_DIALOGUES, 11, dialogues.ROUNDS_LONG, seen))
    write_lines(work / "dialogue.valid.jsonl", dialogues.write(VALID, 12, None, seen))
    write_lines(work / "dialogue.jsonl", dialogues.write(DIALOGUES, 1, None, seen))


def make_drills(work, _):
    write_lines(work / "drill.valid.jsonl", drills.write(VALID, 13))
    write_lines(work / "drill.jsonl", drills.write(DRILLS, 3))


def make_prose(work, _):
    """The packages' text, and the articles beside the poems."""
    packages.extract(work)
    articles = list(prose.write(2, PROSE_MEGABYTES * 1e6))
    for part, chosen, times in (("valid", articles[:VALID // 4], 1),
                                ("train", articles[VALID // 4:], POEMS_TIMES)):
        path = work / f"zh.{part}.txt"
        texts = path.read_text().split("\0") * times + chosen
        random.Random(5).shuffle(texts)
        path.write_text("\0".join(texts))
    (work / "prose.done").touch()


def make_tokenizer(work, source):
    if source:
        import gguf  # and with it PyTorch, which the data do not need
        bpe.Tokenizer(gguf.read(source)[2]).save(work / "tokenizer.json")
        return
    texts = [bpe.read(f"{work / name}:{weight}:{size}") for name, weight, size in VOCABULARY]
    bpe.Tokenizer(bpe.train(texts, TOKENS)).save(work / "tokenizer.json")


def make_rows(work, _):
    pack.pack(work)


def run(*command):
    code = subprocess.run([sys.executable, *map(str, command)], check=False).returncode
    if code:
        sys.exit(code)  # the command has said why


# Stage, what is there when it is done, how it is made.
STAGES = (
    ("dialogues", "dialogue.jsonl", make_dialogues),
    ("drills", "drill.jsonl", make_drills),
    ("prose", "prose.done", make_prose),
    ("tokenizer", "tokenizer.json", make_tokenizer),
    ("rows", "valid.npz", make_rows),
)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("training"))
    parser.add_argument("--steps", type=int, default=STEPS, help="of the first pass")
    parser.add_argument("--again-steps", type=int, default=AGAIN_STEPS, help="of the second")
    parser.add_argument("--from", dest="source", metavar="GGUF", help="go on from this model")
    parser.add_argument("--data", action="store_true", help="stop before training")
    args = parser.parse_args(arguments)
    args.work.mkdir(parents=True, exist_ok=True)
    for name, result, make in STAGES:
        if (args.work / result).exists():
            print(f"{name}: here", flush=True)
        else:
            print(f"{name}: making", flush=True)
            make(args.work, args.source)
    if not args.data:
        train(args)


def first_pass(args, result):
    """From nothing, once interrupted to begin the matching heads."""
    training = args.work / "run"
    steps = (HERE / "train.py", args.work, "--out", training, "--steps", args.steps,
             "--vocabulary", TOKENS)
    if not (training / "matched").exists():
        run(*steps, "--until", MATCH_STEP)
        run(HERE / "match.py", training / "checkpoint.pt", args.work)
        (training / "matched").touch()
    run(*steps)
    run(HERE / "export.py", training / "checkpoint.pt", args.work / "tokenizer.json", "-o", result)


def train(args):
    """Both passes, or the second one from what is given, and the file."""
    first, again = args.source or args.work / "first.gguf", args.work / "again"
    if not args.source:
        first_pass(args, first)
    run(HERE / "train.py", args.work, "--out", again, "--steps", args.again_steps, "--from", first)
    run(HERE / "export.py", again / "checkpoint.pt", args.work / "tokenizer.json", "--mean-with",
        first, "-o", args.work / "evenkeel-demo.gguf")


if __name__ == "__main__":
    main()
