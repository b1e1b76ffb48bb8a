/* Opens what a load is of: a checkpoint, a glance at one, or a client's memory. */
#include "daemon/head/load_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/head/db.h"
#include "daemon/head/load_glance.h"
#include "proto/base/log.h"

/* "No such file" is a poor answer when the file is there and only the unit hides it (PrivateTmp), or the service's user may not see it. */
static void explain_hidden(const char *path, struct err *err)
{
    bool tmp = strncmp(path, "/tmp/", 5) == 0 || strncmp(path, "/var/tmp/", 9) == 0;
    if (!getenv("INVOCATION_ID")) /* set by systemd for its services */
        return;
    if (err->code == -ENOENT && tmp)
        err_prefix(err, "fp9d's service has a /tmp of its own (PrivateTmp), so keep checkpoints elsewhere");
    else if (err->code == -EACCES)
        err_prefix(err, "fp9d's service runs as user %u", (unsigned)geteuid());
}

/* Disk worker. What is known of the layers without their weights: of a directory that has them, what they are; else what is remembered. */
static int open_memory(struct load *load)
{
    uint32_t layers = load->arch->layers;
    _cleanup_(freep) uint8_t(*sources)[DIGEST_SIZE] = calloc(layers, sizeof *sources);
    _cleanup_(freep) bool *known = calloc(layers, sizeof *known);
    if (!sources || !known)
        return err_no_memory(&load->err, "list of layers", layers * sizeof *sources);
    if (load->checkpoint) {
        for (uint32_t layer = 0; layer < layers; layer++)
            known[layer] = checkpoint_layer_sources(load->checkpoint, layer, sources[layer]);
        checkpoint_free(load->checkpoint);
        load->checkpoint = NULL;
    } else {
        char file[LOAD_MEMORY_FILE_MAX];
        struct buf record = {0};
        struct err err = {0};
        load_memory_file(load, file);
        int r = db_load_record(load->head->db, load->path, file, &record, &err);
        bool sound = r == 0 && record.length && checkpoint_sources_read(record.data, record.length, layers, sources, known);
        buf_release(&record);
        if (r < 0)
            log_warning("db", "model %s: what its weights were is not known: %s", load->model, err.message);
        if (!sound && load->memory_fd < 0) {
            err_set(&load->err, -ENOENT, ERR_BAD_CHECKPOINT,
                    "%s: neither an index nor any *.safetensors file: incomplete download? (weights from memory come by prepare)",
                    load->path);
            return -ENOENT;
        }
    }
    const struct checkpoint_memory memory = {.fd = load->memory_fd,
                                             .model = load->model,
                                             .sources = (const uint8_t(*)[DIGEST_SIZE])sources,
                                             .known = known,
                                             .layer = load->layer == CORE_NONE ? CHECKPOINT_LAYERS_ALL : load->layer,
                                             .binding = !load->from_memory};
    return checkpoint_open_memory(load->path, load->arch, &memory, &load->checkpoint, &load->err);
}

void load_files_open(struct load *load)
{
    checkpoint_free(load->checkpoint); /* here and not before: something may have been saved of it */
    load->checkpoint = NULL;
    checkpoint_stamp_take(load->path, &load->stamp);
    if (arch_read(load->path, &load->arch, &load->err) < 0 || (load->mtp && arch_add_mtp(load->arch, load->path, &load->err) < 0)) {
        explain_hidden(load->path, &load->err);
        return;
    }
    load->from_memory = checkpoint_dir_is_bare(load->path);
    if (load->from_memory) {
        open_memory(load);
        return;
    }
    if (!load->whole && load_glance_open(load->head->db, load->path, load->model, load->arch, &load->checkpoint))
        return;
    if (checkpoint_open(load->path, load->arch, &load->checkpoint, &load->err) < 0)
        return;
    const char *ignored = checkpoint_ignored(load->checkpoint);
    if (*ignored && !load->rests)
        log_info("load", "%s: ignored, not in the index: %s", load->path, ignored);
    load_records_read(load);
    struct err err = {0};
    if (!load->force && load_glance_save(load->head->db, load->path, &load->stamp, load->checkpoint, &err) < 0)
        log_warning("db", "%s: what it is is not remembered: %s", load->path, err.message);
    if (load->memory_fd >= 0)
        open_memory(load);
}
