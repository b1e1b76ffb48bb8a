#include "daemon/head/load_stream.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/load_cut.h"
#include "daemon/head/load_hash.h"
#include "daemon/head/load_parcels.h"
#include "daemon/head/load_slice.h"
#include "daemon/head/stage.h"
#include "proto/base/background.h"
#include "proto/base/size.h"

#define STREAM_PIECE_BYTES (4u * 1024 * 1024) /* of codes, read one after another */
#define STREAM_READ_BYTES (256u * 1024)       /* of them by one call: steps may have to wait while the kernel copies them */

_Static_assert(STREAM_PIECE_BYTES + WIRE_HIDDEN_MAX * LAYOUT_TILE_ROWS <= STAGE_PIECE_BYTES, "a piece of rows fits the stage");
_Static_assert(LOAD_HASH_PIECES <= STAGE_PIECES, "every piece has its place");

struct load_stream {
    struct head *head;
    uint64_t job;
    uint8_t key[DIGEST_SIZE];
    struct arch arch;
    struct plan plan;             /* its ranks are owned */
    uint32_t *duck_of_rank;       /* owned */
    bool *sees_stage;             /* owned; by rank: its duck reads rows where they were read to */
    bool staged;                  /* pieces are in the stage */
    struct core_missing *missing; /* owned */
    size_t missing_count;
    struct load_hash *hash; /* owned */
    _Atomic uint64_t read_bytes;
    struct load_parcels parcels;
    struct load_cutter cutter;
};

struct load_stream *load_stream_new(struct head *head, const struct core_job *job, const struct core_model *model)
{
    struct load_stream *stream = calloc(1, sizeof *stream);
    uint32_t tp = model->plan->tp;
    if (!stream)
        abort();
    stream->head = head;
    stream->job = job->id;
    memcpy(stream->key, model->key, DIGEST_SIZE);
    stream->arch = *model->arch;
    stream->plan = *model->plan;
    stream->plan.ranks = calloc(tp, sizeof *stream->plan.ranks);
    stream->duck_of_rank = calloc(tp, sizeof *stream->duck_of_rank);
    stream->sees_stage = calloc(tp, sizeof *stream->sees_stage);
    stream->missing = calloc(job->missing_count, sizeof *stream->missing);
    if (!stream->plan.ranks || !stream->duck_of_rank || !stream->sees_stage || !stream->missing)
        abort();
    memcpy(stream->plan.ranks, model->plan->ranks, tp * sizeof *stream->plan.ranks);
    memcpy(stream->duck_of_rank, model->duck_of_rank, tp * sizeof *stream->duck_of_rank);
    memcpy(stream->missing, job->missing, job->missing_count * sizeof *stream->missing);
    stream->missing_count = job->missing_count;
    for (uint32_t rank = 0; rank < tp; rank++)
        stream->sees_stage[rank] = peer_sees_stage(head->peers[stream->duck_of_rank[rank]]);
    load_parcels_init(&stream->parcels, head);
    return stream;
}

void load_stream_free(struct load_stream *stream)
{
    if (!stream)
        return;
    free(stream->plan.ranks);
    free(stream->duck_of_rank);
    free(stream->sees_stage);
    free(stream->missing);
    load_hash_free(stream->hash);
    free(stream->cutter.scales);
    load_parcels_release(&stream->parcels);
    free(stream);
}

void load_stream_cancel(struct load_stream *stream)
{
    load_parcels_cancel(&stream->parcels);
}

void load_stream_progress(struct load_stream *stream, uint64_t *ret_read_bytes, uint64_t *ret_sent_bytes)
{
    *ret_read_bytes = atomic_load(&stream->read_bytes);
    *ret_sent_bytes = atomic_load(&stream->parcels.sent_bytes);
}

/* ---- one matrix ---- */

static int find_nan(struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, const uint8_t *codes, uint32_t first,
                    uint32_t rows, struct err *err)
{
    uint32_t row, column;
    if (!checkpoint_find_nan(codes, rows, matrix->columns, &row, &column))
        return 0;
    char where[320];
    err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: %s, column %u holds the E4M3 code of NaN",
            checkpoint_shard_name(checkpoint, matrix->shard), checkpoint_row_text(checkpoint, matrix, first + row, where, sizeof where),
            column);
    err_value_str(err, "file", checkpoint_shard_name(checkpoint, matrix->shard));
    err_value_str(err, "tensor", matrix->name);
    err_value_int(err, "row", first + row);
    err_value_int(err, "column", column);
    return -EINVAL;
}

/* Rows [first, first + rows) in a piece, which the caller releases. With `digest` they are posted for it. */
static int read_piece(struct load_stream *stream, struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, uint32_t first,
                      uint32_t rows, bool digest, struct load_piece **ret_piece, struct err *err)
{
    if (atomic_load(&stream->parcels.cancelled))
        return err_set(err, -ECANCELED, ERR_CANCELLED, "load was cancelled");
    struct load_piece *piece = load_hash_piece(stream->hash);
    uint32_t most = load_slice_rows_at_once(matrix, STREAM_READ_BYTES);
    int r = 0;
    for (uint32_t at = 0, count; r == 0 && at < rows; at += count) {
        uint8_t *to = piece->data + (size_t)at * matrix->columns;
        count = rows - at < most ? rows - at : most;
        r = checkpoint_read(checkpoint, matrix, first + at, count, to, err);
        if (r == 0) /* while they are in the processor's own cache */
            r = find_nan(checkpoint, matrix, to, first + at, count, err);
        background_yield();
    }
    if (r == 0)
        atomic_fetch_add(&stream->read_bytes, (uint64_t)rows * matrix->columns);
    if (r < 0) {
        load_hash_release(stream->hash, piece);
        return r;
    }
    if (digest)
        load_hash_post(stream->hash, piece, matrix, (size_t)rows * matrix->columns, first + rows == matrix->rows);
    *ret_piece = piece;
    return 0;
}

/* Narrows rows [*row, *row + *rows) to what targets need of them: from the first of their rows there to the last. */
static void narrow(const struct load_target *targets, size_t count, int expert, uint32_t *row, uint32_t *rows)
{
    uint32_t begin = *row + *rows, end = *row;
    for (size_t t = 0; t < count; t++) {
        const struct layout_mlp *layout = load_target_layout(&targets[t], expert);
        uint32_t from = layout->begin > *row ? layout->begin : *row, to = layout->begin + layout->neurons;
        to = to < *row + *rows ? to : *row + *rows;
        if (from >= to)
            continue;
        begin = from < begin ? from : begin;
        end = to > end ? to : end;
    }
    *rows = begin < end ? end - begin : 0;
    *row = begin;
}

/* The targets that hold an expert; `ranks`: so many hold it in all. */
struct holders {
    const struct load_target *targets;
    size_t count;
    uint32_t ranks;
};

/* Each piece is read once for all ranks. Rows that no target needs are read only when the matrix has no digest yet. */
static int stream_matrix(struct load_stream *stream, struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, int expert,
                         enum kernels_matrix which, const struct holders *holders, struct err *err)
{
    const struct load_target *targets = holders->targets;
    size_t count = holders->count;
    bool digest = !checkpoint_digest_known(checkpoint, matrix);
    uint32_t most = load_slice_rows_at_once(matrix, STREAM_PIECE_BYTES);
    if (!count && !digest)
        return 0;
    if (which != KERNELS_DOWN && !digest && count < holders->ranks) /* what is missing is to be read, not what stands beside it */
        most = load_slice_rows_at_once(matrix, LOAD_FRAME_BYTES / 2);
    int r = 0;
    for (uint32_t at = 0; r == 0 && at < matrix->rows; at += most) {
        uint32_t row = at, rows = matrix->rows - at < most ? matrix->rows - at : most;
        struct load_piece *piece = NULL;
        if (which != KERNELS_DOWN && !digest)
            narrow(targets, count, expert, &row, &rows);
        if (!rows)
            continue;
        r = read_piece(stream, checkpoint, matrix, row, rows, digest, &piece, err);
        if (r < 0)
            return r;
        const struct load_rows read = {.matrix = matrix, .expert = expert, .which = which, .piece = piece, .first = row, .rows = rows};
        for (size_t t = 0; r == 0 && t < count; t++)
            r = load_cut_send(&stream->cutter, &targets[t], &read, err);
        load_hash_release(stream->hash, piece);
    }
    return r;
}

static bool before(const struct checkpoint_matrix *a, const struct checkpoint_matrix *b)
{
    return a->shard != b->shard ? a->shard < b->shard : a->offset < b->offset;
}

/* Its matrices in the order they have in the files. */
static int stream_expert(struct load_stream *stream, struct checkpoint *checkpoint, uint32_t layer, int expert,
                         const struct holders *holders, struct err *err)
{
    enum kernels_matrix order[] = {KERNELS_GATE, KERNELS_UP, KERNELS_DOWN};
    const struct checkpoint_matrix *found[3];
    for (size_t i = 0; i < ARRAY_LENGTH(order); i++)
        found[order[i]] = checkpoint_find(checkpoint, layer, expert, order[i]);
    for (size_t i = 1; i < ARRAY_LENGTH(order); i++)
        for (size_t at = i; at > 0 && before(found[order[at]], found[order[at - 1]]); at--) {
            enum kernels_matrix later = order[at - 1];
            order[at - 1] = order[at];
            order[at] = later;
        }
    int r = 0;
    for (size_t i = 0; r == 0 && i < ARRAY_LENGTH(order); i++)
        r = stream_matrix(stream, checkpoint, found[order[i]], expert, order[i], holders, err);
    return r;
}

/* ---- one layer ---- */

/* A frame that stands in `out` if r says so. */
static int send_made(struct load_stream *stream, const struct load_target *target, int r, struct outgoing *out, struct err *err)
{
    r = load_parcels_encoded(r, out, err);
    return r < 0 ? r : load_parcels_send(&stream->parcels, target->duck, out, NULL, err);
}

static struct msg_slice slice_of(const struct layout_mlp *layout)
{
    /* pad_to is the padded width itself: the duck rounds `neurons` up to it and gets the same layout. */
    return (struct msg_slice){
        .hidden = layout->hidden, .begin = layout->begin, .neurons = layout->neurons, .pad_to = layout->neurons_padded};
}

static int begin_target(struct load_stream *stream, uint32_t layer, struct load_target *target, struct err *err)
{
    int r = plan_layouts(&stream->arch, &stream->plan, layer, target->rank, &target->layout, &target->has_shared, &target->shared, err);
    if (r < 0)
        return r;
    bool moe = stream->arch.layer_is_moe[layer];
    const struct plan_rank *share = &stream->plan.ranks[target->rank];
    struct msg_prepare_begin msg = {
        .layout_version = LAYOUT_VERSION,
        .tp = stream->plan.tp,
        .rank = target->rank,
        .multiple_of = stream->plan.multiple_of,
        .layer = layer,
        .kind = moe ? MSG_SLOT_MOE : MSG_SLOT_DENSE,
        .experts = moe ? share->expert_count : 1,
        .expert_first = moe ? share->expert_first : 0,
        .experts_total = moe ? stream->arch.experts : 1,
        .slice = slice_of(&target->layout),
        .has_shared = target->has_shared,
        .shared = target->has_shared ? slice_of(&target->shared) : (struct msg_slice){0},
    };
    memcpy(msg.model_key, stream->key, DIGEST_SIZE);
    struct outgoing *out = outgoing_new();
    return send_made(stream, target, msg_prepare_begin_encode(&out->buf, target->request, &msg), out, err);
}

/* Both frames in one: a cancel must not come between them. -ECANCELED: they are handed over all the same. */
static int end_target(struct load_stream *stream, const struct load_target *target, const uint8_t sources[DIGEST_SIZE], struct err *err)
{
    struct outgoing *out = outgoing_new();
    int r = msg_prepare_sources_encode(&out->buf, target->request, sources);
    if (r == 0)
        r = msg_empty_encode(&out->buf, WIRE_PREPARE_END, target->request);
    return send_made(stream, target, r, out, err);
}

static void abort_target(struct load_stream *stream, const struct load_target *target)
{
    struct outgoing *out = outgoing_new();
    (void)send_made(stream, target, msg_empty_encode(&out->buf, WIRE_PREPARE_ABORT, target->request), out, NULL);
}

static struct holders holders_of(const struct load_stream *stream, const struct load_target *targets, size_t count, uint32_t expert)
{
    struct holders holders = {.targets = targets, .ranks = stream->plan.width};
    for (size_t t = 0; t < count; t++) {
        const struct plan_rank *share = &stream->plan.ranks[targets[t].rank];
        if (expert < share->expert_first || expert - share->expert_first >= share->expert_count)
            continue;
        if (!holders.count++)
            holders.targets = &targets[t]; /* those of a group stand together */
    }
    return holders;
}

static int stream_layer(struct load_stream *stream, struct checkpoint *checkpoint, uint32_t layer, struct load_target *targets,
                        size_t count, struct err *err)
{
    int r = checkpoint_scales_hold(checkpoint, layer, err);
    size_t begun = 0, ended = 0;
    for (; r == 0 && begun < count; begun++)
        r = begin_target(stream, layer, &targets[begun], err);
    const struct holders all = {.targets = targets, .count = count, .ranks = stream->plan.tp};
    if (stream->arch.layer_is_moe[layer]) {
        for (uint32_t expert = 0; r == 0 && expert < stream->arch.experts; expert++) {
            const struct holders holders = holders_of(stream, targets, count, expert);
            r = stream_expert(stream, checkpoint, layer, (int)expert, &holders, err);
        }
        if (r == 0 && count && targets[0].has_shared)
            r = stream_expert(stream, checkpoint, layer, ARCH_EXPERT_SHARED, &all, err);
    } else if (r == 0) {
        r = stream_expert(stream, checkpoint, layer, ARCH_EXPERT_DENSE, &all, err);
    }
    checkpoint_scales_drop(checkpoint, layer);
    uint8_t sources[DIGEST_SIZE];
    load_hash_settle(stream->hash);
    if (r == 0 &&
        (!checkpoint_layer_sources(checkpoint, layer, sources) || plan_slot_sources(&stream->arch, &stream->plan, layer, sources) < 0))
        r = err_set(err, -ENOMEM, ERR_NO_MEMORY, "its weights' digest cannot be computed");
    while (r == 0 && ended < count) {
        r = end_target(stream, &targets[ended], sources, err);
        if (r == 0 || r == -ECANCELED)
            ended++;
    }
    for (size_t t = ended; r < 0 && t < begun; t++)
        abort_target(stream, &targets[t]);
    return r;
}

static struct load_target target_of(const struct load_stream *stream, size_t missing)
{
    uint32_t rank = stream->missing[missing].rank;
    return (struct load_target){
        .rank = rank,
        .duck = stream->duck_of_rank[rank],
        .request = load_stream_request(stream->job, missing),
        .staged = stream->staged && stream->sees_stage[rank],
        .expert_first = stream->plan.ranks[rank].expert_first,
    };
}

static int stream_all(struct load_stream *stream, struct checkpoint *checkpoint, struct err *err)
{
    size_t piece_bytes = STREAM_PIECE_BYTES + (size_t)arch_widest(&stream->arch) * LAYOUT_TILE_ROWS;
    /* Most scales: a piece of narrow rows, one float per tile and segment. */
    stream->cutter.scales = calloc(piece_bytes / LAYOUT_TILE_ROWS + 1, sizeof *stream->cutter.scales);
    _cleanup_(freep) struct load_target *targets = calloc(stream->plan.tp, sizeof *targets);
    if (!stream->cutter.scales || !targets)
        return err_no_memory(err, "load buffer", piece_bytes);
    for (uint32_t rank = 0; rank < stream->plan.tp; rank++)
        stream->staged |= stream->sees_stage[rank];
    stream->staged &= piece_bytes <= STAGE_PIECE_BYTES;
    uint8_t *memory = stream->staged ? stream->head->stage->bytes : NULL;
    int began = load_hash_new(checkpoint, memory ? STAGE_PIECE_BYTES : piece_bytes, memory, &stream->hash, err);
    if (began < 0)
        return began;
    stream->parcels.hash = stream->hash;
    stream->cutter.parcels = &stream->parcels;
    stream->cutter.stage = memory;
    for (size_t i = 0; i < stream->missing_count;) {
        uint32_t layer = stream->missing[i].layer;
        size_t count = 0;
        for (; i < stream->missing_count && stream->missing[i].layer == layer; i++)
            targets[count++] = target_of(stream, i);
        int r = stream_layer(stream, checkpoint, layer, targets, count, err);
        if (r < 0)
            return err_prefix(err, "layer %u", layer);
    }
    return 0;
}

int load_stream_run(struct load_stream *stream, struct checkpoint *checkpoint, struct err *err)
{
    int r = stream_all(stream, checkpoint, err);
    load_parcels_wait(&stream->parcels); /* they point into the stream */
    load_hash_free(STEAL(stream->hash)); /* it writes into the checkpoint */
    if (stream->staged)
        stage_give_back(stream->head->stage);
    return r;
}
