#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "daemon/head/outgoing.h"

static unsigned let_go;

static void count(void *user)
{
    (void)user;
    let_go++;
}

static void push(struct outgoing_queue *queue, enum wire_type type, uint64_t request)
{
    struct outgoing *out = outgoing_new();
    int64_t at = frame_begin(&out->buf, type, request);
    assert_true(at >= 0);
    assert_int_equal(frame_end(&out->buf, at), 0);
    out->sent = count;
    outgoing_push(queue, out);
}

static uint64_t pop(struct outgoing_queue *queue, enum wire_type *ret_type)
{
    struct outgoing *out = outgoing_pop(queue);
    struct frame frame;
    if (!out)
        return 0;
    assert_int_equal(frame_header_parse(out->buf.data, &frame, NULL), 0);
    outgoing_unref(out);
    *ret_type = frame.type;
    return frame.request;
}

static void only_that_frame_is_withdrawn(void **state)
{
    (void)state;
    struct outgoing_queue queue = {0};
    enum wire_type type;
    assert_false(outgoing_withdraw(&queue, WIRE_STEP, 7));
    push(&queue, WIRE_SESSION_CLOSE, 7);
    push(&queue, WIRE_STEP, 6);
    push(&queue, WIRE_STEP, 7);
    push(&queue, WIRE_PING, 8);
    let_go = 0;
    assert_false(outgoing_withdraw(&queue, WIRE_STEP, 8));
    assert_true(outgoing_withdraw(&queue, WIRE_STEP, 7));
    assert_int_equal(let_go, 1);
    assert_false(outgoing_withdraw(&queue, WIRE_STEP, 7));
    assert_int_equal(pop(&queue, &type), 7);
    assert_int_equal(type, WIRE_SESSION_CLOSE);
    assert_int_equal(pop(&queue, &type), 6);
    assert_int_equal(pop(&queue, &type), 8);
    assert_int_equal(type, WIRE_PING);
    assert_int_equal(pop(&queue, &type), 0);
    free(queue.items);
}

/* Against a plain list, wherever the ring begins and however it grows. */
static void the_others_keep_their_order(void **state)
{
    (void)state;
    static uint64_t list[4096];
    size_t length = 0;
    uint64_t next = 1;
    struct outgoing_queue queue = {0};
    enum wire_type type;
    unsigned seed = (unsigned)time(NULL), random = seed;
    printf("seed %u\n", seed);
    for (int round = 0; round < 20000; round++) {
        int what = rand_r(&random) % 8;
        if (what < 4 && length < 4096) {
            push(&queue, WIRE_STEP, next);
            list[length++] = next++;
        } else if (what < 6 && length) {
            size_t at = (size_t)rand_r(&random) % length;
            assert_true(outgoing_withdraw(&queue, WIRE_STEP, list[at]));
            assert_false(outgoing_withdraw(&queue, WIRE_STEP, list[at]));
            length--;
            for (; at < length; at++)
                list[at] = list[at + 1];
        } else {
            assert_int_equal(pop(&queue, &type), length ? list[0] : 0);
            length -= length > 0;
            for (size_t i = 0; i < length; i++)
                list[i] = list[i + 1];
        }
        assert_int_equal(queue.count, length);
    }
    outgoing_drop(&queue);
    free(queue.items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_that_frame_is_withdrawn), cmocka_unit_test(the_others_keep_their_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
