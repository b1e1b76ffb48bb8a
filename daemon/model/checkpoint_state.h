/* What an open checkpoint holds, and its parts in the order in which they run. Private to the checkpoint. */
#ifndef FP9_MODEL_CHECKPOINT_STATE_H
#define FP9_MODEL_CHECKPOINT_STATE_H

#include "daemon/model/arch_fused.h"
#include "daemon/model/checkpoint.h"
#include "daemon/model/checkpoint_index.h"
#include "proto/base/safetensors.h"

#define CHECKPOINT_OPEN_MAX 64 /* shards whose descriptors are open at once */

/* What is known of one matrix's weights. */
struct checkpoint_digest {
    uint64_t scales;             /* XXH3-64 of shapes and scales */
    uint8_t digest[DIGEST_SIZE]; /* SHA-256 of the codes, valid when known */
    _Atomic bool known;
    bool had_scales, had_digest; /* a record had these, of this file or of one that stood here before */
    uint64_t old_scales;
    uint8_t old_digest[DIGEST_SIZE];
};

/* Where a matrix's scales are read from. */
struct checkpoint_scales_at {
    const struct safetensors_tensor *tensor; /* in the matrix's scale_shard */
    uint64_t first_row; /* of the matrix's in the tensor; rows of all experts counted through */
};

struct checkpoint_shard {
    const char *name; /* owned by index->files */
    struct safetensors *file;
    uint64_t used; /* when it was read last, on checkpoint->clock */
};

struct checkpoint {
    char *dir;
    const struct arch *arch;         /* only while opening; NULL afterwards */
    struct checkpoint_index *index;  /* read, or made from the files */
    struct checkpoint_shard *shards; /* [index->file_count], same numbers */
    uint64_t clock;
    struct checkpoint_matrix *matrices; /* [matrix_count]; a layer's by expert, then gate, up, down; they own scales and name */
    const struct safetensors_tensor **tensors; /* [matrix_count], the weight of each */
    struct checkpoint_scales_at *scales_at;    /* [matrix_count] */
    struct checkpoint_digest *digests;         /* [matrix_count] */
    uint8_t (*layer_scales)[DIGEST_SIZE];      /* [layers]; SHA-256 of shapes and scales */
    size_t matrix_count, matrix_capacity;
    uint32_t layers, experts; /* of the arch */
    size_t *layer_first;      /* [layers + 1] into matrices */
    _Atomic uint64_t digests_known;
    uint64_t weight_bytes;
    char ignored[512];
    /* Of a checkpoint of memory; NULL otherwise. */
    char *memory_model;
    uint8_t (*memory_sources)[DIGEST_SIZE]; /* [layers]; valid where known */
    bool *memory_known;                     /* [layers] */
    uint32_t memory_layer;                  /* or CHECKPOINT_LAYERS_ALL */
    bool memory_binding, glance;
    uint8_t identity[DIGEST_SIZE];
};

/* checkpoint_shards.c: index, missing files, headers, ignored files. */
int checkpoint_shards_open(struct checkpoint *checkpoint, struct err *err);
/* The shard's file, with no more than CHECKPOINT_OPEN_MAX descriptors open after the next read. */
struct safetensors *checkpoint_shard_use(struct checkpoint *checkpoint, uint32_t shard);
/* One file, the memory: fd as checkpoint_memory. */
int checkpoint_shards_open_memory(struct checkpoint *checkpoint, int fd, struct err *err);
/* How many *.safetensors files a directory has. */
size_t checkpoint_dir_files(const char *dir);
/* Tensor by name through the index; NULL when there is none. */
const struct safetensors_tensor *checkpoint_tensor(const struct checkpoint *checkpoint, const char *name, uint32_t *ret_shard);

/* Where a matrix and its scales lie: tensors of their own, or parts of larger ones. */
struct checkpoint_source {
    const struct safetensors_tensor *weight, *scale;
    uint32_t shard, scale_shard;
    uint64_t first_row, first_scale_row; /* of the matrix in the tensors; rows of all experts counted through */
    uint32_t row_origin;                 /* as checkpoint_matrix */
};

/* checkpoint_resolve.c: all matrices that the arch needs; their scales are checked and digested, and not kept. */
int checkpoint_resolve(struct checkpoint *checkpoint, struct err *err);
#define CHECKPOINT_TENSOR_NAME_MAX (ARCH_NAME_MAX + 24)
/* The name of a matrix's own tensor. */
void checkpoint_single_name(const struct arch *arch, uint32_t layer, int expert, enum kernels_matrix matrix, char *ret_name);

/* checkpoint_missing.c: refusals. The layer's own `weight` of that expert is not there; fused: where it might be too, as others of its kind
 * are, or NULL. */
int checkpoint_missing_weight(const struct checkpoint *checkpoint, uint32_t layer, int expert, const char *weight, const char *fused,
                              struct err *err);
/* `scale` is not there, but its weight in `file` is. */
int checkpoint_missing_scale(const struct checkpoint *checkpoint, const char *scale, const char *file, struct err *err);

/* checkpoint_fused.c: tensors of a layer that hold several matrices. */
struct checkpoint_fused {
    const struct arch_fused *at[3][3]; /* by arch_part and kernels_matrix; NULL: not there */
};
int checkpoint_fused_look(const struct checkpoint *checkpoint, uint32_t layer, struct checkpoint_fused *ret_fused, struct err *err);
/* The matrix, of which rows and columns are known, in a tensor that is there; checked. */
int checkpoint_fused_source(const struct checkpoint *checkpoint, uint32_t layer, int expert, enum kernels_matrix which,
                            const struct arch_fused *fused, const struct checkpoint_matrix *matrix, struct checkpoint_source *ret_source,
                            struct err *err);

/* checkpoint_scales.c: those of one matrix, read, converted and checked. */
int checkpoint_scales_hold_one(struct checkpoint *checkpoint, size_t matrix, struct err *err);

/* checkpoint_digests.c: what can be known of a layer without reading weights. Its scales are held. */
int checkpoint_digests_begin(struct checkpoint *checkpoint, uint32_t layer, struct err *err);

/* checkpoint_identity.c */
int checkpoint_identify(struct checkpoint *checkpoint, struct err *err);

#endif
