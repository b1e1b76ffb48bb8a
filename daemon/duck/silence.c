#include "daemon/duck/silence.h"

#include "proto/base/clock.h"

void silence_begin(struct silence *silence, uint32_t heartbeat_s, uint64_t now_ns)
{
    *silence = (struct silence){.heartbeat_ns = (heartbeat_s ? heartbeat_s : SILENCE_HEARTBEAT_S) * CLOCK_NS_PER_S, .looked_ns = now_ns};
}

int silence_wait_ms(const struct silence *silence, uint64_t now_ns)
{
    if (!silence->heartbeat_ns)
        return -1;
    uint64_t passed = now_ns - silence->looked_ns;
    return passed < silence->heartbeat_ns ? (int)((silence->heartbeat_ns - passed) / CLOCK_NS_PER_MS) + 1 : 0;
}

bool silence_look(struct silence *silence, uint64_t now_ns)
{
    if (!silence->heartbeat_ns || now_ns - silence->looked_ns < silence->heartbeat_ns)
        return false;
    silence->silent_looks = silence->heard ? 0 : silence->silent_looks + 1;
    silence->heard = false;
    silence->looked_ns = now_ns;
    return silence->silent_looks >= SILENCE_LOOKS;
}

uint32_t silence_limit_s(const struct silence *silence)
{
    return (uint32_t)(SILENCE_LOOKS * silence->heartbeat_ns / CLOCK_NS_PER_S);
}
