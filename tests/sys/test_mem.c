/*
 * Goal: regions are zeroed, page-sized and cost nothing until touched; the memory figures follow
 * the kernel's and the tightest control group's. Method: resident size before and after touching;
 * made-up /proc and cgroup trees of both versions.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "sys/mem.h"
#include "sys/proc.h"
#include "temp_dir.h"

#define MIB ((size_t)1 << 20)

static void test_region_is_lazy_and_zeroed(void **state)
{
    (void)state;
    ek_sys_region region;
    uint64_t before = ek_sys_mem_resident();
    assert_int_equal(ek_sys_region_open(512 * MIB + 1, 1, &region), EK_OK);
    assert_int_equal(region.bytes % 4096, 0);
    assert_true(region.bytes > 512 * MIB);
    assert_true(ek_sys_mem_resident() < before + 64 * MIB);
    ek_arena arena = ek_sys_region_arena(&region);
    uint8_t *mem = ek_new(&arena, uint8_t, 128 * MIB);
    for (size_t i = 0; i < 128 * MIB; i += 4096) {
        assert_int_equal(mem[i], 0);
        mem[i] = 1;
    }
    assert_true(ek_sys_mem_resident() >= before + 100 * MIB);
    ek_sys_region_close(&region);
    assert_null(region.base);
    ek_sys_region_close(&region);
}

static void test_region_limits(void **state)
{
    (void)state;
    ek_sys_region region = {0};
    assert_int_equal(ek_sys_region_open(SIZE_MAX, 0, &region), EK_ENOMEM);
    assert_int_equal(ek_sys_region_open(SIZE_MAX - 8192, 0, &region), EK_ENOMEM);
    assert_null(region.base);
    assert_int_equal(ek_sys_region_open(0, 0, &region), EK_OK);
    assert_true(region.bytes > 0);
    ek_sys_region_close(&region);
}

static void test_heap(void **state)
{
    (void)state;
    int *numbers = ek_sys_calloc(4, sizeof *numbers);
    assert_non_null(numbers);
    assert_int_equal(numbers[3], 0);
    numbers[3] = 7;
    numbers = ek_sys_realloc(numbers, 400 * sizeof *numbers);
    assert_non_null(numbers);
    assert_int_equal(numbers[3], 7);
    ek_sys_free(numbers);
    ek_sys_free(NULL);
    /* Through a volatile, since the compiler knows that this cannot work. */
    volatile size_t huge = SIZE_MAX / 2;
    assert_null(ek_sys_calloc(huge, 4));
    void *nothing = ek_sys_calloc(0, 0);
    assert_non_null(nothing);
    ek_sys_free(nothing);
}

static void test_figures_of_this_machine(void **state)
{
    (void)state;
    uint64_t available = ek_sys_mem_available();
    assert_true(available > 0);
    assert_true(available < UINT64_C(1) << 50); /* some figure was found */
    assert_true(ek_sys_mem_resident() > 0);
}

/* A directory tree of small files below a fresh temporary directory. */
typedef struct tree {
    char root[TEMP_DIR_MAX];
    char self[96]; /* what stands for /proc/self/cgroup */
} tree;

static void tree_write(const tree *t, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", t->root, path);
    for (char *slash = full + strlen(t->root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0755);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void tree_open(tree *t, const char *self)
{
    assert_true(temp_dir_make(t->root));
    snprintf(t->self, sizeof t->self, "%s/self", t->root);
    tree_write(t, "self", self);
}

static void tree_close(const tree *t)
{
    assert_true(temp_dir_remove(t->root));
}

static void test_v2_takes_the_tightest_level(void **state)
{
    (void)state;
    tree t;
    tree_open(&t, "0::/outer/inner\n");
    tree_write(&t, "outer/inner/memory.max", "max\n");
    tree_write(&t, "outer/inner/memory.current", "100\n");
    tree_write(&t, "outer/memory.max", "1000000\n");
    tree_write(&t, "outer/memory.current", "600000\n");
    tree_write(&t, "outer/memory.stat", "anon 1\ninactive_file 250000\nactive_file 9\n");
    tree_write(&t, "outer/inner/cpu.max", "max 100000\n");
    tree_write(&t, "outer/cpu.max", "250000 100000\n");
    tree_write(&t, "cpu.max", "800000 100000\n");
    /* 1,000,000 - (600,000 - 250,000 that the kernel would drop) */
    assert_int_equal(ek_sys_cgroup_memory_left(t.self, t.root), 650000);
    assert_int_equal(ek_sys_cgroup_cpus(t.self, t.root), 3); /* two and a half, rounded up */
    tree_write(&t, "outer/inner/memory.max", "1000\n");
    assert_int_equal(ek_sys_cgroup_memory_left(t.self, t.root), 900);
    tree_write(&t, "outer/inner/memory.current", "5000\n"); /* over the limit: nothing is left */
    assert_int_equal(ek_sys_cgroup_memory_left(t.self, t.root), 0);
    tree_write(&t, "outer/inner/cpu.max", "1000 100000\n");
    assert_int_equal(ek_sys_cgroup_cpus(t.self, t.root), 1);
    tree_close(&t);
}

static void test_v2_in_a_container(void **state)
{
    (void)state;
    tree t;
    /* The path of the host, which does not exist below the container's mount point. */
    tree_open(&t, "0::/kubepods/pod1/abc\n");
    tree_write(&t, "memory.max", "5000\n");
    tree_write(&t, "memory.current", "1000\n");
    assert_int_equal(ek_sys_cgroup_memory_left(t.self, t.root), 4000);
    assert_int_equal(ek_sys_cgroup_cpus(t.self, t.root), 0);
    tree_close(&t);
}

static void test_v1(void **state)
{
    (void)state;
    tree t;
    tree_open(&t, "12:pids:/x\n4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/y\n0::/z\n");
    tree_write(&t, "memory/job/memory.limit_in_bytes", "70000\n");
    tree_write(&t, "memory/job/memory.usage_in_bytes", "30000\n");
    tree_write(&t, "memory/job/memory.stat",
               "cache 5\ninactive_file 1\ntotal_inactive_file 10000\n");
    tree_write(&t, "memory/memory.limit_in_bytes", "9223372036854771712\n"); /* no limit */
    tree_write(&t, "memory/memory.usage_in_bytes", "1\n");
    tree_write(&t, "cpu/job/cpu.cfs_quota_us", "-1\n");
    tree_write(&t, "cpu/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(ek_sys_cgroup_memory_left(t.self, t.root), 50000);
    assert_int_equal(ek_sys_cgroup_cpus(t.self, t.root), 0);
    tree_write(&t, "cpu/job/cpu.cfs_quota_us", "200000\n");
    assert_int_equal(ek_sys_cgroup_cpus(t.self, t.root), 2);
    tree_close(&t);
}

static void test_no_or_odd_groups(void **state)
{
    (void)state;
    tree t;
    tree_open(&t, "nonsense\n::\n7:memoryx:/a\n\n");
    assert_true(ek_sys_cgroup_memory_left(t.self, t.root) == UINT64_MAX);
    assert_int_equal(ek_sys_cgroup_cpus(t.self, t.root), 0);
    assert_true(ek_sys_cgroup_memory_left("/nonexistent", t.root) == UINT64_MAX);
    assert_int_equal(ek_sys_cgroup_cpus("/nonexistent", t.root), 0);
    tree_write(&t, "self", "0::/\n");
    tree_write(&t, "cpu.max", "100000 0\n"); /* a period of nothing */
    assert_int_equal(ek_sys_cgroup_cpus(t.self, t.root), 0);
    tree_write(&t, "cpu.max", "garbage");
    assert_int_equal(ek_sys_cgroup_cpus(t.self, t.root), 0);
    tree_close(&t);
}

static void test_fields(void **state)
{
    (void)state;
    static const char text[] =
        "MemTotal:  1 kB\nMemAvailable:   24567 kB\nOdd: -5\nHuge: 99999999999999999999\n";
    uint64_t value = 7;
    assert_true(ek_sys_proc_field(text, "MemAvailable:", &value));
    assert_int_equal(value, 24567);
    assert_true(ek_sys_proc_field(text, "MemTotal:", &value));
    assert_int_equal(value, 1);
    assert_false(ek_sys_proc_field(text, "Available:", &value)); /* not in the middle of a line */
    assert_false(ek_sys_proc_field(text, "Odd:", &value));
    assert_false(ek_sys_proc_field(text, "Huge:", &value));
    assert_int_equal(value, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_region_is_lazy_and_zeroed),
        cmocka_unit_test(test_region_limits),
        cmocka_unit_test(test_heap),
        cmocka_unit_test(test_figures_of_this_machine),
        cmocka_unit_test(test_v2_takes_the_tightest_level),
        cmocka_unit_test(test_v2_in_a_container),
        cmocka_unit_test(test_v1),
        cmocka_unit_test(test_no_or_odd_groups),
        cmocka_unit_test(test_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
