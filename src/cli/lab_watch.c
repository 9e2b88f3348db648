/* A thread that looks at a server once a second, through what any operator sees. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/lab.h"
#include "sys/clock.h"
#include "sys/mem.h"

#define CALL_US INT64_C(10000000)
#define NAP_US  INT64_C(20000)

/* ---- one look ---- */

static ek_status get(ek_cli_http *http, const char *base, const char *path, ek_cli_text *out_body,
                     ek_err *err)
{
    char url[512];
    ek_cli_http_reply reply;
    ek_status status = ek_cli_http_url(base, path, url, sizeof url, err);
    if (status < 0) return status;
    const ek_cli_http_call call = {.url = url, .timeout_us = CALL_US};
    status = ek_cli_http_run(http, &call, &reply, err);
    if (status < 0) return status;
    *out_body = reply.body;
    if (reply.code == 200) return EK_OK;
    ek_cli_text_free(out_body);
    return ek_err_set(err, EK_EPEER, "%s: HTTP %ld", url, reply.code);
}

static json_t *get_json(ek_cli_http *http, const char *base, const char *path, ek_err *err)
{
    ek_cli_text body = {0};
    if (get(http, base, path, &body, err) < 0) return NULL;
    json_t *root = json_loadb(ek_cli_text_str(&body).data, body.len, 0, NULL);
    if (!root) ek_err_set(err, EK_EFORMAT, "%s%s: no JSON", base, path);
    ek_cli_text_free(&body);
    return root;
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* A series without labels: its name at the start of a line, then the value. */
static double metric(ek_str text, const char *name)
{
    const size_t len = strlen(name);
    for (size_t at = 0; at + len < text.len;) {
        const char *line = text.data + at;
        if (strncmp(line, name, len) == 0 && line[len] == ' ') return strtod(line + len, NULL);
        const char *end = memchr(line, '\n', text.len - at);
        if (!end) break;
        at = (size_t)(end - text.data) + 1;
    }
    return 0;
}

static void take_cluster(const json_t *root, int32_t n_workers, ek_lab_sample *s)
{
    const json_t *workers = json_object_get(root, "workers");
    for (int32_t w = 0; w < n_workers; w++)
        s->busy_s[w] = number(json_array_get(workers, (size_t)w), "busy_s");
    s->degraded += number(json_object_get(root, "rows"), "degraded");
}

static void take_experts(const json_t *root, ek_lab_sample *s)
{
    const json_t *routing = json_object_get(root, "routing");
    const json_t *breakers = json_object_get(routing, "breakers");
    const json_t *alerts = json_object_get(root, "alerts");
    s->hottest = number(json_object_get(root, "overall"), "worst_max_over_mean");
    s->tokens = number(routing, "tokens");
    s->loss_sum = number(routing, "score_loss_mean") * s->tokens;
    s->rerouted = number(routing, "changed");
    s->deferred = number(routing, "deferred");
    s->degraded += number(routing, "degraded");
    s->tripped =
        number(breakers, "derated") + number(breakers, "open") + number(breakers, "half_open");
    for (size_t i = 0; i < json_array_size(alerts); i++) {
        const char *kind = json_string_value(json_object_get(json_array_get(alerts, i), "kind"));
        const bool overload = kind && strcmp(kind, "overload") == 0;
        s->alert |= overload;
        s->alert_other |= !overload;
    }
}

/* Of each layer and worker; -1 where there is no sample yet. */
static void take_loads(const json_t *root, int32_t n_layers, int32_t n_workers, float *out)
{
    const json_t *layers = json_object_get(json_object_get(root, "devices"), "utilisation");
    for (int32_t l = 0; l < n_layers; l++) {
        const json_t *layer = json_array_get(layers, (size_t)l);
        for (int32_t i = 0; i < n_workers; i++) {
            const json_t *load = json_array_get(layer, (size_t)i);
            out[(int64_t)l * n_workers + i] = load ? (float)json_number_value(load) : -1;
        }
    }
}

static bool look(ek_cli_lab_watch *w, ek_lab_sample *out, float *out_loads)
{
    ek_err err = {0};
    ek_cli_text metrics = {0};
    ek_lab_sample s = {.at_s = 1e-6 * (double)(ek_sys_now_us() - w->start_us)};
    json_t *cluster = get_json(w->http, w->url, "/v1/cluster", &err);
    json_t *experts = get_json(w->http, w->url, "/v1/experts?window=2s", &err);
    const bool good =
        cluster && experts && get(w->http, w->url, "/metrics", &metrics, &err) == EK_OK;
    if (good) {
        const ek_str text = ek_cli_text_str(&metrics);
        take_cluster(cluster, w->n_workers, &s);
        take_experts(experts, &s);
        take_loads(experts, w->n_layers, w->n_workers, out_loads);
        s.plan_s = metric(text, "evenkeel_route_plan_busy_seconds");
        s.forward_s = metric(text, "evenkeel_forward_busy_seconds");
        s.waiting = metric(text, "evenkeel_requests_waiting");
        w->divergence = metric(text, "evenkeel_route_shadow_divergence_nats");
        *out = s;
    }
    ek_cli_text_free(&metrics);
    json_decref(cluster);
    json_decref(experts);
    return good;
}

/* ---- the thread ---- */

static void look_once(ek_cli_lab_watch *w)
{
    if (w->n == w->room) return;
    if (look(w, &w->samples[w->n], w->loads + (int64_t)w->n * w->n_layers * w->n_workers))
        w->n++;
    else
        w->n_missed++;
}

static void watch(void *ctx)
{
    ek_cli_lab_watch *w = ctx;
    int64_t due_us = w->start_us;
    while (!atomic_load_explicit(&w->stop, memory_order_acquire)) {
        if (ek_sys_now_us() >= due_us) {
            look_once(w);
            due_us += w->period_us;
        }
        ek_sys_sleep_us(NAP_US);
    }
    /* Shares of a short time are mostly chance. */
    if (ek_sys_now_us() >= due_us - w->period_us / 2) look_once(w);
}

ek_status ek_cli_lab_watch_start(const ek_cli_lab_cluster *cluster, int32_t n_layers,
                                 int64_t period_us, int32_t samples_max,
                                 ek_cli_lab_watch *out_watch, ek_err *err)
{
    ek_cli_lab_watch *w = out_watch;
    snprintf(w->url, sizeof w->url, "%s", cluster->url);
    w->n_workers = cluster->n_workers;
    w->period_us = period_us;
    w->start_us = ek_sys_now_us();
    w->room = samples_max;
    w->samples = ek_sys_calloc((size_t)samples_max, sizeof *w->samples);
    w->n_layers = n_layers;
    w->loads = ek_sys_calloc((size_t)samples_max,
                             (size_t)n_layers * (size_t)w->n_workers * sizeof *w->loads);
    if (!w->samples || !w->loads) return ek_err_set(err, EK_ENOMEM, "no memory for samples");
    ek_status status = ek_cli_http_open(&w->http, err);
    if (status < 0) return status;
    if (ek_sys_thread_start(&w->thread, "ek-lab-watch", watch, w) < 0)
        return ek_err_set(err, EK_ENOMEM, "no thread");
    return EK_OK;
}

void ek_cli_lab_watch_end(ek_cli_lab_watch *watch)
{
    atomic_store_explicit(&watch->stop, true, memory_order_release);
    ek_sys_thread_join(&watch->thread);
    ek_cli_http_close(watch->http);
    watch->http = NULL;
}

void ek_cli_lab_watch_free(ek_cli_lab_watch *watch)
{
    ek_cli_lab_watch_end(watch);
    ek_sys_free(watch->samples);
    ek_sys_free(watch->loads);
    watch->samples = NULL;
    watch->loads = NULL;
    watch->n = watch->room = 0;
}

/* ---- loads for a placement ---- */

ek_status ek_cli_lab_expert_tokens(const char *url, int32_t n_layers, int32_t n_experts,
                                   int64_t *out_tokens, ek_err *err)
{
    ek_cli_http *http;
    ek_status status = ek_cli_http_open(&http, err);
    if (status < 0) return status;
    json_t *root = get_json(http, url, "/v1/experts?window=all", err);
    ek_cli_http_close(http);
    if (!root) return err->status;
    const json_t *layers = json_object_get(root, "tokens");
    for (int32_t l = 0; l < n_layers; l++)
        for (int32_t e = 0; e < n_experts; e++)
            out_tokens[(int64_t)l * n_experts + e] =
                json_integer_value(json_array_get(json_array_get(layers, (size_t)l), (size_t)e));
    json_decref(root);
    return EK_OK;
}
