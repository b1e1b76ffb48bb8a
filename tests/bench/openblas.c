#include "tests/bench/openblas.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include "kernels/kernels.h"

#define LIBRARY "libopenblas.so.0"

static void *library;
static void (*set_num_threads)(int threads);
static char *(*get_config)(void);
static char *(*get_corename)(void);

static void name_core(void)
{
    if (kernels_tier_available(KERNELS_AVX512))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    else if (kernels_tier_available(KERNELS_AVX2))
        setenv("OPENBLAS_CORETYPE", "Haswell", 0);
}

int openblas_function(const char *function, void **ret_function, struct err *err)
{
    void *found = dlsym(library, function);

    if (!found)
        return err_set(err, -ENOTSUP, ERR_NO_SUCH, "%s has no %s", LIBRARY, function);
    *ret_function = found;
    return 0;
}

int openblas_open(struct err *err)
{
    int r;

    if (get_corename)
        return 0;
    name_core();
    if (!library)
        library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return err_set(err, -ENOTSUP, ERR_NO_SUCH, "%s (install libopenblas-dev)", dlerror());
    r = openblas_function("openblas_set_num_threads", (void **)&set_num_threads, err);
    if (r == 0)
        r = openblas_function("openblas_get_config", (void **)&get_config, err);
    if (r == 0)
        r = openblas_function("openblas_get_corename", (void **)&get_corename, err);
    return r;
}

void openblas_threads(uint32_t threads)
{
    set_num_threads((int)threads);
}

const char *openblas_config(void)
{
    return get_corename ? get_config() : NULL;
}

const char *openblas_core(void)
{
    return get_corename ? get_corename() : NULL;
}
