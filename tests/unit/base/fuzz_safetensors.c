/* Mutates a corpus of headers and opens each: whatever the bytes, the reader either refuses with a sentence or gives a table whose every
 * tensor can be read in full. Meant for a build with sanitizers; runs in any. fuzz_safetensors [SEED [ROUNDS]] repeats a run. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "proto/base/safetensors.h"
#include "proto/base/size.h"

#define FILE_MAX 4096

static const struct {
    const char *header;
    size_t data; /* bytes after it */
} corpus[] = {
    {"{}", 0},
    {"{\"__metadata__\":{\"format\":\"pt\"}}  ", 0},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}", 16},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},\"b\":{\"dtype\":\"BF16\",\"shape\":[8],\"data_offsets\":[16,32]}"
     "}",
     32},
    {"{\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[8,16]},\"z\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]},"
     "\"f\":{\"dtype\":\"F4\",\"shape\":[16],\"data_offsets\":[0,8]}}",
     16},
    {"{\"model.layers.1.mlp.experts.3.gate_proj.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[4,4],\"data_offsets\":[0,16]},"
     "\"model.layers.1.mlp.experts.3.gate_proj.weight_scale_inv\":{\"dtype\":\"F16\",\"shape\":[1,1],\"data_offsets\":[16,18]}}",
     18},
    {"{\"q\":{\"dtype\":\"NEW\",\"shape\":[5],\"data_offsets\":[0,3]}}", 3},
};
static const char *const tokens[] = {"{",
                                     "}",
                                     "[",
                                     "]",
                                     ",",
                                     ":",
                                     "\"",
                                     "0",
                                     "18446744073709551615",
                                     "-1",
                                     "1e9",
                                     "null",
                                     "\\u0000",
                                     "data_offsets",
                                     "__metadata__",
                                     "\"shape\":[0]",
                                     "[[[[[[[[",
                                     "{\"x\":{\"x\":",
                                     "\xff",
                                     "F32"};

static uint64_t state;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static size_t below(size_t n)
{
    return (size_t)(next() % n);
}

/* One change anywhere. */
static size_t mutate(uint8_t *bytes, size_t length)
{
    size_t at = length ? below(length) : 0;
    switch (below(6)) {
    case 0: /* a bit */
        if (length)
            bytes[at] ^= (uint8_t)(1u << below(8));
        return length;
    case 1: /* another byte */
        if (length)
            bytes[at] = (uint8_t)next();
        return length;
    case 2: /* cut the end */ return at;
    case 3: { /* take out a piece */
        size_t n = length ? below(length - at) : 0;
        memmove(bytes + at, bytes + at + n, length - at - n);
        return length - n;
    }
    case 4: { /* put in a token */
        const char *token = tokens[below(ARRAY_LENGTH(tokens))];
        size_t n = strlen(token);
        if (length + n > FILE_MAX)
            return length;
        memmove(bytes + at + n, bytes + at, length - at);
        memcpy(bytes + at, token, n);
        return length + n;
    }
    default: { /* repeat a piece */
        size_t n = length ? below(length - at) : 0;
        if (n > 64)
            n = 64;
        if (length + n > FILE_MAX)
            return length;
        memmove(bytes + at + n, bytes + at, length - at);
        return length + n;
    }
    }
}

static size_t make(uint8_t *bytes)
{
    size_t seed = below(ARRAY_LENGTH(corpus));
    const char *header = corpus[seed].header;
    size_t length = strlen(header), data = below(8) ? corpus[seed].data : below(64);
    memcpy(bytes + 8, header, length);
    length += 8;
    for (size_t changes = below(5); changes > 0; changes--)
        length = 8 + mutate(bytes + 8, length - 8);
    uint64_t declared = length - 8;
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(declared >> (8 * i));
    for (size_t i = 0; i < data && length < FILE_MAX; i++)
        bytes[length++] = (uint8_t)i;
    if (below(8) == 0)
        length = mutate(bytes, length);
    return length;
}

/* 1 opened, 0 refused, negative: the reader broke its word. */
static int check(const char *path)
{
    struct safetensors *file = NULL;
    struct err err = {0};
    int r = safetensors_open(path, &file, &err);
    if (r < 0)
        return err.code == r && err.message[0] ? 0 : -1;
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const struct safetensors_tensor *tensor = safetensors_at(file, i);
        uint8_t bytes[FILE_MAX];
        if (tensor->end - tensor->begin > sizeof bytes || safetensors_find(file, tensor->name) != tensor ||
            safetensors_read(file, tensor, 0, tensor->end - tensor->begin, bytes, &err) < 0)
            r = -1;
    }
    safetensors_free(file);
    return r < 0 ? r : 1;
}

int main(int argc, char **argv)
{
    uint64_t seed = (uint64_t)time(NULL), rounds = 20000, opened = 0;
    if ((argc > 1 && !size_parse_u64(argv[1], 1, UINT64_MAX, &seed)) || (argc > 2 && !size_parse_u64(argv[2], 1, UINT64_MAX, &rounds)))
        return 2;
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    char path[] = "/tmp/fp9-fuzz-XXXXXX";
    int fd = mkstemp(path), bad = 0;
    if (fd < 0)
        return 1;
    for (uint64_t round = 0; round < rounds && !bad; round++) {
        static uint8_t bytes[FILE_MAX + 256];
        state = (seed + round) * UINT64_C(0x9e3779b97f4a7c15) | 1;
        next();
        size_t length = make(bytes);
        if (ftruncate(fd, 0) < 0 || pwrite(fd, bytes, length, 0) != (ssize_t)length)
            bad = 1;
        int r = check(path);
        opened += r == 1;
        if (r < 0)
            bad = 1;
        if (bad)
            fprintf(stderr, "round %llu: rerun with seed %llu and 1 round\n", (unsigned long long)round,
                    (unsigned long long)(seed + round));
    }
    close(fd);
    unlink(path);
    printf("%llu of %llu opened\n", (unsigned long long)opened, (unsigned long long)rounds);
    /* A fuzzer whose files are all refused at the door, or all accepted, checks nothing. */
    return bad || (rounds >= 1000 && (opened < rounds / 100 || opened > rounds - rounds / 10));
}
