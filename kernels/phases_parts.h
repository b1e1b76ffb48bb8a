/* What the files of phases share; contents of struct phases' room. */
#ifndef FP9_KERNELS_PHASES_PARTS_H
#define FP9_KERNELS_PHASES_PARTS_H

#include "kernels/phases.h"
#include "proto/base/size.h"

#define PHASES_LINE 128 /* cache lines are fetched in pairs */
/* Vectors stand one line apart from a whole number of them: strides that are powers of two would put the same column of all tokens of a
 * tile into the same set of L1. */
#define PHASES_STRIDE_PAD 16
#define PHASES_CLAIM_BYTES 32768 /* of a matrix, and */
#define PHASES_CLAIM_PANELS 2    /* panels at least, are taken at once */

/* What a member has of gate and up (units) or of down (panels of output rows). It begins at the front, half of the rest at a time; members
 * that are through with their own take from it, too, so that a core which is slower than the others keeps nobody waiting. */
struct phases_runs {
    uint32_t begin, end;
    _Atomic uint32_t taken; /* begin .. end */
} __attribute__((aligned(PHASES_LINE)));

/* Where a member is in its share: its own, in cache lines of its own. */
struct phases_member {
    uint32_t phase; /* in which it is or was last, counted from 1 */
    uint32_t vector, vector_end;
    bool begun;                        /* sort: the pairs are sorted */
    uint32_t left;                     /* gate and up: units that it has taken, from `at` on */
    struct split_place at;             /* down: of the rows that it has taken */
    uint32_t row_panel, row_panel_end; /* down: what it has taken */
} __attribute__((aligned(PHASES_LINE)));

/* An expert that tokens of the chunk want. */
struct phases_expert {
    const struct layout_mlp *layout;
    const uint8_t *bytes;
    uint32_t first, count; /* of its pairs */
    uint32_t h_stride;
    float *h; /* of its first pair */
};

struct phases_pair {
    uint32_t token; /* of the chunk */
    float weight;
    float h_undo; /* 2^(e - 15) of its h */
};

/* Tokens [first, first + count) of the job. */
struct phases_chunk {
    uint32_t first, count;
};

static inline struct phases_chunk phases_chunk_at(const struct phases *phases, uint32_t index)
{
    uint32_t first = index * phases->chunk, left = phases->job.tokens - first;

    return (struct phases_chunk){first, left < phases->chunk ? left : phases->chunk};
}

static inline const struct layout_mlp *any_layout(const struct kernels_layer *layer)
{
    return layer->layout ? layer->layout : layer->shared_layout;
}

static inline uint32_t stride_of(const struct layout_matrix *matrix)
{
    return layout_vector_floats(matrix) + PHASES_STRIDE_PAD;
}

static inline uint32_t x_stride(const struct kernels_layer *layer)
{
    return stride_of(&any_layout(layer)->gate_up);
}

static inline uint32_t h_stride(const struct layout_mlp *layout)
{
    return layout ? stride_of(&layout->down) : 0;
}

static inline uint32_t y_stride(const struct kernels_layer *layer)
{
    return (uint32_t)size_round_up(any_layout(layer)->hidden, LAYOUT_PANEL_ROWS) + PHASES_STRIDE_PAD;
}

static inline uint64_t gate_up_panel_weights(const struct layout_mlp *layout)
{
    return (uint64_t)layout->hidden * LAYOUT_PANEL_ROWS;
}

/* Panels that are worth a claim: fewer bytes would make more of looking for work than of doing it. */
static inline uint32_t claim_least(const struct layout_matrix *matrix)
{
    uint64_t panels = PHASES_CLAIM_BYTES / (matrix->panel_bytes ? matrix->panel_bytes : 1);

    return panels < PHASES_CLAIM_PANELS ? PHASES_CLAIM_PANELS : (uint32_t)panels;
}

/* phases_room.c: where everything is in scratch. */
uint32_t phases_room_chunk(const struct kernels_layer *layer, uint32_t tokens, uint32_t top_k); /* tokens of a chunk */
struct phases_room phases_room_of(const struct phases *phases, void *scratch);

/* phases_sort.c: who wants what, and who does what. */
uint64_t phases_decode_weights(const struct phases_job *job); /* what a decode of one token reads */
void phases_sort(struct phases *phases, struct phases_chunk chunk);

#endif
