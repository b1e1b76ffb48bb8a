#include "proto/base/digest.h"

#include <endian.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/sha256_ni.h"

/* With SHA instructions the rounds are ours (sha256_ni.h), so that two digests can share them; else they are OpenSSL's. */
struct digest {
    EVP_MD_CTX *context; /* owned; NULL: the rest is in use */
    uint32_t state[8];
    uint64_t length;
    uint8_t rest[SHA256_BLOCK]; /* length % SHA256_BLOCK bytes that are no block yet */
};

/* FIPS 180-4, 5.3.3 */
static const uint32_t first_state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static void start(struct digest *digest)
{
    memcpy(digest->state, first_state, sizeof first_state);
    digest->length = 0;
}

struct digest *digest_new(void)
{
    struct digest *digest = calloc(1, sizeof *digest);
    if (!digest)
        return NULL;
    start(digest);
    if (sha256_ni_here())
        return digest;
    digest->context = EVP_MD_CTX_new();
    if (!digest->context || EVP_DigestInit_ex(digest->context, EVP_sha256(), NULL) != 1) {
        digest_free(digest);
        return NULL;
    }
    return digest;
}

void digest_free(struct digest *digest)
{
    if (!digest)
        return;
    EVP_MD_CTX_free(digest->context);
    free(digest);
}

/* OpenSSL's SHA-256 over memory cannot fail once its context exists; if it did, identities would be
 * worthless, so the process must not go on. */
static void must(int ok)
{
    if (ok != 1)
        abort();
}

/* Bytes that complete a block begun before; the number of them. */
static size_t fill_rest(struct digest *digest, const uint8_t *data, size_t length)
{
    size_t used = digest->length % SHA256_BLOCK, take = used ? SHA256_BLOCK - used : 0;
    if (take > length)
        take = length;
    if (!take)
        return 0;
    memcpy(digest->rest + used, data, take);
    digest->length += take;
    if (used + take == SHA256_BLOCK)
        sha256_ni_one(digest->state, digest->rest, 1);
    return take;
}

static void update_ours(struct digest *digest, const uint8_t *data, size_t length)
{
    size_t at = fill_rest(digest, data, length), blocks = (length - at) / SHA256_BLOCK;
    sha256_ni_one(digest->state, data + at, blocks);
    at += blocks * SHA256_BLOCK;
    memcpy(digest->rest, data + at, at < length ? length - at : 0);
    digest->length += length - at + blocks * SHA256_BLOCK;
}

void digest_update(struct digest *digest, const void *data, size_t length)
{
    if (digest->context)
        must(EVP_DigestUpdate(digest->context, data, length));
    else if (length)
        update_ours(digest, data, length);
}

void digest_update_two(const struct digest_part parts[2])
{
    size_t at[2] = {0}, blocks = SIZE_MAX;
    bool ours = !parts[0].digest->context && !parts[1].digest->context && parts[0].digest != parts[1].digest;
    for (int i = 0; ours && i < 2; i++) {
        at[i] = fill_rest(parts[i].digest, parts[i].data, parts[i].length);
        size_t left = (parts[i].length - at[i]) / SHA256_BLOCK;
        blocks = left < blocks ? left : blocks;
    }
    if (ours && blocks) {
        sha256_ni_two(parts[0].digest->state, (const uint8_t *)parts[0].data + at[0], parts[1].digest->state,
                      (const uint8_t *)parts[1].data + at[1], blocks);
        for (int i = 0; i < 2; i++) {
            parts[i].digest->length += blocks * SHA256_BLOCK;
            at[i] += blocks * SHA256_BLOCK;
        }
    }
    for (int i = 0; i < 2; i++)
        digest_update(parts[i].digest, (const uint8_t *)parts[i].data + at[i], parts[i].length - at[i]);
}

void digest_update_u64(struct digest *digest, uint64_t value)
{
    value = htole64(value);
    digest_update(digest, &value, sizeof value);
}

void digest_update_string(struct digest *digest, const char *text)
{
    digest_update(digest, text, strlen(text) + 1);
}

/* A bit 1, zeros, and the length in bits: up to the end of a block (FIPS 180-4, 5.1.1). */
static void finish_ours(struct digest *digest, uint8_t ret_digest[DIGEST_SIZE])
{
    uint64_t bits = htobe64(digest->length * 8);
    size_t used = digest->length % SHA256_BLOCK;
    digest->rest[used++] = 0x80;
    if (used > SHA256_BLOCK - sizeof bits) {
        memset(digest->rest + used, 0, SHA256_BLOCK - used);
        sha256_ni_one(digest->state, digest->rest, 1);
        used = 0;
    }
    memset(digest->rest + used, 0, SHA256_BLOCK - sizeof bits - used);
    memcpy(digest->rest + SHA256_BLOCK - sizeof bits, &bits, sizeof bits);
    sha256_ni_one(digest->state, digest->rest, 1);
    for (int i = 0; i < 8; i++) {
        uint32_t word = htobe32(digest->state[i]);
        memcpy(ret_digest + 4 * i, &word, sizeof word);
    }
    start(digest);
}

void digest_finish(struct digest *digest, uint8_t ret_digest[DIGEST_SIZE])
{
    if (!digest->context) {
        finish_ours(digest, ret_digest);
        return;
    }
    must(EVP_DigestFinal_ex(digest->context, ret_digest, NULL));
    must(EVP_DigestInit_ex(digest->context, EVP_sha256(), NULL));
}

void digest_hex(const uint8_t digest[DIGEST_SIZE], char ret_hex[DIGEST_HEX_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < DIGEST_SIZE; i++) {
        ret_hex[2 * i] = digits[digest[i] >> 4];
        ret_hex[2 * i + 1] = digits[digest[i] & 15];
    }
    ret_hex[2 * DIGEST_SIZE] = '\0';
}

bool digest_parse(const char *hex, uint8_t ret_digest[DIGEST_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    if (strlen(hex) != 2 * DIGEST_SIZE || strspn(hex, digits) != 2 * DIGEST_SIZE)
        return false;
    for (size_t i = 0; i < DIGEST_SIZE; i++)
        ret_digest[i] = (uint8_t)((strchr(digits, hex[2 * i]) - digits) << 4 | (strchr(digits, hex[2 * i + 1]) - digits));
    return true;
}
