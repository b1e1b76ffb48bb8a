/* Configuration files: ini, table-driven, strict. A key that no table row names, a value of the wrong type or out of range, and a key given
 * twice are refused with file, line, section and key. */
#ifndef FP9_BASE_CONF_H
#define FP9_BASE_CONF_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"

enum conf_type {
    CONF_STRING,  /* char *, malloced; "" is a value; low..high = length */
    CONF_BOOL,    /* bool; yes no true false on off 1 0 */
    CONF_U32,     /* uint32_t, low..high */
    CONF_SIZE,    /* uint64_t bytes with K M G T; "" leaves the default */
    CONF_CHOICE,  /* char *, malloced; one of `choices` */
};

struct conf_key {
    const char *section;
    const char *name;
    enum conf_type type;
    size_t offset; /* of the field in the settings struct */
    uint64_t low, high;
    const char *const *choices; /* NULL-terminated, CONF_CHOICE */
};

struct conf_table {
    const struct conf_key *keys;
    size_t count;
    /* For sections with a name in them ([duck "NAME"]): the word before the quote, and who gives the struct that `named` fills
     * (same struct for the same name). NULL when there are none. */
    const char *named_section;
    const struct conf_key *named_keys; /* their `section` is ignored */
    size_t named_count;
    void *(*named)(void *settings, const char *name, struct err *err);
};

/* Fills `settings` (defaults already in it; strings in it are owned and replaced). On error some fields may be set. */
int conf_read(const char *path, const struct conf_table *table, void *settings, struct err *err);

#endif
