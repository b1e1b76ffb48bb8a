#include "daemon/duck/wbuf_huge.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "proto/base/clock.h"
#include "proto/base/huge.h"
#include "proto/base/size.h"

void wbuf_huge_ask(struct wbuf_huge_state *state, int fd, uint8_t *map, uint64_t size, enum wbuf_huge huge, char *note)
{
    int r = madvise(map, size, huge == WBUF_HUGE_NO ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    state->wanted = huge != WBUF_HUGE_NO && huge_file(fd);
    state->insisted = huge == WBUF_HUGE_YES;
    if (state->insisted && (r < 0 || !state->wanted)) {
        size_t length = strlen(note);
        snprintf(note + length, WBUF_NOTE_MAX - length, "; huge pages were refused: %s", r < 0 ? strerror(errno) : "it is no memfd");
    }
}

int wbuf_huge_refusal(struct wbuf *wbuf, bool *ret_insisted)
{
    struct wbuf_huge_state *state = wbuf_huge(wbuf);
    int why = atomic_load_explicit(&state->why, memory_order_relaxed);
    if (why == state->told)
        return 0;
    state->told = why;
    *ret_insisted = state->insisted;
    return why;
}

const char *wbuf_huge_reason(int why)
{
    return why == WBUF_HUGE_SLOW ? "this machine is slow to give memory in blocks of 2 MiB" : strerror(why);
}

static uint64_t thread_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * CLOCK_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* 0, or why the next blocks are better left out. */
static int ask(const struct wbuf_huge_state *state, uint8_t *block, bool *ret_made)
{
    uint64_t begin = thread_cpu_ns();
    int r = huge_make(block);
    *ret_made = r == 0;
    return r == 0 && !state->insisted && thread_cpu_ns() - begin > WBUF_HUGE_SLOW_NS ? -WBUF_HUGE_SLOW : r;
}

static void make(struct wbuf_huge_state *state, uint8_t *block)
{
    uint32_t left_out = atomic_load_explicit(&state->left_out, memory_order_relaxed);
    bool made = false;
    if (left_out) {
        atomic_store_explicit(&state->left_out, left_out - 1, memory_order_relaxed);
    } else {
        int r = ask(state, block, &made);
        uint32_t wait = atomic_load_explicit(&state->wait, memory_order_relaxed);
        wait = r == 0 ? wait / 2 : wait < WBUF_HUGE_WAIT_MAX ? 4 * wait + 1 : wait;
        atomic_store_explicit(&state->wait, wait, memory_order_relaxed);
        atomic_store_explicit(&state->left_out, wait, memory_order_relaxed);
        if (r < 0 && r != -EAGAIN && r != -EBUSY) /* those pass */
            atomic_store_explicit(&state->why, -r, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(made ? &state->made : &state->refused, 1, memory_order_relaxed);
}

void wbuf_huge_pages(const struct wbuf_pages *pages, uint64_t begin, uint64_t bytes)
{
    if (!pages->huge || !pages->huge->wanted)
        return;
    uint64_t first = pages->offset + begin, end = first + bytes;
    /* With the slot's first byte comes the block that it shares with the slots before. */
    uint64_t block = begin == 0 ? first / HUGE_PAGE * HUGE_PAGE : size_round_up(first, HUGE_PAGE);
    for (; block < end; block += HUGE_PAGE)
        if (block >= pages->used_begin && block + HUGE_PAGE <= pages->used_end)
            make(pages->huge, pages->map - pages->offset + block);
}
