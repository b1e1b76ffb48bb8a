#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "proto/control/schema.h"

static void sorted_and_found(void **state)
{
    (void)state;
    assert_true(schema_method_count > 0);
    for (size_t i = 0; i < schema_method_count; i++) {
        if (i)
            assert_true(strcmp(schema_methods[i - 1].name, schema_methods[i].name) < 0);
        assert_ptr_equal(schema_find(schema_methods[i].name), &schema_methods[i]);
    }
    assert_null(schema_find("model.lood"));
    assert_null(schema_find(""));
}

static void params_are_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < schema_method_count; i++) {
        const struct schema_method *method = &schema_methods[i];
        assert_true(strlen(method->doc) > 10);
        assert_non_null(method->result);
        for (size_t j = 0; j < method->param_count; j++) {
            const struct schema_param *param = &method->params[j];
            if (j)
                assert_true(strcmp(method->params[j - 1].name, param->name) < 0);
            assert_true(strlen(param->doc) > 10);
            assert_null(strchr(param->doc, '\n'));
            if (param->type == SCHEMA_INT || param->type == SCHEMA_STRING)
                assert_true(param->low <= param->high);
            if (param->type == SCHEMA_TENSOR)
                assert_non_null(param->choices);
            assert_ptr_equal(schema_find_param(method, param->name), param);
        }
        assert_null(schema_find_param(method, "no such param"));
    }
}

/* An entry of the later table that has come true must leave it. */
static void later_is_not_now(void **state)
{
    (void)state;
    assert_true(schema_later_count > 0);
    for (size_t i = 0; i < schema_later_count; i++) {
        const struct schema_later *later = &schema_later[i];
        const struct schema_method *method = schema_find(later->method);
        assert_true(schema_is_later(later->method, later->param));
        if (later->param) {
            assert_non_null(method);
            assert_null(schema_find_param(method, later->param));
        } else {
            assert_null(method);
        }
    }
    assert_false(schema_is_later("decode", NULL));
    assert_false(schema_is_later("decode", "layer"));
    assert_false(schema_is_later("metrics", "deadline_ms"));
    assert_false(schema_is_later("", NULL));
}

static void only_administration_is_admin(void **state)
{
    (void)state;
    static const char *const admin[] = {"cache.invalidate", "model.load", "model.unload", "prepare"};
    for (size_t i = 0; i < schema_method_count; i++) {
        bool expected = false;
        for (size_t j = 0; j < sizeof admin / sizeof admin[0]; j++)
            expected |= strcmp(admin[j], schema_methods[i].name) == 0;
        assert_int_equal(schema_methods[i].admin, expected);
    }
}

/* man/fp9-control.7 shows each method as ".SS name" and each param as ".B name". */
static void man_page_has_every_method(void **state)
{
    (void)state;
    static char text[262144];
    FILE *file = fopen(MAN_PAGE, "r");
    assert_non_null(file);
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    for (size_t i = 0; i < schema_method_count; i++) {
        char heading[80];
        snprintf(heading, sizeof heading, "\n.SS %s\n", schema_methods[i].name);
        char *section = strstr(text, heading);
        if (!section)
            fail_msg("the man page lacks method %s", schema_methods[i].name);
        char *end = strstr(section + 4, "\n.S");
        assert_non_null(end);
        *end = '\0';
        for (size_t j = 0; j < schema_methods[i].param_count; j++) {
            char item[80];
            snprintf(item, sizeof item, "\n.B %s\n", schema_methods[i].params[j].name);
            if (!strstr(section, item))
                fail_msg("the man page lacks param %s of %s", schema_methods[i].params[j].name, schema_methods[i].name);
        }
        size_t shown = 0;
        for (char *p = section; (p = strstr(p, "\n.B ")) != NULL; p++)
            shown++;
        assert_int_equal(shown, schema_methods[i].param_count);
        *end = '\n';
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sorted_and_found),
        cmocka_unit_test(params_are_whole),
        cmocka_unit_test(later_is_not_now),
        cmocka_unit_test(only_administration_is_admin),
        cmocka_unit_test(man_page_has_every_method),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
