/* The link between fp9d (the head) and one duck.
 *
 * Conversation
 *
 *   head                                   duck
 *   HELLO                          ->                       once, first, before anything else
 *                                  <-      HELLO_DUCK       the duck's versions, boot id, capacity
 *                                          (or FAIL when the major versions differ; both close)
 *   REVOKE, STAMP                  ->  ...                  keys that are dead, as fp9d knows them: applied before SLOTS is answered
 *                                  <-      REVOKED          the keys that are dead, as this duck knows them
 *   SLOTS_GET                      ->
 *                                  <-      SLOTS            what the weight buffer's header holds
 *
 *   PREPARE_BEGIN  (request r)     ->                       one slot: geometry of one layer on this rank
 *   PREPARE_DATA   (request r)     ->  ...                  rows of one matrix of one expert, any order
 *                                  <-      PREPARE_TAKEN (r)  so many bytes of PREPARE_DATA are converted or thrown away: fp9d keeps a
 *                                          window of what is not, so that a duck can read on and steps never wait behind weights
 *   PREPARE_STAGED (request r)     ->  ...                  the same of rows that lie in the stage, memory that fp9d shares with a local
 *                                                           duck (msg_staged.h)
 *                                  <-      STAGED_TAKEN (r)  they are read no more, as each frame's ticket tells
 *   PREPARE_SOURCES (request r)    ->                       the digest of what the rows came from, any time before END
 *   PREPARE_END    (request r)     ->
 *                                  <-      SLOT_DONE (r)    finish flag is set, checksum
 *                                          or FAIL (r) at any point: the slot is dropped, later frames of r are ignored
 *   PREPARE_ABORT  (request r)     ->                       the slot is dropped; no answer
 *   DROP           (request r)     ->
 *                                  <-      DROPPED (r)
 *
 *   REKEY          (request r)     ->                       a finished slot goes under another model key, its bytes stay
 *                                  <-      SLOT_DONE (r) or FAIL (r)
 *   VERIFY         (request r)     ->                       one slot's checksums computed again, beside running steps
 *                                  <-      VERIFIED (r)     a bad slot is finished no more
 *
 *   STAMP                          ->                       fp9d's time, before PREPARE_BEGIN and REKEY: their slots carry it
 *   REVOKE                         ->                       after SLOTS: remembered only; what is to be freed here a DROP tells
 *                                  <-      ROOM             the free ranges of the weight buffer, after SLOTS and whenever they change
 *
 *   SESSION_OPEN   (request r)     ->
 *                                  <-      SESSION_OPENED (r) or FAIL (r)
 *   STEP           (request r)     ->                       several may be in flight; one of few tokens overtakes batch work
 *                                  <-      STEP_DONE (r) or FAIL (r)
 *   STEP_CANCEL    (request r)     ->                       nobody waits for STEP r any more: it is dropped, or stops within a tile, and
 *                                                           its answer is FAIL CANCELLED. No answer of its own: a step that is not there,
 *                                                           since it was answered or has not been seen yet, is none to cancel
 *   SESSION_CLOSE  (request r)     ->                       its steps end as by STEP_CANCEL
 *                                  <-      SESSION_CLOSED (r)
 *
 *   PING (r)                       ->                       answered while kernels run
 *                                  <-      PONG (r)
 *
 * Frame: 24 bytes little-endian, then `length` bytes of payload
 *   u32 magic  u16 type  u16 zero  u32 length  u32 zero  u64 request
 * Integers and floats are little-endian; strings are u16 length + bytes. Every size has a limit here, checked before
 * memory is taken for it. Decoders give views into the payload, never assert, and refuse left-over bytes.
 * A peer of another major version is refused; a minor version only adds frame types and features that are used when both have them.
 */
#ifndef FP9_WIRE_WIRE_H
#define FP9_WIRE_WIRE_H

#include <stdint.h>

#define WIRE_MAGIC UINT32_C(0x6b397066) /* "fp9k" */
#define WIRE_VERSION_MAJOR 1
/* 1: WIRE_FEATURE_BATCH; 2: WIRE_FEATURE_CACHE; 3: WIRE_FEATURE_COUNTS; 4: WIRE_FEATURE_TAKEN, _BUFFER; 5: the heartbeat in HELLO;
 * 6: WIRE_FEATURE_ONE_SHOT, _STAGE; 7: WIRE_FEATURE_CHANNEL; 8: WIRE_FEATURE_CANCEL, _EXPERTS */
#define WIRE_VERSION_MINOR 8
#define WIRE_FRAME_HEADER 24

/* Bits of `features` in HELLO and HELLO_DUCK; unknown ones are ignored. */
#define WIRE_FEATURE_BATCH (UINT64_C(1) << 0)  /* the duck takes STEPs with `batch` set */
#define WIRE_FEATURE_CACHE (UINT64_C(1) << 1)  /* the duck takes PREPARE_SOURCES, REKEY and VERIFY; fp9d refuses one that does not */
#define WIRE_FEATURE_COUNTS (UINT64_C(1) << 2) /* fp9d takes STEP_DONEs with `counted` set */
#define WIRE_FEATURE_TAKEN (UINT64_C(1) << 3)  /* fp9d takes PREPARE_TAKEN, the duck sends it */
#define WIRE_FEATURE_BUFFER (UINT64_C(1) << 4) /* STAMP, REVOKE, REVOKED, ROOM */
#define WIRE_FEATURE_ONE_SHOT (UINT64_C(1) << 5) /* fp9d takes STEP_DONEs with `one_shot` set */
#define WIRE_FEATURE_CHANNEL (UINT64_C(1) << 6) /* both take STEP and STEP_DONE through shared memory, too: channel.h; local ducks only */
#define WIRE_FEATURE_STAGE (UINT64_C(1) << 8) /* the duck has the stage and takes PREPARE_STAGED */
#define WIRE_FEATURE_CANCEL (UINT64_C(1) << 9) /* the duck takes STEP_CANCEL */
#define WIRE_FEATURE_EXPERTS (UINT64_C(1) << 10) /* the duck takes slots of some of a layer's experts, and steps that ask for others too */
/* The highest 16 bits of a HELLO's features: seconds between the head's PINGs, 0 when it does not say. There, since an older duck ignores
 * them. A duck that is a service gives up a head from which nothing comes for several of them. */
#define WIRE_HEARTBEAT_SHIFT 48
#define WIRE_HEARTBEAT_MAX_S 3600

enum wire_type {
    WIRE_HELLO = 1,
    WIRE_HELLO_DUCK = 2,
    WIRE_FAIL = 3,
    WIRE_PING = 4,
    WIRE_PONG = 5,
    WIRE_SLOTS_GET = 6,
    WIRE_SLOTS = 7,
    WIRE_PREPARE_BEGIN = 16,
    WIRE_PREPARE_DATA = 17,
    WIRE_PREPARE_END = 18,
    WIRE_PREPARE_ABORT = 19,
    WIRE_SLOT_DONE = 20,
    WIRE_DROP = 21,
    WIRE_DROPPED = 22,
    WIRE_PREPARE_SOURCES = 23,
    WIRE_REKEY = 24,
    WIRE_VERIFY = 25,
    WIRE_VERIFIED = 26,
    WIRE_PREPARE_TAKEN = 27,
    WIRE_STAMP = 28,
    WIRE_REVOKE = 29,
    WIRE_REVOKED = 30,
    WIRE_ROOM = 31,
    WIRE_SESSION_OPEN = 32,
    WIRE_SESSION_OPENED = 33,
    WIRE_SESSION_CLOSE = 34,
    WIRE_SESSION_CLOSED = 35,
    WIRE_STEP = 36,
    WIRE_STEP_DONE = 37,
    WIRE_STEP_CANCEL = 38,
    WIRE_PREPARE_STAGED = 48,
    WIRE_STAGED_TAKEN = 49,
};

/* Limits on what a peer may ask for. */
#define WIRE_SMALL_PAYLOAD_MAX (64u * 1024)         /* every type not named below */
#define WIRE_PREPARE_PAYLOAD_MAX (8u * 1024 * 1024) /* PREPARE_DATA, PREPARE_STAGED */
/* Frames of PREPARE_DATA, headers counted, that fp9d sends ahead of PREPARE_TAKEN. */
#define WIRE_PREPARE_WINDOW (8u * 1024 * 1024)
#define WIRE_STEP_PAYLOAD_MAX (256u * 1024 * 1024) /* STEP, STEP_DONE */
#define WIRE_SLOTS_PAYLOAD_MAX (4u * 1024 * 1024)  /* SLOTS */
#define WIRE_SLOTS_MAX 16384
#define WIRE_SESSIONS_MAX 64 /* open on one link */
#define WIRE_NAME_MAX 64
#define WIRE_STEP_TOKENS_MAX 4096 /* fp9d cuts longer prefills into chunks */
#define WIRE_TOP_K_MAX 64
#define WIRE_HIDDEN_MAX 65536
#define WIRE_EXPERTS_MAX 4096

#endif
