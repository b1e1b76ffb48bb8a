/* PURE. Why a load is a hit, partial or a miss, in words that name what has changed. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/head/core_parts.h"
#include "proto/base/size.h"

#define REASON_LOSSES_MAX 3 /* named; the rest is counted */

struct words {
    char *text;
    size_t length;
};

__attribute__((format(printf, 3, 4))) static void say(struct words *words, const char *between, const char *format, ...)
{
    size_t room = CORE_REASON_MAX - words->length;
    int n = words->length ? snprintf(words->text + words->length, room, "%s", between) : 0;
    words->length += (size_t)n < room ? (size_t)n : room - 1;
    room = CORE_REASON_MAX - words->length;
    va_list args;
    va_start(args, format);
    n = vsnprintf(words->text + words->length, room, format, args);
    va_end(args);
    words->length += (size_t)n < room ? (size_t)n : room - 1;
}

/* The plan it was ready by, against this one. */
static void say_plan(struct words *words, const struct core_model *model, const struct core_model *next)
{
    const struct core_was *was = &model->was;
    const struct plan *plan = next->plan;
    if (!was->known)
        return;
    if (was->layout != LAYOUT_VERSION)
        say(words, ", ", "layout %u -> %d", was->layout, LAYOUT_VERSION);
    if (was->tp != plan->tp)
        say(words, ", ", "tp %u -> %u", was->tp, plan->tp);
    if (was->multiple_of != plan->multiple_of)
        say(words, ", ", "multiple_of %u -> %u", was->multiple_of, plan->multiple_of);
    if (was->mtp != next->arch->mtp)
        say(words, ", ", "MTP layers %s", next->arch->mtp ? "added" : "left out");
    char before[PLAN_STRATEGY_TEXT], after[PLAN_STRATEGY_TEXT];
    if (!plan_strategy_same(was->strategy, plan->strategy))
        say(words, ", ", "strategy %s -> %s", plan_strategy_name(was->strategy, before), plan_strategy_name(plan->strategy, after));
}

static const struct core_loss *loss_of(const struct core *core, const struct core_model *model, const struct core_model *next,
                                       const struct core_missing *missing)
{
    uint32_t duck = next->duck_of_rank[missing->rank];
    const struct core_loss *here = core_loss_find(core, next->key, duck, missing->layer);
    /* A load that was cut left its slots under another key than the one that is known now. */
    const struct core_loss *before = model->plan ? core_loss_find(core, model->key, duck, missing->layer) : NULL;
    const struct core_loss *was = model->was.known ? core_loss_find(core, model->was.key, duck, missing->layer) : NULL;
    const struct core_loss *found = here;
    if (before && (!found || before->number > found->number))
        found = before;
    if (was && (!found || was->number > found->number))
        found = was;
    return found;
}

static void say_losses(struct words *words, const struct core *core, const struct core_model *model, const struct core_model *next,
                       const struct core_job *job)
{
    const struct core_loss *losses[REASON_LOSSES_MAX];
    size_t counts[REASON_LOSSES_MAX] = {0}, named = 0, more = 0;
    for (size_t i = 0; i < job->missing_count; i++) {
        const struct core_loss *loss = loss_of(core, model, next, &job->missing[i]);
        size_t at = 0;
        while (loss && at < named && strcmp(losses[at]->text, loss->text) != 0)
            at++;
        if (!loss)
            continue;
        if (at == REASON_LOSSES_MAX) {
            more++;
            continue;
        }
        if (at == named)
            losses[named++] = loss;
        counts[at]++;
    }
    for (size_t i = 0; i < named; i++)
        say(words, "; ", "%s (%zu slot%s)", losses[i]->text, counts[i], counts[i] == 1 ? "" : "s");
    if (more)
        say(words, "; ", "%zu more for other reasons", more);
}

void core_reason(const struct core *core, const struct core_model *model, const struct core_model *next, const struct core_job *job,
                 const struct checkpoint *checkpoint, size_t total, char text[CORE_REASON_MAX])
{
    struct words words = {.text = text};
    text[0] = '\0';
    if (job->force) {
        say(&words, "", "prepared anew on request");
        return;
    }
    if (!job->missing_count) {
        char every[32];
        snprintf(every, sizeof every, "all %zu", total);
        bool part = job->layer != CORE_NONE || job->memory;
        say(&words, "", "%s slot%s%s%s finished under this key", total == 1 ? "the one" : every, size_plural(total),
            !part ? "" : total == 1 ? " that was asked for" : " that were asked for", total == 1 ? " is" : " are");
        return;
    }
    say_plan(&words, model, next);
    char shards[192];
    checkpoint_changed_shards(checkpoint, shards, sizeof shards);
    if (shards[0])
        say(&words, ", ", "weights changed: %s", shards);
    say_losses(&words, core, model, next, job);
    bool explained = words.length > 0;
    if (!explained && !model->was.known)
        say(&words, "", "%zu of %zu slot%s %s not on the ducks", job->missing_count, total, size_plural(total),
            job->missing_count == 1 ? "was" : "were");
    else if (!explained || job->missing_count < total)
        say(&words, "; ", "%zu of %zu slot%s %s missing", job->missing_count, total, size_plural(total),
            job->missing_count == 1 ? "was" : "were");
}
