#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "daemon/model/checkpoint.h"
#include "proto/base/clock.h"
#include "proto/base/size.h"
#include "tests/tools/mkckpt.h"

#define BUFFER_BYTES (1024 * 1024)
#define OTHER_BYTES (1024 * 1024) /* config.json and such, in the estimate of space */

struct output {
    const char *dir;
    bool made_dir, sparse;
    uint32_t shards;
    struct mkckpt_random *random;
    uint8_t *band;   /* codes of one band of the widest weight */
    uint8_t *scales; /* of the weight written last */
    struct progress {
        uint64_t total, done; /* bytes */
        uint64_t started_ns, shown_ns;
        bool terminal, open; /* open: a line without its newline stands there */
    } progress;
};

#define SHOW_ON_TERMINAL (UINT64_C(500) * CLOCK_NS_PER_MS)
#define SHOW_ELSEWHERE (10 * CLOCK_NS_PER_S)

static void progress_add(struct progress *progress, uint64_t bytes)
{
    uint64_t now = clock_now_ns();
    char done[32], total[32];
    progress->done += bytes;
    if (now - progress->shown_ns < (progress->terminal ? SHOW_ON_TERMINAL : SHOW_ELSEWHERE))
        return;
    double seconds = (double)(now - progress->started_ns) / 1e9, rate = (double)progress->done / seconds;
    fprintf(stderr, "%sfp9-mkckpt: %s of %s, %.0f MB/s, %.0f s left%s", progress->terminal ? "\r\033[K" : "",
            size_format(progress->done, done, sizeof done), size_format(progress->total, total, sizeof total), rate / 1e6,
            (double)(progress->total - progress->done) / rate, progress->terminal ? "" : "\n");
    progress->shown_ns = now;
    progress->open = progress->terminal;
}

static void progress_end(struct progress *progress)
{
    if (progress->open)
        fputc('\n', stderr);
    progress->open = false;
}

static void shard_name(const struct output *out, uint32_t shard, char name[64])
{
    snprintf(name, 64, "model-%05u-of-%05u.safetensors", shard + 1, out->shards);
}

static int path_of(const struct output *out, const char *name, char **ret_path, struct err *err)
{
    if (asprintf(ret_path, "%s/%s", out->dir, name) < 0) {
        *ret_path = NULL;
        return err_no_memory(err, out->dir, strlen(name));
    }
    return 0;
}

static int create(const struct output *out, const char *name, FILE **ret_file, struct err *err)
{
    _cleanup_(freep) char *path = NULL;
    int r = path_of(out, name, &path, err);
    if (r < 0)
        return r;
    FILE *file = fopen(path, "wxe");
    if (!file)
        return err_errno(err, "%s", path);
    setvbuf(file, NULL, _IOFBF, BUFFER_BYTES);
    *ret_file = file;
    return 0;
}

static int put(FILE *file, const void *data, size_t length, struct err *err)
{
    return fwrite(data, 1, length, file) == length ? 0 : err_errno(err, "write");
}

/* Closes; a write that the kernel refused late counts as much as an early one. */
static int finish(const struct output *out, const char *name, FILE *file, int r, struct err *err)
{
    if (r == 0 && fflush(file) != 0)
        r = err_errno(err, "write");
    if (fclose(file) != 0 && r == 0)
        r = err_errno(err, "close");
    return r < 0 ? err_prefix(err, "%s/%s", out->dir, name) : 0;
}

static int put_weight(const struct output *out, const struct mkckpt_tensor *tensor, size_t scale_width, FILE *file, struct err *err)
{
    uint64_t rows = tensor->part_rows, columns = tensor->shape[tensor->dims - 1];
    uint8_t *scales = out->scales;
    int r = 0;
    for (size_t part = 0; part < tensor->part_count; part++)
        for (uint64_t row = 0; r == 0 && row < rows; row += LAYOUT_BLOCK) {
            uint32_t count = (uint32_t)(rows - row < LAYOUT_BLOCK ? rows - row : LAYOUT_BLOCK);
            mkckpt_random_band(out->random, tensor->parts[part], row / LAYOUT_BLOCK, count, (uint32_t)columns, out->band, scales);
            scales += size_ceil_div(columns, LAYOUT_BLOCK) * scale_width;
            r = put(file, out->band, count * columns, err);
        }
    return r;
}

static int put_router(const struct output *out, const struct mkckpt_tensor *tensor, FILE *file, struct err *err)
{
    for (uint64_t row = 0; row < tensor->shape[0]; row++) {
        mkckpt_random_router_row(out->random, tensor->name, row, (uint32_t)tensor->shape[1], (uint16_t *)(void *)out->band);
        int r = put(file, out->band, tensor->shape[1] * sizeof(uint16_t), err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int put_tensor(const struct output *out, const struct mkckpt_tensor *tensor, size_t scale_width, FILE *file, struct err *err)
{
    switch (tensor->kind) {
    case MKCKPT_WEIGHT: return put_weight(out, tensor, scale_width, file, err);
    case MKCKPT_SCALE: return put(file, out->scales, tensor->bytes, err);
    case MKCKPT_ROUTER: return put_router(out, tensor, file, err);
    }
    return -EINVAL;
}

static int put_header(const struct mkckpt_tensor *tensors, size_t count, FILE *file, struct err *err)
{
    _cleanup_(freep) struct safetensors_item *items = calloc(count, sizeof *items);
    if (!items)
        return err_no_memory(err, "header", count * sizeof *items);
    for (size_t i = 0; i < count; i++)
        items[i] = (struct safetensors_item){
            .name = tensors[i].name, .dtype = tensors[i].dtype, .dims = tensors[i].dims, .shape = tensors[i].shape};
    struct buf header = {0};
    int r = safetensors_format_header(items, count, &header, err);
    if (r == 0)
        r = put(file, header.data, header.length, err);
    buf_release(&header);
    return r;
}

/* The data of all of a shard's tensors as one hole. */
static int put_hole(const struct mkckpt_tensor *tensors, size_t count, FILE *file, struct err *err)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += tensors[i].bytes;
    off_t at = fflush(file) == 0 ? ftello(file) : -1;
    return at < 0 || ftruncate(fileno(file), at + (off_t)bytes) < 0 ? err_errno(err, "hole") : 0;
}

static int write_shard(struct output *out, const struct mkckpt_tensor *tensors, size_t count, size_t scale_width, struct err *err)
{
    char name[64];
    shard_name(out, tensors->shard, name);
    FILE *file;
    int r = create(out, name, &file, err);
    if (r < 0)
        return r;
    r = put_header(tensors, count, file, err);
    if (r == 0 && out->sparse)
        r = put_hole(tensors, count, file, err);
    for (size_t i = 0; i < count && r == 0 && !out->sparse; i++) {
        r = put_tensor(out, &tensors[i], scale_width, file, err);
        progress_add(&out->progress, tensors[i].bytes);
    }
    return finish(out, name, file, r, err);
}

static int write_index(const struct output *out, const struct mkckpt_list *list, struct err *err)
{
    FILE *file;
    int r = create(out, "model.safetensors.index.json", &file, err);
    if (r < 0)
        return r;
    fprintf(file, "{\n  \"metadata\": {\"total_size\": %llu},\n  \"weight_map\": {", (unsigned long long)list->bytes);
    for (size_t i = 0; i < list->count; i++) {
        char name[64];
        shard_name(out, list->tensors[i].shard, name);
        fprintf(file, "%s\n    \"%s\": \"%s\"", i ? "," : "", list->tensors[i].name, name);
    }
    r = fputs("\n  }\n}\n", file) < 0 || ferror(file) ? err_errno(err, "write") : 0;
    return finish(out, "model.safetensors.index.json", file, r, err);
}

static int write_config(const struct output *out, const char *config, struct err *err)
{
    FILE *file;
    int r = create(out, "config.json", &file, err);
    if (r < 0)
        return r;
    r = put(file, config, strlen(config), err);
    if (r == 0)
        r = put(file, "\n", 1, err);
    return finish(out, "config.json", file, r, err);
}

static int assign_shards(struct output *out, struct mkckpt_list *list, uint64_t shard_bytes, struct err *err)
{
    uint64_t used = 0;
    uint32_t shard = 0;
    for (size_t i = 0; i < list->count; i++) {
        struct mkckpt_tensor *tensor = &list->tensors[i];
        if (used > 0 && used + tensor->bytes > shard_bytes) {
            shard++;
            used = 0;
        }
        used += tensor->bytes;
        tensor->shard = shard;
    }
    if (shard >= CHECKPOINT_SHARDS_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "--shard-bytes %llu gives %u shards, %d are possible",
                       (unsigned long long)shard_bytes, shard + 1, CHECKPOINT_SHARDS_MAX);
    out->shards = shard + 1;
    return 0;
}

/* An empty directory will do; anything in it is not ours to mix with. */
static int make_dir(struct output *out, struct err *err)
{
    if (mkdir(out->dir, 0777) == 0) {
        out->made_dir = true;
        return 0;
    }
    if (errno != EEXIST)
        return err_errno(err, "%s", out->dir);
    DIR *dir = opendir(out->dir);
    if (!dir)
        return err_errno(err, "%s", out->dir);
    bool empty = true;
    for (struct dirent *entry; empty && (entry = readdir(dir));)
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    closedir(dir);
    return empty ? 0 : err_set(err, -EEXIST, ERR_BAD_REQUEST, "%s exists and is not empty", out->dir);
}

static int check_space(const struct output *out, uint64_t bytes, struct err *err)
{
    struct statvfs fs;
    if (statvfs(out->dir, &fs) < 0)
        return err_errno(err, "%s", out->dir);
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    char needs[32], has[32];
    if (free_bytes >= bytes + OTHER_BYTES)
        return 0;
    err_set(err, -ENOSPC, ERR_NO_MEMORY, "%s: the checkpoint needs %s, the file system has %s free", out->dir,
            size_format(bytes + OTHER_BYTES, needs, sizeof needs), size_format(free_bytes, has, sizeof has));
    return -ENOSPC;
}

static int make_buffers(struct output *out, const struct mkckpt_list *list, const struct mkckpt_options *options, struct err *err)
{
    uint64_t columns = 1, scales = 1;
    for (size_t i = 0; i < list->count; i++) {
        const struct mkckpt_tensor *tensor = &list->tensors[i];
        columns = tensor->shape[tensor->dims - 1] > columns ? tensor->shape[tensor->dims - 1] : columns;
        if (tensor->kind == MKCKPT_SCALE && tensor->bytes > scales)
            scales = tensor->bytes;
    }
    out->random = mkckpt_random_new(options->seed, options->scale_dtype);
    out->band = malloc(columns * LAYOUT_BLOCK);
    out->scales = malloc(scales);
    if (!out->random || !out->band || !out->scales)
        return err_no_memory(err, "buffers", columns * LAYOUT_BLOCK);
    return 0;
}

static int write_files(struct output *out, const struct mkckpt_options *options, const char *config, const struct mkckpt_list *list,
                       struct err *err)
{
    size_t scale_width = safetensors_dtype_bits(options->scale_dtype) / 8;
    for (size_t first = 0; first < list->count;) {
        size_t next = first;
        while (next < list->count && list->tensors[next].shard == list->tensors[first].shard)
            next++;
        int r = write_shard(out, list->tensors + first, next - first, scale_width, err);
        if (r < 0)
            return r;
        first = next;
    }
    /* The config last: a directory with one is whole. */
    int r = write_index(out, list, err);
    return r < 0 ? r : write_config(out, config, err);
}

static void remove_files(const struct output *out)
{
    char name[64];
    for (uint32_t i = 0; i <= out->shards + 1; i++) {
        _cleanup_(freep) char *path = NULL;
        if (i < out->shards)
            shard_name(out, i, name);
        else
            snprintf(name, sizeof name, "%s", i == out->shards ? "model.safetensors.index.json" : "config.json");
        if (path_of(out, name, &path, NULL) == 0)
            unlink(path);
    }
    if (out->made_dir)
        rmdir(out->dir);
}

int mkckpt_write(const struct mkckpt_options *options, const char *config, struct mkckpt_list *list, uint32_t *ret_shards, struct err *err)
{
    uint64_t now = clock_now_ns();
    struct output out = {
        .dir = options->out,
        .sparse = options->sparse,
        .progress = {.total = list->bytes, .started_ns = now, .shown_ns = now, .terminal = isatty(STDERR_FILENO) == 1},
    };
    int r = assign_shards(&out, list, options->shard_bytes, err);
    if (r == 0)
        r = make_buffers(&out, list, options, err);
    if (r == 0)
        r = make_dir(&out, err);
    if (r == 0) {
        r = check_space(&out, options->sparse ? 0 : list->bytes, err);
        if (r == 0)
            r = write_files(&out, options, config, list, err);
        progress_end(&out.progress);
        if (r < 0)
            remove_files(&out);
    }
    mkckpt_random_free(out.random);
    free(out.band);
    free(out.scales);
    if (r == 0)
        *ret_shards = out.shards;
    return r;
}
