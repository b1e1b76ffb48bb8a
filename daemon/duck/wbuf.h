/* The weight buffer: one mapping of a memfd that outlives this process. Its header is the truth about what it holds.
 *
 * The file: struct wbuf_header (wbuf_format.h) in the first WBUF_DATA_OFFSET bytes, then slots at multiples of 4 KiB, first fit. A slot is
 * one layer's share. It is written in the state FILLING; its finish flag comes last, so that a buffer taken over from a process that was
 * killed at any moment holds only whole slots: FILLING ones are dropped by wbuf_open.
 *
 * Memory is taken before it is written to, so that too little of it is -ENOMEM/-ENOSPC here and never a SIGBUS later. A dropped slot's
 * range is free at once. Its pages, unless somebody takes the range before, are given back to the system in pieces (wbuf_reclaim), since
 * the kernel takes 0.13 ms for each MiB; or never, when wbuf_keep_pages was called.
 *
 * Threads: all functions belong to one thread, but for those that say otherwise. Another may read the bytes of a pinned slot, and one may
 * write those of a pinned FILLING one.
 */
#ifndef FP9_DUCK_WBUF_H
#define FP9_DUCK_WBUF_H

#include "daemon/duck/geometry.h"
#include "proto/base/cleanup.h"

#define WBUF_SLOTS_MAX 4096
#define WBUF_SLOT_ALIGN 4096
#define WBUF_BOOT_ID_SIZE 40
#define WBUF_NONE UINT32_MAX

enum wbuf_huge {
    WBUF_HUGE_AUTO, /* ask, go on without; where they come slowly most are left out */
    WBUF_HUGE_YES,  /* ask for every one, however long it takes, and say so in the log when refused */
    WBUF_HUGE_NO,
};

struct wbuf;

/* fd: a memfd (or file) to attach to, or -1 for one of our own. Taken (closed by wbuf_free) on success. A file of size 0 is made
 * `bytes` long; any other keeps its size. A header that is not whole (magic, version, capacity, a slot that lies about itself) is
 * formatted anew, with a new boot id; *ret_note (WBUF_NOTE_MAX) says in a sentence what was found. A buffer that another process has open
 * is waited for, some seconds at most (-EBUSY, naming the process): one that was killed may still be dying. */
#define WBUF_NOTE_MAX 512
int wbuf_open(int fd, uint64_t bytes, enum wbuf_huge huge, struct wbuf **ret_wbuf, char *ret_note, struct err *err);
void wbuf_free(struct wbuf *wbuf);
CLEANUP_DEFINE(struct wbuf *, wbuf_free);

int wbuf_fd(const struct wbuf *wbuf); /* borrowed; inherited by kernel processes */
const char *wbuf_boot_id(const struct wbuf *wbuf);
uint64_t wbuf_capacity(const struct wbuf *wbuf); /* bytes for slots: file less header */
uint64_t wbuf_used(const struct wbuf *wbuf);     /* whole pages of slots, dropped but pinned ones among them */

/* A slot in the state FILLING. NO_MEMORY "needs X, has Y" when no range is free, the table is full or the system has no pages. */
int wbuf_alloc(struct wbuf *wbuf, const struct msg_prepare_begin *words, uint32_t *ret_slot, struct err *err);
/* The same without its memory, which is still to be taken, by any thread: wbuf_take_pages of each part before its first byte is written,
 * and of the whole before it is summed. Part by part, since the system clears pages, and what is written to soon after is still in the
 * cache.
 * -ENOMEM/-ENOSPC: the slot is to be dropped. */
struct wbuf_huge_state;
struct wbuf_pages {
    int fd;       /* borrowed */
    uint8_t *map; /* of the first byte; borrowed */
    uint64_t offset, bytes;
    bool zero;                     /* until they are written to */
    struct wbuf_huge_state *huge;  /* borrowed; NULL: small pages */
    uint64_t used_begin, used_end; /* in the file: slots, of which this is one, without a gap; so far may huge pages reach */
};
int wbuf_reserve(struct wbuf *wbuf, const struct msg_prepare_begin *words, uint32_t *ret_slot, struct err *err);
struct wbuf_pages wbuf_pages(struct wbuf *wbuf, uint32_t slot);
/* Of `bytes` from the slot's byte `begin` on. */
int wbuf_take_pages(const struct wbuf_pages *pages, uint64_t begin, uint64_t bytes, struct err *err);
/* Takes them and fills them in one: the system need not clear pages that are written whole. They are mapped afterwards. */
int wbuf_write_pages(const struct wbuf_pages *pages, uint64_t begin, const uint8_t *from, uint64_t bytes, struct err *err);
/* From now on the pages of dropped slots stay with the buffer. */
void wbuf_keep_pages(struct wbuf *wbuf);
/* All there is, to be taken beforehand by another thread. */
struct wbuf_pages wbuf_all_pages(struct wbuf *wbuf);
/* Of a FILLING slot: what it is being prepared from. */
void wbuf_set_sources(struct wbuf *wbuf, uint32_t slot, const uint8_t sources[DIGEST_SIZE]);
/* Checksums the bytes and sets the finish flag. */
void wbuf_finish(struct wbuf *wbuf, uint32_t slot);
/* The same with a checksum that wbuf_sum gave. */
void wbuf_finish_summed(struct wbuf *wbuf, uint32_t slot, uint64_t checksum);
/* A finished slot goes under another model key; its bytes and checksums stay. A process killed in the middle leaves it unfinished. */
void wbuf_rekey(struct wbuf *wbuf, uint32_t slot, const uint8_t model_key[DIGEST_SIZE]);
/* Frees a slot in any state; its range at once, or when the last pin goes. Returns the bytes that will be free. */
uint64_t wbuf_drop(struct wbuf *wbuf, uint32_t slot);

/* The finished, sound slot of a model's layer, or WBUF_NONE. Any state: wbuf_find_any. */
uint32_t wbuf_find(struct wbuf *wbuf, const uint8_t model_key[DIGEST_SIZE], uint32_t layer);
uint32_t wbuf_find_any(struct wbuf *wbuf, const uint8_t model_key[DIGEST_SIZE], uint32_t layer);
/* True when the slot is in use (not free, not dropped); for loops over 0 .. WBUF_SLOTS_MAX - 1. */
bool wbuf_taken(const struct wbuf *wbuf, uint32_t slot);
/* True when it is in use and its description in the header is the one it was given: somebody may have written over it. */
bool wbuf_sound(const struct wbuf *wbuf, uint32_t slot);

/* Of a slot in use. */
uint8_t *wbuf_data(const struct wbuf *wbuf, uint32_t slot);
uint64_t wbuf_offset(const struct wbuf *wbuf, uint32_t slot); /* of its data in the file */
const struct geometry *wbuf_geometry(const struct wbuf *wbuf, uint32_t slot);
struct msg_prepare_begin wbuf_words(const struct wbuf *wbuf, uint32_t slot);
struct msg_slot wbuf_describe(const struct wbuf *wbuf, uint32_t slot);

/* What a slot in use should hold, and where: parts are its routed experts, then the shared one; one for a dense layer. */
#define WBUF_PART_DENSE (-1)
#define WBUF_PART_SHARED (-2)
#define WBUF_PART_UNKNOWN (-3)
struct wbuf_sums {
    const uint8_t *data;
    uint64_t bytes, checksum;
    uint32_t parts;
    const uint64_t *part_sums; /* [parts], XXH3-64 each */
    uint64_t part_bytes;       /* of one routed expert or of the dense MLP, from the front */
    uint64_t shared_offset, shared_bytes;
    bool moe, has_shared;
    uint32_t expert_first; /* the layer's id of the first routed one */
};
struct wbuf_sums wbuf_sums(struct wbuf *wbuf, uint32_t slot);
/* Of a whole FILLING slot that is pinned, any thread: writes its parts' checksums and returns that of all. 0: out of memory. */
uint64_t wbuf_sum(const struct wbuf_sums *sums);
/* The same as the parts come to be whole, one after another: `bytes` are the part's, wherever they are. Then those from `first` on, and
 * the end. */
struct checksum;
void wbuf_sum_part(const struct wbuf_sums *sums, uint32_t part, const uint8_t *bytes, struct checksum *whole);
uint64_t wbuf_sum_rest(const struct wbuf_sums *sums, uint32_t first, struct checksum *whole);

/* Bytes of dropped slots that the system does not have back yet; an owner that lives on calls wbuf_reclaim until there are none. */
uint64_t wbuf_stale(const struct wbuf *wbuf);
/* Gives back one piece of at most WBUF_RECLAIM_BYTES. */
#define WBUF_RECLAIM_BYTES (UINT64_C(2) << 20)
void wbuf_reclaim(struct wbuf *wbuf);

/* Bytes of the free ranges, by offset; ret_ranges has room for WBUF_SLOTS_MAX + 1. Returns their number. */
uint32_t wbuf_ranges(const struct wbuf *wbuf, uint64_t *ret_ranges);
/* Why blocks did not become huge pages, an errno or WBUF_HUGE_SLOW: once for each reason, and 0. *ret_insisted: WBUF_HUGE_YES. */
#define WBUF_HUGE_SLOW 4096
int wbuf_huge_refusal(struct wbuf *wbuf, bool *ret_insisted);
const char *wbuf_huge_reason(int why); /* for people */

/* A number that moves whenever the ranges do. */
uint64_t wbuf_changes(const struct wbuf *wbuf);

/* ---- revoked keys (wbuf_revoked.c) ----
 *
 * Kept in the header, WBUF_REVOKED_MAX of them, the one of the least stamp giving way. A slot of a lesser stamp than its key's is dead. */
struct msg_revoked;
/* What slots that are begun or put under another key from now on carry; never goes back. */
void wbuf_set_stamp(struct wbuf *wbuf, uint64_t stamp);
/* The greatest stamp that the header knows. */
uint64_t wbuf_stamp(const struct wbuf *wbuf);
void wbuf_revoke(struct wbuf *wbuf, const struct msg_revoked *revoked);
/* Drops the slots that are dead; their number. wbuf_open has done so. */
uint32_t wbuf_bury(struct wbuf *wbuf);
/* ret_list has room for MSG_REVOKED_MAX. */
size_t wbuf_revoked(const struct wbuf *wbuf, struct msg_revoked *ret_list);
struct wbuf_header;
struct wbuf_header *wbuf_header(const struct wbuf *wbuf); /* for wbuf_*.c alone */
struct wbuf_huge_state *wbuf_huge(struct wbuf *wbuf);     /* likewise */

/* While pinned a slot's bytes stay where they are, dropped or not. */
void wbuf_pin(struct wbuf *wbuf, uint32_t slot);
void wbuf_unpin(struct wbuf *wbuf, uint32_t slot);
/* Dropped slots whose memory waits for a pin. */
uint32_t wbuf_doomed(const struct wbuf *wbuf);
bool wbuf_is_doomed(const struct wbuf *wbuf, uint32_t slot);

#endif
