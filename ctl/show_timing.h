/* The short form of timing words (status, session.list, metrics) as text. */
#ifndef FP9_CTL_SHOW_TIMING_H
#define FP9_CTL_SHOW_TIMING_H

#include <jansson.h>

#include "ctl/table.h"

/* "61.2 / 90.5" of {p50, p99}. */
void show_timing_pair(const json_t *pair, char ret_text[TABLE_TEXT_MAX]);
/* Gives an entry of session.list the cells wait, gap, ratio and last. */
void show_timing_spread(json_t *row);
/* One line; nothing for null. */
void show_timing_line(const json_t *timing);

#endif
