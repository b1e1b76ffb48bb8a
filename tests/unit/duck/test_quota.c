/* Quotas of control groups, in a tree of our own, and what a duck makes of those of CPUs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "daemon/duck/cores.h"
#include "proto/base/quota.h"
#include "proto/base/cleanup.h"

static char root[] = "/tmp/fp9-quota-XXXXXX", groups[64];

static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static uint64_t of(const char *group_lines)
{
    put("groups", group_lines);
    return quota_millis(groups, root);
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(root))
        return -1;
    snprintf(groups, sizeof groups, "%s/groups", root);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void test_version_2(void **state)
{
    (void)state;
    put("system.slice/fp9.service/cpu.max", "250000 100000\n");
    put("system.slice/cpu.max", "max 100000\n");
    assert_int_equal(of("0::/system.slice/fp9.service\n"), 2500);
    assert_int_equal(of("0::/system.slice\n"), QUOTA_NONE);
    /* The least of all above counts, also for a group without a file. */
    put("system.slice/cpu.max", "150000 100000\n");
    assert_int_equal(of("0::/system.slice/fp9.service/below\n"), 1500);
    assert_int_equal(of("0::/other\n"), QUOTA_NONE);
    /* A container's own root. */
    put("cpu.max", "50000 100000\n");
    assert_int_equal(of("0::/\n"), 500);
    assert_int_equal(of("0::/a/path/of/the/host\n"), 500);
    put("cpu.max", "max 100000\n");
    static const char *const bad[] = {"", "x y", "100000", "100000 0", "99999999999999999999999 100000", "-5 100000"};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        put("odd/cpu.max", bad[i]);
        assert_int_equal(of("0::/odd\n"), QUOTA_NONE);
    }
    assert_int_equal(of(""), QUOTA_NONE);
    assert_int_equal(of("nonsense\n0:\n::\n"), QUOTA_NONE);
    assert_int_equal(quota_millis("/nonexistent", root), QUOTA_NONE);
}

static void test_version_1(void **state)
{
    (void)state;
    put("cpu,cpuacct/docker/cpu.cfs_quota_us", "300000\n");
    put("cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
    assert_int_equal(of("5:memory:/docker\n4:cpu,cpuacct:/docker\n0::/\n"), 3000);
    assert_int_equal(of("4:cpuacct:/docker\n3:cpuset:/docker\n"), QUOTA_NONE);
    put("cpu,cpuacct/docker/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(of("4:cpu,cpuacct:/docker\n"), QUOTA_NONE);
    /* Version 2 beside version 1. */
    put("unified/duck/cpu.max", "20000 10000\n");
    assert_int_equal(of("4:cpu,cpuacct:/docker\n0::/duck\n"), 2000);
}

static void test_memory(void **state)
{
    (void)state;
    put("system.slice/duck.service/memory.max", "8589934592\n");
    put("system.slice/memory.max", "max\n");
    put("groups", "0::/system.slice/duck.service/below\n");
    assert_int_equal(quota_memory(groups, root), UINT64_C(8) << 30);
    assert_int_equal(quota_millis(groups, root), 1500); /* each by itself */
    put("system.slice/memory.max", "1048576\n");
    assert_int_equal(quota_memory(groups, root), 1 << 20);
    put("groups", "0::/other\n");
    assert_int_equal(quota_memory(groups, root), QUOTA_NONE);
    put("memory/docker/memory.limit_in_bytes", "50331648\n");
    put("groups", "5:memory:/docker\n4:cpu,cpuacct:/docker\n0::/\n");
    assert_int_equal(quota_memory(groups, root), 48 << 20);
    put("groups", "5:memory_other:/docker\n");
    assert_int_equal(quota_memory(groups, root), QUOTA_NONE);
}

static struct cores share(uint32_t cpus, uint64_t quota, uint32_t members)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < cpus; i++)
        CPU_SET(2 * i, &set);
    return cores_share(&set, quota, members);
}

static void expect(struct cores cores, uint32_t members, bool bind, bool spin, const char *words)
{
    char text[CORES_TEXT_SIZE];
    assert_int_equal(cores.members, members);
    assert_int_equal(cores.bind, bind);
    assert_int_equal(cores.spin, spin);
    assert_string_equal(cores_text(&cores, text), words);
}

static void test_share(void **state)
{
    (void)state;
    expect(share(4, QUOTA_NONE, 0), 4, true, true, "4 cores");
    expect(share(1, QUOTA_NONE, 0), 1, true, true, "1 core");
    expect(share(16, 2000, 0), 2, false, false, "2 cores (quota of 2.00 CPUs)");
    expect(share(8, 3999, 0), 3, false, false, "3 cores (quota of 3.99 CPUs)");
    expect(share(8, 500, 0), 1, false, false, "1 core (quota of 0.50 CPUs)");
    expect(share(4, 4000, 0), 4, true, true, "4 cores"); /* a quota of all CPUs limits nothing */
    expect(share(4, 6000, 0), 4, true, true, "4 cores");
    expect(share(200, QUOTA_NONE, 0), 64, false, true, "64 cores on 200 CPUs");
    /* As many as somebody asked for. */
    expect(share(2, QUOTA_NONE, 4), 4, false, false, "4 cores on 2 CPUs");
    expect(share(2, QUOTA_NONE, 1), 1, false, true, "1 core on 2 CPUs");
    expect(share(16, 2000, 4), 4, false, false, "4 cores (quota of 2.00 CPUs)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_version_2), cmocka_unit_test(test_version_1), cmocka_unit_test(test_memory),
                                       cmocka_unit_test(test_share)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
