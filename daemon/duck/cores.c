#include "daemon/duck/cores.h"

#include <ctype.h>
#include <errno.h>

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

int cores_apply(const char *text, uint32_t *ret_count, struct err *err)
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
    *ret_count = (uint32_t)CPU_COUNT(&have);
    return 0;
}
