/* Batches: 16 rows of up to 6 tokens in 12 chains, two registers of weights, one of x'; or, of up to 3 tokens, 32 rows in 12 chains, three
 * registers of x', one of weights. Every chain is the formula's own, k ascending. The order of rows is tile 0's, then tile 1's. Decoding is
 * a small part here, so that both variants of the tier do it by vpmaddubsw. */
#include "kernels/x86/avx2.h"
#include "kernels/x86/avx2_vector.h"

#define TILE 6

/* ---- decode --------------------------------------------------------------------------------------- */

AVX2_INLINE __m256i load(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

/* One column of a tile: lanes 0, 2, ... into `even`, lanes 1, 3, ... into `odd`. */
AVX2_INLINE void put_column(float *even, float *odd, __m256i magnitudes, __m256i signs)
{
    __m256i words = _mm256_or_si256(magnitudes, _mm256_and_si256(signs, _mm256_set1_epi16(INT16_MIN)));

    _mm256_store_si256((__m256i *)(void *)even, _mm256_slli_epi32(words, 16));
    _mm256_store_si256((__m256i *)(void *)odd, _mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)));
}

/* Columns 2p and 2p + 1; `odd` floats from one half of the lanes to the other. */
AVX2_INLINE void put_pair(float *raw, size_t odd, __m256i bytes, __m256i signs, const int p)
{
    raw += 2 * p * LAYOUT_PANEL_ROWS;
    put_column(raw, raw + odd, _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x0010)), _mm256_slli_epi16(signs, 2 * p));
    raw += LAYOUT_PANEL_ROWS;
    put_column(raw, raw + odd, _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x1000)), _mm256_slli_epi16(signs, 2 * p + 1));
}

#define FOUR_PAIRS(pair) pair(0); pair(1); pair(2); pair(3)
#define EIGHT_PAIRS(pair) FOUR_PAIRS(pair); pair(4); pair(5); pair(6); pair(7)

static void decode(float *raw, const uint8_t *at, uint32_t groups)
{
    for (; groups > 0; groups--, at += LAYOUT_GROUP_BYTES, raw += LAYOUT_GROUP_COLUMNS * LAYOUT_PANEL_ROWS) {
        __m256i signs0 = load(at), signs1 = load(at + 32);

#define PAIR(p)                                                \
    put_pair(raw, 8, load(at + 64 + 64 * (p)), signs0, p);     \
    put_pair(raw + 16, 8, load(at + 96 + 64 * (p)), signs1, p)
        EIGHT_PAIRS(PAIR);
#undef PAIR
    }
}

AVX2_INLINE __m256i half_signs(const uint8_t *at)
{
    return _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)at)), 8);
}

static void decode_half_group(float *raw, const uint8_t *at)
{
    __m256i signs0 = half_signs(at), signs1 = half_signs(at + 16);

#define PAIR(p)                                                \
    put_pair(raw, 8, load(at + 32 + 64 * (p)), signs0, p);     \
    put_pair(raw + 16, 8, load(at + 64 + 64 * (p)), signs1, p)
    FOUR_PAIRS(PAIR);
#undef PAIR
}

/* Gate goes to rows 0-7 of tile 0, up to those of tile 1; the other rows are nobody's. */
static void decode_half_panel(float *raw, const uint8_t *at, uint32_t groups)
{
    memset(raw, 0, (size_t)groups * LAYOUT_GROUP_COLUMNS * LAYOUT_PANEL_ROWS * sizeof(*raw));
    for (; groups > 0; groups--, at += LAYOUT_HALF_BYTES, raw += LAYOUT_GROUP_COLUMNS * LAYOUT_PANEL_ROWS) {
        __m256i signs = load(at);

#define PAIR(p) put_pair(raw, 16, load(at + 32 + 32 * (p)), signs, p)
        EIGHT_PAIRS(PAIR);
#undef PAIR
    }
}

/* ---- multiply ------------------------------------------------------------------------------------- */

#define EIGHT_COLUMNS(column) column(0) column(1) column(2) column(3) column(4) column(5) column(6) column(7)

/* Named variables, no arrays: a loop over tokens would keep them in memory. */
#define BEGIN(t)                               \
    __m256 low##t = zero, high##t = zero;      \
    const float *v##t = n > (t) ? token[t].v + end : NULL;

#define MULTIPLY(t, j)                                     \
    if (n > (t)) {                                         \
        __m256 x = _mm256_broadcast_ss(v##t + k + (j));    \
                                                           \
        low##t = _mm256_fmadd_ps(low, x, low##t);          \
        high##t = _mm256_fmadd_ps(high, x, high##t);       \
    }

#define COLUMN(j)                                                                                                              \
    {                                                                                                                          \
        __m256 low = _mm256_load_ps(raw + (j) * LAYOUT_PANEL_ROWS), high = _mm256_load_ps(raw + (j) * LAYOUT_PANEL_ROWS + 8);   \
                                                                                                                               \
        MULTIPLY(0, j) MULTIPLY(1, j) MULTIPLY(2, j) MULTIPLY(3, j) MULTIPLY(4, j) MULTIPLY(5, j)                              \
    }

AVX2_INLINE void add_scaled(float *acc, __m256 sum, __m256 scale)
{
    _mm256_store_ps(acc, _mm256_fmadd_ps(sum, scale, _mm256_load_ps(acc)));
}

#define END(t)                                                              \
    if (n > (t)) {                                                          \
        add_scaled(acc + (t) * LAYOUT_PANEL_ROWS, low##t, scale_all);       \
        add_scaled(acc + (t) * LAYOUT_PANEL_ROWS + 8, high##t, scale_all);  \
    }

/* While eight columns are multiplied, what eight columns of the next segment need: 4.5 lines. Figures are in the AVX-512 tier. */
#define AHEAD (5 * 64)

AVX2_INLINE void prefetch(const uint8_t *next)
{
    for (unsigned line = 0; line < AHEAD; line += 64)
        _mm_prefetch((const char *)next + line, _MM_HINT_T1);
}

/* One tile of the panel; n is a constant wherever this is inlined. */
AVX2_INLINE void half_tile(const float *raw, uint32_t columns, float scale, const struct tiers_token *token, const uint32_t n, size_t first,
                           float *acc, const uint8_t *next)
{
    const __m256 zero = _mm256_setzero_ps();
    __m256 scale_all = _mm256_set1_ps(scale);
    size_t end = first + columns;

    BEGIN(0) BEGIN(1) BEGIN(2) BEGIN(3) BEGIN(4) BEGIN(5)
    /* Up to zero, so that one register counts and indexes. */
    for (ptrdiff_t k = -(ptrdiff_t)columns; k < 0; k += LAYOUT_UNIT, raw += LAYOUT_UNIT * LAYOUT_PANEL_ROWS, next += AHEAD) {
        prefetch(next);
        EIGHT_COLUMNS(COLUMN)
    }
    END(0) END(1) END(2) END(3) END(4) END(5)
}

#define WIDE_BEGIN(t)                                                         \
    __m256 a##t = zero, b##t = zero, c##t = zero, d##t = zero;                \
    const float *v##t = n > (t) ? token[t].v + end : NULL;

#define WIDE_MULTIPLY(t, chain)                                               \
    if (n > (t))                                                              \
        chain##t = _mm256_fmadd_ps(rows, x##t, chain##t);

#define WIDE_ROWS(chain, at)                                                  \
    rows = _mm256_load_ps(at);                                                \
    WIDE_MULTIPLY(0, chain) WIDE_MULTIPLY(1, chain) WIDE_MULTIPLY(2, chain)

#define WIDE_COLUMN(j)                                                                                                \
    {                                                                                                                 \
        const float *at = raw + (j) * LAYOUT_PANEL_ROWS;                                                              \
        __m256 rows, x0 = _mm256_broadcast_ss(v0 + k + (j));                                                          \
        __m256 x1 = n > 1 ? _mm256_broadcast_ss(v1 + k + (j)) : zero, x2 = n > 2 ? _mm256_broadcast_ss(v2 + k + (j)) : zero; \
                                                                                                                      \
        WIDE_ROWS(a, at)                                                                                              \
        WIDE_ROWS(b, at + 8)                                                                                          \
        WIDE_ROWS(c, at + 16)                                                                                         \
        WIDE_ROWS(d, at + 24)                                                                                         \
    }

#define WIDE_END(t)                                                       \
    if (n > (t)) {                                                        \
        add_scaled(acc + (t) * LAYOUT_PANEL_ROWS, a##t, scale0);          \
        add_scaled(acc + (t) * LAYOUT_PANEL_ROWS + 8, b##t, scale0);      \
        add_scaled(acc + (t) * LAYOUT_PANEL_ROWS + 16, c##t, scale1);     \
        add_scaled(acc + (t) * LAYOUT_PANEL_ROWS + 24, d##t, scale1);     \
    }

AVX2_INLINE void wide_tile(const float *raw, uint32_t columns, const float *scale, const struct tiers_token *token, const uint32_t n,
                           size_t first, float *acc, const uint8_t *next)
{
    const __m256 zero = _mm256_setzero_ps();
    __m256 scale0 = _mm256_set1_ps(scale[0]), scale1 = _mm256_set1_ps(scale[1]);
    size_t end = first + columns;

    WIDE_BEGIN(0) WIDE_BEGIN(1) WIDE_BEGIN(2)
    for (ptrdiff_t k = -(ptrdiff_t)columns; k < 0; k += LAYOUT_UNIT, raw += LAYOUT_UNIT * LAYOUT_PANEL_ROWS, next += AHEAD) {
        prefetch(next);
        EIGHT_COLUMNS(WIDE_COLUMN)
    }
    WIDE_END(0) WIDE_END(1) WIDE_END(2)
}

#define TILE_PARAMETERS                                                                                                                \
    const float *raw, uint32_t columns, const float *scale, const struct tiers_token *token, size_t first, float *acc, const uint8_t *next
#define WIDE_TILE_OF(n)                                                \
    static void tile##n(TILE_PARAMETERS)                               \
    {                                                                  \
        wide_tile(raw, columns, scale, token, n, first, acc, next);    \
    }
/* The second tile's prefetches find in L1 what they ask for. */
#define TILE_OF(n)                                                                                               \
    static void tile##n(TILE_PARAMETERS)                                                                         \
    {                                                                                                            \
        half_tile(raw, columns, scale[0], token, n, first, acc, next);                                           \
        half_tile(raw + 16, columns, scale[1], token, n, first, acc + 16, (const uint8_t *)raw);                 \
    }
WIDE_TILE_OF(1)
WIDE_TILE_OF(2)
WIDE_TILE_OF(3)
TILE_OF(4)
TILE_OF(5)
TILE_OF(6)

static void multiply(const float *raw, uint32_t columns, const float *scale, const struct tiers_token *token, uint32_t count, size_t first,
                     float *acc, const uint8_t *next)
{
    static void (*const tiles[])(TILE_PARAMETERS) = {tile1, tile2, tile3, tile4, tile5, tile6};

    /* As few tiles as can be, all about as large: a small one would wait for its few chains. */
    for (uint32_t left = (count + TILE - 1) / TILE; left > 0; left--) {
        uint32_t n = (count + left - 1) / left;

        tiles[n - 1](raw, columns, scale, token, first, acc, next);
        token += n;
        count -= n;
        acc += (size_t)n * LAYOUT_PANEL_ROWS;
        next = (const uint8_t *)raw; /* the first tile has fetched it all; this is in L1 */
    }
}

/* ---- the end of a panel --------------------------------------------------------------------------- */

AVX2_INLINE __m256 result(const float *acc, __m256 undo)
{
    return _mm256_fmadd_ps(_mm256_load_ps(acc), undo, _mm256_setzero_ps());
}

AVX2_INLINE void put_h(float *h, const float *acc, __m256 undo)
{
    _mm256_storeu_ps(h, _mm256_mul_ps(avx2_silu(result(acc, undo)), result(acc + 16, undo)));
}

static void gate_up(const float *acc, const struct tiers_token *token, uint32_t count, size_t neuron, bool half)
{
    for (; count > 0; count--, token++, acc += LAYOUT_PANEL_ROWS) {
        __m256 undo = _mm256_set1_ps(token->undo);

        put_h(token->out + neuron, acc, undo);
        if (!half)
            put_h(token->out + neuron + 8, acc + 8, undo);
    }
}

static void down(const float *acc, const struct tiers_token *token, uint32_t count, size_t row, uint32_t rows)
{
    for (; count > 0; count--, token++, acc += LAYOUT_PANEL_ROWS) {
        __m256 undo = _mm256_set1_ps(token->undo);

        avx2_add_panel(token->out + row, rows, token->weight, result(acc, undo), result(acc + 8, undo), result(acc + 16, undo),
                       result(acc + 24, undo));
    }
}

const struct tiers_gemm avx2_gemm = {
    .decode = decode,
    .decode_half_group = decode_half_group,
    .decode_half_panel = decode_half_panel,
    .multiply = multiply,
    .gate_up = gate_up,
    .down = down,
};
