/*
 * The report: one HTML file with its plots inside it, and nothing from anywhere else. Times run
 * from left to right on one scale in all plots, with the promotion shaded.
 */
#include <math.h>
#include <string.h>

#include "cli/lab.h"
#include "sys/mem.h"

#define LEFT    150.0 /* of a plot's area, in pixels */
#define RIGHT   930.0
#define TOP     12.0
#define HEIGHT  200.0
#define STRIP   11.0 /* height of a worker's row */
#define ALL_END 3    /* how much longer than the schedule a plot may show, in its lengths */

/* Told apart by people who see few colours, too: also by their order from top to bottom. */
const char *const ek_cli_lab_colours[EK_CLI_LAB_POLICIES_MAX] = {
    "#c0392b", "#e08e0b", "#2471a3", "#1e8449", "#7d3c98", "#34495e",
    "#d35400", "#16a085", "#884ea0", "#7f8c8d", "#b03a2e", "#1f618d",
};

typedef struct page {
    const ek_cli_lab *lab;
    const ek_cli_lab_result *result;
    ek_buf *out;
    double end_s; /* of all plots */
} page;

void ek_cli_lab_html_escape(ek_buf *out, const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '<')
            ek_http_buf_addz(out, "&lt;");
        else if (*c == '&')
            ek_http_buf_addz(out, "&amp;");
        else
            ek_http_buf_add(out, (ek_str){c, 1});
    }
}

static double x_of(const page *p, double at_s)
{
    const double part = at_s < 0 ? 0 : at_s > p->end_s ? 1 : at_s / p->end_s;
    return LEFT + part * (RIGHT - LEFT);
}

/* ---- what all plots have ---- */

static void begin_plot(const page *p, double height, const char *title)
{
    const ek_lab_plan *plan = &p->lab->plan;
    const double beg = x_of(p, ek_lab_plan_begins(plan, EK_LAB_PROMOTION));
    const double end = x_of(p, ek_lab_plan_begins(plan, EK_LAB_RECOVERY));
    ek_http_buf_addf(p->out, "<h2>%s</h2>\n<svg viewBox=\"0 0 960 %.0f\" role=\"img\">\n", title,
                     TOP + height + 34);
    ek_http_buf_addf(
        p->out,
        "<rect x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"%.0f\" class=\"shade\"/>\n"
        "<text x=\"%.1f\" y=\"%.0f\" class=\"note\">promotion</text>\n",
        beg, TOP, end - beg, height, beg + 4, TOP + height + 28);
}

/* Seconds along the bottom: a round step that gives about ten marks. */
static void add_seconds(const page *p, double height)
{
    static const double steps[] = {1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200};
    double step = steps[0];
    for (size_t i = 0; i < EK_COUNT_OF(steps) && p->end_s / step > 12; i++)
        step = steps[i];
    ek_http_buf_addf(p->out, "<path d=\"M%.0f %.0fH%.0f\" class=\"axis\"/>\n", LEFT, TOP + height,
                     RIGHT);
    for (int32_t i = 0; i * step <= p->end_s; i++)
        ek_http_buf_addf(p->out,
                         "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%.0f s</text>\n",
                         x_of(p, i * step), TOP + height + 15, i * step);
}

static void end_plot(const page *p)
{
    ek_http_buf_addz(p->out, "</svg>\n");
}

static void add_legend(const page *p)
{
    ek_http_buf_addz(p->out, "<p class=\"legend\">");
    for (int32_t i = 0; i < p->result->n_runs; i++)
        ek_http_buf_addf(p->out, "<span style=\"color:%s\">&#9644; %s</span> ",
                         ek_cli_lab_colours[i], p->result->run[i].policy->name);
    ek_http_buf_addz(p->out, "</p>\n");
}

/* ---- latency ---- */

#define MS_LEAST 10.0

static double y_of_ms(double ms, double most_ms)
{
    if (ms < MS_LEAST) ms = MS_LEAST;
    return TOP + HEIGHT * (1 - log(ms / MS_LEAST) / log(most_ms / MS_LEAST));
}

static double slowest_ms(const page *p)
{
    double most = 10 * MS_LEAST;
    for (int32_t i = 0; i < p->result->n_runs; i++) {
        const ek_cli_lab_run *run = &p->result->run[i];
        for (int32_t a = 0; a < run->n_answers; a++) {
            const double ms = 1e3 * (run->answers[a].end_s - run->answers[a].due_s);
            if (run->answers[a].ok && ms > most) most = ms;
        }
    }
    return most;
}

static void add_latency_line(const page *p, int32_t i, double q, double most_ms, double *scratch,
                             const char *style)
{
    const ek_cli_lab_run *run = &p->result->run[i];
    const double end_s = ek_lab_plan_begins(&p->lab->plan, EK_LAB_N_PHASES);
    const double step = end_s > 240 ? end_s / 240 : 1;
    bool first = true;
    ek_http_buf_addf(p->out, "<path stroke=\"%s\" class=\"line\" %s d=\"", ek_cli_lab_colours[i],
                     style);
    for (int32_t k = 0; k * step < end_s; k++) {
        const double s = k * step;
        const double ms = ek_lab_latency_ms(run->answers, run->n_answers, s, s + step, q, scratch);
        if (ms < 0) continue;
        ek_http_buf_addf(p->out, "%s%.1f %.1f", first ? "M" : "L", x_of(p, s + step / 2),
                         y_of_ms(ms, most_ms));
        first = false;
    }
    ek_http_buf_addz(p->out, "\"/>\n");
}

static void add_latency(const page *p, double *scratch)
{
    const double most_ms = slowest_ms(p);
    begin_plot(p, HEIGHT, "Latency, by the second in which requests were due");
    add_seconds(p, HEIGHT);
    double ms = MS_LEAST;
    while (ms <= most_ms) {
        ek_http_buf_addf(p->out,
                         "<path d=\"M%.0f %.1fH%.0f\" class=\"grid\"/>\n"
                         "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%.0f ms</text>\n",
                         LEFT, y_of_ms(ms, most_ms), RIGHT, LEFT - 8, y_of_ms(ms, most_ms) + 4, ms);
        ms *= 10;
    }
    for (int32_t i = 0; i < p->result->n_runs; i++) {
        add_latency_line(p, i, 0.5, most_ms, scratch, "stroke-dasharray=\"3 3\" opacity=\"0.7\"");
        add_latency_line(p, i, 1, most_ms, scratch, "");
    }
    end_plot(p);
    add_legend(p);
    ek_http_buf_addz(p->out,
                     "<p class=\"note\">Solid: the slowest request of a second; dashed: the "
                     "median. Counted from the time when a request was due.</p>\n");
}

/* ---- requests that wait ---- */

static void add_waiting(const page *p)
{
    double most = 1;
    for (int32_t i = 0; i < p->result->n_runs; i++)
        for (int32_t s = 0; s < p->result->run[i].watch.n; s++)
            most = fmax(most, p->result->run[i].watch.samples[s].waiting);
    begin_plot(p, HEIGHT / 2, "Requests that wait for a place in the batch");
    add_seconds(p, HEIGHT / 2);
    ek_http_buf_addf(p->out,
                     "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%.0f</text>\n"
                     "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">0</text>\n",
                     LEFT - 8, TOP + 8, most, LEFT - 8, TOP + HEIGHT / 2);
    for (int32_t i = 0; i < p->result->n_runs; i++) {
        const ek_cli_lab_watch *w = &p->result->run[i].watch;
        ek_http_buf_addf(p->out, "<path stroke=\"%s\" class=\"line\" d=\"", ek_cli_lab_colours[i]);
        for (int32_t s = 0; s < w->n && w->samples[s].at_s <= p->end_s; s++)
            ek_http_buf_addf(p->out, "%s%.1f %.1f", s ? "L" : "M", x_of(p, w->samples[s].at_s),
                             TOP + HEIGHT / 2 * (1 - w->samples[s].waiting / most));
        ek_http_buf_addz(p->out, "\"/>\n");
    }
    end_plot(p);
}

/* ---- workers, and the chain ---- */

/* White over blue to red: 0, the knee, 1. */
static void add_cell(const page *p, double beg_s, double end_s, int32_t row, double utilisation)
{
    const bool hot = utilisation >= EK_LAB_OVERLOAD;
    const double part = utilisation / EK_LAB_OVERLOAD;
    const int red = hot ? 192 : (int)(245 - 200 * part);
    const int green = hot ? 57 : (int)(247 - 120 * part);
    const int blue = hot ? 43 : (int)(250 - 60 * part);
    ek_http_buf_addf(p->out, "<path fill=\"#%02x%02x%02x\" d=\"M%.1f %.0fH%.1fv%.0fH%.1fz\"/>\n",
                     red, green, blue, x_of(p, beg_s), TOP + row * STRIP, x_of(p, end_s) + 0.3,
                     STRIP - 1, x_of(p, beg_s));
}

static void add_event(const page *p, double at_s, double height, const char *name, int row)
{
    if (at_s < 0) return;
    const double x = x_of(p, at_s), y = TOP + height + 34 + 13 * row;
    const bool right = x > RIGHT - 150;
    ek_http_buf_addf(p->out, "<path d=\"M%.1f %.0fV%.1f\" class=\"event\"/>\n", x, TOP, y);
    ek_http_buf_addf(p->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s, %.0f s</text>\n",
                     right ? x - 3 : x + 3, y, right ? "end" : "start", name, at_s);
}

static void add_workers(const page *p, const ek_cli_lab_run *run)
{
    const ek_cli_lab_watch *w = &run->watch;
    const ek_lab_chain *c = &run->chain;
    const double height = STRIP * w->n_workers;
    ek_http_buf_addf(p->out, "<h3>%s</h3>\n<svg viewBox=\"0 0 960 %.0f\" role=\"img\">\n",
                     run->policy->name, TOP + height + 106);
    for (int32_t i = 0; i < w->n_workers; i++) {
        if (w->n_workers <= 16)
            ek_http_buf_addf(p->out,
                             "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">worker %d</text>\n",
                             LEFT - 8, TOP + i * STRIP + 9, (int)i);
        for (int32_t s = 1; s < w->n && w->samples[s].at_s <= p->end_s; s++)
            add_cell(p, w->samples[s - 1].at_s, w->samples[s].at_s, i,
                     ek_lab_utilisation(&w->samples[s - 1], &w->samples[s], i));
    }
    add_seconds(p, height);
    add_event(p, c->hot_expert_s, height, "hot expert", 0);
    add_event(p, c->overload_s, height, "worker over 85 %", 1);
    add_event(p, c->late_s, height, "requests late", 2);
    add_event(p, c->breaker_s, height, "breaker bends", 3);
    add_event(p, c->alert_s, height, "alert", 4);
    add_event(p, c->recovery_s, height, "recovered", 5);
    end_plot(p);
}

/* ---- words and figures ---- */

static void add_table(const page *p)
{
    ek_http_buf_addz(p->out,
                     "<table><tr><th>promotion<th>requests/s<th>P50 ms<th>P99 ms<th>first token "
                     "P99<th>per token P99<th>busiest<th>max/mean<th>cv<th>router CPU<th>score "
                     "loss<th>perplexity<th>rerouted<th>deferred<th>degraded<th>failed\n");
    for (int32_t i = 0; i < p->result->n_runs; i++) {
        const ek_cli_lab_run *run = &p->result->run[i];
        const ek_lab_figures *f = &run->figures[EK_LAB_PROMOTION];
        ek_http_buf_addf(p->out, "<tr><td style=\"color:%s\">%s<td>%.2f<td>%.0f<td>%.0f<td>%.0f",
                         ek_cli_lab_colours[i], run->policy->name, f->qps, f->p50_ms, f->p99_ms,
                         f->ttft_p99_ms);
        ek_http_buf_addf(p->out, "<td>%.1f<td>%.2f<td>%.2f<td>%.3f<td>%.2f %%<td>%.4f",
                         f->token_p99_ms, f->hottest_utilisation, f->max_over_mean, f->cv,
                         100 * f->router_share, f->score_loss);
        if (isnan(run->perplexity_change))
            ek_http_buf_addz(p->out, "<td>-");
        else
            ek_http_buf_addf(p->out, "<td>%+.2f %%", 100 * run->perplexity_change);
        ek_http_buf_addf(p->out, "<td>%.0f<td>%.0f<td>%.0f<td>%d\n", f->rerouted, f->deferred,
                         f->degraded, (int)f->n_failed);
    }
    ek_http_buf_addz(p->out, "</table>\n");
}

static void add_choices(const page *p)
{
    const ek_cli_lab *lab = p->lab;
    const ek_model_params *m = &lab->file->model->params;
    ek_buf *out = p->out;
    ek_http_buf_addz(out, "<h2>How this was made</h2>\n<ul><li>Model ");
    ek_cli_lab_html_escape(out, lab->model_path);
    ek_http_buf_addf(out, ": %d layers of %d experts, top-%d; evenkeel %s.\n", (int)m->n_layers,
                     (int)m->n_experts, (int)m->top_k, EK_VERSION);
    ek_http_buf_addf(out,
                     "<li>%d worker processes and a front on one machine. Workers are paced: the "
                     "true code runs, and the time of a device of %.4f Gop/s passes.\n",
                     (int)lab->n_workers, lab->gops);
    ek_http_buf_addz(out,
                     "<li>A worker that is busy more than 85 % of the time works at 65 % of its "
                     "speed (contention).\n");
    ek_http_buf_addz(out,
                     "<li>Experts lie side by side as one kind of traffic uses them, with equal "
                     "parts of ordinary traffic, which was studied beforehand.\n");
    ek_http_buf_addf(out,
                     "<li>Busiest worker over mean by that study: %.2f in mixed traffic, %.2f in "
                     "the promotion.\n",
                     lab->hottest_ordinary, lab->hottest_promotion);
    ek_http_buf_addf(out,
                     "<li>Without contention the promotion leaves %.1f requests/s under static "
                     "routing; %.2f are sent, in all phases.\n",
                     lab->capacity, lab->plan.rate[0]);
    ek_http_buf_addf(out,
                     "<li>%d requests, the same at the same times for every policy (seed %lld). "
                     "Prompts of %d tokens",
                     (int)lab->n_requests, (long long)lab->seed, (int)lab->n_prompt);
    ek_http_buf_addf(out, " from %s, answers of %d.\n",
                     lab->prompts.bundled ? "bundled texts" : "files of real prompts",
                     (int)lab->n_new);
    ek_http_buf_addz(out, "<li>+replicas: a second replica of the experts that are hottest in "
                          "ordinary traffic, spread over the other workers.\n");
    ek_http_buf_addz(out, "<li>Nothing is hedged, no prompt is cached. Rerouted are tokens, in a "
                          "layer each, whose experts are not the model's own choice.\n");
    ek_http_buf_addz(out,
                     "<li>Perplexity: the promotion's prompts, read again with the policy and the "
                     "loads that were seen in the promotion, against static routing.\n");
    ek_http_buf_addz(out, "<li>Divergence of the bent gate from the model's, in nats: ");
    for (int32_t i = 0; i < p->result->n_runs; i++)
        ek_http_buf_addf(out, "%s%s %.4f", i ? ", " : "", p->result->run[i].policy->name,
                         p->result->run[i].watch.divergence);
    ek_http_buf_addz(out, ".\n</ul>\n");
}

void ek_cli_lab_html_head(ek_buf *out, const char *title)
{
    ek_http_buf_addz(
        out, "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n"
             "<meta name=\"viewport\" content=\"width=device-width\">\n"
             "<title>evenkeel lab</title>\n<style>\n"
             "body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:1120px;margin:2em auto;"
             "padding:0 1em}\n"
             "h1{font-size:1.5em}h2{font-size:1.15em;margin:1.6em 0 .3em}h3{font-size:1em;"
             "margin:1em 0 0}\n"
             "table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}\n"
             "td,th{padding:.25em .4em;text-align:right;border-bottom:1px solid #ddd;"
             "font-variant-numeric:tabular-nums}\n"
             "td:first-child,th:first-child{text-align:left;font-weight:600;white-space:nowrap}\n"
             "svg{width:100%;height:auto}svg text{font-size:11px;fill:#555}\n"
             ".line{fill:none;stroke-width:1.6}.axis,.grid,.event{fill:none;stroke:#999}\n"
             ".grid{stroke:#e4e4e4}.event{stroke:#444;stroke-dasharray:2 2}.shade{fill:#fdf3e1}\n"
             ".note,.legend{font-size:13px;color:#555}.legend span{margin-right:1.2em}\n"
             "</style>\n");
    ek_http_buf_addf(out, "<h1>%s</h1>\n", title);
}

ek_status ek_cli_lab_write_html(const ek_cli_lab *lab, const ek_cli_lab_result *result,
                                const char *path, ek_err *err)
{
    ek_buf out = {0};
    const double end_s = ek_lab_plan_begins(&lab->plan, EK_LAB_N_PHASES);
    page p = {.lab = lab, .result = result, .out = &out, .end_s = end_s};
    double *scratch = ek_sys_calloc((size_t)lab->n_requests, sizeof *scratch);
    if (!scratch) return ek_err_set(err, EK_ENOMEM, "%s: no memory", path);
    for (int32_t i = 0; i < result->n_runs; i++) { /* also what comes after the last arrival */
        const ek_cli_lab_watch *w = &result->run[i].watch;
        if (w->n > 0) p.end_s = fmax(p.end_s, fmin(w->samples[w->n - 1].at_s, ALL_END * end_s));
    }
    ek_cli_lab_html_head(&out, "The incident");
    ek_http_buf_addz(
        &out,
        "<p>Ordinary traffic, then a promotion in which nine of ten requests ask about "
        "parcels, then ordinary traffic again: real processes, real requests, one policy "
        "after the other. Experts that the promotion needs lie on one worker; it "
        "passes 85 % utilisation, slows down, every step waits for it, and requests queue.</p>\n");
    add_table(&p);
    add_latency(&p, scratch);
    add_waiting(&p);
    ek_http_buf_addz(&out, "<h2>Workers, and the chain of events</h2>\n<p class=\"note\">Darker is "
                           "busier, red is over 85 %.</p>\n");
    for (int32_t i = 0; i < result->n_runs; i++)
        add_workers(&p, &result->run[i]);
    add_choices(&p);
    ek_http_buf_addz(&out, "</html>\n");
    const ek_status status = ek_cli_lab_write(&out, path, err);
    ek_http_buf_fini(&out);
    ek_sys_free(scratch);
    return status;
}
