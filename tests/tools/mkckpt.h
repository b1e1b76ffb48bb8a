/* fp9-mkckpt: seeded random checkpoints in the real format, for tests and benches of any size.
 *
 * main (mkckpt.c) reads the options; mkckpt_config.c makes the config.json, mkckpt_list.c the tensor list;
 * mkckpt_random.c fills tensors; mkckpt_write.c writes shards and index. One thread; memory is bounded by one band of 128 rows. */
#ifndef FP9_TOOLS_MKCKPT_H
#define FP9_TOOLS_MKCKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/arch.h"
#include "proto/base/safetensors.h"

struct mkckpt_options {
    const char *like;
    const char *out;
    uint64_t seed;
    uint32_t layers, experts, hidden, intermediate, moe_intermediate; /* 0: as in the config */
    enum safetensors_dtype scale_dtype;
    uint64_t shard_bytes;
    bool mtp;    /* the MTP layers that the config announces too */
    bool fused;  /* matrices in one tensor wherever the family's table knows how */
    bool sparse; /* holes in place of data: every code and scale is 0 */
};

enum mkckpt_kind {
    MKCKPT_WEIGHT, /* F8_E4M3 */
    MKCKPT_SCALE,  /* of the weight before it in the list */
    MKCKPT_ROUTER, /* BF16 */
};

struct mkckpt_tensor {
    char *name;
    enum mkckpt_kind kind;
    enum safetensors_dtype dtype;
    uint32_t dims;
    uint64_t shape[3]; /* [dims] */
    uint64_t bytes;
    /* Of a weight: what is drawn into it one below another, each [part_rows, columns]; owned, and each of them. */
    char **parts;
    size_t part_count;
    uint64_t part_rows;
    uint32_t shard; /* set by mkckpt_write */
};

struct mkckpt_list {
    struct mkckpt_tensor *tensors;
    size_t count, capacity;
    uint64_t bytes;
};
void mkckpt_list_release(struct mkckpt_list *list);

/* The config.json to write: the one of --like with the overrides and an FP8 quantization_config; *ret_text is malloced. */
int mkckpt_config(const struct mkckpt_options *options, char **ret_text, struct arch **ret_arch, struct err *err);
int mkckpt_list_make(const struct arch *arch, const struct mkckpt_options *options, struct mkckpt_list *list, struct err *err);

/* Random weights: Gaussian with a spread that differs from block to block by powers of two, each 128x128 block quantised to E4M3 with
 * scale = (largest magnitude) / 448 in the scale's dtype. What a tensor holds depends on seed, its name and its shape alone. In a fused
 * one each matrix is what it would be in a tensor of its own, unless gate is no multiple of 128: then blocks run on from gate into up. */
struct mkckpt_random;
struct mkckpt_random *mkckpt_random_new(uint64_t seed, enum safetensors_dtype scale_dtype); /* NULL: out of memory */
void mkckpt_random_free(struct mkckpt_random *random);
CLEANUP_DEFINE(struct mkckpt_random *, mkckpt_random_free);
/* Rows [128 * band, +rows) of a weight with `columns` columns to `codes`; the band's scales, in their dtype, to `scales`. */
void mkckpt_random_band(struct mkckpt_random *random, const char *name, uint64_t band, uint32_t rows, uint32_t columns, uint8_t *codes,
                        uint8_t *scales);
void mkckpt_random_router_row(struct mkckpt_random *random, const char *name, uint64_t row, uint32_t columns, uint16_t *bits);

/* Makes the directory and all its files; on failure removes what it made. */
int mkckpt_write(const struct mkckpt_options *options, const char *config, struct mkckpt_list *list, uint32_t *ret_shards, struct err *err);

#endif
