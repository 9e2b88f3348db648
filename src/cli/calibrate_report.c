/* What calibrate found and did: tables for people, JSON and CSV for programs. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>

#include "cli/calibrate.h"

static const char *const ends[] = {"goes on", "reached", "exhausted", "exploded", "collapsed"};

/* Balance as the engine counted it, where there were texts; else as the tuner saw it. */
static ek_balance balance_of(const ek_cli_calibration *c, int32_t layer, bool after)
{
    ek_balance balance;
    const ek_cli_calibrate_measure *m = after ? &c->after : &c->before;
    if (!c->measured)
        return after ? c->layers[layer].after.balance : c->layers[layer].before.balance;
    ek_telemetry_balance(m->counts + (int64_t)layer * c->gates.n_experts, c->gates.n_experts,
                         &balance);
    return balance;
}

static double perplexity(const ek_cli_calibrate_measure *m)
{
    return exp(m->loss / (double)m->n_predicted);
}

/* The least variance of a layer's experts, of those that have any tokens; -1: none has. */
static double least_variance(const ek_cli_calibration *c, int32_t layer, const double *variance)
{
    double least = -1;
    for (int32_t e = 0; e < c->gates.n_experts; e++) {
        const double v = variance[(int64_t)layer * c->gates.n_experts + e];
        if (v >= 0 && (least < 0 || v < least)) least = v;
    }
    return least;
}

static void print_layer(const ek_cli_calibration *c, int32_t l)
{
    const ek_cli_calibrate_layer *layer = &c->layers[l];
    const ek_balance before = balance_of(c, l, false), after = balance_of(c, l, true);
    printf("%5d %6.2f %6.2f %6.2f %6.2f %4d %4d %8.1f %8.1f %8.4f %8.4f %9.3g %9.2e  %s", l,
           before.max_over_mean, after.max_over_mean, before.cv, after.cv, before.n_zero,
           after.n_zero, before.effective, after.effective, layer->after.kl,
           layer->after.score_loss, layer->gradient_norm_max,
           least_variance(c, l, c->variance_after), ends[layer->report.end]);
    for (int32_t i = 0; i < layer->n_mended && i < EK_CALIBRATE_MENDED_MAX; i++)
        printf("%s%d", i ? "," : "; mended expert ", layer->mended[i]);
    if (layer->n_mended > EK_CALIBRATE_MENDED_MAX) printf(", ...");
    putchar('\n');
}

void ek_cli_calibrate_print(const ek_cli_calibration *c)
{
    printf("%5s %13s %13s %9s %17s %8s %8s %9s %9s\n", "", "max/mean", "cv", "zero-hit",
           "effective", "KL", "score", "gradient", "least");
    printf("%5s %6s %6s %6s %6s %4s %4s %8s %8s %8s %8s %9s %9s  %s\n", "layer", "before", "after",
           "before", "after", "bef.", "aft.", "before", "after", "nats", "loss", "norm", "variance",
           "end");
    for (int32_t l = 0; l < c->gates.n_layers; l++)
        print_layer(c, l);
    if (!c->measured) return;
    const double before = perplexity(&c->before), after = perplexity(&c->after);
    printf("perplexity of the %" PRId64 " tokens kept back: %.4f before, %.4f after (%+.2f %%)\n",
           c->after.n_predicted, before, after, 100 * (after / before - 1));
}

static json_t *numbers(const double *x, int32_t n)
{
    json_t *array = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(array, x[i] >= 0 ? json_real(x[i]) : json_null());
    return array;
}

static json_t *balance_json(const ek_balance *b)
{
    return json_pack("{s:f, s:f, s:f, s:i, s:i, s:I}", "max_over_mean", b->max_over_mean, "cv",
                     b->cv, "effective", b->effective, "zero_hit", b->n_zero, "hottest", b->hottest,
                     "slots", (json_int_t)b->tokens);
}

/* Token-slots of each expert of a layer on the text that was kept back; null: there was none. */
static json_t *counts_json(const ek_cli_calibration *c, int32_t layer, bool after)
{
    if (!c->measured) return json_null();
    const ek_cli_calibrate_measure *m = after ? &c->after : &c->before;
    json_t *array = json_array();
    for (int32_t e = 0; e < c->gates.n_experts; e++)
        json_array_append_new(array,
                              json_integer(m->counts[(int64_t)layer * c->gates.n_experts + e]));
    return array;
}

static json_t *layer_json(const ek_cli_calibration *c, int32_t l)
{
    const ek_cli_calibrate_layer *layer = &c->layers[l];
    const ek_tune_report *r = &layer->report;
    const ek_balance before = balance_of(c, l, false), after = balance_of(c, l, true);
    const int64_t at = (int64_t)l * c->gates.n_experts;
    json_t *mended = json_array();
    for (int32_t i = 0; i < layer->n_mended && i < EK_CALIBRATE_MENDED_MAX; i++)
        json_array_append_new(mended, json_integer(layer->mended[i]));
    return json_pack(
        "{s:i, s:s, s:s, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o, "
        "s:o, s:o, s:o}",
        "layer", l, "end", ends[r->end], "why", r->why, "before", balance_json(&before), "after",
        balance_json(&after), "kl_before", layer->before.kl, "kl", layer->after.kl, "score_loss",
        layer->after.score_loss, "mass_top1_before", layer->before.mass_top1, "mass_top1",
        layer->after.mass_top1, "gradient_norm", r->gradient_norm, "gradient_norm_max",
        layer->gradient_norm_max, "balance_weight", r->balance_weight, "loss_balance",
        r->losses.balance, "loss_z", r->losses.z, "mended", mended, "output_variance_before",
        numbers(c->variance_before + at, c->gates.n_experts), "output_variance",
        numbers(c->variance_after + at, c->gates.n_experts), "slots_before",
        counts_json(c, l, false), "slots", counts_json(c, l, true));
}

void ek_cli_calibrate_print_json(const ek_cli_calibration *c)
{
    json_t *layers = json_array(), *root;
    for (int32_t l = 0; l < c->gates.n_layers; l++)
        json_array_append_new(layers, layer_json(c, l));
    root =
        json_pack("{s:s, s:s, s:s, s:f, s:i, s:o}", "model", c->options->model_path, "fingerprint",
                  c->fingerprint, "method", ek_tune_method_name(c->options->tune.method), "target",
                  c->options->tune.target, "tokens", c->states.shape.n_tokens, "layers", layers);
    if (c->measured)
        json_object_set_new(root, "perplexity",
                            json_pack("{s:f, s:f, s:I}", "before", perplexity(&c->before), "after",
                                      perplexity(&c->after), "tokens",
                                      (json_int_t)c->after.n_predicted));
    json_dumpf(root, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(root);
}

/* ---- the log of looks ---- */

void ek_cli_calibrate_log_head(FILE *log)
{
    fputs("round,layer,method,done,gradient_norm,balance_weight,loss_kl,loss_balance,loss_z,"
          "loss_total,max_over_mean,cv,zero_hit,effective,kl,score_loss,mass_top1,"
          "mass_effective,collapse,constant\n",
          log);
}

void ek_cli_calibrate_log_look(const ek_cli_calibration *c, int32_t layer, const ek_tune_report *r)
{
    const ek_gate_figures *f = &r->now;
    fprintf(c->log,
            "%" PRId64 ",%d,%s,%" PRId64 ",%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%d,%.6g,%.6g,"
            "%.6g,%.6g,%.6g,%.6g,%.6g\n",
            c->round + 1, layer, r->in_bias ? "bias" : "router", r->n_done, r->gradient_norm,
            r->balance_weight, r->losses.kl, r->losses.balance, r->losses.z, r->losses.total,
            f->balance.max_over_mean, f->balance.cv, f->balance.n_zero, f->balance.effective, f->kl,
            f->score_loss, f->mass_top1, f->mass_effective, f->collapse, f->constant);
    fflush(c->log);
}
