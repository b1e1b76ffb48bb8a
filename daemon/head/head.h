/* fp9d as a whole: what the edges (act, control, rpc_*, load) share. Loop thread only, except where a header says otherwise. */
#ifndef FP9_HEAD_HEAD_H
#define FP9_HEAD_HEAD_H

#include "daemon/head/conf.h"
#include "daemon/head/core.h"
#include "daemon/head/loop.h"
#include "daemon/head/peer.h"
#include "daemon/head/worker.h"

struct cache_check;
struct cache_db;
struct control;
struct db;
struct events;
struct fdstore;
struct stage;
struct jobs_task;
struct load;
struct metrics;
struct metrics_http;
struct remember;
struct revoked;
struct ring_host;
struct session;
struct waiters;

struct head {
    const struct conf *conf;
    struct loop *loop;
    struct core *core;
    struct peer *peers[CORE_DUCKS_MAX]; /* by duck index */
    struct worker *disk;                /* checkpoint headers, plans, sqlite */
    struct worker *bulk;                /* streaming of weights */
    struct worker *names;               /* look-up of remote ducks' names; NULL: there are none */
    struct stage *stage;                /* owned; NULL without local ducks */
    struct fdstore *fdstore;            /* what systemd passed at the start */
    struct db *db;                      /* used on the disk worker once the loop runs */
    struct cache_check *cache_check;    /* the one that runs; NULL: none */
    struct cache_db *cache_db;
    struct control *control;
    struct events *events;
    struct load *loads;  /* list */
    uint64_t load_turns; /* asked for so far */
    struct metrics *metrics;
    struct metrics_http *metrics_http; /* NULL: not configured */
    struct remember *remembered;       /* list */
    struct jobs_task *jobs_saving;     /* list */
    struct revoked *revoked;           /* what the ducks are told of dead keys */
    struct session *sessions;          /* list */
    struct ring_host *rings;           /* list */
    struct waiters *waiters;           /* who waits for jobs and drops */
    struct loop_timer *alarm;          /* for deadlines */
    uint64_t alarm_ns;                 /* when it rings; 0: it does not */
    uint64_t started_ns;
    uint64_t watchdog_ns, watchdog_fed_ns; /* interval to feed systemd's watchdog at, 0: none; last time */
    bool stopping;
    uint64_t stop_ns; /* since when */
};

/* Carries out all actions that the core has ready. Call after every event. */
void act_run(struct head *head);

#endif
