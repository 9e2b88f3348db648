#include "cli/gates_ready.h"

#include <string.h>

#include "engine/watch.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "sys/signal.h"

#define TOKENS_MAX 256 /* of the sample */
#define AGAIN_US   5000000
#define LOOK_US    50000
#define BEAT_US    1000000 /* to systemd: it waits, but it lives */

/* Of several kinds, so that a gate in order has something to tell apart. */
static const char text[] =
    "The parcel left the warehouse on Monday and is expected in two days. If nobody is at home, "
    "the "
    "driver leaves a note with a number to call.\n"
    "我想查一下昨天下的订单，物流信息一直没有更新，请问什么时候可以送到？退货的话运费由谁承担？\n"
    "def mean(values):\n    total = 0.0\n    for value in values:\n        total += value\n"
    "    return total / len(values) if values else None\n"
    "In 1905 three short papers changed what was known about light, heat and time; 17 * 23 = 391, "
    "and "
    "the square root of 2 is 1.41421356.\n"
    "int main(void)\n{\n    for (int i = 0; i < 10; i++)\n        printf(\"%d\\n\", i * i);\n"
    "    return 0;\n}\n"
    "\"Why,\" asked the child, \"does the moon follow us home?\" Her grandmother smiled, folded "
    "the "
    "blanket, and said that far things always seem to walk with whoever looks at them.\n";

typedef struct sampling {
    const ek_cli_gates *gates;
    ek_sys_region region;
    ek_gate_counts counts;
    int32_t *ids; /* owned */
    int32_t n_ids;
    int32_t n_tries;
} sampling;

static ek_status open_sampling(sampling *s, ek_err *err)
{
    ek_engine_info info;
    int64_t n_ids = 0;
    ek_engine_info_get(s->gates->engine, &info);
    size_t cells = (size_t)info.n_layers * (size_t)(info.n_experts + 1);
    ek_status status = ek_sys_region_open(cells * 3 * sizeof(double) + (1 << 12), 0, &s->region);
    if (status != EK_OK) return ek_err_set(err, status, "no memory to sample the gates");
    ek_arena arena = ek_sys_region_arena(&s->region);
    status = ek_telemetry_gate_counts_make(info.n_layers, info.n_experts, info.top_k, &arena,
                                           &s->counts);
    if (status != EK_OK) return ek_err_set(err, status, "no memory to sample the gates");
    status =
        ek_engine_tokenize(s->gates->engine, ek_str_from(text), false, true, &s->ids, &n_ids, err);
    int64_t most = info.kv_tokens < info.context_tokens ? info.kv_tokens : info.context_tokens;
    if (most > TOKENS_MAX) most = TOKENS_MAX;
    s->n_ids = (int32_t)(n_ids < most ? n_ids : most);
    return status;
}

static void close_sampling(sampling *s)
{
    ek_sys_free(s->ids);
    ek_sys_region_close(&s->region);
}

static int64_t rows_left_out(ek_front *front)
{
    ek_front_counts counts = {0};
    if (front) ek_cluster_front_counts(front, &counts);
    return (int64_t)counts.degraded_rows;
}

/* Each try begins elsewhere, so that the prefix cache has nothing of it. */
static ek_status look(sampling *s, ek_err *err)
{
    int32_t skipped = s->n_tries++ % (s->n_ids / 4 + 1);
    int64_t left_out = rows_left_out(s->gates->front);
    ek_status status = ek_engine_sample_gates(s->gates->engine, s->ids + skipped,
                                              s->n_ids - skipped, &s->counts, err);
    if (status == EK_EPEER)
        return ek_err_set(err, status, "some experts that the sample needs do not answer");
    left_out = rows_left_out(s->gates->front) - left_out;
    if (status == EK_OK && left_out > 0)
        status =
            ek_err_set(err, EK_EPEER, "%lld rows of the sample had no worker with their expert",
                       (long long)left_out);
    return status == EK_OK ? ek_telemetry_gate_check(&s->counts, err) : status;
}

/* @return whether to go on */
static bool pause_for(const ek_cli_gates *gates, int64_t us)
{
    int64_t until_us = ek_sys_now_us() + us, beat_us = 0;
    for (int64_t now_us; (now_us = ek_sys_now_us()) < until_us; ek_sys_sleep_us(LOOK_US)) {
        if (gates->hurry(gates->ctx)) return false;
        if (now_us < beat_us) continue;
        ek_sys_notify("WATCHDOG=1");
        beat_us = now_us + BEAT_US;
    }
    return true;
}

static ek_status wait_until_sane(sampling *s, bool requires, ek_err *err)
{
    char told[EK_ERR_TEXT_MAX] = "";
    for (;;) {
        ek_err why = {0};
        ek_status status = look(s, &why);
        ek_gauge_set(s->gates->sane, status == EK_OK);
        if (status == EK_OK) {
            ek_log(EK_LOG_INFO, "cli", "gates_sane", "tokens=%lld tries=%d",
                   (long long)s->counts.n_tokens, (int)s->n_tries);
            return EK_OK;
        }
        if (status == EK_ENOMEM) return ek_err_set(err, status, "%s", why.text);
        if (strcmp(told, why.text) != 0)
            ek_log(requires ? EK_LOG_ERROR : EK_LOG_WARN, "cli", "gates_not_sane",
                   "ready=%s why=\"%s\" next=\"%s\"", requires ? "false" : "true", why.text,
                   "calibrate the model's gates, or set engine.gate_check to warn");
        if (!requires) return EK_OK;
        memcpy(told, why.text, sizeof told);
        ek_gateway_hold(s->gates->gateway, told);
        ek_sys_notify("STATUS=not ready: the gates are not sane");
        if (!pause_for(s->gates, AGAIN_US))
            return ek_err_set(err, EK_ECANCELED, "ended before the gates were sane: %s", told);
    }
}

ek_status ek_cli_gates_ready(const ek_cli_gates *gates, ek_err *err)
{
    ek_gate_checking checking = gates->config->engine.gate_check;
    if (checking == EK_GATE_CHECKING_AUTO)
        checking = gates->front ? EK_GATE_CHECKING_REQUIRE : EK_GATE_CHECKING_OFF;
    if (checking == EK_GATE_CHECKING_OFF) return EK_OK;
    sampling s = {.gates = gates};
    ek_status status = open_sampling(&s, err);
    if (status == EK_OK) status = wait_until_sane(&s, checking == EK_GATE_CHECKING_REQUIRE, err);
    close_sampling(&s);
    return status;
}
