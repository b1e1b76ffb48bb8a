/* Numbers people type. */
#ifndef FP9_CTL_NUMBER_H
#define FP9_CTL_NUMBER_H

#include <stdbool.h>

/* A whole decimal number without sign, blanks or suffix. */
bool number_parse(const char *text, long long low, long long high, long long *ret_value);
/* "4G": bytes, K M G T are powers of 1024. */
bool number_parse_size(const char *text, long long *ret_bytes);

#endif
