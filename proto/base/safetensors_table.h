/* The table of tensors in a safetensors header: built from JSON in pieces, then checked. Private to safetensors. */
#ifndef FP9_BASE_SAFETENSORS_TABLE_H
#define FP9_BASE_SAFETENSORS_TABLE_H

#include "proto/base/safetensors.h"

struct safetensors_table {
    struct safetensors_tensor *tensors; /* owned; by name once checked */
    size_t count, capacity;
    struct buf names; /* NUL-terminated, one after another; a tensor's name points here once the header is complete */
};
void safetensors_table_release(struct safetensors_table *table);

/* Parser of one header: any number of pieces, then finish. Messages name `where`. */
struct safetensors_parser;
struct safetensors_parser *safetensors_parser_new(const char *where, struct safetensors_table *table); /* NULL: out of memory */
void safetensors_parser_free(struct safetensors_parser *parser);
CLEANUP_DEFINE(struct safetensors_parser *, safetensors_parser_free);
int safetensors_parser_feed(struct safetensors_parser *parser, const void *piece, size_t length, struct err *err);
int safetensors_parser_finish(struct safetensors_parser *parser, struct err *err);

/* Duplicate names, sizes against shapes, overlaps, holes, and the end against `data_bytes`, the bytes that the file has after its
 * header. */
int safetensors_table_check(struct safetensors_table *table, const char *where, uint64_t data_bytes, struct err *err);

#endif
