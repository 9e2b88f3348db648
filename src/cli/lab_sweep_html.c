/* The sweep's page: latency over offered load, with the knee marked. */
#include <math.h>

#include "cli/lab_sweep.h"

#define LEFT     80.0
#define RIGHT    930.0
#define TOP      12.0
#define HEIGHT   320.0
#define MS_LEAST 10.0

typedef struct axes {
    double load_least, load_most, ms_most;
} axes;

static double x_of(const axes *a, double load)
{
    return LEFT + (load - a->load_least) / (a->load_most - a->load_least) * (RIGHT - LEFT);
}

static double y_of(const axes *a, double ms)
{
    if (ms < MS_LEAST) ms = MS_LEAST;
    return TOP + HEIGHT * (1 - log(ms / MS_LEAST) / log(a->ms_most / MS_LEAST));
}

static void add_line(ek_buf *out, const axes *a, const ek_cli_lab_curve *curve, bool p99)
{
    ek_http_buf_addf(out, "<path class=\"line\" stroke=\"%s\" d=\"", p99 ? "#c0392b" : "#2471a3");
    for (int32_t i = 0; i < curve->n; i++) {
        const ek_lab_figures *f = &curve->point[i].figures;
        ek_http_buf_addf(out, "%s%.1f %.1f", i ? "L" : "M", x_of(a, curve->point[i].load),
                         y_of(a, p99 ? f->p99_ms : f->p50_ms));
    }
    ek_http_buf_addz(out, "\"/>\n");
}

static void add_axes(ek_buf *out, const axes *a, const ek_cli_lab_curve *curve)
{
    ek_http_buf_addf(out, "<path d=\"M%.0f %.0fH%.0f\" class=\"axis\"/>\n", LEFT, TOP + HEIGHT,
                     RIGHT);
    double ms = MS_LEAST;
    while (ms <= a->ms_most) {
        ek_http_buf_addf(out,
                         "<path d=\"M%.0f %.1fH%.0f\" class=\"grid\"/>\n"
                         "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%.0f ms</text>\n",
                         LEFT, y_of(a, ms), RIGHT, LEFT - 8, y_of(a, ms) + 4, ms);
        ms *= 10;
    }
    for (int32_t i = 0; i < curve->n; i++) {
        const ek_cli_lab_point *p = &curve->point[i];
        ek_http_buf_addf(out,
                         "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%.0f %%</text>\n"
                         "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%.2f</text>\n",
                         x_of(a, p->load), TOP + HEIGHT + 16, 100 * p->load, x_of(a, p->load),
                         TOP + HEIGHT + 32, p->figures.hottest_utilisation);
    }
    if (curve->knee < 0) return;
    const double x = x_of(a, curve->point[curve->knee].load);
    ek_http_buf_addf(out,
                     "<path d=\"M%.1f %.0fV%.0f\" class=\"event\"/>\n"
                     "<text x=\"%.1f\" y=\"%.0f\">knee</text>\n",
                     x, TOP, TOP + HEIGHT, x + 4, TOP + 12);
}

ek_status ek_cli_lab_curve_write_html(const ek_cli_lab *lab, const ek_cli_lab_curve *curve,
                                      const char *path, ek_err *err)
{
    ek_buf out = {0};
    axes a = {.load_least = curve->point[0].load,
              .load_most = curve->point[curve->n - 1].load,
              .ms_most = 10 * MS_LEAST};
    for (int32_t i = 0; i < curve->n; i++)
        a.ms_most = fmax(a.ms_most, curve->point[i].figures.p99_ms);
    ek_cli_lab_html_head(&out, "Latency over load");
    ek_http_buf_addz(&out, "<p>Model ");
    ek_cli_lab_html_escape(&out, lab->model_path);
    ek_http_buf_addf(&out,
                     ", %d paced workers, policy %s, ordinary traffic. 100 %% is %.1f requests/s, "
                     "what a closed loop leaves without contention.</p>\n",
                     (int)lab->n_workers, lab->policy[0].name, lab->capacity);
    ek_http_buf_addf(&out, "<svg viewBox=\"0 0 960 %.0f\" role=\"img\">\n", TOP + HEIGHT + 40);
    add_axes(&out, &a, curve);
    add_line(&out, &a, curve, false);
    add_line(&out, &a, curve, true);
    ek_http_buf_addz(&out,
                     "</svg>\n<p class=\"legend\"><span style=\"color:#c0392b\">&#9644; P99</span>"
                     "<span style=\"color:#2471a3\">&#9644; P50</span> Below the loads: busy time "
                     "of the busiest worker.</p>\n</html>\n");
    const ek_status status = ek_cli_lab_write(&out, path, err);
    ek_http_buf_fini(&out);
    return status;
}
