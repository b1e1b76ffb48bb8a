/* Numbers from outside: checked arithmetic and parsing. */
#ifndef FP9_BASE_SIZE_H
#define FP9_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True and *ret = a op b when it fits; false otherwise. */
#define size_add(a, b, ret) (!__builtin_add_overflow((a), (b), (ret)))
#define size_mul(a, b, ret) (!__builtin_mul_overflow((a), (b), (ret)))

static inline uint64_t size_ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* a up to the next multiple of b (b > 0). The caller knows that it fits. */
static inline uint64_t size_round_up(uint64_t a, uint64_t b)
{
    return size_ceil_div(a, b) * b;
}

/* "4G" -> bytes; suffixes K M G T are powers of 1024, upper or lower case, an optional final "B" or "iB". */
bool size_parse(const char *text, uint64_t *ret_bytes);
/* A whole decimal number within [low, high]; no sign, no blanks, no suffix. */
bool size_parse_u64(const char *text, uint64_t low, uint64_t high, uint64_t *ret_value);
/* What a noun ends with behind such a number: "1 slot", "2 slots". */
static inline const char *size_plural(uint64_t number)
{
    return number == 1 ? "" : "s";
}
/* "21.5 GiB", "640 bytes"; for people. Returns `text`. */
const char *size_format(uint64_t bytes, char *text, size_t size);

#endif
