"""Write the given files as a C table: embed.py FILE... OUTPUT (see src/gateway/page_files.h)."""

import pathlib
import sys

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def bytes_of(data):
    lines = []
    for start in range(0, len(data), 16):
        lines.append("    " + " ".join(f"{byte}," for byte in data[start : start + 16]))
    return "\n".join(lines)


def main():
    paths = [pathlib.Path(arg) for arg in sys.argv[1:-1]]
    parts = ['#include "gateway/page_files.h"\n']
    rows = []
    for i, path in enumerate(paths):
        data = path.read_bytes()
        parts.append(f"static const unsigned char file_{i}[] = {{\n{bytes_of(data)}\n}};\n")
        rows.append(f'    {{"{path.name}", "{TYPES[path.suffix]}", file_{i}, {len(data)}}},')
    parts.append("const ek_page_entry ek_gateway_page_file[] = {\n" + "\n".join(rows) + "\n};")
    parts.append(f"const int32_t ek_gateway_page_n_files = {len(rows)};\n")
    pathlib.Path(sys.argv[-1]).write_text("\n".join(parts))


if __name__ == "__main__":
    main()
