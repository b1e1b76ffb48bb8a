/* Local ducks: how CPUs are dealt out, what a weight buffer is, how a child's end is told. */
#include <errno.h>
#include <sched.h>
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

#include "daemon/head/local.h"
#include "proto/base/cleanup.h"

/* The CPUs of a list such as "0,4". */
static cpu_set_t set_of(const char *list)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const char *p = list; *p;) {
        char *end;
        CPU_SET(strtoul(p, &end, 10), &set);
        p = *end ? end + 1 : end;
    }
    return set;
}

static void cpus_are_dealt_out(void **state)
{
    (void)state;
    cpu_set_t mine;
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    for (uint32_t ducks = 1; ducks <= 9; ducks++) {
        cpu_set_t seen;
        CPU_ZERO(&seen);
        int dealt = 0;
        for (uint32_t i = 0; i < ducks; i++) {
            char list[4096];
            struct err err = {0};
            bool shared;
            assert_int_equal(local_share_cores("", i, ducks, list, sizeof list, &shared, &err), 0);
            assert_int_equal(shared, CPU_COUNT(&mine) < (int)ducks);
            cpu_set_t share = set_of(list);
            assert_true(CPU_COUNT(&share) > 0);
            dealt += CPU_COUNT(&share);
            CPU_OR(&seen, &seen, &share);
        }
        assert_true(CPU_EQUAL(&seen, &mine));
        /* Each CPU once; with fewer CPUs than ducks everybody has all. */
        int count = CPU_COUNT(&mine);
        assert_int_equal(dealt, count >= (int)ducks ? count : count * (int)ducks);
    }
}

/* Ducks that share CPUs are spread over them, one thread each. */
static void threads_are_dealt_out(void **state)
{
    (void)state;
    static const int want[] = {2, 5, 6, 9, 2, 5};
    for (uint32_t i = 0; i < ARRAY_LENGTH(want); i++)
        assert_int_equal(local_member_cpu("2,5-6,9", i), want[i]);
    assert_int_equal(local_member_cpu("7", 3), 7);
}

static void wrong_lists_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"x", "0-", "-1", "3-1x", "0,,1", "1024", "0 1", "0-99999999999999999999"};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        char list[64];
        bool shared;
        struct err err = {0};
        if (local_share_cores(bad[i], 0, 1, list, sizeof list, &shared, &err) == 0)
            fail_msg("\"%s\" was taken as a list of CPUs", bad[i]);
        assert_non_null(strstr(err.message, "local_cores"));
    }
    /* A CPU that is surely not there. */
    char list[64];
    bool shared;
    struct err err = {0};
    assert_true(local_share_cores("1023", 0, 1, list, sizeof list, &shared, &err) < 0);
}

static void buffer_has_its_size(void **state)
{
    (void)state;
    struct err err = {0};
    _cleanup_(closep) int fd = -1;
    assert_int_equal(local_make_buffer("kitchen", 64 << 20, &fd, &err), 0);
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    assert_int_equal(info.st_size, 64 << 20);
    assert_int_equal(info.st_blocks, 0); /* sparse: memory is taken as slots are filled */
    int none = -1;
    assert_true(local_make_buffer("kitchen", UINT64_MAX, &none, &err) < 0);
    assert_int_equal(none, -1);
    assert_non_null(strstr(err.message, "kitchen"));
}

static void end_of_child_is_told(void **state)
{
    (void)state;
    struct err err = {0};
    _cleanup_(closep) int weights = -1;
    _cleanup_(closep) int pidfd = -1;
    _cleanup_(closep) int link = -1;
    pid_t pid;
    assert_int_equal(local_make_buffer("kitchen", 1 << 20, &weights, &err), 0);
    struct local_setup setup = {
        .program = "/bin/false", .name = "kitchen", .cores = "0", .weights_fd = weights, .stage_fd = weights, .channel_fd = -1};
    assert_int_equal(local_start(&setup, &pid, &pidfd, &link, &err), 0);
    char how[128];
    int r = 0;
    for (int i = 0; i < 2000 && r == 0; i++) {
        r = local_reap(pidfd, how, sizeof how);
        usleep(5000);
    }
    assert_int_equal(r, 1);
    assert_string_equal(how, "exited with status 1");

    int other_pidfd = -1, other_link = -1;
    setup.program = "/no/such/program";
    r = local_start(&setup, &pid, &other_pidfd, &other_link, &err);
    assert_true(r < 0);
    assert_non_null(strstr(err.message, "/no/such/program cannot be started: No such file")); /* the duck is named by who tells it */
    assert_int_equal(other_link, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpus_are_dealt_out),
        cmocka_unit_test(threads_are_dealt_out),
        cmocka_unit_test(wrong_lists_are_refused),
        cmocka_unit_test(buffer_has_its_size),
        cmocka_unit_test(end_of_child_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
