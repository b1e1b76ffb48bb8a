/* Whether the head of a link is still there. It pings every heartbeat, so a link on which nothing came for SILENCE_LOOKS of them has nobody
 * at its other end (a frozen fp9d, a machine that is gone), and must not keep the duck from the next head. What counts are looks, a
 * heartbeat apart: a duck that was stopped itself finds one silent, however long it was stopped. PURE; one thread. */
#ifndef FP9_DUCK_SILENCE_H
#define FP9_DUCK_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

#define SILENCE_LOOKS 8
#define SILENCE_HEARTBEAT_S 8 /* of a head that does not say its own: given up after about a minute */

struct silence {
    uint64_t heartbeat_ns; /* 0: not begun, nothing is awaited */
    uint64_t looked_ns;
    uint32_t silent_looks; /* in a row */
    bool heard;            /* since the last look; set by who reads */
};

/* heartbeat_s: as the HELLO has it, 0 when it does not say. */
void silence_begin(struct silence *silence, uint32_t heartbeat_s, uint64_t now_ns);
/* Milliseconds until the next look is due; -1 when nothing is awaited. */
int silence_wait_ms(const struct silence *silence, uint64_t now_ns);
/* Looks when it is time to. True: the head is to be given up. */
bool silence_look(struct silence *silence, uint64_t now_ns);
/* What SILENCE_LOOKS heartbeats are. */
uint32_t silence_limit_s(const struct silence *silence);

#endif
