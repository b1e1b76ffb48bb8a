#include "proto/control/b64.h"

#include <errno.h>
#include <stdbool.h>

#include "proto/base/size.h"

static const char alphabet[64] = {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"};

void b64_encode(const void *data, size_t length, char *to)
{
    const uint8_t *from = data;
    size_t i = 0;
    for (; i + 3 <= length; i += 3) {
        uint32_t group = (uint32_t)from[i] << 16 | (uint32_t)from[i + 1] << 8 | from[i + 2];
        *to++ = alphabet[group >> 18];
        *to++ = alphabet[group >> 12 & 63];
        *to++ = alphabet[group >> 6 & 63];
        *to++ = alphabet[group & 63];
    }
    if (i < length) {
        bool two = i + 2 == length;
        uint32_t group = (uint32_t)from[i] << 16 | (two ? (uint32_t)from[i + 1] << 8 : 0);
        *to++ = alphabet[group >> 18];
        *to++ = alphabet[group >> 12 & 63];
        *to++ = two ? alphabet[group >> 6 & 63] : '=';
        *to++ = '=';
    }
    *to = '\0';
}

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Checks the whole text before anything is written. */
static int check(const char *text, size_t length, size_t padding, struct err *err)
{
    for (size_t i = 0; i < length - padding; i++)
        if (value_of(text[i]) < 0)
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "character %zu is no base64", i);
    if ((padding == 1 && value_of(text[length - 2]) & 3) || (padding == 2 && value_of(text[length - 3]) & 15))
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "the base64 text has bits left over at its end");
    return 0;
}

int b64_decode(const char *text, size_t text_length, void *to, size_t expected, struct err *err)
{
    if (text_length > B64_TEXT_LENGTH(B64_BYTES_MAX))
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%zu characters of base64, at most %d bytes may be sent so; use the arena",
                       text_length, B64_BYTES_MAX);
    if (text_length % 4 != 0)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%zu character%s of base64, not a multiple of 4", text_length,
                       size_plural(text_length));
    size_t padding = 0;
    while (text_length && padding < 2 && text[text_length - 1 - padding] == '=')
        padding++;
    int r = check(text, text_length, padding, err);
    if (r)
        return r;
    size_t found = text_length / 4 * 3 - padding;
    if (found > B64_BYTES_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "%zu bytes as base64, at most %d may be sent so; use the arena", found,
                       B64_BYTES_MAX);
    if (found != expected) {
        err_set(err, -EINVAL, ERR_BAD_SHAPE, "%zu byte%s, the shape needs %zu", found, size_plural(found), expected);
        err_value_int(err, "expected", (long long)expected);
        err_value_int(err, "found", (long long)found);
        return -EINVAL;
    }
    uint8_t *out = to;
    size_t written = 0;
    for (size_t i = 0; i < text_length; i += 4) {
        uint32_t group = 0;
        for (size_t j = 0; j < 4; j++)
            group = group << 6 | (text[i + j] == '=' ? 0 : (uint32_t)value_of(text[i + j]));
        for (int shift = 16; shift >= 0 && written < found; shift -= 8)
            out[written++] = (uint8_t)(group >> shift);
    }
    return 0;
}
