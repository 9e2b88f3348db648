/*
 * What the keel does between steps: samples, windows, and one look at rebalancing a time.
 */
#include <string.h>

#include "keel/keel_internal.h"

#define TAIL_QUANTILE 0.99

/* ---- samples ---- */

/** P99 of the service times since the last sample, and begin anew; 0: there were none. */
static int64_t take_tail(ek_keel *keel)
{
    uint64_t total = 0, seen = 0;
    for (uint32_t i = 0; i < EK_SERVICE_BUCKETS; i++)
        total += keel->served[i];
    int64_t tail_us = 0;
    for (uint32_t i = 0; i < EK_SERVICE_BUCKETS && total > 0; i++) {
        seen += keel->served[i];
        if ((double)seen < TAIL_QUANTILE * (double)total) continue;
        tail_us = (int64_t)ek_telemetry_service_bucket_max(i);
        break;
    }
    memset(keel->served, 0, sizeof keel->served);
    return tail_us;
}

static void sample(ek_keel *keel, int64_t now_us)
{
    keel->next_sample_us = now_us + keel->setup.sample_us;
    ek_telemetry_experts_read(keel->setup.devices, 0, NULL, NULL, keel->busy_ns);
    keel->tail_us = take_tail(keel);
    if (keel->is_blind) {
        ek_telemetry_load_view_miss(keel->load);
        return;
    }
    /* The first one publishes nothing; a blocked one is counted, and its time is in the next. */
    if (keel->queue) ek_telemetry_queues_most(keel->setup.queues, keel->queue);
    (void)!ek_telemetry_load_view_sample(keel->load, now_us, keel->busy_ns, keel->queue);
}

/* ---- windows ---- */

static void detect(ek_keel *keel, int64_t now_us, bool view_is_used, ek_keel_news *news)
{
    const ek_route_view *view = ek_keel_view(keel, now_us);
    int64_t age_us = view ? view->age_us : now_us;
    const ek_detect_window window = {
        .end_us = now_us,
        .tokens = keel->window,
        .utilisation = view ? view->utilisation : NULL,
        .view_age_us = view_is_used ? age_us : -1,
    };
    int32_t n = ek_telemetry_detect_step(keel->detect, &window, news->alert, EK_KEEL_NEWS_MAX);
    news->n_alerts = n < EK_KEEL_NEWS_MAX ? n : EK_KEEL_NEWS_MAX;
}

static void close_window(ek_keel *keel, int64_t now_us, bool view_is_used, ek_keel_news *news)
{
    int64_t n_cells = (int64_t)keel->setup.n_layers * keel->setup.n_experts;
    bool is_first = keel->window_us == 0;
    int64_t length_us = now_us - keel->window_us;
    keel->next_window_us = now_us + keel->params.window_us;
    keel->window_us = now_us;
    ek_telemetry_experts_read(keel->setup.experts, 0, keel->window, NULL, NULL);
    for (int64_t i = 0; i < n_cells; i++) {
        int64_t total = keel->window[i];
        keel->window[i] -= keel->total[i];
        keel->total[i] = total;
    }
    if (is_first) return; /* it only says where to count from */
    detect(keel, now_us, view_is_used, news);
    if (keel->controller)
        ek_place_controller_feed(keel->controller, now_us, length_us, keel->window);
}

/* ---- rebalancing ---- */

/*
 * Weights lie in memory that all devices see, so a move is done as soon as shares are cut by it;
 * the step's order and bounds are kept all the same.
 */
static void carry_out(ek_keel *keel, int64_t now_us, ek_keel_news *news)
{
    ek_place_step step;
    if (ek_place_controller_next(keel->controller, now_us, &step) != EK_OK) return;
    int32_t layer = step.layer, n_replicas = step.n_replicas;
    int64_t bytes = step.bytes;
    if (ek_place_controller_confirm(keel->controller, now_us, step.id) != EK_OK) return;
    ek_keel_layer_set(keel, layer, ek_place_controller_slots(keel->controller, layer));
    keel->has_view = false; /* experts' loads are those of other devices now */
    news->moved = true;
    news->layer = layer;
    news->n_replicas = n_replicas;
    news->bytes = bytes;
}

static void rebalance(ek_keel *keel, int64_t now_us, ek_keel_news *news)
{
    ek_place_controller_watch(keel->controller, now_us);
    ek_arena scratch = ek_arena_over(keel->scratch, keel->scratch_bytes);
    ek_place_outlook outlook;
    ek_status status = ek_place_controller_decide(keel->controller, now_us, scratch, &outlook);
    if (status == EK_OK) {
        keel->outlook = outlook;
        news->looked = true;
        news->outlook = outlook;
    }
    carry_out(keel, now_us, news);
}

void ek_keel_tick(ek_keel *keel, int64_t now_us, bool view_is_used, ek_keel_news *out_news)
{
    out_news->n_alerts = 0;
    out_news->looked = false;
    out_news->moved = false;
    if (now_us < keel->next_sample_us) return;
    sample(keel, now_us);
    if (now_us >= keel->next_window_us) close_window(keel, now_us, view_is_used, out_news);
    if (keel->controller) rebalance(keel, now_us, out_news);
}

int64_t ek_keel_due_us(const ek_keel *keel)
{
    return keel->next_sample_us;
}
