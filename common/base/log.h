/* Log lines on stderr: "harness: rank 3: text". Each line is one write(2), so lines of
 * several ranks never mix. Library code logs; it never prints to stdout. */
#ifndef COMMON_BASE_LOG_H
#define COMMON_BASE_LOG_H

#include "common/base/status.h"

#define LOG_LEVELS(X) X(error) X(warn) X(info) X(debug)
#define LOG_ENUM(name) LOG_##name,
typedef enum log_level { LOG_LEVELS(LOG_ENUM) } log_level;
#undef LOG_ENUM

/* Lines of a higher level are not written. */
void log_set_level(log_level level);

/* The prefix after "harness: ", for instance "rank 3"; "" for none. Per thread, since ranks may be threads of
 * one process; new threads start without one. Copied. */
void log_set_prefix(const char *prefix);

void log_line(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define log_error(...) log_line(LOG_error, __VA_ARGS__)
#define log_warn(...) log_line(LOG_warn, __VA_ARGS__)
#define log_info(...) log_line(LOG_info, __VA_ARGS__)
#define log_debug(...) log_line(LOG_debug, __VA_ARGS__)

#endif
