#include "daemon/duck/cores.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "proto/base/quota.h"
#include "daemon/duck/team.h"

/* Digits at *text, as a CPU number; -1 when there is none below CPU_SETSIZE. */
static int number(const char **text)
{
    int value = 0;
    if (!isdigit((unsigned char)**text))
        return -1;
    for (; isdigit((unsigned char)**text); (*text)++) {
        value = value * 10 + (**text - '0');
        if (value >= CPU_SETSIZE)
            return -1;
    }
    return value;
}

int cores_parse(const char *text, cpu_set_t *ret_set, struct err *err)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    const char *at = text;
    for (;;) {
        int low = number(&at), high = low;
        if (low >= 0 && *at == '-') {
            at++;
            high = number(&at);
        }
        if (low < 0 || high < low || (*at && *at != ','))
            return err_set(err, -EINVAL, ERR_BAD_REQUEST, "cores \"%.200s\" is no list such as 0-3,5 of CPUs below %d", text, CPU_SETSIZE);
        for (int cpu = low; cpu <= high; cpu++)
            CPU_SET(cpu, &set);
        if (!*at)
            break;
        at++;
    }
    *ret_set = set;
    return 0;
}

struct cores cores_share(const cpu_set_t *cpus, uint64_t quota_millis, uint32_t members)
{
    uint32_t count = (uint32_t)CPU_COUNT(cpus);
    struct cores cores = {.cpus = *cpus, .quota_millis = quota_millis, .members = count};
    if (quota_millis >= count * UINT64_C(1000))
        cores.quota_millis = QUOTA_NONE;
    else
        cores.members = quota_millis < 1000 ? 1 : (uint32_t)(quota_millis / 1000);
    if (cores.members > TEAM_MEMBERS_MAX)
        cores.members = TEAM_MEMBERS_MAX;
    if (members)
        cores.members = members;
    cores.spin = cores.members <= count && cores.quota_millis == QUOTA_NONE;
    cores.bind = cores.spin && cores.members == count;
    return cores;
}

const char *cores_text(const struct cores *cores, char text[CORES_TEXT_SIZE])
{
    const char *plural = cores->members == 1 ? "" : "s";
    if (cores->quota_millis != QUOTA_NONE)
        snprintf(text, CORES_TEXT_SIZE, "%u core%s (quota of %" PRIu64 ".%02" PRIu64 " CPUs)", cores->members, plural,
                 cores->quota_millis / 1000, cores->quota_millis % 1000 / 10);
    else if (cores->bind)
        snprintf(text, CORES_TEXT_SIZE, "%u core%s", cores->members, plural);
    else
        snprintf(text, CORES_TEXT_SIZE, "%u core%s on %d CPU%s", cores->members, plural, CPU_COUNT(&cores->cpus),
                 CPU_COUNT(&cores->cpus) == 1 ? "" : "s");
    return text;
}

int cores_apply(const char *text, uint32_t members, struct cores *ret_cores, struct err *err)
{
    cpu_set_t have;
    if (sched_getaffinity(0, sizeof have, &have) < 0)
        return err_errno(err, "cores: sched_getaffinity");
    if (text && *text) {
        cpu_set_t want;
        int r = cores_parse(text, &want, err);
        if (r < 0)
            return r;
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &want) && !CPU_ISSET(cpu, &have))
                return err_set(err, -EINVAL, ERR_BAD_REQUEST, "cores \"%.200s\": CPU %d is not among the %d CPUs of this process", text,
                               cpu, CPU_COUNT(&have));
        if (sched_setaffinity(0, sizeof want, &want) < 0)
            return err_errno(err, "cores \"%.200s\"", text);
        have = want;
    }
    *ret_cores = cores_share(&have, quota_millis("/proc/self/cgroup", "/sys/fs/cgroup"), members);
    return 0;
}
