/* What the files of a link share: its state, and how it answers. For link*.c alone. */
#ifndef FP9_DUCK_LINK_STATE_H
#define FP9_DUCK_LINK_STATE_H

#include "daemon/duck/fill.h"
#include "daemon/duck/link.h"
#include "daemon/duck/packer.h"
#include "daemon/duck/session.h"
#include "daemon/duck/steps.h"
#include "daemon/duck/verify.h"

#define DROPS_WAITING_MAX 64

struct link {
    struct link_facts facts;
    struct wbuf *wbuf; /* borrowed */
    struct exec *exec; /* borrowed */
    struct buf *out;   /* borrowed */
    struct channel *channel; /* borrowed; NULL: none, or the head does not know it */
    int bell_fd;             /* borrowed */
    bool greeted;
    bool counts;        /* the head takes counted STEP_DONEs */
    bool one_shots;     /* the head takes one_shot STEP_DONEs */
    bool buffer;        /* the head takes REVOKED and ROOM */
    bool listed;        /* SLOTS was sent */
    uint64_t room_told; /* wbuf_changes() of the last ROOM */
    char peer[2 * WIRE_NAME_MAX + 128];
    uint32_t heartbeat_s;
    bool tells_taken;      /* the head takes PREPARE_TAKEN */
    struct fills *fills;   /* owned */
    struct packer *packer; /* owned; has what the fills handed out */
    uint64_t pack_bytes;   /* of frames that it has */
    struct sessions sessions;
    struct steps steps;
    struct running {
        struct step *step; /* posted to exec; owned */
        uint32_t slot;
        enum msg_dtype dtype;
    } running[EXEC_PLACES];
    /* DROPs whose memory a running step still reads, or the system does not have back yet. */
    struct {
        uint64_t request, freed;
    } drops[DROPS_WAITING_MAX];
    size_t drop_count;
    struct verify *verify; /* owned; posted slots are pinned */
};

/* What an encoder returned. Its failure (out of memory) ends the link: an answer that is not sent would be waited for in vain. */
int link_sent(int r, struct err *err);
/* Answers a refused request; the link goes on. */
int link_fail(struct link *link, uint64_t request, const struct err *why, struct err *err);
/* link_buffer.c. REVOKED, after HELLO_DUCK. */
int link_buffer_say(struct link *link, struct err *err);
int link_buffer_stamp(struct link *link, const struct frame *frame, struct err *err);
int link_buffer_revoke(struct link *link, const struct frame *frame, struct err *err);
/* ROOM, when the free ranges are not those of the last one. */
int link_tell_room(struct link *link, struct err *err);
/* When the system has all dropped memory back. */
int link_answer_drops(struct link *link, struct err *err);

/* link_prepare.c: frames of loads, as link_frame has them. */
int link_prepare_begin(struct link *link, const struct frame *frame, struct err *err);
int link_prepare_data(struct link *link, const struct frame *frame, struct err *err);
int link_prepare_staged(struct link *link, const struct frame *frame, struct err *err);
int link_prepare_sources(struct link *link, const struct frame *frame, struct err *err);
int link_prepare_end(struct link *link, const struct frame *frame, struct err *err);
int link_prepare_abort(struct link *link, const struct frame *frame, struct err *err);

/* link_step.c: frames of sessions and steps, as link_frame has them. */
int link_step_session_open(struct link *link, const struct frame *frame, struct err *err);
int link_step_session_close(struct link *link, const struct frame *frame, struct err *err);
int link_step_cancel(struct link *link, const struct frame *frame, struct err *err);
int link_step_take(struct link *link, const struct frame *frame, struct err *err);

#endif
