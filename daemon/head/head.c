/* Puts the parts together, feeds the core with what ducks say, keeps the beat. */
#include "daemon/head/head.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "daemon/head/cache_check.h"
#include "daemon/head/cache_db.h"
#include "daemon/head/control.h"
#include "daemon/head/db.h"
#include "daemon/head/deadline.h"
#include "daemon/head/events.h"
#include "daemon/head/fdstore.h"
#include "daemon/head/head_run.h"
#include "daemon/head/jobs.h"
#include "daemon/head/load.h"
#include "daemon/head/load_stream.h"
#include "daemon/head/local.h"
#include "daemon/head/metrics.h"
#include "daemon/head/metrics_http.h"
#include "daemon/head/remember.h"
#include "daemon/head/revoked.h"
#include "daemon/head/ring.h"
#include "daemon/head/rpc.h"
#include "daemon/head/session.h"
#include "daemon/head/stage.h"
#include "daemon/head/waiters.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/base/quota.h"
#include "proto/base/size.h"
#include "proto/wire/msg_buffer.h"

#define HEAD_TICK (100 * CLOCK_NS_PER_MS)
#define HEAD_SPIN_MAX (200 * CLOCK_NS_PER_US) /* this thread's CPU is its clients', too: it waits out short kernels, no long ones */
#define HEAD_START_TIMEOUT (20 * CLOCK_NS_PER_S)
#define HEAD_STOP_PATIENCE (5 * CLOCK_NS_PER_S) /* for loads to let go; then their ducks are killed, which frees them */

/* ---- what ducks say ---- */

static void duck_up(void *user, uint32_t duck, const struct msg_hello_duck *hello, const struct msg_slot *slots, size_t count)
{
    struct head *head = user;
    log_info("duck", "%s: up: %s, isa %s, cores %u, weight buffer %" PRIu64 " bytes, %zu slot%s, boot id %s", head->core->ducks[duck].name,
             hello->software, hello->isa, hello->cores, hello->capacity_bytes, count, size_plural(count), hello->boot_id);
    metrics_duck_up(head, duck);
    bool ended = core_duck_ended(&head->core->ducks[duck]);
    core_duck_up(head->core, clock_now_ns(), duck, hello, slots, count);
    const struct core_duck *known = &head->core->ducks[duck];
    if (ended && known->mirror_gone && !known->mirror_new)
        log_info("cache", "%s: fp9d was restarted and its local ducks' weight buffers ended with it: %u slot%s gone", known->name,
                 known->mirror_gone, known->mirror_gone == 1 ? " is" : "s are");
    else if (known->mirror_gone || known->mirror_new)
        log_warning("cache", "%s: its header holds %u slot%s not known here before, and lacks %u that %s; corrected", known->name,
                    known->mirror_new, size_plural(known->mirror_new), known->mirror_gone, known->mirror_gone == 1 ? "was" : "were");
    revoked_up(head, duck);
    act_run(head);
    events_look(head);
}

static void duck_lost(void *user, uint32_t duck, const char *reason)
{
    struct head *head = user;
    /* A duck that cannot be reached is tried again for ever; only what is new is worth a line. */
    const struct core_duck *known = &head->core->ducks[duck];
    bool news = known->state == CORE_DUCK_UP || strcmp(known->lost_reason, reason) != 0;
    if (!head->stopping)
        log_write(news ? LOG_LEVEL_WARNING : LOG_LEVEL_DEBUG, "duck", "%s: lost: %s", known->name, reason);
    metrics_duck_lost(head, duck);
    core_duck_lost(head->core, clock_now_ns(), duck, reason);
    cache_check_duck_lost(head, duck);
    act_run(head);
    events_look(head);
}

static void duck_greeted(void *user, uint32_t duck, const struct msg_hello_duck *hello)
{
    revoked_greet(user, duck, hello);
}

/* FAIL answers whatever carried its request id: the numbers of jobs, sessions, steps and drops are one line. */
static void duck_fail(struct head *head, uint64_t now, uint32_t duck, const struct frame *frame)
{
    struct err theirs = {0}, err = {0};
    if (msg_fail_decode(frame, &theirs, &err) < 0)
        theirs = err;
    if (cache_check_is_request(frame->request))
        cache_check_frame(head, duck, frame, &err);
    else if (load_stream_is_request(frame->request))
        core_slot_failed(head->core, now, duck, load_stream_job_of(frame->request), &theirs);
    else if (core_session_find(head->core, frame->request))
        core_session_failed(head->core, now, duck, frame->request, &theirs);
    else if (core_drop_find(head->core, frame->request))
        core_drop_refused(head->core, duck, frame->request);
    else
        session_take_result(head, duck, frame);
}

static int take_frame(struct head *head, uint64_t now, uint32_t duck, const struct frame *frame, struct err *err)
{
    int r;
    switch (frame->type) {
    case WIRE_STEP_DONE: session_take_result(head, duck, frame); return 0;
    case WIRE_FAIL: duck_fail(head, now, duck, frame); return 0;
    case WIRE_PONG: {
        struct msg_ping pong;
        r = msg_ping_decode(frame, &pong, err);
        if (r == 0)
            core_duck_pong(head->core, now, duck, now > pong.stamp ? now - pong.stamp : 0);
        return r;
    }
    case WIRE_SLOT_DONE: {
        struct msg_slot slot;
        r = msg_slot_done_decode(frame, &slot, err);
        if (r == 0)
            core_slot_done(head->core, now, duck, &slot);
        return r;
    }
    case WIRE_REVOKED: return revoked_learn(head, duck, frame, err);
    case WIRE_ROOM: {
        uint64_t *ranges;
        size_t count;
        r = msg_room_decode(frame, &ranges, &count, err);
        if (r == 0)
            core_duck_room(head->core, duck, ranges, count);
        return r;
    }
    case WIRE_VERIFIED: return cache_check_frame(head, duck, frame, err);
    case WIRE_DROPPED: {
        uint64_t freed;
        r = msg_dropped_decode(frame, &freed, err);
        if (r == 0)
            core_dropped(head->core, now, duck, frame->request, freed);
        return r;
    }
    case WIRE_SESSION_OPENED: {
        uint64_t session;
        r = msg_session_decode(frame, &session, err);
        if (r == 0)
            core_session_opened(head->core, now, duck, session);
        return r;
    }
    case WIRE_SESSION_CLOSED: return 0;
    default: return err_set(err, -EPROTO, ERR_INTERNAL, "it sent %s, which nobody had asked for", frame_type_name(frame->type));
    }
}

static void duck_frame(void *user, uint32_t duck, const struct frame *frame)
{
    struct head *head = user;
    uint64_t now = clock_now_ns();
    struct err err; /* not cleared: this is the step path */
    core_duck_heard(head->core, now, duck);
    if (take_frame(head, now, duck, frame, &err) < 0) {
        log_warning("duck", "%s: %s", head->core->ducks[duck].name, err.message);
        core_duck_broken(head->core, now, duck, err.message);
    }
    act_run(head);
}

/* ---- the beat ---- */

static void finish_stop(struct head *head, uint64_t now)
{
    if (!head->stopping)
        return;
    bool impatient = now - head->stop_ns > HEAD_STOP_PATIENCE, idle = worker_idle(head->disk) && worker_idle(head->bulk);
    idle = idle && (!head->names || worker_idle(head->names));
    for (uint32_t i = 0; (impatient || idle) && i < head->core->duck_count; i++)
        if (peer_pid(head->peers[i]))
            kill(peer_pid(head->peers[i]), SIGKILL); /* all at once: each takes a while to give its memory back */
    if (impatient || idle)
        for (uint32_t i = 0; i < head->core->duck_count; i++)
            peer_stop(head->peers[i]); /* drops their queued frames, so that a stream that waits for them ends */
    if (idle)
        loop_stop(head->loop);
}

static void tick(void *user)
{
    struct head *head = user;
    uint64_t now = clock_now_ns();
    core_tick(head->core, now);
    for (uint32_t i = 0; i < head->core->duck_count; i++)
        peer_tick(head->peers[i], now);
    load_tick(head);
    waiters_tick(head, now);
    remember_tick(head, now);
    control_tick(head->control, now);
    metrics_http_tick(head->metrics_http, now);
    act_run(head);
    events_tick(head, now);
    if (now - head->watchdog_fed_ns >= head->watchdog_ns && head->watchdog_ns) {
        sd_notify(0, "WATCHDOG=1");
        head->watchdog_fed_ns = now;
    }
    finish_stop(head, now);
}

/* Begins an orderly end: clients are told, loads are cancelled, the loop stops when all is quiet or after a few seconds. */
static void begin_stop(struct head *head)
{
    if (head->stopping)
        return;
    head->stopping = true;
    head->stop_ns = clock_now_ns();
    sd_notify(0, "STOPPING=1\nSTATUS=Stopping");
    log_info("main", "stopping");
    control_stop(head->control);
    core_stop(head->core, head->stop_ns);
    cache_check_stop(head);
    act_run(head);
    finish_stop(head, head->stop_ns);
}

static void on_stop_signal(void *user)
{
    begin_stop(user);
}

/* The usual request to read the configuration again, which must not cost a fleet its sessions. */
static void on_reload_signal(void *user)
{
    (void)user;
    log_warning("main", "SIGHUP: reading the configuration again is not in this version; it is read at the next start, and "
                        "registered models come back with it");
}

/* ---- construction ---- */

static int new_peer(struct head *head, uint32_t index, const char *name, bool spare, struct err *err)
{
    int r = core_duck_add(head->core, name, spare, err);
    if (r < 0)
        return r;
    struct peer_callbacks callbacks = {.user = head, .greeted = duck_greeted, .up = duck_up, .lost = duck_lost, .frame = duck_frame};
    r = peer_new(head->loop, index, name, &callbacks, &head->peers[index], err);
    if (r == 0)
        peer_set_heartbeat(head->peers[index], head->conf->heartbeat_s);
    return r;
}

/* The buffer of an earlier run, which systemd has kept, or a new one, which it is to keep. */
static int local_buffer(struct head *head, uint32_t index, const char *name, uint64_t memory, int *ret_fd, struct err *err)
{
    _cleanup_(closep) int kept = fdstore_take_buffer(head->fdstore, name);
    uint64_t size = kept < 0 ? 0 : local_buffer_size(kept);
    /* A share of RAM that nobody has asked for moves a little with the machine's idea of its RAM (balloons, hot-plugged memory). */
    bool fits = head->conf->local_memory ? size == memory : size >= memory - memory / 8 && size <= memory + memory / 8;
    if (kept >= 0 && fits) {
        log_info("duck", "%s: its weight buffer was kept across the restart", name);
        *ret_fd = STEAL_FD(kept);
        return 0;
    }
    if (kept >= 0) {
        log_info("duck", "%s: the weight buffer that was kept has %" PRIu64 " bytes, %" PRIu64 " are wanted: given up", name, size, memory);
        fdstore_drop_buffer(name);
    }
    head->core->ducks[index].fresh = kept < 0;
    int r = local_make_buffer(name, memory, ret_fd, err);
    if (r == 0)
        fdstore_put_buffer(head->fdstore, name, *ret_fd);
    return r;
}

/* Fleet-wide: fp9d's thread and the ducks' may only spin for each other on CPUs that they do not take from each other. */
static uint32_t spin_us(const struct conf *conf)
{
    cpu_set_t spare, mine;
    local_spare_cpus(conf->local_cores, conf->local_ducks, &spare);
    if (!CPU_COUNT(&spare) || sched_getaffinity(0, sizeof mine, &mine) < 0)
        return 0;
    uint64_t quota = quota_millis("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota < (uint64_t)CPU_COUNT(&mine) * 1000 ? 0 : conf_spin_us(conf);
}

static enum loop_found poll_ducks(void *user)
{
    const struct head *head = user;
    enum loop_found most = LOOP_IDLE;
    for (uint32_t i = 0; i < head->conf->local_ducks; i++) {
        enum loop_found found = peer_poll(head->peers[i]);
        if (found > most)
            most = found;
    }
    return most;
}

static bool park_ducks(void *user)
{
    const struct head *head = user;
    bool quiet = true;
    for (uint32_t i = 0; i < head->conf->local_ducks; i++)
        quiet &= peer_park(head->peers[i]);
    return quiet;
}

static int add_local_duck(struct head *head, uint32_t index, const char *program, uint64_t memory, struct err *err)
{
    char name[CORE_NAME_MAX], cores[1024];
    bool shared;
    uint32_t spin = spin_us(head->conf);
    snprintf(name, sizeof name, "local%u", index);
    int r = new_peer(head, index, name, false, err);
    if (r < 0)
        return r;
    r = local_share_cores(head->conf->local_cores, index, head->conf->local_ducks, cores, sizeof cores, &shared, err);
    if (r < 0)
        return r;
    int weights_fd;
    r = local_buffer(head, index, name, memory, &weights_fd, err);
    if (r < 0)
        return r;
    const struct local_setup setup = {.program = program,
                                      .cores = cores,
                                      .shared = shared,
                                      .member_cpu = shared ? local_member_cpu(cores, index) : -1,
                                      .prealloc = head->conf->local_prealloc,
                                      .weights_fd = weights_fd,
                                      .stage_fd = head->stage->fd};
    peer_set_local(head->peers[index], &setup);
    peer_set_channel(head->peers[index], strcmp(head->conf->local_link, "auto") == 0, shared ? 0 : spin);
    return 0;
}

static int add_local_ducks(struct head *head, struct err *err)
{
    if (!head->conf->local_ducks)
        return 0;
    char program[4096];
    int r = local_find_program(program, sizeof program, err);
    if (r == 0)
        r = stage_new(&head->stage, err);
    if (r < 0)
        return r;
    uint64_t memory = head->conf->local_memory ? head->conf->local_memory : local_default_memory(head->conf->local_ducks);
    for (uint32_t i = 0; i < head->conf->local_ducks; i++) {
        r = add_local_duck(head, i, program, memory, err);
        if (r < 0)
            return r;
    }
    uint64_t spin_ns = spin_us(head->conf) * CLOCK_NS_PER_US;
    loop_set_spin(head->loop, spin_ns < HEAD_SPIN_MAX ? spin_ns : HEAD_SPIN_MAX);
    const struct loop_poller ducks = {.poll = poll_ducks, .park = park_ducks, .user = head};
    return loop_poller_add(head->loop, &ducks, err);
}

/* Last of all, so that helper threads have every CPU: this thread leaves the ducks' CPUs alone. */
static int bind_loop(struct head *head, struct err *err)
{
    cpu_set_t spare;
    local_spare_cpus(head->conf->local_cores, head->conf->local_ducks, &spare);
    return head->conf->local_ducks && CPU_COUNT(&spare) ? local_bind(&spare, err) : 0;
}

static int add_remote_ducks(struct head *head, struct err *err)
{
    const struct conf *conf = head->conf;
    int r = conf->duck_count ? worker_new(head->loop, "fp9d-names", &head->names, err) : 0;
    for (uint32_t i = 0; r == 0 && i < conf->duck_count; i++) {
        uint32_t index = conf->local_ducks + i;
        r = new_peer(head, index, conf->ducks[i].name, conf->ducks[i].spare, err);
        if (r == 0)
            peer_set_remote(head->peers[index], conf->ducks[i].address, head->names);
    }
    return r;
}

/* Ducks, and with them everything that systemd had kept. */
static int add_ducks(struct head *head, struct err *err)
{
    int r = add_local_ducks(head, err);
    if (r == 0)
        r = add_remote_ducks(head, err);
    if (r < 0)
        return r;
    fdstore_settle(head->fdstore);
    return 0;
}

/* The control socket, which systemd may have passed. */
static int open_control(struct head *head, struct err *err)
{
    int fd;
    int r = fdstore_take_socket(head->fdstore, &fd, err);
    return r < 0 ? r : control_new(head, head->conf->socket, fd, &head->control, err);
}

static int restore_model(void *user, const struct db_model *saved)
{
    struct head *head = user;
    struct err err = {0};
    struct core_was was = {.known = true, .layout = saved->layout, .tp = saved->tp, .multiple_of = saved->multiple_of, .mtp = saved->mtp};
    struct core_load_request request = {
        .was = &was,
        .unloaded = saved->unloaded,
        .path = saved->path,
        .name = saved->name,
        .tp = saved->tp,
        .multiple_of = saved->multiple_of,
        .mtp = saved->mtp,
    };
    int r = plan_strategy_parse(saved->strategy, &request.strategy, &err);
    was.strategy = request.strategy;
    if (r == 0 && !digest_parse(saved->model_key, was.key))
        was.known = false;
    if (r == 0)
        r = core_restore(head->core, clock_now_ns(), &request, &err);
    if (r < 0)
        log_error("db", "model %s is registered and cannot be loaded again: %s", saved->name, err.message);
    return 0; /* the others still come back */
}

static int open_db(struct head *head, struct err *err)
{
    _cleanup_(freep) char *aside = NULL;
    int r = db_open(head->conf->state_dir, &head->db, &aside, err);
    if (r == 0 && aside)
        log_warning("db", "the database was damaged and is now %s; registered models were lost with it", aside);
    return r;
}

static int build(struct head *head, struct err *err)
{
    const struct conf *conf = head->conf;
    struct core_conf core_conf = {
        .heartbeat_ns = conf->heartbeat_s * CLOCK_NS_PER_S,
        .start_timeout_ns = HEAD_START_TIMEOUT,
        .grace_ns = conf->grace_s * CLOCK_NS_PER_S,
        .partials = strcmp(conf->partials, "f32") == 0 ? MSG_F32 : MSG_BF16,
        .persistent_judge = conf->persistent_judge,
        .wall_ns = (int64_t)time(NULL) * (int64_t)CLOCK_NS_PER_S - (int64_t)clock_now_ns(),
    };
    head->core = core_new(&core_conf);
    if (!head->core)
        return err_no_memory(err, "fp9d", sizeof *head->core);
    head->metrics = metrics_new();
    if (!head->metrics)
        return err_no_memory(err, "metrics", 0);
    head->waiters = waiters_new();
    head->revoked = revoked_new();
    head->events = events_new();
    int r = loop_new(&head->loop, err);
    if (r == 0)
        r = fdstore_new(&head->fdstore, err);
    if (r == 0)
        r = open_db(head, err);
    if (r == 0)
        r = open_control(head, err);
    if (r == 0 && *conf->metrics_listen)
        r = metrics_http_new(head, conf->metrics_listen, &head->metrics_http, err);
    if (r == 0)
        r = add_ducks(head, err);
    if (r == 0)
        r = worker_new(head->loop, "fp9d-disk", &head->disk, err);
    if (r == 0)
        r = worker_new(head->loop, "fp9d-bulk", &head->bulk, err);
    if (r == 0)
        r = loop_every(head->loop, HEAD_TICK, tick, head, err);
    if (r == 0)
        r = deadline_begin(head, err);
    if (r == 0)
        r = ring_begin(head, err);
    if (r == 0)
        r = loop_on_signal(head->loop, SIGTERM, on_stop_signal, head, err);
    if (r == 0)
        r = loop_on_signal(head->loop, SIGINT, on_stop_signal, head, err);
    if (r == 0)
        r = loop_on_signal(head->loop, SIGHUP, on_reload_signal, head, err);
    if (r == 0)
        r = bind_loop(head, err);
    return r;
}

static void take_down(struct head *head)
{
    worker_free(head->names);
    worker_free(head->bulk);
    worker_free(head->disk);
    control_free(head->control);
    metrics_http_free(head->metrics_http);
    for (uint32_t i = 0; i < CORE_DUCKS_MAX; i++)
        peer_free(head->peers[i]);
    load_free_all(head);
    remember_free_all(head);
    jobs_free_all(head);
    session_free_all(head);
    waiters_free(head->waiters);
    events_free(head->events);
    revoked_free(head->revoked);
    core_free(head->core);
    cache_db_free(head->cache_db);
    cache_check_free(head);
    metrics_free(head->metrics);
    db_close(head->db);
    fdstore_free(head->fdstore);
    loop_timer_free(head->alarm);
    stage_free(head->stage);
    loop_free(head->loop);
}

int head_run(const struct conf *conf, struct err *err)
{
    struct head head = {.conf = conf, .started_ns = clock_now_ns()};
    uint64_t watchdog_us = 0;
    if (sd_watchdog_enabled(0, &watchdog_us) > 0)
        head.watchdog_ns = watchdog_us * CLOCK_NS_PER_US / 3;
    int r = build(&head, err);
    if (r == 0) {
        /* Ducks first: models that come back wait for those that are being started, not for those that nobody has asked for. */
        head.cache_db = cache_db_begin(&head);
        jobs_restore(&head);
        events_begin(&head);
        core_start(head.core, clock_now_ns());
        r = db_each_model(head.db, restore_model, &head, err);
    }
    if (r == 0) {
        act_run(&head);
        log_info("main", "fp9d %s serves %s, ducks: %u local, %u remote, kernels %s", FP9_VERSION, conf->socket, conf->local_ducks,
                 conf->duck_count, kernels_variant_name());
        sd_notify(0, "READY=1\nSTATUS=Serving");
        r = loop_run(head.loop, err);
    }
    sd_notify(0, "STOPPING=1");
    take_down(&head);
    return r;
}
