/* Rows that a real duck reads in the stage: the same slots as rows in frames give, every ticket told once, nothing read beyond it. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/wire/msg_hello.h"
#include "proto/wire/msg_staged.h"
#include "tests/unit/duck/process.h"

#define SIZE (8 << 20)
#define STAGE_BYTES (1 << 20)
#define SEED 4711
#define GAP 24 /* bytes between a row's codes and the next row's */
#define PIECES_MAX 256

struct fixture {
    struct process p;
    int weights, stage;
    uint8_t *bytes; /* of the stage */
    size_t used;
    uint64_t pieces; /* sent */
};

static int memfd(size_t bytes, unsigned seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->weights = memfd(SIZE, 0);
    f->stage = memfd(STAGE_BYTES, F_SEAL_SHRINK);
    f->bytes = mmap(NULL, STAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, f->stage, 0);
    assert_true(f->bytes != MAP_FAILED);
    process_stage = f->stage;
    process_start(&f->p, f->weights, NULL);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    if (f->p.transport)
        process_close(&f->p);
    munmap(f->bytes, STAGE_BYTES);
    close(f->weights);
    close(f->stage);
    free(f);
    process_stage = -1;
    return 0;
}

/* Puts a piece into the stage, wide apart, NaN codes between its rows, and tells of it; its ticket is its number. */
static void stage_piece(void *user, const struct msg_prepare_data *data, const float *scales, const uint8_t *codes)
{
    struct fixture *f = user;
    struct msg_prepare_staged msg = {.rows = *data, .ticket = ++f->pieces, .offset = f->used, .stride = data->columns + GAP};
    memset(f->bytes + f->used, 0x7f, (size_t)data->rows * msg.stride);
    for (uint32_t row = 0; row < data->rows; row++)
        memcpy(f->bytes + f->used + (size_t)row * msg.stride, codes + (size_t)row * data->columns, data->columns);
    f->used += (size_t)data->rows * msg.stride;
    assert_true(f->used <= STAGE_BYTES && f->pieces < PIECES_MAX);
    assert_int_equal(msg_prepare_staged_encode(&f->p.out.buf, f->p.request, &msg, scales), 0);
}

static void begin(struct fixture *f, const struct msg_prepare_begin *words)
{
    f->used = f->pieces = 0;
    assert_int_equal(msg_prepare_begin_encode(&f->p.out.buf, ++f->p.request, words), 0);
}

/* Takes frames until every ticket was told once; the first of another type, its payload copied into `kept`, if it comes between. */
static enum wire_type take_tickets(struct fixture *f, struct err *ret_fail)
{
    bool told[PIECES_MAX] = {false};
    enum wire_type other = (enum wire_type)0;
    for (uint64_t left = f->pieces; left;) {
        struct frame frame = process_receive(&f->p);
        uint64_t ticket;
        if (frame.type != WIRE_STAGED_TAKEN) {
            assert_int_equal(other, 0);
            other = frame.type;
            assert_int_equal(frame.type, WIRE_FAIL);
            assert_int_equal(msg_fail_decode(&frame, ret_fail, NULL), 0);
            continue;
        }
        assert_int_equal(msg_staged_taken_decode(&frame, &ticket, NULL), 0);
        assert_true(ticket >= 1 && ticket <= f->pieces && !told[ticket]);
        told[ticket] = true;
        left--;
    }
    return other;
}

static void test_same_slots(void **state)
{
    struct fixture *f = *state;
    assert_true(process_hello(&f->p).features & WIRE_FEATURE_STAGE);
    for (int kind = MSG_SLOT_DENSE; kind <= MSG_SLOT_MOE; kind++) {
        struct msg_prepare_begin words = model_words((enum msg_slot_kind)kind, 4 + (uint32_t)kind);
        uint64_t expected = process_prepare(&f->p, &words, SEED).checksum;
        struct msg_slot slot;
        begin(f, &words);
        model_pieces(&words, SEED, stage_piece, f);
        assert_int_equal(msg_empty_encode(&f->p.out.buf, WIRE_PREPARE_END, f->p.request), 0);
        process_send(&f->p);
        assert_int_equal(take_tickets(f, NULL), 0);
        struct frame frame = process_expect(&f->p, WIRE_SLOT_DONE);
        assert_int_equal(msg_slot_done_decode(&frame, &slot, NULL), 0);
        assert_true(slot.checksum == expected);
    }
}

/* A NaN code spoils the slot; rows that come after it are not looked at, and their tickets are told all the same. */
static void test_bad_rows(void **state)
{
    struct fixture *f = *state;
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 4);
    struct err err;
    process_hello(&f->p);
    begin(f, &words);
    model_pieces(&words, SEED, stage_piece, f);
    f->bytes[0] = 0xff;
    assert_int_equal(msg_empty_encode(&f->p.out.buf, WIRE_PREPARE_END, f->p.request), 0);
    process_send(&f->p);
    assert_int_equal(take_tickets(f, &err), WIRE_FAIL);
    assert_non_null(strstr(err.message, "code 0xff is NaN"));
    process_prepare(&f->p, &words, SEED); /* the duck goes on */
}

static void test_beyond_the_stage(void **state)
{
    struct fixture *f = *state;
    struct msg_prepare_begin words = model_words(MSG_SLOT_DENSE, 4);
    static const float scales[16] = {1.0f};
    struct msg_prepare_staged msg = {.ticket = 1, .offset = STAGE_BYTES - 16 * 80 + 1, .stride = 80};
    msg.rows = (struct msg_prepare_data){.rows = 16, .columns = 80, .scale_count = 1};
    process_hello(&f->p);
    begin(f, &words);
    assert_int_equal(msg_prepare_staged_encode(&f->p.out.buf, f->p.request, &msg, scales), 0);
    process_send(&f->p);
    assert_non_null(strstr(process_expect_fail(&f->p).message, "do not lie within the stage of 1048576 bytes"));
    process_wait(&f->p);
}

static void test_without_one(void **state)
{
    struct fixture *f = *state;
    struct msg_prepare_begin words = model_words(MSG_SLOT_DENSE, 4);
    process_close(&f->p);
    process_stage = -1;
    process_start(&f->p, f->weights, NULL);
    assert_false(process_hello(&f->p).features & WIRE_FEATURE_STAGE);
    begin(f, &words);
    model_pieces(&words, SEED, stage_piece, f);
    process_send(&f->p);
    assert_non_null(strstr(process_expect_fail(&f->p).message, "do not lie within the stage of 0 bytes"));
}

/* What could shrink under the mapping is refused. */
static void test_not_sealed(void **state)
{
    struct fixture *f = *state;
    process_close(&f->p);
    process_stage = memfd(STAGE_BYTES, 0);
    process_start(&f->p, f->weights, NULL);
    int status = process_wait(&f->p);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE);
    close(process_stage);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_slots, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_rows, setup, teardown),
        cmocka_unit_test_setup_teardown(test_beyond_the_stage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_without_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_sealed, setup, teardown),
    };
    if (!process_arguments(argc, argv))
        return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
