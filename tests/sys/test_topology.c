/*
 * Goal: threads are laid on CPUs so that devices stay on a NUMA node where they can, cores come
 * before their second CPUs, and no CPU gets two threads while another has none. Method: topologies
 * that hwloc makes up, with answers worked out by hand; random sizes against the rules; this
 * machine's own, which threads are then really pinned by.
 */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "base/rng.h"
#include "sys/pool.h"
#include "sys/thread.h"
#include "sys/topology.h"

enum { THREADS_MAX = 64 };

static ek_sys_topology topology;
static int32_t group[THREADS_MAX], cpu[THREADS_MAX], node[THREADS_MAX];

static void read_made_up(const char *description)
{
    ek_err err = {0};
    if (ek_sys_topology_read(description, &topology, &err) != EK_OK) fail_msg("%s", err.text);
    assert_false(topology.is_here);
}

/* Groups as devices divide threads: thread t is of device t * D / T. */
static void spread(int32_t n_threads, int32_t n_groups)
{
    for (int32_t t = 0; t < n_threads; t++)
        group[t] = t * n_groups / n_threads;
    ek_sys_topology_spread(&topology, n_threads, group, cpu, node);
}

#define ASSERT_LIST(list, ...)                         \
    do {                                               \
        const int32_t want[] = {__VA_ARGS__};          \
        for (size_t i = 0; i < EK_COUNT_OF(want); i++) \
            assert_int_equal((list)[i], want[i]);      \
    } while (0)

/* Two nodes of two cores of two CPUs: hwloc numbers CPUs 0 1 | 2 3 || 4 5 | 6 7. */
static void test_two_nodes(void **state)
{
    (void)state;
    read_made_up("node:2 core:2 pu:2");
    assert_int_equal(topology.n_nodes, 2);
    assert_int_equal(topology.n_cores, 4);
    assert_int_equal(topology.n_cpus, 8);
    spread(4, 2); /* a core each, a device a node */
    ASSERT_LIST(cpu, 0, 2, 4, 6);
    ASSERT_LIST(node, 0, 0, 1, 1);
    spread(8, 2); /* then the second CPUs of the cores */
    ASSERT_LIST(cpu, 0, 2, 1, 3, 4, 6, 5, 7);
    ASSERT_LIST(node, 0, 0, 0, 0, 1, 1, 1, 1);
    spread(4, 1); /* one device has both nodes' cores */
    ASSERT_LIST(node, 0, 0, 1, 1);
    spread(2, 2);
    ASSERT_LIST(cpu, 0, 4);
    spread(2, 1); /* two threads, one device: both nodes' memory all the same */
    ASSERT_LIST(node, 0, 1);
    spread(1, 1);
    assert_int_equal(cpu[0], topology.cpu[4].cpu); /* the middle; any would do */
    spread(16, 2);                                 /* two rounds */
    ASSERT_LIST(cpu, 0, 2, 1, 3, 0, 2, 1, 3, 4, 6, 5, 7, 4, 6, 5, 7);
    spread(4, 4);
    ASSERT_LIST(node, 0, 0, 1, 1);
}

/*
 * Three devices of 3, 3 and 2 threads on two nodes of four cores: whole devices would put five
 * threads on one node, so the middle one is divided.
 */
static void test_devices_that_do_not_fit(void **state)
{
    (void)state;
    read_made_up("node:2 core:4 pu:1");
    spread(8, 3);
    ASSERT_LIST(group, 0, 0, 0, 1, 1, 1, 2, 2);
    ASSERT_LIST(node, 0, 0, 0, 0, 1, 1, 1, 1);
    ASSERT_LIST(cpu, 0, 1, 2, 3, 4, 5, 6, 7);
    spread(6, 3); /* two each: the middle one's middle is the second node's */
    ASSERT_LIST(node, 0, 0, 1, 1, 1, 1);
}

static void test_described_badly(void **state)
{
    (void)state;
    ek_err err = {0};
    assert_int_equal(ek_sys_topology_read("node:x", &topology, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "'node:x'"));
}

static void test_rules(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 3);
    for (int32_t i = 0; i < 300; i++) {
        char description[64];
        int n_nodes = 1 + (int)ek_rng_below(&rng, 4), n_cores = 1 + (int)ek_rng_below(&rng, 6);
        int n_pus = 1 + (int)ek_rng_below(&rng, 2);
        snprintf(description, sizeof description, "node:%d core:%d pu:%d", n_nodes, n_cores, n_pus);
        read_made_up(description);
        assert_int_equal(topology.n_cpus, n_nodes * n_cores * n_pus);
        assert_int_equal(topology.n_cores, n_nodes * n_cores);
        int32_t n_threads = 1 + (int32_t)ek_rng_below(&rng, THREADS_MAX);
        int32_t n_groups = 1 + (int32_t)ek_rng_below(&rng, (uint64_t)n_threads);
        spread(n_threads, n_groups);
        int32_t n_on[EK_SYS_CPUS_MAX] = {0}, n_first = 0;
        for (int32_t t = 0; t < n_threads; t++) {
            int32_t at = 0;
            while (topology.cpu[at].cpu != cpu[t])
                at++;
            assert_int_equal(topology.cpu[at].node, node[t]);
            assert_true(t == 0 || node[t] >= node[t - 1]);
            n_first += topology.cpu[at].rank == 0 && n_on[at] == 0;
            n_on[at]++;
            if (n_threads <= topology.n_cpus) assert_int_equal(n_on[at], 1);
        }
        /* A second CPU of a core only when every core has a thread. */
        assert_int_equal(n_first, n_threads < topology.n_cores ? n_threads : topology.n_cores);
        bool even = n_threads % n_groups == 0 && n_groups % n_nodes == 0;
        for (int32_t t = 1; even && t < n_threads; t++)
            if (group[t] == group[t - 1]) assert_int_equal(node[t], node[t - 1]);
    }
}

static void note_cpu(void *ctx, int32_t thread_idx)
{
    ((int32_t *)ctx)[thread_idx] = (int32_t)sched_getcpu();
}

/* This machine: as many CPUs as the process may use, and a pool that runs where it was laid. */
static void test_this_machine(void **state)
{
    (void)state;
    assert_int_equal(ek_sys_topology_read(NULL, &topology, NULL), EK_OK);
    if (!topology.is_here) skip(); /* the environment describes another one */
    assert_true(topology.n_nodes >= 1 && topology.n_cores >= 1);
    for (int32_t i = 0; i < topology.n_cpus; i++)
        assert_true(ek_sys_cpu_allowed(topology.cpu[i].cpu));
    int32_t n = topology.n_cpus < THREADS_MAX ? topology.n_cpus : THREADS_MAX, ran_on[THREADS_MAX];
    ek_sys_pool *pool;
    spread(n, 1);
    assert_int_equal(ek_sys_pool_create_on(n, cpu, &pool), EK_OK);
    ek_sys_pool_run(pool, note_cpu, ran_on);
    for (int32_t t = 0; t < n; t++)
        assert_int_equal(ran_on[t], cpu[t]);
    ek_sys_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_nodes),       cmocka_unit_test(test_devices_that_do_not_fit),
        cmocka_unit_test(test_described_badly), cmocka_unit_test(test_rules),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
