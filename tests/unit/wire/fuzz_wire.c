/* Random and mutated frames through the reader, every decoder and the dump. The sanitizers judge; here it is only counted that both
 * verdicts occur. Usage: fuzz_wire [SEED [ROUNDS]]; the seed is printed. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/wire/dump.h"
#include "tests/unit/wire/samples.h"

static uint64_t state;

static uint64_t next(void)
{
    state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static const uint8_t interesting[] = {0, 1, 0x7f, 0x80, 0xff, 0x10, 0x40};

static void mutate(uint8_t *data, size_t length)
{
    for (uint64_t n = next() % 4; n > 0 && length > 0; n--) {
        size_t at = next() % length;
        data[at] = next() % 2 ? (uint8_t)next() : interesting[next() % sizeof interesting];
    }
}

/* Memory of exactly the payload's size for each frame, so that one byte too far is caught. */
static int decode_tight(const struct frame *frame, struct err *err)
{
    uint8_t *copy = malloc(frame->length ? frame->length : 1);
    memcpy(copy, frame->payload, frame->length);
    struct frame tight = *frame;
    tight.payload = copy;
    char text[WIRE_DUMP_MAX];
    wire_dump(&tight, text, sizeof text);
    int r = samples_decode(&tight, err);
    free(copy);
    return r;
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 0) : 60000;
    uint64_t good = 0, bad = 0, streams_bad = 0;
    printf("seed %" PRIu64 "\n", seed);
    state = seed;
    struct buf buf = {0};
    size_t offsets[SAMPLES + 1];
    samples_make(&buf, offsets);
    for (uint64_t round = 0; round < rounds; round++) {
        int i = (int)(next() % SAMPLES);
        size_t length = offsets[i + 1] - offsets[i];
        uint8_t data[1024];
        memcpy(data, buf.data + offsets[i], length);
        struct frame frame = samples_frame(data, length);
        struct err err = {0};
        if (round % 3 == 0) { /* a payload under another type's name */
            int other = (int)(next() % SAMPLES);
            frame.type = samples_frame(buf.data + offsets[other], offsets[other + 1] - offsets[other]).type;
        }
        mutate(data + WIRE_FRAME_HEADER, frame.length);
        if (next() % 4 == 0)
            frame.length = (uint32_t)(next() % (frame.length + 1));
        int r = decode_tight(&frame, &err);
        if (r != 0 && (r != -EPROTO || err.message[0] == '\0')) {
            fprintf(stderr, "seed %" PRIu64 " round %" PRIu64 ": %d \"%s\"\n", seed, round, r, err.message);
            return 1;
        }
        good += r == 0;
        bad += r != 0;

        /* The stream as a whole: mutated headers too. */
        if (round % 16 == 0) {
            struct frame_reader reader = {0};
            size_t room;
            uint8_t *to = frame_reader_room(&reader, &room);
            memcpy(to, buf.data, buf.length);
            mutate(to, buf.length);
            frame_reader_added(&reader, buf.length - next() % 8);
            while ((r = frame_reader_next(&reader, &frame, &err)) == 1)
                (void)decode_tight(&frame, &err);
            streams_bad += r < 0;
            frame_reader_release(&reader);
        }
    }
    buf_release(&buf);
    printf("%" PRIu64 " decoded, %" PRIu64 " refused, %" PRIu64 " streams refused\n", good, bad, streams_bad);
    return good > 0 && bad > 0 && streams_bad > 0 ? 0 : 1;
}
