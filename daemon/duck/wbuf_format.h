/* What stands at the front of a weight buffer. Native byte order: the file never leaves its machine. */
#ifndef FP9_DUCK_WBUF_FORMAT_H
#define FP9_DUCK_WBUF_FORMAT_H

#include <stdint.h>

#include "daemon/duck/wbuf.h"

#define WBUF_MAGIC UINT64_C(0x66756277396b7066)
#define WBUF_VERSION 2 /* of this header; 2: checksums of a slot's parts behind its bytes */
#define WBUF_DATA_OFFSET (UINT64_C(1) << 20)
#define WBUF_REVOKED_MAX 64
#define WBUF_BYTES_MIN (WBUF_DATA_OFFSET + WBUF_SLOT_ALIGN) /* of a whole buffer */

struct wbuf_slot {
    uint32_t state; /* 0 free, enum msg_slot_state */
    uint32_t kind;
    uint8_t model_key[DIGEST_SIZE];
    uint8_t sources[DIGEST_SIZE];
    uint32_t tp, rank, multiple_of;
    uint32_t layer;
    /* The upper halves are 0 in a buffer of before there were slots of some of a layer's experts: it had two words here. */
    uint16_t experts, expert_first;
    uint16_t has_shared, experts_more; /* experts_more: the layer has so many besides those of this slot */
    struct msg_slice slice;
    struct msg_slice shared;
    uint64_t offset;   /* in the file; multiple of WBUF_SLOT_ALIGN */
    uint64_t bytes;    /* as geometry_init computes them */
    uint64_t checksum; /* XXH3-64 of the bytes */
    uint64_t finish; /* written last, release: wbuf_format_finish() of all the above in state FINISHED; anything else is no finished slot */
};

/* A key whose slots are dead if their stamp is less; on this buffer, or to be told of others. */
struct wbuf_revoked {
    uint64_t stamp; /* 0: no entry; written last */
    uint8_t model_key[DIGEST_SIZE];
    char boot_id[WBUF_BOOT_ID_SIZE]; /* the only buffer it is about; "" every one */
    uint64_t all;                    /* every key */
};

_Static_assert(WIRE_EXPERTS_MAX <= UINT16_MAX, "numbers of experts fit");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lower half of a word comes first");

struct wbuf_header {
    uint64_t magic; /* written last */
    uint32_t version;
    uint32_t layout_version;
    uint64_t size; /* of the file */
    char boot_id[WBUF_BOOT_ID_SIZE];
    uint32_t slot_count;
    uint32_t zero;
    struct wbuf_slot slots[WBUF_SLOTS_MAX];
    /* Zeros in a buffer of version 2 that was made before there was this; older than everything. */
    uint64_t stamps[WBUF_SLOTS_MAX]; /* of the slots: when they were prepared or put under their key, in fp9d's time */
    struct wbuf_revoked revoked[WBUF_REVOKED_MAX];
};

_Static_assert(sizeof(struct wbuf_header) <= WBUF_DATA_OFFSET, "slots begin after the header");

/* Parts of a slot: the dense MLP, or its routed experts and then the shared one. Behind the slot's bytes stands the XXH3-64 of each, so
 * a wrong bit can be told apart from its neighbours; the slot's own checksum does not cover them. */
uint32_t wbuf_format_parts(const struct wbuf_slot *slot);
/* Bytes that a slot takes: its data and its parts' checksums. */
uint64_t wbuf_format_span(const struct wbuf_slot *slot);

/* The finish flag a slot should carry: never 0. */
uint64_t wbuf_format_finish(const struct wbuf_slot *slot);
struct msg_prepare_begin wbuf_format_words(const struct wbuf_slot *slot);
struct msg_slot wbuf_format_describe(const struct wbuf_slot *slot);

/* Writes an empty header with a fresh boot id. */
int wbuf_format_init(struct wbuf_header *header, uint64_t size, struct err *err);

/* Judges a header as found. 0 when what it says of the whole buffer is right: *ret_geometries (WBUF_SLOTS_MAX of them) is filled for
 * finished slots, and freed are slots that were filling (*ret_dropped counts them) and those whose description is wrong or that overlap
 * (*ret_bad of them, *ret_why about one). -EBADMSG with what is wrong otherwise; nothing was changed then. */
int wbuf_format_check(struct wbuf_header *header, uint64_t size, struct geometry *ret_geometries, uint32_t *ret_dropped, uint32_t *ret_bad,
                      struct err *ret_why, struct err *err);

/* wbuf_pages.c: of a file's bytes from `offset` on, whether they are mapped or not. */
int wbuf_take_file(int fd, uint64_t offset, uint64_t bytes, struct err *err);

#endif
