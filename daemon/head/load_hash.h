/* Digests of matrices on threads of their own, beside the reading and sending of the same bytes, and the pieces of memory that both share.
 *
 * A piece is filled by the reader, posted for the digest, used by the reader and by whoever it lends it to meanwhile, and free again when
 * all have let go of it. The
 * pieces of one matrix are digested in the order they are posted in, by one thread; matrices are spread over the threads. One reader. */
#ifndef FP9_HEAD_LOAD_HASH_H
#define FP9_HEAD_LOAD_HASH_H

#include "daemon/model/checkpoint.h"

#define LOAD_HASH_PIECES 20     /* that exist at once */
#define LOAD_HASH_THREADS_MAX 4 /* as much as any disk can feed */

struct load_hash;

struct load_piece {
    uint8_t *data; /* piece_bytes */
    int users;     /* under the hash's lock; 0: free */
};

/* Digests go into the checkpoint (borrowed). memory: LOAD_HASH_PIECES pieces one after another (borrowed), or NULL: its own. */
int load_hash_new(struct checkpoint *checkpoint, size_t piece_bytes, uint8_t *memory, struct load_hash **ret_hash, struct err *err);
/* Ends the threads after the piece at hand; what is posted is forgotten. Nobody may use a piece any more. */
void load_hash_free(struct load_hash *hash);
CLEANUP_DEFINE(struct load_hash *, load_hash_free);

/* Waits for a free piece. */
struct load_piece *load_hash_piece(struct load_hash *hash);
/* One more use of a piece that the reader has. */
void load_hash_lend(struct load_hash *hash, struct load_piece *piece);
/* A use ends, the reader's own or one that was lent. Any thread. */
void load_hash_release(struct load_hash *hash, struct load_piece *piece);
/* The next `length` bytes of a matrix; with `last` its digest is set. */
void load_hash_post(struct load_hash *hash, struct load_piece *piece, const struct checkpoint_matrix *matrix, size_t length, bool last);
/* Waits until all that was posted is digested. */
void load_hash_settle(struct load_hash *hash);

#endif
