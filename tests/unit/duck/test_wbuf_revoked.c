/* Revoked keys in the header of a weight buffer, and its free ranges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/duck/wbuf_format.h"
#include "proto/base/size.h"
#include "proto/wire/msg_buffer.h"
#include "tests/unit/duck/model.h"

#define SIZE (UINT64_C(4) << 20)

static struct wbuf *open_at(int fd, char *note)
{
    struct wbuf *wbuf;
    struct err err;
    if (wbuf_open(fd < 0 ? -1 : dup(fd), SIZE, WBUF_HUGE_AUTO, &wbuf, note, &err) < 0)
        fail_msg("%s", err.message);
    return wbuf;
}

static uint32_t add(struct wbuf *wbuf, uint32_t layer, uint64_t stamp)
{
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, layer);
    struct err err;
    uint32_t slot;
    wbuf_set_stamp(wbuf, stamp);
    if (wbuf_alloc(wbuf, &words, &slot, &err) < 0)
        fail_msg("%s", err.message);
    memset(wbuf_data(wbuf, slot), 1, wbuf_geometry(wbuf, slot)->bytes);
    wbuf_finish(wbuf, slot);
    return slot;
}

static struct msg_revoked of_model(uint64_t stamp, const char *boot_id)
{
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 0);
    struct msg_revoked entry = {.stamp = stamp};
    memcpy(entry.model_key, words.model_key, DIGEST_SIZE);
    strcpy(entry.boot_id, boot_id);
    return entry;
}

static void test_only_older_slots_die(void **state)
{
    (void)state;
    char note[WBUF_NOTE_MAX];
    struct wbuf *wbuf = open_at(-1, note);
    uint32_t old = add(wbuf, 0, 100), same = add(wbuf, 1, 200), later = add(wbuf, 2, 300);
    struct msg_revoked other = of_model(1000, "");
    other.model_key[5] ^= 1;
    wbuf_revoke(wbuf, &other);
    struct msg_revoked elsewhere = of_model(1000, "11111111-2222-4333-8444-555555555555");
    wbuf_revoke(wbuf, &elsewhere);
    assert_int_equal(wbuf_bury(wbuf), 0);
    struct msg_revoked entry = of_model(200, wbuf_boot_id(wbuf));
    wbuf_revoke(wbuf, &entry);
    assert_int_equal(wbuf_bury(wbuf), 1);
    assert_false(wbuf_taken(wbuf, old));
    assert_true(wbuf_taken(wbuf, same) && wbuf_taken(wbuf, later));
    /* put under a key later than it was revoked: alive */
    struct msg_prepare_begin words = model_words(MSG_SLOT_MOE, 0);
    wbuf_set_stamp(wbuf, 250); /* never goes back */
    wbuf_rekey(wbuf, same, words.model_key);
    entry = of_model(290, "");
    wbuf_revoke(wbuf, &entry);
    assert_int_equal(wbuf_bury(wbuf), 0);
    struct msg_revoked all = {.stamp = 301, .all = true};
    wbuf_revoke(wbuf, &all);
    assert_int_equal(wbuf_bury(wbuf), 2);
    assert_int_equal(wbuf_used(wbuf), 0);
    wbuf_free(wbuf);
}

static void test_survives_and_is_applied_at_open(void **state)
{
    (void)state;
    char note[WBUF_NOTE_MAX];
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    struct wbuf *wbuf = open_at(fd, note);
    add(wbuf, 0, 100);
    add(wbuf, 1, 300);
    struct msg_revoked entry = of_model(200, "");
    wbuf_revoke(wbuf, &entry); /* and killed before the drop */
    wbuf_free(wbuf);
    wbuf = open_at(fd, note);
    assert_string_equal(note, "attached: 2 finished slots, 0 unfinished ones dropped, 1 of revoked keys dropped");
    assert_int_equal(wbuf_stamp(wbuf), 300);
    struct msg_revoked list[MSG_REVOKED_MAX];
    assert_int_equal(wbuf_revoked(wbuf, list), 1);
    assert_memory_equal(&list[0], &entry, sizeof entry);
    wbuf_free(wbuf);
    close(fd);
}

static void test_table_is_bounded(void **state)
{
    (void)state;
    char note[WBUF_NOTE_MAX];
    struct wbuf *wbuf = open_at(-1, note);
    for (uint64_t i = 0; i < 3 * MSG_REVOKED_MAX; i++) {
        struct msg_revoked entry = {.stamp = 1000 + i, .model_key = {(uint8_t)i, 1}};
        wbuf_revoke(wbuf, &entry);
        wbuf_revoke(wbuf, &entry); /* told twice is one */
    }
    struct msg_revoked old = {.stamp = 5, .model_key = {9, 9, 9}};
    wbuf_revoke(wbuf, &old);
    struct msg_revoked list[MSG_REVOKED_MAX];
    size_t count = wbuf_revoked(wbuf, list);
    assert_int_equal(count, MSG_REVOKED_MAX);
    for (size_t i = 0; i < count; i++)
        assert_true(list[i].stamp >= 1000 + 2 * MSG_REVOKED_MAX);
    wbuf_free(wbuf);
}

static void test_ranges(void **state)
{
    (void)state;
    char note[WBUF_NOTE_MAX];
    struct wbuf *wbuf = open_at(-1, note);
    static uint64_t ranges[WBUF_SLOTS_MAX + 1];
    assert_int_equal(wbuf_ranges(wbuf, ranges), 1);
    assert_int_equal(ranges[0], wbuf_capacity(wbuf));
    uint32_t a = add(wbuf, 0, 1);
    add(wbuf, 1, 1);
    uint32_t c = add(wbuf, 2, 1);
    add(wbuf, 3, 1);
    uint64_t size = wbuf_used(wbuf) / 4, before = wbuf_changes(wbuf);
    wbuf_drop(wbuf, a);
    wbuf_pin(wbuf, c);
    wbuf_drop(wbuf, c); /* a step reads it still */
    assert_int_equal(wbuf_ranges(wbuf, ranges), 2);
    assert_int_equal(ranges[0], size);
    wbuf_unpin(wbuf, c);
    assert_int_equal(wbuf_ranges(wbuf, ranges), 3);
    assert_int_equal(ranges[0], size);
    assert_int_equal(ranges[1], size);
    assert_int_equal(ranges[0] + ranges[1] + ranges[2], wbuf_capacity(wbuf) - wbuf_used(wbuf));
    assert_int_not_equal(wbuf_changes(wbuf), before);
    wbuf_free(wbuf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_older_slots_die),
        cmocka_unit_test(test_survives_and_is_applied_at_open),
        cmocka_unit_test(test_table_is_bounded),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
