#include "ctl/path.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Drops empty and "." parts in place; true when there was a "..". */
static int tidy(char *path)
{
    char *to = path;
    int up = 0;
    for (char *from = path; *from;) {
        size_t length = strcspn(from, "/");
        up |= length == 2 && memcmp(from, "..", 2) == 0;
        if (length && !(length == 1 && *from == '.')) {
            *to++ = '/';
            memmove(to, from, length);
            to += length;
        }
        from += length;
        from += *from == '/';
    }
    if (to == path)
        *to++ = '/';
    *to = '\0';
    return up;
}

json_t *path_json(const char *path)
{
    char directory[PATH_MAX] = "", whole[2 * PATH_MAX + 2];
    if (path[0] != '/' && !getcwd(directory, sizeof directory))
        return NULL;
    int n = snprintf(whole, sizeof whole, "%s/%s", directory, path);
    if (n < 0 || (size_t)n >= sizeof whole)
        return NULL;
    if (tidy(whole)) {
        /* Only the file system knows where ".." leads through links. */
        char *real = realpath(whole, NULL);
        if (real) {
            json_t *value = json_string(real);
            free(real);
            return value;
        }
    }
    return json_string(whole);
}
