#!/usr/bin/env bash
# Run every fuzzer for a while, starting from its corpus. What makes one fail is kept in the corpus, where it stays a test.
#
#   tools/fuzz.sh [SECONDS_EACH]      (default 60)
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
build="build-fuzz"
export PATH=/usr/bin:$PATH

if [ ! -e "$build/build.ninja" ]; then
    CC=clang-14 meson setup "$build" -Dfuzz=true -Dbench=false -Db_sanitize=address,undefined -Db_lundef=false \
        -Dbuildtype=debugoptimized
fi
meson compile -C "$build"

failed=0
n=0
for fuzzer in "$build"/tests/fuzz/fuzz_*; do
    name=${fuzzer##*/fuzz_}
    case $name in replay_* | *.p) continue ;; esac
    n=$((n + 1))
    found=$build/found-$name
    mkdir -p "$found"
    # New inputs go to $found, the corpus is only read; a failing one is copied into the corpus below.
    if "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$found/" "$found" "tests/fuzz/corpus/$name" >"$found.log" 2>&1; then
        printf '%-10s %s runs, nothing found\n' "$name" \
            "$(sed -n 's/^stat::number_of_executed_units: *//p' "$found.log")"
    else
        failed=$((failed + 1))
        printf '%-10s FAILED, see %s\n' "$name" "$found.log"
        for input in "$found"/crash-* "$found"/leak-* "$found"/timeout-* "$found"/oom-*; do
            [ -e "$input" ] && cp "$input" "tests/fuzz/corpus/$name/"
        done
    fi
done
[ "$n" -gt 0 ] || { echo "no fuzzer was built" && exit 1; }
echo "$((n - failed)) passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
