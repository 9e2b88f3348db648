#!/usr/bin/env python3
"""Guard the speed of the forward pass on machines whose clocks cannot be trusted: count instructions instead.

    tools/guard_instructions.py BUILD_DIR [--update]
    tools/guard_instructions.py --self-test

build/bench/steps runs a fixed number of steps on one thread under callgrind, for small models, kernels tables and batch
sizes. The instructions per token are compared with those in tools/instructions.json: 2 % more in any case fails, 2 %
less asks for --update, which writes the file anew. The same program gives the same counts wherever it runs, since
callgrind shows it the same processor everywhere; but another compiler or C library makes another program, so the file
says which ones it holds for. With others, and where something needed is missing, the guard says so and ends with 77.

It sees work that was added by mistake (a copy, a lost fused path, a loop that stopped being vectorised). It does not see
caches, memory bandwidth, threads or AVX-512, which callgrind does not know: those are for build/bench/engine and kernels.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BASELINE = ROOT / "tools/instructions.json"
TOLERANCE = 0.02
EXIT_SKIPPED = 77
SECONDS_PER_CASE = 120

DEMO = ROOT / "models/evenkeel-demo.gguf"
MADE = {"q4_k": ("olmoe", "q4_k"), "q6_k": ("olmoe", "q6_k")}  # name: architecture and type of tools/make_tiny_model.py

# (model, kernels, phase, batch, steps); the reference is slow, so it gets less to do.
CASES = [(model, "avx2", phase, batch, steps)
         for model in ("demo", "q4_k", "q6_k") for phase, batch, steps in (("prefill", 64, 1), ("decode", 1, 8),
                                                                           ("decode", 8, 4))]
CASES += [(model, "reference", phase, batch, steps)
          for model in ("demo", "q4_k", "q6_k") for phase, batch, steps in (("prefill", 8, 1), ("decode", 1, 2))]


class Skip(Exception):
    """Why nothing can be said here."""


def case_name(case):
    model, kernels, phase, batch, _ = case
    return f"{model} {kernels} {phase} {batch}"


# ---- what is needed ----

def need_machine():
    if not shutil.which("valgrind"):
        raise Skip("valgrind is not installed (tools/setup.sh check installs it)")
    flags = pathlib.Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not flags.exists() or " avx2 " not in flags.read_text():
        raise Skip("this processor has no AVX2")


def need_build(build_dir):
    told = subprocess.run(["meson", "introspect", "--buildoptions", str(build_dir)], capture_output=True, text=True,
                          check=True).stdout
    options = {option["name"]: option["value"] for option in json.loads(told)}
    if options["buildtype"] != "release" or options["b_sanitize"] != "none":
        raise Skip(f"{build_dir} is built for {options['buildtype']}, sanitizers: {options['b_sanitize']}; only plain "
                   "release builds compare")
    if not (build_dir / "bench/steps").exists():
        raise Skip(f"{build_dir} has no bench/steps (-Dbench=true builds it)")


def make_models(folder):
    """name -> path"""
    python = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    if subprocess.run([python, "-c", "import numpy"], capture_output=True, check=False).returncode:
        raise Skip(f"{python} has no numpy, which makes the models (tools/setup.sh test installs it)")
    models = {"demo": DEMO}
    for name, (arch, kind) in MADE.items():
        models[name] = folder / f"{name}.gguf"
        subprocess.run([python, str(ROOT / "tools/make_tiny_model.py"), "--arch", arch, "--type", kind, "-o",
                        str(models[name])], check=True, stdin=subprocess.DEVNULL)
    return models


# ---- counting ----

def total_of(profile):
    """The instructions that a callgrind file sums up."""
    for line in profile.splitlines():
        if line.startswith("totals:"):
            return int(line.split()[1])
    raise RuntimeError("callgrind wrote no total")


def count(build_dir, folder, models, case):
    """(instructions per token, compiler) of one case."""
    model, kernels, phase, batch, steps = case
    profile = folder / (case_name(case).replace(" ", "-") + ".callgrind")
    command = ["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={profile}",
               "--toggle-collect=ek_bench_rig_steps", str(build_dir / "bench/steps"), "--model", str(models[model]),
               "--kernels", kernels, "--phase", phase, "--batch", str(batch), "--steps", str(steps)]
    # What stands in the environment moves the stack, and with it the paths that copies of the C library take.
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_PER_CASE,
                          env={"PATH": os.environ["PATH"]}, check=False)
    if done.returncode:
        raise RuntimeError(f"{case_name(case)}: {done.stderr.strip()[-1000:]}")
    said = json.loads(done.stdout.strip().splitlines()[-1])
    if said["kernels"] != kernels or said["tokens"] != batch * steps:
        raise RuntimeError(f"{case_name(case)}: bench/steps ran something else: {said}")
    total = total_of(profile.read_text())
    if total == 0:
        raise RuntimeError(f"{case_name(case)}: nothing was counted; is ek_bench_rig_steps still there?")
    return round(total / said["tokens"]), said["compiler"]


def measure(build_dir, before_rest=lambda built: None):
    """What the baseline file holds, for this build. before_rest sees compiler and library after the first case."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        models = make_models(folder)
        first, compiler = count(build_dir, folder, models, CASES[0])
        built = {"compiler": compiler, "library": " ".join(platform.libc_ver())}
        before_rest(built)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            rest = list(workers.map(lambda case: count(build_dir, folder, models, case)[0], CASES[1:]))
    return {**built, "instructions_per_token": dict(zip(map(case_name, CASES), [first, *rest]))}


# ---- judging ----

def same_program(baseline, built):
    for key in ("compiler", "library"):
        if baseline[key] != built[key]:
            raise Skip(f"{BASELINE.name} holds for {baseline[key]}, this is {built[key]}")


def judge(baseline, found):
    """(failures, notes): one line for each case that differs by more than the tolerance."""
    failures, notes = [], []
    for name, now in found.items():
        before = baseline.get(name)
        if before is None:
            failures.append(f"{name}: {now} instructions per token; the baseline lacks this case")
            continue
        line = f"{name}: {now} instructions per token, {100 * (now / before - 1):+.1f} % (was {before})"
        if now > before * (1 + TOLERANCE):
            failures.append(line)
        elif now < before * (1 - TOLERANCE):
            notes.append(line)
    failures += [f"{name}: in the baseline, but not measured any more" for name in baseline if name not in found]
    return failures, notes


def self_test():
    baseline = {"same": 1000, "in": 1000, "out": 1000, "less": 1000, "gone": 1000}
    found = {"same": 1000, "in": 1020, "out": 1021, "less": 979, "new": 5}
    failures, notes = judge(baseline, found)
    if [line.split(":")[0] for line in failures] != ["out", "new", "gone"] or "+2.1 %" not in failures[0]:
        return f"failures: {failures}"
    if [line.split(":")[0] for line in notes] != ["less"]:
        return f"notes: {notes}"
    if total_of("events: Ir\nfn=(1) x\n3 4\ntotals: 1234\n") != 1234:
        return "totals"
    built = {"compiler": "gcc 1", "library": "glibc 2"}
    same_program(built, dict(built))
    for key in built:
        try:
            same_program(built, {**built, key: "other"})
            return f"another {key} went unseen"
        except Skip:
            pass
    if len(set(map(case_name, CASES))) != len(CASES):
        return "two cases of one name"
    return None


def guard(build_dir, update):
    need_machine()
    need_build(build_dir)
    if update:
        found = measure(build_dir)
        BASELINE.write_text(json.dumps(found, indent=2) + "\n")
        print(f"guard: wrote {BASELINE.relative_to(ROOT)}: {len(CASES)} cases, {found['compiler']}, {found['library']}")
        return 0
    baseline = json.loads(BASELINE.read_text())
    found = measure(build_dir, lambda built: same_program(baseline, built))
    failures, notes = judge(baseline["instructions_per_token"], found["instructions_per_token"])
    if failures:
        print("\n".join(failures))
        print("guard: more work for the same tokens than before; if that is meant, tools/guard_instructions.py "
              f"{build_dir} --update writes the new baseline")
        return 1
    for line in notes:
        print(line)
    print(f"guard: {len(notes)} of {len(CASES)} cases take less than before; write that down with --update" if notes else
          f"guard: {len(CASES)} cases take the instructions that they took before")
    return 0


def main():
    failure = self_test()
    if failure:
        print(f"self-test: {failure}")
        return 1
    if sys.argv[1:] == ["--self-test"]:
        print("guard: the self-test finds every kind of change")
        return 0
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("build_dir", type=pathlib.Path)
    parser.add_argument("--update", action="store_true", help="write tools/instructions.json")
    args = parser.parse_args()
    try:
        return guard(args.build_dir.resolve(), args.update)
    except Skip as reason:
        print(f"skipped: {reason}")
        return EXIT_SKIPPED


if __name__ == "__main__":
    sys.exit(main())
