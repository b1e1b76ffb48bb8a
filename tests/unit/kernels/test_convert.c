#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "kernels/bits.h"
#include "kernels/kernels.h"

static void test_f16_all(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        uint32_t exponent = (bits >> 10) & 31, mantissa = bits & 1023;
        float have = kernels_f16_to_f32((uint16_t)bits);
        double want = exponent ? ldexp(1024 + mantissa, (int)exponent - 25) : ldexp(mantissa, -24);

        if (exponent == 31)
            want = mantissa ? NAN : INFINITY;
        if (isnan(want)) {
            assert_true(isnan(have));
            continue;
        }
        assert_true((double)have == (bits & 0x8000 ? -want : want));
        assert_int_equal(!!signbit(have), bits >> 15);
    }
}

/* There and back for all BF16; between two neighbours the nearer, at half way the even one. */
static void test_bf16_all(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        float value = kernels_bf16_to_f32((uint16_t)bits);

        if (isnan(value)) {
            assert_int_equal(kernels_bf16_of_f32(value), 0x7fc0);
            continue;
        }
        assert_int_equal(kernels_bf16_of_f32(value), bits);
        if (isinf(value))
            continue;
        assert_int_equal(kernels_bf16_of_f32(bits_to_f32(bits << 16 | 0x7fff)), bits);
        assert_int_equal(kernels_bf16_of_f32(bits_to_f32(bits << 16 | 0x8000)), bits + (bits & 1));
        assert_int_equal(kernels_bf16_of_f32(bits_to_f32(bits << 16 | 0x8001)), bits + 1);
    }
}

static void test_fp9(void **state)
{
    (void)state;
    assert_int_equal(kernels_fp9_of_e4m3(0x7f), KERNELS_FP9_NAN);
    assert_int_equal(kernels_fp9_of_e4m3(0xff), KERNELS_FP9_NAN);
    assert_int_equal(kernels_fp9_of_e4m3(0x80), 0x100);
    assert_int_equal(kernels_fp9_of_e4m3(0x01), 0x38);
    assert_int_equal(kernels_fp9_of_e4m3(0xfe), 0x100 | (0x7e + 0x48));
    assert_true(kernels_fp9_to_f32(0x100) == 0.0f && signbit(kernels_fp9_to_f32(0x100)));
    assert_true(kernels_fp9_to_f32(kernels_fp9_of_e4m3(0x7e)) == 448.0f);
    assert_true(kernels_fp9_to_f32(kernels_fp9_of_e4m3(0x83)) == -3 * 0x1p-9f);
    assert_true(isnan(kernels_fp9_to_f32(KERNELS_FP9_NAN)));
}

/* Every place of a run that is no multiple of a block, both NaN codes, every other code passed over. */
static void test_find_nan(void **state)
{
    uint8_t codes[197];

    (void)state;
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(i % 127 | (i & 1) << 7);
    for (size_t count = 0; count <= sizeof codes; count++)
        assert_int_equal(kernels_find_nan(codes, count), count);
    for (size_t at = 0; at < sizeof codes; at++) {
        uint8_t kept = codes[at];

        codes[at] = at & 1 ? 0x7f : 0xff;
        assert_int_equal(kernels_find_nan(codes, sizeof codes), at);
        assert_int_equal(kernels_find_nan(codes, at), at);
        codes[at] = kept;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_all),
        cmocka_unit_test(test_bf16_all),
        cmocka_unit_test(test_fp9),
        cmocka_unit_test(test_find_nan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
