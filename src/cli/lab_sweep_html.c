/* The sweep's page: latency over offered requests, one curve for each policy, and the limit. */
#include <math.h>

#include "cli/lab_sweep.h"

#define LEFT      80.0
#define RIGHT     930.0
#define TOP       12.0
#define HEIGHT    320.0
#define TICKS_MAX 12 /* on the axis of rates */

typedef struct axes {
    double rate_most, ms_least, ms_most; /* ms_least is a power of ten */
} axes;

static double x_of(const axes *a, double rate)
{
    return LEFT + rate / a->rate_most * (RIGHT - LEFT);
}

static double y_of(const axes *a, double ms)
{
    return TOP + HEIGHT * (1 - log(ms / a->ms_least) / log(a->ms_most / a->ms_least));
}

static axes axes_of(const ek_cli_lab_sweep *sweep)
{
    double least = sweep->limit_ms;
    axes a = {.ms_most = sweep->limit_ms};
    for (int32_t c = 0; c < sweep->n; c++)
        for (int32_t i = 0; i < sweep->curve[c].n; i++) {
            const ek_cli_lab_point *p = &sweep->curve[c].point[i];
            a.rate_most = fmax(a.rate_most, 1.02 * p->rate);
            a.ms_most = fmax(a.ms_most, p->figures.p99_ms);
            least = fmin(least, p->figures.p50_ms);
        }
    a.ms_least = pow(10, floor(log10(fmax(least, 0.1))));
    a.ms_most = fmax(1.1 * a.ms_most, 10 * a.ms_least);
    return a;
}

static void add_line(ek_buf *out, const axes *a, const ek_cli_lab_curve *curve, const char *colour,
                     bool p99)
{
    ek_http_buf_addf(out, "<path class=\"line\" stroke=\"%s\"%s d=\"", colour,
                     p99 ? "" : " stroke-dasharray=\"4 4\"");
    for (int32_t i = 0; i < curve->n; i++) {
        const ek_lab_figures *f = &curve->point[i].figures;
        ek_http_buf_addf(out, "%s%.1f %.1f", i ? "L" : "M", x_of(a, curve->point[i].rate),
                         y_of(a, p99 ? f->p99_ms : f->p50_ms));
    }
    ek_http_buf_addz(out, "\"/>\n");
    if (!p99 || curve->knee < 0) return;
    const ek_cli_lab_point *knee = &curve->point[curve->knee];
    ek_http_buf_addf(out,
                     "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"none\" stroke=\"%s\"/>\n"
                     "<text x=\"%.1f\" y=\"%.1f\">knee</text>\n",
                     x_of(a, knee->rate), y_of(a, knee->figures.p99_ms), colour,
                     x_of(a, knee->rate) + 8, y_of(a, knee->figures.p99_ms) + 14);
}

static void add_axes(ek_buf *out, const axes *a, double limit_ms)
{
    ek_http_buf_addf(out, "<path d=\"M%.0f %.0fH%.0f\" class=\"axis\"/>\n", LEFT, TOP + HEIGHT,
                     RIGHT);
    const int n_decades = (int)floor(log10(a->ms_most / a->ms_least) + 1e-9);
    for (int i = 0; i <= n_decades; i++) {
        const double ms = a->ms_least * pow(10, i);
        ek_http_buf_addf(out,
                         "<path d=\"M%.0f %.1fH%.0f\" class=\"grid\"/>\n"
                         "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%g ms</text>\n",
                         LEFT, y_of(a, ms), RIGHT, LEFT - 8, y_of(a, ms) + 4, ms);
    }
    const double ten = pow(10, floor(log10(a->rate_most / TICKS_MAX)));
    const double step = a->rate_most / ten <= 2 * TICKS_MAX   ? 2 * ten
                        : a->rate_most / ten <= 5 * TICKS_MAX ? 5 * ten
                                                              : 10 * ten;
    const int n_ticks = (int)(a->rate_most / step);
    for (int i = 0; i <= n_ticks; i++)
        ek_http_buf_addf(out, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%g</text>\n",
                         x_of(a, i * step), TOP + HEIGHT + 16, i * step);
    ek_http_buf_addf(out,
                     "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">requests/s offered"
                     "</text>\n<path d=\"M%.0f %.1fH%.0f\" class=\"event\"/>\n"
                     "<text x=\"%.0f\" y=\"%.1f\">limit</text>\n",
                     (LEFT + RIGHT) / 2, TOP + HEIGHT + 34, LEFT, y_of(a, limit_ms), RIGHT,
                     LEFT + 4, y_of(a, limit_ms) - 4);
}

static void add_table(ek_buf *out, const ek_cli_lab_sweep *sweep)
{
    ek_http_buf_addf(out,
                     "<table><tr><th>policy<th>closed loop, requests/s<th>knee<th>requests/s with "
                     "P99 &#8804; %.0f ms\n",
                     sweep->limit_ms);
    for (int32_t i = 0; i < sweep->n; i++) {
        const ek_cli_lab_curve *c = &sweep->curve[i];
        ek_http_buf_addf(out, "<tr><td style=\"color:%s\">%s<td>%.2f<td>", ek_cli_lab_colours[i],
                         c->policy->name, c->capacity);
        if (c->knee < 0)
            ek_http_buf_addz(out, "-");
        else
            ek_http_buf_addf(out, "%.0f %%", 100 * c->point[c->knee].load);
        ek_http_buf_addf(out, "<td>%s%.2f\n", c->passed_limit ? "" : "at least ", c->rate_limited);
    }
    ek_http_buf_addz(out, "</table>\n");
}

ek_status ek_cli_lab_sweep_write_html(const ek_cli_lab *lab, const ek_cli_lab_sweep *sweep,
                                      const char *path, ek_err *err)
{
    ek_buf out = {0};
    const axes a = axes_of(sweep);
    ek_cli_lab_html_head(&out, "Latency over load");
    ek_http_buf_addz(&out, "<p>Model ");
    ek_cli_lab_html_escape(&out, lab->model_path);
    ek_http_buf_addf(&out, ", %d paced workers, %s traffic.</p>\n", (int)lab->n_workers,
                     ek_lab_phase_names[sweep->phase]);
    ek_http_buf_addf(&out, "<svg viewBox=\"0 0 960 %.0f\" role=\"img\">\n", TOP + HEIGHT + 40);
    add_axes(&out, &a, sweep->limit_ms);
    for (int32_t i = 0; i < sweep->n; i++) {
        add_line(&out, &a, &sweep->curve[i], ek_cli_lab_colours[i], false);
        add_line(&out, &a, &sweep->curve[i], ek_cli_lab_colours[i], true);
    }
    ek_http_buf_addz(&out, "</svg>\n<p class=\"legend\">");
    for (int32_t i = 0; i < sweep->n; i++)
        ek_http_buf_addf(&out, "<span style=\"color:%s\">&#9644; %s</span> ", ek_cli_lab_colours[i],
                         sweep->curve[i].policy->name);
    ek_http_buf_addz(&out, "Solid: P99; dashed: P50.</p>\n");
    add_table(&out, sweep);
    ek_http_buf_addz(&out, "</html>\n");
    const ek_status status = ek_cli_lab_write(&out, path, err);
    ek_http_buf_fini(&out);
    return status;
}
