/* Batches: 32 rows of up to 12 tokens in 24 chains, two registers of weights, one of x'. Every chain is the formula's own, k ascending. The
 * order of rows is that of the decoded words: rows 0-7 of tile 0 and of tile 1, then rows 8-15 of both. */
#include "kernels/x86/avx2_vector.h"
#include "kernels/x86/avx512.h"

#define TILE 12

/* ---- decode --------------------------------------------------------------------------------------- */

#define OR_AND 0xf8 /* a | (b & c) */

AVX2_INLINE __m512i load(const uint8_t *at)
{
    return _mm512_loadu_si512((const void *)at);
}

/* One column: lanes 0, 2, ... are rows 0-7, lanes 1, 3, ... rows 8-15. */
AVX2_INLINE void put_column(float *raw, __m512i magnitudes, __m512i signs)
{
    __m512i words = _mm512_ternarylogic_epi32(magnitudes, signs, _mm512_set1_epi16(INT16_MIN), OR_AND);

    _mm512_store_si512((void *)raw, _mm512_slli_epi32(words, 16));
    _mm512_store_si512((void *)(raw + 16), _mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000)));
}

/* Columns 2p and 2p + 1; vpmaddubsw isolates the even or the odd bytes, shifted left by 4. */
AVX2_INLINE void put_pair(float *raw, __m512i bytes, __m512i signs, const unsigned p)
{
    raw += 2 * p * LAYOUT_PANEL_ROWS;
    put_column(raw, _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x0010)), _mm512_slli_epi16(signs, 2 * p));
    put_column(raw + LAYOUT_PANEL_ROWS, _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x1000)), _mm512_slli_epi16(signs, 2 * p + 1));
}

#define FOUR_PAIRS(pair) pair(0); pair(1); pair(2); pair(3)
#define EIGHT_PAIRS(pair) FOUR_PAIRS(pair); pair(4); pair(5); pair(6); pair(7)

static void decode(float *raw, const uint8_t *at, uint32_t groups)
{
    for (; groups > 0; groups--, at += LAYOUT_GROUP_BYTES, raw += LAYOUT_GROUP_COLUMNS * LAYOUT_PANEL_ROWS) {
        __m512i signs = load(at);

#define PAIR(p) put_pair(raw, load(at + 64 + 64 * (p)), signs, p)
        EIGHT_PAIRS(PAIR);
#undef PAIR
    }
}

static void decode_half_group(float *raw, const uint8_t *at)
{
    __m512i signs = _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)at)), 8);

#define PAIR(p) put_pair(raw, load(at + 32 + 64 * (p)), signs, p)
    FOUR_PAIRS(PAIR);
#undef PAIR
}

/* Gate where rows 0-7 of tile 0 are, up where those of tile 1 are. */
AVX2_INLINE __m512i half_panel_load(const uint8_t *at)
{
    __m512i lanes = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)at));
    __m512i ups = _mm512_srli_epi32(lanes, 16), gates = _mm512_and_si512(lanes, _mm512_set1_epi32(0xffff));

    return _mm512_shuffle_i64x2(gates, ups, 0x44);
}

static void decode_half_panel(float *raw, const uint8_t *at, uint32_t groups)
{
    for (; groups > 0; groups--, at += LAYOUT_HALF_BYTES, raw += LAYOUT_GROUP_COLUMNS * LAYOUT_PANEL_ROWS) {
        __m512i signs = half_panel_load(at);

#define PAIR(p) put_pair(raw, half_panel_load(at + 32 + 32 * (p)), signs, p)
        EIGHT_PAIRS(PAIR);
#undef PAIR
    }
}

/* ---- multiply ------------------------------------------------------------------------------------- */

#define EACH_TOKEN(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)

/* Named variables, no arrays: a loop over tokens would keep them in memory. */
#define BEGIN(t)                                \
    __m512 low##t = zero, high##t = zero;       \
    const float *v##t = n > (t) ? token[t].v + end : NULL;

#define MULTIPLY(t, j)                                     \
    if (n > (t)) {                                         \
        __m512 x = _mm512_set1_ps(v##t[k + (j)]);          \
                                                           \
        low##t = _mm512_fmadd_ps(low, x, low##t);          \
        high##t = _mm512_fmadd_ps(high, x, high##t);       \
    }

#define COLUMN(j)                                                                                                                \
    {                                                                                                                            \
        __m512 low = _mm512_load_ps(raw + (j) * LAYOUT_PANEL_ROWS), high = _mm512_load_ps(raw + (j) * LAYOUT_PANEL_ROWS + 16);    \
                                                                                                                                 \
        MULTIPLY(0, j) MULTIPLY(1, j) MULTIPLY(2, j) MULTIPLY(3, j) MULTIPLY(4, j) MULTIPLY(5, j)                                \
        MULTIPLY(6, j) MULTIPLY(7, j) MULTIPLY(8, j) MULTIPLY(9, j) MULTIPLY(10, j) MULTIPLY(11, j)                              \
    }

#define END(t)                                                                                                                        \
    if (n > (t)) {                                                                                                                    \
        float *to = acc + (t) * LAYOUT_PANEL_ROWS;                                                                                    \
                                                                                                                                      \
        _mm512_store_ps(to, _mm512_fmadd_ps(low##t, scales, _mm512_load_ps(to)));                                                     \
        _mm512_store_ps(to + 16, _mm512_fmadd_ps(high##t, scales, _mm512_load_ps(to + 16)));                                          \
    }

/* While eight columns are multiplied, what eight columns of the next segment need: 4.5 lines. Fetched while decoding, they wait for each
 * other and everything for them. Cold, 768x2048, the time of single tokens over a batch's, while decoding and so: 5 tokens 2.8, 3.1;
 * 8 tokens 3.6, 4.4; 16 tokens 4.7, 5.3; 32 tokens 5.4, 6.1. */
#define AHEAD (5 * 64)

AVX2_INLINE void prefetch(const uint8_t *next)
{
    for (unsigned line = 0; line < AHEAD; line += 64)
        _mm_prefetch((const char *)next + line, _MM_HINT_T1);
}

/* n is a constant wherever this is inlined. */
AVX2_INLINE void tile(const float *raw, uint32_t columns, __m512 scales, const struct tiers_token *token, const uint32_t n, size_t first,
                      float *acc, const uint8_t *next)
{
    const __m512 zero = _mm512_setzero_ps();
    size_t end = first + columns;

    EACH_TOKEN(BEGIN)
    /* Up to zero, so that one register counts and indexes: twelve pointers leave no other. Eight columns a turn: 0.03 of the peak. */
    for (ptrdiff_t k = -(ptrdiff_t)columns; k < 0; k += LAYOUT_UNIT, raw += LAYOUT_UNIT * LAYOUT_PANEL_ROWS, next += AHEAD) {
        prefetch(next);
        COLUMN(0) COLUMN(1) COLUMN(2) COLUMN(3) COLUMN(4) COLUMN(5) COLUMN(6) COLUMN(7)
    }
    EACH_TOKEN(END)
}

#define TILE_PARAMETERS                                                                                                            \
    const float *raw, uint32_t columns, __m512 scales, const struct tiers_token *token, size_t first, float *acc, const uint8_t *next
#define TILE_OF(n)                                                 \
    static void tile##n(TILE_PARAMETERS)                           \
    {                                                              \
        tile(raw, columns, scales, token, n, first, acc, next);    \
    }
TILE_OF(1)
TILE_OF(2)
TILE_OF(3)
TILE_OF(4)
TILE_OF(5)
TILE_OF(6)
TILE_OF(7)
TILE_OF(8)
TILE_OF(9)
TILE_OF(10)
TILE_OF(11)
TILE_OF(12)

static void multiply(const float *raw, uint32_t columns, const float *scale, const struct tiers_token *token, uint32_t count, size_t first,
                     float *acc, const uint8_t *next)
{
    static void (*const tiles[])(TILE_PARAMETERS) = {tile1, tile2, tile3, tile4, tile5, tile6, tile7, tile8, tile9, tile10, tile11, tile12};
    __m512 scales = _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(scale[0]), _mm512_set1_ps(scale[1]));

    /* As few tiles as can be, all about as large: a small one would wait for its few chains. */
    for (uint32_t left = (count + TILE - 1) / TILE; left > 0; left--) {
        uint32_t n = (count + left - 1) / left;

        tiles[n - 1](raw, columns, scales, token, first, acc, next);
        token += n;
        count -= n;
        acc += (size_t)n * LAYOUT_PANEL_ROWS;
        next = (const uint8_t *)raw; /* the first tile has fetched it all; this is in L1 */
    }
}

/* ---- the end of a panel --------------------------------------------------------------------------- */

AVX2_INLINE __m256 tile0(__m512 v)
{
    return _mm512_castps512_ps256(v);
}

AVX2_INLINE __m256 tile1_of(__m512 v)
{
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
}

AVX2_INLINE __m512 result(const float *acc, __m512 undo)
{
    return _mm512_fmadd_ps(_mm512_load_ps(acc), undo, _mm512_setzero_ps());
}

AVX2_INLINE void put_h(float *h, __m512 r)
{
    _mm256_storeu_ps(h, _mm256_mul_ps(avx2_silu(tile0(r)), tile1_of(r)));
}

static void gate_up(const float *acc, const struct tiers_token *token, uint32_t count, size_t neuron, bool half)
{
    for (; count > 0; count--, token++, acc += LAYOUT_PANEL_ROWS) {
        __m512 undo = _mm512_set1_ps(token->undo);

        put_h(token->out + neuron, result(acc, undo));
        if (!half)
            put_h(token->out + neuron + 8, result(acc + 16, undo));
    }
}

static void down(const float *acc, const struct tiers_token *token, uint32_t count, size_t row, uint32_t rows)
{
    for (; count > 0; count--, token++, acc += LAYOUT_PANEL_ROWS) {
        __m512 undo = _mm512_set1_ps(token->undo), low = result(acc, undo), high = result(acc + 16, undo);

        avx2_add_panel(token->out + row, rows, token->weight, tile0(low), tile0(high), tile1_of(low), tile1_of(high));
    }
}

const struct tiers_gemm avx512_gemm = {
    .decode = decode,
    .decode_half_group = decode_half_group,
    .decode_half_panel = decode_half_panel,
    .multiply = multiply,
    .gate_up = gate_up,
    .down = down,
};
