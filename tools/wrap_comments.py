#!/usr/bin/env python3
"""Wrap comments that are wider than a line may be; clang-format leaves the text of comments alone.

    tools/wrap_comments.py FILE...      rewrite the files in place
    tools/wrap_comments.py --self-test

Only what is too wide is touched: the paragraph of a block comment in which a line is too long is filled again, a
one-line comment that is too long becomes a block, and one that trails code moves above its line. Lines that are
indented beyond their paragraph (tables, code, pictures) are left as they are; tools/tidy.py names them.
"""
import pathlib
import re
import sys
import textwrap

COLUMNS = 100
BEGINS_ANEW = re.compile(r"^(@\w+|-|\d+\.)(\s|$)")


def filled(prefix, first_indent, next_indent, words):
    return textwrap.wrap(" ".join(words), width=COLUMNS, initial_indent=prefix + first_indent,
                         subsequent_indent=prefix + next_indent, break_long_words=False, break_on_hyphens=False)


def hanging_indent(text):
    """Where the second line of an item begins that has only one so far."""
    match = re.match(r"(@param\s+\w+(?:,\s*\w+)*\s+|@\w+\s+|-\s+|\d+\.\s+)", text)
    return " " * (len(match.group(1)) if match and not text.startswith("@param") else 8 if match else 0)


def wrap_body(lines, prefix):
    """Lines of a block comment, without its first and last, each beginning with `prefix` and then text."""
    out, i = [], 0
    body = [line[len(prefix):] if line.startswith(prefix) else None for line in lines]
    while i < len(lines):
        if body[i] is None or not body[i].strip():
            out.append(lines[i])
            i += 1
            continue
        start, indent = i, len(body[i]) - len(body[i].lstrip())
        i += 1
        item = BEGINS_ANEW.match(body[start].lstrip()) is not None
        while i < len(lines) and body[i] is not None and body[i].strip():
            here = len(body[i]) - len(body[i].lstrip())
            if BEGINS_ANEW.match(body[i].lstrip()) or (here != indent and not (item and here > indent)):
                break
            i += 1
        paragraph = body[start:i]
        too_long = any(len(prefix) + len(line) > COLUMNS for line in paragraph)
        verbatim = indent >= 2 and not item
        if not too_long or verbatim:
            out += lines[start:i]
            continue
        text = " ".join(line.strip() for line in paragraph)
        if item:
            more = " " * (len(paragraph[1]) - len(paragraph[1].lstrip())) if len(paragraph) > 1 else (
                " " * indent + hanging_indent(text))
        else:
            more = " " * indent
        out += filled(prefix, " " * indent, more, text.split())
    return out


def wrap(text):
    lines, out, i = text.split("\n"), [], 0
    while i < len(lines):
        line = lines[i]
        single = re.match(r"^(\s*)/(\*\*?) (.*) \*/$", line)
        trailing = re.match(r"^(\s*)(\S.*?)\s+/\* ([^*]*) \*/$", line)
        opening = re.match(r"^(\s*)/\*\*?$", line)
        if len(line) > COLUMNS and single:
            indent, mark, words = single.groups()
            out.append(f"{indent}/{mark}")
            out += wrap_body([f"{indent} * {words}"], f"{indent} * ")
            out.append(f"{indent} */")
        elif len(line) > COLUMNS and trailing and not trailing.group(2).startswith(("#", "*", "/")):
            indent, code, words = trailing.groups()
            comment = f"{indent}/* {words} */"
            if len(comment) > COLUMNS:
                out.append(f"{indent}/*")
                out += wrap_body([f"{indent} * {words}"], f"{indent} * ")
                out.append(f"{indent} */")
            else:
                out.append(comment)
            out.append(indent + code)
        elif opening:
            end = next((j for j in range(i + 1, len(lines)) if "*/" in lines[j]), None)
            if end is None or lines[end].strip() != "*/":
                out.append(line)
            else:
                out.append(line)
                out += wrap_body(lines[i + 1:end], opening.group(1) + " * ")
                i = end
                continue
        else:
            out.append(line)
        i += 1
    return "\n".join(out)


def self_test():
    long = "word " * 30
    cases = [
        (f"/* {long.strip()} */", 4),
        (f"    int x; /* {('word ' * 18).strip()} */", 2),
        (f"/*\n * {long.strip()}\n * and more\n */", 4),
        (f"/**\n * @param a {long.strip()}\n * @return EK_OK\n */", 5),
        (f"/*\n *     table {long.strip()}\n */", 3),
        ("/*\n * short\n */\nint x; /* short */", 4),
    ]
    for text, n_lines in cases:
        found = wrap(text)
        if found.count("\n") + 1 != n_lines:
            return f"self-test: {text!r} became {found!r}"
        if re.sub(r"[\s*/]+", " ", found).split() != re.sub(r"[\s*/]+", " ", text).split() and "int x; /*" not in text:
            return f"self-test: {text!r} lost words in {found!r}"
        if wrap(found) != found:
            return f"self-test: {found!r} is not stable"
    return None


def main():
    failure = self_test()
    if failure or sys.argv[1:] == ["--self-test"]:
        print(failure or "wrap: the self-test keeps every word")
        return 1 if failure else 0
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        text = path.read_text()
        wrapped = wrap(text)
        if wrapped != text:
            path.write_text(wrapped)
            print(f"wrapped {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
