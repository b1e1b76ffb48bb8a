#include <stdio.h>
#include <string.h>

#include "proto/base/safetensors.h"

static const struct {
    const char *name;
    uint32_t bits;
} dtypes[SAFETENSORS_DTYPES_] = {
    [SAFETENSORS_OTHER] = {"?", 0},
    [SAFETENSORS_BOOL] = {"BOOL", 8},
    [SAFETENSORS_F4] = {"F4", 4},
    [SAFETENSORS_F6_E2M3] = {"F6_E2M3", 6},
    [SAFETENSORS_F6_E3M2] = {"F6_E3M2", 6},
    [SAFETENSORS_U8] = {"U8", 8},
    [SAFETENSORS_I8] = {"I8", 8},
    [SAFETENSORS_F8_E5M2] = {"F8_E5M2", 8},
    [SAFETENSORS_F8_E4M3] = {"F8_E4M3", 8},
    [SAFETENSORS_F8_E8M0] = {"F8_E8M0", 8},
    [SAFETENSORS_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [SAFETENSORS_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [SAFETENSORS_I16] = {"I16", 16},
    [SAFETENSORS_U16] = {"U16", 16},
    [SAFETENSORS_F16] = {"F16", 16},
    [SAFETENSORS_BF16] = {"BF16", 16},
    [SAFETENSORS_I32] = {"I32", 32},
    [SAFETENSORS_U32] = {"U32", 32},
    [SAFETENSORS_F32] = {"F32", 32},
    [SAFETENSORS_C64] = {"C64", 64},
    [SAFETENSORS_F64] = {"F64", 64},
    [SAFETENSORS_I64] = {"I64", 64},
    [SAFETENSORS_U64] = {"U64", 64},
};

const char *safetensors_dtype_name(enum safetensors_dtype dtype)
{
    return dtypes[dtype].name;
}

uint32_t safetensors_dtype_bits(enum safetensors_dtype dtype)
{
    return dtypes[dtype].bits;
}

enum safetensors_dtype safetensors_dtype_find(const char *name)
{
    for (int i = SAFETENSORS_OTHER + 1; i < SAFETENSORS_DTYPES_; i++)
        if (strcmp(name, dtypes[i].name) == 0)
            return (enum safetensors_dtype)i;
    return SAFETENSORS_OTHER;
}

const char *safetensors_shape_format(const struct safetensors_tensor *tensor, char *text, size_t size)
{
    size_t at = (size_t)snprintf(text, size, "[");
    for (uint32_t i = 0; i < tensor->dims && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%llu", i ? ", " : "", (unsigned long long)tensor->shape[i]);
    if (at < size)
        snprintf(text + at, size - at, "]");
    return text;
}
