#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/head/http_request.h"

#define END "\r\n\r\n"

static void whole_requests(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
        bool head_only;
    } cases[] = {
        {"GET /metrics HTTP/1.1\r\nHost: x" END, 200, false},
        {"GET /metrics HTTP/1.0" END, 200, false},
        {"GET /metrics?x=1 HTTP/1.1\r\nAccept: */*\r\nX-Umlaut: \xc3\xa4" END, 200, false},
        {"HEAD /metrics HTTP/1.1" END, 200, true},
        {"GET / HTTP/1.1" END, 404, false},
        {"GET /metricsx HTTP/1.1" END, 404, false},
        {"GET /metrics/ HTTP/1.1" END, 404, false},
        {"HEAD /other HTTP/1.1" END, 404, true},
        {"POST /metrics HTTP/1.1\r\nContent-Length: 3" END "abc", 405, false},
        {"GET /metrics HTTP/2.0" END, 505, false},
        {"GET /metrics HTTP/1.10" END, 505, false},
        {"GET /metrics" END, 400, false},
        {"GET  /metrics HTTP/1.1" END, 400, false},
        {"GET /metrics FTP/1.1" END, 400, false},
        {"GET /metrics HTTP/1.1\n\n", 400, false},
        {"get /metrics HTTP/1.1" END, 400, false},
        {"\x16\x03\x01\x02", 400, false},
        {"GET /metrics\x01 HTTP/1.1", 400, false},
        {"AVERYLONGMETHODNAME /metrics HTTP/1.1" END, 405, false},
        {"PRI * HTTP/2.0" END, 505, false},
        {"{\"jsonrpc\":\"2.0\"}\n", 400, false},
        {END, 400, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool head_only;
        int status = http_request_status(cases[i].text, strlen(cases[i].text), &head_only);
        if (status != cases[i].status || head_only != cases[i].head_only)
            fail_msg("%zu: %s: status %d, expected %d", i, cases[i].text, status, cases[i].status);
        assert_true(http_request_reason(status)[0]);
    }
}

/* Byte by byte: nothing is said before the end is there. */
static void cut_anywhere(void **state)
{
    (void)state;
    static const char text[] = "GET /metrics HTTP/1.1\r\nHost: duck\r\nUser-Agent: test" END;
    bool head_only;
    for (size_t length = 0; length < sizeof text - 1; length++) {
        char *copy = malloc(length + 1); /* of its own, so that a read past it is found */
        memcpy(copy, text, length);
        assert_int_equal(http_request_status(copy, length, &head_only), 0);
        free(copy);
    }
    assert_int_equal(http_request_status(text, sizeof text - 1, &head_only), 200);
}

static void too_long(void **state)
{
    (void)state;
    static char text[HTTP_REQUEST_MAX + 100];
    bool head_only;
    memset(text, 'a', sizeof text);
    memcpy(text, "GET /metrics HTTP/1.1\r\nX: ", 26);
    assert_int_equal(http_request_status(text, HTTP_REQUEST_MAX - 1, &head_only), 0);
    assert_int_equal(http_request_status(text, HTTP_REQUEST_MAX, &head_only), 431);
    assert_int_equal(http_request_status(text, sizeof text, &head_only), 431);
    memcpy(text + HTTP_REQUEST_MAX - 4, END, 4);
    assert_int_equal(http_request_status(text, HTTP_REQUEST_MAX, &head_only), 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_requests),
        cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
