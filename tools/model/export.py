#!/usr/bin/env python3
"""Write a checkpoint as a GGUF file.

    tools/model/export.py RUN/checkpoint.pt DIR/tokenizer.json -o evenkeel-demo.gguf
"""

import argparse

import bpe
import checkpoint
import gguf


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("checkpoint")
    parser.add_argument("tokenizer")
    parser.add_argument("-o", dest="output", required=True, metavar="FILE")
    args = parser.parse_args()
    config, step, state = checkpoint.load(args.checkpoint)
    gguf.write(args.output, config, state["weights"].numpy(), bpe.Tokenizer.load(args.tokenizer))
    print(f"{args.output}: {step} steps")


if __name__ == "__main__":
    main()
