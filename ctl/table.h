/* Results as text: aligned tables of JSON objects, and single objects one member a line. */
#ifndef FP9_CTL_TABLE_H
#define FP9_CTL_TABLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define TABLE_TEXT_MAX 128

enum table_kind {
    TABLE_TEXT,
    TABLE_STATE, /* text, coloured by what it means */
    TABLE_COUNT, /* right-aligned number */
    TABLE_BYTES, /* for people: "21.5 GiB" */
    TABLE_KEY,   /* the first 12 characters of a long hexadecimal name */
    TABLE_SHARE, /* 0..1 as per cent */
};

struct table_column {
    const char *key; /* member of the row's object */
    const char *title;
    enum table_kind kind;
};

/* One line a row below a line of titles; an empty array prints `empty` instead. */
void table_print(const json_t *rows, const struct table_column *columns, size_t count, const char *empty, bool color);

/* "key: value" lines of an object's plain members, sizes for people; arrays of plain values are joined; of objects the members
 * follow on the line, of an error its name and its whole message. */
void table_print_object(const json_t *object);

/* A value as a cell has it; "-" for null or nothing, control characters replaced. Longer text ends with "...". */
void table_format(const json_t *value, enum table_kind kind, char ret_text[TABLE_TEXT_MAX]);

#endif
