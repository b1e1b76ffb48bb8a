#include "daemon/head/load_state.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

/* Disk worker. */
static void again_run(void *user)
{
    struct load *load = user;
    uint8_t now[DIGEST_SIZE];
    load->whole = true;
    load_files_open(load);
    arch_free(STEAL(load->arch)); /* the core has one */
    if (load->err.code)
        return;
    checkpoint_identity(load->checkpoint, now);
    if (memcmp(now, load->identity, DIGEST_SIZE) != 0)
        err_set(&load->err, -ESTALE, ERR_BAD_CHECKPOINT,
                "%s changed while it was in use: it was written or replaced while its load waited for another", load->path);
}

static void again_done(void *user)
{
    struct load *load = user;
    load->rests = false;
    if (load->err.code)
        load->done(load);
    else
        worker_submit(load->head->bulk, load->run, load->done, load);
}

void load_turn_next(struct head *head)
{
    struct load *next = NULL;
    for (struct load *load = head->loads; load; load = load->next) {
        if (load->turn)
            return;
        if (load->waits && (!next || load->number < next->number))
            next = load;
    }
    if (!next)
        return;
    next->waits = false;
    next->turn = true;
    if (next->rests)
        worker_submit(head->disk, again_run, again_done, next);
    else
        worker_submit(head->bulk, next->run, next->done, next);
}

void load_turn_rest(struct load *load)
{
    if (!load->waits || load->rests || load->saving)
        return;
    checkpoint_identity(load->checkpoint, load->identity);
    checkpoint_free(load->checkpoint);
    load->checkpoint = NULL;
    load->rests = true;
}

void load_turn_ask(struct load *load, loop_fn run, loop_fn done)
{
    load->run = run;
    load->done = done;
    if (load->turn) {
        worker_submit(load->head->bulk, run, done, load);
        return;
    }
    load->waits = true;
    load->number = ++load->head->load_turns;
    load_turn_next(load->head);
    load_turn_rest(load);
}

void load_turn_cancel(struct load *load)
{
    if (!load->waits)
        return;
    load->waits = load->rests = false;
    err_set(&load->err, -ECANCELED, ERR_CANCELLED, "load was cancelled");
    loop_post(load->head->loop, load->done, load); /* not at once: the core is in the middle of something */
}

void load_turn_end(struct load *load)
{
    load->turn = false;
    load_turn_next(load->head);
}
