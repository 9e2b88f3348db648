/* A front and its workers as processes of their own, from certificates to their end. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/lab.h"
#include "link/certs.h"
#include "sys/clock.h"
#include "sys/file.h"
#include "sys/mem.h"
#include "sys/temp.h"

#define READY_US      INT64_C(120000000) /* for one process, on a machine that is busy */
#define LOOK_US       INT64_C(200000)    /* between two looks whether somebody wants to stop */
#define END_US        INT64_C(20000000)
#define CERTS_DAYS    1
#define DAY_S         INT64_C(86400)
#define BACKDATE_S    3600
#define LOG_BYTES_MAX ((size_t)1 << 20)
#define ARGS_MAX      64
#define LATENCY       "worker.pace_latency=200us"

/* ---- certificates ---- */

static ek_status issue(const ek_certs_authority *authority, ek_certs_role role, const char *name,
                       int64_t now_s, ek_err *err)
{
    ek_certs_node node = {.role = role, .n_hosts = role == EK_CERTS_WORKER};
    snprintf(node.name, sizeof node.name, "%s", name);
    snprintf(node.host[0], sizeof node.host[0], "127.0.0.1");
    return ek_link_certs_issue(authority, &node, now_s - BACKDATE_S, now_s + DAY_S, 0, err);
}

ek_status ek_cli_lab_cluster_prepare(ek_cli_lab *lab, ek_err *err)
{
    char certs[sizeof lab->dir + 16], name[32];
    ek_certs_authority *authority = NULL;
    const int64_t now_s = ek_sys_wall_s();
    ek_status status = ek_sys_program_path(lab->program, sizeof lab->program);
    if (status < 0) return ek_err_set(err, status, "the path of this program is unknown");
    status = ek_sys_temp_make("evenkeel-lab", lab->dir, sizeof lab->dir, err);
    if (status < 0) {
        lab->dir[0] = '\0'; /* nothing to remove */
        return status;
    }
    snprintf(certs, sizeof certs, "%s/certs", lab->dir);
    status = ek_link_certs_open(certs, now_s, CERTS_DAYS, &authority, err);
    if (status == EK_OK) status = issue(authority, EK_CERTS_FRONT, "front", now_s, err);
    for (int32_t w = 0; w < lab->n_workers && status == EK_OK; w++) {
        snprintf(name, sizeof name, "w%d", (int)w);
        status = issue(authority, EK_CERTS_WORKER, name, now_s, err);
    }
    ek_link_certs_close(authority);
    return status;
}

/* ---- starting one process ---- */

typedef struct command {
    const char *argv[ARGS_MAX];
    int n;
} command;

static void add(command *c, const char *word)
{
    c->argv[c->n++] = word; /* ARGS_MAX is more than this file ever adds */
}

static void add_option(command *c, const char *name, const char *value)
{
    add(c, name);
    add(c, value);
}

/* The last line of its log says why. */
static ek_status explain(const char *log, const char *who, ek_err *err)
{
    ek_str text = {0};
    ek_err ignored = {0};
    if (ek_sys_file_read(log, LOG_BYTES_MAX, &text, &ignored) < 0) text = (ek_str){0};
    size_t end = text.len;
    while (end > 0 && text.data[end - 1] == '\n')
        end--;
    size_t beg = end;
    while (beg > 0 && text.data[beg - 1] != '\n')
        beg--;
    ek_err_set(err, EK_EPEER, "%s ended before it was ready%s%.*s", who, end > beg ? ": " : "",
               (int)(end - beg), text.data ? text.data + beg : "");
    ek_sys_free((void *)text.data);
    return EK_EPEER;
}

/* What stands between `before` and the next colon that a blank or a line's end follows. */
static ek_status cut_address(const char *line, const char *before, char *out, size_t bytes)
{
    const char *beg = strstr(line, before);
    if (!beg) return EK_EFORMAT;
    beg += strlen(before);
    const char *end = strstr(beg, ": ");
    if (!end || (size_t)(end - beg) >= bytes) return EK_EFORMAT;
    memcpy(out, beg, (size_t)(end - beg));
    out[end - beg] = '\0';
    return EK_OK;
}

/* Wait for the line that says where it listens. */
static ek_status wait_ready(ek_sys_child *child, const char *log, const char *who,
                            const char *before, char *out, size_t bytes, ek_err *err)
{
    char line[EK_SYS_CHILD_LINE_BYTES];
    const int64_t until_us = ek_sys_now_us() + READY_US;
    ek_status status;
    while ((status = ek_sys_child_line(child, LOOK_US, line, sizeof line)) == EK_ETIMEOUT) {
        if (ek_cli_lab_interrupted(NULL)) return ek_err_set(err, EK_ECANCELED, "told to stop");
        if (ek_sys_now_us() > until_us)
            return ek_err_set(err, EK_ETIMEOUT, "%s was not ready in time", who);
    }
    if (status == EK_OK && cut_address(line, before, out, bytes) == EK_OK) return EK_OK;
    return explain(log, who, err);
}

/* ---- workers ---- */

/* "0:1,5 1:2,3": what worker w has. */
static void list_experts(const ek_cli_lab *lab, int32_t w, bool replicas, ek_buf *out)
{
    const ek_model_params *m = &lab->file->model->params;
    for (int32_t l = 0; l < m->n_layers; l++) {
        bool first = true;
        for (int32_t e = 0; e < m->n_experts; e++) {
            const int64_t i = (int64_t)l * m->n_experts + e;
            if (lab->worker[i] != w && !(replicas && lab->replica[i] == w)) continue;
            if (first)
                ek_http_buf_addf(out, "%s%d:%d", out->len ? " " : "", (int)l, (int)e);
            else
                ek_http_buf_addf(out, ",%d", (int)e);
            first = false;
        }
    }
    ek_http_buf_add(out, (ek_str){"", 1}); /* an argument ends with NUL */
}

static ek_status start_worker(const ek_cli_lab *lab, const ek_cli_lab_policy *policy,
                              bool contention, int32_t w, ek_cli_lab_cluster *c, ek_err *err)
{
    char certs[sizeof lab->dir + 32], log[sizeof lab->dir + 32], pace[64];
    ek_buf experts = {0};
    command cmd = {0};
    snprintf(certs, sizeof certs, "%s/certs/w%d", lab->dir, (int)w);
    snprintf(log, sizeof log, "%s/w%d.log", lab->dir, (int)w);
    snprintf(pace, sizeof pace, "worker.pace_gops=%.6f", lab->gops);
    list_experts(lab, w, policy->replicas, &experts);
    if (experts.failed) return ek_err_set(err, EK_ENOMEM, "no memory for a list of experts");
    add_option(&cmd, lab->program, "worker");
    add_option(&cmd, "--model", lab->model_path);
    add_option(&cmd, "--listen", "127.0.0.1:0");
    add_option(&cmd, "--certs", certs);
    add_option(&cmd, "--experts", experts.data);
    add_option(&cmd, "--threads", "1");
    add_option(&cmd, "--log-level", "error");
    add_option(&cmd, "--set", pace);
    add_option(&cmd, "--set", LATENCY);
    add_option(&cmd, "--set", "worker.drain_timeout=1s");
    add_option(&cmd, "--set", contention ? "worker.pace_contention=true" : "log.level=error");
    ek_status status = ek_sys_child_start(cmd.argv, log, &c->worker[w], err);
    ek_http_buf_fini(&experts);
    return status;
}

static ek_status start_workers(const ek_cli_lab *lab, const ek_cli_lab_policy *policy,
                               bool contention, ek_cli_lab_cluster *c, ek_err *err)
{
    ek_status status = EK_OK;
    c->n_workers = (int32_t)lab->n_workers;
    for (int32_t w = 0; w < c->n_workers && status == EK_OK; w++)
        status = start_worker(lab, policy, contention, w, c, err);
    for (int32_t w = 0; w < c->n_workers && status == EK_OK; w++) {
        char log[sizeof lab->dir + 32], who[32];
        snprintf(log, sizeof log, "%s/w%d.log", lab->dir, (int)w);
        snprintf(who, sizeof who, "worker %d", (int)w);
        status = wait_ready(&c->worker[w], log, who, " worker on ", c->address[w],
                            sizeof c->address[w], err);
    }
    return status;
}

/* ---- the front ---- */

static void join_addresses(const ek_cli_lab_cluster *c, ek_buf *out)
{
    for (int32_t w = 0; w < c->n_workers; w++) {
        if (w > 0) ek_http_buf_addz(out, ",");
        ek_http_buf_addz(out, c->address[w]);
    }
    ek_http_buf_add(out, (ek_str){"", 1});
}

/* Queues are long and nobody hedges: what is compared is where work goes, and nothing else. */
static ek_status start_front(const ek_cli_lab *lab, const ek_cli_lab_policy *policy,
                             ek_cli_lab_cluster *c, ek_err *err)
{
    static const char *const settings[] = {
        "gateway.drain_settle=0s",   "gateway.drain_timeout=1s", "gateway.workers=1",
        "engine.prefix_cache=false", "engine.queue_max=65536",   "engine.queue_timeout=never",
        "cluster.hedge_after=1m",    "cluster.fabric=tcp",       "cluster.layer_timeout=2m",
    };
    char certs[sizeof lab->dir + 32], log[sizeof lab->dir + 32], routing[64];
    char recorded[EK_CLI_LAB_PATH_BYTES + 32];
    ek_buf workers = {0};
    command cmd = {0};
    snprintf(certs, sizeof certs, "%s/certs/front", lab->dir);
    snprintf(log, sizeof log, "%s/front.log", lab->dir);
    add_option(&cmd, lab->program, "serve");
    add_option(&cmd, "--model", lab->model_path);
    add_option(&cmd, "--listen", "127.0.0.1:0");
    add_option(&cmd, "--threads", "1");
    add_option(&cmd, "--log-level", "error");
    for (size_t i = 0; i < EK_COUNT_OF(settings); i++)
        add_option(&cmd, "--set", settings[i]);
    if (lab->recorded) {
        snprintf(recorded, sizeof recorded, "routing.recorded=%s", lab->recorded);
        add_option(&cmd, "--set", recorded);
    }
    if (policy) {
        snprintf(routing, sizeof routing, "routing.policy=%s", policy->policy);
        join_addresses(c, &workers);
        if (workers.failed) return ek_err_set(err, EK_ENOMEM, "no memory for addresses");
        add_option(&cmd, "--set", routing);
        add_option(&cmd, "--workers", workers.data);
        add_option(&cmd, "--certs", certs);
    }
    ek_status status = ek_sys_child_start(cmd.argv, log, &c->front, err);
    ek_http_buf_fini(&workers);
    if (status < 0) return status;
    return wait_ready(&c->front, log, "the front", " on ", c->url, sizeof c->url, err);
}

/* ---- all of it ---- */

ek_status ek_cli_lab_cluster_start(const ek_cli_lab *lab, const ek_cli_lab_policy *policy,
                                   bool contention, ek_cli_lab_cluster *out_cluster, ek_err *err)
{
    ek_cli_lab_cluster c = {0};
    ek_status status = policy ? start_workers(lab, policy, contention, &c, err) : EK_OK;
    if (status == EK_OK) status = start_front(lab, policy, &c, err);
    if (status == EK_OK) {
        *out_cluster = c;
        return EK_OK;
    }
    ek_err ignored = {0}; /* why it did not start tells more than how it ended */
    if (ek_cli_lab_cluster_stop(&c, &ignored) < 0) return status;
    return status;
}

ek_status ek_cli_lab_cluster_stop(ek_cli_lab_cluster *cluster, ek_err *err)
{
    ek_status status = ek_sys_child_stop(&cluster->front, END_US, err);
    if (status < 0) ek_err_prefix(err, "the front");
    /* Told together, they drain together. */
    for (int32_t w = 0; w < cluster->n_workers; w++)
        ek_sys_child_ask_to_end(&cluster->worker[w]);
    for (int32_t w = 0; w < cluster->n_workers; w++) {
        ek_err why = {0};
        const ek_status stopped = ek_sys_child_stop(&cluster->worker[w], END_US, &why);
        if (stopped < 0 && status == EK_OK)
            status = ek_err_set(err, stopped, "worker %d: %s", (int)w, why.text);
    }
    *cluster = (ek_cli_lab_cluster){0};
    return status;
}
