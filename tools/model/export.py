#!/usr/bin/env python3
"""Write a checkpoint as a GGUF file.

    tools/model/export.py RUN/checkpoint.pt DIR/tokenizer.json -o evenkeel-demo.gguf
    tools/model/export.py RUN/checkpoint.pt DIR/tokenizer.json --mean-with FIRST.gguf -o OUT.gguf

A training that went on from a file and its beginning lie in one valley of the loss, and their mean
answers more than either (Wortsman et al., Robust fine-tuning of zero-shot models,
arXiv:2109.01903, section 3). --share says how much of the beginning is in it.
"""

import argparse

import sys

import bpe
import checkpoint
import gguf

SHARE = 0.3


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("checkpoint")
    parser.add_argument("tokenizer")
    parser.add_argument("-o", dest="output", required=True, metavar="FILE")
    parser.add_argument("--mean-with", metavar="GGUF", help="the file that its training began with")
    parser.add_argument("--share", type=float, default=SHARE, help="of that file in the mean")
    args = parser.parse_args()
    config, step, state = checkpoint.load(args.checkpoint)
    weights = state["weights"].numpy()
    if args.mean_with:
        first_config, first, _ = gguf.read(args.mean_with)
        if first_config != config:
            sys.exit(f"{args.mean_with} and {args.checkpoint} are of different shapes")
        weights = args.share * first + (1 - args.share) * weights
    gguf.write(args.output, config, weights, bpe.Tokenizer.load(args.tokenizer))
    print(f"{args.output}: {step} steps")


if __name__ == "__main__":
    main()
