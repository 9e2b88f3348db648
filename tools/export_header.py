#!/usr/bin/env python3
"""Turn headers of src/ into what libevenkeel installs.

    tools/export_header.py header SOURCE OUTPUT      "base/arena.h" becomes <evenkeel/arena.h>, usable from C++ too
    tools/export_header.py map NODE OUTPUT SOURCE... the linker's version script: what these headers declare is exported
    tools/export_header.py --self-test

Headers of base keep their name, a room's main header is named after the room, its others carry the room in front.
So the API is described once, in src/, and what the library exports is exactly what the installed headers declare.
"""
import pathlib
import re
import sys

# The one header of a room that its name alone stands for, where that is not ROOM.h.
MAIN = {"trace": "mrt.h"}

OPEN = "#ifdef __cplusplus\nextern \"C\" {\n#endif\n"
CLOSE = "#ifdef __cplusplus\n}\n#endif\n"


def installed_name(room, name):
    if room == "base":
        return name
    return f"{room}.h" if name == MAIN.get(room, f"{room}.h") else f"{room}_{name}"


def exported(text):
    """The header with its include lines turned to the installed place and its declarations given C linkage."""
    text = re.sub(r'#include "(\w+)/(\w+\.h)"',
                  lambda match: f"#include <evenkeel/{installed_name(*match.groups())}>", text)
    lines = text.rstrip("\n").split("\n")
    if lines[-1] != "#endif":
        raise ValueError("a header ends with the #endif of its guard")
    guard = next(number for number, line in enumerate(lines) if line.startswith("#define "))
    after = max([guard] + [number for number, line in enumerate(lines) if line.startswith("#include ")])
    body = "\n".join(lines[after + 1:-1])
    return "\n".join(lines[:after + 1]) + "\n\n" + OPEN + body.rstrip("\n") + "\n\n" + CLOSE + "\n#endif\n"


def outside_braces(code):
    """The code with every {...} replaced by a semicolon."""
    kept, depth = [], 0
    for char in code:
        depth += char == "{"
        if depth == 0:
            kept.append(char)
        if char == "}":
            depth -= 1
            if depth == 0:
                kept.append(";")
    return "".join(kept)


def declared(text):
    """Names of the functions and objects with external linkage that a header declares."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    code = re.sub(r"^#ifdef __cplusplus\n.*?^#(?:else|endif)$", " ", code, flags=re.DOTALL | re.MULTILINE)
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", " ", code, flags=re.MULTILINE)
    names = []
    for statement in outside_braces(code).split(";"):
        if re.match(r"\s*(typedef|struct|enum|union|static|EK_MUST\s+static)\b", statement):
            continue
        function = re.search(r"\b(ek_\w+)\s*\(", statement)
        data = re.match(r"\s*extern\b[^(]*\b(ek_\w+)\s*(\[[^]]*\]\s*)*$", statement)
        if function or data:
            names.append((function or data).group(1))
    return names


def version_script(node, texts):
    names = sorted({name for text in texts for name in declared(text)})
    return f"{node} {{\nglobal:\n" + "".join(f"    {name};\n" for name in names) + "local:\n    *;\n};\n"


SAMPLE = """/* ek_not_this( */
#ifndef EK_PLACE_X_H
#define EK_PLACE_X_H

#include "base/arena.h"
#include "trace/mrt.h"

#define ek_new(a) \\
    (ek_arena_alloc(a))
typedef struct ek_a { int b; } ek_a;
typedef double ek_fn(const void *ctx);
static inline int ek_inline(int a)
{
    return ek_called(a);
}
#ifdef __cplusplus
extern "C" {
#endif
extern const ek_a ek_rows[];
EK_MUST ek_status ek_place_x(ek_a *a,
                             ek_fn *f);
void ek_err(const char *fmt, ...) EK_PRINTF(1, 2);
#ifdef __cplusplus
}
#endif
const int *ek_place_y(void);

#endif
"""


def self_test():
    names = declared(SAMPLE)
    if names != ["ek_rows", "ek_place_x", "ek_err", "ek_place_y"]:
        return f"self-test: the sample declares {names}"
    text = exported(SAMPLE)
    if "#include <evenkeel/trace.h>\n\n#ifdef __cplusplus\nextern" not in text or not text.endswith(CLOSE + "\n#endif\n"):
        return f"self-test: the sample becomes\n{text}"
    return None


def main():
    failure = self_test()
    if failure:
        sys.exit(failure)
    match sys.argv[1:]:
        case ["--self-test"]:
            print("export_header: the self-test passes")
        case ["header", source, output]:
            pathlib.Path(output).write_text(exported(pathlib.Path(source).read_text()))
        case ["map", node, output, *sources]:
            pathlib.Path(output).write_text(version_script(node, [pathlib.Path(s).read_text() for s in sources]))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
