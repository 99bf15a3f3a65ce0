#include "common/base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

static status record_failure(status code, int with_errno, const char *format, va_list args)
{
    int saved = errno;
    if (record.code == STATUS_OK) {
        record.code = code;
        int used = vsnprintf(record.message, sizeof record.message, format, args);
        if (with_errno && used >= 0 && (size_t)used < sizeof record.message) {
            char text[128];
            const char *reason = strerror_r(saved, text, sizeof text);
            snprintf(record.message + used, sizeof record.message - (size_t)used, ": %s", reason);
        }
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
    record_failure(code, 1, format, args);
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
