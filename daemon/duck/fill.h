/* Prepare (modes 2 and 3): rows that arrive in frames become panels in a slot of the weight buffer.
 *
 * What costs time is handed out as work, for a thread of its own (packer.h): taking memory and packing rows, checksums. Work is done in the
 * order it was handed out, then taken back. While it is out its slot is pinned, so that a slot may be dropped meanwhile.
 *
 * Several fills may run at once, each known by its request id. An error drops the fill's slot; the caller answers it with FAIL once, and
 * later frames of that request are ignored here until its END or ABORT has passed. One thread, but for fill_work_run.
 */
#ifndef FP9_DUCK_FILL_H
#define FP9_DUCK_FILL_H

#include "daemon/duck/wbuf.h"

#define FILLS_MAX 16

struct draft;
struct fills;

enum fill_kind {
    FILL_ROWS,
    FILL_SUMS, /* the last of a slot */
};

struct fill_work {
    struct fill_work *next; /* for whoever has it */
    enum fill_kind kind;
    uint64_t request, serial; /* of the fill it was handed out for */
    uint32_t slot, layer;
    uint64_t frame_bytes; /* FILL_ROWS: what the sender counts */
    bool staged;          /* FILL_ROWS: the codes are in the stage, and `ticket` tells that they are read no more */
    uint64_t ticket;
    int code; /* what came of it: 0, or negative and err */
    struct err err;
    struct draft *draft; /* a use of it */
    struct layout_mlp layout;
    uint8_t *expert;          /* in the slot */
    uint32_t part;            /* its number there, for checksums */
    bool begin, end;          /* the first rows of this expert, the last */
    bool drafted;             /* it is in the draft until its end */
    struct kernels_rows rows; /* scales are in memory; codes too, unless staged */
    char name[32];            /* of the expert */
    uint64_t checksum;
    uint8_t *memory; /* owned */
    size_t room;
};
/* Any thread, one at a time for a slot. */
void fill_work_run(struct fill_work *work);

int fills_new(struct wbuf *wbuf, struct fills **ret_fills, struct err *err); /* wbuf is borrowed */
void fills_free(struct fills *fills);                                        /* unfinished slots are dropped */
CLEANUP_DEFINE(struct fills *, fills_free);
bool fills_active(const struct fills *fills);
/* Work that was handed out and is not back. */
uint32_t fills_out(const struct fills *fills);
/* Work that will never be run nor looked at: unpins its slot, frees it. */
void fill_work_discard(struct fills *fills, struct fill_work *work);

/* Any slot of the same model and layer is dropped first, and any of the same model but another rank, tp or multiple_of: a duck is one
 * rank. */
int fill_begin(struct fills *fills, uint64_t request, const struct msg_prepare_begin *words, struct err *err);
/* Rows, each exactly once; copied. *ret_work NULL: the request is being ignored. */
int fill_data(struct fills *fills, uint64_t request, const struct msg_prepare_data *data, struct fill_work **ret_work, struct err *err);
/* The same of rows whose codes, `stride` bytes apart, stay where they are until the work is back. */
int fill_staged(struct fills *fills, uint64_t request, const struct msg_prepare_data *data, const uint8_t *codes, size_t stride,
                struct fill_work **ret_work, struct err *err);
/* What the rows come from. 0 also for a request that is being ignored. */
int fill_sources(struct fills *fills, uint64_t request, const uint8_t sources[DIGEST_SIZE], struct err *err);
/* *ret_work NULL for an ignored request; negative, naming what is missing. */
int fill_end(struct fills *fills, uint64_t request, struct fill_work **ret_work, struct err *err);
/* Takes work back that was run. 1 and the finished slot; 0; negative when it failed: its fill is dropped and to be answered with FAIL. */
int fill_done(struct fills *fills, struct fill_work *work, struct msg_slot *ret_slot, struct err *err);
/* Drops the fills of a model (NULL: all). Their requests, *ret_count of them, are to be answered with FAIL; they are ignored from here
 * on. */
void fills_drop(struct fills *fills, const uint8_t *model_key, uint64_t ret_requests[FILLS_MAX], size_t *ret_count);
void fill_abort(struct fills *fills, uint64_t request);

#endif
