/* job.progress notifications on standard error: one line that moves on a terminal, a line now and then elsewhere. */
#ifndef FP9_CTL_PROGRESS_H
#define FP9_CTL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "proto/client/fp9.h"

struct progress {
    bool terminal;
    bool quiet;  /* --json without a terminal: nothing is shown */
    bool open;   /* a line without its newline stands on the terminal */
    int64_t job; /* 0: any */
    time_t last; /* monotonic seconds of the last line elsewhere */
    time_t from; /* monotonic seconds; nothing is shown before, so that what is quick is not spoken of */
    char phase[32];
};

void progress_start(struct progress *progress, struct fp9_conn *conn, bool json);
/* Shows nothing within the next seconds. */
void progress_hold(struct progress *progress, unsigned seconds);
/* Ends the line and takes the callback away. */
void progress_stop(struct progress *progress, struct fp9_conn *conn);

#endif
