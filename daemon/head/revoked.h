/* Revoked keys as the fleet remembers them: in the ducks' headers, beside fp9d's database. Loop thread only. */
#ifndef FP9_HEAD_REVOKED_H
#define FP9_HEAD_REVOKED_H

#include "daemon/head/head.h"

struct revoked *revoked_new(void); /* aborts when out of memory */
void revoked_free(struct revoked *revoked);

/* CORE_ACT_REVOKE: every duck that is there notes that the drop's key is dead from now on. */
void revoked_drop(struct head *head, const struct core_drop *drop);
/* A duck has said HELLO_DUCK: it is told all that is known, before it lists its slots. */
void revoked_greet(struct head *head, uint32_t duck, const struct msg_hello_duck *hello);
/* It is up: what came since it was greeted goes to it, too, and when that is about slots that it has just listed it is linked anew. */
void revoked_up(struct head *head, uint32_t duck);
/* REVOKED. What is new goes to all others; one that may hold such a slot is linked anew, so that its list is right. */
int revoked_learn(struct head *head, uint32_t duck, const struct frame *frame, struct err *err);
/* Slots that a duck begins, or puts under another key, after this are later than every key that was revoked before. */
void revoked_send_stamp(struct head *head, uint32_t duck);

#endif
