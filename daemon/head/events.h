/* events.subscribe: what happens to the fleet, told to whoever wants to hear. A subscriber that does not read loses events and is told how
 * many when it reads again; fp9d never waits for one. Loop thread, except where it says otherwise. */
#ifndef FP9_HEAD_EVENTS_H
#define FP9_HEAD_EVENTS_H

#include "daemon/head/rpc.h"

#define EVENTS_UNREAD_MAX 65536 /* bytes that a subscriber may leave unread before it loses events */

struct events;

struct events *events_new(void); /* aborts when out of memory */
void events_free(struct events *events);

/* What an earlier life knew of is no news. After the database was read. */
void events_begin(struct head *head);
/* The handler of events.subscribe. */
int events_subscribe(const struct call *call, json_t **ret_result, struct err *err);
void events_client_gone(struct head *head, uint64_t client);

/* Ducks, models and the fleet's state are compared with what was told last. */
void events_look(struct head *head);
void events_tick(struct head *head, uint64_t now);
void events_job(struct head *head, const struct core_job *job, bool starts); /* a job was made, starts, or is over */
void events_losses(struct head *head);                                       /* slots have got lost */
void events_revoked(struct head *head, const struct core_drop *drop);

#endif
