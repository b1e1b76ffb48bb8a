/* The weight buffer beyond this process: systemd's store of descriptors (FileDescriptorStoreMax= in the unit) holds the memfd while
 * fp9-duck is started again after a crash or by "systemctl restart". A full stop and a reboot end it.
 *
 * Main thread, before others start. */
#ifndef FP9_DUCK_KEEP_H
#define FP9_DUCK_KEEP_H

#include <stdint.h>

/* The memfd of an earlier run, -1 when there is none. bytes: the size that is wanted, 0 for any; one of another size is given up, for
 * what the configuration says now counts. What it holds is not looked at: wbuf_open does. */
int keep_take(uint64_t bytes);

/* Hands the memfd to systemd and waits until it has it. Says in the log what that means for the weights. */
void keep_store(int fd);

#endif
