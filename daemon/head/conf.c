#include "daemon/head/conf.h"

#include <errno.h>
#include <grp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/head/core.h"
#include "daemon/head/local.h"
#include "proto/base/conf.h"
#include "proto/base/size.h"
#include "proto/wire/channel.h"
#include "proto/wire/transport_tcp.h"

#define CONF_SPIN_US_AUTO 1000               /* between two layers of a token a client takes some hundred microseconds */
#define CONF_MEMORY_MAX (UINT64_C(64) << 40) /* half of the address space of a process */

static const char *const log_levels[] = {"error", "warning", "info", "debug", NULL};
static const char *const local_links[] = {"auto", "socket", NULL};
static const char *const partials[] = {"bf16", "f32", NULL};

#define FIELD(name) offsetof(struct conf, name)
static const struct conf_key keys[] = {
    {"daemon", "socket", CONF_STRING, FIELD(socket), 1, 4095, NULL},
    {"daemon", "state_dir", CONF_STRING, FIELD(state_dir), 1, 4095, NULL},
    {"daemon", "log_level", CONF_CHOICE, FIELD(log_level), 0, 0, log_levels},
    {"daemon", "admin_group", CONF_STRING, FIELD(admin_group), 0, 255, NULL},
    {"daemon", "metrics_listen", CONF_STRING, FIELD(metrics_listen), 0, 255, NULL},
    {"fleet", "local_ducks", CONF_U32, FIELD(local_ducks), 0, CORE_DUCKS_MAX, NULL},
    {"fleet", "local_memory", CONF_SIZE, FIELD(local_memory), 0, 0, NULL},
    {"fleet", "local_prealloc", CONF_BOOL, FIELD(local_prealloc), 0, 0, NULL},
    {"fleet", "local_cores", CONF_STRING, FIELD(local_cores), 0, 1023, NULL},
    {"fleet", "local_link", CONF_CHOICE, FIELD(local_link), 0, 0, local_links},
    {"fleet", "spin_us", CONF_STRING, FIELD(spin_us), 1, 16, NULL},
    {"fleet", "persistent_judge", CONF_BOOL, FIELD(persistent_judge), 0, 0, NULL},
    {"fleet", "partials", CONF_CHOICE, FIELD(partials), 0, 0, partials},
    {"fleet", "heartbeat_s", CONF_U32, FIELD(heartbeat_s), 1, 3600, NULL},
    {"fleet", "grace_s", CONF_U32, FIELD(grace_s), 0, 86400, NULL},
    {"fleet", "deadline_s", CONF_U32, FIELD(deadline_s), 0, 86400, NULL},
};
#undef FIELD

#define FIELD(name) offsetof(struct conf_duck, name)
static const struct conf_key duck_keys[] = {
    {"duck", "address", CONF_STRING, FIELD(address), 1, 255, NULL},
    {"duck", "key_file", CONF_STRING, FIELD(key_file), 0, 4095, NULL},
    {"duck", "plaintext", CONF_BOOL, FIELD(plaintext), 0, 0, NULL},
    {"duck", "spare", CONF_BOOL, FIELD(spare), 0, 0, NULL},
};
#undef FIELD

/* The struct of [duck "NAME"], made at its first key. */
static void *duck_section(void *settings, const char *name, struct err *err)
{
    struct conf *conf = settings;
    for (uint32_t i = 0; i < conf->duck_count; i++)
        if (strcmp(conf->ducks[i].name, name) == 0)
            return &conf->ducks[i];
    if (conf->duck_count == CORE_DUCKS_MAX) {
        err_set(err, -E2BIG, ERR_BAD_REQUEST, "more than %d ducks", CORE_DUCKS_MAX);
        return NULL;
    }
    struct conf_duck *duck = &conf->ducks[conf->duck_count];
    duck->name = strdup(name);
    if (!duck->name) {
        err_no_memory(err, "duck", strlen(name));
        return NULL;
    }
    conf->duck_count++;
    return duck;
}

static const struct conf_table table = {
    .keys = keys,
    .count = ARRAY_LENGTH(keys),
    .named_section = "duck",
    .named_keys = duck_keys,
    .named_count = ARRAY_LENGTH(duck_keys),
    .named = duck_section,
};

static int conf_defaults(struct conf **ret_conf, struct err *err)
{
    _cleanup_(conf_freep) struct conf *conf = calloc(1, sizeof *conf);
    if (!conf)
        return err_no_memory(err, "configuration", sizeof *conf);
    /* A fixed array, so that pointers handed to the reader stay good. */
    conf->ducks = calloc(CORE_DUCKS_MAX, sizeof *conf->ducks);
    conf->socket = strdup("/run/fp9d/control.sock");
    conf->state_dir = strdup("/var/lib/fp9d");
    conf->log_level = strdup("info");
    conf->admin_group = strdup("");
    conf->metrics_listen = strdup("");
    conf->local_cores = strdup("");
    conf->local_link = strdup("auto");
    conf->spin_us = strdup("auto");
    conf->partials = strdup("bf16");
    conf->persistent_judge = true;
    conf->heartbeat_s = 2;
    conf->grace_s = 10;
    if (!conf->ducks || !conf->socket || !conf->state_dir || !conf->log_level || !conf->admin_group || !conf->metrics_listen ||
        !conf->local_cores || !conf->local_link || !conf->spin_us || !conf->partials)
        return err_no_memory(err, "configuration", sizeof *conf);
    *ret_conf = STEAL(conf);
    return 0;
}

int conf_load(const char *path, struct conf **ret_conf, struct err *err)
{
    _cleanup_(conf_freep) struct conf *conf = NULL;
    int r = conf_defaults(&conf, err);
    if (r < 0)
        return r;
    if (path || access(CONF_DEFAULT_PATH, F_OK) == 0) {
        r = conf_read(path ? path : CONF_DEFAULT_PATH, &table, conf, err);
        if (r < 0)
            return r;
    }
    *ret_conf = STEAL(conf);
    return 0;
}

/* "local0" .. of those that fp9d starts itself. */
static bool local_name(const struct conf *conf, const char *name)
{
    char local[32];
    for (uint32_t i = 0; i < conf->local_ducks; i++) {
        snprintf(local, sizeof local, "local%u", i);
        if (strcmp(local, name) == 0)
            return true;
    }
    return false;
}

static int check_duck(const struct conf *conf, uint32_t index, struct err *err)
{
    const struct conf_duck *duck = &conf->ducks[index];
    char host[TRANSPORT_TCP_HOST_MAX], port[TRANSPORT_TCP_PORT_MAX];
    for (const unsigned char *p = (const unsigned char *)duck->name; *p; p++)
        if (*p <= ' ' || *p >= 0x7f || *p == '/')
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "its name must be printable ASCII without blanks and slashes");
    if (local_name(conf, duck->name))
        return err_set(err, -EEXIST, ERR_BAD_REQUEST, "local0 to local%u are the names of [fleet] local_ducks; give it another one",
                       conf->local_ducks - 1);
    if (!duck->address || !*duck->address)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "address: is missing, as in address = kitchen:7909");
    int r = transport_tcp_split(duck->address, host, port, err);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < index; i++)
        if (strcmp(conf->ducks[i].address, duck->address) == 0)
            return err_set(err, -EEXIST, ERR_BAD_REQUEST, "address: %s is that of duck \"%s\" already; a duck serves one place in a fleet",
                           duck->address, conf->ducks[i].name);
    if (duck->key_file && *duck->key_file)
        return err_set(err, -ENOTSUP, ERR_BAD_REQUEST,
                       "key_file: this version has no TLS and would not use it; leave it empty and set plaintext = yes");
    if (!duck->plaintext)
        return err_set(err, -ENOTSUP, ERR_BAD_REQUEST,
                       "plaintext: this version has no TLS, so it must be yes here, and in fp9-duck.conf on the duck");
    return 0;
}

uint32_t conf_spin_us(const struct conf *conf)
{
    uint64_t spin_us; /* checked */
    return size_parse_u64(conf->spin_us, 0, CHANNEL_SPIN_US_MAX, &spin_us) ? (uint32_t)spin_us : CONF_SPIN_US_AUTO;
}

int conf_check(const struct conf *conf, struct err *err)
{
    uint64_t spin_us;
    if (strcmp(conf->spin_us, "auto") != 0 && !size_parse_u64(conf->spin_us, 0, CHANNEL_SPIN_US_MAX, &spin_us))
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "[fleet] spin_us: \"%s\" is neither auto nor a number up to %u", conf->spin_us,
                       CHANNEL_SPIN_US_MAX);
    struct sockaddr_un address;
    if (strlen(conf->socket) >= sizeof address.sun_path)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST,
                       "[daemon] socket: \"%.200s\" is %zu bytes long; the system takes a socket's path up to %zu bytes",
                       conf->socket, strlen(conf->socket), sizeof address.sun_path - 1);
    if (*conf->admin_group && !getgrnam(conf->admin_group))
        return err_set(err, -ENOENT, ERR_BAD_REQUEST, "[daemon] admin_group: there is no group \"%s\"", conf->admin_group);
    char host[TRANSPORT_TCP_HOST_MAX], port[TRANSPORT_TCP_PORT_MAX];
    if (*conf->metrics_listen && transport_tcp_split(conf->metrics_listen, host, port, err) < 0)
        return err_prefix(err, "[daemon] metrics_listen");
    for (uint32_t i = 0; i < conf->duck_count; i++) {
        int r = check_duck(conf, i, err);
        if (r < 0)
            return err_prefix(err, "[duck \"%s\"]", conf->ducks[i].name);
    }
    if (local_check_cores(conf->local_cores, err) < 0) /* also while there is no local duck to use them */
        return err_prefix(err, "[fleet] local_cores");
    /* The header of a weight buffer takes a megabyte and a page of it. */
    if (conf->local_memory && conf->local_memory < 2 * 1024 * 1024)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "[fleet] local_memory: %llu bytes, at least 2M is needed",
                       (unsigned long long)conf->local_memory);
    uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (conf->local_prealloc && conf->local_ducks && conf->local_memory > ram / conf->local_ducks)
        return err_set(err, -ENOMEM, ERR_NO_MEMORY,
                       "[fleet] local_prealloc: %u ducks of %llu bytes each are more than the machine's %llu bytes of memory",
                       conf->local_ducks, (unsigned long long)conf->local_memory, (unsigned long long)ram);
    if (conf->local_memory > CONF_MEMORY_MAX)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "[fleet] local_memory: %llu bytes, at most 64T can be mapped",
                       (unsigned long long)conf->local_memory);
    return 0;
}

void conf_free(struct conf *conf)
{
    if (!conf)
        return;
    for (uint32_t i = 0; i < conf->duck_count; i++) {
        free(conf->ducks[i].name);
        free(conf->ducks[i].address);
        free(conf->ducks[i].key_file);
    }
    free(conf->ducks);
    free(conf->socket);
    free(conf->state_dir);
    free(conf->log_level);
    free(conf->admin_group);
    free(conf->metrics_listen);
    free(conf->local_cores);
    free(conf->local_link);
    free(conf->spin_us);
    free(conf->partials);
    free(conf);
}
