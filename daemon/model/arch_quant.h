/* Is it FP8 in 128x128 blocks? */
#ifndef FP9_MODEL_ARCH_QUANT_H
#define FP9_MODEL_ARCH_QUANT_H

#include <jansson.h>
#include <stdbool.h>

#include "proto/base/err.h"

bool arch_quant_present(const json_t *config);
/* UNSUPPORTED_MODEL naming what the weights are instead. modules_to_not_convert is not looked at: each tensor's header says what it is. */
int arch_quant_check(const json_t *config, const char *where, struct err *err);
/* "compressed-tensors pack-quantized", "fp8", "none": for messages. Returns `text`. */
const char *arch_quant_describe(const json_t *config, char *text, size_t size);
/* Of a directory whose config.json has no quantization_config: what hf_quant_config.json tells instead, never block FP8, is refused
 * by name. 0 when there is no such file. */
int arch_quant_check_beside(const char *dir, struct err *err);

#endif
