#include "ctl/random.h"

#include <string.h>

/* splitmix64's step: any seed, also 0, gives a good sequence. */
static uint64_t next(struct random *random)
{
    uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

void random_input(struct random *random, uint16_t *x, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        /* Four 16-bit uniforms: mean 2, variance 1/3. */
        uint64_t bits = next(random);
        float sum = (float)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48)) / 65536.0f;
        float value = (sum - 2.0f) * 1.7320508f;
        uint32_t pattern;
        memcpy(&pattern, &value, sizeof pattern);
        x[i] = (uint16_t)(pattern >> 16);
    }
}

void random_routing(struct random *random, uint32_t experts, uint32_t top_k, int32_t *all, int32_t *ids, float *weights)
{
    float sum = 0.0f;
    for (uint32_t k = 0; k < top_k; k++) {
        uint32_t other = k + (uint32_t)(next(random) % (experts - k));
        int32_t id = all[other];
        all[other] = all[k];
        all[k] = id;
        ids[k] = id;
        weights[k] = (float)(next(random) % 1000 + 1);
        sum += weights[k];
    }
    for (uint32_t k = 0; k < top_k; k++)
        weights[k] /= sum;
}
