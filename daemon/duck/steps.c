#include "daemon/duck/steps.h"

#include <errno.h>
#include <string.h>

#include "proto/base/size.h"

struct sizes {
    size_t x, ids, partial; /* each a multiple of 64 */
    size_t all;
};

/* Every factor is under its wire limit, so nothing overflows. */
static struct sizes sizes_of(uint32_t tokens, uint32_t hidden, uint32_t top_k)
{
    struct sizes s = {
        .x = size_round_up((size_t)tokens * hidden * 2, 64),
        .ids = size_round_up((size_t)tokens * top_k * 4, 64),
        .partial = size_round_up((size_t)tokens * hidden * 4, 64),
    };
    s.all = s.x + 2 * s.ids + s.partial;
    return s;
}

static void step_free(struct steps *steps, struct step *step)
{
    steps->bytes -= step->room;
    free(step->memory);
    free(step);
}

static void free_idle(struct steps *steps)
{
    while (steps->idle) {
        struct step *step = steps->idle;
        steps->idle = step->next;
        step_free(steps, step);
    }
}

/* An idle step with room for `bytes`, or a new one. */
static int take(struct steps *steps, size_t bytes, struct step **ret_step, struct err *err)
{
    for (struct step **at = &steps->idle; *at; at = &(*at)->next) {
        struct step *step = *at;
        if (step->room < bytes)
            continue;
        *at = step->next;
        step->next = NULL;
        *ret_step = step;
        return 0;
    }
    if (bytes > STEPS_BYTES_MAX - steps->bytes)
        free_idle(steps);
    if (bytes > STEPS_BYTES_MAX - steps->bytes)
        return err_set(err, -EBUSY, ERR_BUSY, "waiting steps hold %llu bytes, with %zu more they would pass %llu",
                       (unsigned long long)steps->bytes, bytes, (unsigned long long)STEPS_BYTES_MAX);
    _cleanup_(freep) struct step *step = calloc(1, sizeof *step);
    uint8_t *memory = aligned_alloc(64, bytes ? bytes : 64);
    if (!step || !memory) {
        free(memory);
        return err_no_memory(err, "step", bytes);
    }
    step->memory = memory;
    step->room = bytes;
    steps->bytes += bytes;
    *ret_step = STEAL(step);
    return 0;
}

static void put_idle(struct steps *steps, struct step *step)
{
    step->next = steps->idle;
    steps->idle = step;
}

int steps_reserve(struct steps *steps, uint32_t tokens, uint32_t hidden, uint32_t top_k, struct err *err)
{
    struct step *step;
    int r = take(steps, sizes_of(tokens, hidden, top_k).all, &step, err);
    if (r == 0)
        put_idle(steps, step);
    return r;
}

static bool was_served(const struct step_queue *queue, uint64_t session)
{
    for (uint32_t i = 0; i < queue->served_count; i++)
        if (queue->served[i] == session)
            return true;
    return false;
}

/* In the round that is being served, unless its session has had its turn in that; after those of its session that wait. */
static void enqueue(struct step_queue *queue, struct step *step)
{
    struct step **at = &queue->first;
    step->round = queue->round + was_served(queue, step->words.session);
    for (const struct step *other = queue->first; other; other = other->next)
        if (other->words.session == step->words.session)
            step->round = other->round + 1;
    while (*at && (*at)->round <= step->round)
        at = &(*at)->next;
    step->next = *at;
    *at = step;
}

int steps_push(struct steps *steps, uint64_t request, const struct msg_step *words, struct err *err)
{
    if (steps->count >= STEPS_MAX)
        return err_set(err, -EBUSY, ERR_BUSY, "%u steps are waiting, no more are allowed", steps->count);
    struct sizes s = sizes_of(words->tokens, words->hidden, words->top_k);
    struct step *step;
    int r = take(steps, s.all, &step, err);
    if (r < 0)
        return r;
    uint8_t *x = step->memory, *ids = x + s.x, *weights = ids + s.ids;
    size_t values = (size_t)words->tokens * words->hidden, slots = (size_t)words->tokens * words->top_k;
    if (values)
        memcpy(x, words->x, values * 2);
    if (slots) {
        memcpy(ids, words->ids, slots * 4);
        memcpy(weights, words->weights, slots * 4);
    }
    step->request = request;
    step->words = *words;
    step->words.x = x;
    step->words.ids = step->ids = ids;
    step->words.weights = weights;
    step->partial = weights + s.ids;
    step->batch = words->batch || words->tokens > STEPS_INTERACTIVE_TOKENS;
    enqueue(&steps->waiting[step->batch], step);
    steps->count++;
    return 0;
}

struct step *steps_pop(struct steps *steps, bool batch)
{
    struct step_queue *queue = &steps->waiting[batch];
    struct step *step = queue->first;
    if (!step)
        return NULL;
    queue->first = step->next;
    if (step->round != queue->round)
        queue->served_count = 0;
    queue->round = step->round;
    if (queue->served_count < WIRE_SESSIONS_MAX) /* more only when sessions were closed and opened within a round */
        queue->served[queue->served_count++] = step->words.session;
    step->next = NULL;
    return step;
}

struct step *steps_withdraw(struct steps *steps, uint64_t request, uint64_t session)
{
    for (int batch = 0; batch < 2; batch++) {
        for (struct step **at = &steps->waiting[batch].first; *at; at = &(*at)->next) {
            struct step *step = *at;
            if (request ? step->request != request : step->words.session != session)
                continue;
            *at = step->next;
            step->next = NULL;
            return step;
        }
    }
    return NULL;
}

void steps_done(struct steps *steps, struct step *step)
{
    steps->count--;
    put_idle(steps, step);
}

void steps_release(struct steps *steps)
{
    struct step *step;
    while ((step = steps_pop(steps, false)) || (step = steps_pop(steps, true)))
        steps_done(steps, step);
    free_idle(steps);
    *steps = (struct steps){0};
}
