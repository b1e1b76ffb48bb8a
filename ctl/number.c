#include "ctl/number.h"

#include <string.h>

static bool digits(const char **text, long long *ret_value)
{
    long long value = 0;
    const char *p = *text;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *p - '0', &value))
            return false;
    if (p == *text)
        return false;
    *text = p;
    *ret_value = value;
    return true;
}

bool number_parse(const char *text, long long low, long long high, long long *ret_value)
{
    long long value;
    if (!digits(&text, &value) || *text || value < low || value > high)
        return false;
    *ret_value = value;
    return true;
}

bool number_parse_size(const char *text, long long *ret_bytes)
{
    static const char suffixes[] = "KMGTkmgt";
    long long value;
    if (!digits(&text, &value))
        return false;
    const char *suffix = *text ? strchr(suffixes, *text) : NULL;
    if (*text && (!suffix || text[1]))
        return false;
    for (long i = suffix ? (suffix - suffixes) % 4 : -1; i >= 0; i--)
        if (__builtin_mul_overflow(value, 1024, &value))
            return false;
    *ret_bytes = value;
    return true;
}
