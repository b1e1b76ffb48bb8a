#include "daemon/head/remember.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/head/db.h"
#include "daemon/head/waiters.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

#define REMEMBER_AGAIN (2 * CLOCK_NS_PER_S)

struct remember {
    struct remember *next;
    struct head *head;
    bool forget;
    struct db_model model;
    bool running;    /* with the disk worker */
    bool superseded; /* a later word on the same model is on its way */
    unsigned failures;
    int result;
    struct err err;            /* the disk worker's while running */
    char why[ERR_MESSAGE_MAX]; /* the last attempt failed */
    uint64_t again_ns;
};

/* Disk worker. Only the first failure is worth a line. */
static void run(void *user)
{
    struct remember *task = user;
    struct err err = {0};
    task->result =
        task->forget ? db_forget_model(task->head->db, task->model.name, &err) : db_save_model(task->head->db, &task->model, &err);
    task->err = err;
    if (task->result < 0 && !task->failures)
        log_error("db", "model %s is not %s: %s; this is tried again", task->model.name, task->forget ? "forgotten" : "remembered",
                  err.message);
    else if (task->result == 0 && task->failures)
        log_info("db", "model %s is %s now", task->model.name, task->forget ? "forgotten" : "remembered");
}

static void remove_task(struct remember *task)
{
    struct remember **at = &task->head->remembered;
    while (*at != task)
        at = &(*at)->next;
    *at = task->next;
    free(task);
}

static void tell_waiters(struct head *head, const char *name)
{
    for (uint32_t i = 0; i < CORE_JOBS_MAX; i++) {
        const struct core_job *job = &head->core->jobs[i];
        if (job->used && job->state == CORE_JOB_DONE && strcmp(job->model_name, name) == 0)
            waiters_job_changed(head, job);
    }
}

static void done(void *user)
{
    struct remember *task = user;
    struct head *head = task->head;
    char name[sizeof task->model.name];
    memcpy(name, task->model.name, sizeof name);
    task->running = false;
    snprintf(task->why, sizeof task->why, "%s", task->err.message);
    task->failures++;
    task->again_ns = clock_now_ns() + REMEMBER_AGAIN;
    if (task->result == 0 || task->superseded)
        remove_task(task);
    if (!remember_pending(head, name))
        tell_waiters(head, name);
}

static void submit(struct remember *task)
{
    task->running = true;
    worker_submit(task->head->disk, run, done, task);
}

/* As it is, or as it was if this fp9d has not planned it. */
static void fill(struct db_model *to, const struct core_model *model)
{
    const struct core_was *was = &model->was;
    to->tp = model->plan ? model->plan->tp : was->tp;
    to->multiple_of = model->plan ? model->plan->multiple_of : was->multiple_of;
    to->mtp = model->plan ? model->arch->mtp : was->mtp;
    to->layout = model->plan ? LAYOUT_VERSION : was->layout;
    plan_strategy_name(model->plan ? model->plan->strategy : was->strategy, to->strategy);
    digest_hex(model->plan ? model->key : was->key, to->model_key);
}

void remember_model(struct head *head, const struct core_model *model, bool forget)
{
    unsigned failures = 0; /* it is known already that nothing can be written */
    for (struct remember *old = head->remembered, *next; old; old = next) {
        next = old->next;
        if (strcmp(old->model.name, model->name) != 0)
            continue;
        old->superseded = true;
        failures = old->failures > failures ? old->failures : failures;
        if (!old->running)
            remove_task(old);
    }
    struct remember *task = calloc(1, sizeof *task);
    if (!task)
        abort();
    *task = (struct remember){.next = head->remembered, .head = head, .forget = forget, .failures = failures};
    memcpy(task->model.name, model->name, sizeof task->model.name);
    if (!forget) {
        memcpy(task->model.path, model->path, sizeof task->model.path);
        memcpy(task->model.unloaded, model->unloaded, sizeof task->model.unloaded);
        fill(&task->model, model);
    }
    head->remembered = task;
    submit(task);
}

bool remember_pending(const struct head *head, const char *model)
{
    for (const struct remember *task = head->remembered; task; task = task->next)
        if (task->running && !task->failures && strcmp(task->model.name, model) == 0)
            return true;
    return false;
}

const char *remember_failing(const struct head *head, const char *model)
{
    for (const struct remember *task = head->remembered; task; task = task->next)
        if (task->why[0] && (!model || strcmp(task->model.name, model) == 0))
            return task->why;
    return NULL;
}

void remember_tick(struct head *head, uint64_t now)
{
    for (struct remember *task = head->remembered; task && !head->stopping; task = task->next)
        if (!task->running && now >= task->again_ns)
            submit(task);
}

void remember_free_all(struct head *head)
{
    while (head->remembered) {
        struct remember *next = head->remembered->next;
        free(head->remembered);
        head->remembered = next;
    }
}
