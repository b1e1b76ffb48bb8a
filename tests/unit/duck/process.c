#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "proto/base/clock.h"
#include "proto/wire/msg_hello.h"
#include "proto/wire/transport_socket.h"
#include "tests/unit/duck/process.h"

#define LIMIT_MS 40000

const char *process_duck;
const char *process_members;
int process_stage = -1;

bool process_arguments(int argc, char **argv)
{
    process_duck = argc == 2 ? realpath(argv[1], NULL) : NULL; /* the ducks start in another directory */
    if (!process_duck)
        fprintf(stderr, "usage: %s FP9-DUCK\n", argv[0]);
    unsetenv("FP9_CPU");
    return process_duck;
}

int process_weights(void)
{
    int fd = memfd_create("weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 16 << 20), 0);
    return fd;
}

void process_start(struct process *p, int weights_fd, const char *isa)
{
    int ends[2];
    *p = (struct process){0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        char link[16], weights[16], stage[16];
        int link_fd = dup(ends[1]), copy = dup(weights_fd);
        snprintf(link, sizeof link, "%d", link_fd);
        snprintf(weights, sizeof weights, "%d", copy);
        if (isa)
            setenv("FP9_CPU", isa, 1);
        if (chdir("/") < 0)
            _exit(99);
        const char *argv[16] = {process_duck, "--link-fd", link, "--weights-fd", weights, "--name", "test"};
        size_t count = 7;
        if (process_members) {
            argv[count++] = "--members";
            argv[count++] = process_members;
        }
        if (process_stage >= 0) {
            snprintf(stage, sizeof stage, "%d", dup(process_stage));
            argv[count++] = "--stage-fd";
            argv[count++] = stage;
        }
        execv(process_duck, (char *const *)argv);
        _exit(98);
    }
    close(ends[1]);
    assert_int_equal(transport_socket_new(ends[0], &p->transport, NULL), 0);
}

static void wait_for(struct process *p, short events)
{
    struct pollfd wait = {.fd = p->transport->fd(p->transport), .events = events};
    if (poll(&wait, 1, LIMIT_MS) != 1)
        fail_msg("the duck did not answer within %d ms", LIMIT_MS);
}

void process_send(struct process *p)
{
    int r;
    struct err err;
    while ((r = transport_flush(p->transport, &p->out, &err)) == 0) {
        /* It may be waiting for us to read; take what it says, so that nobody waits for ever. */
        wait_for(p, POLLOUT | POLLIN);
        (void)transport_fill(p->transport, &p->reader, NULL);
    }
    if (r < 0)
        fail_msg("%s", err.message);
}

struct frame process_receive(struct process *p)
{
    struct frame frame;
    struct err err;
    int r;
    while ((r = frame_reader_next(&p->reader, &frame, &err)) == 0) {
        wait_for(p, POLLIN);
        r = transport_fill(p->transport, &p->reader, &err);
        if (r < 0)
            break;
    }
    if (r < 0)
        fail_msg("%s", err.message);
    return frame;
}

struct frame process_expect(struct process *p, enum wire_type type)
{
    struct frame frame = process_receive(p);
    if (frame.type == WIRE_FAIL && type != WIRE_FAIL) {
        struct err peer;
        assert_int_equal(msg_fail_decode(&frame, &peer, NULL), 0);
        fail_msg("%s was expected, the duck failed: %s", frame_type_name(type), peer.message);
    }
    if (frame.type != type)
        fail_msg("%s was expected, %s came", frame_type_name(type), frame_type_name(frame.type));
    return frame;
}

struct err process_expect_fail(struct process *p)
{
    struct frame frame = process_expect(p, WIRE_FAIL);
    struct err peer;
    assert_int_equal(msg_fail_decode(&frame, &peer, NULL), 0);
    return peer;
}

int process_wait(struct process *p)
{
    int status = -1;
    pid_t r = 0;
    for (int i = 0; i < LIMIT_MS / 10 && r == 0; i++) {
        r = waitpid(p->pid, &status, WNOHANG);
        if (r == 0)
            poll(NULL, 0, 10);
    }
    if (r != p->pid) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, &status, 0);
        fail_msg("the duck did not end");
    }
    transport_close(STEAL(p->transport));
    frame_reader_release(&p->reader);
    transport_queue_release(&p->out);
    return status;
}

int process_close(struct process *p)
{
    shutdown(p->transport->fd(p->transport), SHUT_RDWR);
    return process_wait(p);
}

pid_t process_child(const struct process *p)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)p->pid);
    DIR *dir = opendir(path);
    struct dirent *entry;
    int child = 0;
    while (dir && child == 0 && (entry = readdir(dir))) {
        char name[512];
        snprintf(name, sizeof name, "%s/%s/children", path, entry->d_name);
        FILE *file = fopen(name, "re");
        if (file) {
            if (fscanf(file, "%d", &child) != 1)
                child = 0;
            fclose(file);
        }
    }
    if (dir)
        closedir(dir);
    return child;
}

struct msg_hello_duck process_hello(struct process *p)
{
    return process_hello_with(p, 0);
}

struct msg_hello_duck process_hello_with(struct process *p, uint64_t features)
{
    const struct msg_hello hello = {.major = WIRE_VERSION_MAJOR, .features = features, .software = "test", .host = "here"};
    struct msg_hello_duck duck;
    assert_int_equal(msg_hello_encode(&p->out.buf, ++p->request, &hello), 0);
    process_send(p);
    struct frame frame = process_expect(p, WIRE_HELLO_DUCK);
    assert_int_equal(frame.request, p->request);
    assert_int_equal(msg_hello_duck_decode(&frame, &duck, NULL), 0);
    return duck;
}

static void send_piece(void *user, const struct msg_prepare_data *data, const float *scales, const uint8_t *codes)
{
    struct process *p = user;
    uint8_t *room;
    assert_int_equal(msg_prepare_data_encode(&p->out.buf, p->request, data, scales, &room), 0);
    memcpy(room, codes, (size_t)data->rows * data->columns);
}

struct msg_slot process_prepare(struct process *p, const struct msg_prepare_begin *words, uint64_t seed)
{
    struct msg_slot slot;
    assert_int_equal(msg_prepare_begin_encode(&p->out.buf, ++p->request, words), 0);
    model_pieces(words, seed, send_piece, p);
    assert_int_equal(msg_empty_encode(&p->out.buf, WIRE_PREPARE_END, p->request), 0);
    process_send(p);
    struct frame frame = process_expect(p, WIRE_SLOT_DONE);
    assert_int_equal(frame.request, p->request);
    assert_int_equal(msg_slot_done_decode(&frame, &slot, NULL), 0);
    return slot;
}

void process_session(struct process *p, uint64_t session, enum msg_dtype partials, bool one_shot, uint32_t max_tokens)
{
    struct msg_session_open open = {.session = session, .model_key = {0xab, 0xcd}, .max_tokens = max_tokens, .top_k_max = 5};
    open.partials = partials;
    open.one_shot = one_shot;
    assert_int_equal(msg_session_open_encode(&p->out.buf, ++p->request, &open), 0);
    process_send(p);
    process_expect(p, WIRE_SESSION_OPENED);
}

static uint64_t queue_step(struct process *p, uint64_t session, uint32_t layer, const struct model_input *input, bool batch)
{
    struct msg_step step = {.session = session, .layer = layer, .tokens = input->tokens, .top_k = input->top_k, .hidden = input->hidden};
    step.batch = batch;
    uint8_t *x, *ids, *weights;
    assert_int_equal(msg_step_encode(&p->out.buf, ++p->request, &step, &x, &ids, &weights), 0);
    memcpy(x, input->x, (size_t)input->tokens * input->hidden * 2);
    memcpy(ids, input->ids, (size_t)input->tokens * input->top_k * 4);
    memcpy(weights, input->weights, (size_t)input->tokens * input->top_k * 4);
    return p->request;
}

uint64_t process_step(struct process *p, uint64_t session, uint32_t layer, const struct model_input *input)
{
    return queue_step(p, session, layer, input, false);
}

uint64_t process_batch_step(struct process *p, uint64_t session, uint32_t layer, const struct model_input *input)
{
    return queue_step(p, session, layer, input, true);
}
