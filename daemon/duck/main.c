/* fp9-duck: the list of what happens, in order. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

#include "daemon/duck/cores.h"
#include "daemon/duck/keep.h"
#include "daemon/duck/loop.h"
#include "daemon/duck/options.h"
#include "daemon/duck/prealloc.h"
#include "daemon/duck/serve.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/base/size.h"
#include "proto/wire/channel.h"
#include "proto/wire/transport_socket.h"

/* Within a job members wait for each other for microseconds when the work is shared out well. */
#define PHASE_SPIN_NS (100 * CLOCK_NS_PER_US)
/* A member that shows no progress for so long is lost: a tile takes well under a millisecond, and weights that were swapped out tens. */
#define STALL_NS (10 * CLOCK_NS_PER_S)

static int refuse(const struct err *err)
{
    log_error("duck", "%s", err->message);
    return EXIT_FAILURE;
}

/* fd: of the weight buffer, -1 for a new one; taken. */
static int open_weights(const struct options *options, int fd, struct wbuf **ret_wbuf, struct err *err)
{
    char note[WBUF_NOTE_MAX], size[32];
    uint64_t bytes = options->memory ? options->memory : options_default_memory();
    int r = wbuf_open(fd, bytes, options_huge(options), ret_wbuf, note, err);
    if (r < 0)
        return r;
    /* Kernel processes inherit it; nothing else is ever executed. */
    if (fcntl(wbuf_fd(*ret_wbuf), F_SETFD, 0) < 0)
        return err_errno(err, "weight buffer");
    char all[32];
    if (bytes > options_machine_memory())
        log_warning("duck",
                    "memory %s is more than the %s that this machine, or its control group (MemoryMax=), has: who takes more is killed "
                    "by the kernel; make it smaller",
                    size_format(bytes, size, sizeof size), size_format(options_machine_memory(), all, sizeof all));
    log_info("duck", "weight buffer of %s, boot id %s: %s", size_format(wbuf_capacity(*ret_wbuf), size, sizeof size),
             wbuf_boot_id(*ret_wbuf), note);
    return 0;
}

static struct team_setup team_of(const struct options *options, const struct cores *cores)
{
    struct team_setup setup = {.members = cores->members, .cpus = cores->cpus, .bind = cores->bind, .stall_ns = STALL_NS};
    if (options->member_cpu >= 0 && CPU_ISSET(options->member_cpu, &cores->cpus)) {
        CPU_ZERO(&setup.cpus);
        CPU_SET(options->member_cpu, &setup.cpus);
        setup.bind = true;
        return setup; /* the CPU is not its own: it does not spin */
    }
    if (!cores->spin)
        return setup;
    setup.job_spin_ns = options_spin_ns(options);
    setup.phase_spin_ns = setup.job_spin_ns == 0 ? 0 : setup.job_spin_ns > PHASE_SPIN_NS ? setup.job_spin_ns : PHASE_SPIN_NS;
    return setup;
}

/* Kernel processes inherit neither descriptor. */
static int open_channel(const struct options *options, struct channel **ret_channel, struct err *err)
{
    if (options->bell_fd < 0)
        return err_set(err, -EINVAL, ERR_BAD_REQUEST, "--channel-fd: goes with --bell-fd");
    int r = channel_open(options->channel_fd, ret_channel, err);
    if (r < 0)
        return err_prefix(err, "--channel-fd");
    if (fcntl(options->channel_fd, F_SETFD, FD_CLOEXEC) < 0 || fcntl(options->bell_fd, F_SETFD, FD_CLOEXEC) < 0)
        return err_errno(err, "--channel-fd, --bell-fd");
    return 0;
}

/* The link of a local duck: fp9d's child. */
static int serve_child(const struct options *options, struct err *err)
{
    struct link_facts facts = {.name = options->name};
    struct cores cores;
    /* fp9d's death closes the link, which ends the loop; the signal is for the time before it. Whoever died before this line has
     * closed the link already, so there is no race to lose. */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    int r = loop_block_signals(err);
    if (r < 0)
        return r;
    _cleanup_(transport_closep) struct transport *transport = NULL;
    r = transport_socket_new(options->link_fd, &transport, err);
    if (r < 0)
        return err_prefix(err, "--link-fd");
    _cleanup_(channel_freep) struct channel *channel = NULL;
    if (options->channel_fd >= 0)
        r = open_channel(options, &channel, err);
    if (r < 0)
        return r;
    r = cores_apply(options->cores, options->members, &cores, err);
    if (r < 0)
        return r;
    facts.cores = cores.members;
    r = kernels_select(getenv("FP9_CPU"), err);
    if (r < 0)
        return err_prefix(err, "FP9_CPU");
    _cleanup_(wbuf_freep) struct wbuf *wbuf = NULL;
    r = open_weights(options, options->weights_fd, &wbuf, err);
    if (r < 0)
        return r;
    _cleanup_(stage_release) struct stage stage = {0};
    if (options->stage_fd >= 0) {
        r = stage_open(options->stage_fd, &stage, err);
        if (r < 0)
            return err_prefix(err, "--stage-fd");
        facts.stage = &stage;
    }
    _cleanup_(prealloc_freep) struct prealloc *prealloc = NULL;
    r = options->prealloc ? prealloc_start(wbuf, &prealloc, err) : 0;
    if (r < 0)
        return r;
    char text[CORES_TEXT_SIZE];
    log_info("duck", "%s serves over descriptor %d with %s, kernels %s", options->name, options->link_fd, cores_text(&cores, text),
             kernels_variant_name());
    struct team_setup setup = team_of(options, &cores);
    const struct loop_channel beside = {.channel = channel, .bell_fd = options->bell_fd, .may_spin = cores.spin};
    return loop_run(transport, &facts, wbuf, &setup, NULL, channel ? &beside : NULL, err);
}

/* What every link of a service has in common. */
struct service {
    struct link_facts facts;
    struct wbuf *wbuf;         /* owned */
    struct prealloc *prealloc; /* owned */
    struct team_setup setup;
};

static void service_release(struct service *service)
{
    prealloc_free(service->prealloc);
    wbuf_free(service->wbuf);
}

static int service_link(void *user, struct transport *transport, const struct loop_beside *beside, struct err *err)
{
    struct service *service = user;
    return loop_run(transport, &service->facts, service->wbuf, &service->setup, beside, NULL, err);
}

/* A service of its own. */
static int serve_service(const struct options *options, struct err *err)
{
    struct cores cores;
    char text[CORES_TEXT_SIZE];
    _cleanup_(service_release) struct service service = {.facts = {.name = options->name}};
    int r = serve_check(options, err);
    if (r == 0)
        r = loop_block_signals(err);
    if (r == 0)
        r = cores_apply(options->cores, options->members, &cores, err);
    if (r < 0)
        return r;
    service.facts.cores = cores.members;
    service.setup = team_of(options, &cores);
    r = kernels_select(getenv("FP9_CPU"), err);
    if (r < 0)
        return err_prefix(err, "FP9_CPU");
    int kept = options->weights_fd >= 0 ? options->weights_fd : keep_take(options->memory);
    r = open_weights(options, kept, &service.wbuf, err);
    if (r < 0)
        return r;
    if (kept < 0)
        keep_store(wbuf_fd(service.wbuf));
    r = options->prealloc ? prealloc_start(service.wbuf, &service.prealloc, err) : 0;
    if (r < 0)
        return r;
    log_info("duck", "%s listens on %s in plaintext with %s, kernels %s", options->name, options->listen, cores_text(&cores, text),
             kernels_variant_name());
    return serve_tcp(options, service_link, &service, err);
}

int main(int argc, char **argv)
{
    log_set_program("fp9-duck");
    struct err err = {0};
    _cleanup_(options_release) struct options options = OPTIONS_NONE;
    int r = options_read(argc, argv, &options, &err);
    if (r > 0)
        return r - 1;
    if (r < 0)
        return refuse(&err);
    if (options.check_config) {
        struct cores cores;
        r = options.link_fd < 0 ? serve_check(&options, &err) : 0;
        if (r == 0)
            r = cores_apply(options.cores, options.members, &cores, &err);
        if (r < 0)
            return refuse(&err);
        printf("fp9-duck: the configuration is good\n");
        return EXIT_SUCCESS;
    }
    r = options.link_fd < 0 ? serve_service(&options, &err) : serve_child(&options, &err);
    return r < 0 ? refuse(&err) : EXIT_SUCCESS;
}
