#include <stdio.h>
#include <sys/resource.h>

#include "engine_parts.h"
#include "int8_peak.h"

static double median(ek_bench_samples *samples)
{
    return ek_bench_quantile(samples, 0.5);
}

/** Peak resident memory without the buffer of the bandwidth test. */
static int64_t rss_mib(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
    return usage.ru_maxrss / 1024 - (int64_t)(READ_BYTES >> 20);
}

static double plan_share(const bench *b)
{
    int64_t plan_ns, total_ns;
    ek_engine_forward_times(b->rig.forward, &plan_ns, &total_ns);
    return (double)plan_ns / (double)total_ns;
}

/** "1":x,"4":y,... of the decode tests. */
static void print_json_decode(ek_bench_samples samples[TESTS], const char *format)
{
    for (int32_t t = DECODE; t < TESTS; t++) {
        printf("%s\"%s\":", t > DECODE ? "," : "", ek_bench_test_name[t]);
        printf(format, median(&samples[t]));
    }
}

static void print_json_energy(bench *b)
{
    printf(",\"joules_per_token\":");
    if (b->energy.n_zones == 0) {
        printf("null");
        return;
    }
    printf("{\"prefill512\":%.5f,\"decode\":{", median(&b->joules[PREFILL]));
    print_json_decode(b->joules, "%.5f");
    printf("}}");
}

static void print_json_peer_test(bench *b, ek_bench_peer *peer, int32_t test)
{
    const double rate = median(&peer->rate[test]);
    if (rate > 0)
        printf("{\"tokens_per_s\":%.2f,\"ratio\":%.3f}", rate, median(&b->rate[test]) / rate);
    else
        printf("null");
}

static void print_json_peers(bench *b)
{
    printf(",\"peers\":[");
    for (int32_t i = 0; i < b->peers.n; i++) {
        ek_bench_peer *peer = &b->peers.peer[i];
        printf("%s{\"name\":", i > 0 ? "," : "");
        ek_bench_print_json_string(peer->name);
        printf(",\"prefill512\":");
        print_json_peer_test(b, peer, PREFILL);
        printf(",\"decode\":{");
        for (int32_t t = DECODE; t < TESTS; t++) {
            printf("%s\"%s\":", t > DECODE ? "," : "", ek_bench_test_name[t]);
            print_json_peer_test(b, peer, t);
        }
        printf("}}");
    }
    printf("]");
}

void ek_bench_engine_print_json(bench *b)
{
    printf("{");
    ek_bench_print_machine_json();
    printf(",\"model\":");
    ek_bench_print_json_string(b->params.model_path);
    printf(",\"arch\":\"%s\",\"file_mib\":%lld,\"threads\":%d,\"kernels\":\"%s\",\"windows\":%d",
           b->rig.file->model->params.arch, (long long)(b->rig.file->file_bytes >> 20),
           b->params.n_threads, b->rig.kernels.name, b->n_windows);
    printf(",\"prefill512\":%.2f,\"decode\":{", median(&b->rate[PREFILL]));
    print_json_decode(b->rate, "%.2f");
    printf("},\"spread\":{");
    for (int32_t t = 0; t < TESTS; t++)
        printf("%s\"%s\":[%.2f,%.2f]", t > 0 ? "," : "", ek_bench_test_name[t],
               ek_bench_quantile(&b->rate[t], 0), ek_bench_quantile(&b->rate[t], 1));
    printf("},\"bandwidth_share\":{");
    print_json_decode(b->share, "%.3f");
    printf("},\"read_gbs\":%.1f", median(&b->read_gbs));
    if (b->peak_gops.n > 0)
        printf(",\"peak_share\":%.3f,\"peak_gops\":%.0f", median(&b->share[PREFILL]),
               median(&b->peak_gops));
    else
        printf(",\"peak_share\":null,\"peak_gops\":null");
    printf(",\"peak\":\"%s\",\"plan_share\":%.4f,\"rss_mib\":%lld",
           ek_bench_int8_name(b->cpu_flags), plan_share(b), (long long)rss_mib());
    print_json_energy(b);
    print_json_peers(b);
    printf("}\n");
}

static void print_text_test(bench *b, int32_t test)
{
    char label[24];
    snprintf(label, sizeof label, "%s%s", test == PREFILL ? "" : "decode ",
             ek_bench_test_name[test]);
    printf("%-12s %9.1f %9.1f %9.1f", label, median(&b->rate[test]),
           ek_bench_quantile(&b->rate[test], 0), ek_bench_quantile(&b->rate[test], 1));
    if (b->share[test].n > 0)
        printf("  %3.0f%% of %s", 100 * median(&b->share[test]), test == PREFILL ? "peak" : "read");
    else
        printf("  %12s", "");
    for (int32_t i = 0; i < b->peers.n; i++) {
        const double rate = median(&b->peers.peer[i].rate[test]);
        char cell[32] = "-";
        if (rate > 0)
            snprintf(cell, sizeof cell, "%.1f %5.2fx", rate, median(&b->rate[test]) / rate);
        printf("  %20s", cell);
    }
    printf("\n");
}

void ek_bench_engine_print_text(bench *b)
{
    ek_bench_print_machine();
    printf("model: %s, %s, %lld MiB; %d threads, %s kernels, median of %d windows\n\n",
           b->params.model_path, b->rig.file->model->params.arch,
           (long long)(b->rig.file->file_bytes >> 20), b->params.n_threads, b->rig.kernels.name,
           b->n_windows);
    printf("%-12s %9s %9s %9s  %-12s", "test", "tokens/s", "lowest", "highest", "share");
    for (int32_t i = 0; i < b->peers.n; i++)
        printf("  %20.20s", b->peers.peer[i].name);
    printf("\n");
    for (int32_t t = 0; t < TESTS; t++)
        print_text_test(b, t);
    printf("\nread %.1f GB/s; ", median(&b->read_gbs));
    if (b->peak_gops.n > 0)
        printf("peak %.0f GOP/s (%s); ", median(&b->peak_gops), ek_bench_int8_name(b->cpu_flags));
    printf("planning %.2f %% of the time; peak resident %lld MiB\nenergy: ", 100 * plan_share(b),
           (long long)rss_mib());
    if (b->energy.n_zones == 0) printf("not readable");
    for (int32_t t = 0; b->energy.n_zones > 0 && t < TESTS; t++)
        printf("%s%s %.4f J/token", t > 0 ? ", " : "", ek_bench_test_name[t],
               median(&b->joules[t]));
    printf("\n");
}
