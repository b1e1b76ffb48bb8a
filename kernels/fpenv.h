/* The floating-point environment of the formula: round to nearest even, subnormals kept, no traps.
 * Callers keep the arithmetic behind a function pointer, so that the compiler cannot move it out of the bracket. */
#ifndef FP9_KERNELS_FPENV_H
#define FP9_KERNELS_FPENV_H

#if defined(__SSE__)

#include <xmmintrin.h>

#define FPENV_MXCSR 0x1f80u /* all exceptions masked, nearest, neither FTZ nor DAZ */

typedef unsigned fpenv_saved;

static inline fpenv_saved fpenv_enter(void)
{
    fpenv_saved saved = _mm_getcsr();

    _mm_setcsr(FPENV_MXCSR);
    return saved;
}

static inline void fpenv_leave(fpenv_saved saved)
{
    _mm_setcsr(saved);
}

#else

#include <fenv.h>

typedef fenv_t fpenv_saved;

static inline fpenv_saved fpenv_enter(void)
{
    fpenv_saved saved;

    fegetenv(&saved);
    fesetenv(FE_DFL_ENV);
    return saved;
}

static inline void fpenv_leave(fpenv_saved saved)
{
    fesetenv(&saved);
}

#endif
#endif
