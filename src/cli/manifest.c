/*
 * evenkeel manifest: hashes of a model's weights, expert by expert, and of its tokenizer, in a file
 * that weights are fetched and checked by.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "cli/store.h"
#include "expert/identity.h"
#include "store/build.h"
#include "store/check.h"
#include "sys/clock.h"
#include "sys/signal.h"
#include "sys/thread.h"

#define PERM_BYTES    ((size_t)4 << 30) /* of address space */
#define STALL_DEFAULT 30

enum { OPTION_MODEL, OPTION_OUT, OPTION_VERIFY, OPTION_EXPERTS, OPTION_DENSE, OPTION_THREADS };

static const ek_cli_option options[] = {
    {OPTION_MODEL, "model", "PATH", "the GGUF file, or the first of a split one", NULL},
    {OPTION_OUT, "out", "FILE", "where the manifest goes; default standard output", NULL},
    {OPTION_VERIFY, "verify", "FILE", "hold the model against this manifest (path or URL) instead",
     NULL},
    {OPTION_EXPERTS, "experts", "SET", "with --verify: only these, as 0-11:0-31,48", NULL},
    {OPTION_DENSE, "dense", NULL, "with --verify: only what every token meets", NULL},
    {OPTION_THREADS, "threads", "N", "threads that hash; default one per core", NULL},
};

typedef struct job {
    const char *model_path, *out_path, *verify_place, *experts;
    bool dense;
    int64_t n_threads;
    ek_cli_progress progress;
    bool interrupted;
    int64_t beg_us;
} job;

static bool on_progress(void *ctx, int64_t done_bytes, int64_t all_bytes)
{
    job *j = ctx;
    double seconds = (double)(ek_sys_now_us() - j->beg_us) * 1e-6;
    char rate[32];
    ek_cli_store_say_bytes((int64_t)((double)done_bytes / (seconds + 1e-6)), rate, sizeof rate);
    ek_cli_progress_say(&j->progress, (double)done_bytes / (double)(all_bytes + 1),
                        "hashed %" PRId64 " of %" PRId64 " MB, %s/s", done_bytes / 1000000,
                        all_bytes / 1000000, rate);
    const int number = ek_sys_signal_wait(0);
    j->interrupted |= number == SIGINT || number == SIGTERM || number == SIGQUIT;
    return !j->interrupted;
}

static ek_status open_pool(const job *j, ek_sys_pool **out_pool, ek_err *err)
{
    int32_t n = j->n_threads > 0 ? (int32_t)j->n_threads : ek_sys_cpu_count();
    ek_status status = ek_sys_pool_create(n, false, out_pool);
    return status == EK_OK ? EK_OK : ek_err_set(err, status, "cannot start %" PRId32 " threads", n);
}

static ek_status hash(job *j, const ek_store_hashing *asked, char (*hex)[EK_SHA256_HEX_BYTES],
                      ek_err *err)
{
    ek_store_hashing hashing = *asked;
    hashing.on_progress = on_progress;
    hashing.ctx = j;
    ek_status status = open_pool(j, &hashing.pool, err);
    if (status != EK_OK) return status;
    status = ek_store_hash(&hashing, hex);
    ek_sys_pool_destroy(hashing.pool);
    ek_cli_progress_clear(&j->progress);
    return status == EK_OK ? EK_OK : ek_err_set(err, status, "%s", ek_status_text(status));
}

/* ---- making one ---- */

static ek_status make(job *j, const ek_store_model *model, ek_arena *perm, ek_store_manifest *m,
                      ek_str *out_text, ek_err *err)
{
    ek_status status = ek_store_lay_out(model, perm, m, err);
    if (status != EK_OK) return status;
    char(*hex)[EK_SHA256_HEX_BYTES] =
        ek_arena_try_alloc(perm, (size_t)m->n_shards, sizeof *hex, EK_ALIGN_OF(char));
    ek_span *files = ek_try_new(perm, ek_span, model->n_files);
    if (!hex || !files) return ek_err_set(err, EK_ENOMEM, "no memory for a manifest");
    for (int32_t i = 0; i < model->n_files; i++)
        files[i] = model->maps[i].bytes;
    const ek_store_hashing hashing = {.manifest = m, .files = files};
    status = hash(j, &hashing, hex, err);
    if (status != EK_OK) return status;
    for (int32_t i = 0; i < m->n_shards; i++)
        memcpy(m->shards[i].sha256, hex[i], sizeof hex[i]);
    uint8_t identity[EK_IDENTITY_BYTES];
    status = ek_expert_identity(model->model->gguf, identity);
    if (status != EK_OK) return ek_err_set(err, status, "no memory to hash");
    ek_expert_identity_print(identity, m->identity);
    return ek_store_manifest_print(m, out_text, err);
}

static void report(const job *j, const ek_store_manifest *m)
{
    int64_t bytes = 0;
    char said[32];
    for (int32_t i = 0; i < m->n_files; i++)
        bytes += m->files[i].bytes;
    ek_cli_store_say_bytes(bytes, said, sizeof said);
    printf("%s: %" PRId32 " file%s, %" PRId32 " shards, %s, in %.2f s\nsha256 %s\n", j->out_path,
           m->n_files, m->n_files == 1 ? "" : "s", m->n_shards, said,
           (double)(ek_sys_now_us() - j->beg_us) * 1e-6, m->body_sha256);
}

static ek_status write_out(const job *j, const ek_store_manifest *m, ek_str text, ek_err *err)
{
    if (!j->out_path) {
        fwrite(text.data, 1, text.len, stdout);
        return EK_OK;
    }
    ek_status status =
        ek_sys_file_write(j->out_path, (ek_span){(const uint8_t *)text.data, text.len}, err);
    if (status == EK_OK) report(j, m);
    return status;
}

static ek_status make_all(job *j, ek_err *err)
{
    ek_store_model model = {0};
    ek_sys_region region = {0};
    ek_store_manifest m;
    ek_str text = {0};
    ek_status status = ek_store_model_open(j->model_path, &model, err);
    if (status == EK_OK && ek_sys_region_open(PERM_BYTES, 0, &region) != EK_OK)
        status = ek_err_set(err, EK_ENOMEM, "no memory for a manifest");
    if (status == EK_OK) {
        ek_arena perm = ek_sys_region_arena(&region);
        status = make(j, &model, &perm, &m, &text, err);
    }
    if (status == EK_OK) status = write_out(j, &m, text, err);
    ek_sys_free((void *)(uintptr_t)text.data);
    ek_sys_region_close(&region);
    ek_store_model_close(&model);
    return status;
}

/* ---- holding against one ---- */

static ek_status check(job *j, const ek_store_manifest *m, const ek_store_want *want, ek_err *err)
{
    ek_store_checking checking = {.manifest = m,
                                  .model_path = j->model_path,
                                  .want = *want,
                                  .on_progress = on_progress,
                                  .ctx = j};
    int32_t n = 0;
    int64_t bytes = 0;
    ek_status status = open_pool(j, &checking.pool, err);
    if (status != EK_OK) return status;
    status = ek_store_check(&checking, &n, &bytes, err);
    ek_sys_pool_destroy(checking.pool);
    ek_cli_progress_clear(&j->progress);
    if (status != EK_OK) return status;
    char said[32];
    ek_cli_store_say_bytes(bytes, said, sizeof said);
    printf("%s: as the manifest says: %" PRId32 " of %" PRId32 " shards, %s, in %.2f s\n",
           j->model_path, n, m->n_shards, said, (double)(ek_sys_now_us() - j->beg_us) * 1e-6);
    return EK_OK;
}

static ek_status verify(job *j, ek_err *err)
{
    const ek_store_access access = ek_cli_store_access(STALL_DEFAULT);
    ek_cli_manifest opened = {0};
    ek_store_want want;
    uint64_t *bits = NULL;
    ek_status status = ek_cli_manifest_open(j->verify_place, &access, &opened, err);
    if (status == EK_OK)
        status = ek_cli_store_want(&opened.manifest, j->experts, j->dense, &want, &bits, err);
    if (status == EK_OK) status = check(j, &opened.manifest, &want, err);
    ek_sys_free(bits);
    ek_cli_manifest_close(&opened);
    return status;
}

static int run(int argc, char **argv)
{
    job j = {0};
    ek_cli_args args = ek_cli_args_start(&ek_cli_manifest_cmd, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        switch (id) {
        case OPTION_MODEL: j.model_path = args.value; break;
        case OPTION_OUT: j.out_path = args.value; break;
        case OPTION_VERIFY: j.verify_place = args.value; break;
        case OPTION_EXPERTS: j.experts = args.value; break;
        case OPTION_DENSE: j.dense = true; break;
        case OPTION_THREADS:
            if (!ek_cli_args_int(&args, 1, 1024, &j.n_threads)) return EK_EXIT_USAGE;
            break;
        default: return ek_cli_args_exit(&args, id);
        }
    }
    if (!j.model_path) return ek_cli_fail(EK_EXIT_USAGE, "manifest: --model is needed");
    if (j.verify_place && j.out_path)
        return ek_cli_fail(EK_EXIT_USAGE, "manifest: --verify writes nothing; leave --out away");
    if (!j.verify_place && (j.experts || j.dense))
        return ek_cli_fail(EK_EXIT_USAGE, "manifest: --experts and --dense go with --verify; a "
                                          "manifest is of the whole model");
    if (ek_sys_signal_block() < 0) return ek_cli_fail(EK_EXIT_FAILURE, "cannot wait for signals");
    ek_err err = {0};
    j.progress = ek_cli_progress_start();
    j.beg_us = ek_sys_now_us();
    ek_status status = j.verify_place ? verify(&j, &err) : make_all(&j, &err);
    ek_cli_progress_clear(&j.progress);
    if (j.interrupted) return ek_cli_fail(EK_EXIT_INTERRUPTED, "interrupted");
    return status == EK_OK ? EK_EXIT_OK : ek_cli_fail_err(&err);
}

const ek_cli_command ek_cli_manifest_cmd = {
    .name = "manifest",
    .operands = "",
    .summary = "write hashes of a model's weights, or check them",
    .about =
        "Hashes a model expert by expert and writes a manifest: which bytes of which file are\n"
        "whose, and the SHA-256 of each. `evenkeel fetch` fetches and checks weights by it.\n"
        "With --verify a model is held against a manifest, all of it or the experts named.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
