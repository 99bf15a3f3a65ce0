#include "common/base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static _Thread_local error_record record;

const char *status_name(status code)
{
#define STATUS_NAME(name, exit_code, text) [STATUS_##name] = #name,
    static const char *const names[STATUS_COUNT] = {STATUS_LIST(STATUS_NAME)};
#undef STATUS_NAME
    return (unsigned)code < STATUS_COUNT ? names[code] : "UNKNOWN";
}

int status_exit_code(status code)
{
#define STATUS_EXIT(name, exit_code, text) [STATUS_##name] = exit_code,
    static const int codes[STATUS_COUNT] = {STATUS_LIST(STATUS_EXIT)};
#undef STATUS_EXIT
    return (unsigned)code < STATUS_COUNT ? codes[code] : codes[STATUS_INTERNAL];
}

static void append_limit(int resource, const char *option, int unit)
{
    size_t used = strlen(record.message);
    struct rlimit limit;
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(record.message + used, sizeof record.message - used, " (ulimit %s %llu)", option,
                 (unsigned long long)limit.rlim_cur / unit);
}

/* Cuts quoted values to QUOTED bytes and "...", since those from outside may have any length. An apostrophe
 * after a letter opens no quote. */
static void cut_quoted(char *text)
{
    enum { QUOTED = 200 };
    for (char *open = strchr(text, '\''), *end; open; open = *end ? strchr(end + 1, '\'') : NULL) {
        end = open;
        if (open > text && isalnum((unsigned char)open[-1])) continue;
        for (end = open + 1; *end && !(*end == '\'' && (!end[1] || strchr(" ,;:.?)", end[1])));) end++;
        char *cut = open + 1 + QUOTED;
        if (end <= cut + 3) continue;
        while ((*cut & 0xc0) == 0x80) cut--; /* within a character of UTF-8 */
        memcpy(cut, "...", 3);
        memmove(cut + 3, end, strlen(end) + 1);
        end = cut + 3;
    }
}

static status record_failure(status code, int with_errno, const char *format, va_list args)
{
    int saved = errno;
    char whole[4 * sizeof record.message], text[128];
    if (with_errno && (saved == ENOMEM || saved == EMFILE || saved == ENFILE)) code = STATUS_SYSTEM;
    if (record.code == STATUS_OK) {
        record.code = code;
        vsnprintf(whole, sizeof whole, format, args);
        cut_quoted(whole);
        snprintf(record.message, sizeof record.message, "%s%s%s", text_printable(whole, false),
                 with_errno ? ": " : "", with_errno ? strerror_r(saved, text, sizeof text) : "");
        int error = code == STATUS_SYSTEM && (with_errno || saved == ENOMEM) ? saved : 0;
        if (error == ENOMEM || error == EAGAIN)
            append_limit(RLIMIT_AS, "-v", 1024); /* a thread has a stack */
        if (error == EMFILE) append_limit(RLIMIT_NOFILE, "-n", 1);
        if (error == EAGAIN) append_limit(RLIMIT_NPROC, "-u", 1);
    }
    errno = saved;
    return code;
}

status fail(status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    record_failure(code, 0, format, args);
    va_end(args);
    return code;
}

status fail_errno(status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    code = record_failure(code, 1, format, args);
    va_end(args);
    return code;
}

void error_context(const char *format, ...)
{
    char context[512], message[sizeof record.message];
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    memcpy(message, record.message, sizeof message);
    size_t used = strlen(context);
    memcpy(record.message, context, used);
    snprintf(record.message + used, sizeof record.message - used, ": %s", message);
    text_printable(record.message, false);
}

const char *error_message(void)
{
    return record.message;
}

status error_code(void)
{
    return record.code;
}

void error_clear(void)
{
    record.code = STATUS_OK;
    record.message[0] = '\0';
}

void error_copy(error_record *out)
{
    *out = record;
}

status error_adopt(const error_record *from)
{
    if (record.code == STATUS_OK) record = *from;
    return from->code;
}
