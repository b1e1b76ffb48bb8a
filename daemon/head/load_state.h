/* What a load is between the core's actions and the worker threads, and its parts. Private to load*.c. */
#ifndef FP9_HEAD_LOAD_STATE_H
#define FP9_HEAD_LOAD_STATE_H

#include "daemon/head/load.h"
#include "daemon/head/load_stream.h"
#include "daemon/model/checkpoint_glance.h"

#define LOAD_MEMORY_FILE_MAX (CORE_NAME_MAX + 8)

struct load {
    struct load *next;
    struct head *head;
    uint64_t job;
    /* opening */
    char path[CORE_PATH_MAX];
    char model[CORE_NAME_MAX];
    int memory_fd;    /* owned; a client's memory, -1: none */
    uint32_t layer;   /* of a job about one, else CORE_NONE */
    bool from_memory; /* the model has no weights on disk: what they were is to be remembered */
    bool sources_saved;
    bool whole;                    /* a glance is not enough */
    struct checkpoint_stamp stamp; /* of the directory, before anything in it was read */
    struct arch *arch;             /* owned until the core takes it */
    struct checkpoint *checkpoint; /* owned */
    struct err err;
    bool opening, digesting, streaming;
    bool mtp;                   /* its MTP layers too */
    bool force;                 /* no record is trusted when it streams */
    struct load_stream *stream; /* owned; set while and after streaming */
    /* its turn on the bulk worker */
    loop_fn run, done;
    uint64_t number;               /* of those that wait the least goes first */
    bool waits, turn;              /* it waits for its turn; it has it */
    bool rests;                    /* it holds no checkpoint meanwhile: it is opened again when its turn comes */
    uint8_t identity[DIGEST_SIZE]; /* and is then to be this one still */
    /* digesting */
    struct arch shape;
    bool layers[ARCH_LAYERS_MAX];
    _Atomic bool cancelled;
    _Atomic uint64_t digest_bytes;
    /* records of digests */
    uint64_t saved_known; /* digests that the database has */
    bool scales_saved;    /* it has the scales */
    uint64_t saved_ns;
    unsigned saving; /* tasks on the disk worker that point here */
};

struct load *load_find(struct head *head, uint64_t job);

/* load_files.c, disk worker: arch and checkpoint, or err. What was open before is closed. */
void load_files_open(struct load *load);

/* load_records.c: what is remembered of the weights. */
void load_records_read(struct load *load); /* disk worker */
void load_records_save(struct load *load); /* when there is news */
/* Once its job is done: true when something is being saved now that it must not be freed before. */
bool load_records_finish(struct load *load);
void load_memory_file(const struct load *load, char text[LOAD_MEMORY_FILE_MAX]); /* where a model from memory is remembered */

/* load_turn.c: one load at a time has the bulk worker; those that wait hold no checkpoint, of which each may be tens of MB. Loop thread.
 *
 * run is called on the bulk worker when its turn comes, then done on the loop; without run, and with err, when its files are not what they
 * were, or it was cancelled while it waited. One that has its turn already goes on at once. */
void load_turn_ask(struct load *load, loop_fn run, loop_fn done);
void load_turn_cancel(struct load *load);
void load_turn_rest(struct load *load); /* closes what it holds, if it waits and nothing is being saved of it */
/* Gives it back; then, or when a load has gone, the next. */
void load_turn_end(struct load *load);
void load_turn_next(struct head *head);

#endif
