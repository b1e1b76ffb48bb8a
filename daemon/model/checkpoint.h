/* A HuggingFace directory, opened and checked: every tensor that the MLP and expert layers need is there, of the right dtype and shape,
 * with finite scales. Nothing of the weights' bytes is read yet, except all scales.
 *
 * Files: those that model.safetensors.index.json names, whatever they are called; without an index all *.safetensors of the directory.
 * A scale may be negative or zero (it multiplies, nothing else); NaN, Inf and sizes beyond 2^80 are refused by tensor and block. Layers
 * from num_hidden_layers on are ignored.
 *
 * Threads: an open checkpoint is read-only but for checkpoint_read, which one thread at a time may call, and the digests (below). */
#ifndef FP9_MODEL_CHECKPOINT_H
#define FP9_MODEL_CHECKPOINT_H

#include "daemon/model/arch.h"
#include "daemon/model/plan.h"
#include "proto/base/buf.h"
#include "proto/base/digest.h"

#define CHECKPOINT_SHARDS_MAX 4096
/* Of all files together: what is kept of them must fit in memory whatever a directory holds. A model of a terabyte has 0.3 million tensors
 * in 40 MB. */
#define CHECKPOINT_TENSORS_MAX (1u << 20)
#define CHECKPOINT_HEADERS_MAX (128u << 20)

struct checkpoint;

/* One F8_E4M3 matrix with its block scales, whether it has a tensor of its own or lies in one with others (arch_family.h: fused). */
struct checkpoint_matrix {
    const char *name;                   /* "model.layers.1.mlp.experts.3.down_proj", also where no tensor has that name */
    uint32_t rows, columns;             /* as stored: [out, in] */
    uint32_t shard, scale_shard;        /* of the weight and of its scales: indexes for checkpoint_shard_name */
    uint64_t offset;                    /* of the weight, in its file */
    const float *scales;                /* [scale_rows][scale_columns], exact binary32 of the file's dtype; NULL unless held (below) */
    uint32_t scale_rows, scale_columns; /* ceil((row_origin + rows) / 128), ceil(columns / 128) */
    uint32_t row_origin; /* row r has the scales of block row (row_origin + r) / 128; a multiple of 16. 0 but for an up whose blocks begin
                          * within gate, in the same tensor */
};

/* BAD_CHECKPOINT names file, tensor and numbers. NO_SUCH when the directory or config.json is not there. */
int checkpoint_open(const char *dir, const struct arch *arch, struct checkpoint **ret_checkpoint, struct err *err);
void checkpoint_free(struct checkpoint *checkpoint);
CLEANUP_DEFINE(struct checkpoint *, checkpoint_free);

/* ---- weights that a client holds in memory ----
 *
 * A checkpoint of the layers whose tensors a sealed memfd holds, in the form of a safetensors file; each layer whole. Of the others it
 * knows at most what their weights were (sources). */
#define CHECKPOINT_LAYERS_ALL UINT32_MAX
struct checkpoint_memory {
    int fd;                                /* borrowed; -1: no layer's weights are at hand */
    const char *model;                     /* its name: goes into the identity, as a path does for files */
    const uint8_t (*sources)[DIGEST_SIZE]; /* [layers] borrowed, as checkpoint_layer_sources; valid where known */
    const bool *known;                     /* [layers] borrowed */
    uint32_t layer;                        /* only this one is taken from memory; CHECKPOINT_LAYERS_ALL: all that are there */
    bool glance;                           /* the weights are in dir, which was only looked at (checkpoint_glance.h) */
    bool binding;                          /* weights in memory must be what sources says, where known; else they take its place */
};
#define CHECKPOINT_MEMORY_NAME "the memfd" /* in place of a file's name */
/* `dir` is read for its config.json only. */
int checkpoint_open_memory(const char *dir, const struct arch *arch, const struct checkpoint_memory *memory,
                           struct checkpoint **ret_checkpoint, struct err *err);
/* Neither an index nor a *.safetensors file: the weights of such a model come from memory, if from anywhere. */
bool checkpoint_dir_is_bare(const char *dir);
/* The layer's weights can be read. False only in a checkpoint of memory. */
bool checkpoint_layer_there(const struct checkpoint *checkpoint, uint32_t layer);
/* What is missing of it is to be had from an opening of the whole. */
bool checkpoint_is_glance(const struct checkpoint *checkpoint);
/* Once layers are digested: CACHE_STALE when one of them is not what `binding` asks for. */
int checkpoint_memory_check(const struct checkpoint *checkpoint, struct err *err);
/* All sources that are known, for the next opening. A record that makes no sense, or of another number of layers, is refused (false). */
int checkpoint_sources_write(const struct checkpoint *checkpoint, struct buf *record);
bool checkpoint_sources_read(const uint8_t *record, size_t length, uint32_t layers, uint8_t (*ret_sources)[DIGEST_SIZE], bool *ret_known);

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

/* Scales are a 4096th of a model, 160 MB of one of 685 GB, so those of one layer at a time are held: reads them again, for `scales` of
 * its matrices, until the drop. Fails as checkpoint_read, and the same thread may call it. */
int checkpoint_scales_hold(struct checkpoint *checkpoint, uint32_t layer, struct err *err);
void checkpoint_scales_drop(struct checkpoint *checkpoint, uint32_t layer);

/* A row of a matrix as the file has it, for a message: "tensor model.layers.1.mlp.experts.gate_up_proj: expert 3, row 700"; returns
 * `text`. */
const char *checkpoint_row_text(const struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, uint32_t row, char *text,
                                size_t size);

/* Looks for a NaN code (0x7f, 0xff) in rows of E4M3 codes; false when there is none, else the first one's place in reading order. */
bool checkpoint_find_nan(const uint8_t *codes, uint32_t rows, uint32_t columns, uint32_t *ret_row, uint32_t *ret_column);

/* Identity of the files without reading weights: SHA-256 over config.json's bytes, and each shard's name, size, header bytes, device,
 * inode, mtime_ns, ctime_ns, and all scales. Two opens of unchanged files agree; any rewrite of a shard changes it. */
void checkpoint_identity(const struct checkpoint *checkpoint, uint8_t ret_digest[DIGEST_SIZE]);

/* ---- digests: what the weights are ----
 *
 * Every weight tensor has a digest (SHA-256 of its codes), unknown until somebody has read all of it: a load that streams it, or one
 * that reads it for that alone. Records carry them from one opening to the next: one a shard, trusted while the shard is the same file
 * (device, inode, size, mtime, ctime, header), else kept only to tell what has changed.
 *
 * Threads: a matrix's digest is set by one thread at a time; others may ask for it meanwhile. */

#define CHECKPOINT_SCALES_DIGEST PLAN_SOURCES_FRONT /* bytes at the front of a layer's sources digest */
#define CHECKPOINT_RECORD_MAX (16u * 1024 * 1024)

/* Digest over all source tensors of a layer. Its first CHECKPOINT_SCALES_DIGEST bytes tell of shapes and scales alone and are always
 * given: layers that differ there differ. The rest needs every digest; false and zeros while one is unknown. */
bool checkpoint_layer_sources(const struct checkpoint *checkpoint, uint32_t layer, uint8_t ret_sources[DIGEST_SIZE]);
bool checkpoint_digest_known(const struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix);
void checkpoint_digest_set(struct checkpoint *checkpoint, const struct checkpoint_matrix *matrix, const uint8_t digest[DIGEST_SIZE]);
/* How many are known; grows as a load goes on. */
uint64_t checkpoint_digests_known(const struct checkpoint *checkpoint);
/* All are unknown from now on: for a load that trusts no record. */
void checkpoint_digests_forget(struct checkpoint *checkpoint);

uint32_t checkpoint_shard_count(const struct checkpoint *checkpoint);
/* Appends the record of a shard. */
int checkpoint_record_write(const struct checkpoint *checkpoint, uint32_t shard, struct buf *record);
/* Takes a record that was written for a file of this name. One that makes no sense is ignored (false). */
bool checkpoint_record_read(struct checkpoint *checkpoint, uint32_t shard, const uint8_t *record, size_t length);
/* The shards that hold weights or scales which are not what the shard's last record says, "model-00003.safetensors,
 * model-00007.safetensors and 4 more"; "" when none is known to differ. */
void checkpoint_changed_shards(const struct checkpoint *checkpoint, char *text, size_t size);
/* Scales, which are read when a checkpoint is opened, are not what the records say that were read: those should be written anew. */
bool checkpoint_scales_changed(const struct checkpoint *checkpoint);

/* Model key: SHA-256 of layout version, architecture numbers, tp, multiple_of, strategy and every layer's sources. -EAGAIN while a digest
 * is unknown. */
int checkpoint_model_key(const struct checkpoint *checkpoint, const struct arch *arch, const struct plan *plan,
                         uint8_t ret_key[DIGEST_SIZE], struct err *err);
/* The key under which slots are kept while a load does not know the model key yet: the same with the files' identity in place of the
 * sources. */
int checkpoint_provisional_key(const struct checkpoint *checkpoint, const struct arch *arch, const struct plan *plan,
                               uint8_t ret_key[DIGEST_SIZE], struct err *err);

#endif
