#include "daemon/duck/prealloc.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/duck/options.h"
#include "proto/base/background.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/base/size.h"

#define PREALLOC_STEP (UINT64_C(16) << 20) /* between two looks whether to stop */

struct prealloc {
    pthread_t thread;
    struct wbuf_pages pages;
    atomic_bool stop;
};

static void *prealloc_main(void *user)
{
    struct prealloc *prealloc = user;
    const struct wbuf_pages *pages = &prealloc->pages;
    struct err err = {0};
    uint64_t at = 0, begin = clock_now_ns();
    while (at < pages->bytes && !atomic_load(&prealloc->stop)) {
        uint64_t step = pages->bytes - at < PREALLOC_STEP ? pages->bytes - at : PREALLOC_STEP;
        if (wbuf_take_pages(pages, at, step, &err) < 0)
            break;
        at += step;
    }
    char taken[32], all[32];
    size_format(at, taken, sizeof taken);
    size_format(pages->bytes, all, sizeof all);
    if (err.code)
        log_warning("duck", "prealloc: %s of %s are there, then: %s", taken, all, err.message);
    else if (at == pages->bytes)
        log_info("duck", "prealloc: the buffer's %s are there, after %.1f s", all, (double)(clock_now_ns() - begin) / 1e9);
    return NULL;
}

/* MemAvailable of /proc/meminfo; UINT64_MAX: not told. */
static uint64_t available(void)
{
    _cleanup_(fclosep) FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            return (uint64_t)kib * 1024;
    return UINT64_MAX;
}

static int check(const struct wbuf_pages *pages, struct err *err)
{
    struct stat info;
    uint64_t bytes = pages->bytes, taken = fstat(pages->fd, &info) < 0 ? 0 : (uint64_t)info.st_blocks * 512; /* of a kept buffer */
    uint64_t all = options_machine_memory(), now = available();
    char wanted[32], have[32];
    size_format(bytes, wanted, sizeof wanted);
    if (bytes > all) {
        size_format(all, have, sizeof have);
        err_set(err, -ENOMEM, ERR_NO_MEMORY, "prealloc: the buffer's %s are more than the machine's %s of memory; make memory smaller",
                wanted, have);
        err_value_int(err, "needs", (long long)bytes);
        err_value_int(err, "has", (long long)all);
        return -ENOMEM;
    }
    if (bytes > taken && bytes - taken > now) {
        size_format(bytes - taken, wanted, sizeof wanted);
        size_format(now, have, sizeof have);
        log_warning("duck", "prealloc: the buffer still wants %s, and %s are available now; other programs may be pushed out", wanted,
                    have);
    }
    return 0;
}

int prealloc_start(struct wbuf *wbuf, struct prealloc **ret_prealloc, struct err *err)
{
    struct prealloc *prealloc = calloc(1, sizeof *prealloc);
    if (!prealloc)
        return err_no_memory(err, "prealloc", sizeof *prealloc);
    prealloc->pages = wbuf_all_pages(wbuf);
    int r = check(&prealloc->pages, err);
    if (r < 0) {
        free(prealloc);
        return r;
    }
    wbuf_keep_pages(wbuf);
    r = background_start("prealloc", prealloc_main, prealloc, &prealloc->thread, err);
    if (r < 0) {
        free(prealloc);
        return r;
    }
    *ret_prealloc = prealloc;
    return 0;
}

void prealloc_free(struct prealloc *prealloc)
{
    if (!prealloc)
        return;
    atomic_store(&prealloc->stop, true);
    pthread_join(prealloc->thread, NULL);
    free(prealloc);
}
