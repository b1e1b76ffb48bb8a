#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/control/rpc.h"

/* Parses a line that must be refused; the message and the id are checked. */
static void refused_bytes(const char *line, size_t length, enum err_name name, int code, const char *message)
{
    struct rpc_request request = {0};
    struct err err = {0};
    json_t *id = NULL;
    int r = rpc_request_parse(line, length, &request, &id, &err);
    if (r == 0)
        fail_msg("taken: %.200s", line);
    assert_null(request.method);
    assert_non_null(id);
    assert_int_equal(r, err.code);
    if (!strstr(err.message, message))
        fail_msg("\"%s\" lacks \"%s\"", err.message, message);
    assert_int_equal(err.name, name);
    json_t *error = rpc_error_json(&err);
    assert_non_null(error);
    assert_int_equal(json_integer_value(json_object_get(error, "code")), code);
    assert_string_equal(json_string_value(json_object_get(json_object_get(error, "data"), "name")), err_name_text(name));
    json_decref(error);
    size_t reply_length = 0;
    char *reply = rpc_reply_error(id, &err, &reply_length);
    assert_non_null(reply);
    assert_int_equal(reply[reply_length - 1], '\n');
    assert_ptr_equal(memchr(reply, '\n', reply_length), reply + reply_length - 1);
    free(reply);
    json_decref(id);
}

static void refused(const char *line, int code, const char *message)
{
    refused_bytes(line, strlen(line), ERR_BAD_REQUEST, code, message);
}

static struct rpc_request taken(const char *line)
{
    struct rpc_request request = {0};
    struct err err = {0};
    json_t *id = NULL;
    if (rpc_request_parse(line, strlen(line), &request, &id, &err) != 0)
        fail_msg("refused: %s: %s", line, err.message);
    assert_true(json_equal(id, request.id));
    json_decref(id);
    return request;
}

#define REQUEST(method, params) "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"" method "\",\"params\":" params "}\n"
#define LOAD(members) REQUEST("model.load", "{\"path\":\"/m\"," members "}")

static void requests_are_read(void **state)
{
    (void)state;
    struct rpc_request request = taken(LOAD("\"tp\":3,\"multiple_of\":64,\"force\":true"));
    assert_string_equal(request.method->name, "model.load");
    assert_int_equal(json_integer_value(request.id), 7);
    assert_int_equal(rpc_param_int(request.params, "tp", 0), 3);
    assert_int_equal(rpc_param_int(request.params, "absent", -5), -5);
    assert_string_equal(rpc_param_string(request.params, "path", NULL), "/m");
    assert_string_equal(rpc_param_string(request.params, "name", "none"), "none");
    assert_true(rpc_param_bool(request.params, "force", false));
    assert_true(rpc_param_bool(request.params, "absent", true));
    rpc_request_release(&request);
    request = taken("{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"status\"}");
    assert_int_equal(json_object_size(request.params), 0);
    rpc_request_release(&request);
    request = taken("{\"jsonrpc\":\"2.0\",\"method\":\"status\"}");
    assert_true(json_is_null(request.id));
    rpc_request_release(&request);
}

static void numbers_out_of_range(void **state) /* E02 */
{
    (void)state;
    refused(LOAD("\"tp\":9223372036854775808"), -32602, "tp: 9223372036854775808 is beyond");
    refused(LOAD("\"tp\" : -9223372036854775809"), -32602, "tp: -9223372036854775809 is beyond");
    refused(LOAD("\"tp\":1e999"), -32602, "tp: 1e999 is beyond");
    refused(LOAD("\"tp\":-1e999,\"force\":true"), -32602, "tp: -1e999 is beyond");
    refused(LOAD("\"tp\":[1e999]"), -32602, "1e999 is beyond");
    refused(LOAD("\"tp\":-0"), -32602, "tp: 0 is out of range; 1 to 1024 are right");
    refused(LOAD("\"tp\":-0.0"), -32602, "tp: -0.0 is no whole number; 1 to 1024 are right");
    refused(LOAD("\"tp\":4294967297"), -32602, "tp: 4294967297 is out of range; 1 to 1024 are right");
    refused(LOAD("\"tp\":1.5"), -32602, "tp: 1.5 is no whole number; 1 to 1024 are right");
    refused(LOAD("\"tp\":1.0"), -32602, "tp: 1.0 is no whole number");
    refused(LOAD("\"tp\":\"3\""), -32602, "tp: \"3\" is no whole number; 1 to 1024 are right");
    refused(LOAD("\"tp\":null"), -32602, "tp: null is no whole number");
    refused(LOAD("\"tp\":true"), -32602, "tp: true is no whole number");
    refused(LOAD("\"tp\":NaN"), -32700, "no JSON");
    refused(LOAD("\"tp\":01"), -32700, "no JSON");
    refused(LOAD("\"force\":1"), -32602, "force: 1 is neither true nor false");
}

static void names_are_checked(void **state)
{
    (void)state;
    refused(LOAD("\"deadline\":1"), -32602,
            "model.load: deadline: 1 is not for model.load, which takes force, mtp, multiple_of, name, path");
    refused(REQUEST("model.load", "{}"), -32602, "model.load: path is missing");
    refused(REQUEST("status", "{\"x\":[1,2]}"), -32602, "takes no params");
    refused(REQUEST("status", "[1]"), -32602, "params is no object");
    refused(REQUEST("launch", "{}"), -32601, "no method launch; there are cache.invalidate, cache.list");
    refused(REQUEST("model.load", "{\"path\":\"\"}"), -32602, "path: \"\" is empty, allowed are 1 to 4095 bytes");
    refused(REQUEST("model.load", "{\"path\":7}"), -32602, "path: 7 is no string");
    refused(REQUEST("model.load", "{\"path\":\"a\\u0000b\"}"), -32602, "params.path: holds a NUL (\\u0000)");
    refused(REQUEST("session.open", "{\"model\":\"m\",\"max_tokens\":4,\"partials\":\"f64\"}"), -32602,
            "partials: \"f64\" is not one of bf16, f32");
    refused("{\"id\":1,\"method\":\"status\"}", -32600, "jsonrpc is not");
    refused("{\"jsonrpc\":\"2.0\",\"id\":1}", -32600, "method is missing");
    refused("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":3}", -32600, "method is no string");
    refused("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\",\"param\":{}}", -32600, "param is no member of a request");
    refused("{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"status\"}", -32600, "id is neither");
    refused("{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"status\"}", -32600, "id is neither");
}

static void lines_that_are_no_object(void **state)
{
    (void)state;
    refused("", -32700, "no JSON");
    refused("\n", -32700, "no JSON");
    refused("GET / HTTP/1.1\r\n", -32700, "no JSON");
    refused("[]", -32600, "batches are not served");
    refused("3", -32600, "not an object");
    refused(REQUEST("status", "{}") "x", -32700, "no JSON");
    refused("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", -32700, "no JSON");
    refused_bytes("{}\0{}", 5, ERR_BAD_REQUEST, -32700, "no JSON");
}

/* The answer has the request's id, so that whoever asked knows what was refused. */
static void refused_nul(const char *line, int code, const char *id_text, const char *message)
{
    struct rpc_request request = {0};
    struct err err = {0};
    json_t *id = NULL;
    refused(line, code, message);
    assert_true(rpc_request_parse(line, strlen(line), &request, &id, &err) < 0);
    char *shown = json_dumps(id, JSON_ENCODE_ANY);
    assert_string_equal(shown, id_text);
    free(shown);
    json_decref(id);
}

static void nul_in_texts(void **state)
{
    (void)state;
    refused_nul(REQUEST("model.load", "{\"path\":\"a\\u0000b\"}"), -32602, "7", "params.path: holds a NUL (\\u0000)");
    refused_nul(REQUEST("model.load", "{\"path\":\"/m\\u0000\",\"name\":\"n\"}"), -32602, "7", "params.path: holds a NUL");
    refused_nul(REQUEST("decode", "{\"x\":{\"b64\":\"AAAA\\u0000\"}}"), -32602, "7", "params.x.b64: holds a NUL");
    refused_nul(REQUEST("status", "[1,[\"\\u0000\"]]"), -32602, "7", "params[1][0]: holds a NUL");
    refused_nul("{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"status\\u0000\"}", -32600, "\"x\"", "method: holds a NUL");
    refused_nul("{\"jsonrpc\":\"2.0\\u0000\",\"id\":3,\"method\":\"status\"}", -32600, "3", "jsonrpc: holds a NUL");
    refused_nul("{\"jsonrpc\":\"2.0\",\"id\":\"\\u0000\",\"method\":\"status\"}", -32600, "null", "id: holds a NUL");
    refused_nul("{\"jsonrpc\":\"2.0\",\"id\":[\"\\u0000\"],\"method\":\"status\"}", -32600, "null", "id[0]: holds a NUL");
    refused_nul(REQUEST("status", "{\"\\u0000\":1}"), -32700, "null", "no JSON: NUL byte in object key");
    /* A backslash and digits are none, and neither is what is written otherwise. */
    struct rpc_request request = taken(LOAD("\"name\":\"\\\\u0000\""));
    assert_string_equal(rpc_param_string(request.params, "name", NULL), "\\u0000");
    rpc_request_release(&request);
    request = taken(LOAD("\"name\":\"\\u0001\\\\u0000\""));
    assert_int_equal(strlen(rpc_param_string(request.params, "name", NULL)), 7);
    rpc_request_release(&request);
}

static void duplicate_keys(void **state) /* E04 */
{
    (void)state;
    refused("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\",\"method\":\"cache.invalidate\"}", -32700, "duplicate");
    refused(LOAD("\"tp\":1,\"tp\":2"), -32700, "duplicate");
    refused(LOAD("\"tp\":1,\"\\u0074p\":2"), -32700, "duplicate");
}

static void deep_nesting(void **state) /* E01 */
{
    (void)state;
    char *line = malloc(100001);
    assert_non_null(line);
    memset(line, '[', 100000);
    line[100000] = '\n';
    refused_bytes(line, 100001, ERR_BAD_REQUEST, -32700, "nested deeper than 32 levels");
    for (size_t i = 0; i < 5000; i++)
        memcpy(line + i * 5, "{\"a\":", 5);
    refused_bytes(line, 25000, ERR_BAD_REQUEST, -32700, "nested deeper than 32 levels");
    free(line);
    /* Brackets inside a string are no nesting, an escaped quote does not end it. */
    struct rpc_request request = taken(LOAD("\"name\":\"\\\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\""));
    rpc_request_release(&request);
}

static void long_lines(void **state) /* E15 */
{
    (void)state;
    static const char head[] = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\"}";
    for (size_t length = RPC_LINE_MAX; length <= RPC_LINE_MAX + 1; length++) {
        char *line = malloc(length);
        assert_non_null(line);
        memset(line, ' ', length);
        memcpy(line, head, sizeof head - 1);
        line[length - 1] = '\n';
        struct rpc_request request = {0};
        struct err err = {0};
        json_t *id = NULL;
        assert_int_equal(rpc_request_parse(line, length, &request, &id, &err), length == RPC_LINE_MAX ? 0 : -EBADMSG);
        rpc_request_release(&request);
        json_decref(id);
        free(line);
    }
    /* A long value is shown short, and never cut inside a character. */
    char line[800];
    size_t at = (size_t)snprintf(line, sizeof line, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\",\"params\":{\"x\":\"a");
    for (size_t i = 0; i < 120; i++)
        at += (size_t)snprintf(line + at, sizeof line - at, "\xe4\xba\x8c");
    snprintf(line + at, sizeof line - at, "\"}}");
    refused(line, -32602, "\xe4\xba\x8c... is not for status");
}

#define STEP(members) REQUEST("decode", "{\"session\":1,\"layer\":0,\"tokens\":1," members "}")

static void tensors(void **state)
{
    (void)state;
    struct rpc_request request =
        taken(STEP("\"x\":{\"offset\":128,\"dtype\":\"BF16\"},\"topk_ids\":{\"b64\":\"AAAA\"},\"y\":{\"dtype\":\"f32\"}"));
    struct rpc_tensor tensor;
    rpc_param_tensor(request.params, "x", &tensor);
    assert_true(tensor.present && tensor.in_arena && !tensor.b64);
    assert_int_equal(tensor.offset, 128);
    assert_int_equal(tensor.dtype, RPC_DTYPE_BF16);
    rpc_param_tensor(request.params, "topk_ids", &tensor);
    assert_true(tensor.present && !tensor.in_arena && tensor.b64);
    assert_int_equal(tensor.b64_length, 4);
    assert_int_equal(tensor.dtype, RPC_DTYPE_NONE);
    rpc_param_tensor(request.params, "y", &tensor);
    assert_true(tensor.present && !tensor.in_arena && !tensor.b64);
    assert_int_equal(tensor.dtype, RPC_DTYPE_F32);
    rpc_param_tensor(request.params, "topk_weights", &tensor);
    assert_false(tensor.present);
    rpc_request_release(&request);
    refused(STEP("\"x\":{\"offset\":96}"), -32602, "x.offset: 96 is no multiple of 64");
    refused(STEP("\"x\":{\"offset\":-64}"), -32602, "x.offset: -64 is out of range");
    refused(STEP("\"x\":{\"offset\":0,\"b64\":\"\"}"), -32602, "both offset and b64");
    refused(STEP("\"x\":{\"dtype\":\"BF16\"}"), -32602, "neither offset nor b64");
    refused(STEP("\"x\":{\"offset\":0,\"shape\":[1]}"), -32602, "x.shape: [1] is no part of a tensor");
    refused(STEP("\"x\":5"), -32602, "x: 5 is no tensor");
    refused(STEP("\"x\":{\"b64\":5}"), -32602, "x.b64: 5 is no string");
    const char *line = STEP("\"x\":{\"offset\":0,\"dtype\":\"F16\"}");
    refused_bytes(line, strlen(line), ERR_BAD_DTYPE, -32000 - ERR_BAD_DTYPE, "x.dtype: \"F16\" is not the type allowed here, BF16");
    line = STEP("\"x\":{\"offset\":0},\"y\":{\"dtype\":5}");
    refused_bytes(line, strlen(line), ERR_BAD_DTYPE, -32000 - ERR_BAD_DTYPE, "y.dtype: 5 is not the type allowed here, BF16, F32");
}

static void replies(void **state) /* E06 */
{
    (void)state;
    json_t *id = json_integer(3), *result = json_pack("{s:o,s:o,s:o}", "a", rpc_real(1.2), "b", rpc_real(NAN), "c", rpc_real(-INFINITY));
    size_t length = 0;
    char *line = rpc_reply_result(id, result, &length);
    assert_string_equal(line, "{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"a\":1.2,\"b\":null,\"c\":null}}\n");
    assert_int_equal(length, strlen(line));
    free(line);
    json_t *params = json_pack("{s:i}", "job", 1);
    line = rpc_notification("job.progress", params, &length);
    assert_string_equal(line, "{\"jsonrpc\":\"2.0\",\"method\":\"job.progress\",\"params\":{\"job\":1}}\n");
    free(line);
    json_decref(params);
    json_decref(result);
    /* An answer too long for a line becomes an error with the same id. */
    char *text = malloc(RPC_LINE_MAX);
    assert_non_null(text);
    memset(text, 'a', RPC_LINE_MAX - 1);
    text[RPC_LINE_MAX - 1] = '\0';
    result = json_string(text);
    line = rpc_reply_result(id, result, &length);
    assert_non_null(strstr(line, "\"id\":3,\"error\":{"));
    assert_true(length < 1000);
    free(line);
    free(text);
    json_decref(result);
    json_decref(id);
}

static void errors_there_and_back(void **state)
{
    (void)state;
    for (int i = 0; i < ERR_NAME_COUNT_; i++) {
        struct err err = {0}, back = {0};
        err_set(&err, -EINVAL, (enum err_name)i, "tensor \"x\" has 3 rows");
        err_value_int(&err, "rows", 3);
        err_value_str(&err, "tensor", "x\"\xff");
        json_t *error = rpc_error_json(&err);
        assert_non_null(error);
        rpc_error_from_json(error, &back);
        assert_int_equal(back.name, i);
        assert_true(back.code < 0);
        assert_string_equal(back.message, err.message);
        assert_non_null(strstr(back.values, "\"rows\":3"));
        json_t *again = rpc_error_json(&back);
        assert_true(json_equal(error, again));
        json_decref(again);
        json_decref(error);
    }
    /* Text that is no UTF-8, values that claim another name. */
    struct err err = {0};
    err_set(&err, -EIO, ERR_INTERNAL, "file \xff\xfe");
    err_value_str(&err, "name", "BUSY");
    json_t *error = rpc_error_json(&err);
    assert_string_equal(json_string_value(json_object_get(error, "message")), "file ??");
    assert_string_equal(json_string_value(json_object_get(json_object_get(error, "data"), "name")), "INTERNAL");
    json_decref(error);
    static const char *const odd[] = {"{}", "[]", "3", "{\"code\":\"x\",\"message\":4,\"data\":[]}",
                                      "{\"message\":\"m\",\"data\":{\"name\":\"NEW\"}}"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        error = json_loads(odd[i], JSON_DECODE_ANY, NULL);
        rpc_error_from_json(error, &err);
        assert_int_equal(err.name, ERR_INTERNAL);
        assert_true(err.code < 0 && err.message[0]);
        assert_string_equal(err.values, "");
        json_decref(error);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_read), cmocka_unit_test(numbers_out_of_range),
        cmocka_unit_test(names_are_checked), cmocka_unit_test(lines_that_are_no_object),
        cmocka_unit_test(duplicate_keys),    cmocka_unit_test(deep_nesting),
        cmocka_unit_test(nul_in_texts),
        cmocka_unit_test(long_lines),        cmocka_unit_test(tensors),
        cmocka_unit_test(replies),           cmocka_unit_test(errors_there_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
