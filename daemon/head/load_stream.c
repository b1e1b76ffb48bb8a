#include "daemon/head/load_stream.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/load_slice.h"
#include "proto/base/size.h"

#define STREAM_CHUNK_BYTES (4u * 1024 * 1024) /* of codes, read at once and at most in one frame */
#define STREAM_ON_THE_WAY (32u * 1024 * 1024) /* framed and not yet written to links */

struct load_stream {
    struct head *head;
    uint64_t job;
    uint8_t key[DIGEST_SIZE];
    struct arch arch;
    struct plan plan;             /* its ranks are owned */
    uint32_t *duck_of_rank;       /* owned */
    struct core_missing *missing; /* owned */
    size_t missing_count;
    struct digest *digest; /* owned; of the matrix that is being read */
    uint8_t *chunk;        /* owned, STREAM_CHUNK_BYTES + one row group */
    float *scales;         /* owned, of one frame */
    atomic_bool cancelled;
    _Atomic uint64_t read_bytes, sent_bytes;
    pthread_mutex_t lock;
    pthread_cond_t less; /* on_the_way went down, or cancelled */
    uint64_t on_the_way; /* under lock */
};

/* One layer's missing ranks while it is being sent. */
struct target {
    uint32_t rank;
    uint64_t request;
    struct layout_mlp layout;
    bool has_shared;
    struct layout_mlp shared;
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
    stream->missing = calloc(job->missing_count, sizeof *stream->missing);
    if (!stream->plan.ranks || !stream->duck_of_rank || !stream->missing)
        abort();
    memcpy(stream->plan.ranks, model->plan->ranks, tp * sizeof *stream->plan.ranks);
    memcpy(stream->duck_of_rank, model->duck_of_rank, tp * sizeof *stream->duck_of_rank);
    memcpy(stream->missing, job->missing, job->missing_count * sizeof *stream->missing);
    stream->missing_count = job->missing_count;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->less, NULL);
    return stream;
}

void load_stream_free(struct load_stream *stream)
{
    if (!stream)
        return;
    free(stream->plan.ranks);
    free(stream->duck_of_rank);
    free(stream->missing);
    digest_free(stream->digest);
    free(stream->chunk);
    free(stream->scales);
    pthread_cond_destroy(&stream->less);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

void load_stream_cancel(struct load_stream *stream)
{
    atomic_store(&stream->cancelled, true);
    pthread_mutex_lock(&stream->lock);
    pthread_cond_signal(&stream->less);
    pthread_mutex_unlock(&stream->lock);
}

void load_stream_progress(struct load_stream *stream, uint64_t *ret_read_bytes, uint64_t *ret_sent_bytes)
{
    *ret_read_bytes = atomic_load(&stream->read_bytes);
    *ret_sent_bytes = atomic_load(&stream->sent_bytes);
}

/* ---- frames on their way ---- */

struct parcel {
    struct load_stream *stream;
    uint32_t duck;
    size_t bytes;
    struct outgoing *out;
};

/* Loop thread: the frame is written, or dropped with its link. */
static void parcel_sent(void *user)
{
    struct parcel *parcel = user;
    struct load_stream *stream = parcel->stream;
    pthread_mutex_lock(&stream->lock);
    stream->on_the_way -= parcel->bytes;
    pthread_cond_signal(&stream->less);
    pthread_mutex_unlock(&stream->lock);
    free(parcel);
}

/* Loop thread. */
static void parcel_hand_over(void *user)
{
    struct parcel *parcel = user;
    struct outgoing *out = parcel->out;
    peer_send(parcel->stream->head->peers[parcel->duck], out, true);
    outgoing_unref(out); /* may call parcel_sent */
}

/* Waits until the links have taken enough, then hands the frame to the loop. Takes out. */
static int send_out(struct load_stream *stream, uint32_t rank, struct outgoing *out, struct err *err)
{
    struct parcel *parcel = calloc(1, sizeof *parcel);
    if (!parcel)
        abort();
    *parcel = (struct parcel){.stream = stream, .duck = stream->duck_of_rank[rank], .bytes = out->buf.length, .out = out};
    pthread_mutex_lock(&stream->lock);
    while (stream->on_the_way > STREAM_ON_THE_WAY && !atomic_load(&stream->cancelled))
        pthread_cond_wait(&stream->less, &stream->lock);
    stream->on_the_way += parcel->bytes;
    pthread_mutex_unlock(&stream->lock);
    atomic_fetch_add(&stream->sent_bytes, parcel->bytes);
    out->sent = parcel_sent;
    out->user = parcel;
    loop_post(stream->head->loop, parcel_hand_over, parcel);
    if (atomic_load(&stream->cancelled))
        return err_set(err, -ECANCELED, ERR_CANCELLED, "load was cancelled");
    return 0;
}

/* The stream may only go when no parcel points to it. Links that are lost drop their frames, so this ends. */
static void wait_for_parcels(struct load_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->on_the_way)
        pthread_cond_wait(&stream->less, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

static int encoded(int r, struct outgoing *out, struct err *err)
{
    if (r == 0)
        return 0;
    outgoing_unref(out);
    return err_set(err, r, r == -ENOMEM ? ERR_NO_MEMORY : ERR_INTERNAL, "a prepare frame cannot be made: %s", strerror(-r));
}

static int send_empty(struct load_stream *stream, enum wire_type type, const struct target *target, struct err *err)
{
    struct outgoing *out = outgoing_new();
    int r = encoded(msg_empty_encode(&out->buf, type, target->request), out, err);
    return r < 0 ? r : send_out(stream, target->rank, out, err);
}

/* ---- one matrix ---- */

/* Cuts columns [first_column, first_column + columns) out of `rows` rows of `stride` bytes and sends them as rows of one rank's slice. */
static int send_rows(struct load_stream *stream, const struct checkpoint_matrix *matrix, const struct target *target,
                     const struct layout_mlp *layout, uint32_t expert, enum kernels_matrix which, uint32_t first_row, uint32_t rows,
                     const uint8_t *codes, uint32_t stride, uint32_t first_column, uint32_t columns, struct err *err)
{
    struct msg_prepare_data msg = {
        .expert = expert,
        .matrix = (uint8_t)which,
        .first_row = first_row,
        .rows = rows,
        .columns = columns,
        .scale_count = load_slice_scales(matrix, layout, which, first_row, rows, stream->scales),
    };
    struct outgoing *out = outgoing_new();
    uint8_t *to;
    int r = encoded(msg_prepare_data_encode(&out->buf, target->request, &msg, stream->scales, &to), out, err);
    if (r < 0)
        return r;
    if (columns == stride)
        memcpy(to, codes, (size_t)rows * columns);
    else
        for (uint32_t row = 0; row < rows; row++)
            memcpy(to + (size_t)row * columns, codes + (size_t)row * stride + first_column, columns);
    return send_out(stream, target->rank, out, err);
}

static int read_rows(struct load_stream *stream, struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, uint32_t first,
                     uint32_t rows, struct err *err)
{
    if (atomic_load(&stream->cancelled))
        return err_set(err, -ECANCELED, ERR_CANCELLED, "load was cancelled");
    int r = checkpoint_read(checkpoint, matrix, first, rows, stream->chunk, err);
    if (r < 0)
        return r;
    atomic_fetch_add(&stream->read_bytes, (uint64_t)rows * matrix->columns);
    uint32_t row, column;
    if (!checkpoint_find_nan(stream->chunk, rows, matrix->columns, &row, &column))
        return 0;
    err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: tensor %s.weight: row %u, column %u holds the E4M3 code of NaN",
            checkpoint_shard_name(checkpoint, matrix->shard), matrix->name, first + row, column);
    err_value_str(err, "file", checkpoint_shard_name(checkpoint, matrix->shard));
    err_value_str(err, "tensor", matrix->name);
    err_value_int(err, "row", first + row);
    err_value_int(err, "column", column);
    return -EINVAL;
}

static const struct layout_mlp *layout_of(const struct target *target, int expert)
{
    return expert == ARCH_EXPERT_SHARED ? &target->shared : &target->layout;
}

static uint32_t wire_expert(int expert)
{
    return expert == ARCH_EXPERT_SHARED ? MSG_EXPERT_SHARED : expert == ARCH_EXPERT_DENSE ? 0 : (uint32_t)expert;
}

/* The rows of a rank: every rank's follow on the one before, from 0 to the last row. */
static const struct plan_slice *slice_of_rank(const struct load_stream *stream, int expert, uint32_t rank)
{
    const struct plan_rank *share = &stream->plan.ranks[rank];
    return expert == ARCH_EXPERT_SHARED ? &share->shared : expert == ARCH_EXPERT_DENSE ? &share->dense : &share->routed;
}

static void keep_digest(struct load_stream *stream, struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix)
{
    uint8_t digest[DIGEST_SIZE];
    digest_finish(stream->digest, digest);
    checkpoint_digest_set(checkpoint, matrix, digest);
}

/* gate_proj, up_proj: a rank's slice is a run of rows. Those of other ranks are read only when the matrix has no digest yet. */
static int stream_by_rows(struct load_stream *stream, struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, int expert,
                          enum kernels_matrix which, const struct target *targets, size_t count, struct err *err)
{
    uint32_t most = load_slice_rows_at_once(matrix, STREAM_CHUNK_BYTES);
    bool digests = !checkpoint_digest_known(checkpoint, matrix);
    size_t t = 0;
    for (uint32_t rank = 0; rank < stream->plan.tp; rank++) {
        const struct target *target = t < count && targets[t].rank == rank ? &targets[t++] : NULL;
        const struct plan_slice *slice = slice_of_rank(stream, expert, rank);
        for (uint32_t row = 0, rows; (target || digests) && row < slice->neurons; row += rows) {
            rows = load_slice_next_rows(slice->begin, slice->neurons, row, most);
            int r = read_rows(stream, checkpoint, matrix, slice->begin + row, rows, err);
            if (r == 0 && digests)
                digest_update(stream->digest, stream->chunk, (size_t)rows * matrix->columns);
            if (r == 0 && target)
                r = send_rows(stream, matrix, target, layout_of(target, expert), wire_expert(expert), which, row, rows, stream->chunk,
                              matrix->columns, 0, matrix->columns, err);
            if (r < 0)
                return r;
        }
    }
    if (digests)
        keep_digest(stream, checkpoint, matrix);
    return 0;
}

/* down_proj: a rank's slice is a run of columns; each piece is read once for all ranks. */
static int stream_by_columns(struct load_stream *stream, struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, int expert,
                             const struct target *targets, size_t count, struct err *err)
{
    uint32_t most = load_slice_rows_at_once(matrix, STREAM_CHUNK_BYTES);
    bool digests = !checkpoint_digest_known(checkpoint, matrix);
    for (uint32_t row = 0; row < matrix->rows; row += most) {
        uint32_t rows = matrix->rows - row < most ? matrix->rows - row : most;
        int r = read_rows(stream, checkpoint, matrix, row, rows, err);
        if (r == 0 && digests)
            digest_update(stream->digest, stream->chunk, (size_t)rows * matrix->columns);
        for (size_t t = 0; r == 0 && t < count; t++) {
            const struct layout_mlp *layout = layout_of(&targets[t], expert);
            r = send_rows(stream, matrix, &targets[t], layout, wire_expert(expert), KERNELS_DOWN, row, rows, stream->chunk, matrix->columns,
                          layout->begin, layout->neurons, err);
        }
        if (r < 0)
            return r;
    }
    if (digests)
        keep_digest(stream, checkpoint, matrix);
    return 0;
}

static int stream_expert(struct load_stream *stream, struct checkpoint *checkpoint, uint32_t layer, int expert,
                         const struct target *targets, size_t count, struct err *err)
{
    for (enum kernels_matrix which = KERNELS_GATE; which <= KERNELS_DOWN; which++) {
        const struct checkpoint_matrix *matrix = checkpoint_find(checkpoint, layer, expert, which);
        int r = which == KERNELS_DOWN ? stream_by_columns(stream, checkpoint, matrix, expert, targets, count, err)
                                      : stream_by_rows(stream, checkpoint, matrix, expert, which, targets, count, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- one layer ---- */

static struct msg_slice slice_of(const struct layout_mlp *layout)
{
    /* pad_to is the padded width itself: the duck rounds `neurons` up to it and gets the same layout. */
    return (struct msg_slice){
        .hidden = layout->hidden, .begin = layout->begin, .neurons = layout->neurons, .pad_to = layout->neurons_padded};
}

static int begin_target(struct load_stream *stream, uint32_t layer, struct target *target, struct err *err)
{
    int r = plan_layouts(&stream->arch, &stream->plan, layer, target->rank, &target->layout, &target->has_shared, &target->shared, err);
    if (r < 0)
        return r;
    bool moe = stream->arch.layer_is_moe[layer];
    struct msg_prepare_begin msg = {
        .layout_version = LAYOUT_VERSION,
        .tp = stream->plan.tp,
        .rank = target->rank,
        .multiple_of = stream->plan.multiple_of,
        .layer = layer,
        .kind = moe ? MSG_SLOT_MOE : MSG_SLOT_DENSE,
        .experts = moe ? stream->arch.experts : 1,
        .slice = slice_of(&target->layout),
        .has_shared = target->has_shared,
        .shared = target->has_shared ? slice_of(&target->shared) : (struct msg_slice){0},
    };
    memcpy(msg.model_key, stream->key, DIGEST_SIZE);
    struct outgoing *out = outgoing_new();
    r = encoded(msg_prepare_begin_encode(&out->buf, target->request, &msg), out, err);
    return r < 0 ? r : send_out(stream, target->rank, out, err);
}

static int end_target(struct load_stream *stream, const struct target *target, const uint8_t sources[DIGEST_SIZE], struct err *err)
{
    struct outgoing *out = outgoing_new();
    int r = encoded(msg_prepare_sources_encode(&out->buf, target->request, sources), out, err);
    if (r == 0)
        r = send_out(stream, target->rank, out, err);
    return r < 0 ? r : send_empty(stream, WIRE_PREPARE_END, target, err);
}

static int stream_layer(struct load_stream *stream, struct checkpoint *checkpoint, uint32_t layer, struct target *targets, size_t count,
                        struct err *err)
{
    int r = 0;
    size_t begun = 0;
    for (; r == 0 && begun < count; begun++)
        r = begin_target(stream, layer, &targets[begun], err);
    if (stream->arch.layer_is_moe[layer]) {
        for (uint32_t expert = 0; r == 0 && expert < stream->arch.experts; expert++)
            r = stream_expert(stream, checkpoint, layer, (int)expert, targets, count, err);
        if (r == 0 && count && targets[0].has_shared)
            r = stream_expert(stream, checkpoint, layer, ARCH_EXPERT_SHARED, targets, count, err);
    } else if (r == 0) {
        r = stream_expert(stream, checkpoint, layer, ARCH_EXPERT_DENSE, targets, count, err);
    }
    uint8_t sources[DIGEST_SIZE];
    if (r == 0 && !checkpoint_layer_sources(checkpoint, layer, sources))
        r = err_set(err, -ENOMEM, ERR_NO_MEMORY, "its weights' digest cannot be computed");
    size_t ended = 0;
    for (; r == 0 && ended < count; ended++)
        r = end_target(stream, &targets[ended], sources, err);
    for (size_t t = ended; r < 0 && t < begun; t++)
        send_empty(stream, WIRE_PREPARE_ABORT, &targets[t], NULL);
    return r;
}

static int stream_all(struct load_stream *stream, struct checkpoint *checkpoint, struct err *err)
{
    uint32_t widest = stream->arch.hidden;
    if (stream->arch.dense_intermediate > widest)
        widest = stream->arch.dense_intermediate;
    if (stream->arch.moe_intermediate > widest)
        widest = stream->arch.moe_intermediate;
    if (stream->arch.shared_intermediate > widest)
        widest = stream->arch.shared_intermediate;
    size_t chunk_bytes = STREAM_CHUNK_BYTES + (size_t)widest * LAYOUT_TILE_ROWS;
    stream->chunk = malloc(chunk_bytes);
    /* Most scales: a chunk of narrow rows, one float per tile and segment. */
    stream->scales = calloc(chunk_bytes / LAYOUT_TILE_ROWS + 1, sizeof *stream->scales);
    _cleanup_(freep) struct target *targets = calloc(stream->plan.tp, sizeof *targets);
    stream->digest = digest_new();
    if (!stream->chunk || !stream->scales || !targets || !stream->digest)
        return err_no_memory(err, "load buffer", chunk_bytes);
    for (size_t i = 0; i < stream->missing_count;) {
        uint32_t layer = stream->missing[i].layer;
        size_t count = 0;
        for (; i < stream->missing_count && stream->missing[i].layer == layer; i++)
            targets[count++] = (struct target){.rank = stream->missing[i].rank, .request = load_stream_request(stream->job, i)};
        int r = stream_layer(stream, checkpoint, layer, targets, count, err);
        if (r < 0)
            return err_prefix(err, "layer %u", layer);
    }
    return 0;
}

int load_stream_run(struct load_stream *stream, struct checkpoint *checkpoint, struct err *err)
{
    int r = stream_all(stream, checkpoint, err);
    wait_for_parcels(stream);
    return r;
}
