#!/bin/sh
# Installs what building, testing or checking evenkeel needs and this machine lacks, through apt.
#
#   tools/setup.sh [build] [test] [check] [fuzz] [model] [bench]     (default: build)
#
# Says what is missing and what each package is for, asks nothing, leaves alone what is there. A machine
# without apt gets the list instead, and goes on when every library is found anyway.
set -eu

# group | how to see that it is there | Debian package | what it is for
needs() {
    cat <<'TABLE'
build|cmd:cc|gcc|the C compiler
build|file:stdio.h|libc6-dev|headers of the C library
build|cmd:meson|meson|the build system
build|cmd:ninja|ninja-build|runs the build
build|cmd:pkg-config|pkg-config|finds the libraries below
build|cmd:python3|python3|build scripts and checks
build|lib:libmicrohttpd|libmicrohttpd-dev|HTTP server
build|lib:jansson|libjansson-dev|JSON
build|lib:yaml-0.1|libyaml-dev|YAML configuration
build|lib:libpcre2-8|libpcre2-dev|regular expressions of the tokenizers
build|lib:libcrypto|libssl-dev|SHA-256 and HMAC; TLS between front and workers (libssl)
build|file:ucp/api/ucp.h|libucx-dev|headers of UCX and, to run it, libucx0: the fabric ucx between front and workers
build|lib:libxxhash|libxxhash-dev|hashes of prompt prefixes
build|lib:hwloc|libhwloc-dev|cores and NUMA nodes, for pinned threads
build|lib:openblas|libopenblas-dev|matrix products of calibrate
build|lib:libcurl|libcurl4-openssl-dev|HTTP client of the chat, status, experts and fetch commands; S3
test|lib:cmocka|libcmocka-dev|unit tests
test|py:numpy|python3-numpy|makes the small test models
test|cmd:nginx|nginx-light|web server that the tests fetch weights from
test|py:yaml|python3-yaml|reads the Kubernetes manifests that the tests check
model|py:numpy|python3-numpy|data for the training of the bundled model
model|py:torch|python3-torch|trains the bundled model
model|cmd:pkg-config|pkg-config|finds the library below
model|lib:openblas|libopenblas-dev|matrix products of its training
bench|cmd:mpicc|libopenmpi-dev|what bench/cluster is compared with
bench|cmd:mpirun|openmpi-bin|runs it
check|cmd:clang-format-14|clang-format-14|format check
check|cmd:clang-tidy-14|clang-tidy-14|static analysis
check|cmd:shellcheck|shellcheck|checks the shell scripts
check|cmd:curl|curl|requests as the README shows them
check|cmd:man|man-db|renders the manual page
check|cmd:valgrind|valgrind|counts the instructions of the forward pass
fuzz|cmd:clang-14|clang-14|compiler with libFuzzer
fuzz|clangrt:fuzzer|libclang-rt-14-dev|libFuzzer and the sanitizers of clang
TABLE
}

# Debian has servers in /usr/sbin, which is not everybody's path.
present() {
    case $1 in
    cmd:*) command -v "${1#cmd:}" >/dev/null 2>&1 || [ -x "/usr/sbin/${1#cmd:}" ] ;;
    lib:*) command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "${1#lib:}" ;;
    file:*) [ -e "/usr/include/${1#file:}" ] ;;
    py:*) system_python -c "import ${1#py:}" >/dev/null 2>&1 ;;
    clangrt:*) ls /usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt."${1#clangrt:}"*.a \
        >/dev/null 2>&1 ;;
    esac
}

# The build prefers /usr/bin/python3, since that is where apt puts python3-numpy.
system_python() {
    if [ -x /usr/bin/python3 ]; then /usr/bin/python3 "$@"; else python3 "$@"; fi
}

say() { printf 'setup: %s\n' "$*"; }

groups=${*:-build}
missing=
list=$(needs)
while IFS='|' read -r group probe package why; do
    case " $groups " in *" $group "*) ;; *) continue ;; esac
    if ! present "$probe"; then
        say "$package is missing ($why)"
        missing="$missing $package"
    fi
done <<LIST
$list
LIST

# What the tests take from npm, by lock files. Without it those tests are skipped, saying so.
from_npm() {
    folder=$(dirname "$0")/../tests/$1
    module=$2
    tests=$3
    case " $groups " in *" test "*) ;; *) return 0 ;; esac
    [ ! -d "$folder/node_modules/$module" ] || return 0
    if ! command -v npm >/dev/null 2>&1; then
        say "no npm on this machine: the tests that $tests will be skipped"
    elif said=$(npm ci --prefix "$folder" --no-audit --no-fund 2>&1); then
        say "$module: $(printf '%s\n' "$said" | tail -n 1)"
    else
        say "npm could not install $module, the tests that $tests will be skipped: $(printf '%s\n' "$said" | tail -n 1)"
    fi
}
from_npm store s3rver "fetch from S3"
from_npm deploy kubernetes-models "hold manifests against Kubernetes' schemas"

if [ -z "$missing" ]; then
    say "everything needed for '$groups' is here"
    exit 0
fi

if ! command -v apt-get >/dev/null 2>&1; then
    say "no apt-get on this machine: install the equivalents of$missing with its own package manager" >&2
    exit 1
fi

as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        say "installing needs root and sudo is not here; as root run: apt-get install$missing" >&2
        exit 1
    fi
    as_root=sudo
fi

apt() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
        -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 "$@"
}

# Package lists are fetched only when the present ones do not lead to every package (a fresh machine has
# none, an old one points at files that are gone). Word splitting of $missing is meant.
say "installing:$missing"
# shellcheck disable=SC2086
if ! first_try=$(apt install --no-install-recommends $missing 2>&1); then
    say "apt-get said: $(printf '%s\n' "$first_try" | tail -n 1)"
    say "fetching the package lists (apt-get update) and trying again"
    apt update
    # shellcheck disable=SC2086
    apt install --no-install-recommends $missing
fi

for package in $missing; do
    row=$(needs | grep -F "|$package|")
    probe=$(printf '%s' "$row" | cut -d'|' -f2)
    if ! present "$probe"; then
        say "$package was installed, yet $probe is still not found" >&2
        exit 1
    fi
done
say "done"
