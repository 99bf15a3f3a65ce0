#ifndef TESTS_SUPPORT_STATUS_NAME_H
#define TESTS_SUPPORT_STATUS_NAME_H

#include "common/base/status.h"

/* Returns the name of a status code, such as "DATA". */
static inline const char *status_name(status code)
{
#define STATUS_NAME(name, exit_code, text) [STATUS_##name] = #name,
    static const char *const names[STATUS_COUNT] = {STATUS_LIST(STATUS_NAME)};
#undef STATUS_NAME
    return (unsigned)code < STATUS_COUNT ? names[code] : "UNKNOWN";
}

#endif
