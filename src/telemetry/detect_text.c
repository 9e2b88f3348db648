#include "telemetry/detect_text.h"

#include <inttypes.h>
#include <stdio.h>

/* From this mean load of a whole layer on, moving work about finds nobody to take it. */
#define LAYER_FULL 0.7

void ek_telemetry_detect_evidence(const ek_alert *a, const ek_reading *r, const ek_detect_shape *s,
                                  char out[EK_ALERT_TEXT_MAX])
{
    const char *side = a->is_raised ? "alert from" : "over below";
    size_t room = EK_ALERT_TEXT_MAX;
    switch (a->kind) {
    case EK_DETECT_STALE_VIEW:
        if (r->with[0] >= (double)INT64_MAX)
            snprintf(out, room, "there is no load view");
        else
            snprintf(out, room, "the load view is %.0f ms old, %.1f sampling periods (%s %.1f)",
                     r->with[0] / 1e3, r->value, side, a->limit);
        break;
    case EK_DETECT_CONSTANT_GATE:
        snprintf(out, room,
                 "layer %" PRId32 ": %.1f %% of tokens visit the same %" PRId32 " of %" PRId32
                 " experts, and the drift from the window before is %.4f (%s %.2f)",
                 a->layer, 100.0 * r->with[0], s->top_k, s->n_experts, r->with[1], side, a->limit);
        break;
    case EK_DETECT_COLLAPSE:
        snprintf(out, room,
                 "layer %" PRId32 ": %.1f of %" PRId32 " experts do the work of top-%" PRId32
                 "; the %" PRId32 " hottest get %.1f %% of %" PRId64
                 " token-slots (collapsed %.2f, %s %.2f)",
                 a->layer, r->with[0], s->n_experts, s->top_k, s->top_k, 100.0 * r->with[1],
                 r->tokens, r->value, side, a->limit);
        break;
    case EK_DETECT_ZERO_HIT:
        snprintf(out, room,
                 "layer %" PRId32 ": %.0f of %" PRId32 " experts (the first is %" PRId32
                 ") got none of %" PRId64 " token-slots in %" PRId32 " windows",
                 a->layer, r->value, s->n_experts, r->expert, r->tokens, s->n_windows);
        break;
    case EK_DETECT_OSCILLATION:
        snprintf(out, room,
                 "layer %" PRId32 ": %.1f %% of traffic goes to and fro per window, expert %" PRId32
                 " most; in %" PRId32 " windows shares went %.2f and came %.2f far (%s %.1f %%)",
                 a->layer, 100.0 * r->value, r->expert, s->n_windows, r->with[0], r->with[1], side,
                 100.0 * a->limit);
        break;
    case EK_DETECT_IMBALANCE:
        snprintf(out, room,
                 "layer %" PRId32 ": expert %" PRId32 " gets %.2f times the mean of %" PRId32
                 " experts; cv %.2f, %" PRId64 " token-slots (%s %.2f)",
                 a->layer, r->expert, r->value, s->n_experts, r->with[0], r->tokens, side,
                 a->limit);
        break;
    case EK_DETECT_OVERLOAD:
        snprintf(out, room,
                 "layer %" PRId32 ": expert %" PRId32
                 " is busy %.2f of the time, the layer's mean is %.2f (%s %.2f)",
                 a->layer, r->expert, r->value, r->with[0], side, a->limit);
        break;
    case EK_DETECT_N_KINDS: out[0] = '\0'; break;
    }
}

static void overload_step(const ek_reading *r, char *out)
{
    if (r->with[0] < LAYER_FULL)
        snprintf(
            out, EK_ALERT_TEXT_MAX,
            "routing: policy breaker or least-load sends tokens to experts with room; experts: "
            "give expert %" PRId32 " another replica; scale-out: not yet, the layer has room",
            r->expert);
    else
        snprintf(out, EK_ALERT_TEXT_MAX,
                 "routing: check that no rule or canary sends more here than meant, limit what is "
                 "admitted; experts: replicas do not help, all experts are busy; scale-out: add "
                 "devices, the whole layer works at %.2f",
                 r->with[0]);
}

void ek_telemetry_detect_next_step(const ek_alert *a, const ek_reading *r,
                                   char out[EK_ALERT_TEXT_MAX])
{
    static const char *const texts[EK_DETECT_N_KINDS] = {
        [EK_DETECT_STALE_VIEW] = "routing: is static until a fresh sample comes, nothing to "
                                 "change; experts: see why the "
                                 "sampler is late (a worker that hangs, a machine without idle "
                                 "time); scale-out: only if "
                                 "samplers starve for processor time",
        [EK_DETECT_CONSTANT_GATE] =
            "routing: set policy static and see whether it stays, to rule out a load view that is "
            "wrong; experts: check the gate's weights and bias against the model's files, load the "
            "previous version; scale-out: does not help",
        [EK_DETECT_COLLAPSE] =
            "routing: see whether a rule or one client's traffic brings it; a policy with a "
            "quality budget spreads what scores nearly the same; experts: replicas of the hottest, "
            "check the gate's bias; scale-out: does not help while others are idle",
        [EK_DETECT_ZERO_HIT] =
            "routing: see whether the policy's breaker keeps it open, close it; experts: check its "
            "gate bias and weights against the model's files, give its spare replicas away; "
            "scale-out: does not help",
        [EK_DETECT_OSCILLATION] =
            "routing: longer dwell and smoothing, a different seed on each front, or policy static "
            "for a while; experts: pause rebalancing, see whether moves go to and fro; scale-out: "
            "does not help",
        [EK_DETECT_IMBALANCE] =
            "routing: split batches over replicas, then policy discount or breaker; experts: "
            "rebalance "
            "the placement, more replicas of the hottest; scale-out: only when the busiest device "
            "is overloaded after both",
    };
    if (a->kind == EK_DETECT_OVERLOAD)
        overload_step(r, out);
    else
        snprintf(out, EK_ALERT_TEXT_MAX, "%s", texts[a->kind]);
}
