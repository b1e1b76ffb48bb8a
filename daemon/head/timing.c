#include "daemon/head/timing.h"

#include <stdlib.h>
#include <string.h>

struct timing *timing_new(void)
{
    return calloc(1, sizeof(struct timing));
}

void timing_free(struct timing *timing)
{
    if (!timing)
        return;
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++)
        free(timing->sessions[i]);
    for (uint32_t i = 0; i < CORE_DUCKS_MAX; i++)
        free(timing->ducks[i]);
    for (uint32_t i = 0; i < CORE_MODELS_MAX; i++)
        free(timing->models[i].layers);
    free(timing);
}

/* ---- room ---- */

void timing_duck_up(struct timing *timing, uint32_t duck)
{
    if (!timing->ducks[duck])
        timing->ducks[duck] = calloc(1, sizeof *timing->ducks[duck]);
}

void timing_model_gone(struct timing *timing, uint32_t model)
{
    struct timing_layers *layers = &timing->models[model];
    free(layers->layers);
    timing->layers -= layers->count;
    *layers = (struct timing_layers){0};
}

/* What was counted of another model, or of other weights, in the same place is of no more use. */
static bool open_layers(struct timing *timing, uint32_t index, const struct core_model *model)
{
    struct timing_layers *layers = &timing->models[index];
    if (layers->layers && memcmp(layers->key, model->key, DIGEST_SIZE) == 0)
        return true;
    timing_model_gone(timing, index);
    if (model->arch->layers > TIMING_LAYERS_MAX - timing->layers)
        return false;
    layers->layers = calloc(model->arch->layers, sizeof *layers->layers);
    if (!layers->layers)
        return false;
    layers->count = model->arch->layers;
    timing->layers += layers->count;
    memcpy(layers->key, model->key, DIGEST_SIZE);
    return true;
}

bool timing_session_open(struct timing *timing, const struct core *core, uint32_t place)
{
    const struct core_session *session = &core->sessions[place];
    free(timing->sessions[place]);
    struct timing_session *mine = timing->sessions[place] = calloc(1, sizeof *mine);
    if (mine) {
        mine->id = session->id;
        mine->model = session->model;
    }
    return open_layers(timing, session->model, &core->models[session->model]) && mine;
}

struct timing_session *timing_session_find(const struct timing *timing, uint64_t id)
{
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++)
        if (timing->sessions[i] && timing->sessions[i]->id == id)
            return timing->sessions[i];
    return NULL;
}

void timing_session_gone(struct timing *timing, uint64_t id)
{
    for (uint32_t i = 0; i < CORE_SESSIONS_MAX; i++) {
        if (!timing->sessions[i] || timing->sessions[i]->id != id)
            continue;
        free(timing->sessions[i]);
        timing->sessions[i] = NULL;
    }
}

/* ---- periods ---- */

/* Periods since the one that runs: 0, 1, or 2 for more. */
static uint32_t age_of(const struct timing_turn *turn, uint64_t now)
{
    uint64_t period = now / HISTOGRAM_PERIOD_NS, age = period > turn->period ? period - turn->period : 0;
    return age < 2 ? (uint32_t)age : 2;
}

/* Turns on to `now` the two periods, each of `size` bytes. */
static void turn_on(struct timing_turn *turn, void *periods, size_t size, uint64_t now)
{
    uint32_t age = age_of(turn, now);
    if (!age)
        return;
    if (age == 2)
        memset(periods, 0, 2 * size);
    turn->current ^= 1;
    memset((char *)periods + turn->current * size, 0, size);
    turn->period = now / HISTOGRAM_PERIOD_NS;
}

static void add_sums(struct timing_sums *to, const struct timing_sums *more)
{
    to->steps += more->steps;
    to->tokens += more->tokens;
    to->params += more->params;
    to->weight_bytes += more->weight_bytes;
    to->judge_wait_ns += more->judge_wait_ns;
    to->duck_max_ns += more->duck_max_ns;
    to->tiles += more->tiles;
    to->tile_tokens += more->tile_tokens;
}

struct timing_sums timing_recent(const struct timing_rolling *rolling, uint64_t now)
{
    struct timing_sums sums = {0};
    uint32_t age = age_of(&rolling->turn, now);
    if (age < 2)
        add_sums(&sums, &rolling->periods[rolling->turn.current]);
    if (age < 1)
        add_sums(&sums, &rolling->periods[rolling->turn.current ^ 1]);
    return sums;
}

uint64_t timing_late_recent(const struct timing_late *late, uint64_t now, uint64_t *ret_ns)
{
    uint64_t steps = 0, ns = 0;
    uint32_t age = age_of(&late->turn, now);
    for (uint32_t back = 0; back + age < 2; back++) {
        steps += late->periods[late->turn.current ^ back].steps;
        ns += late->periods[late->turn.current ^ back].ns;
    }
    *ret_ns = ns;
    return steps;
}

/* ---- adding ---- */

static void add_late(struct timing_late *late, uint64_t now, uint64_t ns)
{
    turn_on(&late->turn, late->periods, sizeof late->periods[0], now);
    late->steps++;
    late->ns += ns;
    late->periods[late->turn.current].steps++;
    late->periods[late->turn.current].ns += ns;
}

static struct timing_sums sums_of(const struct timing_step *step)
{
    return (struct timing_sums){
        .steps = 1,
        .tokens = step->tokens,
        .params = step->params,
        .weight_bytes = step->weight_bytes,
        .judge_wait_ns = step->judge_wait_ns,
        .duck_max_ns = step->duck_max_ns,
        .tiles = step->tiles,
        .tile_tokens = step->tile_tokens,
    };
}

static void add_set(struct timing_set *set, uint64_t now, const struct timing_step *step)
{
    struct timing_sums sums = sums_of(step);
    turn_on(&set->sums.turn, set->sums.periods, sizeof set->sums.periods[0], now);
    add_sums(&set->sums.total, &sums);
    add_sums(&set->sums.periods[set->sums.turn.current], &sums);
    /* The clocks of two machines may differ by a hair. */
    uint64_t gap = step->judge_wait_ns > step->duck_max_ns ? step->judge_wait_ns - step->duck_max_ns : 0;
    histogram_add(&set->words[TIMING_JUDGE_WAIT], now, step->judge_wait_ns);
    histogram_add(&set->words[TIMING_DUCK_MAX], now, step->duck_max_ns);
    histogram_add(&set->words[TIMING_JUDGE_GAP], now, gap);
    if (step->duck_max_ns)
        histogram_add(&set->words[TIMING_JUDGE_RATIO], now, (step->judge_wait_ns * 1000 + step->duck_max_ns / 2) / step->duck_max_ns);
}

void timing_answer(struct timing *timing, uint64_t now, uint32_t duck, enum timing_kind kind, uint64_t duck_time_ns)
{
    if (timing->ducks[duck])
        histogram_add(&timing->ducks[duck]->time[kind], now, duck_time_ns);
}

/* Takes the forward that is under way, if there is one. */
static uint32_t end_forward(struct timing_forward *forward, struct timing_forward *ret_forward)
{
    if (!forward->steps)
        return 0;
    *ret_forward = *forward;
    *forward = (struct timing_forward){0};
    return 1;
}

static uint32_t add_forward(struct timing_forward *forward, const struct timing_step *step, uint32_t last_layer,
                            struct timing_forward ret_forwards[2])
{
    uint32_t ended = 0;
    if (forward->kind != step->kind || step->layer <= forward->last_layer || step->tokens != forward->tokens)
        ended = end_forward(forward, &ret_forwards[0]);
    if (!forward->steps)
        *forward = (struct timing_forward){.kind = step->kind, .tokens = step->tokens, .first_layer = step->layer, .straggler = CORE_NONE};
    struct timing_sums sums = sums_of(step);
    forward->steps++;
    forward->last_layer = step->layer;
    add_sums(&forward->sums, &sums);
    if (step->straggler != CORE_NONE && (forward->straggler == CORE_NONE || step->straggler_ns > forward->straggler_ns)) {
        forward->straggler = step->straggler;
        forward->straggler_ns = step->straggler_ns;
    }
    if (step->layer >= last_layer)
        ended += end_forward(forward, &ret_forwards[ended]);
    return ended;
}

uint32_t timing_step(struct timing *timing, uint64_t now, uint32_t place, uint32_t last_layer, const struct timing_step *step,
                     struct timing_forward ret_forwards[2])
{
    add_set(&timing->kinds[step->kind], now, step);
    struct timing_duck *straggler = step->straggler == CORE_NONE ? NULL : timing->ducks[step->straggler];
    if (straggler)
        add_late(&straggler->late, now, step->straggler_ns);
    struct timing_session *session = timing->sessions[place];
    if (!session)
        return 0;
    add_set(&session->kinds[step->kind], now, step);
    if (straggler)
        add_late(&session->late[step->straggler], now, step->straggler_ns);
    const struct timing_layers *layers = &timing->models[session->model];
    if (step->layer < layers->count)
        add_set(&layers->layers[step->layer][step->kind], now, step);
    return add_forward(&session->forwards[step->lane], step, last_layer, ret_forwards);
}

struct timing_straggler timing_straggler(const struct timing *timing, const struct timing_session *session, uint64_t now)
{
    struct timing_straggler worst = {.duck = CORE_NONE};
    uint64_t most = 0, all = 0;
    for (uint32_t duck = 0; duck < CORE_DUCKS_MAX; duck++) {
        const struct timing_late *late = session ? &session->late[duck] : timing->ducks[duck] ? &timing->ducks[duck]->late : NULL;
        uint64_t ns, steps = late ? timing_late_recent(late, now, &ns) : 0;
        all += steps;
        if (steps <= most)
            continue;
        most = steps;
        worst.duck = duck;
        worst.late_us = (double)ns / (double)steps / 1e3;
    }
    if (most)
        worst.share = (double)most / (double)all;
    return worst;
}
