/* PURE. Why slots are gone: remembered until they are prepared again, so that the load that does it can say so. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/head/core_parts.h"
#include "proto/base/clock.h"

const char *core_time_text(const struct core *core, uint64_t now, char text[CORE_TIME_MAX])
{
    time_t seconds = (time_t)(((int64_t)now + core->conf.wall_ns) / (int64_t)CLOCK_NS_PER_S);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    strftime(text, CORE_TIME_MAX, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return text;
}

static struct core_loss *place_for(struct core *core, const uint8_t key[DIGEST_SIZE], uint32_t duck, uint32_t layer)
{
    struct core_loss *oldest = &core->losses[0];
    for (uint32_t i = 0; i < CORE_LOSSES_MAX; i++) {
        struct core_loss *loss = &core->losses[i];
        if (loss->number && loss->duck == duck && loss->layer == layer && memcmp(loss->key, key, DIGEST_SIZE) == 0)
            return loss;
        if (loss->number < oldest->number)
            oldest = loss;
    }
    return oldest;
}

static void changed(struct core *core)
{
    if (core->losses_dirty)
        return;
    core->losses_dirty = true; /* the action clears it */
    core_push(core, CORE_ACT_SAVE_LOSSES, CORE_NONE, 0);
}

void core_lost(struct core *core, const uint8_t key[DIGEST_SIZE], uint32_t duck, uint32_t layer, const char *format, ...)
{
    struct core_loss *loss = place_for(core, key, duck, layer);
    *loss = (struct core_loss){.number = ++core->next_loss, .duck = duck, .layer = layer};
    memcpy(loss->key, key, DIGEST_SIZE);
    va_list args;
    va_start(args, format);
    vsnprintf(loss->text, sizeof loss->text, format, args);
    va_end(args);
    changed(core);
}

void core_loss_was(struct core *core, const struct core_loss *was)
{
    struct core_loss *loss = place_for(core, was->key, was->duck, was->layer);
    *loss = *was;
    loss->number = ++core->next_loss;
}

void core_loss_forget(struct core *core, const uint8_t key[DIGEST_SIZE])
{
    for (uint32_t i = 0; i < CORE_LOSSES_MAX; i++) {
        if (!core->losses[i].number || memcmp(core->losses[i].key, key, DIGEST_SIZE) != 0)
            continue;
        core->losses[i] = (struct core_loss){0};
        changed(core);
    }
}

void core_loss_forget_whole(struct core *core, const uint8_t key[DIGEST_SIZE])
{
    struct core_loss *loss = place_for(core, key, CORE_NONE, CORE_NONE);
    if (!loss->number || loss->duck != CORE_NONE || loss->layer != CORE_NONE || memcmp(loss->key, key, DIGEST_SIZE) != 0)
        return;
    *loss = (struct core_loss){0};
    changed(core);
}

const struct core_loss *core_loss_find(const struct core *core, const uint8_t key[DIGEST_SIZE], uint32_t duck, uint32_t layer)
{
    const struct core_loss *found = NULL;
    for (uint32_t i = 0; i < CORE_LOSSES_MAX; i++) {
        const struct core_loss *loss = &core->losses[i];
        if (!loss->number || (loss->duck != CORE_NONE && loss->duck != duck) || (loss->layer != CORE_NONE && loss->layer != layer) ||
            memcmp(loss->key, key, DIGEST_SIZE) != 0)
            continue;
        if (!found || loss->number > found->number)
            found = loss;
    }
    return found;
}

/* ---- keys by name ---- */

static bool is_prefix(const char *prefix, size_t length, const uint8_t key[DIGEST_SIZE])
{
    char hex[DIGEST_HEX_SIZE];
    digest_hex(key, hex);
    return strncmp(hex, prefix, length) == 0;
}

int core_key_find(struct core *core, const char *name, uint8_t ret_key[DIGEST_SIZE], struct err *err)
{
    const struct core_model *model = core_model_find(core, name);
    if (model && (model->plan || model->was.known)) {
        memcpy(ret_key, model->plan ? model->key : model->was.key, DIGEST_SIZE);
        return 0;
    }
    size_t length = strlen(name);
    bool digits = length <= 2 * DIGEST_SIZE && strspn(name, "0123456789abcdef") == length;
    bool hex = digits && length >= CORE_KEY_PREFIX_MIN, found = false;
    for (uint32_t i = 0; hex && i < core->duck_count; i++) {
        for (size_t s = 0; s < core->ducks[i].slot_count; s++) {
            const uint8_t *key = core->ducks[i].slots[s].model_key;
            if (!is_prefix(name, length, key) || (found && memcmp(ret_key, key, DIGEST_SIZE) == 0))
                continue;
            if (found)
                return err_set(err, -EINVAL, ERR_BAD_REQUEST, "model key %s...: slots of several keys begin so; give more digits", name);
            memcpy(ret_key, key, DIGEST_SIZE);
            found = true;
        }
    }
    if (found)
        return 0;
    if (digits && !hex)
        err_set(err, -ENOENT, ERR_NO_SUCH, "model %s: no model of that name is loaded; if it is a key, give %d or more digits of it", name,
                CORE_KEY_PREFIX_MIN);
    else
        err_set(err, -ENOENT, ERR_NO_SUCH, "model %s: no model of that name is loaded, and no slot's model key begins so", name);
    err_value_str(err, "model", name);
    return -ENOENT;
}
