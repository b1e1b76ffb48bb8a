#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/model/checkpoint_state.h"
#include "daemon/model/text_file.h"
#include "proto/base/size.h"

CLEANUP_DEFINE(DIR *, closedir);

static int join(const char *dir, const char *name, char **ret_path, struct err *err)
{
    if (asprintf(ret_path, "%s/%s", dir, name) < 0) {
        *ret_path = NULL;
        return err_no_memory(err, dir, strlen(dir) + strlen(name));
    }
    return 0;
}

static bool is_safetensors(const char *name)
{
    size_t length = strlen(name), suffix = strlen(".safetensors");
    return length > suffix && strcmp(name + length - suffix, ".safetensors") == 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All *.safetensors of the directory, ascending. */
static int list_files(struct checkpoint *checkpoint, char **files, size_t *ret_count, struct err *err)
{
    _cleanup_(closedirp) DIR *dir = opendir(checkpoint->dir);
    if (!dir)
        return err_errno(err, "%s", checkpoint->dir);
    size_t count = 0;
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        if (!is_safetensors(entry->d_name))
            continue;
        if (count == CHECKPOINT_SHARDS_MAX)
            return err_set(err, -EFBIG, ERR_BAD_CHECKPOINT, "%s: more than %d *.safetensors files", checkpoint->dir, CHECKPOINT_SHARDS_MAX);
        if (!(files[count] = strdup(entry->d_name)))
            return err_no_memory(err, checkpoint->dir, strlen(entry->d_name));
        *ret_count = ++count;
    }
    qsort(files, count, sizeof *files, by_text);
    return 0;
}

static int read_index(struct checkpoint *checkpoint, struct err *err)
{
    _cleanup_(freep) char *path = NULL;
    int r = join(checkpoint->dir, CHECKPOINT_INDEX_FILE, &path, err);
    if (r < 0)
        return r;
    struct buf text = {0};
    r = text_file_read(path, CHECKPOINT_INDEX_BYTES_MAX, &text, err);
    if (r < 0)
        return r;
    r = checkpoint_index_parse((const char *)text.data, text.length, path, &checkpoint->index, err);
    buf_release(&text);
    return r;
}

/* An index of files alone; its entries come from the files' headers later. */
static int index_of_directory(struct checkpoint *checkpoint, struct err *err)
{
    struct checkpoint_index *index = calloc(1, sizeof *index);
    if (index)
        index->files = calloc(CHECKPOINT_SHARDS_MAX, sizeof *index->files);
    checkpoint->index = index;
    if (!index || !index->files)
        return err_no_memory(err, checkpoint->dir, CHECKPOINT_SHARDS_MAX * sizeof(char *));
    int r = list_files(checkpoint, index->files, &index->file_count, err);
    if (r == 0 && index->file_count == 0)
        r = err_set(err, -ENOENT, ERR_BAD_CHECKPOINT, "%s: neither %s nor any *.safetensors file: incomplete download?", checkpoint->dir,
                    CHECKPOINT_INDEX_FILE);
    return r;
}

/* A list in a message: as many names as fit, then how many more. */
static void add_name(char *list, size_t size, size_t *more, const char *name)
{
    size_t at = strlen(list);
    if (*more || at + strlen(name) + 3 > size)
        ++*more;
    else
        snprintf(list + at, size - at, "%s%s", at ? ", " : "", name);
}

static int check_missing(struct checkpoint *checkpoint, struct err *err)
{
    const struct checkpoint_index *index = checkpoint->index;
    char list[600] = "", and_more[32] = "";
    size_t missing = 0, more = 0;
    for (size_t i = 0; i < index->file_count; i++) {
        _cleanup_(freep) char *path = NULL;
        struct stat st;
        int r = join(checkpoint->dir, index->files[i], &path, err);
        if (r < 0)
            return r;
        if (stat(path, &st) == 0 || errno != ENOENT)
            continue; /* what else may be wrong shows when it is opened */
        missing++;
        add_name(list, sizeof list, &more, index->files[i]);
    }
    if (missing == 0)
        return 0;
    if (more)
        snprintf(and_more, sizeof and_more, " and %zu more", more);
    err_set(err, -ENOENT, ERR_BAD_CHECKPOINT, "%s: %zu of %zu file%s of the index %s missing (incomplete download): %s%s", checkpoint->dir,
            missing, index->file_count, size_plural(index->file_count), missing == 1 ? "is" : "are", list, and_more);
    err_value_int(err, "missing", (long long)missing);
    err_value_str(err, "files", list);
    return -ENOENT;
}

struct safetensors *checkpoint_shard_use(struct checkpoint *checkpoint, uint32_t shard)
{
    struct checkpoint_shard *at = &checkpoint->shards[shard];
    at->used = ++checkpoint->clock;
    if (!at->file || !safetensors_parked(at->file))
        return at->file;
    size_t open = 0;
    struct checkpoint_shard *oldest = NULL;
    for (size_t i = 0; i < checkpoint->index->file_count; i++) {
        struct checkpoint_shard *other = &checkpoint->shards[i];
        if (!other->file || safetensors_parked(other->file))
            continue;
        open++;
        if (!oldest || other->used < oldest->used)
            oldest = other;
    }
    if (open >= CHECKPOINT_OPEN_MAX)
        safetensors_park(oldest->file);
    return at->file;
}

static int check_headers(const struct checkpoint *checkpoint, uint64_t tensors, uint64_t bytes, struct err *err)
{
    if (tensors <= CHECKPOINT_TENSORS_MAX && bytes <= CHECKPOINT_HEADERS_MAX)
        return 0;
    err_set(err, -EFBIG, ERR_BAD_CHECKPOINT,
            "%s: its headers hold at least %llu tensors in %llu bytes, the limits are %u tensors and %u bytes", checkpoint->dir,
            (unsigned long long)tensors, (unsigned long long)bytes, CHECKPOINT_TENSORS_MAX, CHECKPOINT_HEADERS_MAX);
    err_value_int(err, "tensors", (long long)tensors);
    err_value_int(err, "bytes", (long long)bytes);
    return -EFBIG;
}

static int open_files(struct checkpoint *checkpoint, struct err *err)
{
    struct checkpoint_index *index = checkpoint->index;
    uint64_t tensors = 0, bytes = 0;
    checkpoint->shards = calloc(index->file_count, sizeof *checkpoint->shards);
    if (!checkpoint->shards)
        return err_no_memory(err, checkpoint->dir, index->file_count * sizeof *checkpoint->shards);
    for (size_t i = 0; i < index->file_count; i++) {
        struct checkpoint_shard *shard = &checkpoint->shards[i];
        _cleanup_(freep) char *path = NULL;
        int r = join(checkpoint->dir, index->files[i], &path, err);
        if (r == 0)
            r = safetensors_open(path, &shard->file, err);
        if (r == 0) {
            tensors += safetensors_count(shard->file);
            bytes += safetensors_data_offset(shard->file);
            r = check_headers(checkpoint, tensors, bytes, err);
        }
        if (r < 0)
            return r;
        shard->name = index->files[i];
        shard->used = ++checkpoint->clock;
        if (index->file_count > CHECKPOINT_OPEN_MAX)
            safetensors_park(shard->file);
    }
    return 0;
}

/* Every tensor that the index names must be where it says. */
static int check_index(const struct checkpoint *checkpoint, struct err *err)
{
    const struct checkpoint_index *index = checkpoint->index;
    for (size_t i = 0; i < index->count; i++) {
        const struct checkpoint_index_entry *entry = &index->entries[i];
        if (safetensors_find(checkpoint->shards[entry->file].file, entry->tensor))
            continue;
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: the index says that tensor %s is in %s, but it is not there", checkpoint->dir,
                entry->tensor, index->files[entry->file]);
        err_value_str(err, "tensor", entry->tensor);
        err_value_str(err, "file", index->files[entry->file]);
        return -EINVAL;
    }
    return 0;
}

static int by_tensor(const void *a, const void *b)
{
    const struct checkpoint_index_entry *x = a, *y = b;
    int order = strcmp(x->tensor, y->tensor);
    return order ? order : (x->file > y->file) - (x->file < y->file);
}

static int make_index(struct checkpoint *checkpoint, struct err *err)
{
    struct checkpoint_index *index = checkpoint->index;
    size_t total = 0;
    for (size_t i = 0; i < index->file_count; i++)
        total += safetensors_count(checkpoint->shards[i].file);
    index->entries = calloc(total + 1, sizeof *index->entries);
    if (!index->entries)
        return err_no_memory(err, checkpoint->dir, (total + 1) * sizeof *index->entries);
    for (size_t i = 0; i < index->file_count; i++) {
        const struct safetensors *file = checkpoint->shards[i].file;
        for (size_t j = 0; j < safetensors_count(file); j++)
            index->entries[index->count++] = (struct checkpoint_index_entry){safetensors_at(file, j)->name, (uint32_t)i};
    }
    qsort(index->entries, index->count, sizeof *index->entries, by_tensor);
    for (size_t i = 1; i < index->count; i++) {
        const struct checkpoint_index_entry *a = &index->entries[i - 1], *b = &index->entries[i];
        if (strcmp(a->tensor, b->tensor) != 0)
            continue;
        err_set(err, -EINVAL, ERR_BAD_CHECKPOINT, "%s: tensor %s is in %s and in %s, and there is no %s to say which one counts",
                checkpoint->dir, a->tensor, index->files[a->file], index->files[b->file], CHECKPOINT_INDEX_FILE);
        err_value_str(err, "tensor", a->tensor);
        return -EINVAL;
    }
    return 0;
}

static int find_ignored(struct checkpoint *checkpoint, struct err *err)
{
    const struct checkpoint_index *index = checkpoint->index;
    _cleanup_(freep) char **files = calloc(CHECKPOINT_SHARDS_MAX, sizeof(char *));
    size_t count = 0, more = 0;
    if (!files)
        return err_no_memory(err, checkpoint->dir, CHECKPOINT_SHARDS_MAX * sizeof *files);
    int r = list_files(checkpoint, files, &count, err);
    for (size_t i = 0; i < count; i++) {
        if (!bsearch(&files[i], index->files, index->file_count, sizeof *index->files, by_text))
            add_name(checkpoint->ignored, sizeof checkpoint->ignored - 32, &more, files[i]);
        free(files[i]);
    }
    if (more)
        snprintf(checkpoint->ignored + strlen(checkpoint->ignored), 32, " and %zu more", more);
    return r;
}

int checkpoint_shards_open(struct checkpoint *checkpoint, struct err *err)
{
    _cleanup_(freep) char *path = NULL;
    struct stat st;
    int r = join(checkpoint->dir, CHECKPOINT_INDEX_FILE, &path, err);
    if (r < 0)
        return r;
    bool indexed = lstat(path, &st) == 0 || errno != ENOENT;
    r = indexed ? read_index(checkpoint, err) : index_of_directory(checkpoint, err);
    if (r == 0)
        r = check_missing(checkpoint, err);
    if (r == 0)
        r = open_files(checkpoint, err);
    if (r < 0)
        return r;
    if (!indexed)
        return make_index(checkpoint, err);
    r = check_index(checkpoint, err);
    return r < 0 ? r : find_ignored(checkpoint, err);
}

int checkpoint_shards_open_memory(struct checkpoint *checkpoint, int fd, struct err *err)
{
    struct checkpoint_index *index = checkpoint->index = calloc(1, sizeof *index);
    if (!index || !(index->files = calloc(1, sizeof *index->files)) || !(checkpoint->shards = calloc(1, sizeof *checkpoint->shards)))
        return err_no_memory(err, CHECKPOINT_MEMORY_NAME, sizeof *index);
    if (fd < 0)
        return make_index(checkpoint, err);
    if (!(index->files[0] = strdup(CHECKPOINT_MEMORY_NAME)))
        return err_no_memory(err, CHECKPOINT_MEMORY_NAME, sizeof CHECKPOINT_MEMORY_NAME);
    index->file_count = 1;
    checkpoint->shards[0].name = index->files[0];
    int r = safetensors_open_sealed(fd, CHECKPOINT_MEMORY_NAME, &checkpoint->shards[0].file, err);
    return r < 0 ? r : make_index(checkpoint, err);
}

size_t checkpoint_dir_files(const char *path)
{
    _cleanup_(closedirp) DIR *dir = opendir(path);
    struct dirent *entry;
    size_t count = 0;
    while (dir && (entry = readdir(dir)))
        count += is_safetensors(entry->d_name);
    return count;
}

bool checkpoint_dir_is_bare(const char *path)
{
    _cleanup_(closedirp) DIR *dir = opendir(path);
    struct dirent *entry;
    while (dir && (entry = readdir(dir)))
        if (is_safetensors(entry->d_name) || strcmp(entry->d_name, CHECKPOINT_INDEX_FILE) == 0)
            return false;
    return dir != NULL;
}

const struct safetensors_tensor *checkpoint_tensor(const struct checkpoint *checkpoint, const char *name, uint32_t *ret_shard)
{
    const struct checkpoint_index_entry *entry = checkpoint_index_find(checkpoint->index, name);
    if (!entry)
        return NULL;
    *ret_shard = entry->file;
    return safetensors_find(checkpoint->shards[entry->file].file, name);
}
