#!/usr/bin/env python3
"""Turn a header of src/ into its installed form: "base/arena.h" becomes <evenkeel/arena.h>.

    tools/export_header.py SOURCE OUTPUT

Headers of base keep their name, a room's main header is named after the room, its others carry the room in front.
"""
import pathlib
import re
import sys


def installed_name(room, name):
    if room == "base" or name == f"{room}.h":
        return name
    return f"{room}_{name}"


def main():
    source, output = map(pathlib.Path, sys.argv[1:])
    text = re.sub(r'#include "(\w+)/(\w+\.h)"',
                  lambda match: f"#include <evenkeel/{installed_name(*match.groups())}>", source.read_text())
    output.write_text(text)


if __name__ == "__main__":
    main()
