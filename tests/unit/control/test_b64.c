#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "proto/control/b64.h"

static void known_texts(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"fooba", "Zm9vYmE="}, {"foobar", "Zm9vYmFy"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char text[16], back[16] = {0};
        size_t length = strlen(pairs[i][0]);
        b64_encode(pairs[i][0], length, text);
        assert_string_equal(text, pairs[i][1]);
        assert_int_equal(strlen(text), B64_TEXT_LENGTH(length));
        struct err err = {0};
        assert_int_equal(b64_decode(text, strlen(text), back, length, &err), 0);
        assert_memory_equal(back, pairs[i][0], length);
    }
}

static void every_byte_comes_back(void **state)
{
    (void)state;
    uint8_t *data = malloc(B64_BYTES_MAX), *back = malloc(B64_BYTES_MAX);
    char *text = malloc(B64_TEXT_LENGTH(B64_BYTES_MAX) + 1);
    assert_true(data && back && text);
    for (size_t i = 0; i < B64_BYTES_MAX; i++)
        data[i] = (uint8_t)(i * 167 + i / 256);
    for (size_t length = B64_BYTES_MAX - 3; length <= B64_BYTES_MAX; length++) {
        struct err err = {0};
        b64_encode(data, length, text);
        assert_int_equal(b64_decode(text, strlen(text), back, length, &err), 0);
        assert_memory_equal(back, data, length);
    }
    free(data);
    free(back);
    free(text);
}

static void refusals(void **state)
{
    (void)state;
    static const char *const bad[] = {"Zg=", "Zg", "Z===", "====", "Zh==", "Zm9=", "Zm 9", "Zm-v", "Zg==Zg==", "Zm9v\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint8_t to[8] = {7, 7, 7, 7, 7, 7, 7, 7};
        struct err err = {0};
        if (b64_decode(bad[i], strlen(bad[i]), to, 1, &err) == 0)
            fail_msg("\"%s\" was taken", bad[i]);
        assert_int_equal(err.name, ERR_BAD_REQUEST);
        assert_int_equal(to[0], 7);
    }
    uint8_t to[4] = {7, 7, 7, 7};
    struct err err = {0};
    assert_true(b64_decode("Zm9v", 4, to, 4, &err) != 0);
    assert_int_equal(err.name, ERR_BAD_SHAPE);
    assert_string_equal(err.values, "\"expected\":4,\"found\":3");
    size_t length = B64_TEXT_LENGTH(B64_BYTES_MAX) + 4;
    char *text = malloc(length);
    assert_non_null(text);
    memset(text, 'A', length);
    assert_true(b64_decode(text, length, to, 4, &err) != 0);
    assert_true(b64_decode(text, length - 4, to, 4, &err) != 0); /* 65,538 bytes: fits the text limit, not the bytes' */
    assert_int_equal(err.name, ERR_BAD_REQUEST);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_texts),
        cmocka_unit_test(every_byte_comes_back),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
