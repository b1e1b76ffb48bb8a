/* The weight buffer: format, attach, hostile headers, allocation and reuse, finish flags, pins. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/duck/verify.h"
#include "daemon/duck/wbuf_format.h"
#include "proto/base/checksum.h"
#include "proto/base/size.h"
#include "tests/unit/duck/model.h"

#define SIZE (UINT64_C(4) << 20)

static int memfd(uint64_t size)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    return fd;
}

static struct wbuf *open_copy(int fd, char *note)
{
    struct wbuf *wbuf;
    struct err err;
    int copy = dup(fd);
    if (wbuf_open(copy, SIZE, WBUF_HUGE_AUTO, &wbuf, note, &err) < 0)
        fail_msg("%s", err.message);
    return wbuf;
}

static uint64_t blocks(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static void reclaim(struct wbuf *wbuf)
{
    for (uint64_t before; (before = wbuf_stale(wbuf)); assert_true(wbuf_stale(wbuf) < before))
        wbuf_reclaim(wbuf);
}

static uint32_t add(struct wbuf *wbuf, uint32_t layer, bool finish, uint8_t fill)
{
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, layer);
    struct err err;
    uint32_t slot;
    if (wbuf_alloc(wbuf, &words, &slot, &err) < 0)
        fail_msg("%s", err.message);
    memset(wbuf_data(wbuf, slot), fill, wbuf_geometry(wbuf, slot)->bytes);
    if (finish)
        wbuf_finish(wbuf, slot);
    return slot;
}

static void test_survives(void **state)
{
    (void)state;
    char note[WBUF_NOTE_MAX], boot[WBUF_BOOT_ID_SIZE];
    int fd = memfd(SIZE);
    struct wbuf *wbuf = open_copy(fd, note);
    assert_string_equal(note, "new");
    strcpy(boot, wbuf_boot_id(wbuf));
    assert_int_equal(wbuf_capacity(wbuf), SIZE - WBUF_DATA_OFFSET);
    add(wbuf, 1, true, 0x11);
    add(wbuf, 2, false, 0x22); /* never finished */
    uint32_t last = add(wbuf, 3, true, 0x33);
    struct msg_slot before = wbuf_describe(wbuf, last);
    uint64_t with = blocks(fd);
    wbuf_free(wbuf);

    wbuf = open_copy(fd, note);
    assert_string_equal(note, "attached: 2 finished slots, 1 unfinished ones dropped");
    assert_string_equal(boot, wbuf_boot_id(wbuf));
    assert_true(blocks(fd) < with); /* what the unfinished one held was given back */
    uint8_t key[DIGEST_SIZE] = {0xab, 0xcd};
    assert_int_equal(wbuf_find(wbuf, key, 2), WBUF_NONE);
    assert_int_equal(wbuf_find_any(wbuf, key, 2), WBUF_NONE);
    uint32_t found = wbuf_find(wbuf, key, 3);
    assert_int_equal(found, last);
    struct msg_slot after = wbuf_describe(wbuf, found);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(after.checksum, checksum_of(wbuf_data(wbuf, found), after.bytes));
    assert_int_equal(wbuf_data(wbuf, found)[after.bytes - 1], 0x33);
    struct msg_prepare_begin words = wbuf_words(wbuf, found), want = model_words(MSG_SLOT_MOE, 3);
    assert_memory_equal(&words.slice, &want.slice, sizeof words.slice);
    assert_memory_equal(&words.shared, &want.shared, sizeof words.shared);
    wbuf_free(wbuf);
    close(fd);
}

static void test_reuse_and_capacity(void **state)
{
    (void)state;
    char note[WBUF_NOTE_MAX];
    struct geometry g;
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 0);
    assert_int_equal(geometry_init(&words, &g, NULL), 0);
    uint64_t pages = size_round_up(g.bytes, WBUF_SLOT_ALIGN);
    int fd = memfd(WBUF_DATA_OFFSET + 3 * pages + 4096);
    struct wbuf *wbuf = open_copy(fd, note);
    uint64_t empty = blocks(fd);
    uint32_t a = add(wbuf, 0, true, 1), b = add(wbuf, 1, true, 2), c = add(wbuf, 2, true, 3);
    assert_int_equal(wbuf_used(wbuf), 3 * pages);
    struct err err;
    uint32_t slot;
    words.layer = 3;
    assert_int_equal(wbuf_alloc(wbuf, &words, &slot, &err), -ENOMEM);
    assert_int_equal(err.name, ERR_NO_MEMORY);
    char needs[64];
    snprintf(needs, sizeof needs, "needs %" PRIu64 " bytes", g.bytes);
    assert_non_null(strstr(err.message, needs));
    assert_non_null(strstr(err.message, "has 4096"));
    assert_int_equal(wbuf_used(wbuf), 3 * pages);

    uint64_t offset = wbuf_offset(wbuf, b);
    assert_int_equal(wbuf_drop(wbuf, b), pages);
    assert_int_equal(wbuf_stale(wbuf), pages);
    reclaim(wbuf);
    assert_int_equal(blocks(fd), empty + 2 * pages); /* really given back */
    uint32_t d = add(wbuf, 3, true, 4);
    assert_int_equal(wbuf_offset(wbuf, d), offset);
    assert_int_equal(wbuf_data(wbuf, a)[g.bytes - 1], 1);
    assert_int_equal(wbuf_data(wbuf, c)[0], 3);

    /* A pinned slot's bytes stay until the pin goes. */
    wbuf_pin(wbuf, a);
    const uint8_t *data = wbuf_data(wbuf, a);
    wbuf_drop(wbuf, a);
    assert_false(wbuf_taken(wbuf, a));
    assert_int_equal(wbuf_doomed(wbuf), 1);
    assert_int_equal(data[0], 1);
    words.layer = 9;
    assert_int_equal(wbuf_alloc(wbuf, &words, &slot, &err), -ENOMEM);
    assert_non_null(strstr(err.message, "wait for a running step"));
    wbuf_unpin(wbuf, a);
    assert_int_equal(wbuf_doomed(wbuf), 0);
    assert_int_equal(wbuf_alloc(wbuf, &words, &slot, &err), 0);
    assert_int_equal(wbuf_data(wbuf, slot)[0], 0);
    wbuf_free(wbuf);
    close(fd);
}

/* A slot under another key is the same slot; its parts are told apart; a rekey that was cut leaves no slot. */
static void test_rekey_and_parts(void **state)
{
    (void)state;
    char note[WBUF_NOTE_MAX];
    int fd = memfd(SIZE);
    struct wbuf *wbuf = open_copy(fd, note);
    uint32_t slot = add(wbuf, 1, false, 7);
    const uint8_t sources[DIGEST_SIZE] = {1, 2, 3}, key[DIGEST_SIZE] = {9, 9}, old[DIGEST_SIZE] = {0};
    wbuf_set_sources(wbuf, slot, sources);
    wbuf_finish(wbuf, slot);
    struct msg_slot before = wbuf_describe(wbuf, slot);
    wbuf_rekey(wbuf, slot, key);
    assert_int_equal(wbuf_find(wbuf, before.model_key, 1), WBUF_NONE);
    wbuf_free(wbuf);

    wbuf = open_copy(fd, note);
    assert_int_equal(wbuf_find(wbuf, key, 1), slot);
    struct msg_slot after = wbuf_describe(wbuf, slot);
    assert_int_equal(after.checksum, before.checksum);
    assert_memory_equal(after.sources, sources, DIGEST_SIZE);
    assert_memory_not_equal(after.model_key, old, DIGEST_SIZE);

    struct wbuf_sums sums = wbuf_sums(wbuf, slot);
    struct msg_verify words = {0};
    struct msg_verified found;
    struct checksum *sum = checksum_new();
    _Atomic bool stop = false;
    verify_sums(sum, &sums, &words, &stop, &found);
    assert_int_equal(found.verdict, MSG_VERDICT_GOOD);
    words = (struct msg_verify){.expected_given = true, .expected = before.checksum + 1};
    verify_sums(sum, &sums, &words, &stop, &found);
    assert_int_equal(found.verdict, MSG_VERDICT_DIFFERS);
    for (uint32_t part = 0; part < sums.parts; part++) {
        bool shared = sums.has_shared && part + 1 == sums.parts;
        uint8_t *at = wbuf_data(wbuf, slot) + (shared ? sums.shared_offset + sums.shared_bytes - 1 : part * sums.part_bytes);
        *at ^= 0x10;
        verify_sums(sum, &sums, &words, &stop, &found);
        assert_int_equal(found.verdict, MSG_VERDICT_BAD);
        assert_int_equal(found.expert, shared ? WBUF_PART_SHARED : (int32_t)part);
        assert_int_equal(found.parts, 1);
        *at ^= 0x10;
    }
    checksum_free(sum);
    wbuf_free(wbuf);

    /* Killed between the first store of a rekey and its last. */
    struct wbuf_header *header = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(header, MAP_FAILED);
    header->slots[slot].state = MSG_SLOT_FILLING;
    munmap(header, SIZE);
    wbuf = open_copy(fd, note);
    assert_int_equal(wbuf_find_any(wbuf, key, 1), WBUF_NONE);
    assert_non_null(strstr(note, "1 unfinished ones dropped"));
    wbuf_free(wbuf);
    close(fd);
}

static void test_random_allocation(void **state)
{
    (void)state;
    uint64_t random = (uint64_t)time(NULL);
    print_message("seed %" PRIu64 "\n", random);
    char note[WBUF_NOTE_MAX];
    int fd = memfd(SIZE);
    struct wbuf *wbuf = open_copy(fd, note);
    uint32_t slots[64];
    size_t count = 0;
    for (int round = 0; round < 3000; round++) {
        struct msg_prepare_begin words = model_words(model_random(&random) % 2 ? MSG_SLOT_MOE : MSG_SLOT_DENSE, (uint32_t)round);
        words.slice.hidden = words.shared.hidden = 16 + 16 * (uint32_t)(model_random(&random) % 20);
        if (count < 64 && model_random(&random) % 2) {
            uint32_t slot;
            struct err err;
            if (wbuf_alloc(wbuf, &words, &slot, &err) == 0) {
                /* Every slot carries its layer at both ends; an overlap would show. */
                uint8_t *data = wbuf_data(wbuf, slot);
                memcpy(data, &words.layer, 4);
                memcpy(data + wbuf_geometry(wbuf, slot)->bytes - 4, &words.layer, 4);
                if (model_random(&random) % 4)
                    wbuf_finish(wbuf, slot);
                slots[count++] = slot;
            } else {
                assert_int_equal(err.code, -ENOMEM);
            }
        } else if (count > 0) {
            size_t at = model_random(&random) % count;
            wbuf_drop(wbuf, slots[at]);
            slots[at] = slots[--count];
        }
        uint64_t used = 0;
        for (size_t i = 0; i < count; i++) {
            struct msg_slot slot = wbuf_describe(wbuf, slots[i]);
            used += size_round_up(slot.bytes + wbuf_sums(wbuf, slots[i]).parts * sizeof(uint64_t), WBUF_SLOT_ALIGN);
            assert_memory_equal(wbuf_data(wbuf, slots[i]), &slot.layer, 4);
            assert_memory_equal(wbuf_data(wbuf, slots[i]) + slot.bytes - 4, &slot.layer, 4);
        }
        assert_int_equal(used, wbuf_used(wbuf));
    }
    for (size_t i = 0; i < count; i++)
        wbuf_drop(wbuf, slots[i]);
    reclaim(wbuf);
    assert_int_equal(blocks(fd), WBUF_DATA_OFFSET);
    wbuf_free(wbuf);
    close(fd);
}

static struct wbuf_header *map_header(int fd)
{
    void *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    return map;
}

/* Spoils a good buffer and says how the sentence must begin. */
static void spoiled(void (*spoil)(struct wbuf_header *), const char *sentence)
{
    char note[WBUF_NOTE_MAX], boot[WBUF_BOOT_ID_SIZE];
    int fd = memfd(SIZE);
    struct wbuf *wbuf = open_copy(fd, note);
    strcpy(boot, wbuf_boot_id(wbuf));
    add(wbuf, 1, true, 1);
    add(wbuf, 2, true, 2);
    wbuf_free(wbuf);
    struct wbuf_header *header = map_header(fd);
    spoil(header);
    munmap(header, SIZE);
    wbuf = open_copy(fd, note);
    if (!strstr(note, sentence) || strncmp(note, "formatted anew: ", 16) != 0)
        fail_msg("\"%s\" does not hold \"%s\"", note, sentence);
    assert_string_not_equal(boot, wbuf_boot_id(wbuf));
    assert_int_equal(wbuf_used(wbuf), 0);
    assert_int_equal(blocks(fd), WBUF_DATA_OFFSET);
    add(wbuf, 5, true, 5);
    wbuf_free(wbuf);
    close(fd);
}

/* The same for damage to slots: only those `left` of the two are still there. */
static void spoiled_slots(void (*spoil)(struct wbuf_header *), uint32_t left, const char *sentence)
{
    char note[WBUF_NOTE_MAX], boot[WBUF_BOOT_ID_SIZE];
    int fd = memfd(SIZE);
    struct wbuf *wbuf = open_copy(fd, note);
    strcpy(boot, wbuf_boot_id(wbuf));
    add(wbuf, 1, true, 1);
    add(wbuf, 2, true, 2);
    wbuf_free(wbuf);
    struct wbuf_header *header = map_header(fd);
    spoil(header);
    munmap(header, SIZE);
    wbuf = open_copy(fd, note);
    if (!strstr(note, sentence) || strncmp(note, "attached: ", 10) != 0)
        fail_msg("\"%s\" does not hold \"%s\"", note, sentence);
    assert_string_equal(boot, wbuf_boot_id(wbuf));
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(wbuf_taken(wbuf, i), left >> i & 1);
    assert_int_equal(blocks(fd), WBUF_DATA_OFFSET + wbuf_used(wbuf));
    add(wbuf, 5, true, 5);
    wbuf_free(wbuf);
    close(fd);
}

/* Somebody writes over a slot's description while the buffer is in use: the slot is not found any more, nobody is led out of the buffer,
 * and its memory goes to the next that needs some. */
static void spoiled_live(void (*spoil)(struct wbuf_header *), uint32_t spoiled_slot)
{
    char note[WBUF_NOTE_MAX];
    int fd = memfd(SIZE);
    struct wbuf *wbuf = open_copy(fd, note);
    uint32_t slots[2] = {add(wbuf, 1, true, 1), add(wbuf, 2, true, 2)};
    const struct msg_slot before[2] = {wbuf_describe(wbuf, slots[0]), wbuf_describe(wbuf, slots[1])};
    uint64_t used = wbuf_used(wbuf), offset = wbuf_offset(wbuf, slots[spoiled_slot]);
    struct wbuf_header *header = map_header(fd);
    spoil(header);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(wbuf_find(wbuf, before[i].model_key, before[i].layer), i == spoiled_slot ? WBUF_NONE : slots[i]);
    assert_false(wbuf_sound(wbuf, slots[spoiled_slot]));
    assert_int_equal(wbuf_offset(wbuf, slots[spoiled_slot]), offset);
    assert_int_equal(wbuf_used(wbuf), used);
    uint32_t again = add(wbuf, before[spoiled_slot].layer, true, 3);
    assert_int_equal(wbuf_offset(wbuf, again), offset);
    assert_int_equal(wbuf_used(wbuf), used);
    wbuf_drop(wbuf, slots[!spoiled_slot]);
    wbuf_drop(wbuf, again);
    reclaim(wbuf);
    assert_int_equal(wbuf_used(wbuf), 0);
    assert_int_equal(blocks(fd), WBUF_DATA_OFFSET);
    munmap(header, SIZE);
    wbuf_free(wbuf);
    close(fd);
}

static void seal(struct wbuf_slot *slot)
{
    slot->finish = wbuf_format_finish(slot);
}
static void spoil_magic(struct wbuf_header *h)
{
    h->magic ^= 1;
}
static void spoil_version(struct wbuf_header *h)
{
    h->version++;
}
static void spoil_layout(struct wbuf_header *h)
{
    h->layout_version++;
}
static void spoil_size(struct wbuf_header *h)
{
    h->size /= 2;
}
static void spoil_boot(struct wbuf_header *h)
{
    memset(h->boot_id, 'x', sizeof h->boot_id);
}
static void spoil_finish(struct wbuf_header *h)
{
    h->slots[1].finish ^= 1;
}
static void spoil_layer(struct wbuf_header *h)
{
    h->slots[1].layer ^= 1;
}
static void spoil_state(struct wbuf_header *h)
{
    h->slots[77].state = 9;
}
static void spoil_offset(struct wbuf_header *h)
{
    h->slots[0].offset = UINT64_MAX - 4095;
    seal(&h->slots[0]);
}
static void spoil_offset_header(struct wbuf_header *h)
{
    h->slots[0].offset = 4096;
    seal(&h->slots[0]);
}
static void spoil_bytes(struct wbuf_header *h)
{
    h->slots[0].bytes = UINT64_MAX;
    seal(&h->slots[0]);
}
static void spoil_overlap(struct wbuf_header *h)
{
    h->slots[1].offset = h->slots[0].offset + 4096;
    seal(&h->slots[1]);
}
static void spoil_geometry(struct wbuf_header *h)
{
    h->slots[1].slice.hidden = UINT32_MAX;
    seal(&h->slots[1]);
}
static void spoil_experts(struct wbuf_header *h)
{
    h->slots[1].experts = UINT16_MAX;
    seal(&h->slots[1]);
}

static void test_corrupt(void **state)
{
    (void)state;
    spoiled(spoil_magic, "no weight buffer");
    spoiled(spoil_version, "header version 3, this duck has 2");
    spoiled(spoil_layout, "layout version 2, this duck has 1");
    spoiled(spoil_size, "the file has 4194304");
    spoiled(spoil_boot, "boot id");
    spoiled_slots(spoil_finish, 1, "slot 1: its finish flag");
    spoiled_slots(spoil_layer, 1, "slot 1: its finish flag");
    spoiled_slots(spoil_state, 3, "slot 77: state 9");
    spoiled_slots(spoil_offset, 2, "slot 0:");
    spoiled_slots(spoil_offset_header, 2, "slot 0:");
    spoiled_slots(spoil_bytes, 2, "slot 0:");
    spoiled_slots(spoil_overlap, 0, "slots 0 and 1 overlap");
    spoiled_slots(spoil_geometry, 1, "slot 1: hidden size 4294967295");
    spoiled_slots(spoil_experts, 1, "slot 1: 65535 experts");
}

static void spoil_gone(struct wbuf_header *h)
{
    h->slots[0].state = 0;
}

static void test_corrupt_live(void **state)
{
    (void)state;
    spoiled_live(spoil_finish, 1);
    spoiled_live(spoil_layer, 1);
    spoiled_live(spoil_offset, 0);
    spoiled_live(spoil_offset_header, 0);
    spoiled_live(spoil_bytes, 0);
    spoiled_live(spoil_overlap, 1);
    spoiled_live(spoil_experts, 1);
    spoiled_live(spoil_gone, 0);
}

/* Random damage never crashes; what is attached afterwards is whole. */
static void test_fuzz_header(void **state)
{
    (void)state;
    uint64_t random = (uint64_t)time(NULL) ^ 0x1234;
    print_message("seed %" PRIu64 "\n", random);
    char note[WBUF_NOTE_MAX];
    int fd = memfd(SIZE), attached = 0, formatted = 0;
    for (int round = 0; round < 400; round++) {
        struct wbuf *wbuf = open_copy(fd, note);
        while (wbuf_used(wbuf) < SIZE / 4)
            add(wbuf, (uint32_t)model_random(&random), model_random(&random) % 3 != 0, (uint8_t)round);
        wbuf_free(wbuf);
        struct wbuf_header *header = map_header(fd);
        size_t near = offsetof(struct wbuf_header, slots) + 8 * sizeof(struct wbuf_slot);
        for (uint64_t n = model_random(&random) % 3; n > 0; n--)
            ((uint8_t *)header)[model_random(&random) % near] ^= (uint8_t)(1u << model_random(&random) % 8);
        if (round % 5 == 0)
            for (int i = 0; i < 8; i++)
                if (header->slots[i].state)
                    seal(&header->slots[i]); /* damage that the flag does not catch */
        if (round % 50 == 7)
            header->version ^= 1u << model_random(&random) % 32;
        munmap(header, SIZE);
        wbuf = open_copy(fd, note);
        attached += strncmp(note, "attached", 8) == 0;
        formatted += strncmp(note, "formatted", 9) == 0;
        assert_true(wbuf_used(wbuf) <= wbuf_capacity(wbuf));
        for (uint32_t i = 0; i < WBUF_SLOTS_MAX; i++) {
            if (!wbuf_taken(wbuf, i))
                continue;
            struct msg_slot slot = wbuf_describe(wbuf, i);
            assert_int_equal(slot.state, MSG_SLOT_FINISHED);
            volatile uint64_t sum = checksum_of(wbuf_data(wbuf, i), slot.bytes);
            (void)sum;
        }
        wbuf_free(wbuf);
    }
    assert_true(attached > 0 && formatted > 0);
    close(fd);
}

static void test_refusals(void **state)
{
    (void)state;
    struct wbuf *wbuf;
    struct err err;
    char note[WBUF_NOTE_MAX];
    int fd = memfd(4096);
    assert_int_equal(wbuf_open(fd, 0, WBUF_HUGE_AUTO, &wbuf, note, &err), -EINVAL);
    assert_non_null(strstr(err.message, "at least"));
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC); /* still the caller's */
    close(fd);
    assert_int_equal(wbuf_open(-1, 4096, WBUF_HUGE_AUTO, &wbuf, note, &err), -EINVAL);
    assert_true(wbuf_open(-1, UINT64_MAX, WBUF_HUGE_AUTO, &wbuf, note, &err) < 0);
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(wbuf_open(pipes[0], SIZE, WBUF_HUGE_AUTO, &wbuf, note, &err), -EINVAL);
    close(pipes[0]);
    close(pipes[1]);
    assert_int_equal(wbuf_open(-1, SIZE, WBUF_HUGE_NO, &wbuf, note, &err), 0);
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 0);
    words.experts = WIRE_EXPERTS_MAX;
    words.slice.neurons = LAYOUT_NEURONS_MAX / 2;
    words.slice.hidden = words.shared.hidden = LAYOUT_HIDDEN_MAX;
    uint32_t slot;
    assert_int_equal(wbuf_alloc(wbuf, &words, &slot, &err), -ENOMEM);
    words = model_words(MSG_SLOT_DENSE, 0);
    words.layout_version = 9;
    assert_int_equal(wbuf_alloc(wbuf, &words, &slot, &err), -EINVAL);
    assert_non_null(strstr(err.message, "layout version 9, this duck has layout 1"));
    words = model_words(MSG_SLOT_MOE, 0);
    words.shared.hidden = 96;
    assert_int_equal(wbuf_alloc(wbuf, &words, &slot, &err), -EINVAL);
    assert_int_equal(wbuf_used(wbuf), 0);
    wbuf_free(wbuf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_survives),        cmocka_unit_test(test_reuse_and_capacity),
        cmocka_unit_test(test_rekey_and_parts), cmocka_unit_test(test_random_allocation),
        cmocka_unit_test(test_corrupt),         cmocka_unit_test(test_corrupt_live),
        cmocka_unit_test(test_fuzz_header),     cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
