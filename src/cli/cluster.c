/*
 * evenkeel cluster: certificates for the nodes of a cluster, and a look at a front's workers.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args.h"
#include "cli/cluster_call.h"
#include "cli/cluster_place.h"
#include "cli/exit.h"
#include "cli/http.h"
#include "link/certs.h"
#include "sys/clock.h"
#include "sys/file.h"
#include "sys/mem.h"

#define NODES_MAX      256
#define DAY_S          INT64_C(86400)
#define AUTHORITY_DAYS 3650
#define NODE_DAYS      397
#define MIB            1048576.0
#define BACKDATE_S     3600 /* clocks of two machines differ */

enum {
    OPTION_OUT,
    OPTION_FRONT,
    OPTION_WORKER,
    OPTION_DAYS,
    OPTION_RENEW,
    OPTION_URL,
    OPTION_JSON,
    OPTION_ADMIN_KEY_FILE,
    OPTION_DEVICE_OF,
    OPTION_NO_WAIT,
};

static const ek_cli_option options[] = {
    {OPTION_OUT, "out", "DIR", "init: where certificates are written", NULL},
    {OPTION_FRONT, "front", "NAME", "init: a front; may be given again", NULL},
    {OPTION_WORKER, "worker", "NAME[=HOST,...]",
     "init: a worker, and what fronts call it; may be given again", NULL},
    {OPTION_DAYS, "days", "N", "init: how long nodes' certificates are valid (default 397)", NULL},
    {OPTION_RENEW, "renew", NULL, "init: replace certificates of these nodes", NULL},
    {OPTION_URL, "url", "URL", "front (default $EVENKEEL_URL, else http://127.0.0.1:8080)", NULL},
    {OPTION_ADMIN_KEY_FILE, "admin-key-file", "FILE",
     "the front's admin key, for changes (default $EVENKEEL_ADMIN_KEY)", NULL},
    {OPTION_JSON, "json", NULL, "status: print the front's own JSON", NULL},
    {OPTION_DEVICE_OF, "device-of", "WORKER=N",
     "place: the worker is device N of the file (default: in order); may be given again", NULL},
    {OPTION_NO_WAIT, "no-wait", NULL, "place: end when the front has begun", NULL},
};

typedef struct job {
    const char *verb;
    const char *worker;  /* of drain, resume, acquire and release */
    const char *experts; /* of the latter two */
    const char *out;
    ek_cli_cluster_call call;
    ek_cli_placing placing; /* of place */
    int64_t days;
    bool renew;
    bool json;
    ek_certs_node node[NODES_MAX];
    int32_t n_nodes;
} job;

/* ---- init ---- */

static int init_failed(const ek_err *err)
{
    switch ((int)err->status) {
    case EK_EINVAL: return ek_cli_fail(EK_EXIT_USAGE, "%s", err->text);
    case EK_EACCESS: return ek_cli_fail(EK_EXIT_NO_PERMISSION, "%s", err->text);
    case EK_EIO: return ek_cli_fail(EK_EXIT_IO, "%s", err->text);
    case EK_EEXIST: return ek_cli_fail(EK_EXIT_FAILURE, "%s", err->text);
    default: return ek_cli_fail_err(err);
    }
}

static int init(const job *j)
{
    ek_err err = {0};
    ek_certs_authority *authority = NULL;
    int64_t now_s = ek_sys_wall_s();
    if (!j->out || j->n_nodes == 0)
        return ek_cli_fail(EK_EXIT_USAGE,
                           "cluster init: say where and for whom: --out DIR --front NAME --worker "
                           "NAME...");
    if (ek_link_certs_open(j->out, now_s, AUTHORITY_DAYS, &authority, &err) < 0)
        return init_failed(&err);
    printf("authority: %s/ca.pem (%s)\n", j->out,
           ek_link_certs_is_new(authority) ? "new; keep ca.key where nobody else can read it"
                                           : "as it was");
    int code = EK_EXIT_OK;
    for (int32_t i = 0; i < j->n_nodes && code == EK_EXIT_OK; i++) {
        const ek_certs_node *node = &j->node[i];
        if (ek_link_certs_issue(authority, node, now_s - BACKDATE_S, now_s + j->days * DAY_S,
                                j->renew, &err) < 0)
            code = init_failed(&err);
        else
            printf("%s: %s/%s, valid for %" PRId64 " days\n",
                   node->role == EK_CERTS_FRONT ? "front" : "worker", j->out, node->name, j->days);
    }
    ek_link_certs_close(authority);
    return code;
}

/* ---- looking at a front, and changing it ---- */

/* A figure with so many decimals, or that there is none. */
static void measured(double value, int decimals, char out_text[16])
{
    if (value < 0)
        snprintf(out_text, 16, "-");
    else
        snprintf(out_text, 16, "%.*f", decimals, value);
}

/* What a worker has beyond what it was started with, and what it is about. */
static void print_moves(const json_t *worker)
{
    const json_t *acquired = json_object_get(worker, "acquired");
    const json_t *move = json_object_get(acquired, "move");
    const double mib = 1048576.0;
    if (ek_cli_cluster_number(acquired, "room_bytes") <= 0) return;
    printf("%s: %.0f experts acquired, %.1f of %.1f MiB", ek_cli_cluster_text(worker, "address"),
           ek_cli_cluster_number(acquired, "experts"),
           ek_cli_cluster_number(acquired, "bytes") / mib,
           ek_cli_cluster_number(acquired, "room_bytes") / mib);
    if (json_is_object(move))
        printf("; %ss %.0f of layer %.0f, %.0f done, %.1f of %.1f MiB",
               ek_cli_cluster_text(move, "verb"), ek_cli_cluster_number(move, "experts"),
               ek_cli_cluster_number(move, "layer"), ek_cli_cluster_number(move, "done"),
               ek_cli_cluster_number(move, "bytes") / mib,
               ek_cli_cluster_number(move, "bytes_all") / mib);
    if (ek_cli_cluster_text(acquired, "why")[0])
        printf("; last: %s", ek_cli_cluster_text(acquired, "why"));
    printf("\n");
}

static bool print_workers(ek_str body)
{
    json_t *root = json_loadb(body.data, body.len, 0, NULL);
    const json_t *workers = json_object_get(root, "workers");
    if (!json_is_array(workers)) {
        json_decref(root);
        return false;
    }
    printf("%-24s %-9s %-6s %8s %9s %7s %8s %8s %9s %11s %17s  %s\n", "worker", "state", "fabric",
           "experts", "MiB", "threads", "rtt ms", "link ms", "link MB/s", "dispatches",
           "buffers MiB", "");
    for (size_t i = 0; i < json_array_size(workers); i++) {
        const json_t *w = json_array_get(workers, i);
        char latency[16], bandwidth[16];
        measured(ek_cli_cluster_number(w, "link_latency_ms"), 3, latency);
        measured(1e-6 * ek_cli_cluster_number(w, "link_bytes_per_s"), 1, bandwidth);
        printf("%-24s %-9s %-6s %8.0f %9.1f %7.0f %8.2f %8s %9s %11.0f %8.2f/%8.2f  %s\n",
               ek_cli_cluster_text(w, "address"), ek_cli_cluster_text(w, "state"),
               ek_cli_cluster_text(w, "fabric"), ek_cli_cluster_number(w, "experts"),
               ek_cli_cluster_number(w, "weight_bytes") / MIB, ek_cli_cluster_number(w, "threads"),
               ek_cli_cluster_number(w, "round_trip_ms"), latency, bandwidth,
               ek_cli_cluster_number(w, "dispatches"),
               ek_cli_cluster_number(w, "buffer_used_bytes") / MIB,
               ek_cli_cluster_number(w, "buffer_reserved_bytes") / MIB,
               ek_cli_cluster_text(w, "why"));
    }
    for (size_t i = 0; i < json_array_size(workers); i++)
        print_moves(json_array_get(workers, i));
    const json_t *rows = json_object_get(root, "rows");
    printf("rows redone %.0f, degraded %.0f; layers failed %.0f; answers late %.0f, stale %.0f\n",
           ek_cli_cluster_number(rows, "redone"), ek_cli_cluster_number(rows, "degraded"),
           ek_cli_cluster_number(rows, "failed_layers"),
           ek_cli_cluster_number(rows, "late_answers"),
           ek_cli_cluster_number(rows, "stale_answers"));
    ek_cli_placing_print(json_object_get(root, "placement"));
    const json_t *overlap = json_object_get(root, "overlap");
    printf("exchange with workers %.3f s, of which %.1f %% behind the front's own work; layers "
           "overlapped %.0f\n",
           ek_cli_cluster_number(overlap, "exchange_s"),
           100 * ek_cli_cluster_number(overlap, "efficiency"),
           ek_cli_cluster_number(overlap, "layers"));
    json_decref(root);
    return true;
}

static int show(const job *j)
{
    ek_cli_http_reply reply;
    int code = ek_cli_cluster_get(&j->call, &reply);
    if (code != EK_EXIT_OK) return code;
    ek_str body = ek_cli_text_str(&reply.body);
    if (j->json)
        printf("%.*s\n", EK_STR_ARG(body));
    else if (!print_workers(body))
        code = ek_cli_fail(EK_EXIT_FAILURE, "%s: the answer is no list of workers", j->call.url);
    ek_cli_text_free(&reply.body);
    return code;
}

static int change(const job *j)
{
    ek_cli_http_reply reply;
    if (!j->worker)
        return ek_cli_fail(EK_EXIT_USAGE, "cluster %s: say which worker: HOST:PORT", j->verb);
    char body[256], path[32];
    /* An address needs no escaping; what does is none. */
    if (strpbrk(j->worker, "\"\\") || strlen(j->worker) > 200)
        return ek_cli_fail(EK_EXIT_USAGE, "cluster %s: '%.200s' is no address", j->verb, j->worker);
    snprintf(body, sizeof body, "{\"worker\":\"%s\"}", j->worker);
    snprintf(path, sizeof path, "/v1/cluster/%s", j->verb);
    int code = ek_cli_cluster_post(&j->call, path, body, &reply);
    if (code != EK_EXIT_OK) return code;
    printf("%s: %s\n", j->worker, strcmp(j->verb, "drain") == 0 ? "drained" : "takes work again");
    ek_cli_text_free(&reply.body);
    return EK_EXIT_OK;
}

/* acquire and release: which experts, too. */
static int move(const job *j)
{
    ek_cli_http_reply reply;
    char path[32], body[8192];
    if (!j->worker || !j->experts)
        return ek_cli_fail(EK_EXIT_USAGE,
                           "cluster %s: say which worker and which experts: HOST:PORT "
                           "LAYERS:EXPERTS",
                           j->verb);
    json_t *root = json_pack("{s:s, s:s}", "worker", j->worker, "experts", j->experts);
    size_t n = root ? json_dumpb(root, body, sizeof body - 1, JSON_COMPACT) : 0;
    json_decref(root);
    if (n == 0 || n >= sizeof body)
        return ek_cli_fail(EK_EXIT_USAGE, "cluster %s: the operands are no text, or too long",
                           j->verb);
    body[n] = '\0';
    snprintf(path, sizeof path, "/v1/cluster/%s", j->verb);
    int code = ek_cli_cluster_post(&j->call, path, body, &reply);
    if (code != EK_EXIT_OK) return code;
    printf("%s: %ss %s\n", j->worker, j->verb, j->experts);
    ek_cli_text_free(&reply.body);
    return EK_EXIT_OK;
}

/* ---- the command ---- */

static int take_node(job *j, const char *text, ek_certs_role role)
{
    ek_err err = {0};
    if (j->n_nodes == NODES_MAX)
        return ek_cli_fail(EK_EXIT_USAGE, "cluster init: at most %d nodes at once", NODES_MAX);
    if (ek_link_certs_node_parse(text, role, &j->node[j->n_nodes], &err) < 0)
        return ek_cli_fail(EK_EXIT_USAGE, "cluster init: %s", err.text);
    j->n_nodes++;
    return EK_EXIT_OK;
}

static bool is_move(const job *j)
{
    return strcmp(j->verb, "acquire") == 0 || strcmp(j->verb, "release") == 0;
}

static int take_operand(job *j, const ek_cli_args *args)
{
    if (!j->verb)
        j->verb = args->value;
    else if (!j->worker &&
             (is_move(j) || strcmp(j->verb, "drain") == 0 || strcmp(j->verb, "resume") == 0))
        j->worker = args->value;
    else if (j->worker && !j->experts && is_move(j))
        j->experts = args->value;
    else if (!j->placing.path && strcmp(j->verb, "place") == 0)
        j->placing.path = args->value;
    else
        return ek_cli_args_exit(args, EK_CLI_ARGS_OPERAND);
    return EK_EXIT_OK;
}

static int act(const job *j)
{
    if (!j->verb)
        return ek_cli_fail(
            EK_EXIT_USAGE,
            "cluster: say what: init, status, drain, resume, acquire, release or place");
    if (strcmp(j->verb, "init") == 0) return init(j);
    if (strcmp(j->verb, "status") == 0) return show(j);
    if (strcmp(j->verb, "drain") == 0 || strcmp(j->verb, "resume") == 0) return change(j);
    if (is_move(j)) return move(j);
    if (strcmp(j->verb, "place") == 0) return ek_cli_place_workers(&j->call, &j->placing);
    return ek_cli_fail(EK_EXIT_USAGE,
                       "cluster: '%s' is none of init, status, drain, resume, acquire, release and "
                       "place",
                       j->verb);
}

static int run(int argc, char **argv)
{
    job j = {.call.url = ek_cli_http_default_url(), .days = NODE_DAYS};
    ek_cli_args args = ek_cli_args_start(&ek_cli_cluster, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        int code = EK_EXIT_OK;
        switch (id) {
        case OPTION_OUT: j.out = args.value; break;
        case OPTION_FRONT: code = take_node(&j, args.value, EK_CERTS_FRONT); break;
        case OPTION_WORKER: code = take_node(&j, args.value, EK_CERTS_WORKER); break;
        case OPTION_RENEW: j.renew = true; break;
        case OPTION_ADMIN_KEY_FILE: j.call.admin_key_file = args.value; break;
        case OPTION_URL: j.call.url = args.value; break;
        case OPTION_DEVICE_OF:
            if (!ek_cli_placing_device(&j.placing, args.value)) code = EK_EXIT_USAGE;
            break;
        case OPTION_NO_WAIT: j.placing.no_wait = true; break;
        case OPTION_JSON: j.json = true; break;
        case OPTION_DAYS:
            if (!ek_cli_args_int(&args, 1, AUTHORITY_DAYS, &j.days)) code = EK_EXIT_USAGE;
            break;
        case EK_CLI_ARGS_OPERAND: code = take_operand(&j, &args); break;
        default: return ek_cli_args_exit(&args, id);
        }
        if (code != EK_EXIT_OK) return code;
    }
    return act(&j);
}

const ek_cli_command ek_cli_cluster = {
    .name = "cluster",
    .operands = "init | status | place FILE | (drain|resume|acquire|release) WORKER [SET]",
    .summary = "certificates for a cluster, and its workers",
    .about =
        "init makes a certificate authority and, for each node, a directory with what it needs:\n"
        "copy DIR/NAME to that machine and name it there (worker.certs, cluster.certs). Run\n"
        "again it adds nodes to the same authority. status shows a front's workers; drain sends\n"
        "one no more than what nobody else can compute, resume ends that. acquire has a worker\n"
        "with room (worker.experts_bytes_max) get more experts, a SET like 0-3:17,40, while it "
        "serves;\n"
        "release gives those up again that others have, too. place has all workers come to have\n"
        "what their devices of a placement (a file of evenkeel place) have, and waits for it.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
