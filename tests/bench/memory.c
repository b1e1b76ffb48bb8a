#include "tests/bench/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <linux/memfd.h>
#include <sys/mman.h>

#include "proto/base/cleanup.h"
#include "proto/base/huge.h"
#include "proto/base/size.h"

static const char *const names[MEMORY_KIND_COUNT_] = {
    [MEMORY_ANON] = "anon",
    [MEMORY_ANON_HUGE] = "anon-huge",
    [MEMORY_MEMFD] = "memfd",
    [MEMORY_MEMFD_HUGE] = "memfd-huge",
};

const char *memory_kind_name(enum memory_kind kind)
{
    return names[kind];
}

int memory_kind_parse(const char *text, enum memory_kind *ret_kind)
{
    for (int i = 0; i < MEMORY_KIND_COUNT_; i++)
        if (strcmp(text, names[i]) == 0) {
            *ret_kind = (enum memory_kind)i;
            return 0;
        }
    return -EINVAL;
}

static void *map_memfd(size_t bytes, unsigned flags)
{
    _cleanup_(closep) int fd = memfd_create("fp9-bench", MFD_CLOEXEC | flags);

    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
        return MAP_FAILED;
    return flags ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : huge_map(fd, 0, bytes, PROT_READ | PROT_WRITE);
}

/* As fp9-duck does it; where the kernel refuses one it will not give the next. */
static void make_huge(uint8_t *at, size_t bytes)
{
    for (size_t block = 0; block < bytes; block += HUGE_PAGE) {
        at[block] = 0;
        if (huge_make(at + block) < 0)
            return;
    }
}

int memory_map(struct memory *memory, enum memory_kind kind, size_t bytes, struct err *err)
{
    void *at = MAP_FAILED;
    bool reserved = false;

    if (memory->bytes >= bytes)
        return 0;
    memory_unmap(memory);
    bytes = (size_t)size_round_up(bytes, HUGE_PAGE);
    if (kind == MEMORY_MEMFD_HUGE)
        at = map_memfd(bytes, MFD_HUGETLB | MFD_HUGE_2MB);
    reserved = at != MAP_FAILED;
    if (at == MAP_FAILED)
        at = kind == MEMORY_ANON || kind == MEMORY_ANON_HUGE ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                                             : map_memfd(bytes, 0);
    if (at == MAP_FAILED)
        return err_errno(err, "mapping %zu bytes of %s memory", bytes, names[kind]);
    /* A kernel that has none serves small pages; memory_huge_bytes tells what came of it. */
    madvise(at, bytes, kind == MEMORY_ANON || kind == MEMORY_MEMFD ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    if (kind == MEMORY_MEMFD_HUGE && !reserved)
        make_huge(at, bytes);
    *memory = (struct memory){.at = at, .bytes = bytes};
    return 0;
}

void memory_unmap(struct memory *memory)
{
    if (memory->at)
        munmap(memory->at, memory->bytes);
    *memory = (struct memory){0};
}

size_t memory_huge_bytes(const struct memory *memory)
{
    _cleanup_(fclosep) FILE *file = fopen("/proc/self/smaps", "re");
    uintptr_t begin = (uintptr_t)memory->at, end = begin + memory->bytes, from, to;
    unsigned long long kib;
    bool inside = false;
    size_t sum = 0;
    char line[512];

    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
            inside = from < end && to > begin; /* the kernel may join neighbouring mappings */
        else if (inside && (sscanf(line, "AnonHugePages: %llu kB", &kib) == 1 || sscanf(line, "ShmemPmdMapped: %llu kB", &kib) == 1 ||
                            sscanf(line, "Shared_Hugetlb: %llu kB", &kib) == 1 || sscanf(line, "Private_Hugetlb: %llu kB", &kib) == 1))
            sum += (size_t)kib << 10;
    return sum < memory->bytes ? sum : memory->bytes;
}

static void read_line(const char *path, char *text, int size)
{
    _cleanup_(fclosep) FILE *file = fopen(path, "re");

    if (!file || !fgets(text, size, file))
        text[0] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

void memory_explain(char *text, size_t size)
{
    char reserved[32], shared[128];

    read_line("/proc/sys/vm/nr_hugepages", reserved, sizeof(reserved));
    read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", shared, sizeof(shared));
    snprintf(text, size, "vm.nr_hugepages is %s, huge shared memory: %s", *reserved ? reserved : "unknown", *shared ? shared : "unknown");
}

size_t memory_available(void)
{
    _cleanup_(fclosep) FILE *file = fopen("/proc/meminfo", "re");
    unsigned long long kib;
    char line[128];

    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            return (size_t)kib << 10;
    return (size_t)1 << 30;
}

size_t memory_last_cache(void)
{
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);

    return bytes > 0 ? (size_t)bytes : 0;
}
