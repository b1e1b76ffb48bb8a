/* A small random model for the duck's tests: words, rows as frames' contents, and the answer that the kernels give in this process. */
#ifndef FP9_TESTS_DUCK_MODEL_H
#define FP9_TESTS_DUCK_MODEL_H

#include "daemon/duck/geometry.h"
#include "proto/wire/msg_prepare.h"
#include "proto/wire/msg_step.h"

uint64_t model_random(uint64_t *state);

/* hidden 80, neurons 48 beginning in the middle of a block; MoE has 5 experts and a shared one of 32 neurons. */
struct msg_prepare_begin model_words(enum msg_slot_kind kind, uint32_t layer);

/* Calls `take` with every piece of the slot, rows in pieces of 32, in an order that depends on the seed. */
typedef void (*model_take)(void *user, const struct msg_prepare_data *data, const float *scales, const uint8_t *codes);
void model_pieces(const struct msg_prepare_begin *words, uint64_t seed, model_take take, void *user);

/* The slot packed by the kernels here; 64-byte aligned, free(). */
uint8_t *model_pack(const struct msg_prepare_begin *words, uint64_t seed);

/* A step's tensors. top_k 0 for dense; free() each. ids hold -1 now and then. */
struct model_input {
    uint32_t tokens, top_k, hidden;
    uint16_t *x;
    int32_t *ids;
    float *weights;
};
struct model_input model_input(const struct msg_prepare_begin *words, uint32_t tokens, uint32_t top_k, uint64_t seed);
void model_input_free(struct model_input *input);

/* The partial in dtype as the kernels give it here, free(). */
void *model_answer(const struct msg_prepare_begin *words, uint64_t seed, const struct model_input *input, enum msg_dtype dtype,
                   size_t *ret_bytes);

#endif
