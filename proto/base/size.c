#include "proto/base/size.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char suffixes[] = "KMGT";

/* Reads digits at *text into *ret and moves *text past them. */
static bool digits(const char **text, uint64_t *ret)
{
    const char *p = *text;
    uint64_t value = 0;
    if (!isdigit((unsigned char)*p))
        return false;
    for (; isdigit((unsigned char)*p); p++)
        if (!size_mul(value, 10U, &value) || !size_add(value, (unsigned)(*p - '0'), &value))
            return false;
    *text = p;
    *ret = value;
    return true;
}

bool size_parse(const char *text, uint64_t *ret_bytes)
{
    uint64_t value;
    if (!digits(&text, &value))
        return false;
    if (*text) {
        const char *suffix = strchr(suffixes, toupper((unsigned char)*text));
        if (suffix && *suffix) {
            for (long i = suffix - suffixes; i >= 0; i--)
                if (!size_mul(value, UINT64_C(1024), &value))
                    return false;
            text++;
            if (strcasecmp(text, "ib") == 0)
                text += 2;
        }
        if (strcasecmp(text, "b") == 0)
            text++;
        if (*text)
            return false;
    }
    *ret_bytes = value;
    return true;
}

bool size_parse_u64(const char *text, uint64_t low, uint64_t high, uint64_t *ret_value)
{
    uint64_t value;
    if (!digits(&text, &value) || *text || value < low || value > high)
        return false;
    *ret_value = value;
    return true;
}

const char *size_format(uint64_t bytes, char *text, size_t size)
{
    if (bytes < 1024) {
        snprintf(text, size, "%u byte%s", (unsigned)bytes, size_plural(bytes));
        return text;
    }
    double value = (double)bytes;
    int step = -1;
    while (value >= 1024.0 && step < 3) {
        value /= 1024.0;
        step++;
    }
    snprintf(text, size, "%.*f %ciB", value < 100.0 ? 1 : 0, value, suffixes[step]);
    return text;
}
