#!/usr/bin/env bash
# Everything about the tree that is not a test: arrows, purity, house rules, format, static analysis, scripts, docs,
# and that the forward pass takes no more instructions than before.
#
#   tools/check.sh BUILD_DIR [--counts FILE]
#
# Each check counts as one; the last line says how many passed, failed and were skipped. A check's own output is shown
# in full when it fails and as its last line when it passes or, ending with 77, says why it cannot be made here.
set -u
cd "$(dirname "$0")/.." || exit 1

build=${1:?usage: tools/check.sh BUILD_DIR [--counts FILE]}
counts=
[ "${2:-}" = --counts ] && counts=${3:?--counts needs a file}
passed=0
failed=0
skipped=0

check() {
    local name=$1
    shift
    local output code=0
    output=$("$@" 2>&1 </dev/null) || code=$?
    if [ "$code" -eq 0 ]; then
        passed=$((passed + 1))
        printf 'ok      %-8s %s\n' "$name" "$(printf '%s\n' "$output" | tail -n 1)"
    elif [ "$code" -eq 77 ]; then
        skipped=$((skipped + 1))
        printf 'skipped %-8s %s\n' "$name" "$(printf '%s\n' "$output" | tail -n 1)"
    else
        failed=$((failed + 1))
        printf 'FAILED  %s\n%s\n' "$name" "$(printf '%s\n' "$output" | sed 's/^/    /' | tail -n 100)"
    fi
}

c_files() { git ls-files -z --cached --others --exclude-standard '*.c' '*.h'; }

check_format() {
    c_files | xargs -0 clang-format-14 --dry-run -Werror && echo "every C file is as clang-format leaves it"
}

# Two jobs at a time: one analysis takes up to a few hundred megabytes.
check_lint() {
    git ls-files -z --cached --others --exclude-standard 'src/*.c' |
        xargs -0 -P "$(nproc)" -n 4 clang-tidy-14 --quiet -p "$build" 2>/dev/null |
        tee /dev/stderr | grep -E ': (warning|error): ' && return 1
    echo "clang-tidy has nothing to say"
}

check_shell() {
    shellcheck .ci/run tools/*.sh deploy/slurm/evenkeel.sbatch && echo "shellcheck has nothing to say"
}

check layers python3 tools/check_layers.py "$build"
check purity python3 tools/check_purity.py "$build"
check tidy python3 tools/tidy.py "$build"
check format check_format
check shell check_shell
check docs python3 tools/check_docs.py "$build"
check guard python3 tools/guard_instructions.py "$build"
check lint check_lint

line="$passed passed, $failed failed, $skipped skipped"
echo "$line"
[ -z "$counts" ] || echo "$line" >"$counts"
[ "$failed" -eq 0 ]
