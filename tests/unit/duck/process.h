/* A real fp9-duck over a socketpair, as a head sees it. Every wait has a limit; whatever is not as expected fails the test. */
#ifndef FP9_TESTS_DUCK_PROCESS_H
#define FP9_TESTS_DUCK_PROCESS_H

#include <sys/types.h>

#include "proto/wire/transport.h"
#include "tests/unit/duck/model.h"

struct process {
    pid_t pid;
    struct transport *transport;
    struct frame_reader reader;
    struct transport_queue out;
    uint64_t request; /* the last one used */
};

extern const char *process_duck;    /* path of fp9-duck */
extern int process_stage;           /* a memfd for its --stage-fd, -1 to leave it out */
extern const char *process_members; /* value of its --members, NULL to leave it out */

/* main's arguments: the path of fp9-duck, which goes to process_duck. False: that was wrong, and is said. */
bool process_arguments(int argc, char **argv);
/* A new memfd for a duck's buffer, 16 MiB. */
int process_weights(void);
/* isa: FP9_CPU for it, NULL to leave it out. */
void process_start(struct process *p, int weights_fd, const char *isa);
void process_send(struct process *p);            /* all of p->out */
struct frame process_receive(struct process *p); /* the next frame; fails after 40 s */
struct frame process_expect(struct process *p, enum wire_type type);
/* The next frame is FAIL; its error. */
struct err process_expect_fail(struct process *p);
/* Closes our end; the exit status of the duck as waitpid gives it. */
int process_close(struct process *p);
int process_wait(struct process *p);

/* A child of the duck, 0 when there is none now. */
pid_t process_child(const struct process *p);

struct msg_hello_duck process_hello(struct process *p);
struct msg_hello_duck process_hello_with(struct process *p, uint64_t features);
struct msg_slot process_prepare(struct process *p, const struct msg_prepare_begin *words, uint64_t seed);
void process_session(struct process *p, uint64_t session, enum msg_dtype partials, bool one_shot, uint32_t max_tokens);
/* Queues a STEP and returns its request. */
uint64_t process_step(struct process *p, uint64_t session, uint32_t layer, const struct model_input *input);
uint64_t process_batch_step(struct process *p, uint64_t session, uint32_t layer, const struct model_input *input);

#endif
