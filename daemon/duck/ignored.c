#include "daemon/duck/ignored.h"

/* Its place; count: none. */
static uint32_t find(const struct ignored *ignored, uint64_t request)
{
    uint32_t at = 0;
    while (at < ignored->count && ignored->requests[at] != request)
        at++;
    return at;
}

bool ignored_has(const struct ignored *ignored, uint64_t request)
{
    return find(ignored, request) < ignored->count;
}

void ignored_add(struct ignored *ignored, uint64_t request)
{
    if (ignored_has(ignored, request))
        return;
    if (ignored->count < IGNORED_MAX) {
        ignored->requests[ignored->count++] = request;
        return;
    }
    ignored->requests[ignored->next] = request;
    ignored->next = (ignored->next + 1) % IGNORED_MAX;
}

bool ignored_forget(struct ignored *ignored, uint64_t request)
{
    uint32_t at = find(ignored, request);
    if (at == ignored->count)
        return false;
    ignored->requests[at] = ignored->requests[--ignored->count];
    if (ignored->next >= ignored->count)
        ignored->next = 0;
    return true;
}
