#include "common/base/log.h"

#include "common/base/text.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static atomic_int threshold = LOG_info;
static _Thread_local char prefix[64];

void log_set_level(log_level level)
{
    atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
}

void log_set_prefix(const char *text)
{
    snprintf(prefix, sizeof prefix, "%s", text);
}

void log_line(log_level level, const char *format, ...)
{
    if ((int)level > atomic_load_explicit(&threshold, memory_order_relaxed)) return;
    char line[2048];
    int used = snprintf(line, sizeof line, "harness: %s%s%s", prefix, prefix[0] ? ": " : "",
                        level == LOG_warn ? "warning: " : "");
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    if (more < 0) return;
    size_t length = strlen(text_printable(line, false));
    line[length++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, length);
    (void)written; /* If stderr is closed, the error cannot be reported. */
}
