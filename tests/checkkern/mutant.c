/* Kernels with a fault each, by the linker's --wrap: checkkern must find every one of them. FP9_MUTANT says which; without it all are
 * sound. The faults are small: a last bit, one token, one column, one lane. */
#include <stdlib.h>
#include <string.h>

#include "kernels/x86/avx2.h"

static bool is(const char *fault)
{
    const char *wanted = getenv("FP9_MUTANT");

    return wanted && strcmp(wanted, fault) == 0;
}

static void flip_last_bit(float *value)
{
    uint32_t bits;

    memcpy(&bits, value, sizeof(bits));
    bits ^= 1;
    memcpy(value, &bits, sizeof(bits));
}

void __real_avx2_rm_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows);
void __wrap_avx2_rm_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows);
void __wrap_avx2_rm_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows)
{
    __real_avx2_rm_down(run, v, undo, weight, y, rows);
    if (is("down-last-row"))
        flip_last_bit(&y[rows - 1]);
}

/* The fourth token gets the third's power of two. */
void __real_avx2_rp_down_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count, uint32_t rows);
void __wrap_avx2_rp_down_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count, uint32_t rows);
void __wrap_avx2_rp_down_tokens(const struct tiers_run *run, const struct tiers_token *token, uint32_t count, uint32_t rows)
{
    struct tiers_token mixed[TIERS_TOKENS_MAX];

    memcpy(mixed, token, count * sizeof(*mixed));
    if (is("down-company") && count == 4)
        mixed[3].undo = mixed[2].undo;
    __real_avx2_rp_down_tokens(run, mixed, count, rows);
}

/* A half group's last column is left out, as if there were whole groups only. */
void __real_avx2_rp_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows);
void __wrap_avx2_rp_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows);
void __wrap_avx2_rp_down(const struct tiers_run *run, const float *v, float undo, float weight, float *y, uint32_t rows)
{
    uint32_t count = 16 * run->groups + 8 * (uint32_t)(run->first_half + run->last_half);
    float *cut;

    if (!is("half-group") || !run->last_half) {
        __real_avx2_rp_down(run, v, undo, weight, y, rows);
        return;
    }
    cut = aligned_alloc(32, (count * sizeof(*cut) + 31) / 32 * 32);
    if (!cut)
        abort();
    memcpy(cut, v, count * sizeof(*cut));
    cut[count - 1] = 0.0f;
    __real_avx2_rp_down(run, cut, undo, weight, y, rows);
    free(cut);
}

/* Two neurons of a half panel change places. */
void __real_avx2_rm_half_panel(const struct tiers_run *run, const struct tiers_token *token, uint32_t count);
void __wrap_avx2_rm_half_panel(const struct tiers_run *run, const struct tiers_token *token, uint32_t count);
void __wrap_avx2_rm_half_panel(const struct tiers_run *run, const struct tiers_token *token, uint32_t count)
{
    __real_avx2_rm_half_panel(run, token, count);
    for (uint32_t t = 0; is("half-panel") && t < count; t++) {
        float swap = token[t].out[6];

        token[t].out[6] = token[t].out[7];
        token[t].out[7] = swap;
    }
}

/* The padding of h is left as it was. */
int __real_avx2_normalise_f32(float *out, uint32_t floats, const float *in, uint32_t count);
int __wrap_avx2_normalise_f32(float *out, uint32_t floats, const float *in, uint32_t count);
int __wrap_avx2_normalise_f32(float *out, uint32_t floats, const float *in, uint32_t count)
{
    return __real_avx2_normalise_f32(out, is("h-padding") ? count : floats, in, count);
}

/* The sign of a half group's last column is lost. */
void __real_avx2_pack_half_group(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns);
void __wrap_avx2_pack_half_group(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns);
void __wrap_avx2_pack_half_group(uint8_t *at, uint32_t tile, const uint8_t *codes, size_t stride, uint32_t rows, uint32_t columns)
{
    __real_avx2_pack_half_group(at, tile, codes, stride, rows, columns);
    for (uint32_t lane = 0; is("pack-sign") && lane < 16; lane++)
        at[16 * tile + lane] &= 0xfe;
}
