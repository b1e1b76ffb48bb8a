#include "daemon/head/deadline.h"

#include "proto/base/clock.h"

/* The alarm stays as it is when its step ends in time: one for nothing now and then is cheaper than setting it with every step. */
static void arm(struct head *head, uint64_t now)
{
    uint64_t next = head->core->deadline_ns;
    if (!next || (head->alarm_ns && head->alarm_ns <= next))
        return;
    head->alarm_ns = next;
    loop_timer_set(head->alarm, next > now ? next - now : 0);
}

static void rang(void *user)
{
    struct head *head = user;
    uint64_t now = clock_now_ns();
    head->alarm_ns = 0;
    core_deadlines(head->core, now);
    act_run(head);
    arm(head, now);
}

int deadline_begin(struct head *head, struct err *err)
{
    return loop_timer_new(head->loop, rang, head, &head->alarm, err);
}

void deadline_set(struct head *head, uint64_t session, uint32_t lane, uint32_t ms)
{
    if (!ms)
        return;
    uint64_t now = clock_now_ns();
    core_step_deadline(head->core, now, session, lane, ms);
    arm(head, now);
}
