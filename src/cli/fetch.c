/*
 * evenkeel fetch: weights that a manifest names, from directories, HTTP servers and S3, checked.
 */
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "cli/store.h"
#include "store/fetch.h"
#include "sys/clock.h"
#include "sys/signal.h"
#include "sys/thread.h"

enum {
    OPTION_MANIFEST,
    OPTION_OUT,
    OPTION_EXPERTS,
    OPTION_DENSE,
    OPTION_ALL,
    OPTION_SHA256,
    OPTION_PARALLEL,
    OPTION_RETRIES,
    OPTION_STALL,
    OPTION_THREADS,
    OPTION_JSON,
};

static const ek_cli_option options[] = {
    {OPTION_MANIFEST, "manifest", "FILE", "what to fetch: path or URL; `evenkeel manifest` made it",
     NULL},
    {OPTION_OUT, "out", "DIR", "where the weights go", NULL},
    {OPTION_EXPERTS, "experts", "SET", "only these experts: 0-11:0-31,48", NULL},
    {OPTION_DENSE, "dense", NULL, "what every token meets, and the experts of --experts, if any",
     NULL},
    {OPTION_ALL, "all", NULL, "the whole model (default)", NULL},
    {OPTION_SHA256, "sha256", "HEX", "refuse every manifest but the one with this hash", NULL},
    {OPTION_PARALLEL, "parallel", "N", "requests at once, 1 to 64; default 8", NULL},
    {OPTION_RETRIES, "retries", "N", "times that a source is asked again; default 4", NULL},
    {OPTION_STALL, "stall", "SECONDS", "give up below 1 KiB/s for so long; default 30", NULL},
    {OPTION_THREADS, "threads", "N", "threads that check what is there; default one per core",
     NULL},
    {OPTION_JSON, "json", NULL, "print one JSON object", NULL},
};

typedef struct job {
    const char *manifest_place, *dir, *experts, *sha256;
    const char *sources[EK_STORE_SOURCES_MAX];
    int32_t n_sources;
    bool dense, all, json;
    int64_t n_parallel, n_retries, stall_s, n_threads;
    ek_cli_progress progress;
    bool interrupted;
    int64_t beg_us;
} job;

static bool on_progress(void *ctx, const ek_store_progress *p)
{
    job *j = ctx;
    double seconds = (double)(ek_sys_now_us() - j->beg_us) * 1e-6 + 1e-6;
    char done[32], wanted[32], rate[32];
    ek_cli_store_say_bytes(p->done_bytes, done, sizeof done);
    ek_cli_store_say_bytes(p->wanted_bytes, wanted, sizeof wanted);
    ek_cli_store_say_bytes(
        (int64_t)((double)(p->checking ? p->done_bytes : p->moved_bytes) / seconds), rate,
        sizeof rate);
    ek_cli_progress_say(&j->progress, (double)p->done_bytes / (double)(p->wanted_bytes + 1),
                        "%s %s of %s, %s/s", p->checking ? "checked" : "fetched", done, wanted,
                        rate);
    const int number = ek_sys_signal_wait(0);
    j->interrupted |= number == SIGINT || number == SIGTERM || number == SIGQUIT;
    return !j->interrupted;
}

/* ---- telling ---- */

static void tell_json(const job *j, const ek_store_manifest *m, const ek_store_fetched *r,
                      const char *error)
{
    json_t *sources = json_array();
    for (int32_t i = 0; i < j->n_sources; i++)
        json_array_append_new(sources, json_pack("{s:s, s:I, s:s}", "source", j->sources[i],
                                                 "bytes", (json_int_t)r->sources[i].bytes,
                                                 "trouble", r->sources[i].trouble));
    json_t *root = json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:s}", "manifest",
        m->body_sha256, "model", m->files[0].name, "shards_wanted", (int)r->n_wanted, "shards_kept",
        (int)r->n_kept, "shards_fetched", (int)r->n_came, "shards_damaged", (int)r->n_damaged,
        "bytes_wanted", (json_int_t)r->wanted_bytes, "bytes_kept", (json_int_t)r->kept_bytes,
        "bytes_fetched", (json_int_t)r->came_bytes, "retries", (json_int_t)r->n_retries,
        "check_seconds", (double)r->check_us * 1e-6, "load_seconds", (double)r->load_us * 1e-6,
        "sources", sources, "error", error);
    if (root) {
        json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
        putchar('\n');
    }
    json_decref(root);
}

static void tell(const job *j, const ek_store_manifest *m, const ek_store_fetched *r)
{
    char came[32], kept[32], rate[32];
    double seconds = (double)(r->load_us - r->check_us) * 1e-6 + 1e-6;
    ek_cli_store_say_bytes(r->came_bytes, came, sizeof came);
    ek_cli_store_say_bytes(r->kept_bytes, kept, sizeof kept);
    ek_cli_store_say_bytes((int64_t)((double)r->came_bytes / seconds), rate, sizeof rate);
    printf("%s/%s: %" PRId32 " shards: %s fetched, %s were there; in %.2f s", j->dir,
           m->files[0].name, r->n_wanted, came, kept, (double)r->load_us * 1e-6);
    if (r->came_bytes > 0) printf(", %s/s", rate);
    putchar('\n');
    for (int32_t i = 0; i < j->n_sources; i++) {
        ek_cli_store_say_bytes(r->sources[i].bytes, came, sizeof came);
        const char *trouble = r->sources[i].trouble;
        printf("  %s: %s%s%s\n", j->sources[i], came, trouble[0] ? "; trouble: " : "", trouble);
    }
}

static int failed(const job *j, const ek_store_fetched *r, const ek_err *err)
{
    ek_exit code = ek_cli_exit_of(err->status);
    if (err->status == EK_EIO) code = EK_EXIT_IO;
    if (err->status == EK_EEXIST) code = EK_EXIT_DATA;
    if (j->interrupted) code = EK_EXIT_INTERRUPTED;
    if (r->n_wanted == 0) return ek_cli_fail(code, "%s", err->text);
    return ek_cli_fail(code,
                       "%s; %" PRId32 " of %" PRId32
                       " shards are there and stay: the same command goes on from them",
                       err->text, r->n_kept + r->n_came, r->n_wanted);
}

/* ---- doing ---- */

static int fetch_by(job *j, const ek_cli_manifest *opened, const ek_store_access *access,
                    const ek_store_want *want)
{
    ek_err err = {0};
    ek_store_fetched fetched = {0};
    ek_sys_pool *pool;
    int32_t n_threads = j->n_threads > 0 ? (int32_t)j->n_threads : ek_sys_cpu_count();
    if (ek_sys_pool_create(n_threads, false, &pool) != EK_OK)
        return ek_cli_fail(EK_EXIT_MEMORY, "cannot start %" PRId32 " threads", n_threads);
    const ek_store_fetch_params params = {
        .manifest = &opened->manifest,
        .manifest_text = opened->text,
        .dir = j->dir,
        .sources = j->sources,
        .n_sources = j->n_sources,
        .access = *access,
        .want = *want,
        .n_parallel = (int32_t)j->n_parallel,
        .n_retries = (int32_t)j->n_retries,
        .pool = pool,
        .on_progress = on_progress,
        .ctx = j,
    };
    j->beg_us = ek_sys_now_us();
    ek_status status = ek_store_fetch(&params, &fetched, &err);
    ek_cli_progress_clear(&j->progress);
    ek_sys_pool_destroy(pool);
    if (j->json) tell_json(j, &opened->manifest, &fetched, status == EK_OK ? "" : err.text);
    if (status != EK_OK) return failed(j, &fetched, &err);
    if (!j->json) tell(j, &opened->manifest, &fetched);
    return EK_EXIT_OK;
}

static int fetch(job *j)
{
    const ek_store_access access = ek_cli_store_access((int32_t)j->stall_s);
    ek_cli_manifest opened;
    ek_err err = {0};
    ek_store_want want;
    uint64_t *bits;
    if (ek_cli_manifest_open(j->manifest_place, &access, &opened, &err) != EK_OK)
        return ek_cli_fail_err(&err);
    int code;
    if (j->sha256 && strcmp(j->sha256, opened.manifest.body_sha256) != 0)
        code = ek_cli_fail(EK_EXIT_DATA, "%s: is another manifest: expected SHA-256 %s, found %s",
                           j->manifest_place, j->sha256, opened.manifest.body_sha256);
    else if (ek_cli_store_want(&opened.manifest, j->experts, j->dense, &want, &bits, &err) != EK_OK)
        code = ek_cli_fail_err(&err);
    else {
        code = fetch_by(j, &opened, &access, &want);
        ek_sys_free(bits);
    }
    ek_cli_manifest_close(&opened);
    return code;
}

static bool take(job *j, ek_cli_args *args, int id)
{
    switch (id) {
    case OPTION_MANIFEST: j->manifest_place = args->value; return true;
    case OPTION_OUT: j->dir = args->value; return true;
    case OPTION_EXPERTS: j->experts = args->value; return true;
    case OPTION_DENSE: j->dense = true; return true;
    case OPTION_ALL: j->all = true; return true;
    case OPTION_SHA256: j->sha256 = args->value; return true;
    case OPTION_JSON: j->json = true; return true;
    case OPTION_PARALLEL: return ek_cli_args_int(args, 1, EK_STORE_SLOTS_MAX, &j->n_parallel);
    case OPTION_RETRIES: return ek_cli_args_int(args, 0, 100, &j->n_retries);
    case OPTION_STALL: return ek_cli_args_int(args, 1, 86400, &j->stall_s);
    default: return ek_cli_args_int(args, 1, 1024, &j->n_threads);
    }
}

static int run(int argc, char **argv)
{
    job j = {.n_parallel = 8, .n_retries = 4, .stall_s = 30};
    ek_cli_args args = ek_cli_args_start(&ek_cli_fetch, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        if (id == EK_CLI_ARGS_OPERAND) {
            if (j.n_sources == EK_STORE_SOURCES_MAX)
                return ek_cli_fail(EK_EXIT_USAGE, "fetch: at most %d sources",
                                   EK_STORE_SOURCES_MAX);
            j.sources[j.n_sources++] = args.value;
            continue;
        }
        if (id < 0) return ek_cli_args_exit(&args, id);
        if (!take(&j, &args, id)) return EK_EXIT_USAGE;
    }
    if (j.n_sources == 0 || !j.manifest_place || !j.dir)
        return ek_cli_fail(EK_EXIT_USAGE, "fetch: a SOURCE, --manifest and --out are needed");
    if (j.all && (j.experts || j.dense))
        return ek_cli_fail(EK_EXIT_USAGE,
                           "fetch: --all is everything; leave --experts and --dense away");
    if (ek_sys_signal_block() < 0) return ek_cli_fail(EK_EXIT_FAILURE, "cannot wait for signals");
    j.progress = ek_cli_progress_start();
    return fetch(&j);
}

const ek_cli_command ek_cli_fetch = {
    .name = "fetch",
    .operands = "SOURCE...",
    .summary = "fetch weights from disks and servers, checked by a manifest",
    .about =
        "Fetches a model, or some of its experts, into a directory. A SOURCE is a directory, or a\n"
        "URL that begins with http://, https:// or s3://; the first is the nearest, and the next\n"
        "one is asked for what it cannot give. Every shard is checked by its hash before it\n"
        "counts. A fetch that was interrupted or killed goes on where it was. What is not wanted\n"
        "stays a hole in the file, which keeps its true size: `evenkeel worker` maps it.\n"
        "For s3:// the environment has AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,\n"
        "AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
