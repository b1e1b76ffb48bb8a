#include "proto/base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define LOG_LINE_MAX 2048

static const char *const level_words[] = {"error", "warning", "info", "debug"};

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER; /* serialises sinks */
static const char *program = "fp9";                          /* set once by main */
static log_sink sink_now;                                    /* under log_lock */
static _Atomic int level_now = LOG_LEVEL_INFO;

void log_set_program(const char *name)
{
    program = name;
}

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&level_now, level, memory_order_relaxed);
}

bool log_level_parse(const char *text, enum log_level *ret_level)
{
    for (int i = LOG_LEVEL_ERROR; i <= LOG_LEVEL_DEBUG; i++) {
        if (strcmp(text, level_words[i]) == 0) {
            *ret_level = (enum log_level)i;
            return true;
        }
    }
    return false;
}

void log_set_sink(log_sink sink)
{
    pthread_mutex_lock(&log_lock);
    sink_now = sink;
    pthread_mutex_unlock(&log_lock);
}

void log_write(enum log_level level, const char *subsystem, const char *format, ...)
{
    if ((int)level > atomic_load_explicit(&level_now, memory_order_relaxed))
        return;
    char text[LOG_LINE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* One call is one line, whatever a file name or a peer put into it. */
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20)
            *p = ' ';
    pthread_mutex_lock(&log_lock);
    if (sink_now)
        sink_now(level, subsystem, text);
    else
        fprintf(stderr, "%s: %s: %s: %s\n", program, level_words[level], subsystem, text);
    pthread_mutex_unlock(&log_lock);
}
