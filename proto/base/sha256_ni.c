#include "proto/base/sha256_ni.h"

#ifdef __x86_64__

#include <cpuid.h>
#include <immintrin.h>
#include <stdatomic.h>

#include "proto/base/sha256_constants.h"

#define SHA256_TARGET __attribute__((target("sha,sse4.1,ssse3")))

struct stream {
    __m128i abef, cdgh; /* as the instructions want the state */
    __m128i w[4];       /* the last 16 words of the schedule */
    const uint8_t *data;
};

static bool look(void)
{
    uint32_t eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && ebx & bit_SHA && __builtin_cpu_supports("sse4.1") &&
           __builtin_cpu_supports("ssse3");
}

/* Looked up once: virtual machines take microseconds to answer. */
bool sha256_ni_here(void)
{
    static atomic_int known; /* 0 not yet, 1 no, 2 yes */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (!answer) {
        answer = look() ? 2 : 1;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 2;
}

SHA256_TARGET static inline __attribute__((always_inline)) void take(struct stream *stream, const uint32_t state[8], const uint8_t *data)
{
    __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)state), 0xb1);
    __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)(state + 4)), 0x1b);
    stream->abef = _mm_alignr_epi8(badc, hgfe, 8);
    stream->cdgh = _mm_blend_epi16(hgfe, badc, 0xf0);
    stream->data = data;
}

SHA256_TARGET static inline __attribute__((always_inline)) void give(const struct stream *stream, uint32_t state[8])
{
    __m128i feba = _mm_shuffle_epi32(stream->abef, 0x1b), dchg = _mm_shuffle_epi32(stream->cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

/* Words 4 i .. 4 i + 3 of the schedule in w[i % 4], and their four rounds. */
SHA256_TARGET static inline __attribute__((always_inline)) void four_rounds(struct stream *stream, int i)
{
    __m128i *w = stream->w;
    if (i < 4) {
        const __m128i swap = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
        w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(stream->data + 16 * i)), swap);
    } else {
        __m128i seventh = _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4); /* words 4 i - 7 .. 4 i - 4 */
        __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), seventh);
        w[i % 4] = _mm_sha256msg2_epu32(sum, w[(i + 3) % 4]);
    }
    __m128i words = _mm_add_epi32(w[i % 4], _mm_load_si128((const __m128i *)(const void *)(sha256_constants + 4 * i)));
    stream->cdgh = _mm_sha256rnds2_epu32(stream->cdgh, stream->abef, words);
    stream->abef = _mm_sha256rnds2_epu32(stream->abef, stream->cdgh, _mm_shuffle_epi32(words, 0x0e));
}

#define FOUR(i)                 \
    do {                        \
        four_rounds(x, (i));    \
        if (y)                  \
            four_rounds(y, (i)); \
    } while (0)
#define SIXTEEN(i)     \
    do {               \
        FOUR(i);       \
        FOUR((i) + 1); \
        FOUR((i) + 2); \
        FOUR((i) + 3); \
    } while (0)

SHA256_TARGET static inline __attribute__((always_inline)) void end_block(struct stream *stream, const struct stream *before)
{
    stream->abef = _mm_add_epi32(stream->abef, before->abef);
    stream->cdgh = _mm_add_epi32(stream->cdgh, before->cdgh);
    stream->data += SHA256_BLOCK;
}

/* y: NULL for one stream; inlined, so that all is in registers. */
SHA256_TARGET static inline __attribute__((always_inline)) void run(struct stream *x, struct stream *y, size_t blocks)
{
    for (; blocks; blocks--) {
        struct stream x_before = *x, y_before = y ? *y : *x;
        SIXTEEN(0);
        SIXTEEN(4);
        SIXTEEN(8);
        SIXTEEN(12);
        end_block(x, &x_before);
        if (y)
            end_block(y, &y_before);
    }
}

SHA256_TARGET void sha256_ni_one(uint32_t state[8], const uint8_t *data, size_t blocks)
{
    struct stream stream;
    take(&stream, state, data);
    run(&stream, NULL, blocks);
    give(&stream, state);
}

SHA256_TARGET void sha256_ni_two(uint32_t state_a[8], const uint8_t *a, uint32_t state_b[8], const uint8_t *b, size_t blocks)
{
    struct stream x, y;
    take(&x, state_a, a);
    take(&y, state_b, b);
    run(&x, &y, blocks);
    give(&x, state_a);
    give(&y, state_b);
}

#else

bool sha256_ni_here(void)
{
    return false;
}

void sha256_ni_one(uint32_t state[8], const uint8_t *data, size_t blocks)
{
    (void)state, (void)data, (void)blocks;
    __builtin_unreachable();
}

void sha256_ni_two(uint32_t state_a[8], const uint8_t *a, uint32_t state_b[8], const uint8_t *b, size_t blocks)
{
    (void)state_a, (void)a, (void)state_b, (void)b, (void)blocks;
    __builtin_unreachable();
}

#endif
