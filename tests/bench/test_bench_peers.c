/*
 * Goal: figures of peers are taken exactly as written, mistakes are named with line and column;
 * energy counters are summed over packages and over their wrap. Method: texts in memory, and a
 * made-up sysfs tree.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../bench/energy.h"
#include "../../bench/peers.h"

static ek_bench_peers *parse(const char *text, ek_status *out_status, ek_err *err)
{
    ek_bench_peers *peers = calloc(1, sizeof *peers);
    assert_non_null(peers);
    *out_status = ek_bench_peers_parse(ek_str_from(text), "p.csv", peers, err);
    return peers;
}

static void takes_figures(void **state EK_UNUSED)
{
    ek_status status;
    ek_err err = {0};
    ek_bench_peers *p = parse("# measured today\n\nname,batch,phase,tokens/s\r\n"
                              "one,512,prefill,75.3\n one , 4 , decode , 36.8 \n"
                              "two,64,decode,1e2\none,4,decode,40\none,4,decode,38",
                              &status, &err);
    assert_int_equal(status, EK_OK);
    assert_int_equal(p->n, 2);
    assert_string_equal(p->peer[0].name, "one");
    assert_string_equal(p->peer[1].name, "two");
    assert_float_equal(ek_bench_quantile(&p->peer[0].rate[EK_BENCH_TEST_PREFILL], 0.5), 75.3, 0);
    assert_int_equal(p->peer[0].rate[2].n, 3);
    assert_float_equal(ek_bench_quantile(&p->peer[0].rate[2], 0.5), 38, 0);
    assert_int_equal(p->peer[0].rate[1].n, 0);
    assert_float_equal(ek_bench_quantile(&p->peer[1].rate[4], 0.5), 100, 0);
    free(p);
}

static void takes_a_file_without_header_or_lines(void **state EK_UNUSED)
{
    ek_status status;
    ek_bench_peers *p = parse("a,1,decode,7\n", &status, NULL);
    assert_int_equal(status, EK_OK);
    assert_int_equal(p->n, 1);
    free(p);
    p = parse("", &status, NULL);
    assert_int_equal(status, EK_OK);
    assert_int_equal(p->n, 0);
    free(p);
}

static void names_line_and_column(void **state EK_UNUSED)
{
    static const struct {
        const char *text, *place;
    } cases[] = {
        {"a,1,decode\n", "p.csv:1:11: "},
        {"a\n", "p.csv:1:2: "},
        {"a,1,decode,7,8\n", "p.csv:1:13: "},
        {"a,512,prefill,7\na,256,prefill,7\n", "p.csv:2:3: "},
        {"# x\n\na,3,decode,7\n", "p.csv:3:3: "},
        {"a,x,decode,7\n", "p.csv:1:3: "},
        {"a, 1,answer,7\n", "p.csv:1:6: "},
        {"a,1,decode,0\n", "p.csv:1:12: "},
        {"a,1,decode,-3\n", "p.csv:1:12: "},
        {"a,1,decode,nan\n", "p.csv:1:12: "},
        {"a,1,decode,inf\n", "p.csv:1:12: "},
        {"a,1,decode,7 t/s\n", "p.csv:1:12: "},
        {"a,1,decode,\n", "p.csv:1:12: "},
        {",1,decode,7\n", "p.csv:1:1: "},
        {"a,1,decode,7\nname,batch,phase,tokens/s\n", "p.csv:2:"}, /* a header comes first */
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_status status;
        ek_err err = {0};
        free(parse(cases[i].text, &status, &err));
        assert_int_equal(status, EK_EFORMAT);
        if (strncmp(err.text, cases[i].place, strlen(cases[i].place)) != 0)
            fail_msg("%s gave %s", cases[i].text, err.text);
    }
}

static void bounds_names(void **state EK_UNUSED)
{
    char text[2048] = "";
    size_t n = 0;
    for (int i = 0; i <= EK_BENCH_PEERS_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "peer%d,1,decode,7\n", i);
    ek_status status;
    ek_err err = {0};
    free(parse(text, &status, &err));
    assert_int_equal(status, EK_ERANGE);
    snprintf(text, sizeof text, "%048d,1,decode,7\n", 0);
    free(parse(text, &status, &err));
    assert_int_equal(status, EK_EFORMAT);
}

/* ---- energy ---- */

static void put(const char *root, const char *zone, const char *name, const char *value)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, zone);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s", root, zone, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(value, file);
    fclose(file);
}

static void drop(const char *root, const char *zone, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s/%s", root, zone, name);
    assert_int_equal(unlink(path), 0);
    if (strcmp(name, "energy_uj") == 0) return;
    snprintf(path, sizeof path, "%s/%s", root, zone);
    assert_int_equal(rmdir(path), 0);
}

static void sums_packages_over_their_wrap(void **state EK_UNUSED)
{
    char root[] = "/tmp/ek-bench-XXXXXX";
    assert_non_null(mkdtemp(root));
    ek_bench_energy none = {0};
    assert_false(ek_bench_energy_open(&none, root));
    assert_true(ek_bench_energy_lap(&none) < 0);

    put(root, "intel-rapl:0", "energy_uj", "1000000\n");
    put(root, "intel-rapl:0", "max_energy_range_uj", "9000000\n");
    put(root, "intel-rapl:1", "energy_uj", "8500000\n");
    put(root, "intel-rapl:1", "max_energy_range_uj", "9000000\n");
    put(root, "intel-rapl:0:0", "energy_uj", "5\n"); /* cores of package 0: counted there */
    put(root, "intel-rapl:0:0", "max_energy_range_uj", "9000000\n");
    ek_bench_energy energy = {0};
    assert_true(ek_bench_energy_open(&energy, root));
    assert_int_equal(energy.n_zones, 2);
    assert_float_equal(ek_bench_energy_lap(&energy), 0, 1e-9);
    put(root, "intel-rapl:0", "energy_uj", "3000000\n");
    put(root, "intel-rapl:1", "energy_uj", "500000\n");
    put(root, "intel-rapl:0:0", "energy_uj", "777777\n");
    assert_float_equal(ek_bench_energy_lap(&energy), 3.0, 1e-9);
    assert_float_equal(ek_bench_energy_lap(&energy), 0, 1e-9);

    drop(root, "intel-rapl:0", "energy_uj"); /* taken away while we measure */
    assert_true(ek_bench_energy_lap(&energy) < 0);
    drop(root, "intel-rapl:0", "max_energy_range_uj");
    drop(root, "intel-rapl:1", "energy_uj");
    drop(root, "intel-rapl:1", "max_energy_range_uj");
    drop(root, "intel-rapl:0:0", "energy_uj");
    drop(root, "intel-rapl:0:0", "max_energy_range_uj");
    assert_int_equal(rmdir(root), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_figures),
        cmocka_unit_test(takes_a_file_without_header_or_lines),
        cmocka_unit_test(names_line_and_column),
        cmocka_unit_test(bounds_names),
        cmocka_unit_test(sums_packages_over_their_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
