/* Checkpoints whose header, index or config.json is changed at random (fp9-mkckpt is argument 1): each is refused with a message, or all of
 * its matrices can be read and every scale is one that kernels take. FP9_SEED repeats a run, FP9_MUTATIONS asks for more than 1,500. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/model/checkpoint.h"
#include "kernels/kernels.h"
#include "proto/base/bytes.h"
#include "proto/base/clock.h"
#include "proto/base/size.h"

#define TEXT_MAX (256 * 1024)
#define FILE_MAX (4 * 1024 * 1024)
#define MUTATIONS 1500
#define SECONDS_MAX 2 /* for one opening, whatever the file says */

extern char **environ;
static uint64_t state;

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "FAILED: %s: %s\n", what, strerror(errno));
    exit(EXIT_FAILURE);
}

/* A counter through a good mix. */
static uint64_t draw(uint64_t below)
{
    uint64_t x = state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (x ^ (x >> 31)) % below;
}

struct text {
    char bytes[TEXT_MAX];
    size_t length;
};

static void splice(struct text *text, size_t at, size_t gone, const char *in, size_t length)
{
    if (text->length - gone + length > TEXT_MAX)
        return;
    memmove(text->bytes + at + length, text->bytes + at + gone, text->length - at - gone);
    memcpy(text->bytes + at, in, length);
    text->length += length - gone;
}

/* A number or a word in quotes at or behind a random place. */
static bool token(const struct text *text, bool word, size_t *ret_at, size_t *ret_length)
{
    size_t at = draw(text->length), end;
    const char *first = word ? "\"" : "0123456789";
    while (at < text->length && !memchr(first, text->bytes[at], strlen(first)))
        at++;
    for (end = at + 1; end < text->length && (word ? text->bytes[end] != '"' : memchr(first, text->bytes[end], strlen(first)) != NULL);)
        end++;
    *ret_at = at;
    *ret_length = end + word - at;
    return end + word <= text->length;
}

static void mutate(struct text *text)
{
    static const char *const numbers[] = {
        "0",
        "1",
        "-1",
        "2",
        "3",
        "64",
        "127",
        "128",
        "129",
        "256",
        "4096",
        "65536",
        "262144",
        "2147483647",
        "2147483648",
        "4294967295",
        "4294967296",
        "4294967297",
        "9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "1e3",
        "1e999",
        "0.5",
        "-0",
        "null",
        "true",
        "\"64\"",
        "[64]",
        "{}",
        "[]",
    };
    static const char *const words[] = {
        "\"F32\"",
        "\"BF16\"",
        "\"F16\"",
        "\"F8_E4M3\"",
        "\"F8_E5M2\"",
        "\"I8\"",
        "\"U8\"",
        "\"F4\"",
        "\"\"",
        "\"weight_map\"",
        "\"__metadata__\"",
        "\"..\"",
        "\"/etc/passwd\"",
        "\"\\u0000\"",
        "\"data_offsets\"",
        "\"shape\"",
        "1",
        "null",
        "[]",
        "{}",
    };
    size_t at, length, other, other_length;
    bool word = draw(2);
    switch (draw(8)) {
    case 0: text->bytes[draw(text->length)] ^= (char)(1u << draw(8)); break;
    case 1: /* a piece is gone */
        at = draw(text->length);
        length = draw(40);
        splice(text, at, length < text->length - at ? length : text->length - at, "", 0);
        break;
    case 2: { /* a piece comes twice */
        char piece[64];
        at = draw(text->length);
        length = draw(sizeof piece);
        length = length < text->length - at ? length : text->length - at;
        memcpy(piece, text->bytes + at, length);
        splice(text, draw(text->length), 0, piece, length);
        break;
    }
    case 3:
    case 4: { /* another value */
        const char *in = word ? words[draw(ARRAY_LENGTH(words))] : numbers[draw(ARRAY_LENGTH(numbers))];
        if (token(text, word, &at, &length))
            splice(text, at, length, in, strlen(in));
        break;
    }
    default: { /* a value from elsewhere, often a sensible one */
        char piece[200];
        if (!token(text, word, &at, &length) || !token(text, word, &other, &other_length) || other_length > sizeof piece)
            break;
        memcpy(piece, text->bytes + other, other_length);
        splice(text, at, length, piece, other_length);
    }
    }
}

static size_t read_file(const char *path, uint8_t *to, size_t room)
{
    FILE *file = fopen(path, "re");
    must(file != NULL, path);
    size_t length = fread(to, 1, room, file);
    must(length < room && fclose(file) == 0, path);
    return length;
}

static void write_file(const char *path, const void *head, size_t head_length, const void *rest, size_t rest_length)
{
    FILE *file = fopen(path, "we");
    must(file && fwrite(head, 1, head_length, file) == head_length && fwrite(rest, 1, rest_length, file) == rest_length &&
             fclose(file) == 0,
         path);
}

/* Reads all that an opened checkpoint promises. */
static void read_through(struct checkpoint *checkpoint, const struct arch *arch)
{
    static uint8_t codes[FILE_MAX];
    struct err err = {0};
    for (uint32_t layer = 0; layer < arch->layers; layer++) {
        must(checkpoint_scales_hold(checkpoint, layer, &err) == 0, "scales that were read once cannot be read again");
        for (uint32_t expert = 0; expert < (arch->layer_is_moe[layer] ? arch->experts : 1); expert++) {
            for (int which = KERNELS_GATE; which <= KERNELS_DOWN; which++) {
                int index = arch->layer_is_moe[layer] ? (int)expert : ARCH_EXPERT_DENSE;
                const struct checkpoint_matrix *matrix = checkpoint_find(checkpoint, layer, index, (enum kernels_matrix)which);
                must(matrix && (size_t)matrix->rows * matrix->columns <= sizeof codes, "a matrix larger than its file");
                if (checkpoint_read(checkpoint, matrix, 0, matrix->rows, codes, &err) < 0)
                    fprintf(stderr, "%s\n", err.message), must(false, "an accepted matrix cannot be read");
                for (size_t i = 0; i < (size_t)matrix->scale_rows * matrix->scale_columns; i++)
                    must(kernels_scale_ok(matrix->scales[i]), "a scale that kernels do not take");
            }
        }
    }
}

/* CPU time, which a busy machine does not stretch. */
static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Whether it was accepted. */
static bool try(const char *dir)
{
    struct arch *arch = NULL;
    struct checkpoint *checkpoint = NULL;
    struct err err = {0};
    double start = seconds();
    int r = arch_read(dir, &arch, &err);
    if (r == 0)
        r = checkpoint_open(dir, arch, &checkpoint, &err);
    must(seconds() - start < SECONDS_MAX, "an opening took too long");
    must(r == 0 || (r < 0 && err.message[0]), "a refusal says why");
    if (r == 0)
        read_through(checkpoint, arch);
    checkpoint_free(checkpoint);
    arch_free(arch);
    return r == 0;
}

static void make(const char *program, const char *dir, const char *kind)
{
    char like[512];
    snprintf(like, sizeof like, "%s/configs/%s.json", TEST_DATA, "qwen3.5-35b-a3b");
    const char *argv[] = {program, "--like", like, "--layers",      "2",  "--experts", "3", "--hidden", "40", "--moe-intermediate",
                          "64",    "--out",  dir,  "--scale-dtype", kind, "--fused",   NULL};
    if (strcmp(kind, "f32") == 0)
        argv[15] = NULL; /* a tensor each */
    pid_t child;
    int status;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", 1 /* O_WRONLY */, 0);
    must((errno = posix_spawn(&child, program, &actions, NULL, (char *const *)argv, environ)) == 0, program);
    posix_spawn_file_actions_destroy(&actions);
    must(waitpid(child, &status, 0) == child && status == 0, "fp9-mkckpt");
}

/* One file of a checkpoint in many wrong forms; what of it is text is behind a length in a safetensors file. */
static unsigned spoil(const char *dir, const char *name, unsigned mutations)
{
    static uint8_t whole[FILE_MAX], head[8 + TEXT_MAX];
    static struct text text;
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    size_t length = read_file(path, whole, sizeof whole);
    bool tensors = strstr(name, ".safetensors") && !strstr(name, ".json");
    struct bytes_reader r = bytes_reader_init(whole, length);
    size_t prefix = tensors ? 8 : 0, header = tensors ? bytes_read_u64(&r) : length;
    unsigned accepted = 0;
    for (unsigned i = 0; i < mutations; i++) {
        memcpy(text.bytes, whole + prefix, header);
        text.length = header;
        for (uint64_t n = 1 + draw(3); n > 0 && text.length > 0; n--)
            mutate(&text);
        struct bytes_writer w = bytes_writer_init(head, sizeof head);
        if (tensors)
            bytes_write_u64(&w, draw(20) ? text.length : text.length + draw(64) - 32);
        bytes_write_copy(&w, text.bytes, text.length);
        size_t rest = length - prefix - header;
        write_file(path, head, prefix + text.length, whole + prefix + header, draw(20) ? rest : draw(rest + 1));
        accepted += try(dir);
    }
    write_file(path, whole, length, "", 0);
    must(try(dir), "the checkpoint as it was");
    return accepted;
}

int main(int argc, char **argv)
{
    static const char *const kinds[] = {"f32", "bf16"};
    static const char *const names[] = {"model-00001-of-00001.safetensors", "model.safetensors.index.json", "config.json"};
    uint64_t mutations = MUTATIONS;
    const char *more = getenv("FP9_MUTATIONS"), *seed = getenv("FP9_SEED");
    if (argc != 2 || (more && !size_parse_u64(more, 1, UINT32_MAX, &mutations)))
        return 2;
    state = clock_now_ns() ^ (uint64_t)getpid();
    if (seed)
        must(size_parse_u64(seed, 0, UINT64_MAX, &state), "FP9_SEED");
    printf("FP9_SEED=%llu\n", (unsigned long long)state);
    fflush(stdout);
    for (size_t kind = 0; kind < ARRAY_LENGTH(kinds); kind++) {
        char dir[] = "/tmp/fp9-mutated-XXXXXX", path[600];
        must(mkdtemp(dir) != NULL, dir);
        make(argv[1], dir, kinds[kind]);
        for (size_t name = 0; name < ARRAY_LENGTH(names); name++) {
            unsigned accepted = spoil(dir, names[name], (unsigned)(mutations / (ARRAY_LENGTH(kinds) * ARRAY_LENGTH(names))));
            printf("%s, %s: %u accepted\n", kinds[kind], names[name], accepted);
        }
        for (size_t name = 0; name < ARRAY_LENGTH(names); name++) {
            snprintf(path, sizeof path, "%s/%s", dir, names[name]);
            unlink(path);
        }
        rmdir(dir);
    }
    return EXIT_SUCCESS;
}
