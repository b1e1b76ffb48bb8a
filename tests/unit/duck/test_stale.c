/* Ranges of dropped slots: what is told of them against a plain table of pages, and the pages themselves. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/duck/wbuf_format.h"
#include "daemon/duck/wbuf_stale.h"
#include "proto/base/size.h"
#include "tests/unit/duck/model.h"

enum { PAGES = 300, PIECE = 7 };

static uint32_t marked(const bool *pages, uint32_t begin, uint32_t end)
{
    uint32_t count = 0;
    for (uint32_t i = begin; i < end; i++)
        count += pages[i];
    return count;
}

static void check(const struct wbuf_stale *stale, const bool *pages)
{
    bool seen[PAGES] = {false};
    for (uint32_t i = 0; i < stale->count; i++) {
        assert_true(stale->ranges[i].begin < stale->ranges[i].end && stale->ranges[i].end <= PAGES);
        assert_true(i == 0 || stale->ranges[i - 1].end < stale->ranges[i].begin); /* neighbours are merged */
        for (uint64_t page = stale->ranges[i].begin; page < stale->ranges[i].end; page++)
            seen[page] = true;
    }
    assert_memory_equal(seen, pages, sizeof seen);
    assert_int_equal(stale->bytes, marked(pages, 0, PAGES));
}

static void test_ranges(void **state)
{
    (void)state;
    uint64_t random = (uint64_t)time(NULL);
    print_message("seed %" PRIu64 "\n", random);
    struct wbuf_stale *stale = calloc(1, sizeof *stale);
    assert_non_null(stale);
    bool pages[PAGES] = {false};
    for (int round = 0; round < 20000; round++) {
        uint32_t begin = (uint32_t)(model_random(&random) % PAGES), end = begin + 1 + (uint32_t)(model_random(&random) % 20);
        end = end < PAGES ? end : PAGES;
        uint64_t at, until;
        switch (model_random(&random) % 3) {
        case 0:
            if (marked(pages, begin, end))
                continue;
            assert_true(wbuf_stale_add(stale, begin, end));
            memset(pages + begin, true, end - begin);
            break;
        case 1:
            assert_int_equal(wbuf_stale_cut(stale, begin, end), marked(pages, begin, end) > 0);
            memset(pages + begin, false, end - begin);
            break;
        default:
            if (!wbuf_stale_take(stale, PIECE, &at, &until)) {
                assert_int_equal(marked(pages, 0, PAGES), 0);
                break;
            }
            assert_true(at < until && until - at <= PIECE && at / PIECE == (until - 1) / PIECE);
            assert_int_equal(marked(pages, (uint32_t)at, (uint32_t)until), until - at);
            memset(pages + at, false, until - at);
        }
        check(stale, pages);
    }
    free(stale);
}

static void test_too_many(void **state)
{
    (void)state;
    struct wbuf_stale *stale = calloc(1, sizeof *stale);
    assert_non_null(stale);
    uint64_t n = 0;
    while (wbuf_stale_add(stale, 10 * n, 10 * n + 5))
        n++;
    assert_int_equal(n, WBUF_STALE_MAX / 2);
    assert_int_equal(stale->bytes, 5 * n);
    assert_true(wbuf_stale_add(stale, 5, 10)); /* it joins two */
    assert_true(wbuf_stale_add(stale, 10 * n, 10 * n + 1));
    for (uint64_t i = 1; i < n; i++) /* each in two */
        assert_true(wbuf_stale_cut(stale, 10 * i + 2, 10 * i + 3));
    assert_true(stale->count <= WBUF_STALE_MAX);
    free(stale);
}

static uint64_t blocks(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* A dropped slot's range is free at once, its pages go in pieces; who gets the range meanwhile gets what is left of them. */
static void test_pages(void **state)
{
    (void)state;
    char note[WBUF_NOTE_MAX];
    struct err err;
    struct wbuf *wbuf;
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 0);
    words.experts = 64;
    words.slice.hidden = words.shared.hidden = 2048;
    struct geometry g;
    assert_int_equal(geometry_init(&words, &g, NULL), 0);
    uint64_t size = WBUF_DATA_OFFSET + 3 * size_round_up(g.bytes + 8 * 65, WBUF_SLOT_ALIGN);
    assert_true(g.bytes > 2 * WBUF_RECLAIM_BYTES);
    assert_int_equal(wbuf_open(-1, size, WBUF_HUGE_NO, &wbuf, note, &err), 0);
    int fd = wbuf_fd(wbuf);
    uint32_t slots[3];
    for (uint32_t i = 0; i < 3; i++) {
        words.layer = i;
        assert_int_equal(wbuf_alloc(wbuf, &words, &slots[i], &err), 0);
        memset(wbuf_data(wbuf, slots[i]), 0x40 + (int)i, g.bytes);
        wbuf_finish(wbuf, slots[i]);
    }
    uint64_t full = blocks(fd);
    uint64_t freed = wbuf_drop(wbuf, slots[1]);
    assert_int_equal(blocks(fd), full); /* nothing took time */
    assert_int_equal(wbuf_stale(wbuf), freed);
    wbuf_reclaim(wbuf);
    assert_true(blocks(fd) < full && blocks(fd) >= full - WBUF_RECLAIM_BYTES);
    /* Taken again half way, as a load does on a thread of its own. */
    words.layer = 7;
    uint32_t again;
    assert_int_equal(wbuf_reserve(wbuf, &words, &again, &err), 0);
    assert_int_equal(wbuf_offset(wbuf, again), wbuf_offset(wbuf, slots[0]) + freed);
    assert_int_equal(wbuf_stale(wbuf), 0);
    struct wbuf_pages pages = wbuf_pages(wbuf, again);
    assert_false(pages.zero);
    assert_int_equal(wbuf_take_pages(&pages, 0, pages.bytes, &err), 0);
    assert_int_equal(blocks(fd), full);
    assert_int_equal(wbuf_data(wbuf, again)[0], 0x41); /* as they are: whoever fills it clears what it leaves out */
    for (uint32_t i = 0; i < 3; i += 2) {
        assert_int_equal(wbuf_data(wbuf, slots[i])[0], 0x40 + (int)i);
        assert_int_equal(wbuf_data(wbuf, slots[i])[g.bytes - 1], 0x40 + (int)i);
    }
    /* A slot that never had its pages taken leaves the old ones to be given back. */
    wbuf_drop(wbuf, again);
    assert_int_equal(wbuf_reserve(wbuf, &words, &again, &err), 0);
    wbuf_drop(wbuf, again);
    while (wbuf_stale(wbuf))
        wbuf_reclaim(wbuf);
    assert_int_equal(blocks(fd), full - freed);
    assert_int_equal(wbuf_reserve(wbuf, &words, &again, &err), 0);
    assert_true(wbuf_pages(wbuf, again).zero);
    /* A buffer that keeps its pages has none to give back. */
    wbuf_keep_pages(wbuf);
    wbuf_drop(wbuf, slots[2]);
    assert_int_equal(wbuf_stale(wbuf), 0);
    assert_int_equal(blocks(fd), full - freed);
    words.layer = 8;
    assert_int_equal(wbuf_reserve(wbuf, &words, &again, &err), 0);
    assert_false(wbuf_pages(wbuf, again).zero);
    wbuf_free(wbuf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranges), cmocka_unit_test(test_too_many), cmocka_unit_test(test_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
