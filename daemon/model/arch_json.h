/* Typed look-ups in config.json: each failure names the file, the keys looked for, what is there and what would be right. */
#ifndef FP9_MODEL_ARCH_JSON_H
#define FP9_MODEL_ARCH_JSON_H

#include <jansson.h>
#include <stdint.h>

#include "proto/base/err.h"

/* A whole number in [low, high] under any of the keys (NULL-terminated, at most ARCH_KEYS_MAX). Two spellings with different values are
 * refused. BAD_CHECKPOINT. */
int arch_json_u32(const json_t *object, const char *const *keys, uint32_t low, uint32_t high, const char *where, uint32_t *ret_value,
                  struct err *err);
/* The same for a key that may be absent or null. */
int arch_json_u32_or(const json_t *object, const char *const *keys, uint32_t low, uint32_t high, uint32_t otherwise, const char *where,
                     uint32_t *ret_value, struct err *err);
/* The first of the keys that is there and not null; NULL: none is. */
const char *arch_json_key(const json_t *object, const char *const *keys);
/* A value as short text for a message: "true", "\"x\"", "an object". Returns `text`. */
const char *arch_json_show(const json_t *value, char *text, size_t size);

#endif
