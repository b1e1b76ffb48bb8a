/* Huge pages of the weight buffer: the blocks that slots cover become huge as the slots are written, the others take no memory; bytes stay
 * as they were written, dropped ones go back whole. */
#include <errno.h>
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
#include "daemon/duck/wbuf_huge.h"
#include "proto/base/huge.h"
#include "proto/base/size.h"
#include "tests/unit/duck/model.h"

enum { SLOTS = 5, SPARE = 3 << 20 };

/* What the kernel says to the plainest case. */
static int probe(void)
{
    _cleanup_(closep) int fd = memfd_create("probe", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 2 * HUGE_PAGE), 0);
    uint8_t *map = huge_map(fd, 0, 2 * HUGE_PAGE, PROT_READ | PROT_WRITE);
    assert_ptr_not_equal(map, MAP_FAILED);
    assert_int_equal((uintptr_t)map % HUGE_PAGE, 0);
    map[HUGE_PAGE] = 1;
    int r = huge_make(map + HUGE_PAGE);
    munmap(map, 2 * HUGE_PAGE);
    return r;
}

static void need_huge_pages(void)
{
    int r = probe();
    if (r < 0) {
        print_message("skipped: this kernel gives shared memory no huge pages: %s\n", strerror(-r));
        skip();
    }
}

static uint64_t blocks(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* Bytes of [at, at + bytes) that are mapped by huge pages. */
static uint64_t mapped_huge(const void *at, uint64_t bytes)
{
    _cleanup_(fclosep) FILE *file = fopen("/proc/self/smaps", "re");
    uintptr_t from, to, begin = (uintptr_t)at;
    unsigned long long kib;
    bool inside = false;
    uint64_t sum = 0;
    char line[512];
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
            inside = from < begin + bytes && to > begin;
        else if (inside && sscanf(line, "ShmemPmdMapped: %llu kB", &kib) == 1)
            sum += (uint64_t)kib << 10;
    return sum;
}

struct fixture {
    struct wbuf *wbuf;
    struct msg_prepare_begin words;
    uint32_t slots[SLOTS];
    uint8_t *bytes; /* of every slot, random */
    uint64_t slot_bytes, span;
};

static void setup(struct fixture *f, enum wbuf_huge huge)
{
    static uint64_t seed;
    char note[WBUF_NOTE_MAX];
    struct err err;
    struct geometry g;
    seed = seed ? seed : (uint64_t)time(NULL);
    print_message("seed %" PRIu64 "\n", seed);
    f->words = model_words(MSG_SLOT_MOE, 0);
    f->words.experts = 40;
    f->words.slice.hidden = f->words.shared.hidden = 2048;
    assert_int_equal(geometry_init(&f->words, &g, NULL), 0);
    f->slot_bytes = g.bytes;
    f->span = size_round_up(g.bytes + 8 * 41, WBUF_SLOT_ALIGN);
    assert_true(f->span > 2 * HUGE_PAGE && f->span % HUGE_PAGE);
    assert_int_equal(wbuf_open(-1, WBUF_DATA_OFFSET + SLOTS * f->span + SPARE, huge, &f->wbuf, note, &err), 0);
    f->bytes = malloc(SLOTS * g.bytes);
    for (uint64_t i = 0; i < SLOTS * g.bytes / 8; i++)
        ((uint64_t *)(void *)f->bytes)[i] = model_random(&seed);
}

static void teardown(struct fixture *f)
{
    wbuf_free(f->wbuf);
    free(f->bytes);
}

static struct wbuf_pages reserve(struct fixture *f, uint32_t i)
{
    struct err err;
    f->words.layer = i;
    assert_int_equal(wbuf_reserve(f->wbuf, &f->words, &f->slots[i], &err), 0);
    return wbuf_pages(f->wbuf, f->slots[i]);
}

/* Bytes [begin, end) in pieces as they come, in place or through a draft's write. */
static void put(struct fixture *f, uint32_t i, struct wbuf_pages pages, uint64_t begin, uint64_t end, uint64_t *seed)
{
    struct err err;
    const uint8_t *from = f->bytes + i * f->slot_bytes;
    for (uint64_t at = begin, step; at < end; at += step) {
        step = 64 + model_random(seed) % (1 << 20) / 64 * 64;
        step = step < end - at ? step : end - at;
        if (model_random(seed) % 3) {
            assert_int_equal(wbuf_write_pages(&pages, at, from + at, step, &err), 0);
        } else {
            assert_int_equal(wbuf_take_pages(&pages, at, step, &err), 0);
            memcpy(pages.map + at, from + at, step);
        }
    }
}

static void finish(struct fixture *f, uint32_t i, struct wbuf_pages pages)
{
    struct err err;
    assert_int_equal(wbuf_take_pages(&pages, f->slot_bytes, pages.bytes - f->slot_bytes, &err), 0);
    wbuf_finish(f->wbuf, f->slots[i]);
}

static void fill(struct fixture *f, uint32_t i, uint64_t *seed)
{
    struct wbuf_pages pages = reserve(f, i);
    put(f, i, pages, 0, f->slot_bytes, seed);
    finish(f, i, pages);
}

static void reclaim(struct fixture *f)
{
    while (wbuf_stale(f->wbuf))
        wbuf_reclaim(f->wbuf);
}

static void expect_bytes(struct fixture *f, uint32_t i)
{
    assert_memory_equal(wbuf_data(f->wbuf, f->slots[i]), f->bytes + i * f->slot_bytes, f->slot_bytes);
}

static uint64_t blocks_within(uint64_t begin, uint64_t end)
{
    begin = size_round_up(begin, HUGE_PAGE);
    return end > begin ? (end - begin) / HUGE_PAGE : 0;
}

static void test_slots(void **state)
{
    (void)state;
    need_huge_pages();
    struct fixture f;
    setup(&f, WBUF_HUGE_YES);
    uint64_t seed = 7, end = WBUF_DATA_OFFSET + SLOTS * f.span;
    for (uint32_t i = 0; i < SLOTS; i++)
        fill(&f, i, &seed);
    const struct wbuf_huge_state *huge = wbuf_huge(f.wbuf);
    uint64_t expected = blocks_within(WBUF_DATA_OFFSET, end);
    assert_int_equal(huge->made + huge->refused, expected);
    assert_true(huge->made > 0);
    assert_int_equal(blocks(wbuf_fd(f.wbuf)), end); /* nothing behind the last slot */
    for (uint32_t i = 0; i < SLOTS; i++)
        expect_bytes(&f, i);
    assert_true(mapped_huge(wbuf_data(f.wbuf, f.slots[0]), SLOTS * f.span) >= huge->made * HUGE_PAGE);
    bool insisted = false;
    assert_int_equal(wbuf_huge_refusal(f.wbuf, &insisted), huge->why);
    assert_int_equal(wbuf_huge_refusal(f.wbuf, &insisted), 0); /* told once */
    /* As a process of one step maps them. */
    uint8_t *other = huge_map(wbuf_fd(f.wbuf), wbuf_offset(f.wbuf, f.slots[1]), f.slot_bytes, PROT_READ);
    assert_ptr_not_equal(other, MAP_FAILED);
    assert_memory_equal(other, f.bytes + f.slot_bytes, f.slot_bytes);
    assert_true(huge->refused || mapped_huge(other, f.slot_bytes) > 0);
    munmap(other, f.slot_bytes);
    teardown(&f);
}

/* Blocks that a dropped slot shared with its neighbours are theirs; all else goes back. What takes its place is made huge again. */
static void test_dropped(void **state)
{
    (void)state;
    need_huge_pages();
    struct fixture f;
    setup(&f, WBUF_HUGE_AUTO);
    uint64_t seed = 8;
    for (uint32_t i = 0; i < SLOTS; i++)
        fill(&f, i, &seed);
    const struct wbuf_huge_state *huge = wbuf_huge(f.wbuf);
    uint64_t full = blocks(wbuf_fd(f.wbuf)), made = huge->made + huge->refused;
    assert_int_equal(wbuf_drop(f.wbuf, f.slots[2]), f.span);
    reclaim(&f);
    assert_int_equal(blocks(wbuf_fd(f.wbuf)), full - f.span);
    for (uint32_t i = 0; i < SLOTS; i++)
        if (i != 2)
            expect_bytes(&f, i);
    fill(&f, 2, &seed);
    uint64_t begin = wbuf_offset(f.wbuf, f.slots[2]);
    assert_int_equal(huge->made + huge->refused - made,
                     blocks_within(begin / HUGE_PAGE * HUGE_PAGE, size_round_up(begin + f.span, HUGE_PAGE))); /* shared ones, too */
    assert_int_equal(blocks(wbuf_fd(f.wbuf)), full);
    for (uint32_t i = 0; i < SLOTS; i++)
        expect_bytes(&f, i);
    teardown(&f);
}

/* Both neighbours go while a slot is written: the blocks that it made with them must not keep, nor take, memory of their ranges. */
static void test_neighbours_dropped(void **state)
{
    (void)state;
    need_huge_pages();
    for (int finished = 0; finished < 2; finished++) {
        struct fixture f;
        setup(&f, WBUF_HUGE_YES);
        uint64_t seed = 10 + (uint64_t)finished;
        for (uint32_t i = 0; i < SLOTS; i++)
            fill(&f, i, &seed);
        wbuf_drop(f.wbuf, f.slots[2]);
        reclaim(&f);
        struct wbuf_pages pages = reserve(&f, 2);
        put(&f, 2, pages, 0, f.slot_bytes / 2, &seed);
        wbuf_drop(f.wbuf, f.slots[1]);
        wbuf_drop(f.wbuf, f.slots[3]);
        reclaim(&f);
        put(&f, 2, pages, f.slot_bytes / 2, f.slot_bytes, &seed);
        assert_true(blocks(wbuf_fd(f.wbuf)) > WBUF_DATA_OFFSET + wbuf_used(f.wbuf)); /* else this tries nothing */
        if (finished)
            finish(&f, 2, pages);
        else
            wbuf_drop(f.wbuf, f.slots[2]);
        reclaim(&f);
        assert_in_range(blocks(wbuf_fd(f.wbuf)), WBUF_DATA_OFFSET + wbuf_used(f.wbuf) - WBUF_SLOT_ALIGN,
                        WBUF_DATA_OFFSET + wbuf_used(f.wbuf));
        for (uint32_t i = 0; i < SLOTS; i += 2)
            if (i != 2 || finished)
                expect_bytes(&f, i);
        for (uint32_t i = 0; i < SLOTS; i++)
            wbuf_drop(f.wbuf, f.slots[i]);
        reclaim(&f);
        assert_int_equal(blocks(wbuf_fd(f.wbuf)), WBUF_DATA_OFFSET);
        teardown(&f);
    }
}

static void test_not_wanted(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f, WBUF_HUGE_NO);
    uint64_t seed = 9;
    for (uint32_t i = 0; i < SLOTS; i++)
        fill(&f, i, &seed);
    bool insisted;
    assert_int_equal(wbuf_huge(f.wbuf)->made + wbuf_huge(f.wbuf)->refused, 0);
    assert_int_equal(wbuf_huge_refusal(f.wbuf, &insisted), 0);
    assert_int_equal(mapped_huge(wbuf_data(f.wbuf, f.slots[0]), SLOTS * f.span), 0);
    for (uint32_t i = 0; i < SLOTS; i++)
        expect_bytes(&f, i);
    teardown(&f);
}

/* Asked for less and less, then again. */
static void test_refused(void **state)
{
    (void)state;
    struct wbuf_huge_state huge = {.wanted = true};
    enum { BLOCKS = 2000 };
    /* Of no file. */
    uint8_t *hole = mmap(NULL, (BLOCKS + 1) * HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(hole, MAP_FAILED);
    uint8_t *aligned = (uint8_t *)size_round_up((uintptr_t)hole, HUGE_PAGE);
    const struct wbuf_pages pages = {
        .map = aligned, .bytes = BLOCKS * HUGE_PAGE, .huge = &huge, .used_begin = 0, .used_end = BLOCKS * HUGE_PAGE};
    wbuf_huge_pages(&pages, 0, HUGE_PAGE);
    assert_int_equal(huge.refused, 1);
    assert_int_not_equal(huge.why, 0);
    wbuf_huge_pages(&pages, HUGE_PAGE, (BLOCKS - 1) * HUGE_PAGE);
    assert_int_equal(huge.refused, BLOCKS);
    assert_int_equal(huge.made, 0);
    assert_in_range(huge.wait, WBUF_HUGE_WAIT_MAX / 2, WBUF_HUGE_WAIT_MAX * 2);
    munmap(hole, (BLOCKS + 1) * HUGE_PAGE);
}

/* A file on a disk has none, and who insists is told at once. */
static void test_file(void **state)
{
    (void)state;
    char note[WBUF_NOTE_MAX], path[] = "./fp9-huge-XXXXXX";
    struct err err;
    struct wbuf *wbuf;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    if (huge_file(fd)) {
        close(fd);
        print_message("skipped: this folder is in memory\n");
        skip();
    }
    assert_int_equal(wbuf_open(fd, 8 << 20, WBUF_HUGE_YES, &wbuf, note, &err), 0);
    assert_non_null(strstr(note, "huge pages were refused"));
    assert_false(wbuf_huge(wbuf)->wanted);
    wbuf_free(wbuf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots),      cmocka_unit_test(test_dropped), cmocka_unit_test(test_neighbours_dropped),
        cmocka_unit_test(test_not_wanted), cmocka_unit_test(test_refused), cmocka_unit_test(test_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
