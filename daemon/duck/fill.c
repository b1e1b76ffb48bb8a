#include "daemon/duck/fill.h"

#include <errno.h>
#include <string.h>

#include "daemon/duck/draft.h"
#include "daemon/duck/fill_pool.h"
#include "daemon/duck/ignored.h"
#include "daemon/duck/tally.h"
#include "proto/base/bytes.h"
#include "proto/base/size.h"

struct fill {
    bool used;
    bool ending; /* its FILL_SUMS is out */
    uint64_t request, serial;
    uint32_t slot;
    struct tally tally;
    struct draft *draft; /* a use of it */
    uint32_t drafting;   /* the expert that is in it, by index + 1; 0: none */
};

struct fills {
    struct wbuf *wbuf; /* borrowed */
    struct fill fills[FILLS_MAX];
    struct ignored ignored; /* requests that failed */
    uint64_t serial;
    uint32_t out; /* works */
    struct fill_pool pool;
};

int fills_new(struct wbuf *wbuf, struct fills **ret_fills, struct err *err)
{
    struct fills *fills = calloc(1, sizeof *fills);
    if (!fills)
        return err_no_memory(err, "prepare", sizeof *fills);
    fills->wbuf = wbuf;
    *ret_fills = fills;
    return 0;
}

static void fill_release(struct fills *fills, struct fill *fill)
{
    fill_pool_undraft(&fills->pool, fill->draft);
    tally_release(&fill->tally);
    *fill = (struct fill){0};
}

static void fill_drop(struct fills *fills, struct fill *fill)
{
    wbuf_drop(fills->wbuf, fill->slot);
    fill_release(fills, fill);
}

/* ---- work --------------------------------------------------------------------------------------- */

/* For a fill, its slot pinned. NULL: out of memory. */
static struct fill_work *work_new(struct fills *fills, const struct fill *fill, enum fill_kind kind, size_t room)
{
    struct fill_work *work = fill_pool_take(&fills->pool, room);
    if (!work)
        return NULL;
    work->next = NULL;
    work->kind = kind;
    work->request = fill->request;
    work->serial = fill->serial;
    work->slot = fill->slot;
    work->layer = wbuf_describe(fills->wbuf, fill->slot).layer;
    work->code = 0;
    work->err = (struct err){0};
    work->draft = fill->draft;
    work->draft->users++;
    wbuf_pin(fills->wbuf, fill->slot);
    fills->out++;
    return work;
}

static void work_back(struct fills *fills, struct fill_work *work)
{
    wbuf_unpin(fills->wbuf, work->slot);
    fill_pool_undraft(&fills->pool, STEAL(work->draft));
    fills->out--;
    fill_pool_give(&fills->pool, work);
}

void fill_work_discard(struct fills *fills, struct fill_work *work)
{
    work_back(fills, work);
}

uint32_t fills_out(const struct fills *fills)
{
    return fills->out;
}

void fill_work_run(struct fill_work *work)
{
    work->code = work->kind == FILL_ROWS ? draft_rows(work) : draft_sum(work->draft, &work->checksum, &work->err);
}

void fills_free(struct fills *fills)
{
    if (!fills)
        return;
    for (size_t i = 0; i < FILLS_MAX; i++)
        if (fills->fills[i].used)
            fill_drop(fills, &fills->fills[i]);
    fill_pool_release(&fills->pool);
    free(fills);
}

bool fills_active(const struct fills *fills)
{
    for (size_t i = 0; i < FILLS_MAX; i++)
        if (fills->fills[i].used)
            return true;
    return false;
}

/* ---- fills by request ----------------------------------------------------------------------------- */

static struct fill *fill_find(struct fills *fills, uint64_t request)
{
    for (size_t i = 0; i < FILLS_MAX; i++)
        if (fills->fills[i].used && fills->fills[i].request == request)
            return &fills->fills[i];
    return NULL;
}

static int no_such(struct fills *fills, uint64_t request, struct err *err)
{
    ignored_add(&fills->ignored, request);
    return err_set(err, -EPROTO, ERR_BAD_REQUEST, "request %llu: no PREPARE_BEGIN came before", (unsigned long long)request);
}

/* ---- begin -------------------------------------------------------------------------------------- */

static struct fill *fill_of_slot(struct fills *fills, uint32_t slot)
{
    for (size_t i = 0; i < FILLS_MAX; i++)
        if (fills->fills[i].used && fills->fills[i].slot == slot)
            return &fills->fills[i];
    return NULL;
}

/* True for a slot that cannot stand beside a new one of these words. */
static bool conflicts(const struct msg_slot *slot, const struct msg_prepare_begin *words)
{
    if (memcmp(slot->model_key, words->model_key, DIGEST_SIZE) != 0)
        return false;
    return slot->layer == words->layer || slot->tp != words->tp || slot->rank != words->rank || slot->multiple_of != words->multiple_of;
}

static int make_way(struct fills *fills, const struct msg_prepare_begin *words, struct err *err)
{
    struct wbuf *wbuf = fills->wbuf;
    for (uint32_t i = 0; i < WBUF_SLOTS_MAX; i++) {
        if (!wbuf_taken(wbuf, i))
            continue;
        struct msg_slot slot = wbuf_describe(wbuf, i);
        const struct fill *other = conflicts(&slot, words) ? fill_of_slot(fills, i) : NULL;
        if (other)
            return err_set(err, -EBUSY, ERR_BUSY, "layer %u is being prepared by request %llu", slot.layer,
                           (unsigned long long)other->request);
    }
    for (uint32_t i = 0; i < WBUF_SLOTS_MAX; i++) {
        if (!wbuf_taken(wbuf, i))
            continue;
        struct msg_slot slot = wbuf_describe(wbuf, i);
        if (conflicts(&slot, words))
            wbuf_drop(wbuf, i);
    }
    return 0;
}

static int begin(struct fills *fills, uint64_t request, const struct msg_prepare_begin *words, struct err *err)
{
    if (fill_find(fills, request))
        return err_set(err, -EPROTO, ERR_BAD_REQUEST, "request %llu is already being prepared", (unsigned long long)request);
    struct fill *fill = NULL;
    for (size_t i = 0; i < FILLS_MAX && !fill; i++)
        if (!fills->fills[i].used)
            fill = &fills->fills[i];
    if (!fill)
        return err_set(err, -EBUSY, ERR_BUSY, "%d layers are being prepared already", FILLS_MAX);
    struct geometry geometry;
    int r = geometry_init(words, &geometry, err);
    if (r < 0)
        return r;
    r = make_way(fills, words, err);
    if (r < 0)
        return r;
    uint32_t slot;
    r = wbuf_reserve(fills->wbuf, words, &slot, err);
    if (r < 0)
        return r;
    struct fill made = {.used = true, .request = request, .serial = ++fills->serial, .slot = slot};
    r = tally_init(&made.tally, &geometry, err);
    made.draft = r == 0 ? fill_pool_draft(&fills->pool, fills->wbuf, slot) : NULL;
    if (r == 0 && !made.draft)
        r = err_no_memory(err, "prepare", sizeof *made.draft);
    if (r < 0) {
        fill_drop(fills, &made);
        return r;
    }
    *fill = made;
    return 0;
}

int fill_begin(struct fills *fills, uint64_t request, const struct msg_prepare_begin *words, struct err *err)
{
    ignored_forget(&fills->ignored, request);
    int r = begin(fills, request, words, err);
    if (r == 0)
        return 0;
    struct fill *fill = fill_find(fills, request); /* a second BEGIN spoils the first */
    if (fill)
        fill_drop(fills, fill);
    ignored_add(&fills->ignored, request);
    return err_prefix(err, "prepare of layer %u", words->layer);
}

/* ---- data --------------------------------------------------------------------------------------- */

/* Which expert. */
struct target {
    const struct layout_mlp *layout;
    uint8_t *bytes;
    uint32_t index;
    char name[32];
};

static int target_of(const struct fills *fills, const struct fill *fill, uint32_t expert, struct target *ret_target, struct err *err)
{
    const struct geometry *g = wbuf_geometry(fills->wbuf, fill->slot);
    uint8_t *data = wbuf_data(fills->wbuf, fill->slot);
    bool shared = expert == MSG_EXPERT_SHARED;
    if (shared && !g->has_shared)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "this layer has no shared expert");
    if (!shared && expert >= g->experts)
        return err_set(err, -EINVAL, ERR_BAD_EXPERT, "expert %u, the slot has %u", expert, g->experts);
    *ret_target = (struct target){
        .layout = shared ? &g->shared : &g->layout,
        .bytes = shared ? data + g->shared_offset : data + expert * g->layout.expert_bytes,
        .index = shared ? g->experts : expert,
    };
    if (shared)
        snprintf(ret_target->name, sizeof ret_target->name, "shared expert");
    else if (g->kind == MSG_SLOT_MOE)
        snprintf(ret_target->name, sizeof ret_target->name, "expert %u", g->expert_first + expert);
    return 0;
}

static struct tally_rows tiles_of(const struct target *target, const struct msg_prepare_data *data)
{
    return (struct tally_rows){.layout = target->layout,
                               .index = target->index,
                               .matrix = (enum kernels_matrix)data->matrix,
                               .first_row = data->first_row,
                               .rows = data->rows};
}

/* The sizes that kernels_pack takes on trust (columns, scales) and the rows that it has no memory of. */
static int check_rows(const struct fill *fill, const struct target *target, const struct msg_prepare_data *data, struct err *err)
{
    enum kernels_matrix matrix = (enum kernels_matrix)data->matrix;
    const struct layout_matrix *shape = geometry_matrix(target->layout, matrix);
    uint32_t rows = geometry_rows(target->layout, matrix);
    const char *name = kernels_matrix_name(matrix);
    if (data->columns != shape->columns)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: rows of %u columns, the slice has %u", name, data->columns, shape->columns);
    if (data->rows == 0 || data->first_row >= rows || data->rows > rows - data->first_row || !layout_tile_begins(shape, data->first_row))
        return err_set(err, -EINVAL, ERR_BAD_SHAPE,
                       "%s: %u row%s from row %u on, the slice has %u and rows come from multiples of %d%s", name, data->rows,
                       size_plural(data->rows), data->first_row, rows, LAYOUT_TILE_ROWS, shape->row_origin ? ", less 8" : "");
    uint64_t scales = (uint64_t)layout_tiles(shape, data->first_row, data->rows) * shape->segments;
    if (data->scale_count != scales)
        return err_set(err, -EINVAL, ERR_BAD_SHAPE, "%s: %u scale%s for %u row%s of %u segment%s, %llu needed", name, data->scale_count,
                       size_plural(data->scale_count), data->rows, size_plural(data->rows), shape->segments, size_plural(shape->segments),
                       (unsigned long long)scales);
    const struct tally_rows tiles = tiles_of(target, data);
    uint32_t row;
    if (tally_find(&fill->tally, &tiles, &row))
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s: row %u arrived twice", name, row);
    return 0;
}

/* Where a frame's rows are. */
struct source {
    const struct msg_prepare_data *data;
    const uint8_t *codes;
    size_t stride;
    bool stays; /* in the stage: need not be copied */
};

/* Copies of what does not stay, the scales aligned. */
static int work_of_rows(struct fills *fills, const struct fill *fill, const struct target *target, const struct source *source,
                        struct fill_work **ret_work, struct err *err)
{
    const struct msg_prepare_data *data = source->data;
    size_t codes = source->stays ? 0 : (size_t)data->rows * data->columns, scales = data->scale_count * sizeof(float);
    struct fill_work *work = work_new(fills, fill, FILL_ROWS, scales + codes);
    if (!work)
        return err_no_memory(err, "rows", scales + codes);
    float *to = (float *)(void *)work->memory;
    struct bytes_reader r = bytes_reader_init(data->scales, scales);
    for (uint32_t i = 0; i < data->scale_count; i++)
        to[i] = bytes_read_f32(&r);
    if (!source->stays)
        memcpy(work->memory + scales, source->codes, codes);
    work->staged = source->stays;
    work->layout = *target->layout;
    work->expert = target->bytes;
    work->rows = (struct kernels_rows){
        .matrix = (enum kernels_matrix)data->matrix,
        .first_row = data->first_row,
        .rows = data->rows,
        .codes = source->stays ? source->codes : work->memory + scales,
        .stride = source->stride,
        .scales = to,
    };
    memcpy(work->name, target->name, sizeof work->name);
    *ret_work = work;
    return 0;
}

static int take_rows(struct fills *fills, struct fill *fill, const struct source *source, struct fill_work **ret_work, struct err *err)
{
    const struct msg_prepare_data *data = source->data;
    struct target target;
    if (fill->ending)
        return err_set(err, -EPROTO, ERR_BAD_REQUEST, "rows after PREPARE_END");
    if (data->matrix > KERNELS_DOWN)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "matrix %u", data->matrix);
    int r = target_of(fills, fill, data->expert, &target, err);
    if (r < 0)
        return r;
    r = check_rows(fill, &target, data, err);
    if (r == 0)
        r = work_of_rows(fills, fill, &target, source, ret_work, err);
    if (r < 0)
        return err_prefix(err, "%s", target.name[0] ? target.name : "dense MLP");
    struct fill_work *work = *ret_work;
    const struct tally_rows tiles = tiles_of(&target, data);
    tally_take(&fill->tally, &tiles, &work->begin, &work->end);
    work->part = target.index;
    if (work->begin && !fill->drafting && target.layout->expert_bytes <= fill->draft->room)
        fill->drafting = target.index + 1;
    work->drafted = fill->drafting == target.index + 1;
    if (work->drafted && work->end)
        fill->drafting = 0;
    return 0;
}

static int fill_rows(struct fills *fills, uint64_t request, const struct source *source, struct fill_work **ret_work, struct err *err)
{
    *ret_work = NULL;
    struct fill *fill = fill_find(fills, request);
    if (!fill)
        return ignored_has(&fills->ignored, request) ? 0 : no_such(fills, request, err);
    int r = take_rows(fills, fill, source, ret_work, err);
    if (r == 0)
        return 0;
    uint32_t layer = wbuf_describe(fills->wbuf, fill->slot).layer;
    fill_drop(fills, fill);
    ignored_add(&fills->ignored, request);
    return err_prefix(err, "prepare of layer %u", layer);
}

int fill_data(struct fills *fills, uint64_t request, const struct msg_prepare_data *data, struct fill_work **ret_work, struct err *err)
{
    const struct source source = {.data = data, .codes = data->codes, .stride = data->columns};
    return fill_rows(fills, request, &source, ret_work, err);
}

int fill_staged(struct fills *fills, uint64_t request, const struct msg_prepare_data *data, const uint8_t *codes, size_t stride,
                struct fill_work **ret_work, struct err *err)
{
    const struct source source = {.data = data, .codes = codes, .stride = stride, .stays = true};
    return fill_rows(fills, request, &source, ret_work, err);
}

/* ---- end ---------------------------------------------------------------------------------------- */

static int missing(const struct fills *fills, const struct fill *fill, struct err *err)
{
    const struct geometry *g = wbuf_geometry(fills->wbuf, fill->slot);
    struct tally_missing first = tally_first_missing(&fill->tally, g);
    struct target target;
    int r = target_of(fills, fill, first.index == g->experts ? MSG_EXPERT_SHARED : first.index, &target, err);
    if (r < 0)
        return r;
    uint64_t left = fill->tally.tiles_left;
    return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s%s%s: rows from %u on are missing (%llu tile%s of 16 rows %s not arrived)",
                   target.name, target.name[0] ? " " : "", kernels_matrix_name(first.matrix), first.row, (unsigned long long)left,
                   size_plural(left), left == 1 ? "has" : "have");
}

int fill_sources(struct fills *fills, uint64_t request, const uint8_t sources[DIGEST_SIZE], struct err *err)
{
    const struct fill *fill = fill_find(fills, request);
    if (!fill)
        return ignored_has(&fills->ignored, request) ? 0 : no_such(fills, request, err);
    wbuf_set_sources(fills->wbuf, fill->slot, sources);
    return 0;
}

int fill_end(struct fills *fills, uint64_t request, struct fill_work **ret_work, struct err *err)
{
    *ret_work = NULL;
    struct fill *fill = fill_find(fills, request);
    if (!fill)
        return ignored_forget(&fills->ignored, request) ? 0 : no_such(fills, request, err);
    int r = 0;
    if (fill->tally.tiles_left > 0)
        r = missing(fills, fill, err);
    else if (fill->ending)
        r = err_set(err, -EPROTO, ERR_BAD_REQUEST, "a second PREPARE_END");
    struct fill_work *work = r == 0 ? work_new(fills, fill, FILL_SUMS, 0) : NULL;
    if (r == 0 && !work)
        r = err_no_memory(err, "prepare", sizeof *work);
    if (r < 0) {
        uint32_t layer = wbuf_describe(fills->wbuf, fill->slot).layer;
        fill_drop(fills, fill);
        return err_prefix(err, "prepare of layer %u", layer);
    }
    fill->ending = true;
    *ret_work = work;
    return 0;
}

/* The fill that work was handed out for; NULL: it was dropped meanwhile. */
static struct fill *fill_of_work(struct fills *fills, const struct fill_work *work)
{
    struct fill *fill = fill_find(fills, work->request);
    return fill && fill->serial == work->serial ? fill : NULL;
}

int fill_done(struct fills *fills, struct fill_work *work, struct msg_slot *ret_slot, struct err *err)
{
    struct fill *fill = fill_of_work(fills, work);
    int r = 0;
    if (fill && work->code < 0) {
        err_copy(err, &work->err);
        if (!fill->ending) /* else no frame of it comes any more */
            ignored_add(&fills->ignored, fill->request);
        fill_drop(fills, fill);
        r = err_prefix(err, "prepare of layer %u", work->layer);
    } else if (fill && work->kind == FILL_SUMS) {
        wbuf_finish_summed(fills->wbuf, fill->slot, work->checksum);
        *ret_slot = wbuf_describe(fills->wbuf, fill->slot);
        fill_release(fills, fill);
        r = 1;
    }
    work_back(fills, work);
    if (!fills->out && !fills_active(fills))
        fill_pool_release(&fills->pool);
    return r;
}

void fills_drop(struct fills *fills, const uint8_t *model_key, uint64_t ret_requests[FILLS_MAX], size_t *ret_count)
{
    *ret_count = 0;
    for (size_t i = 0; i < FILLS_MAX; i++) {
        struct fill *fill = &fills->fills[i];
        if (!fill->used)
            continue;
        struct msg_slot slot = wbuf_describe(fills->wbuf, fill->slot);
        if (model_key && memcmp(slot.model_key, model_key, DIGEST_SIZE) != 0)
            continue;
        if (!fill->ending)
            ignored_add(&fills->ignored, fill->request);
        ret_requests[(*ret_count)++] = fill->request;
        fill_drop(fills, fill);
    }
}

void fill_abort(struct fills *fills, uint64_t request)
{
    struct fill *fill = fill_find(fills, request);
    if (fill)
        fill_drop(fills, fill);
    ignored_forget(&fills->ignored, request);
}
