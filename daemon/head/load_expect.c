#include "daemon/head/load_expect.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/load_slice.h"
#include "proto/base/background.h"
#include "proto/base/checksum.h"

#define EXPECT_CHUNK_BYTES (512u * 1024) /* read or packed between yields; the system reads ahead */
#define EXPECT_ALIGN 64

/* A matrix that is read once for all ranks, or in pieces again and again when it is too large for that. */
struct source {
    const struct checkpoint_matrix *matrix;
    uint8_t *whole; /* owned; NULL: too large */
};

struct rank {
    struct layout_mlp layout, shared;
    bool has_shared;
    struct checksum *sum;
};

struct work {
    const struct load_expect *what;
    struct rank *ranks;  /* owned, [tp] */
    struct source down;  /* of the expert at hand */
    uint8_t *expert;     /* owned, aligned; one expert of one rank, packed */
    size_t expert_bytes; /* room there */
    uint8_t *rows, *cut; /* owned; a chunk as read, its columns cut out */
    float *scales;       /* owned */
    size_t scales_room;
};

static void work_release(struct work *work)
{
    for (uint32_t rank = 0; work->ranks && rank < work->what->plan->tp; rank++)
        checksum_free(work->ranks[rank].sum);
    free(work->ranks);
    free(work->down.whole);
    free(work->expert);
    free(work->rows);
    free(work->cut);
    free(work->scales);
}

static int begin(struct work *work, uint32_t layer, struct err *err)
{
    const struct load_expect *what = work->what;
    uint32_t tp = what->plan->tp;
    const struct arch *arch = what->arch;
    size_t chunk = EXPECT_CHUNK_BYTES + (size_t)arch_widest(arch) * LAYOUT_TILE_ROWS;
    work->ranks = calloc(tp, sizeof *work->ranks);
    work->rows = malloc(chunk);
    work->cut = malloc(chunk);
    /* A chunk of the narrowest slices has the most scales: one a tile and segment, two tiles of 8 rows in place of one of 16. */
    work->scales_room = chunk / LAYOUT_TILE_ROWS * 2 + 2;
    work->scales = malloc(work->scales_room * sizeof *work->scales);
    if (!work->ranks || !work->rows || !work->cut || !work->scales)
        return err_no_memory(err, "verify", chunk);
    for (uint32_t i = 0; i < tp; i++) {
        struct rank *rank = &work->ranks[i];
        int r = plan_layouts(arch, what->plan, layer, i, &rank->layout, &rank->has_shared, &rank->shared, err);
        if (r < 0)
            return r;
        rank->sum = checksum_new();
        if (!rank->sum)
            return err_no_memory(err, "verify", 0);
        if (rank->layout.expert_bytes > work->expert_bytes)
            work->expert_bytes = rank->layout.expert_bytes;
        if (rank->has_shared && rank->shared.expert_bytes > work->expert_bytes)
            work->expert_bytes = rank->shared.expert_bytes;
    }
    work->expert = aligned_alloc(EXPECT_ALIGN, (work->expert_bytes + EXPECT_ALIGN - 1) / EXPECT_ALIGN * EXPECT_ALIGN);
    return work->expert ? 0 : err_no_memory(err, "verify", work->expert_bytes);
}

static int read_rows(struct work *work, const struct checkpoint_matrix *matrix, uint32_t first, uint32_t rows, uint8_t *to, struct err *err)
{
    if (atomic_load(work->what->cancelled))
        return err_set(err, -ECANCELED, ERR_CANCELLED, "verify was cancelled");
    int r = checkpoint_read(work->what->checkpoint, matrix, first, rows, to, err);
    if (r == 0)
        atomic_fetch_add(work->what->read_bytes, (uint64_t)rows * matrix->columns);
    background_yield();
    return r;
}

static int pack(struct work *work, const struct checkpoint_matrix *matrix, const struct layout_mlp *layout, enum kernels_matrix which,
                uint32_t first, uint32_t rows, const uint8_t *codes, struct err *err)
{
    background_yield();
    load_slice_scales(matrix, layout, which, first, rows, work->scales);
    const struct kernels_rows packed = {.matrix = which, .first_row = first, .rows = rows, .codes = codes, .scales = work->scales};
    return kernels_pack(layout, work->expert, &packed, err);
}

static int pack_rows(struct work *work, const struct checkpoint_matrix *matrix, const struct layout_mlp *layout, enum kernels_matrix which,
                     struct err *err)
{
    uint32_t most = load_slice_rows_at_once(matrix, EXPECT_CHUNK_BYTES);
    for (uint32_t row = 0, rows; row < layout->neurons; row += rows) {
        rows = load_slice_next_rows(layout->begin, layout->neurons, row, most);
        int r = read_rows(work, matrix, layout->begin + row, rows, work->rows, err);
        if (r == 0)
            r = pack(work, matrix, layout, which, row, rows, work->rows, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int pack_columns(struct work *work, const struct layout_mlp *layout, struct err *err)
{
    const struct checkpoint_matrix *matrix = work->down.matrix;
    uint32_t most = load_slice_rows_at_once(matrix, EXPECT_CHUNK_BYTES);
    for (uint32_t row = 0; row < matrix->rows; row += most) {
        uint32_t rows = matrix->rows - row < most ? matrix->rows - row : most;
        const uint8_t *from = work->down.whole ? work->down.whole + (size_t)row * matrix->columns : work->rows;
        int r = work->down.whole ? 0 : read_rows(work, matrix, row, rows, work->rows, err);
        for (uint32_t i = 0; r == 0 && i < rows; i++)
            memcpy(work->cut + (size_t)i * layout->neurons, from + (size_t)i * matrix->columns + layout->begin, layout->neurons);
        if (r == 0)
            r = pack(work, matrix, layout, KERNELS_DOWN, row, rows, work->cut, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int open_down(struct work *work, const struct checkpoint_matrix *matrix, struct err *err)
{
    size_t bytes = (size_t)matrix->rows * matrix->columns;
    free(work->down.whole);
    work->down = (struct source){.matrix = matrix};
    if (bytes > LOAD_EXPECT_MATRIX_MAX)
        return 0;
    work->down.whole = malloc(bytes);
    if (!work->down.whole)
        return err_no_memory(err, "verify", bytes);
    uint32_t most = load_slice_rows_at_once(matrix, EXPECT_CHUNK_BYTES);
    for (uint32_t row = 0; row < matrix->rows; row += most) {
        uint32_t rows = matrix->rows - row < most ? matrix->rows - row : most;
        int r = read_rows(work, matrix, row, rows, work->down.whole + (size_t)row * matrix->columns, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int expert(struct work *work, uint32_t layer, int index, struct err *err)
{
    struct checkpoint *checkpoint = work->what->checkpoint;
    const struct checkpoint_matrix *gate = checkpoint_find(checkpoint, layer, index, KERNELS_GATE);
    const struct checkpoint_matrix *up = checkpoint_find(checkpoint, layer, index, KERNELS_UP);
    int r = open_down(work, checkpoint_find(checkpoint, layer, index, KERNELS_DOWN), err);
    for (uint32_t i = 0; r == 0 && i < work->what->plan->tp; i++) {
        struct rank *rank = &work->ranks[i];
        const struct plan_rank *share = &work->what->plan->ranks[i];
        if (index >= 0 && ((uint32_t)index < share->expert_first || (uint32_t)index - share->expert_first >= share->expert_count))
            continue; /* another group's */
        const struct layout_mlp *layout = index == ARCH_EXPERT_SHARED ? &rank->shared : &rank->layout;
        kernels_pack_begin(layout, work->expert);
        r = pack_rows(work, gate, layout, KERNELS_GATE, err);
        if (r == 0)
            r = pack_rows(work, up, layout, KERNELS_UP, err);
        if (r == 0)
            r = pack_columns(work, layout, err);
        if (r == 0)
            checksum_update(rank->sum, work->expert, layout->expert_bytes);
    }
    return r;
}

int load_expect_layer(const struct load_expect *what, uint32_t layer, uint64_t *ret_sums, struct err *err)
{
    _cleanup_(work_release) struct work work = {.what = what};
    const struct arch *arch = what->arch;
    int r = begin(&work, layer, err);
    if (r == 0)
        r = checkpoint_scales_hold(what->checkpoint, layer, err);
    if (r == 0 && !arch->layer_is_moe[layer])
        r = expert(&work, layer, ARCH_EXPERT_DENSE, err);
    for (uint32_t i = 0; r == 0 && arch->layer_is_moe[layer] && i < arch->experts; i++)
        r = expert(&work, layer, (int)i, err);
    if (r == 0 && arch->layer_is_moe[layer] && work.ranks[0].has_shared)
        r = expert(&work, layer, ARCH_EXPERT_SHARED, err);
    for (uint32_t i = 0; r == 0 && i < what->plan->tp; i++)
        ret_sums[i] = checksum_finish(work.ranks[i].sum);
    checkpoint_scales_drop(what->checkpoint, layer);
    return r;
}
