/*
 * evenkeel worker: the experts of one machine, for fronts on others, until a signal says otherwise.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "cli/placement.h"
#include "cli/settings.h"
#include "cli/store.h"
#include "cli/worker_health.h"
#include "cluster/params.h"
#include "expert/identity.h"
#include "link/certs.h"
#include "place/place.h"
#include "store/check.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "sys/signal.h"
#include "sys/thread.h"
#include "worker/worker.h"

#define TICK_US          1000000
#define MANIFEST_STALL_S 30
#define SOURCE_STALL_S   30
#define PLACEMENT_BYTES  ((size_t)1 << 30) /* of address space: the largest placement */

static const ek_cli_option options[] = {
    EK_CLI_SETTINGS_ROWS,
    {EK_CLI_OPTION_SETTING, "model", "PATH", "the GGUF file that fronts serve, too", "model.path"},
    {EK_CLI_OPTION_SETTING, "listen", "ADDR", "address for fronts, host:port", "worker.listen"},
    {EK_CLI_OPTION_SETTING, "health", "ADDR", "address for health and metrics, host:port",
     "worker.health"},
    {EK_CLI_OPTION_SETTING, "certs", "DIR", "what `evenkeel cluster init` made for this worker",
     "worker.certs"},
    {EK_CLI_OPTION_SETTING, "experts", "SET", "which ones: 0-11:0-31,48 or all (default)",
     "worker.experts"},
    {EK_CLI_OPTION_SETTING, "placement", "FILE", "which ones: as `evenkeel place --out` wrote",
     "worker.placement"},
    {EK_CLI_OPTION_SETTING, "device", "I/N", "of the placement: 0/4 is the first of four",
     "worker.device"},
    {EK_CLI_OPTION_SETTING, "manifest", "FILE",
     "check the experts by this first; needed for a file "
     "with holes",
     "worker.manifest"},
    {EK_CLI_OPTION_SETTING, "threads", "N", "compute threads", "engine.threads"},
    {EK_CLI_OPTION_SETTING, "kernels", "NAME", "auto, reference, avx2, avx512", "engine.kernels"},
    {EK_CLI_OPTION_SETTING, "log-level", "LEVEL", "error, warn, info or debug", "log.level"},
};

typedef struct post {
    ek_cli_settings settings;
    ek_cli_loaded loaded;
    ek_model_file *file;
    ek_expert_set set;        /* its bits are owned */
    ek_cli_manifest manifest; /* zeroed where there is none */
    bool has_identity;        /* a manifest says it */
    uint8_t identity[EK_IDENTITY_BYTES];
    ek_resident resident;
    ek_worker *worker;
    ek_cli_health *health; /* NULL: nobody asked for it */
} post;

/* ---- which experts ---- */

/* "1/4" -> device 1 of 4. */
static bool read_device(const char *text, int32_t *out_device, int32_t *out_n_devices)
{
    char *end;
    long device = strtol(text, &end, 10);
    if (end == text || *end != '/') return false;
    const char *second = end + 1;
    long n_devices = strtol(second, &end, 10);
    if (end == second || *end || n_devices < 1 || n_devices > EK_CLUSTER_WORKERS_MAX) return false;
    if (device < 0 || device >= n_devices) return false;
    *out_device = (int32_t)device;
    *out_n_devices = (int32_t)n_devices;
    return true;
}

static ek_status take_placement(const ek_worker_params *params, ek_expert_set *set, ek_arena perm,
                                ek_err *err)
{
    ek_place_table table;
    int32_t device, n_devices;
    if (!params->device || !read_device(params->device, &device, &n_devices))
        return ek_err_set(err, EK_EINVAL,
                          "worker.device is \"%s\"; with a placement it says which of its devices "
                          "this is: 0/4 is the first of four",
                          params->device ? params->device : "");
    ek_status status =
        ek_cli_table_read(params->placement, EK_PLACE_EMPTY, true, &perm, &table, err);
    if (status != EK_OK) return status;
    if (table.n_rows != set->n_layers)
        return ek_err_set(err, EK_EINVAL, "%s has %d layers, but the model has %d",
                          params->placement, (int)table.n_rows, (int)set->n_layers);
    /* Devices have slots as even as can be: those of keel/keel_setup.c. */
    int64_t beg = (int64_t)table.n_columns * device / n_devices;
    int64_t end = (int64_t)table.n_columns * (device + 1) / n_devices;
    for (int32_t l = 0; l < table.n_rows; l++) {
        for (int64_t s = beg; s < end; s++) {
            int32_t e = (int32_t)table.value[(int64_t)l * table.n_columns + s];
            if (e >= set->n_experts)
                return ek_err_set(err, EK_EINVAL,
                                  "%s: layer %d has expert %d, but the model has %d",
                                  params->placement, (int)l, (int)e, (int)set->n_experts);
            if (e >= 0) ek_link_set_add(set, l, e);
        }
    }
    return EK_OK;
}

static ek_status choose_experts(post *p, ek_err *err)
{
    const ek_worker_params *params = &p->loaded.config.worker;
    const ek_model_params *model = &p->file->model->params;
    p->set = (ek_expert_set){
        .n_layers = model->n_layers,
        .n_experts = model->n_experts,
        .bits = ek_sys_calloc(1, ek_link_set_bytes(model->n_layers, model->n_experts)),
    };
    if (!p->set.bits) return ek_err_set(err, EK_ENOMEM, "no memory for a set of experts");
    if (params->placement && params->experts)
        return ek_err_set(err, EK_EINVAL,
                          "worker.experts and worker.placement both say which experts; leave one "
                          "of them out");
    if (!params->placement)
        return ek_link_set_parse(params->experts ? params->experts : "all", &p->set, err);
    ek_sys_region region;
    ek_status status = ek_sys_region_open(PLACEMENT_BYTES, 0, &region);
    if (status != EK_OK) return ek_err_set(err, status, "no memory for the placement");
    status = take_placement(params, &p->set, ek_sys_region_arena(&region), err);
    ek_sys_region_close(&region);
    return status;
}

/* Are the experts those of the manifest? What the file has of others does not matter. */
static ek_status check_experts(post *p, int32_t n_threads, ek_err *err)
{
    const ek_config *config = &p->loaded.config;
    const ek_store_access access = ek_cli_store_access(MANIFEST_STALL_S);
    const ek_store_manifest *m = &p->manifest.manifest;
    int32_t n;
    int64_t bytes, beg_us = ek_sys_now_us();
    ek_status status = ek_cli_manifest_open(config->worker.manifest, &access, &p->manifest, err);
    if (status != EK_OK) return status;
    ek_store_checking checking = {
        .manifest = m, .model_path = config->model_path, .want = {.experts = p->set.bits}};
    if (m->n_layers != p->set.n_layers || m->n_experts != p->set.n_experts)
        status = ek_err_set(err, EK_EFORMAT, "%s: is of another model than %s",
                            config->worker.manifest, config->model_path);
    if (status == EK_OK && ek_sys_pool_create(n_threads, false, &checking.pool) != EK_OK)
        status = ek_err_set(err, EK_ENOMEM, "cannot start threads");
    if (status == EK_OK) status = ek_store_check(&checking, &n, &bytes, err);
    ek_sys_pool_destroy(checking.pool);
    p->has_identity = ek_expert_identity_scan(m->identity, p->identity);
    if (status == EK_OK)
        ek_log(EK_LOG_INFO, "cli", "experts_checked",
               "manifest=%s shards=%" PRId32 " bytes=%" PRId64 " ms=%" PRId64, m->body_sha256, n,
               bytes, (ek_sys_now_us() - beg_us) / 1000);
    return status;
}

/* ---- serving ---- */

static int failed(const ek_err *err)
{
    switch ((int)err->status) {
    case EK_EINUSE:
        return ek_cli_fail(EK_EXIT_UNAVAILABLE, "%s; choose another with --listen or --health",
                           err->text);
    case EK_EINVAL:
    case EK_ECONFIG: return ek_cli_fail(EK_EXIT_CONFIG, "%s", err->text);
    default: return ek_cli_fail_err(err);
    }
}

/* One line for people, and for programs that asked for port 0 and read the address from it. */
static void announce(const post *p)
{
    const ek_resident *r = &p->resident;
    double mib = (double)r->expert_bytes / (1024.0 * 1024.0);
    double seconds = (double)r->load_us * 1e-6;
    printf("evenkeel %s worker on %s: %" PRId64 " of %" PRId64 " experts, %.1f MiB in %.2f s, %s "
           "kernels, %" PRId32 " threads\n",
           EK_VERSION, ek_worker_address(p->worker), ek_link_set_count(&p->set),
           (int64_t)p->set.n_layers * p->set.n_experts, mib, seconds, r->kernels.name,
           ek_sys_pool_threads(r->pool));
    fflush(stdout);
    ek_log(EK_LOG_INFO, "cli", "worker_ready",
           "addr=%s plain_port=%u health=%s experts=%" PRId64 " bytes=%" PRId64 " load_ms=%" PRId64,
           ek_worker_address(p->worker), (unsigned)ek_worker_plain_port(p->worker),
           p->health ? ek_cli_health_address(p->health) : "none", ek_link_set_count(&p->set),
           r->expert_bytes, r->load_us / 1000);
}

static void show_health(post *p)
{
    ek_cli_health_post health = {
        .worker = p->worker,
        .resident = &p->resident,
        .watchdog_us = p->loaded.config.engine.step_watchdog_us,
    };
    if (ek_link_certs_end(p->loaded.config.worker.certs, &health.certificate_end_s) != EK_OK)
        ek_log(EK_LOG_WARN, "cli", "certificate_gone", "dir=\"%s\"",
               p->loaded.config.worker.certs); /* it was read a moment ago */
    if (p->health) ek_cli_health_attach(p->health, &health);
}

static int wait_and_drain(post *p)
{
    int64_t watchdog_us = p->loaded.config.engine.step_watchdog_us;
    int number = 0;
    while (number == 0) {
        number = ek_sys_signal_wait(TICK_US);
        if (number == 0 && ek_worker_healthy(p->worker, watchdog_us)) ek_sys_notify("WATCHDOG=1");
        if (number == SIGHUP || number == SIGUSR1) {
            ek_sys_log_reopen();
            number = 0;
        }
    }
    ek_sys_notify("STOPPING=1\nSTATUS=draining");
    ek_log(EK_LOG_INFO, "cli", "draining", "signal=%d fronts=%" PRId32, number,
           ek_worker_fronts(p->worker));
    ek_status status = ek_worker_drain(p->worker, p->loaded.config.worker.drain_timeout_us);
    ek_log(EK_LOG_INFO, "cli", "drained", "complete=%s", status == EK_OK ? "true" : "false");
    return status == EK_OK ? EK_EXIT_OK : EK_EXIT_TERMINATED;
}

static ek_status listen_for_health(post *p, ek_err *err)
{
    ek_status status = ek_cli_health_open(p->loaded.config.worker.health, &p->health, err);
    if (status == EK_OK)
        ek_log(EK_LOG_INFO, "cli", "health_listening", "addr=%s", ek_cli_health_address(p->health));
    return status;
}

static ek_status start(post *p, ek_err *err)
{
    const ek_config *config = &p->loaded.config;
    const ek_engine_params *engine = &config->engine;
    ek_status status = EK_OK;
    /* It answers before the experts are there, so that who asks sees a worker that loads. */
    if (config->worker.health) status = listen_for_health(p, err);
    if (status == EK_OK)
        status = ek_expert_model_open(config->model_path, config->chat_format, &p->file, err);
    if (status == EK_OK) status = choose_experts(p, err);
    if (status != EK_OK) return status;
    int32_t n_threads = engine->n_threads > 0 ? engine->n_threads : ek_sys_cpu_count();
    if (config->worker.manifest) {
        ek_sys_notify("STATUS=checking experts");
        status = check_experts(p, n_threads, err);
        if (status != EK_OK) return status;
    }
    const ek_resident_setup setup = {
        .file = p->file,
        .set = p->set,
        .kernels = engine->kernels,
        .n_threads = n_threads,
        .pin_threads = engine->pin_threads,
        .pack_weights = engine->pack_weights,
        .pace = config->worker.pace,
        .identity = p->has_identity ? p->identity : NULL,
        .model_path = config->model_path,
        .manifest = config->worker.manifest ? &p->manifest.manifest : NULL,
        .access = ek_cli_store_access(SOURCE_STALL_S),
    };
    ek_sys_notify("STATUS=loading experts");
    status = ek_worker_resident_open(&setup, &p->resident, err);
    if (status != EK_OK) return status;
    return ek_worker_create(&config->worker, &p->resident, &p->worker, err);
}

static int work(post *p)
{
    const ek_config *config = &p->loaded.config;
    ek_err err = {0};
    int code;
    if (!config->model_path)
        return ek_cli_fail(EK_EXIT_CONFIG, "no model is named; use --model PATH, or model.path in "
                                           "the configuration file");
    if (!config->worker.certs)
        return ek_cli_fail(EK_EXIT_CONFIG,
                           "no certificate is named; use --certs DIR, or worker.certs in the "
                           "configuration file (`evenkeel cluster init` makes one)");
    if (ek_sys_log_open(config->log_path, config->log_level) < 0)
        return ek_cli_fail(EK_EXIT_CONFIG, "%s: cannot write the log there (log.path)",
                           config->log_path);
    if (ek_sys_signal_block() < 0) return ek_cli_fail(EK_EXIT_FAILURE, "signals cannot be blocked");
    if (start(p, &err) < 0) {
        code = failed(&err);
    } else {
        show_health(p);
        announce(p);
        ek_sys_notify("READY=1\nSTATUS=serving");
        code = wait_and_drain(p);
    }
    ek_cli_health_close(p->health); /* first: it looks at the others */
    ek_worker_destroy(p->worker);
    ek_worker_resident_close(&p->resident);
    ek_sys_free(p->set.bits);
    ek_cli_manifest_close(&p->manifest);
    ek_expert_model_close(p->file);
    return code;
}

static int run(int argc, char **argv)
{
    post p = {.settings = ek_cli_settings_start()};
    ek_cli_args args = ek_cli_args_start(&ek_cli_worker, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        if (id < 0) return ek_cli_args_exit(&args, id);
        const int code = ek_cli_settings_take(&p.settings, &args);
        if (code != EK_EXIT_OK) return code;
    }
    ek_err err = {0};
    if (ek_cli_settings_load(&p.settings, &p.loaded, &err) < 0) return ek_cli_fail_err(&err);
    const int code = work(&p);
    ek_cli_loaded_close(&p.loaded);
    return code;
}

const ek_cli_command ek_cli_worker = {
    .name = "worker",
    .operands = "",
    .summary = "compute experts for fronts on other machines",
    .about =
        "Loads some of a model's experts and computes them for `evenkeel serve` processes that\n"
        "name this worker in cluster.workers. Both sides show certificates of one authority;\n"
        "`evenkeel cluster init` makes them. Each option with a [key] sets that key, as for\n"
        "serve. TERM and INT drain and end, USR1 opens the log file again.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
