/* The step ring: steps handed to fp9d, and their answers back, through memory that client and fp9d share. One for each session that was
 * opened with ring; it lies in the session's memory file, on pages of its own behind the arena, at the offset that session.open tells.
 *
 *      client writes                               fp9d writes
 *      -------------                               -----------
 *      submitted   steps handed over so far        parked      1: it sleeps, ring the doorbell
 *      queue[n%8]  slot of the n-th step           ended       1: no step is taken any more, why is in end
 *      waits       how it waits for answers        completed   steps answered so far
 *      cancels     cancels asked for so far
 *      cancel[8]   of each slot, the answer that is not wanted
 *
 *      slot 0      call                            answer, done
 *      ...                                         (done: answers of this slot so far)
 *      slot 7      call                            answer, done
 *
 * Handing over the n-th step (n from 0):
 *      take a slot that is free: never used, or its last answer was read
 *      fill slot.call; queue[n % 8] = slot             plain stores
 *      submitted = n + 1                               sequentially consistent store
 *      if (parked) write 1 to the doorbell             sequentially consistent load; an eventfd that came with session.open
 * Its answer:
 *      slot.done was d before; it is there when slot.done is d + 1 (acquire load). slot.answer, and y in the arena, may be read from then
 *      on; the slot is free when the client has read what it wants.
 * Waiting: as long as it likes by looking at slot.done; else
 *      seen = completed                                acquire load
 *      waits = RING_WAITS_FUTEX                        sequentially consistent store
 *      if (slot.done == d) futex(&completed, FUTEX_WAIT, seen)     sequentially consistent load; not FUTEX_PRIVATE
 *      waits = RING_WAITS_NOT
 *      or, with RING_WAITS_NOTIFIED, a ring.completed notification comes over the session's connection for every answer, for programs
 *      that wait for several things at once.
 * Cancelling a step that was handed over (slot.done was d before):
 *      cancel[slot] = d + 1                            plain store
 *      cancels = cancels + 1                           sequentially consistent store
 *      if (parked) write 1 to the doorbell             as above
 *      The step is answered as ever: failed, with CANCELLED, or as it was when it was through already. Its ducks are free within a tile.
 * fp9d takes what was handed over when it comes round; it writes y and slot.answer, then slot.done (release), then adds 1 to completed
 * (sequentially consistent) and only then looks at waits (likewise). When all that was handed over is taken it looks at cancels. Before it
 * sleeps it stores parked (likewise) and looks at submitted and cancels once more.
 *
 * Why this is enough. call and queue are read after an acquire load of submitted that pairs with its store: they are what was written
 * before. done pairs with its release in the same way, y included. A wake-up is never lost: of "submitted, then parked?" and "parked, then
 * submitted?" (and of "waits, then done?" and "completed, then waits?", done being written before completed) both orders are
 * sequentially consistent, so at least one of the two sides sees what the other wrote.
 *
 * What the client writes is never trusted: each word is read once into fp9d's own memory, indices are bounded, and the call is checked as a
 * request of JSON is, in the same words. Of a wrong call its slot's answer tells. A ring that makes no sense (more handed over than there
 * are slots, a slot that is not there or not free) ends the session: ended is 1, end tells why, and so does every later request of it.
 * fp9d keeps to itself what it has to rely on; what is written over its words only harms who wrote it. */
#ifndef FP9_CONTROL_RING_H
#define FP9_CONTROL_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"

#define RING_VERSION 1
#define RING_SLOTS 8 /* power of two; as many as a session may have lanes */

enum ring_kind {
    RING_DECODE,
    RING_PREFILL,
    RING_KINDS,
};

enum ring_dtype {
    RING_DTYPE_SESSION, /* the session's output_dtype */
    RING_DTYPE_BF16,
    RING_DTYPE_F32,
    RING_DTYPES,
};

enum ring_waits {
    RING_WAITS_NOT,
    RING_WAITS_FUTEX,
    RING_WAITS_NOTIFIED,
};

/* A request, by the client. Offsets as in JSON: bytes from the arena's start. */
struct ring_call {
    uint8_t kind;    /* enum ring_kind */
    uint8_t y_dtype; /* enum ring_dtype */
    uint16_t zero;
    uint32_t layer, tokens;
    uint32_t top_k;       /* 0: a dense layer, topk_ids and topk_weights do not count */
    uint32_t deadline_ms; /* 0: as fp9d is configured */
    uint32_t zero2;
    uint64_t x, topk_ids, topk_weights, y;
    uint64_t zero3;
};

#define RING_MODE_NONE 255 /* no duck has told its mode */

/* By fp9d. Times in nanoseconds; the keys of the JSON answer of that name tell what they are. */
struct ring_answer {
    uint32_t failed;   /* 1: only the slot's text counts */
    uint32_t mode;     /* RING_MODE_NONE: none */
    uint32_t one_shot; /* 1: spawn_ns to exit_ns count */
    uint32_t last;     /* 1 + straggler; 0: there is one rank, straggler_ns does not count */
    uint64_t judge_wait_ns, duck_max_ns, params, weight_bytes;
    uint64_t tiles, tile_tokens; /* of a prefill: avg_tile_batch = tile_tokens / tiles */
    uint64_t spawn_ns, map_ns, team_ns, run_ns, exit_ns;
    uint64_t straggler_ns;
};

#define RING_NAME_MAX 64

/* An error, as the JSON object has it: all with their NULs. */
struct ring_text {
    char name[RING_NAME_MAX]; /* "BAD_SHAPE" */
    char message[ERR_MESSAGE_MAX];
    char values[ERR_VALUES_MAX]; /* JSON members without braces */
};

struct ring_slot {
    _Alignas(64) struct ring_call call; /* client */
    /* fp9d */
    _Alignas(64) _Atomic uint32_t done;
    _Alignas(8) struct ring_answer answer; /* as far as weight_bytes in done's cache line */
    _Alignas(64) struct ring_text text;    /* when failed */
};

struct ring {
    /* fp9d, once, before session.open is answered */
    _Alignas(64) uint32_t version;
    uint32_t slot_count, slot_bytes;
    /* client */
    _Alignas(64) _Atomic uint32_t submitted;
    uint8_t queue[RING_SLOTS];
    _Atomic uint32_t cancels;
    uint32_t cancel[RING_SLOTS];
    _Alignas(64) _Atomic uint32_t waits; /* enum ring_waits */
    /* fp9d */
    _Alignas(64) _Atomic uint32_t parked;
    _Alignas(64) _Atomic uint32_t completed;
    _Atomic uint32_t ended;
    _Alignas(64) struct ring_text end;
    struct ring_slot slots[RING_SLOTS];
};

_Static_assert(sizeof(struct ring_call) == 64 && sizeof(struct ring_answer) == 112, "the layout is part of the protocol");
_Static_assert(sizeof(_Atomic uint32_t) == 4 && ATOMIC_INT_LOCK_FREE == 2, "words of the ring are plain words in memory");
_Static_assert(offsetof(struct ring, cancels) == 76 && offsetof(struct ring, waits) == 128, "likewise");

#endif
