#include "tests/unit/duck/model.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/size.h"

uint64_t model_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

struct msg_prepare_begin model_words(enum msg_slot_kind kind, uint32_t layer)
{
    struct msg_prepare_begin words = {
        .model_key = {0xab, 0xcd},
        .layout_version = LAYOUT_VERSION,
        .tp = 3,
        .rank = 1,
        .multiple_of = 64,
        .layer = layer,
        .kind = kind,
        .experts = kind == MSG_SLOT_MOE ? 5 : 1,
        .slice = {80, 96, 48, 64},
        .has_shared = kind == MSG_SLOT_MOE,
        .sources = {0x55},
    };
    if (words.has_shared)
        words.shared = (struct msg_slice){80, 112, 32, 32};
    return words;
}

#define PIECE_ROWS 32

struct piece {
    uint32_t expert;
    enum kernels_matrix matrix;
    uint32_t first_row, rows;
};

void model_pieces(const struct msg_prepare_begin *words, uint64_t seed, model_take take, void *user)
{
    struct geometry g;
    if (geometry_init(words, &g, NULL) < 0)
        abort();
    struct piece pieces[512];
    size_t count = 0;
    for (uint32_t e = 0; e < g.experts + g.has_shared; e++) {
        const struct layout_mlp *layout = e < g.experts ? &g.layout : &g.shared;
        for (int m = KERNELS_GATE; m <= KERNELS_DOWN; m++) {
            uint32_t rows = geometry_rows(layout, (enum kernels_matrix)m);
            /* A first tile of 8 rows makes the first piece shorter. */
            uint32_t origin = geometry_matrix(layout, (enum kernels_matrix)m)->row_origin, end;
            for (uint32_t first = 0; first < rows; first = end) {
                end = (first + origin) / PIECE_ROWS * PIECE_ROWS + PIECE_ROWS - origin;
                end = end < rows ? end : rows;
                pieces[count++] = (struct piece){e < g.experts ? e : MSG_EXPERT_SHARED, (enum kernels_matrix)m, first, end - first};
            }
        }
    }
    uint64_t state = seed;
    for (size_t i = count - 1; i > 0; i--) {
        size_t j = model_random(&state) % (i + 1);
        struct piece swap = pieces[i];
        pieces[i] = pieces[j];
        pieces[j] = swap;
    }
    for (size_t i = 0; i < count; i++) {
        const struct piece *p = &pieces[i];
        const struct layout_mlp *layout = p->expert == MSG_EXPERT_SHARED ? &g.shared : &g.layout;
        const struct layout_matrix *matrix = geometry_matrix(layout, p->matrix);
        struct msg_prepare_data data = {
            .expert = p->expert, .matrix = (uint8_t)p->matrix, .first_row = p->first_row, .rows = p->rows, .columns = matrix->columns};
        data.scale_count = layout_tiles(matrix, p->first_row, p->rows) * matrix->segments;
        /* Values depend on the place alone, not on the order. */
        uint64_t place = seed ^ ((uint64_t)p->expert << 40) ^ ((uint64_t)p->matrix << 32) ^ p->first_row;
        size_t n = (size_t)p->rows * matrix->columns;
        uint8_t *codes = malloc(n);
        float *scales = malloc(data.scale_count * sizeof *scales);
        for (size_t k = 0; k < n; k++) {
            uint8_t code = (uint8_t)model_random(&place);
            codes[k] = (code & 0x7f) == 0x7f ? 0x80 : code;
        }
        for (uint32_t k = 0; k < data.scale_count; k++)
            scales[k] = (float)(model_random(&place) % 1000) / 65536.0f;
        data.codes = codes;
        take(user, &data, scales, codes);
        free(codes);
        free(scales);
    }
}

struct packing {
    struct geometry g;
    uint8_t *data;
};

static void pack_piece(void *user, const struct msg_prepare_data *data, const float *scales, const uint8_t *codes)
{
    struct packing *p = user;
    bool shared = data->expert == MSG_EXPERT_SHARED;
    const struct layout_mlp *layout = shared ? &p->g.shared : &p->g.layout;
    uint8_t *expert = shared ? p->data + p->g.shared_offset : p->data + data->expert * layout->expert_bytes;
    struct kernels_rows rows = {(enum kernels_matrix)data->matrix, data->first_row, data->rows, codes, scales};
    if (kernels_pack(layout, expert, &rows, NULL) < 0)
        abort();
}

uint8_t *model_pack(const struct msg_prepare_begin *words, uint64_t seed)
{
    struct packing p;
    if (geometry_init(words, &p.g, NULL) < 0)
        abort();
    p.data = aligned_alloc(64, p.g.bytes);
    for (uint32_t e = 0; e < p.g.experts; e++)
        kernels_pack_begin(&p.g.layout, p.data + e * p.g.layout.expert_bytes);
    if (p.g.has_shared)
        kernels_pack_begin(&p.g.shared, p.data + p.g.shared_offset);
    model_pieces(words, seed, pack_piece, &p);
    return p.data;
}

struct model_input model_input(const struct msg_prepare_begin *words, uint32_t tokens, uint32_t top_k, uint64_t seed)
{
    struct model_input in = {.tokens = tokens, .top_k = top_k, .hidden = words->slice.hidden};
    uint64_t state = seed;
    size_t values = (size_t)tokens * in.hidden, slots = (size_t)tokens * top_k;
    in.x = malloc(values * 2 + 1);
    in.ids = malloc(slots * 4 + 1);
    in.weights = malloc(slots * 4 + 1);
    for (size_t i = 0; i < values; i++)
        in.x[i] = kernels_bf16_of_f32(((float)(model_random(&state) % 4001) - 2000.0f) / 1000.0f);
    for (size_t i = 0; i < slots; i++) {
        in.ids[i] = (int32_t)(model_random(&state) % (words->experts + 1)) - 1;
        in.weights[i] = (float)(model_random(&state) % 1000) / 1000.0f;
    }
    return in;
}

void model_input_free(struct model_input *input)
{
    free(input->x);
    free(input->ids);
    free(input->weights);
    *input = (struct model_input){0};
}

void *model_answer(const struct msg_prepare_begin *words, uint64_t seed, const struct model_input *input, enum msg_dtype dtype,
                   size_t *ret_bytes)
{
    struct geometry g;
    if (geometry_init(words, &g, NULL) < 0)
        abort();
    uint8_t *data = model_pack(words, seed);
    struct kernels_layer layer = geometry_layer(&g, data);
    size_t count = (size_t)input->tokens * input->hidden;
    float *y = aligned_alloc(64, size_round_up(count * 4 + 1, 64));
    void *scratch = aligned_alloc(64, size_round_up(kernels_scratch_bytes(&layer), 64));
    if (words->kind == MSG_SLOT_DENSE)
        kernels_dense(&layer, input->x, input->tokens, y, scratch);
    else
        kernels_moe(&layer, input->x, input->ids, input->weights, input->tokens, input->top_k, y, scratch);
    *ret_bytes = count * (dtype == MSG_F32 ? 4 : 2);
    if (dtype == MSG_F32) {
        kernels_canonical(y, count);
    } else {
        uint16_t *narrow = malloc(*ret_bytes + 1);
        kernels_to_bf16(narrow, y, count);
        memcpy(y, narrow, *ret_bytes);
        free(narrow);
    }
    free(scratch);
    free(data);
    return y;
}
