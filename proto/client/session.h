/* A session as the library holds it: the arena and where a step's tensors have their places in it. */
#ifndef FP9_CLIENT_SESSION_H
#define FP9_CLIENT_SESSION_H

#include "proto/client/core.h"
#include "proto/client/ring.h"

#define SESSION_ALIGN 64u /* of offsets in the arena */

struct fp9_session {
    struct fp9_conn *conn;    /* borrowed; NULL: closed, or this session is not open yet */
    struct fp9_session *next; /* of the connection */
    uint64_t id, job;
    uint32_t max_tokens, hidden_size, top_k_max, lanes, spin_us;
    enum fp9_dtype output_dtype;
    uint8_t *arena; /* mapped, mapped_bytes */
    size_t arena_bytes, mapped_bytes;
    size_t ids_at, weights_at, y_at; /* offsets of the places of lane 0; x is at 0 */
    bool ring_needed;
    size_t lane_bytes;       /* between the places of two lanes */
    struct ring_client ring; /* memory NULL: none, steps travel as JSON */
};

/* The connection goes away: its sessions know it no longer. */
void session_orphan(struct fp9_conn *conn);

size_t session_value_bytes(const struct fp9_session *session); /* of one element of y */

#endif
