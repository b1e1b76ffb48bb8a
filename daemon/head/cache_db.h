/* The weight cache's memory in the database, from the core's side: read once before the loop runs, written as the core says. */
#ifndef FP9_HEAD_CACHE_DB_H
#define FP9_HEAD_CACHE_DB_H

#include <jansson.h>

#include "daemon/head/head.h"

#define CACHE_DB_HISTORY_SHOWN 50 /* entries that cache.list gives */

struct cache_db; /* the latest history, for cache.list */

/* After the ducks are added and before core_start: what was known of slots, losses and loads. Damage in it is logged, never fatal. */
struct cache_db *cache_db_begin(struct head *head); /* aborts when out of memory */
void cache_db_free(struct cache_db *cache);

void cache_db_save_duck(struct head *head, uint32_t duck); /* CORE_ACT_MIRROR */
void cache_db_save_losses(struct head *head);              /* CORE_ACT_SAVE_LOSSES */
void cache_db_save_revoked(struct head *head);             /* CORE_ACT_SAVE_REVOKED */
void cache_db_job_over(struct head *head, const struct core_job *job);
json_t *cache_db_history_json(const struct head *head); /* a new reference */
json_t *cache_db_losses_json(const struct head *head);

#endif
