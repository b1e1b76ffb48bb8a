/* fp9d.conf: defaults, every key, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/head/conf.h"

/* Loads the text by way of a file; returns what conf_load and then conf_check gave. */
static int load(const char *text, struct conf **ret_conf, struct err *err)
{
    char path[] = "/tmp/fp9-conf-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    int r = conf_load(path, ret_conf, err);
    unlink(path);
    return r < 0 ? r : conf_check(*ret_conf, err);
}

static void expect_defaults(const struct conf *conf)
{
    assert_string_equal(conf->socket, "/run/fp9d/control.sock");
    assert_string_equal(conf->state_dir, "/var/lib/fp9d");
    assert_string_equal(conf->log_level, "info");
    assert_string_equal(conf->admin_group, "");
    assert_string_equal(conf->metrics_listen, "");
    assert_string_equal(conf->local_cores, "");
    assert_string_equal(conf->partials, "bf16");
    assert_true(conf->persistent_judge);
    assert_int_equal(conf->local_ducks, 0);
    assert_int_equal(conf->local_memory, 0);
    assert_int_equal(conf->heartbeat_s, 2);
    assert_int_equal(conf->grace_s, 10);
    assert_int_equal(conf->deadline_s, 0);
    assert_int_equal(conf->duck_count, 0);
}

static void empty_is_defaults(void **state)
{
    (void)state;
    _cleanup_(conf_freep) struct conf *conf = NULL;
    struct err err = {0};
    assert_int_equal(load("", &conf, &err), 0);
    expect_defaults(conf);
}

static void shipped_is_defaults(void **state)
{
    (void)state;
    _cleanup_(conf_freep) struct conf *conf = NULL;
    struct err err = {0};
    assert_int_equal(conf_load(FP9_SHIPPED_CONF, &conf, &err), 0);
    assert_int_equal(conf_check(conf, &err), 0);
    expect_defaults(conf);
}

static void every_key_is_taken(void **state)
{
    (void)state;
    _cleanup_(conf_freep) struct conf *conf = NULL;
    struct err err = {0};
    assert_int_equal(load("[daemon]\nsocket=/s\nstate_dir=/d\nlog_level=debug\nadmin_group=root\nmetrics_listen=127.0.0.1:9\n"
                          "[fleet]\nlocal_ducks=3\nlocal_memory=2G\nlocal_cores=0\npersistent_judge=no\npartials=f32\n"
                          "heartbeat_s=5\ngrace_s=0\ndeadline_s=86400\n",
                          &conf, &err),
                     0);
    assert_string_equal(conf->socket, "/s");
    assert_string_equal(conf->state_dir, "/d");
    assert_string_equal(conf->log_level, "debug");
    assert_string_equal(conf->admin_group, "root");
    assert_string_equal(conf->metrics_listen, "127.0.0.1:9");
    assert_int_equal(conf->local_ducks, 3);
    assert_true(conf->local_memory == UINT64_C(2) << 30);
    assert_string_equal(conf->local_cores, "0");
    assert_false(conf->persistent_judge);
    assert_string_equal(conf->partials, "f32");
    assert_int_equal(conf->heartbeat_s, 5);
    assert_int_equal(conf->grace_s, 0);
}

static void ducks_are_taken(void **state)
{
    (void)state;
    _cleanup_(conf_freep) struct conf *conf = NULL;
    struct err err = {0};
    assert_int_equal(load("[duck \"kitchen\"]\naddress=kitchen:7909\nplaintext=yes\nspare=yes\n"
                          "[duck \"attic\"]\naddress=[fd00::7]:1\nplaintext=yes\n",
                          &conf, &err),
                     0);
    assert_int_equal(conf->duck_count, 2);
    assert_string_equal(conf->ducks[0].name, "kitchen");
    assert_string_equal(conf->ducks[0].address, "kitchen:7909");
    assert_true(conf->ducks[0].spare);
    assert_string_equal(conf->ducks[1].address, "[fd00::7]:1");
    assert_false(conf->ducks[1].spare);
}

static void refusals_name_the_key(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words[2];
    } bad[] = {
        {"[fleet]\nducks=3\n", {"[fleet] ducks", "unknown key"}},
        {"[fleet]\nlocal_memory=99999T\n", {"local_memory", "64T"}},
        {"[fleet]\n; a comment that is cut in two by a parser with short lines, whose tail would then be taken for a key of its own, as it "
         "happened once here: .................................................... local_ducks=3\n",
         {":2:", "longer than"}},
        {"[fleet]\nlocal_ducks=257\n", {"local_ducks", "256"}},
        {"[fleet]\nlocal_ducks=-1\n", {"local_ducks", "-1"}},
        {"[fleet]\nlocal_ducks=18446744073709551617\n", {"local_ducks", "18446744073709551617"}},
        {"[fleet]\nheartbeat_s=0\n", {"heartbeat_s", "1 to 3600"}},
        {"[fleet]\nlocal_memory=1M\n", {"local_memory", "2M"}},
        {"[fleet]\nlocal_memory=99999999999999999999T\n", {"local_memory", "size"}},
        {"[fleet]\npartials=fp8\n", {"partials", "bf16, f32"}},
        {"[daemon]\nadmin_group=no-such-group-here\n", {"admin_group", "no-such-group-here"}},
        {"[daemon]\nmetrics_listen=127.0.0.1\n", {"metrics_listen", "HOST:PORT"}},
        {"[fleet]\ndeadline_s=86401\n", {"deadline_s", "86400"}},
        {"[duck \"kitchen\"]\naddress=kitchen:7909\n", {"kitchen", "plaintext"}},
        {"[duck \"kitchen\"]\naddress=kitchen:7909\nplaintext=yes\nkey_file=/etc/hosts\n", {"kitchen", "key_file"}},
        {"[duck \"kitchen\"]\nplaintext=yes\n", {"kitchen", "address: is missing"}},
        {"[duck \"kitchen\"]\naddress=kitchen\nplaintext=yes\n", {"kitchen", "HOST:PORT"}},
        {"[duck \"kitchen\"]\naddress=kitchen:0\nplaintext=yes\n", {"kitchen", "1 to 65535"}},
        {"[duck \"kitchen\"]\naddress=::1:7909\nplaintext=yes\n", {"kitchen", "brackets"}},
        {"[duck \"a\"]\naddress=k:1\nplaintext=yes\n[duck \"b\"]\naddress=k:1\nplaintext=yes\n", {"\"b\"", "\"a\" already"}},
        {"[duck \"a b\"]\naddress=k:1\nplaintext=yes\n", {"a b", "blanks"}},
        {"[duck \"\"]\naddress=kitchen:7909\n", {"duck", "unknown key"}},
        {"[daemon]\nsocket=/a\nsocket=/b\n", {"socket", "twice"}},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        _cleanup_(conf_freep) struct conf *conf = NULL;
        struct err err = {0};
        assert_true(load(bad[i].text, &conf, &err) < 0);
        for (size_t w = 0; w < 2; w++)
            if (!strstr(err.message, bad[i].words[w]))
                fail_msg("\"%s\" is not in: %s", bad[i].words[w], err.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_is_defaults), cmocka_unit_test(shipped_is_defaults),   cmocka_unit_test(every_key_is_taken),
        cmocka_unit_test(ducks_are_taken),   cmocka_unit_test(refusals_name_the_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
