#include "daemon/duck/prealloc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

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

int prealloc_start(struct wbuf *wbuf, struct prealloc **ret_prealloc, struct err *err)
{
    struct prealloc *prealloc = calloc(1, sizeof *prealloc);
    if (!prealloc)
        return err_no_memory(err, "prealloc", sizeof *prealloc);
    wbuf_keep_pages(wbuf);
    prealloc->pages = wbuf_all_pages(wbuf);
    int r = pthread_create(&prealloc->thread, NULL, prealloc_main, prealloc);
    if (r != 0) {
        free(prealloc);
        return err_set(err, -r, ERR_NO_MEMORY, "prealloc: its thread cannot be started: %s", strerror(r));
    }
    pthread_setname_np(prealloc->thread, "prealloc");
    background_thread(prealloc->thread);
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
