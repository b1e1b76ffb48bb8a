#include <math.h>

#include "kernels/bits.h"
#include "kernels/ref/ref.h"

#define A_MAX 174.0f        /* e^-a is far below every binary32 long before; keeps n in -252 .. 0 */
#define ROUND 0x1.8p23f     /* adding and subtracting it rounds to the nearest even integer */

float ref_silu(float g)
{
    float a = fabsf(g);
    float n, r, p, z1, z, n2_power;
    int n_int, n1;

    if (isnan(g))
        return g;
    if (a > A_MAX)
        a = A_MAX;
    n = (a * -0x1.715476p+0f + ROUND) - ROUND;
    r = fmaf(n, -0x1.62e400p-1f, -a);
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    p = 0x1.a01a02p-13f;
    p = fmaf(p, r, 0x1.6c16c2p-10f);
    p = fmaf(p, r, 0x1.111112p-7f);
    p = fmaf(p, r, 0x1.555556p-5f);
    p = fmaf(p, r, 0x1.555556p-3f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);

    n_int = (int)n;
    n1 = n_int >= 0 ? 0 : -((1 - n_int) / 2); /* floor(n / 2) */
    n2_power = bits_pow2(n_int - n1);
    z1 = p * bits_pow2(n1);
    z = z1 * n2_power;
    if (g >= 0.0f)
        return g / (1.0f + z);
    return ((fmaxf(g, -A_MAX) * z1) / (1.0f + z)) * n2_power;
}
