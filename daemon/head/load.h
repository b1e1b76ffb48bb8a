/* Loading: opens and checks a checkpoint (disk worker), then streams the missing slots to their ducks (bulk worker). */
#ifndef FP9_HEAD_LOAD_H
#define FP9_HEAD_LOAD_H

#include "daemon/head/head.h"

/* The weights of a job of core_prepare_memory, before its actions are run. Takes fd. */
void load_memory(struct head *head, uint64_t job, int fd);
/* CORE_ACT_OPEN: ends in core_load_opened or core_load_open_failed. */
void load_open(struct head *head, uint64_t job);
/* CORE_ACT_DIGEST: ends in core_load_digested. */
void load_digest(struct head *head, uint64_t job);
/* CORE_ACT_REKEY: sends a duck the job's rekeys that concern it. */
void load_send_rekeys(struct head *head, uint32_t duck, uint64_t job);
/* CORE_ACT_STREAM: ends in core_stream_ended. The checkpoint is the one that load_open left open. */
void load_stream(struct head *head, uint64_t job);
/* CORE_ACT_STREAM_CANCEL */
void load_cancel(struct head *head, uint64_t job);
/* A job is over and never streams: what load_open left is freed. */
void load_forget(struct head *head, uint64_t job);
/* A few times a second: tells the core how far each stream is. */
void load_tick(struct head *head);
/* At the end, when the workers have stopped. */
void load_free_all(struct head *head);

#endif
