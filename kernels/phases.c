#include <string.h>

#include "kernels/batch.h"
#include "kernels/bits.h"
#include "kernels/fpenv.h"
#include "kernels/phases_parts.h"
#include "kernels/tiers.h"

#define FEW_TOKENS 4       /* whose x is normalised by member 0 at once: less than a phase would cost */
#define VECTORS_A_PIECE 16 /* normalised between two looks at `pause` */
#define PREFETCH_BYTES 4096

enum step {
    STEP_SORT,
    STEP_GATE_UP,
    STEP_NORMALISE,
    STEP_DOWN,
    STEPS,
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* 2^(e - 15) undoes the 2^-111 of raw weights and the 2^(126 - e) of the vector. */
static float undo_power(int e)
{
    return bits_pow2(e - 15);
}

static void normalise_x(const struct phases *phases, struct phases_chunk chunk, uint32_t begin, uint32_t end)
{
    const struct kernels_layer *layer = phases->job.layer;
    uint32_t hidden = any_layout(layer)->hidden, floats = layout_vector_floats(&any_layout(layer)->gate_up);
    size_t stride = x_stride(layer);

    for (uint32_t t = begin; t < end; t++)
        phases->room.x_undo[t] = undo_power(tiers_active()->normalise_bf16(phases->room.x + t * stride, floats,
                                                                           phases->job.x + (size_t)(chunk.first + t) * hidden, hidden));
}

/* ---- pieces: each does a little of a member's share and says whether there is more ---------------- */

static uint32_t next_vectors(struct phases_member *self)
{
    uint32_t left = self->vector_end - self->vector;

    self->vector += left < VECTORS_A_PIECE ? left : VECTORS_A_PIECE;
    return self->vector;
}

static bool sort_piece(struct phases *phases, struct phases_chunk chunk, uint32_t member, struct phases_member *self)
{
    uint32_t from = self->vector;

    if (member == 0 && chunk.first > 0 && !self->begun) {
        phases_sort(phases, chunk);
        self->begun = true;
        return true;
    }
    normalise_x(phases, chunk, from, next_vectors(self));
    return self->vector < self->vector_end;
}

static uint32_t tile_tokens(const struct phases *phases, const struct phases_expert *expert, uint32_t tile)
{
    uint32_t left = expert->count - tile * phases->tile;

    return left < phases->tile ? left : phases->tile;
}

/* Moves on by `panels` of the tile's panels from `first` to `end`. */
static void advance(const struct phases *phases, struct split_place *at, uint32_t panels, uint32_t first, uint32_t end)
{
    at->panel += panels;
    if (at->panel < end)
        return;
    at->panel = first;
    if (++at->tile < split_tiles(phases->room.experts[at->work].count, phases->tile))
        return;
    at->tile = 0;
    at->work++;
}

/* Some of a run; false when there is nothing left. Relaxed: all that it is about was written in an earlier phase. */
static bool take_from(struct phases_runs *run, uint32_t at_least, uint32_t *ret_begin, uint32_t *ret_end)
{
    uint32_t taken = atomic_load_explicit(&run->taken, memory_order_relaxed), count;

    do {
        if (taken >= run->end)
            return false;
        count = split_claim(run->end - taken, at_least);
    } while (!atomic_compare_exchange_weak_explicit(&run->taken, &taken, taken + count, memory_order_relaxed, memory_order_relaxed));
    *ret_begin = taken;
    *ret_end = taken + count;
    return true;
}

/* From the member's own run, and after that from the one with most left. */
static bool take(const struct phases *phases, struct phases_runs *runs, uint32_t member, uint32_t at_least, uint32_t *ret_begin,
                 uint32_t *ret_end)
{
    uint32_t from = member;

    while (!take_from(&runs[from], at_least, ret_begin, ret_end)) {
        uint32_t most = 0;

        for (uint32_t m = 0; m < phases->members; m++) {
            uint32_t taken = atomic_load_explicit(&runs[m].taken, memory_order_relaxed);

            if (taken < runs[m].end && runs[m].end - taken > most) {
                most = runs[m].end - taken;
                from = m;
            }
        }
        if (most == 0)
            return false;
    }
    return true;
}

/* The first bytes of what comes next, so that the stream of weights does not begin anew there. Not for batches, which wait for
 * arithmetic. */
static void prefetch_next(const struct layout_matrix *matrix, const uint8_t *expert, uint32_t panel, uint32_t panels)
{
    const uint8_t *at = expert + matrix->panels_offset + layout_panel_offset(matrix, panel);
    uint64_t bytes = layout_panel_offset(matrix, panel + panels) - layout_panel_offset(matrix, panel);

    for (uint64_t i = 0; i < bytes && i < PREFETCH_BYTES; i += 64)
        __builtin_prefetch(at + i, 0, 2);
    __builtin_prefetch((const float *)(const void *)(expert + matrix->scales_offset) + (size_t)panel * matrix->segments * 2, 0, 2);
}

static void *batch_room(const struct phases *phases, const struct phases_member *self)
{
    return phases->room.batch + (size_t)(self - phases->room.member) * batch_scratch_bytes();
}

static bool gate_up_piece(const struct phases *phases, uint32_t member, struct phases_member *self)
{
    struct split_place *at = &self->at;
    struct tiers_token token[SPLIT_TILE_MAX];
    const struct phases_expert *expert;
    struct tiers_run run;
    uint32_t count, all, panels;
    size_t x_floats = x_stride(phases->job.layer), pair;

    if (self->left == 0) {
        uint32_t begin, end;

        if (!take(phases, phases->room.gate_up, member, claim_least(&any_layout(phases->job.layer)->gate_up), &begin, &end))
            return false;
        self->left = end - begin;
        *at = split_place_of(phases->room.work, phases->expert_count, phases->tile, begin);
    }
    expert = &phases->room.experts[at->work];
    count = tile_tokens(phases, expert, at->tile);
    all = phases->room.work[at->work].panels;
    panels = least(least(all - at->panel, self->left), split_piece(phases->budget, gate_up_panel_weights(expert->layout), count));
    pair = (size_t)at->tile * phases->tile;
    for (uint32_t i = 0; i < count; i++, pair++) {
        uint32_t t = phases->room.pairs[expert->first + pair].token;

        token[i] = (struct tiers_token){
            .v = phases->room.x + t * x_floats,
            .undo = phases->room.x_undo[t],
            .out = expert->h + pair * expert->h_stride + layout_tile_row(&expert->layout->gate_up, at->panel),
        };
    }
    run = tiers_run_of(&expert->layout->gate_up, expert->bytes, at->panel, panels);
    self->left -= panels;
    advance(phases, at, panels, 0, all);
    if (self->left && at->panel == 0 && count <= TIERS_TOKENS_MAX)
        prefetch_next(&phases->room.experts[at->work].layout->gate_up, phases->room.experts[at->work].bytes, 0, self->left);
    batch_gate_up(tiers_active(), &run, token, count, batch_room(phases, self));
    return true;
}

static bool normalise_piece(const struct phases *phases, struct phases_member *self)
{
    uint32_t i = self->vector, end = next_vectors(self), work = 0;

    if (i == end)
        return false;
    while (phases->room.experts[work].first + phases->room.experts[work].count <= i)
        work++;
    for (; i < end; i++) {
        const struct phases_expert *expert = &phases->room.experts[work];
        const struct layout_mlp *layout = expert->layout;
        float *h = expert->h + (size_t)(i - expert->first) * expert->h_stride;

        phases->room.pairs[i].h_undo =
            undo_power(tiers_active()->normalise_f32(h, layout_vector_floats(&layout->down), h, layout->neurons));
        if (i + 1 == expert->first + expert->count)
            work++;
    }
    return self->vector < self->vector_end;
}

/* ---- down -------------------------------------------------------------------------------------- */

/* Where the sum of a token of the chunk begins. */
static float *sum_of(const struct phases *phases, struct phases_chunk chunk, uint32_t token)
{
    const struct kernels_layer *layer = phases->job.layer;

    if (phases->job.bf16)
        return phases->room.y + (size_t)token * y_stride(layer);
    return (float *)phases->job.partial + (size_t)(chunk.first + token) * any_layout(layer)->hidden;
}

/* Output rows [first, end) that this member has taken. */
static void member_rows(const struct phases *phases, const struct phases_member *self, uint32_t *ret_first, uint32_t *ret_end)
{
    uint32_t hidden = any_layout(phases->job.layer)->hidden;

    *ret_first = least(self->row_panel * LAYOUT_PANEL_ROWS, hidden);
    *ret_end = least(self->row_panel_end * LAYOUT_PANEL_ROWS, hidden);
}

static void rows_begin(const struct phases *phases, struct phases_chunk chunk, const struct phases_member *self)
{
    uint32_t first, end;

    member_rows(phases, self, &first, &end);
    for (uint32_t t = 0; t < chunk.count; t++)
        memset(sum_of(phases, chunk, t) + first, 0, (end - first) * sizeof(float));
}

static void rows_finish(const struct phases *phases, struct phases_chunk chunk, const struct phases_member *self)
{
    uint32_t hidden = any_layout(phases->job.layer)->hidden, first, end;

    member_rows(phases, self, &first, &end);
    for (uint32_t t = 0; t < chunk.count; t++) {
        float *sum = sum_of(phases, chunk, t) + first;

        if (phases->job.bf16)
            tiers_active()->to_bf16((uint16_t *)phases->job.partial + (size_t)(chunk.first + t) * hidden + first, sum, end - first);
        else
            tiers_active()->canonical(sum, end - first);
    }
}

static void down_panels(const struct phases *phases, struct phases_chunk chunk, const struct phases_member *self, uint32_t panels)
{
    const struct split_place *at = &self->at;
    const struct phases_expert *expert = &phases->room.experts[at->work];
    const struct layout_mlp *layout = expert->layout;
    uint32_t count = tile_tokens(phases, expert, at->tile), row = at->panel * LAYOUT_PANEL_ROWS;
    uint32_t rows = least(panels * LAYOUT_PANEL_ROWS, layout->hidden - row);
    struct tiers_run run = tiers_run_of(&layout->down, expert->bytes, at->panel, panels);
    struct tiers_token token[SPLIT_TILE_MAX];
    size_t h = (size_t)at->tile * phases->tile;

    for (uint32_t i = 0; i < count; i++, h++) {
        const struct phases_pair *pair = &phases->room.pairs[expert->first + h];

        token[i] = (struct tiers_token){
            .v = expert->h + h * expert->h_stride,
            .undo = pair->h_undo,
            .weight = pair->weight,
            .out = sum_of(phases, chunk, pair->token) + row,
        };
    }
    if (count <= TIERS_TOKENS_MAX && at->panel + panels == self->row_panel_end && at->work + 1 < phases->expert_count)
        prefetch_next(&expert[1].layout->down, expert[1].bytes, self->row_panel, self->row_panel_end - self->row_panel);
    batch_down(tiers_active(), &run, token, count, rows, batch_room(phases, self));
}

static bool down_piece(const struct phases *phases, struct phases_chunk chunk, uint32_t member, struct phases_member *self)
{
    struct split_place *at = &self->at;
    const struct phases_expert *expert;
    uint32_t panels;

    if (self->row_panel == self->row_panel_end) {
        if (!take(phases, phases->room.down, member, phases->rows_least, &self->row_panel, &self->row_panel_end))
            return false;
        *at = (struct split_place){.panel = self->row_panel};
        rows_begin(phases, chunk, self);
    }
    if (at->work == phases->expert_count) {
        rows_finish(phases, chunk, self);
        self->row_panel = self->row_panel_end;
        return true;
    }
    expert = &phases->room.experts[at->work];
    panels = split_piece(phases->budget, (uint64_t)expert->layout->neurons * LAYOUT_PANEL_ROWS, tile_tokens(phases, expert, at->tile));
    panels = least(panels, self->row_panel_end - at->panel);
    down_panels(phases, chunk, self, panels);
    advance(phases, at, panels, self->row_panel, self->row_panel_end);
    return true;
}

/* ---- phases ------------------------------------------------------------------------------------ */

void phases_begin(struct phases *ret_phases, const struct phases_job *job, uint32_t members, void *scratch)
{
    struct phases phases = {.job = *job, .members = members};
    fpenv_saved saved;

    if (job->dense)
        phases.job.top_k = 0;
    phases.chunk = phases_room_chunk(job->layer, job->tokens, phases.job.top_k);
    phases.chunks = job->tokens ? (uint32_t)size_ceil_div(job->tokens, phases.chunk) : 0;
    if (job->tokens) {
        struct phases_chunk first = phases_chunk_at(&phases, 0);

        saved = fpenv_enter();
        phases.room = phases_room_of(&phases, scratch);
        phases.budget = split_budget(phases_decode_weights(job), members);
        phases.skip_first = job->tokens <= FEW_TOKENS;
        memset(phases.room.member, 0, members * sizeof(*phases.room.member));
        phases_sort(&phases, first);
        if (phases.skip_first)
            normalise_x(&phases, first, 0, first.count);
        fpenv_leave(saved);
    }
    *ret_phases = phases;
}

uint32_t phases_count(const struct phases *phases)
{
    return phases->chunks * STEPS - phases->skip_first;
}

static void member_begin(const struct phases *phases, struct phases_member *self, uint32_t member, enum step step,
                         struct phases_chunk chunk)
{
    uint32_t vectors = step == STEP_SORT ? chunk.count : phases->pair_count;

    self->begun = false;
    self->left = 0;
    self->row_panel = self->row_panel_end = 0;
    self->vector = split_even(vectors, phases->members, member);
    self->vector_end = split_even(vectors, phases->members, member + 1);
}

static bool piece(struct phases *phases, enum step step, struct phases_chunk chunk, uint32_t member, struct phases_member *self)
{
    switch (step) {
    case STEP_SORT: return sort_piece(phases, chunk, member, self);
    case STEP_GATE_UP: return gate_up_piece(phases, member, self);
    case STEP_NORMALISE: return normalise_piece(phases, self);
    case STEP_DOWN: return down_piece(phases, chunk, member, self);
    case STEPS: break;
    }
    return false;
}

bool phases_run(struct phases *phases, uint32_t phase, uint32_t member, const _Atomic bool *pause, _Atomic uint64_t *progress)
{
    uint32_t index = phase + phases->skip_first;
    enum step step = (enum step)(index % STEPS);
    struct phases_chunk chunk = phases_chunk_at(phases, index / STEPS);
    struct phases_member *self = &phases->room.member[member];
    fpenv_saved saved = fpenv_enter();
    bool more;

    if (self->phase != phase + 1) {
        self->phase = phase + 1;
        member_begin(phases, self, member, step, chunk);
    }
    do {
        more = piece(phases, step, chunk, member, self);
        if (progress)
            atomic_fetch_add_explicit(progress, 1, memory_order_relaxed);
    } while (more && !(pause && atomic_load_explicit(pause, memory_order_relaxed)));
    fpenv_leave(saved);
    return !more;
}

enum phases_mode phases_mode(bool dense, uint32_t tokens, uint32_t members)
{
    if (tokens > KERNELS_TOKENS_SHARED)
        return dense ? PHASES_DENSE_PREFILL : PHASES_MOE_PREFILL;
    return dense ? PHASES_DENSE : members > 1 ? PHASES_MOE_SMP : PHASES_MOE;
}
