/* SHA-256 against OpenSSL's own: all lengths around blocks, cut anywhere, one and two at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <openssl/evp.h>

#include "proto/base/digest.h"

#define LENGTH_MAX 4096

static uint64_t seed;

static uint64_t next_random(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return seed >> 33;
}

static void want(const uint8_t *data, size_t length, uint8_t ret[DIGEST_SIZE])
{
    assert_int_equal(EVP_Digest(data, length, ret, NULL, EVP_sha256(), NULL), 1);
}

/* FIPS 180-4's examples, and that a finished digest starts anew. */
static void test_known(void **state)
{
    (void)state;
    static const struct {
        const char *text, *hex;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    struct digest *digest = digest_new();
    assert_non_null(digest);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint8_t got[DIGEST_SIZE];
        char hex[DIGEST_HEX_SIZE];
        digest_update(digest, known[i].text, strlen(known[i].text));
        digest_finish(digest, got);
        digest_hex(got, hex);
        assert_string_equal(hex, known[i].hex);
    }
    digest_free(digest);
}

static void test_lengths(void **state)
{
    (void)state;
    uint8_t data[300], got[DIGEST_SIZE], right[DIGEST_SIZE];
    struct digest *digest = digest_new();
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)next_random();
    for (size_t length = 0; length <= sizeof data; length++)
        for (size_t cut = 0; cut <= length; cut += length < 140 ? 1 : 7) {
            digest_update(digest, data, cut);
            digest_update(digest, data + cut, length - cut);
            digest_finish(digest, got);
            want(data, length, right);
            assert_memory_equal(got, right, DIGEST_SIZE);
        }
    digest_free(digest);
}

/* Two streams of any lengths in pieces of any sizes, also empty ones. */
static void test_two(void **state)
{
    (void)state;
    static uint8_t data[2][LENGTH_MAX];
    struct digest *digests[2] = {digest_new(), digest_new()};
    for (int round = 0; round < 3000; round++) {
        size_t lengths[2], at[2] = {0};
        for (int s = 0; s < 2; s++) {
            lengths[s] = next_random() % (round % 3 ? LENGTH_MAX : 200);
            for (size_t i = 0; i < lengths[s]; i++)
                data[s][i] = (uint8_t)next_random();
        }
        while (at[0] < lengths[0] || at[1] < lengths[1]) {
            struct digest_part parts[2];
            for (int s = 0; s < 2; s++) {
                size_t left = lengths[s] - at[s], length = next_random() % (left + 1);
                if (next_random() % 4 == 0)
                    length = left;
                parts[s] = (struct digest_part){.digest = digests[s], .data = data[s] + at[s], .length = length};
                at[s] += length;
            }
            digest_update_two(parts);
        }
        for (int s = 0; s < 2; s++) {
            uint8_t got[DIGEST_SIZE], right[DIGEST_SIZE];
            digest_finish(digests[s], got);
            want(data[s], lengths[s], right);
            assert_memory_equal(got, right, DIGEST_SIZE);
        }
    }
    digest_free(digests[0]);
    digest_free(digests[1]);
}

int main(void)
{
    const char *given = getenv("FP9_SEED");
    seed = given ? strtoull(given, NULL, 0) : 20261130;
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
