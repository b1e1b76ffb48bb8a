#include "kernels/x86/avx2.h"
#include "kernels/x86/avx2_vector.h"

/* Sixteen codes -> magnitude bytes; the bit masks of their signs apart. */
AVX2_INLINE __m128i magnitudes(__m128i codes)
{
    /* The upper half of the table is never used: pshufb takes the code's low four bits and 8 .. 15 are normal. */
    const __m128i subnormal = _mm_setr_epi8(0x00, 0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c, 0x4e, 0, 0, 0, 0, 0, 0, 0, 0);
    __m128i code = _mm_and_si128(codes, _mm_set1_epi8(0x7f));
    __m128i is_subnormal = _mm_cmpgt_epi8(_mm_set1_epi8(8), code);

    return _mm_blendv_epi8(_mm_add_epi8(code, _mm_set1_epi8(0x48)), _mm_shuffle_epi8(subnormal, code), is_subnormal);
}

/* Bit 15 - j of the result is the sign of code j. */
AVX2_INLINE uint32_t sign_word(__m128i codes)
{
    const __m128i reverse = _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);

    return (uint32_t)_mm_movemask_epi8(_mm_shuffle_epi8(codes, reverse));
}

/* `lanes` has the sixteen rows of a group in the order of the panel's lanes, sixteen columns each. Sixteen by eight pairs are transposed:
 * each vector of the panel is one pair of columns of all lanes. */
static void store_group(uint8_t *at, uint32_t tile, const __m128i lanes[16])
{
    for (uint32_t half = 0; half < 2; half++) {
        const __m128i *l = lanes + 8 * half;
        __m128i a[8], b[8];

        for (uint32_t i = 0; i < 4; i++) {
            a[2 * i] = _mm_unpacklo_epi16(l[2 * i], l[2 * i + 1]);
            a[2 * i + 1] = _mm_unpackhi_epi16(l[2 * i], l[2 * i + 1]);
        }
        for (uint32_t i = 0; i < 2; i++)
            for (uint32_t j = 0; j < 2; j++) {
                b[4 * i + 2 * j] = _mm_unpacklo_epi32(a[4 * i + j], a[4 * i + 2 + j]);
                b[4 * i + 2 * j + 1] = _mm_unpackhi_epi32(a[4 * i + j], a[4 * i + 2 + j]);
            }
        for (uint32_t pair = 0; pair < 4; pair++) {
            uint8_t *to = at + 64 + 64 * (2 * pair) + 32 * tile + 16 * half;

            _mm_store_si128((__m128i *)(void *)to, _mm_unpacklo_epi64(b[pair], b[4 + pair]));
            _mm_store_si128((__m128i *)(void *)(to + 64), _mm_unpackhi_epi64(b[pair], b[4 + pair]));
        }
    }
}

AVX2_INLINE __m128i load_codes(const uint8_t *from, uint32_t width)
{
    uint8_t padded[16] = {0};

    if (width == 16)
        return _mm_loadu_si128((const __m128i *)(const void *)from);
    memcpy(padded, from, width);
    return _mm_loadu_si128((const __m128i *)(const void *)padded);
}

void avx2_pack_tile(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns)
{
    for (uint32_t first = 0; first < columns; first += LAYOUT_GROUP_COLUMNS, at += LAYOUT_GROUP_BYTES) {
        uint32_t width = columns - first < LAYOUT_GROUP_COLUMNS ? columns - first : LAYOUT_GROUP_COLUMNS;
        __m128i lanes[16];
        uint16_t signs[16] __attribute__((aligned(32)));

        for (uint32_t row = 0; row < LAYOUT_TILE_ROWS; row++) {
            uint32_t lane = row < 8 ? 2 * row : 2 * (row - 8) + 1;
            __m128i code = row < rows ? load_codes(codes + row * stride + first, width) : _mm_setzero_si128();

            lanes[lane] = magnitudes(code);
            signs[lane] = (uint16_t)sign_word(code);
        }
        _mm256_store_si256((__m256i *)(void *)(at + 32 * tile), _mm256_load_si256((const __m256i *)(const void *)signs));
        store_group(at, tile, lanes);
    }
}

/* Likewise sixteen lanes of eight columns. */
static void store_half_group(uint8_t *at, uint32_t tile, const __m128i lanes[16])
{
    for (uint32_t half = 0; half < 2; half++) {
        const __m128i *l = lanes + 8 * half;
        uint8_t *to = at + 32 + 32 * tile + 16 * half;
        __m128i a[4], b[4];

        for (uint32_t i = 0; i < 4; i++)
            a[i] = _mm_unpacklo_epi16(l[2 * i], l[2 * i + 1]);
        for (uint32_t i = 0; i < 2; i++) {
            b[i] = _mm_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
            b[2 + i] = _mm_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
        }
        for (uint32_t i = 0; i < 2; i++, to += 128) {
            _mm_store_si128((__m128i *)(void *)to, _mm_unpacklo_epi64(b[2 * i], b[2 * i + 1]));
            _mm_store_si128((__m128i *)(void *)(to + 64), _mm_unpackhi_epi64(b[2 * i], b[2 * i + 1]));
        }
    }
}

void avx2_pack_half_group(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns)
{
    __m128i lanes[16];

    for (uint32_t row = 0; row < LAYOUT_TILE_ROWS; row++) {
        uint32_t lane = row < 8 ? 2 * row : 2 * (row - 8) + 1;
        __m128i code = row < rows ? load_codes(codes + row * stride, columns) : _mm_setzero_si128();

        lanes[lane] = magnitudes(code);
        at[16 * tile + lane] = (uint8_t)(sign_word(code) >> 8);
    }
    store_half_group(at, tile, lanes);
}

void avx2_pack_half_panel(uint8_t *at, uint32_t up, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns)
{
    for (uint32_t first = 0; first < columns; first += LAYOUT_GROUP_COLUMNS, at += LAYOUT_HALF_BYTES) {
        uint32_t width = columns - first < LAYOUT_GROUP_COLUMNS ? columns - first : LAYOUT_GROUP_COLUMNS;

        for (uint32_t row = 0; row < LAYOUT_UNIT; row++) {
            uint8_t *lane = at + 4 * row + 2 * up;
            __m128i code = row < rows ? load_codes(codes + row * stride + first, width) : _mm_setzero_si128();
            uint16_t pairs[8], signs = (uint16_t)sign_word(code);

            _mm_storeu_si128((__m128i *)(void *)pairs, magnitudes(code));
            memcpy(lane, &signs, sizeof(signs));
            for (uint32_t pair = 0; pair < 8; pair++) /* the other matrix's lanes stand between */
                memcpy(lane + 32 + 32 * pair, &pairs[pair], sizeof(pairs[pair]));
        }
    }
}
