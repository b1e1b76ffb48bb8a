/* Huge pages for files in memory (memfds, tmpfs): 2 MiB of a file in one page, of which the processor translates one address instead of
 * 512. A kernel gives them by itself only where the administrator has told it to; asked for a block at a time it does so anyway, from
 * Linux 6.1 on. */
#ifndef FP9_BASE_HUGE_H
#define FP9_BASE_HUGE_H

#include <stdbool.h>
#include <stdint.h>

#define HUGE_PAGE (UINT64_C(2) << 20)

/* mmap(MAP_SHARED) of a file's `bytes` from `offset` on (a multiple of the page size), where address and offset agree modulo HUGE_PAGE:
 * elsewhere the file's huge pages are mapped as small ones. MAP_FAILED and errno; munmap takes it back. */
void *huge_map(int fd, uint64_t offset, uint64_t bytes, int prot);
/* True for a file that can have them. */
bool huge_file(int fd);
/* Moves the block of HUGE_PAGE bytes at `block` (a multiple of it in the file, mapped by huge_map for reading at least) into a huge page.
 * Some page of it must have been written to; what was not is zero. Others may read and write the block meanwhile. Any thread.
 * 0 also when it is one already, or -errno: -EINVAL where the kernel or the administrator gives none, -ENOMEM when there is none. */
int huge_make(void *block);

#endif
