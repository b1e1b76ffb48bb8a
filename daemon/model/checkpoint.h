/* A HuggingFace directory, opened and checked: every tensor that the MLP and expert layers need is there, of the right dtype and shape,
 * with finite scales. Nothing of the weights' bytes is read yet, except all scales.
 *
 * Files: those that model.safetensors.index.json names, whatever they are called; without an index all *.safetensors of the directory.
 * A scale may be negative or zero (it multiplies, nothing else); NaN, Inf and sizes beyond 2^80 are refused by tensor and block. Layers
 * from num_hidden_layers on are ignored.
 *
 * Threads: an open checkpoint is read-only but for checkpoint_read, which one thread at a time may call. */
#ifndef FP9_MODEL_CHECKPOINT_H
#define FP9_MODEL_CHECKPOINT_H

#include "daemon/model/arch.h"
#include "proto/base/digest.h"

#define CHECKPOINT_SHARDS_MAX 4096

struct checkpoint;

/* One F8_E4M3 matrix with its block scales. */
struct checkpoint_matrix {
    const char *name;       /* "model.layers.1.mlp.experts.3.down_proj" */
    uint32_t rows, columns; /* as stored: [out, in] */
    uint32_t shard;         /* index for checkpoint_shard_name */
    uint64_t offset;        /* in that file */
    const float *scales;    /* [ceil(rows/128)][ceil(columns/128)], exact binary32 of whatever dtype the file has */
    uint32_t scale_rows, scale_columns;
};

/* BAD_CHECKPOINT names file, tensor and numbers. NO_SUCH when the directory or config.json is not there. */
int checkpoint_open(const char *dir, const struct arch *arch, struct checkpoint **ret_checkpoint, struct err *err);
void checkpoint_free(struct checkpoint *checkpoint);
CLEANUP_DEFINE(struct checkpoint *, checkpoint_free);

const char *checkpoint_dir(const struct checkpoint *checkpoint);
const char *checkpoint_shard_name(const struct checkpoint *checkpoint, uint32_t shard);
uint64_t checkpoint_weight_bytes(const struct checkpoint *checkpoint); /* F8 bytes of all matrices a load reads */
/* Extra files that were ignored, for a log line; "" when none. */
const char *checkpoint_ignored(const struct checkpoint *checkpoint);

/* Never NULL for a layer and expert that the arch has. */
const struct checkpoint_matrix *checkpoint_find(const struct checkpoint *checkpoint, uint32_t layer, int expert,
                                                enum kernels_matrix matrix);

/* Reads rows [first_row, first_row + rows) into `to` (rows * columns bytes). Fails, naming the file, when it is short or has changed
 * (device, inode, size, mtime, ctime) since it was opened; never maps the file, so a truncation cannot raise SIGBUS. */
int checkpoint_read(struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, uint32_t first_row, uint32_t rows, uint8_t *to,
                    struct err *err);

/* Looks for a NaN code (0x7f, 0xff) in rows of E4M3 codes; false when there is none, else the first one's place in reading order. */
bool checkpoint_find_nan(const uint8_t *codes, uint32_t rows, uint32_t columns, uint32_t *ret_row, uint32_t *ret_column);

/* Identity of the files without reading weights: SHA-256 over config.json's bytes, and each shard's name, size, header bytes, device,
 * inode, mtime_ns, ctime_ns, and all scales. Two opens of unchanged files agree; any rewrite of a shard changes it. */
void checkpoint_identity(const struct checkpoint *checkpoint, uint8_t ret_digest[DIGEST_SIZE]);

/* Model key (DESIGN: SHA-256 of layout version, architecture numbers, tp, multiple_of, strategy and source identity). */
struct plan;
int checkpoint_model_key(const struct checkpoint *checkpoint, const struct arch *arch, const struct plan *plan,
                         uint8_t ret_key[DIGEST_SIZE], struct err *err);

#endif
