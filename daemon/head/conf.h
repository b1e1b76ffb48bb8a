/* fp9d.conf and the command line, merged and checked. */
#ifndef FP9_HEAD_CONF_H
#define FP9_HEAD_CONF_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/cleanup.h"
#include "proto/base/err.h"

#define CONF_DEFAULT_PATH "/etc/fp9/fp9d.conf"

struct conf_duck {
    char *name;
    char *address, *key_file; /* HOST:PORT */
    bool plaintext, spare;
};

struct conf {
    /* [daemon] */
    char *socket, *state_dir, *log_level, *admin_group, *metrics_listen;
    /* [fleet] */
    uint32_t local_ducks;
    uint64_t local_memory; /* bytes of weight buffer per local duck; 0: an equal share of four fifths of RAM */
    bool local_prealloc;   /* their memory is taken at the start */
    char *local_cores;     /* CPU list shared out among local ducks; "": the CPUs fp9d may use */
    char *local_link;      /* auto socket */
    char *spin_us;         /* "auto" or a number */
    bool persistent_judge;
    char *partials; /* bf16 f32 */
    uint32_t heartbeat_s, grace_s, deadline_s;
    /* [duck "NAME"] */
    struct conf_duck *ducks;
    uint32_t duck_count;
};

/* Defaults, then the file. path NULL: CONF_DEFAULT_PATH if it exists. */
int conf_load(const char *path, struct conf **ret_conf, struct err *err);
/* After the command line was applied: what this version cannot do is refused here, not ignored. */
int conf_check(const struct conf *conf, struct err *err);
/* Of [fleet] spin_us; how fp9d and a local duck may wait for each other while each has CPUs of its own. */
uint32_t conf_spin_us(const struct conf *conf);
void conf_free(struct conf *conf);
CLEANUP_DEFINE(struct conf *, conf_free);

#endif
