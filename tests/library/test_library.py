#!/usr/bin/env python3
"""Goal: somebody with nothing but the installed files can build against libevenkeel, from C and from C++, and finds
what the headers declare and nothing else. Method: install into a temporary folder and use only what pkg-config says."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import harness
from harness import BUILD, SHARED, SOURCE, folder

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
C_DIALECTS = ["-std=c11", "-std=c17"]
EXAMPLES = ["balance", "route_logits"]

# What the library may ask of others: memory and text functions, mathematics, and the report of a broken contract
# (ek_assert prints and aborts). No heap, no files, no clock, no threads.
LIBC_ALLOWED = re.compile(r"mem(chr|cmp|cpy|move|set)|str(len|cmp|chr)|v?snprintf|abort|fprintf|stderr"
                          r"|(exp2?|log2?|pow|ceil|floor|rint|l?l?round|fmax|fmin|fma|ldexp|frexp|scalbn|sqrt|lrint)f?"
                          r"|__(mem\w+|v?snprintf|fprintf)_chk|__stack_chk_fail")
TOOLCHAIN = re.compile(r"_ITM_\w+|__gmon_start__|__cxa_finalize|__(a|ub|t)san_\w+|__gcov_\w+|__sanitizer_\w+")

# Every interface once, with what it must answer.
CONSUMER = r"""
#include <evenkeel/place_rebalance.h>
#include <evenkeel/route_split.h>
#include <evenkeel/trace.h>
#include <evenkeel/version.h>
#include <stdio.h>
#include <string.h>

static unsigned char memory[1 << 20];

int main(void)
{
    ek_arena arena = ek_arena_over(memory, sizeof memory);
    if (strcmp(ek_version(), EK_VERSION_STRING) != 0) return 1;

    /* Three experts on two devices of two slots: the heavy one on both. */
    ek_place_topology topology;
    ek_place_params params;
    ek_place_hint hint;
    ek_place_balance balance;
    memset(&topology, 0, sizeof topology);
    memset(&hint, 0, sizeof hint);
    topology.n_experts = 3;
    topology.n_slots = 4;
    topology.n_devices = 2;
    topology.n_nodes = 1;
    topology.n_groups = 1;
    ek_place_params_default(&params);
    const double loads[3] = {8, 3, 3};
    int32_t *slot_expert = ek_new(&arena, int32_t, 4);
    if (ek_place_layer(&topology, &params, loads, &hint, arena, slot_expert, &balance) < 0) return 2;
    if (balance.max_over_mean > 1.0000001) return 3;

    /* Its eight tokens are split over its two replicas. */
    const int32_t slot_beg[3] = {0, 2, 4}, tokens[3] = {8, 3, 3};
    int32_t quota[4], device[2];
    ek_route_replicas replicas;
    ek_err err;
    if (ek_route_replicas_build(slot_expert, slot_beg, 3, 2, &arena, &replicas, &err) < 0) return 4;
    if (ek_route_split(&replicas, tokens, arena, quota, device) < 0) return 5;
    if (device[0] != 7 || device[1] != 7) return 6;

    ek_mrt mrt;
    ek_span junk = {memory, 8};
    if (ek_trace_mrt_open(junk, "junk", &mrt, &err) != EK_ETRUNCATED && err.status != EK_EFORMAT) return 7;
    puts(ek_version());
    return 0;
}
"""


def output(*command, **more):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, **more).stdout


class Library(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.root = cls.folder.__enter__()
        done = subprocess.run(["meson", "install", "-C", str(BUILD), "--no-rebuild", "--destdir", str(cls.root)],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        cls.pc = cls.one("**/pkgconfig/evenkeel.pc")
        cls.shared = next(path for path in cls.root.glob("**/libevenkeel.so.*.*.*") if not path.is_symlink())
        cls.static = cls.one("**/libevenkeel.a")
        cls.headers = sorted(cls.root.glob("**/include/evenkeel/*.h"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.__exit__(None, None, None)

    @classmethod
    def one(cls, pattern):
        found = list(cls.root.glob(pattern))
        if len(found) != 1:
            raise AssertionError(f"{pattern}: {found}")
        return found[0]

    def pkg_config(self, *what):
        """What pkg-config says, for where the files lie now."""
        env = {**os.environ, "PKG_CONFIG_PATH": str(self.pc.parent), "PKG_CONFIG_SYSROOT_DIR": str(self.root)}
        return output("pkg-config", *what, "evenkeel", env=env).split()

    def sanitizer(self):
        kind = os.environ.get("EK_SANITIZE", "none")
        return [] if kind == "none" else [f"-fsanitize={kind}"]

    def build(self, compiler, source, name, libraries=None):
        program = self.root / name
        libraries = self.pkg_config("--libs") if libraries is None else libraries
        output(*compiler, *WARNINGS, source, "-o", program, *self.pkg_config("--cflags"), *libraries, *self.sanitizer())
        return program

    def run_program(self, program, *arguments):
        env = {**os.environ, "LD_LIBRARY_PATH": str(self.shared.parent)}
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, env=env, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def compilers(self, plain, *others):
        return [name for name in (plain, *others) if shutil.which(name)]

    def test_every_header_alone(self):
        self.assertIn("place.h", [path.name for path in self.headers])
        flags = self.pkg_config("--cflags")
        languages = [("c", self.compilers("cc", "clang"), C_DIALECTS),
                     ("c++", self.compilers("c++", "g++", "clang++"), ["-std=c++17"])]
        for language, compilers, dialects in languages:
            if not compilers:
                print(f"skipped: no compiler for {language}")
            for compiler in compilers:
                for dialect in dialects:
                    for header in self.headers:
                        unit = f"#include <evenkeel/{header.name}>\n" * 2 + "typedef int not_empty;\n"
                        done = subprocess.run([compiler, "-x", language, dialect, *WARNINGS, "-fsyntax-only", *flags, "-"],
                                              input=unit, capture_output=True, text=True, check=False)
                        self.assertEqual(done.returncode, 0, f"{compiler} {dialect} {header.name}: {done.stderr}")

    def declared(self):
        """Names that the installed headers declare, as the compiler sees them."""
        unit, listing = self.root / "all.c", self.root / "all.txt"
        unit.write_text("".join(f"#include <evenkeel/{header.name}>\n" for header in self.headers))
        output("gcc", "-std=c17", *self.pkg_config("--cflags"), "-aux-info", listing, "-c", unit, "-o", self.root / "all.o")
        functions = re.findall(r"evenkeel/\w+\.h:\d+:N[CIF] \*/ extern [^;]*?\b(ek_\w+) \(", listing.read_text())
        objects = [name for header in self.headers
                   for name in re.findall(r"^extern [^(;\"]*\b(ek_\w+)(?:\[\])*;", header.read_text(), re.MULTILINE)]
        return set(functions) | set(objects)

    @unittest.skipUnless(shutil.which("gcc"), "gcc lists declarations")
    def test_exports_what_is_declared(self):
        listed = output("nm", "-D", "--defined-only", self.shared).splitlines()
        exported = {line.split()[-1].split("@")[0] for line in listed if " A " not in line}
        self.assertEqual([name for name in exported if not name.startswith("ek_")], [])
        self.assertEqual(exported, self.declared())

    def test_static_library_defines_only_ours(self):
        listed = output("nm", "-g", "--defined-only", self.static).splitlines()
        names = {line.split()[-1] for line in listed if len(line.split()) == 3}
        self.assertIn("ek_place_layer", names)
        # The address sanitizer marks each global once more, to see whether two have the same name.
        strangers = [name for name in names if not name.removeprefix("__odr_asan.").startswith("ek_")]
        self.assertEqual(strangers, [])

    def test_needs_nothing_of_the_system(self):
        wanted = {line.split()[-1].split("@")[0] for line in output("nm", "-D", "--undefined-only", self.shared).splitlines()}
        strange = [name for name in wanted if not LIBC_ALLOWED.fullmatch(name) and not TOOLCHAIN.fullmatch(name)]
        self.assertEqual(strange, [])

    def test_has_no_globals(self):
        """Nothing of the library is writable once it is loaded."""
        if os.environ.get("EK_SANITIZE", "none") != "none":
            self.skipTest("sanitizers keep registers of their own")
        found = []
        for line in output("objdump", "-t", self.static).splitlines():
            match = re.match(r"[0-9a-f]+ .{7} (\S+)\s+([0-9a-f]+)\s+(?:\.hidden )?(\S+)$", line)
            if match and int(match.group(2), 16) > 0:
                found.append(match.groups())
        self.assertIn("ek_route_param_rows", [name for _, _, name in found])
        written = [name for section, _, name in found
                   if re.match(r"\.(data|bss|tdata|tbss)\b(?!\.rel\.ro)|\*COM\*", section)]
        self.assertEqual(written, [])

    def test_version(self):
        version = self.pkg_config("--modversion")[0]
        self.assertRegex(version, r"^\d+\.\d+\.\d+$")
        self.assertTrue(self.shared.name.endswith(f".so.{version}"), self.shared)
        major, minor, _ = version.split(".")
        soname = re.search(r"SONAME.*\[(.*)\]", output("readelf", "-d", self.shared)).group(1)
        self.assertEqual(soname, f"libevenkeel.so.0.{minor}" if major == "0" else f"libevenkeel.so.{major}")

    def test_consumer(self):
        version = self.pkg_config("--modversion")[0] + "\n"
        compilers = [["cc", dialect] for dialect in C_DIALECTS]
        compilers += [[name, "-std=c++17"] for name in self.compilers("c++")]
        for number, compiler in enumerate(compilers):
            source = self.root / f"consumer{number}.{'cc' if '+' in compiler[0] else 'c'}"
            source.write_text(CONSUMER)
            program = self.build(compiler, source, f"consumer{number}")
            self.assertEqual(self.run_program(program), version, compiler)

    def test_consumer_of_the_static_library(self):
        source = self.root / "static.c"
        source.write_text(CONSUMER)
        others = [flag for flag in self.pkg_config("--static", "--libs") if flag != "-levenkeel"]
        program = self.build(["cc", "-std=c17"], source, "static", [self.static, *others])
        self.assertEqual(self.run_program(program), self.pkg_config("--modversion")[0] + "\n")
        self.assertNotIn("libevenkeel", output("readelf", "-d", program))

    def test_examples(self):
        programs = {name: self.build(["cc", "-std=c17"], SOURCE / f"examples/{name}.c", f"example_{name}")
                    for name in EXAMPLES}
        loads, placement = self.root / "loads.csv", self.root / "placement.csv"
        loads.write_text("90,132,40,61,104,165,39,4,73,56,183,86\n20,107,104,64,19,197,187,157,172,86,16,27\n")
        printed = self.run_program(programs["balance"], loads, 16, 8, placement)
        for before, after in re.findall(r"mean device (\S+) before, (\S+) after", printed):
            self.assertLess(float(after), float(before))
        self.assertEqual(printed.count("after"), 2, printed)
        rows = [[int(cell) for cell in line.split(",")] for line in placement.read_text().splitlines()]
        self.assertEqual([len(row) for row in rows], [16, 16])
        for row in rows:
            self.assertEqual(set(row), set(range(12)))

        printed = self.run_program(programs["route_logits"])
        self.assertRegex(printed, r"(?m)^token +\d+: experts .* changed$")
        hot, before, after = map(int, re.search(r"expert (\d+): .* rows (\d+) -> (\d+);", printed).groups())
        self.assertLess(after, before, f"expert {hot}")

    def test_example_reads_the_recorded_loads(self):
        path = SHARED / "data/placement/dsv3_zipf1.0.csv"
        if not path.exists():
            self.skipTest(f"{path} is absent")
        program = self.build(["cc", "-std=c17"], SOURCE / "examples/balance.c", "example_recorded")
        printed = self.run_program(program, path, 288, 32)
        after = [float(value) for value in re.findall(r"(\S+) after", printed)]
        self.assertEqual(len(after), 58)
        self.assertLessEqual(max(after), 1.0005)

    def test_program_of_the_documentation(self):
        """The program that docs/LIBRARY.md shows is one that works, and places by hand what one would."""
        text = (SOURCE / "docs/LIBRARY.md").read_text()
        programs = re.findall(r"^```c\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        self.assertEqual(len(programs), 1)
        source = self.root / "shown.c"
        source.write_text(programs[0])
        printed = self.run_program(self.build(["cc", "-std=c17"], source, "shown"))
        self.assertIn("busiest device: 1.00 of the mean", printed)
        self.assertEqual(printed.count("expert 0"), 2, "one replica of the hot expert on each device")

    def test_example_refuses(self):
        program = self.build(["cc", "-std=c17"], SOURCE / "examples/balance.c", "example_refuses")
        loads = self.root / "bad.csv"
        loads.write_text("1,2,3\n4,x,6\n")
        env = {**os.environ, "LD_LIBRARY_PATH": str(self.shared.parent)}
        done = subprocess.run([program, loads, "4", "2"], capture_output=True, text=True, env=env, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("bad.csv:2:3:", done.stderr)


if __name__ == "__main__":
    harness.main()
