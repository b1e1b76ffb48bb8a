/* The kinds of memory that weights can lie in. */
#ifndef FP9_TESTS_BENCH_MEMORY_H
#define FP9_TESTS_BENCH_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"

enum memory_kind {
    MEMORY_ANON,        /* small pages */
    MEMORY_ANON_HUGE,   /* transparent huge pages, where the kernel gives them */
    MEMORY_MEMFD,       /* small pages; what fp9-duck's weight buffer is without huge pages */
    MEMORY_MEMFD_HUGE,  /* reserved huge pages if there are enough, else such as fp9-duck asks for */
    MEMORY_KIND_COUNT_, /* not a kind */
};

struct memory {
    void *at;     /* page-aligned, owned; zero when new */
    size_t bytes; /* of the mapping */
};

const char *memory_kind_name(enum memory_kind kind);                 /* "anon", "anon-huge", ... */
int memory_kind_parse(const char *text, enum memory_kind *ret_kind); /* 0 or -EINVAL */

/* A mapping that is there already and large enough is used again, with what is in it: one bench has one kind. On failure there is none. */
int memory_map(struct memory *memory, enum memory_kind kind, size_t bytes, struct err *err);
void memory_unmap(struct memory *memory);

/* How many of the bytes lie in huge pages now: what was asked for and what there is are two things. */
size_t memory_huge_bytes(const struct memory *memory);
/* Why memfd-huge got none, for people: what the system says about reserved pages and huge shared memory. */
void memory_explain(char *text, size_t size);

/* Of the system. */
size_t memory_available(void);
size_t memory_last_cache(void); /* 0: not known */

#endif
