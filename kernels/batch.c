#include "kernels/batch.h"

#include <string.h>

/* A block of tokens through some panels, a few segments at a time: their x' of those segments and the sums of the panels are together what
 * L2 holds, while the weights come by once a block. */
#define TOKENS 128
#define PANELS 8
#define SEGMENTS 4
/* Vectors up to this many bytes stay in L2 whole: then the weights are read as they lie. */
#define SINGLE (256 << 10)
/* Fewer tokens are a pass or two of decode's. */
#define MIN 5

#define RAW_FLOATS ((size_t)LAYOUT_BLOCK * LAYOUT_PANEL_ROWS)
#define BLOCK_GROUPS (LAYOUT_BLOCK / LAYOUT_GROUP_COLUMNS)

struct batch {
    const struct tiers_gemm *gemm;
    const struct tiers_run *run;
    const struct tiers_token *tokens;
    uint32_t count;
    float *raw;  /* [128][32] */
    float *accs; /* [panel][count][32] */
};

/* Where a segment is. */
struct segment {
    uint32_t groups;
    bool half;
    size_t column, offset; /* in the vectors; bytes in a whole panel */
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

size_t batch_scratch_bytes(void)
{
    return (RAW_FLOATS + (size_t)PANELS * TOKENS * LAYOUT_PANEL_ROWS) * sizeof(float);
}

static struct segment segment_of(const struct tiers_run *run, uint32_t i)
{
    uint32_t before = i == 0 ? 0 : run->first_groups + (i - 1) * BLOCK_GROUPS, half_before = i > 0 && run->first_half;

    return (struct segment){
        .groups = i == 0 ? run->first_groups : least(run->groups - before, BLOCK_GROUPS),
        .half = i + 1 == run->segments ? run->last_half : i == 0 && run->first_half,
        .column = (size_t)before * LAYOUT_GROUP_COLUMNS + half_before * LAYOUT_UNIT,
        .offset = (size_t)before * LAYOUT_GROUP_BYTES + half_before * LAYOUT_HALF_BYTES,
    };
}

static bool is_half(const struct tiers_run *run, uint32_t panel)
{
    return (run->head_half && panel == 0) || (run->tail_half && panel + 1 == run->count);
}

/* Half panels before a panel, each counted as one half less. */
static size_t halves_before(const struct tiers_run *run, uint32_t panel)
{
    return 2 * (size_t)panel - (run->head_half && panel > 0);
}

static void add_segments(const struct batch *batch, uint32_t panel, uint32_t first, uint32_t end, float *acc)
{
    const struct tiers_gemm *gemm = batch->gemm;
    const struct tiers_run *run = batch->run;
    bool half_panel = is_half(run, panel);
    const uint8_t *bytes = run->panels + halves_before(run, panel) * (tiers_panel_bytes(run) / 2);
    const float *scale = run->scales + ((size_t)panel * run->segments + first) * 2;

    for (uint32_t i = first; i < end; i++, scale += 2) {
        struct segment segment = segment_of(run, i);
        const uint8_t *at = bytes + segment.offset / (half_panel ? 2 : 1);
        size_t groups_bytes = (size_t)segment.groups * LAYOUT_GROUP_BYTES;

        if (half_panel)
            gemm->decode_half_panel(batch->raw, at, segment.groups);
        else
            gemm->decode(batch->raw, at, segment.groups);
        if (segment.half)
            gemm->decode_half_group(batch->raw + (size_t)segment.groups * LAYOUT_GROUP_COLUMNS * LAYOUT_PANEL_ROWS, at + groups_bytes);
        gemm->multiply(batch->raw, segment.groups * LAYOUT_GROUP_COLUMNS + segment.half * LAYOUT_UNIT, scale, batch->tokens, batch->count,
                       segment.column, acc, at + groups_bytes);
    }
}

/* The sums of panels [first, end). */
static void add_panels(const struct batch *batch, uint32_t first, uint32_t end, uint32_t segments)
{
    size_t floats = (size_t)batch->count * LAYOUT_PANEL_ROWS;

    memset(batch->accs, 0, (end - first) * floats * sizeof(*batch->accs));
    for (uint32_t i = 0; i < batch->run->segments; i += segments)
        for (uint32_t panel = first; panel < end; panel++)
            add_segments(batch, panel, i, least(i + segments, batch->run->segments), batch->accs + (panel - first) * floats);
}

/* rows: of down; 0: gate and up. */
static void end_panel(const struct batch *batch, uint32_t panel, uint32_t rows, const float *acc)
{
    size_t row = (size_t)panel * LAYOUT_PANEL_ROWS;

    if (rows == 0)
        batch->gemm->gate_up(acc, batch->tokens, batch->count, halves_before(batch->run, panel) * LAYOUT_UNIT, is_half(batch->run, panel));
    else if (row < rows)
        batch->gemm->down(acc, batch->tokens, batch->count, row, least(rows - (uint32_t)row, LAYOUT_PANEL_ROWS));
}

static void run_block(const struct batch *batch, uint32_t rows)
{
    const struct tiers_run *run = batch->run;
    bool single = (size_t)run->groups * LAYOUT_GROUP_COLUMNS * sizeof(float) * batch->count <= SINGLE;
    uint32_t panels = single ? 1 : PANELS, segments = single ? run->segments : SEGMENTS;

    for (uint32_t first = 0; first < run->count; first += panels) {
        uint32_t end = least(first + panels, run->count);

        add_panels(batch, first, end, segments);
        for (uint32_t panel = first; panel < end; panel++)
            end_panel(batch, panel, rows, batch->accs + (size_t)(panel - first) * batch->count * LAYOUT_PANEL_ROWS);
    }
}

static void run_tokens(const struct tiers_gemm *gemm, const struct tiers_run *run, const struct tiers_token *tokens, uint32_t count,
                       uint32_t rows, float *scratch)
{
    struct batch batch = {.gemm = gemm, .run = run, .tokens = tokens, .raw = scratch, .accs = scratch + RAW_FLOATS};

    /* Blocks about as large as each other: the weights are decoded for each. */
    for (uint32_t left = (count + TOKENS - 1) / TOKENS; left > 0; left--) {
        batch.count = (count + left - 1) / left;
        run_block(&batch, rows);
        batch.tokens += batch.count;
        count -= batch.count;
    }
}

void batch_gate_up(const struct tiers_ops *ops, const struct tiers_run *run, const struct tiers_token *tokens, uint32_t count,
                   void *scratch)
{
    if (ops->gemm && count >= MIN)
        run_tokens(ops->gemm, run, tokens, count, 0, scratch);
    else
        for (uint32_t t = 0; t < count; t += TIERS_TOKENS_MAX)
            ops->gate_up_tokens(run, tokens + t, least(count - t, TIERS_TOKENS_MAX));
}

void batch_down(const struct tiers_ops *ops, const struct tiers_run *run, const struct tiers_token *tokens, uint32_t count, uint32_t rows,
                void *scratch)
{
    if (rows == 0)
        return;
    if (ops->gemm && count >= MIN)
        run_tokens(ops->gemm, run, tokens, count, rows, scratch);
    else
        for (uint32_t t = 0; t < count; t += TIERS_TOKENS_MAX)
            ops->down_tokens(run, tokens + t, least(count - t, TIERS_TOKENS_MAX), rows);
}
