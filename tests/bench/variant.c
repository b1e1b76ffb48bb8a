#include "tests/bench/variant.h"

#include <errno.h>
#include <string.h>

#include "proto/base/cleanup.h"
#include "tests/bench/ours.h"
#include "tests/bench/rival.h"

static const char *chosen; /* what the programs use: beginning an fp9 variant changes the one in use */

void variants_choose(void)
{
    chosen = kernels_variant_name();
}

size_t variants_all(struct variant ret_variants[VARIANTS_MAX])
{
    size_t tiers, count = 0;
    const struct tiers_variant *ours = tiers_variants(&tiers);

    for (size_t i = 0; i < tiers && count < VARIANTS_MAX; i++)
        ret_variants[count++] = (struct variant){.name = ours[i].name, .exact = true, .tier = &ours[i]};
    for (size_t i = 0; rivals[i] && count < VARIANTS_MAX; i++)
        ret_variants[count++] = (struct variant){.name = rivals[i]->name, .exact = rivals[i]->exact, .rival = rivals[i]};
    return count;
}

bool variant_named(const char *list, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

int variant_check(const struct variant *variant, struct err *err)
{
    if (variant->rival)
        return variant->rival->check(err);
    if (!kernels_tier_available(variant->tier->tier))
        return err_set(err, -ENOTSUP, ERR_BAD_REQUEST, "this CPU or its operating system lacks what it needs");
    return 0;
}

const char *variant_isa(const struct variant *variant)
{
    return variant->rival ? variant->rival->isa() : ours_isa(variant->tier);
}

bool variant_chosen(const struct variant *variant)
{
    return variant->tier && chosen && strcmp(variant->tier->name, chosen) == 0;
}

size_t variant_item_bytes(const struct variant *variant, const struct bench_case *what)
{
    return variant->rival ? rival_item_bytes(variant->rival, what) : ours_item_bytes(what);
}

int variant_pack(const struct variant *variant, const struct bench_case *what, const struct weights *weights, uint8_t *item,
                 struct err *err)
{
    if (!variant->rival)
        return ours_pack(what, weights, item, err);
    rival_pack(variant->rival, weights, item);
    return 0;
}

void variant_begin(const struct variant *variant, const struct bench_case *what, struct vectors *vectors)
{
    vectors_clear_output(vectors, what);
    if (variant->tier)
        ours_begin(variant->tier, what, vectors);
    else
        rival_begin(variant->rival, what, vectors);
}

void variant_step(const struct variant *variant, const struct bench_case *what, struct vectors *vectors, const uint8_t *items,
                  uint32_t count, const int32_t *ids)
{
    if (variant->tier)
        ours_step(variant->tier, what, vectors, items, count, ids);
    else
        rival_step(variant->rival, what, vectors, items, ids);
}
