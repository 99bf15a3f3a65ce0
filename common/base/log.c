#include "common/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static atomic_int threshold = LOG_info;
static _Thread_local char prefix[64];

const char *log_level_name(log_level level)
{
#define LOG_NAME(name) [LOG_##name] = #name,
    static const char *const names[LOG_LEVEL_COUNT] = {LOG_LEVELS(LOG_NAME)};
#undef LOG_NAME
    return (unsigned)level < LOG_LEVEL_COUNT ? names[level] : "unknown";
}

void log_set_level(log_level level)
{
    atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
}

log_level log_get_level(void)
{
    return (log_level)atomic_load_explicit(&threshold, memory_order_relaxed);
}

void log_set_prefix(const char *text)
{
    snprintf(prefix, sizeof prefix, "%s", text);
}

void log_line(log_level level, const char *format, ...)
{
    if (level > log_get_level()) return;
    char line[2048];
    int used = snprintf(line, sizeof line, "harness: %s%s%s", prefix, prefix[0] ? ": " : "",
                        level == LOG_warn ? "warning: " : "");
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    if (more < 0) return;
    size_t length = strlen(line);
    line[length++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, length);
    (void)written; /* stderr closed: nowhere to say so */
}
