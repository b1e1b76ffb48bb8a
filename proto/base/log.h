/* Logging for programs (libraries return errors instead).
 *
 * One line per call, "<subsystem>: text". On a terminal or pipe the line goes to stderr with a level
 * word; a program may put another sink (the journal) in its place. Safe from any thread.
 */
#ifndef FP9_BASE_LOG_H
#define FP9_BASE_LOG_H

#include <stdbool.h>

enum log_level {
    LOG_LEVEL_ERROR,
    LOG_LEVEL_WARNING,
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG,
};

/* Gets whole lines, any thread, one at a time. */
typedef void (*log_sink)(enum log_level level, const char *subsystem, const char *text);

void log_set_program(const char *name); /* kept by pointer */
void log_set_level(enum log_level level);
bool log_level_parse(const char *text, enum log_level *ret_level); /* error warning info debug */
void log_set_sink(log_sink sink);                                  /* NULL: stderr */

void log_write(enum log_level level, const char *subsystem, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(subsystem, ...) log_write(LOG_LEVEL_ERROR, subsystem, __VA_ARGS__)
#define log_warning(subsystem, ...) log_write(LOG_LEVEL_WARNING, subsystem, __VA_ARGS__)
#define log_info(subsystem, ...) log_write(LOG_LEVEL_INFO, subsystem, __VA_ARGS__)
#define log_debug(subsystem, ...) log_write(LOG_LEVEL_DEBUG, subsystem, __VA_ARGS__)

#endif
