/* fp9-loadparts: what a cold load is made of, each part alone.
 *
 *     fp9-loadparts CHECKPOINT TP MULTIPLE_OF
 *
 * Reads, digests and converts layer 0 to n-1 of a checkpoint (LOADPARTS_BYTES at most, so that a run is short) and prints one line of JSON,
 * bytes of the checkpoint a second: `read` of files in the page cache by one thread in large sequential reads (a pass before it brings
 * them there), `digest` by one thread and `digest_all` by all, `convert_one` and `convert` likewise, as the ducks of tp ranks do it, into
 * memory that is there already, and `memory`: how fast all threads get fresh memory for the converted weights from the system. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/head/load_slice.h"
#include "daemon/model/checkpoint.h"
#include "daemon/model/plan.h"
#include "proto/base/clock.h"
#include "proto/base/size.h"

#define LOADPARTS_BYTES (UINT64_C(1) << 30)
#define READ_BYTES (8u * 1024 * 1024)
#define THREADS_MAX 256
#define MEMORY_PARTS 64

struct part {
    const uint8_t *codes;
    uint64_t bytes;
    const struct checkpoint_matrix *matrix;
    enum kernels_matrix which;
};

struct parts {
    const struct arch *arch;
    const struct plan *plan;
    struct checkpoint *checkpoint;
    struct part *items;
    size_t count;
    uint8_t *memory;
    uint64_t bytes;
    uint8_t *packed; /* [experts taken][tp] slices */
    struct layout_mlp *layouts;
    _Atomic size_t next;
    _Atomic int failed;
    int fds[MEMORY_PARTS];
};

static int take_experts(struct parts *parts, struct err *err)
{
    const struct arch *arch = parts->arch;
    uint64_t expert = 3 * (uint64_t)arch->hidden * arch->moe_intermediate;
    size_t most = LOADPARTS_BYTES / expert, all = (size_t)arch->layers * arch->experts;
    parts->count = 3 * (most < all ? most : all);
    parts->bytes = parts->count / 3 * expert;
    parts->items = calloc(parts->count, sizeof *parts->items);
    parts->memory = malloc(parts->bytes);
    if (!parts->items || !parts->memory)
        return err_no_memory(err, "loadparts", parts->bytes);
    uint8_t *at = parts->memory;
    for (size_t i = 0; i < parts->count; i++) {
        struct part *part = &parts->items[i];
        part->which = (enum kernels_matrix)(i % 3);
        part->matrix = checkpoint_find(parts->checkpoint, (uint32_t)(i / 3 / arch->experts), (int)(i / 3 % arch->experts), part->which);
        part->bytes = (uint64_t)part->matrix->rows * part->matrix->columns;
        part->codes = at;
        int r = i % (3 * (size_t)arch->experts) ? 0 : checkpoint_scales_hold(parts->checkpoint, (uint32_t)(i / 3 / arch->experts), err);
        if (r == 0)
            r = checkpoint_read(parts->checkpoint, part->matrix, 0, part->matrix->rows, at, err);
        if (r < 0)
            return r;
        at += part->bytes;
    }
    return 0;
}

/* ---- read ---- */

/* Whole shards, up to LOADPARTS_BYTES in all. */
static int read_files(const struct parts *parts, uint64_t *ret_bytes, struct err *err)
{
    _cleanup_(freep) uint8_t *to = malloc(READ_BYTES);
    if (!to)
        return err_no_memory(err, "loadparts", READ_BYTES);
    *ret_bytes = 0;
    for (uint32_t shard = 0; shard < checkpoint_shard_count(parts->checkpoint); shard++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", checkpoint_dir(parts->checkpoint), checkpoint_shard_name(parts->checkpoint, shard));
        _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return err_errno(err, "%s", path);
        ssize_t n;
        while (*ret_bytes < LOADPARTS_BYTES && (n = read(fd, to, READ_BYTES)) > 0)
            *ret_bytes += (uint64_t)n;
    }
    return 0;
}

/* ---- memory ---- */

/* Takes a part of what the packed weights need, as a duck does for its buffer: by writing to it, and a virtual machine may first have to
 * get it from its host. (fallocate alone leaves the pages for the first who writes to clear.) */
static void *take_memory(void *user)
{
    static const uint8_t piece[256 * 1024];
    struct parts *parts = user;
    for (size_t i; (i = atomic_fetch_add(&parts->next, 1)) < MEMORY_PARTS;) {
        size_t bytes = parts->bytes / 8 * 9 / MEMORY_PARTS;
        _cleanup_(closep) int fd = memfd_create("loadparts", MFD_CLOEXEC);
        if (fd < 0)
            atomic_store(&parts->failed, -errno);
        for (size_t at = 0, n; fd >= 0 && at < bytes; at += n) {
            n = bytes - at < sizeof piece ? bytes - at : sizeof piece;
            if (pwrite(fd, piece, n, (off_t)at) != (ssize_t)n) {
                atomic_store(&parts->failed, -ENOMEM);
                break;
            }
        }
        parts->fds[i] = STEAL_FD(fd);
    }
    return NULL;
}

/* ---- by threads ---- */

static void *digest_some(void *user)
{
    struct parts *parts = user;
    struct digest *digest = digest_new();
    uint8_t out[DIGEST_SIZE];
    if (!digest) {
        atomic_store(&parts->failed, -ENOMEM);
        return NULL;
    }
    for (size_t i; (i = atomic_fetch_add(&parts->next, 1)) < parts->count;) {
        digest_update(digest, parts->items[i].codes, parts->items[i].bytes);
        digest_finish(digest, out);
    }
    digest_free(digest);
    return NULL;
}

static int pack_slice(const struct parts *parts, const struct part *part, const struct layout_mlp *layout, uint8_t *to, uint8_t *cut,
                      float *scales)
{
    bool down = part->which == KERNELS_DOWN;
    uint32_t rows = down ? part->matrix->rows : layout->neurons;
    const uint8_t *codes = part->codes + (down ? 0 : (size_t)layout->begin * part->matrix->columns);
    if (down) {
        for (uint32_t row = 0; row < rows; row++)
            memcpy(cut + (size_t)row * layout->neurons, codes + (size_t)row * part->matrix->columns + layout->begin, layout->neurons);
        codes = cut;
    }
    load_slice_scales(part->matrix, layout, part->which, 0, rows, scales);
    const struct kernels_rows packed = {.matrix = part->which, .rows = rows, .codes = codes, .scales = scales};
    (void)parts;
    return kernels_pack(layout, to, &packed, NULL);
}

/* Item by item all slices, into memory that is there already. */
static void *convert_some(void *user)
{
    struct parts *parts = user;
    uint32_t tp = parts->plan->tp;
    const struct arch *arch = parts->arch;
    uint8_t *cut = malloc((size_t)arch->hidden * arch->moe_intermediate);
    float *scales = malloc(((size_t)arch->hidden * arch->moe_intermediate / LAYOUT_TILE_ROWS + 2) * sizeof *scales);
    uint64_t stride = 0;
    for (uint32_t rank = 0; rank < tp; rank++)
        stride += parts->layouts[rank].expert_bytes;
    for (size_t i; cut && scales && (i = atomic_fetch_add(&parts->next, 1)) < parts->count;) {
        uint8_t *to = parts->packed + i / 3 * stride;
        for (uint32_t rank = 0; rank < tp; rank++) {
            if (pack_slice(parts, &parts->items[i], &parts->layouts[rank], to, cut, scales) < 0)
                atomic_store(&parts->failed, -EINVAL);
            to += parts->layouts[rank].expert_bytes;
        }
    }
    if (!cut || !scales)
        atomic_store(&parts->failed, -ENOMEM);
    free(cut);
    free(scales);
    return NULL;
}

static double by_threads(struct parts *parts, void *(*run)(void *), int threads)
{
    pthread_t made[THREADS_MAX];
    atomic_store(&parts->next, 0);
    uint64_t begin = clock_now_ns();
    for (int i = 1; i < threads; i++)
        if (pthread_create(&made[i], NULL, run, parts) != 0)
            abort();
    run(parts);
    for (int i = 1; i < threads; i++)
        pthread_join(made[i], NULL);
    return (double)parts->bytes / ((double)(clock_now_ns() - begin) / 1e9);
}

static int plan_ranks(struct parts *parts, struct err *err)
{
    uint64_t stride = 0;
    parts->layouts = calloc(parts->plan->tp, sizeof *parts->layouts);
    if (!parts->layouts)
        return err_no_memory(err, "loadparts", 0);
    for (uint32_t rank = 0; rank < parts->plan->tp; rank++) {
        bool has_shared;
        struct layout_mlp shared;
        int r = plan_layouts(parts->arch, parts->plan, 0, rank, &parts->layouts[rank], &has_shared, &shared, err);
        if (r < 0)
            return r;
        stride += parts->layouts[rank].expert_bytes;
    }
    uint64_t bytes = stride * (parts->count / 3);
    parts->packed = aligned_alloc(64, size_round_up(bytes, 64));
    if (!parts->packed)
        return err_no_memory(err, "loadparts", bytes);
    memset(parts->packed, 0, bytes);
    return 0;
}

static int run(const char *dir, uint64_t tp, uint64_t multiple_of, struct err *err)
{
    _cleanup_(arch_freep) struct arch *arch = NULL;
    _cleanup_(checkpoint_freep) struct checkpoint *checkpoint = NULL;
    _cleanup_(plan_freep) struct plan *plan = NULL;
    int r = arch_read(dir, &arch, err);
    if (r == 0)
        r = checkpoint_open(dir, arch, &checkpoint, err);
    struct plan_request request = {.tp = (uint32_t)tp, .multiple_of = (uint32_t)multiple_of, .strategy = PLAN_TP};
    if (r == 0)
        r = plan_make(arch, &request, &plan, err);
    if (r == 0 && (!arch->experts || !arch->layer_is_moe[0]))
        r = err_set(err, -EINVAL, ERR_BAD_REQUEST, "%s: its layers are no MoE layers", dir);
    struct parts parts = {.arch = arch, .plan = plan, .checkpoint = checkpoint};
    if (r == 0)
        r = take_experts(&parts, err);
    if (r == 0)
        r = plan_ranks(&parts, err);
    uint64_t bytes = 0;
    if (r == 0)
        r = read_files(&parts, &bytes, err);
    uint64_t begin = clock_now_ns();
    if (r == 0)
        r = read_files(&parts, &bytes, err);
    double read_rate = (double)bytes / ((double)(clock_now_ns() - begin) / 1e9);
    if (r == 0) {
        cpu_set_t cpus;
        int threads = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
        threads = threads > THREADS_MAX ? THREADS_MAX : threads;
        double digest_one = by_threads(&parts, digest_some, 1), digest_all = by_threads(&parts, digest_some, threads);
        double memory = by_threads(&parts, take_memory, threads);
        for (int i = 0; i < MEMORY_PARTS; i++)
            close(parts.fds[i]);
        double convert_one = by_threads(&parts, convert_some, 1), convert_all = by_threads(&parts, convert_some, threads);
        r = atomic_load(&parts.failed);
        if (r < 0)
            err_set(err, r, ERR_INTERNAL, "%s: a part failed", dir);
        else
            printf("{\"bytes\": %" PRIu64 ", \"threads\": %d, \"read\": %.0f, \"digest\": %.0f, \"digest_all\": %.0f, "
                   "\"convert_one\": %.0f, \"convert\": %.0f, \"memory\": %.0f}\n",
                   parts.bytes, threads, read_rate, digest_one, digest_all, convert_one, convert_all, memory);
    }
    free(parts.items);
    free(parts.memory);
    free(parts.packed);
    free(parts.layouts);
    return r;
}

int main(int argc, char **argv)
{
    uint64_t tp, multiple_of;
    struct err err = {0};
    if (argc != 4 || !size_parse_u64(argv[2], 1, 1024, &tp) || !size_parse_u64(argv[3], 8, 128, &multiple_of)) {
        fprintf(stderr, "usage: fp9-loadparts CHECKPOINT TP MULTIPLE_OF\n");
        return 2;
    }
    if (kernels_select(getenv("FP9_CPU"), &err) < 0 || run(argv[1], tp, multiple_of, &err) < 0) {
        fprintf(stderr, "fp9-loadparts: %s\n", err.message);
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
