#include "common/base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static _Thread_local error_record own;
static _Thread_local error_record *switched; /* record of the current fiber, or NULL outside of fibers */

static error_record *current(void)
{
    return switched ? switched : &own;
}

error_record *error_switch(error_record *to)
{
    error_record *before = switched;
    switched = to;
    return before;
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
    error_record *r = current();
    size_t used = strlen(r->message);
    struct rlimit limit;
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(r->message + used, sizeof r->message - used, " (ulimit %s %llu)", option,
                 (unsigned long long)limit.rlim_cur / unit);
}

/* Shortens quoted values to QUOTED bytes followed by "...", because values from outside of the program may
 * have any length. An apostrophe after a letter does not begin a quoted value. */
static void cut_quoted(char *text)
{
    enum { QUOTED = 200 };
    for (char *open = strchr(text, '\''), *end; open; open = *end ? strchr(end + 1, '\'') : NULL) {
        end = open;
        if (open > text && isalnum((unsigned char)open[-1])) continue;
        for (end = open + 1; *end && !(*end == '\'' && (!end[1] || strchr(" ,;:.?)", end[1])));) end++;
        char *cut = open + 1 + QUOTED;
        if (end <= cut + 3) continue;
        while ((*cut & 0xc0) == 0x80) cut--; /* never cuts inside a UTF-8 character */
        memcpy(cut, "...", 3);
        memmove(cut + 3, end, strlen(end) + 1);
        end = cut + 3;
    }
}

static status record_failure(status code, int with_errno, const char *format, va_list args)
{
    int saved = errno;
    error_record *r = current();
    char whole[4 * sizeof r->message], text[128];
    if (with_errno && (saved == ENOMEM || saved == EMFILE || saved == ENFILE)) code = STATUS_SYSTEM;
    if (r->code == STATUS_OK) {
        r->code = code;
        vsnprintf(whole, sizeof whole, format, args);
        cut_quoted(whole);
        snprintf(r->message, sizeof r->message, "%s%s%s", text_printable(whole, false),
                 with_errno ? ": " : "", with_errno ? strerror_r(saved, text, sizeof text) : "");
        int error = code == STATUS_SYSTEM && (with_errno || saved == ENOMEM) ? saved : 0;
        /* EAGAIN may mean that there is no memory for the stack of a new thread. */
        if (error == ENOMEM || error == EAGAIN) append_limit(RLIMIT_AS, "-v", 1024);
        if (error == EMFILE) append_limit(RLIMIT_NOFILE, "-n", 1);
        if (error == EAGAIN) append_limit(RLIMIT_NPROC, "-u", 1);
        if (error == EFBIG) append_limit(RLIMIT_FSIZE, "-f", 1024);
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
    error_record *r = current();
    char context[512], message[sizeof r->message];
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    memcpy(message, r->message, sizeof message);
    size_t used = strlen(context);
    memcpy(r->message, context, used);
    snprintf(r->message + used, sizeof r->message - used, ": %s", message);
    text_printable(r->message, false);
}

const char *error_message(void)
{
    return current()->message;
}

status error_code(void)
{
    return current()->code;
}

void error_clear(void)
{
    current()->code = STATUS_OK;
    current()->message[0] = '\0';
}

void error_copy(error_record *out)
{
    *out = *current();
}

status error_adopt(const error_record *from)
{
    if (current()->code == STATUS_OK) *current() = *from;
    return from->code;
}
