#include "proto/base/digest.h"

#include <endian.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

struct digest {
    EVP_MD_CTX *context;
};

struct digest *digest_new(void)
{
    struct digest *digest = calloc(1, sizeof *digest);
    if (!digest)
        return NULL;
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

void digest_update(struct digest *digest, const void *data, size_t length)
{
    must(EVP_DigestUpdate(digest->context, data, length));
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

void digest_finish(struct digest *digest, uint8_t ret_digest[DIGEST_SIZE])
{
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
