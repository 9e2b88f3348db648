"""The rooms of src/, the arrows between them, and what each may touch of the world outside.

This is the table of docs/ARCHITECTURE.md in a form that programs read; tools/check_docs.py holds the two against
each other. Every room may include base. A new room gets a row here and one there, or the checks fail.
"""
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent

# room: the rooms that it may include, besides base and itself.
ARROWS = {
    "base": (),
    "sys": (),
    "quant": (),
    "kernels": ("quant",),
    "model": ("quant",),
    "route": (),
    "place": (),
    "sched": (),
    "telemetry": (),
    "trace": ("route", "place", "sched"),
    "keel": ("route", "place", "telemetry"),
    "expert": ("model", "quant", "kernels", "sys", "telemetry"),
    "store": ("model", "quant", "sys"),
    "engine": ("expert", "model", "quant", "kernels", "route", "place", "sched", "keel", "trace", "sys",
               "telemetry"),
    "link": ("sys",),
    "worker": ("link", "expert", "store", "model", "kernels", "sys", "telemetry"),
    "cluster": ("link", "expert", "place", "model", "sys", "telemetry"),
    "http": ("sys", "telemetry"),
    "gateway": ("http", "engine", "route", "place", "trace", "sys", "telemetry"),
    "sim": ("route", "place", "sched", "keel", "trace", "telemetry"),
    "tune": ("sim", "route", "place", "sched", "trace", "kernels", "telemetry"),
    "lab": (),
    "config": ("sys",),
    "cli": ("sys", "quant", "kernels", "model", "route", "place", "sched", "keel", "telemetry", "trace", "expert",
            "engine", "store", "link", "worker", "cluster", "http", "gateway", "sim", "tune", "lab", "config"),
}

# Rooms that other rooms know through few headers only: (room, who includes) -> headers. Rooms not named are open.
DOORS = {
    ("engine", "gateway"): ("engine/engine.h", "engine/watch.h"),
}

# config fills the params structs that the rooms declare, so it may include those headers and no others.
PARAMS_ROOM = "config"
PARAMS_HEADER = "params.h"

# Rooms whose results depend on their arguments only: no clock, no files, no threads, no heap.
PURE = ("base", "quant", "kernels", "model", "route", "place", "sched", "keel", "telemetry", "trace", "sim", "tune",
        "lab")

# System headers that every room may include.
HEADERS_FREE = {
    "assert.h", "errno.h", "float.h", "inttypes.h", "limits.h", "math.h", "stdalign.h", "stdarg.h", "stdatomic.h",
    "stdbool.h", "stddef.h", "stdint.h", "string.h",
}

# Further system headers by room. "*" stands for any.
HEADERS = {
    "base": {"stdio.h", "stdlib.h"},  # vsnprintf for texts, abort for a broken contract
    "sys": {"*"},
    "model": {"pcre2.h", "stdio.h", "stdlib.h"},
    "telemetry": {"stdio.h"},
    "kernels": {"immintrin.h"},
    "expert": {"stdio.h"},  # snprintf for tensor names
    "engine": {"stdio.h", "xxhash.h"},  # snprintf for metric labels
    "link": {"arpa/inet.h", "dlfcn.h", "fcntl.h", "netdb.h", "netinet/in.h", "netinet/tcp.h", "openssl/err.h",
             "openssl/evp.h", "openssl/pem.h", "openssl/rand.h", "openssl/ssl.h", "openssl/x509v3.h", "poll.h",
             "stdio.h", "stdlib.h", "sys/socket.h", "sys/stat.h", "sys/uio.h", "ucp/api/ucp.h", "unistd.h"},
    "worker": {"openssl/crypto.h", "openssl/rand.h", "stdio.h"},
    "cluster": {"stdio.h"},
    "store": {"curl/curl.h", "jansson.h", "stdio.h", "stdlib.h"},  # snprintf, qsort
    "http": {"*"},
    "gateway": {"jansson.h", "stdio.h", "stdlib.h"},
    "tune": {"cblas.h", "stdio.h", "stdlib.h"},  # snprintf for what went wrong, qsort
    "lab": {"stdlib.h"},  # qsort
    "config": {"stdio.h", "stdlib.h", "yaml.h"},
    "cli": {"curl/curl.h", "jansson.h", "poll.h", "signal.h", "stdio.h", "stdlib.h", "unistd.h"},
}

# What pure rooms may call of the C library and of their one outside library.
PURE_CALLS = {
    "memchr", "memcmp", "memcpy", "memmove", "memset", "strchr", "strcmp", "strcspn", "strlen", "strncmp", "strnlen",
    "strrchr", "strspn", "strstr", "snprintf", "vsnprintf", "qsort", "bsearch", "strtol", "strtoll", "strtoul",
    "strtoull", "strtod", "strtof", "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_", "__errno_location",
    "abs", "atan2f", "ceil", "ceilf", "cos", "cosf", "erff", "exp", "exp2", "exp2f", "expf", "expm1", "fabs", "fabsf",
    "floor", "floorf", "fma", "fmaf", "fmax", "fmaxf", "fmin", "fminf", "fmod", "ldexp", "ldexpf", "frexp", "frexpf",
    "llrint", "llrintf", "llround", "log", "log1p", "log2", "log2f", "logf", "lrint", "lrintf", "lround", "lroundf",
    "nearbyintf", "pow", "powf", "rint", "rintf", "round", "roundf", "sin", "sincos", "sincosf", "sinf", "sqrt", "sqrtf",
    "tanh", "tanhf", "trunc", "truncf",
}
PURE_CALLS_BY_ROOM = {
    "base": {"abort", "fprintf", "fflush", "stderr", "fputs"},  # a broken contract says so and aborts
    "model": {"pcre2_*"},
}


def sources(suffixes=(".c", ".h")):
    """(room, path) of every source file below src/, in order."""
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix in suffixes and path.is_file():
            relative = path.relative_to(ROOT / "src")
            yield (relative.parts[0] if len(relative.parts) > 1 else ""), path
