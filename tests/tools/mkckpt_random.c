#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
#include "proto/base/bytes.h"
#include "proto/base/checksum.h"
#include "tests/tools/mkckpt.h"

#define MAGNITUDES 32768 /* of a Gaussian, equally likely: 15 random bits choose one, the 16th is the sign */
#define SPREAD 0x1p-5f   /* standard deviation where a block's gain is 1 */
#define E4M3_MAX 448.0f
#define TABLES 64
#define TABLE_WORTHWHILE 4096 /* weights in a block from which a new table pays */
#define WORDS_PER_ROW (LAYOUT_BLOCK / 4)
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

/* Magnitude index -> E4M3 code for one scale. Most blocks share a few scales up to a power of two, which changes no code. */
struct code_table {
    float scale; /* over spread and gain; 0: empty */
    uint8_t codes[MAGNITUDES];
};

struct mkckpt_random {
    uint64_t seed;
    enum safetensors_dtype scale_dtype;
    float magnitudes[MAGNITUDES]; /* ascending */
    uint16_t drawn[LAYOUT_BLOCK * LAYOUT_BLOCK];
    struct code_table tables[TABLES];
};

/* The magnitudes' quantiles of a Gaussian, by Newton's iteration from the one before: erf is concave there, so it never overshoots. */
static void fill_magnitudes(float *magnitudes)
{
    double x = 0;
    for (int i = 0; i < MAGNITUDES; i++) {
        double p = (i + 0.5) / MAGNITUDES;
        for (int step = 0; step < 50; step++) {
            double move = (p - erf(x * M_SQRT1_2)) / (sqrt(2 / M_PI) * exp(-x * x / 2));
            x += move;
            if (fabs(move) < 1e-12)
                break;
        }
        magnitudes[i] = (float)x;
    }
}

struct mkckpt_random *mkckpt_random_new(uint64_t seed, enum safetensors_dtype scale_dtype)
{
    struct mkckpt_random *random = calloc(1, sizeof *random);
    if (!random)
        return NULL;
    random->seed = seed;
    random->scale_dtype = scale_dtype;
    fill_magnitudes(random->magnitudes);
    return random;
}

void mkckpt_random_free(struct mkckpt_random *random)
{
    free(random);
}

/* A good 64-bit mix (the finaliser known from splitmix64): the generator is a counter put through it. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t key_of(const struct mkckpt_random *random, const char *name, uint64_t part)
{
    return mix(mix(checksum_of(name, strlen(name)) + random->seed * GOLDEN) + part * GOLDEN);
}

/* Nearest E4M3 code, ties to even, of 0 <= v <= 448 or a little more. */
static uint8_t e4m3_of(float v)
{
    if (v >= E4M3_MAX)
        return 0x7e;
    if (v < 0x1p-6f)
        return (uint8_t)lrintf(v * 512.0f);
    int exponent;
    frexpf(v, &exponent);
    exponent--; /* v = m * 2^exponent, 1 <= m < 2 */
    return (uint8_t)(((exponent + 7) << 3) + (int)lrintf(ldexpf(v, 3 - exponent)) - 8);
}

/* Nearest F16, as bits, of a positive value below 2^15; never 0. */
static uint16_t f16_of(float v)
{
    int exponent;
    frexpf(v, &exponent);
    exponent = exponent - 1 < -14 ? -14 : exponent - 1;
    int steps = (int)lrintf(ldexpf(v, 10 - exponent)); /* below 2^10 for a subnormal */
    int bits = ((exponent + 14) << 10) + steps;
    return (uint16_t)(bits ? bits : 1);
}

/* Rounds a scale to its dtype, writes it at *to, moves *to on, and gives back what was written. */
static float put_scale(enum safetensors_dtype dtype, float scale, uint8_t **to)
{
    size_t width = safetensors_dtype_bits(dtype) / 8;
    struct bytes_writer writer = bytes_writer_init(*to, width);
    *to += width;
    if (dtype == SAFETENSORS_F32) {
        bytes_write_f32(&writer, scale);
        return scale;
    }
    uint16_t bits = dtype == SAFETENSORS_BF16 ? kernels_bf16_of_f32(scale) : f16_of(scale);
    bytes_write_u16(&writer, bits);
    return dtype == SAFETENSORS_BF16 ? kernels_bf16_to_f32(bits) : kernels_f16_to_f32(bits);
}

/* Draws rows * 128 numbers; gives the largest magnitude index within `columns`. */
static uint16_t draw(struct mkckpt_random *random, uint64_t key, uint32_t rows, uint32_t columns)
{
    uint16_t largest = 0;
    for (uint32_t row = 0; row < rows; row++) {
        uint16_t *drawn = random->drawn + (size_t)row * LAYOUT_BLOCK;
        for (uint32_t word = 0; word < WORDS_PER_ROW; word++) {
            uint64_t bits = mix(key + (row * WORDS_PER_ROW + word + 1) * GOLDEN);
            for (uint32_t i = 0; i < 4; i++)
                drawn[4 * word + i] = (uint16_t)(bits >> (16 * i));
        }
        for (uint32_t i = 0; i < columns; i++) {
            uint16_t magnitude = drawn[i] & (MAGNITUDES - 1);
            largest = magnitude > largest ? magnitude : largest;
        }
    }
    return largest;
}

static const struct code_table *table_for(struct mkckpt_random *random, uint16_t largest, float scale, uint32_t weights)
{
    struct code_table *table = &random->tables[largest % TABLES];
    if (table->scale == scale)
        return table;
    if (weights < TABLE_WORTHWHILE)
        return NULL;
    table->scale = scale;
    for (uint32_t i = 0; i < MAGNITUDES; i++)
        table->codes[i] = e4m3_of(random->magnitudes[i] / scale);
    return table;
}

static void fill_block(struct mkckpt_random *random, uint64_t key, uint32_t rows, uint32_t columns, uint8_t *codes, size_t stride,
                       uint8_t **scales)
{
    static const float gains[] = {0.5f, 1.0f, 1.0f, 2.0f};
    float spread = SPREAD * gains[key >> 62];
    uint16_t largest = draw(random, key, rows, columns);
    float scale = put_scale(random->scale_dtype, random->magnitudes[largest] * spread / E4M3_MAX, scales) / spread;
    const struct code_table *table = table_for(random, largest, scale, rows * columns);
    for (uint32_t row = 0; row < rows; row++) {
        const uint16_t *drawn = random->drawn + (size_t)row * LAYOUT_BLOCK;
        uint8_t *to = codes + row * stride;
        for (uint32_t i = 0; table && i < columns; i++)
            to[i] = (uint8_t)(table->codes[drawn[i] & (MAGNITUDES - 1)] | (drawn[i] >> 8 & 0x80));
        for (uint32_t i = 0; !table && i < columns; i++)
            to[i] = (uint8_t)(e4m3_of(random->magnitudes[drawn[i] & (MAGNITUDES - 1)] / scale) | (drawn[i] >> 8 & 0x80));
    }
}

void mkckpt_random_band(struct mkckpt_random *random, const char *name, uint64_t band, uint32_t rows, uint32_t columns, uint8_t *codes,
                        uint8_t *scales)
{
    uint64_t key = key_of(random, name, band);
    for (uint32_t at = 0; at < columns; at += LAYOUT_BLOCK) {
        uint32_t width = columns - at < LAYOUT_BLOCK ? columns - at : LAYOUT_BLOCK;
        fill_block(random, mix(key ^ at), rows, width, codes + at, columns, &scales);
    }
}

void mkckpt_random_router_row(struct mkckpt_random *random, const char *name, uint64_t row, uint32_t columns, uint16_t *bits)
{
    uint64_t key = key_of(random, name, row);
    for (uint32_t i = 0; i < columns; i++) {
        uint64_t drawn = mix(key + (i + 1) * GOLDEN);
        float value = random->magnitudes[drawn & (MAGNITUDES - 1)] * SPREAD;
        bits[i] = kernels_bf16_of_f32(drawn >> 63 ? -value : value);
    }
}
