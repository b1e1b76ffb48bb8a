#include "tests/checkkern/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xa5
#define GUARD 256

unsigned check_compared;
unsigned check_failed;
bool check_stop;

uint64_t check_u64(struct check_random *random)
{
    uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint32_t check_below(struct check_random *random, uint32_t n)
{
    return (uint32_t)(check_u64(random) % n);
}

float check_float(struct check_random *random)
{
    return ((float)(check_u64(random) >> 41) - 4194303.5f) * 0x1p-22f;
}

void check_fail(const char *format, ...)
{
    va_list args;

    check_failed++;
    va_start(args, format);
    fputs("FAIL ", stdout);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
    if (check_stop)
        exit(1);
}

bool check_same(const char *what, const char *tier, const void *have, const void *want, size_t bytes)
{
    const uint8_t *a = have, *b = want;
    size_t i = 0;

    check_compared++;
    if (memcmp(a, b, bytes) == 0)
        return true;
    while (a[i] == b[i])
        i++;
    check_fail("%s: %s differs from ref at byte %zu of %zu: %02x, not %02x", what, tier, i, bytes, a[i], b[i]);
    return false;
}

bool check_tier(size_t i, const struct tiers_variant **ret_variant)
{
    size_t count;
    const struct tiers_variant *variants = tiers_variants(&count);

    for (size_t v = 0; v < count; v++) {
        if (variants[v].tier == KERNELS_REF || !kernels_tier_available(variants[v].tier))
            continue;
        if (i-- == 0) {
            *ret_variant = &variants[v];
            return true;
        }
    }
    return false;
}

struct check_guarded check_guarded_new(size_t bytes, size_t offset)
{
    struct check_guarded guarded = {.bytes = bytes, .total = (2 * GUARD + bytes + offset + 63) & ~(size_t)63};

    guarded.base = aligned_alloc(64, guarded.total);
    if (!guarded.base) {
        fputs("checkkern: out of memory\n", stderr);
        exit(1);
    }
    memset(guarded.base, POISON, guarded.total);
    guarded.data = guarded.base + GUARD + offset;
    return guarded;
}

bool check_guarded_free(struct check_guarded *guarded)
{
    bool whole = true;

    for (uint8_t *at = guarded->base; at < guarded->base + guarded->total; at++)
        if ((at < guarded->data || at >= guarded->data + guarded->bytes) && *at != POISON)
            whole = false;
    free(guarded->base);
    *guarded = (struct check_guarded){0};
    return whole;
}
