/* Writes log lines to stderr: "harness: rank 3: text". Each line is one write(2), so lines of different ranks
 * never mix. Library code may log, but never prints to stdout. */
#ifndef COMMON_BASE_LOG_H
#define COMMON_BASE_LOG_H

#include "common/base/status.h"

#define LOG_LEVELS(X) X(error) X(warn) X(info) X(debug)
#define LOG_ENUM(name) LOG_##name,
typedef enum log_level { LOG_LEVELS(LOG_ENUM) } log_level;
#undef LOG_ENUM

/* Sets the highest level that is written. */
void log_set_level(log_level level);

/* Sets the text that follows "harness: " in the lines of this thread, for instance "rank 3". If `prefix` is
 * "", no text follows. Ranks may be threads of one process, so a new thread starts without a prefix. Copies
 * `prefix`. */
void log_set_prefix(const char *prefix);

void log_line(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define log_error(...) log_line(LOG_error, __VA_ARGS__)
#define log_warn(...) log_line(LOG_warn, __VA_ARGS__)
#define log_info(...) log_line(LOG_info, __VA_ARGS__)
#define log_debug(...) log_line(LOG_debug, __VA_ARGS__)

#endif
