#!/usr/bin/env python3
"""Ask a model the free questions of probes.txt and print what it says, as tables for docs/MODEL.md.

    tools/model/probe.py models/evenkeel-demo.gguf [--program build/evenkeel]
"""

import argparse
import pathlib

import serving

QUESTIONS = pathlib.Path(__file__).parent / "probes.txt"


def conversations():
    for line in QUESTIONS.read_text().split("\n"):
        if line and not line.startswith("#"):
            yield line.split(" / ")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model")
    parser.add_argument("--program", type=pathlib.Path, default=serving.default_program())
    args = parser.parse_args()
    print("| asked | answered |\n|---|---|")
    with serving.Server(args.program, args.model) as server:
        for turns in conversations():
            messages = []
            for number, turn in enumerate(turns):
                messages.append({"role": "user", "content": turn})
                answer = server.chat(messages, 60)
                messages.append({"role": "assistant", "content": answer})
                shown = answer.replace("\n", " ").replace("|", "\\|")
                print(f"| {'… ' if number else ''}{turn} | {shown} |")


if __name__ == "__main__":
    main()
