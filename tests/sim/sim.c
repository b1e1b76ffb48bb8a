#include "tests/sim/sim.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char trained_dir[] = FP9_TEST_DATA "/shakespeare-moe-fp8";

static void duck_came_up(struct sim *sim, uint32_t index)
{
    struct sim_duck *duck = &sim->ducks[index];
    if (duck->refuses_start) {
        duck->running = false;
        core_duck_lost(sim->core, sim->now, index, "its process exited with status 1");
        return;
    }
    struct msg_hello_duck hello = {.major = 1,
                                   .software = "sim",
                                   .isa = "ref",
                                   .cores = 1,
                                   .features = WIRE_FEATURE_CANCEL | (duck->old ? 0 : WIRE_FEATURE_EXPERTS),
                                   .capacity_bytes = duck->capacity};
    snprintf(hello.name, sizeof hello.name, "local%u", index);
    snprintf(hello.boot_id, sizeof hello.boot_id, "boot-%u", duck->boots);
    core_duck_up(sim->core, sim->now, index, &hello, duck->slots, duck->slot_count);
}

/* ---- weights: nobody reads them here, their digests are made up from layer, place and salt ---- */

static struct checkpoint *open_files(struct sim *sim, struct arch **ret_arch)
{
    struct checkpoint *checkpoint = NULL;
    struct err err = {0};
    if (arch_read(trained_dir, ret_arch, &err) < 0 || checkpoint_open(trained_dir, *ret_arch, &checkpoint, &err) < 0)
        fail_msg("%s", err.message);
    assert_true(checkpoint_shard_count(checkpoint) <= SIM_SHARDS_MAX);
    for (uint32_t i = 0; i < checkpoint_shard_count(checkpoint); i++) {
        if (!sim->records[i].length)
            continue;
        if (sim->touched)
            sim->records[i].data[8] ^= 1; /* the device */
        assert_true(checkpoint_record_read(checkpoint, i, sim->records[i].data, sim->records[i].length));
    }
    sim->touched = false;
    return checkpoint;
}

static void digest_layer(const struct sim *sim, struct checkpoint *checkpoint, const struct arch *arch, uint32_t layer)
{
    bool moe = arch->layer_is_moe[layer];
    for (int expert = moe ? 0 : ARCH_EXPERT_DENSE; expert < (moe ? (int)arch->experts : 0); expert++) {
        for (enum kernels_matrix which = KERNELS_GATE; which <= KERNELS_DOWN; which++) {
            uint8_t digest[DIGEST_SIZE] = {(uint8_t)layer, (uint8_t)expert, (uint8_t)which,
                                           layer >= sim->salted_from ? (uint8_t)sim->salt : 0};
            checkpoint_digest_set(checkpoint, checkpoint_find(checkpoint, layer, expert, which), digest);
        }
    }
}

static void keep_records(struct sim *sim, const struct checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < checkpoint_shard_count(checkpoint); i++) {
        buf_release(&sim->records[i]);
        assert_int_equal(checkpoint_record_write(checkpoint, i, &sim->records[i]), 0);
    }
}

static void digest(struct sim *sim, uint64_t id)
{
    const struct core_job *job = core_job_find(sim->core, id);
    struct arch *arch = NULL;
    _cleanup_(checkpoint_freep) struct checkpoint *checkpoint = open_files(sim, &arch);
    for (uint32_t layer = 0; layer < arch->layers; layer++)
        if (job->digest[layer])
            digest_layer(sim, checkpoint, arch, layer);
    arch_free(arch);
    keep_records(sim, checkpoint);
    sim->digests++;
    core_load_digested(sim->core, sim->now, id, checkpoint, NULL);
}

/* The stream has read what it sent. */
static void stream_ended(struct sim *sim, uint64_t id, const struct err *err)
{
    const struct core_job *job = core_job_find(sim->core, id);
    struct arch *arch = NULL;
    _cleanup_(checkpoint_freep) struct checkpoint *checkpoint = open_files(sim, &arch);
    if (job->force)
        checkpoint_digests_forget(checkpoint);
    for (size_t i = 0; i < job->missing_count; i++)
        digest_layer(sim, checkpoint, arch, job->missing[i].layer);
    arch_free(arch);
    keep_records(sim, checkpoint);
    core_stream_ended(sim->core, sim->now, id, checkpoint, err);
}

static void rekey(struct sim *sim, uint32_t index, uint64_t id)
{
    const struct core_job *job = core_job_find(sim->core, id);
    const struct core_model *model = &sim->core->models[job->model];
    struct sim_duck *duck = &sim->ducks[index];
    for (size_t i = 0; i < job->rekey_count && !core_job_over(job); i++) {
        const struct core_rekey *rekey = &job->rekeys[i];
        if (rekey->done || model->duck_of_rank[rekey->rank] != index)
            continue;
        size_t from = duck->slot_count;
        for (size_t s = 0; s < duck->slot_count; s++)
            if (duck->slots[s].layer == rekey->layer && memcmp(duck->slots[s].model_key, rekey->from, DIGEST_SIZE) == 0)
                from = s;
        if (from == duck->slot_count) {
            struct err gone = {0};
            err_set(&gone, -ESTALE, ERR_CACHE_STALE, "layer %u has no finished slot here", rekey->layer);
            core_slot_failed(sim->core, sim->now, index, id, &gone);
            return;
        }
        for (size_t s = 0; s < duck->slot_count; s++) {
            if (duck->slots[s].layer != rekey->layer || memcmp(duck->slots[s].model_key, model->key, DIGEST_SIZE) != 0)
                continue;
            duck->slots[s] = duck->slots[from]; /* one of the two makes way */
            duck->slots[from] = duck->slots[--duck->slot_count];
            from = s;
            break;
        }
        assert_memory_equal(duck->slots[from].sources, rekey->sources, DIGEST_SIZE);
        memcpy(duck->slots[from].model_key, model->key, DIGEST_SIZE);
        sim->rekeys++;
        const struct msg_slot slot = duck->slots[from];
        core_slot_done(sim->core, sim->now, index, &slot);
    }
}

static void send_slot(struct sim *sim, const struct core_job *job, size_t i)
{
    const struct core_model *model = &sim->core->models[job->model];
    uint32_t rank = job->missing[i].rank, layer = job->missing[i].layer, index = model->duck_of_rank[rank];
    struct sim_duck *duck = &sim->ducks[index];
    if (!duck->running)
        return;
    bool moe = model->arch->layer_is_moe[layer];
    struct msg_slot slot = {
        .tp = model->plan->tp,
        .rank = rank,
        .multiple_of = model->plan->multiple_of,
        .layer = layer,
        .kind = moe ? MSG_SLOT_MOE : MSG_SLOT_DENSE,
        .state = MSG_SLOT_FINISHED,
        .bytes = moe ? model->plan->ranks[rank].moe_slot_bytes : model->plan->ranks[rank].dense_slot_bytes,
        .checksum = 1,
    };
    memcpy(slot.model_key, model->key, DIGEST_SIZE);
    struct arch *arch = NULL;
    _cleanup_(checkpoint_freep) struct checkpoint *checkpoint = open_files(sim, &arch);
    digest_layer(sim, checkpoint, arch, layer);
    checkpoint_layer_sources(checkpoint, layer, slot.sources);
    assert_int_equal(plan_slot_sources(model->arch, model->plan, layer, slot.sources), 0);
    arch_free(arch);
    size_t at = 0;
    while (at < duck->slot_count &&
           !(duck->slots[at].layer == layer && memcmp(duck->slots[at].model_key, slot.model_key, DIGEST_SIZE) == 0))
        at++;
    assert_true(at < SIM_SLOTS_MAX);
    duck->slots[at] = slot;
    if (at == duck->slot_count)
        duck->slot_count++;
    core_slot_done(sim->core, sim->now, index, &slot);
}

void sim_stream_slots(struct sim *sim, size_t count)
{
    const struct core_job *job = core_job_find(sim->core, sim->streaming);
    assert_non_null(job);
    for (size_t i = 0; i < job->missing_count && count; i++) {
        if (job->missing[i].done)
            continue;
        send_slot(sim, job, i);
        count--;
    }
    sim_run(sim, 0);
}

void sim_stream_end(struct sim *sim)
{
    uint64_t job = sim->streaming;
    sim->streaming = 0;
    stream_ended(sim, job, NULL);
    sim_run(sim, 0);
}

static void open_checkpoint(struct sim *sim, uint64_t job)
{
    struct arch *arch = NULL;
    _cleanup_(checkpoint_freep) struct checkpoint *checkpoint = open_files(sim, &arch);
    core_load_opened(sim->core, sim->now, job, arch, checkpoint);
}

static void drop_slots(struct sim *sim, uint32_t index, const struct core_drop *drop)
{
    struct sim_duck *duck = &sim->ducks[index];
    uint64_t freed = 0;
    size_t kept = 0;
    for (size_t i = 0; i < duck->slot_count; i++) {
        if (drop->all || memcmp(duck->slots[i].model_key, drop->key, DIGEST_SIZE) == 0)
            freed += duck->slots[i].bytes;
        else
            duck->slots[kept++] = duck->slots[i];
    }
    duck->slot_count = kept;
    core_dropped(sim->core, sim->now, index, drop->id, freed);
}

/* The answer of a duck that lives and listens. */
static void answer(struct sim *sim, const struct sim_answer *what)
{
    const struct core_action *action = &what->action;
    struct core_session *session;
    switch (action->type) {
    case CORE_ACT_START_DUCK: duck_came_up(sim, action->duck); break;
    case CORE_ACT_REKEY: rekey(sim, action->duck, action->id); break;
    case CORE_ACT_PING: core_duck_pong(sim->core, sim->now, action->duck, SIM_LATENCY); break;
    case CORE_ACT_SESSION_OPEN: core_session_opened(sim->core, sim->now, action->duck, action->id); break;
    case CORE_ACT_DROP:
        if (core_drop_find(sim->core, action->id))
            drop_slots(sim, action->duck, core_drop_find(sim->core, action->id));
        break;
    case CORE_ACT_STEP_CHUNK:
        session = core_session_find(sim->core, action->id);
        if (session) {
            struct msg_step_done done = {.duck_time_ns = 1000, .params = 10, .weight_bytes = 11};
            core_step_result(sim->core, sim->now, action->duck, action->id, what->step, &done);
        }
        break;
    default: break;
    }
}

static void later(struct sim *sim, const struct core_action *action, uint32_t duck, uint64_t step)
{
    assert_true(sim->answer_count < ARRAY_LENGTH(sim->answers));
    struct sim_answer *slot = &sim->answers[sim->answer_count++];
    *slot = (struct sim_answer){.at = sim->now + SIM_LATENCY, .action = *action, .step = step};
    slot->action.duck = duck;
}

static void drop_done(struct sim *sim, uint64_t id)
{
    const struct core_drop *drop = core_drop_find(sim->core, id);
    sim->drops_done++;
    sim->last_freed = drop->freed_bytes;
    sim->last_unreached = 0;
    for (uint32_t i = 0; i < sim->duck_count; i++)
        sim->last_unreached += drop->unreached[i];
    core_drop_release(sim->core, id);
}

static void stream(struct sim *sim, uint64_t id)
{
    const struct core_job *job = core_job_find(sim->core, id);
    sim->streaming = id;
    if (sim->hold_streams)
        return;
    for (size_t i = 0; i < job->missing_count; i++)
        send_slot(sim, job, i);
    sim->streaming = 0;
    stream_ended(sim, id, NULL);
}

/* The duck drops the step and says so, which nobody waits for. */
static void cancel(struct sim *sim, uint32_t duck, uint64_t step)
{
    struct err why = {0};
    err_set(&why, -ECANCELED, ERR_CANCELLED, "the step was cancelled");
    for (size_t i = 0; i < sim->answer_count && !sim->ducks[duck].lagging; i++) {
        const struct sim_answer answer = sim->answers[i];
        if (answer.action.type != CORE_ACT_STEP_CHUNK || answer.action.duck != duck || answer.step != step)
            continue;
        memmove(&sim->answers[i], &sim->answers[i + 1], (--sim->answer_count - i) * sizeof answer);
        sim->ducks[duck].cancels++;
        core_step_failed(sim->core, sim->now, duck, answer.action.id, step, &why);
        return;
    }
    sim->ducks[duck].stray_cancels++;
}

static void act(struct sim *sim, const struct core_action *action)
{
    struct core_session *session = core_session_find(sim->core, action->id);
    switch (action->type) {
    case CORE_ACT_START_DUCK:
        sim->ducks[action->duck].running = true;
        sim->ducks[action->duck].starts++;
        later(sim, action, action->duck, 0);
        break;
    case CORE_ACT_STOP_DUCK: sim->ducks[action->duck].running = false; break;
    case CORE_ACT_PING:
    case CORE_ACT_DROP:
    case CORE_ACT_REKEY:
    case CORE_ACT_SESSION_OPEN: later(sim, action, action->duck, 0); break;
    case CORE_ACT_OPEN: open_checkpoint(sim, action->id); break;
    case CORE_ACT_STREAM: stream(sim, action->id); break;
    case CORE_ACT_STREAM_CANCEL:
        if (sim->streaming == action->id)
            sim->streaming = 0;
        stream_ended(sim, action->id, NULL);
        break;
    case CORE_ACT_DIGEST: digest(sim, action->id); break;
    case CORE_ACT_STEP_CHUNK:
        for (uint32_t rank = 0; rank < session->tp; rank++)
            if (session->steps[action->lane].asked[rank])
                later(sim, action, session->duck_of_rank[rank], session->steps[action->lane].id);
        break;
    case CORE_ACT_STEP_SUM: core_step_summed(sim->core, sim->now, action->id, action->lane); break;
    case CORE_ACT_STEP_DONE:
        sim->steps_done++;
        sim->last_done_lane = action->lane;
        break;
    case CORE_ACT_STEP_FAILED:
        sim->steps_failed++;
        sim->last_step_err = session->steps[action->lane].err;
        break;
    case CORE_ACT_SESSION_READY: sim->sessions_ready++; break;
    case CORE_ACT_SESSION_FAILED:
        sim->sessions_failed++;
        core_session_close(sim->core, action->id);
        break;
    case CORE_ACT_REVOKE: sim->revocations++; break;
    case CORE_ACT_DROP_DONE: drop_done(sim, action->id); break;
    case CORE_ACT_SAVE_MODEL: sim->saved++; break;
    case CORE_ACT_FORGET_MODEL: sim->forgotten++; break;
    case CORE_ACT_SAVE_LOSSES: sim->core->losses_dirty = false; break;
    case CORE_ACT_SAVE_REVOKED:
    case CORE_ACT_MIRROR:
    case CORE_ACT_JOB_CHANGED:
    case CORE_ACT_JOB_SAVE: break;
    case CORE_ACT_ERRAND_STOP: sim->errands_stopped++; break;
    case CORE_ACT_STEP_CANCEL: cancel(sim, action->duck, action->id); break;
    case CORE_ACT_SESSION_CLOSE:
    case CORE_ACT_SESSION_GONE: break;
    }
}

static void act_all(struct sim *sim)
{
    struct core_action action;
    while (core_next_action(sim->core, &action))
        act(sim, &action);
}

/* The earliest answer due by `until`, taken off the list; false when there is none. */
static bool next_answer(struct sim *sim, uint64_t until, struct sim_answer *ret_answer)
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < sim->answer_count; i++)
        if (sim->answers[i].at <= until && (best == SIZE_MAX || sim->answers[i].at < sim->answers[best].at))
            best = i;
    if (best == SIZE_MAX)
        return false;
    *ret_answer = sim->answers[best];
    memmove(&sim->answers[best], &sim->answers[best + 1], (--sim->answer_count - best) * sizeof sim->answers[0]);
    return true;
}

void sim_run(struct sim *sim, uint64_t duration)
{
    uint64_t end = sim->now + duration;
    act_all(sim);
    for (;;) {
        uint64_t tick = sim->ticked + SIM_TICK, until = tick < end ? tick : end;
        uint64_t deadline = sim->core->deadline_ns;
        until = deadline && deadline < until ? deadline : until;
        struct sim_answer due;
        while (next_answer(sim, until, &due)) {
            sim->now = due.at > sim->now ? due.at : sim->now;
            const struct sim_duck *duck = &sim->ducks[due.action.duck];
            bool step = due.action.type == CORE_ACT_STEP_CHUNK;
            if (step && duck->lagging)
                later(sim, &due.action, due.action.duck, due.step);
            else if (duck->running && !duck->mute && !(step && duck->idle))
                answer(sim, &due);
            act_all(sim);
        }
        sim->now = until;
        core_deadlines(sim->core, sim->now);
        act_all(sim);
        if (until < tick && until < end)
            continue;
        if (tick > end)
            return;
        sim->ticked = tick;
        core_tick(sim->core, sim->now);
        act_all(sim);
        if (tick == end)
            return;
    }
}

void sim_kill(struct sim *sim, uint32_t duck, const char *how)
{
    sim->ducks[duck].running = false;
    /* Answers of the dead process never come. */
    size_t kept = 0;
    for (size_t i = 0; i < sim->answer_count; i++)
        if (sim->answers[i].action.duck != duck)
            sim->answers[kept++] = sim->answers[i];
    sim->answer_count = kept;
    core_duck_lost(sim->core, sim->now, duck, how);
    act_all(sim);
}

static void start_core(struct sim *sim, uint64_t grace_ns)
{
    struct core_conf conf = {.heartbeat_ns = CLOCK_NS_PER_S,
                             .start_timeout_ns = 5 * CLOCK_NS_PER_S,
                             .grace_ns = grace_ns,
                             .partials = MSG_BF16,
                             .persistent_judge = true};
    sim->core = core_new(&conf);
    assert_non_null(sim->core);
    for (uint32_t i = 0; i < sim->duck_count; i++) {
        char name[16];
        snprintf(name, sizeof name, "local%u", i);
        assert_int_equal(core_duck_add(sim->core, name, false, NULL), 0);
    }
    core_start(sim->core, sim->now);
    sim_run(sim, 10 * SIM_LATENCY);
}

void sim_start(struct sim *sim, uint32_t ducks, uint64_t capacity)
{
    *sim = (struct sim){.duck_count = ducks, .now = CLOCK_NS_PER_S, .ticked = CLOCK_NS_PER_S};
    for (uint32_t i = 0; i < ducks; i++)
        sim->ducks[i].capacity = capacity;
    start_core(sim, 0);
}

void sim_restart(struct sim *sim, uint64_t grace_ns)
{
    core_free(sim->core);
    sim->answer_count = 0;
    sim->streaming = 0;
    for (uint32_t i = 0; i < sim->duck_count; i++)
        sim->ducks[i].running = false;
    start_core(sim, grace_ns);
}

void sim_stop(struct sim *sim)
{
    for (size_t i = 0; i < SIM_SHARDS_MAX; i++)
        buf_release(&sim->records[i]);
    core_free(sim->core);
}

uint64_t sim_load_begin(struct sim *sim, const char *name, uint32_t tp, uint32_t multiple_of)
{
    return sim_load_begin_as(sim, name, (struct plan_strategy){0}, tp, multiple_of);
}

uint64_t sim_load_begin_as(struct sim *sim, const char *name, struct plan_strategy strategy, uint32_t tp, uint32_t multiple_of)
{
    struct core_load_request request = {
        .path = trained_dir, .name = name, .strategy = strategy, .tp = tp, .multiple_of = multiple_of};
    uint64_t job = 0;
    struct err err = {0};
    if (core_load(sim->core, sim->now, &request, &job, &err) < 0)
        fail_msg("%s", err.message);
    act_all(sim);
    return job;
}

const struct core_job *sim_load(struct sim *sim, const char *name, uint32_t tp, uint32_t multiple_of)
{
    uint64_t job = sim_load_begin(sim, name, tp, multiple_of);
    sim_run(sim, 10 * SIM_LATENCY);
    return core_job_find(sim->core, job);
}

uint64_t sim_session(struct sim *sim, const char *model)
{
    struct core_session_request request = {.client = 1, .model = model, .max_tokens = 8};
    uint64_t session = 0;
    struct err err = {0};
    if (core_session_open(sim->core, sim->now, &request, &session, &err) < 0)
        fail_msg("%s", err.message);
    sim_run(sim, 5 * SIM_LATENCY);
    return session;
}
