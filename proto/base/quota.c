#include "proto/base/quota.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "proto/base/cleanup.h"

#define GROUPS_MAX 256 /* lines of /proc/self/cgroup */

/* Up to two words of one file, "max" and "-1" being QUOTA_NONE; how many there are. */
static int read_words(const char *folder, const char *name, uint64_t words[2])
{
    char path[2 * PATH_MAX], text[2][32];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return 0;
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    int count = fscanf(file, "%31s %31s", text[0], text[1]);
    for (int i = 0; i < count; i++) {
        if (strcmp(text[i], "max") == 0 || text[i][0] == '-')
            words[i] = QUOTA_NONE;
        else if (sscanf(text[i], "%" SCNu64, &words[i]) != 1)
            return 0;
    }
    return count;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t millis(uint64_t quota_us, uint64_t period_us)
{
    bool sound = quota_us != QUOTA_NONE && period_us != 0 && quota_us <= UINT64_MAX / 1000;
    return sound ? quota_us * 1000 / period_us : QUOTA_NONE;
}

struct kind {
    const char *controller; /* of version 1 */
    uint64_t (*of_group)(const char *folder);
};

static uint64_t cpu_of(const char *folder)
{
    uint64_t words[2], quota[2], period[2], result = QUOTA_NONE;
    if (read_words(folder, "cpu.max", words) == 2)
        result = millis(words[0], words[1]);
    if (read_words(folder, "cpu.cfs_quota_us", quota) >= 1 && read_words(folder, "cpu.cfs_period_us", period) >= 1)
        result = least(result, millis(quota[0], period[0]));
    return result;
}

static uint64_t memory_of(const char *folder)
{
    uint64_t words[2], result = QUOTA_NONE;
    if (read_words(folder, "memory.max", words) >= 1)
        result = words[0];
    if (read_words(folder, "memory.limit_in_bytes", words) >= 1)
        result = least(result, words[0]);
    return result;
}

/* A group and all above it, up to the mount. In a container the path may be the host's and not be there: then the mount alone counts. */
static uint64_t of_path(const struct kind *kind, const char *mount, const char *group)
{
    char folder[PATH_MAX];
    if (snprintf(folder, sizeof folder, "%s%s", mount, group) >= (int)sizeof folder)
        return QUOTA_NONE;
    uint64_t result = QUOTA_NONE;
    for (;;) {
        result = least(result, kind->of_group(folder));
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < strlen(mount))
            return result;
        *slash = '\0';
    }
}

/* "cpu" in "cpu,cpuacct". */
static bool names(const char *controllers, const char *one)
{
    size_t length = strlen(one);
    for (const char *at = controllers; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, one, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

static uint64_t quota_of(const struct kind *kind, const char *groups, const char *root)
{
    _cleanup_(fclosep) FILE *file = fopen(groups, "re");
    uint64_t result = QUOTA_NONE;
    char line[PATH_MAX + 64], mount[PATH_MAX];
    for (int i = 0; file && i < GROUPS_MAX && fgets(line, sizeof line, file); i++) {
        /* number:controllers:path; version 2 has number 0 and no controllers. */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        controllers++;
        if (!*controllers) {
            result = least(result, of_path(kind, root, path));
            if (snprintf(mount, sizeof mount, "%s/unified", root) < (int)sizeof mount) /* beside version 1 */
                result = least(result, of_path(kind, mount, path));
        } else if (names(controllers, kind->controller) && snprintf(mount, sizeof mount, "%s/%s", root, controllers) < (int)sizeof mount)
            result = least(result, of_path(kind, mount, path));
    }
    return result;
}

uint64_t quota_millis(const char *groups, const char *root)
{
    return quota_of(&(struct kind){"cpu", cpu_of}, groups, root);
}

uint64_t quota_memory(const char *groups, const char *root)
{
    return quota_of(&(struct kind){"memory", memory_of}, groups, root);
}
