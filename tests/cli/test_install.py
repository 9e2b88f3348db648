#!/usr/bin/env python3
"""Goal: what `meson install` puts down works away from the source tree: program, manual page, completion, and a
library that another program can be built against with pkg-config. Method: install into a temporary folder."""
import os
import re
import subprocess
import unittest

import harness
from harness import BUILD, folder

CONSUMER = r"""
#include <evenkeel/route.h>
#include <stdio.h>

int main(void)
{
    static unsigned char memory[1 << 20];
    ek_arena perm = ek_arena_over(memory, sizeof memory / 2);
    ek_arena step = ek_arena_over(memory + sizeof memory / 2, sizeof memory / 2);
    const ek_route_gate gate = {.score = EK_ROUTE_SOFTMAX, .n_experts = 4, .top_k = 2, .n_groups = 1,
                                .n_groups_used = 1, .renormalise = true, .scale = 1.0f};
    const ek_route_params params = {.policy = EK_ROUTE_POLICY_STATIC};
    const float logits[8] = {0.0f, 3.0f, 1.0f, 2.0f, 5.0f, 0.0f, 0.0f, 4.0f};
    ek_router *router;
    ek_route_plan plan;
    ek_err err = {0};
    if (ek_route_create(&gate, 1, &params, &perm, &router, &err) < 0) return puts(err.text), 1;
    if (ek_route_plan_layer(router, 0, logits, NULL, 2, NULL, &step, &plan) < 0) return 2;
    printf("%d %d %d %d\n", plan.expert_id[0], plan.expert_id[1], plan.expert_id[2], plan.expert_id[3]);
    return 0;
}
"""


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = folder()
        cls.root = cls.folder.__enter__()
        done = subprocess.run(["meson", "install", "-C", str(BUILD), "--no-rebuild", "--destdir", str(cls.root)],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        cls.files = sorted(path.relative_to(cls.root) for path in cls.root.rglob("*") if not path.is_dir())

    @classmethod
    def tearDownClass(cls):
        cls.folder.__exit__(None, None, None)

    def find(self, pattern):
        found = [path for path in self.files if re.search(pattern, str(path))]
        self.assertEqual(len(found), 1, f"{pattern}: {found} of {[str(path) for path in self.files]}")
        return self.root / found[0]

    def test_program(self):
        program = self.find(r"bin/evenkeel$")
        done = subprocess.run([program, "version"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_manual_page(self):
        page = self.find(r"share/man/man1/evenkeel\.1$")
        self.assertIn(".Nm evenkeel", page.read_text())

    def test_completion(self):
        script = self.find(r"share/bash-completion/completions/evenkeel$")
        subprocess.run(["bash", "-n", script], check=True)
        self.assertIn("complete -o default -F _evenkeel evenkeel", script.read_text())

    def test_licence(self):
        self.assertIn("Apache License", self.find(r"share/doc/evenkeel/LICENSE$").read_text())

    def test_library_exports_its_api_only(self):
        library = self.find(r"libevenkeel\.so\.\d+\.\d+\.\d+$")
        out = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
        symbols = [line.split()[-1] for line in out.splitlines()]
        self.assertIn("ek_route_plan_layer", symbols)
        self.assertEqual([symbol for symbol in symbols if not symbol.startswith("ek_")], [])

    def compile_consumer(self, *libraries):
        """The consumer against the installed headers, with the flags that pkg-config gives for where they lie now."""
        pc = self.find(r"pkgconfig/evenkeel\.pc$")
        env = {**os.environ, "PKG_CONFIG_PATH": str(pc.parent), "PKG_CONFIG_SYSROOT_DIR": str(self.root)}
        ask = lambda what: subprocess.run(["pkg-config", what, "evenkeel"], capture_output=True, text=True, env=env,
                                          check=True).stdout.split()
        flags = ask("--cflags") + (list(libraries) or ask("--libs"))
        sanitize = os.environ.get("EK_SANITIZE", "none")
        if sanitize != "none":
            flags.append(f"-fsanitize={sanitize}")
        source, program = self.root / "consumer.c", self.root / "consumer"
        source.write_text(CONSUMER)
        subprocess.run(["cc", "-std=c17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", source, "-o", program, *flags],
                       check=True, cwd=self.root)
        return program

    def check_output(self, program, **env):
        done = subprocess.run([program], capture_output=True, text=True, check=False, env={**os.environ, **env})
        self.assertEqual((done.returncode, done.stdout), (0, "1 3 0 3\n"), done.stderr)

    def test_consumer(self):
        library = self.find(r"libevenkeel\.so\.\d+\.\d+\.\d+$")
        self.check_output(self.compile_consumer(), LD_LIBRARY_PATH=str(library.parent))

    def test_consumer_of_the_static_library(self):
        self.check_output(self.compile_consumer(str(self.find(r"libevenkeel\.a$")), "-lm"))


if __name__ == "__main__":
    harness.main()
