#include "proto/wire/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/base/futex.h"
#include "proto/base/size.h"

#define MAGIC UINT64_C(0x6c6e6e6863397066)
#define LINES 128     /* cache lines are fetched in pairs */
#define WARM_LINES 12 /* of the ring ahead of the writer */
#define STAMP 8       /* bytes before each frame */
#define LINE_REST (CHANNEL_ALIGN - STAMP)

/* Left out only in the mutated build that proves that the stress test would notice. */
#ifdef CHANNEL_WITHOUT_RECHECK
#define RECHECK false
#define RESCUE_NS 0
#else
#define RECHECK true
#define RESCUE_NS CLOCK_NS_PER_S /* somebody else has written over the mode: the other side saw nobody to be woken */
#endif

struct words_of_ring {
    alignas(LINES) _Atomic uint64_t read;
    alignas(LINES) _Atomic uint32_t mode; /* of the reader */
};

struct words {
    alignas(LINES) uint64_t magic;
    uint64_t bytes;
    uint32_t spin_us;
    struct words_of_ring to_duck, to_head;
};
_Static_assert(sizeof(struct words) <= 4096, "the words fill one page");

struct end {
    struct words_of_ring *words; /* in the memfd */
    uint8_t *ring;               /* mapped twice in a row */
    _Atomic uint64_t at;         /* our own position: bytes ever written, or read; relaxed, for channel_pending of another thread */
    uint64_t seen;               /* writing: how far the reader was when its position was looked at last */
};

struct channel {
    struct words *words; /* mapped */
    uint8_t *maps[2];    /* of 2 * CHANNEL_RING */
    struct end out, in;
    uint32_t spin_us;
    size_t taking; /* bytes of the frame that channel_next gave out */
};

void channel_free(struct channel *channel)
{
    if (!channel)
        return;
    for (int i = 0; i < 2; i++)
        if (channel->maps[i])
            munmap(channel->maps[i], 2 * (size_t)CHANNEL_RING);
    if (channel->words)
        munmap(channel->words, 4096);
    free(channel);
}

static uint8_t *map_ring(int fd, int index)
{
    size_t bytes = CHANNEL_RING;
    off_t offset = 4096 + (off_t)index * (off_t)bytes;
    uint8_t *at = mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    for (int i = 0; i < 2; i++)
        if (mmap(at + (size_t)i * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, offset) == MAP_FAILED) {
            int number = errno;
            munmap(at, 2 * bytes);
            errno = number;
            return NULL;
        }
    return at;
}

static int map(int fd, enum channel_side side, struct channel **ret_channel, struct err *err)
{
    _cleanup_(channel_freep) struct channel *channel = calloc(1, sizeof *channel);
    if (!channel)
        return err_no_memory(err, "channel", sizeof *channel);
    void *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (words == MAP_FAILED)
        return err_errno(err, "channel: mmap");
    channel->words = words;
    for (int i = 0; i < 2; i++) {
        channel->maps[i] = map_ring(fd, i);
        if (!channel->maps[i])
            return err_errno(err, "channel: mmap of a ring");
    }
    struct end to_duck = {.words = &channel->words->to_duck, .ring = channel->maps[0]},
               to_head = {.words = &channel->words->to_head, .ring = channel->maps[1]};
    channel->out = side == CHANNEL_HEAD ? to_duck : to_head;
    channel->in = side == CHANNEL_HEAD ? to_head : to_duck;
    *ret_channel = STEAL(channel);
    return 0;
}

int channel_new(uint32_t spin_us, struct channel **ret_channel, int *ret_fd, struct err *err)
{
    _cleanup_(closep) int fd = memfd_create("fp9-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)CHANNEL_BYTES) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return err_errno(err, "channel: memfd");
    struct channel *channel;
    int r = map(fd, CHANNEL_HEAD, &channel, err);
    if (r < 0)
        return r;
    channel->spin_us = channel->words->spin_us = spin_us;
    channel->words->bytes = CHANNEL_BYTES;
    channel->words->magic = MAGIC;
    /* Until it says otherwise the head sleeps in its event loop, and the duck has yet to start. */
    atomic_store(&channel->words->to_head.mode, CHANNEL_ASLEEP);
    *ret_channel = channel;
    *ret_fd = STEAL_FD(fd);
    return 0;
}

int channel_open(int fd, struct channel **ret_channel, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_errno(err, "channel: descriptor %d", fd);
    if ((uint64_t)st.st_size != CHANNEL_BYTES)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "channel: descriptor %d holds %lld bytes, a channel has %llu", fd,
                       (long long)st.st_size, (unsigned long long)CHANNEL_BYTES);
    _cleanup_(channel_freep) struct channel *channel = NULL;
    int r = map(fd, CHANNEL_DUCK, &channel, err);
    if (r < 0)
        return r;
    const struct words *words = channel->words;
    uint32_t spin_us = words->spin_us;
    if (words->magic != MAGIC || words->bytes != CHANNEL_BYTES || spin_us > CHANNEL_SPIN_US_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "channel: descriptor %d holds none of this version", fd);
    channel->spin_us = spin_us;
    *ret_channel = STEAL(channel);
    return 0;
}

uint32_t channel_spin_us(const struct channel *channel)
{
    return channel->spin_us;
}

/* ---- writing ------------------------------------------------------------------------------------ */

static size_t stride(size_t bytes)
{
    return size_round_up(STAMP + bytes, CHANNEL_ALIGN);
}

static uint64_t own(const struct end *end)
{
    return atomic_load_explicit(&end->at, memory_order_relaxed);
}

static _Atomic uint64_t *stamp(const struct end *end, uint64_t at)
{
    return (_Atomic uint64_t *)(void *)(end->ring + at % CHANNEL_RING);
}

/* Room for a frame and the stamp after it. */
static int find_room(struct end *out, uint64_t at, size_t bytes, bool *ret_found, struct err *err)
{
    uint64_t most = CHANNEL_RING - CHANNEL_ALIGN - stride(bytes);
    *ret_found = true;
    if (at - out->seen <= most) /* as far as we know: else it is worth a cache miss */
        return 0;
    uint64_t seen = atomic_load_explicit(&out->words->read, memory_order_acquire);
    if (at - seen > CHANNEL_RING || seen % CHANNEL_ALIGN)
        return err_set(err, -EPROTO, ERR_BAD_REQUEST, "channel: its reader says that it has read %llu bytes of %llu",
                       (unsigned long long)seen, (unsigned long long)at);
    out->seen = seen;
    *ret_found = at - seen <= most;
    return 0;
}

static enum channel_mode mode_of(uint32_t word)
{
    return word == CHANNEL_AWAKE ? CHANNEL_AWAKE : word == CHANNEL_BUSY ? CHANNEL_BUSY : CHANNEL_ASLEEP;
}

/* By itself the compiler fetches a line to be read, and the first write to it waits for the other side once more. */
static void fetch_to_write(const uint8_t *line)
{
#if defined(__x86_64__) || defined(__i386__)
    __asm__ volatile("prefetchw %0" : : "m"(*line));
#else
    __builtin_prefetch(line, 1);
#endif
}

int channel_send(struct channel *channel, const void *head, size_t head_bytes, const void *body, size_t body_bytes,
                 enum channel_mode *ret_mode, struct err *err)
{
    struct end *out = &channel->out;
    uint64_t at = own(out), after = at + stride(head_bytes + body_bytes);
    uint8_t *entry = out->ring + at % CHANNEL_RING;
    bool found;
    if (head_bytes + body_bytes > CHANNEL_FRAME_MAX)
        return 0;
    int r = find_room(out, at, head_bytes + body_bytes, &found, err);
    if (r < 0 || !found)
        return r;
    atomic_store_explicit(stamp(out, after), 0, memory_order_relaxed); /* what lies there from the last time round is no stamp */
    /* The first line last and at once: its reader may be looking at it all the time. */
    size_t first = head_bytes < LINE_REST ? head_bytes : LINE_REST;
    if (body_bytes)
        memcpy(entry + STAMP + head_bytes, body, body_bytes);
    memcpy(entry + STAMP + first, (const uint8_t *)head + first, head_bytes - first);
    memcpy(entry + STAMP, head, first);
    atomic_store_explicit(&out->at, after, memory_order_relaxed);
    atomic_store_explicit(stamp(out, at), after, memory_order_seq_cst);
    *ret_mode = mode_of(atomic_load_explicit(&out->words->mode, memory_order_seq_cst));
    /* The next frame's lines are still in the other's cache from the last time round: fetch them while the answer is on its way. */
    for (int i = 1; i < WARM_LINES; i++)
        fetch_to_write(out->ring + after % CHANNEL_RING + (size_t)i * CHANNEL_ALIGN);
    return 1;
}

void channel_wake(struct channel *channel)
{
    _Atomic uint32_t *mode = &channel->words->to_duck.mode;
    uint32_t asleep = CHANNEL_ASLEEP;
    if (atomic_load_explicit(mode, memory_order_seq_cst) == CHANNEL_ASLEEP && atomic_compare_exchange_strong(mode, &asleep, CHANNEL_AWAKE))
        futex_wake_shared(mode, 1);
}

/* ---- reading ------------------------------------------------------------------------------------ */

bool channel_pending(const struct channel *channel)
{
    const struct end *in = &channel->in;
    return atomic_load_explicit(stamp(in, own(in)), memory_order_acquire) != 0;
}

int channel_next(struct channel *channel, struct frame *ret_frame, struct err *err)
{
    struct end *in = &channel->in;
    uint64_t at = own(in), after = atomic_load_explicit(stamp(in, at), memory_order_acquire), length = after - at;
    const uint8_t *entry = in->ring + at % CHANNEL_RING;
    if (after == 0)
        return 0;
    if (length > stride(CHANNEL_FRAME_MAX) || length % CHANNEL_ALIGN || length == 0)
        return err_set(err, -EPROTO, ERR_BAD_REQUEST, "channel: its writer says that it has written %llu bytes, %llu were read",
                       (unsigned long long)after, (unsigned long long)at);
    /* All lines of the frame are on their way while its header is looked at. */
    for (size_t ahead = CHANNEL_ALIGN; ahead < length && ahead < WARM_LINES * CHANNEL_ALIGN; ahead += CHANNEL_ALIGN)
        __builtin_prefetch(entry + ahead);
    uint8_t header[WIRE_FRAME_HEADER];
    memcpy(header, entry + STAMP, sizeof header);
    __asm__ volatile("" ::: "memory"); /* the copy is what is checked and used, whatever the other side does to the original */
    struct frame frame;
    int r = frame_header_parse(header, &frame, err);
    if (r < 0)
        return err_prefix(err, "channel");
    if (stride(WIRE_FRAME_HEADER + (size_t)frame.length) != length)
        return err_set(err, -EPROTO, ERR_BAD_REQUEST, "channel: %s frame: length is %u bytes, %llu were written with it",
                       frame_type_name(frame.type), frame.length, (unsigned long long)length);
    frame.payload = entry + STAMP + WIRE_FRAME_HEADER;
    channel->taking = length;
    *ret_frame = frame;
    return 1;
}

void channel_taken(struct channel *channel)
{
    struct end *in = &channel->in;
    uint64_t at = own(in) + channel->taking;
    channel->taking = 0;
    atomic_store_explicit(&in->at, at, memory_order_relaxed);
    atomic_store_explicit(&in->words->read, at, memory_order_release);
}

bool channel_set_mode(struct channel *channel, enum channel_mode mode)
{
    struct end *in = &channel->in;
    atomic_store_explicit(&in->words->mode, mode, memory_order_seq_cst);
    return RECHECK && atomic_load_explicit(stamp(in, own(in)), memory_order_seq_cst) != 0;
}

void channel_sleep(struct channel *channel, bool (*ready)(void *user), void *user)
{
    _Atomic uint32_t *mode = &channel->in.words->mode;
    bool there = channel_set_mode(channel, CHANNEL_ASLEEP) || (RECHECK && ready(user));
    /* A waker changes the mode before it wakes: then the wait returns at once. */
    while (!there && atomic_load_explicit(mode, memory_order_seq_cst) == CHANNEL_ASLEEP)
        if (futex_wait_shared(mode, CHANNEL_ASLEEP, RESCUE_NS))
            there = channel_pending(channel) || ready(user);
    atomic_store_explicit(mode, CHANNEL_AWAKE, memory_order_relaxed);
}
