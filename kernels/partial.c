#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "kernels/tiers.h"

void kernels_canonical(float *values, size_t count)
{
    fpenv_saved saved = fpenv_enter();

    tiers_active()->canonical(values, count);
    fpenv_leave(saved);
}

void kernels_to_bf16(uint16_t *ret_bits, const float *values, size_t count)
{
    fpenv_saved saved = fpenv_enter();

    tiers_active()->to_bf16(ret_bits, values, count);
    fpenv_leave(saved);
}

void kernels_add_f32(float *sum, const float *partial, size_t count)
{
    fpenv_saved saved = fpenv_enter();

    tiers_active()->add_f32(sum, partial, count);
    fpenv_leave(saved);
}

void kernels_add_bf16(float *sum, const uint16_t *partial, size_t count)
{
    fpenv_saved saved = fpenv_enter();

    tiers_active()->add_bf16(sum, partial, count);
    fpenv_leave(saved);
}
