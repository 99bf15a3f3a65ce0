/* Status codes and the error record.
 *
 * Every fallible function returns a `status`.  The first failure on a thread
 * writes one line into that thread's record; callers may put context in front
 * of it and pass the code up with TRY.  Nothing here prints or exits: only the
 * program's main function turns a status into a message and an exit code. */
#ifndef COMMON_BASE_STATUS_H
#define COMMON_BASE_STATUS_H

#include <stddef.h>

/* name, exit code of the process, what it means */
#define STATUS_LIST(X)                                                                                       \
    X(OK, 0, "success")                                                                                      \
    X(AGAIN, 70, "not finished: call again later")                                                           \
    X(MISMATCH, 1, "a comparison or a threshold failed")                                                     \
    X(USAGE, 64, "wrong command line")                                                                       \
    X(DATA, 65, "input data missing, truncated or of the wrong kind")                                        \
    X(UNAVAILABLE, 69, "a service or an address is not available")                                           \
    X(INTERNAL, 70, "a defect of this program")                                                              \
    X(SYSTEM, 71, "the system refused memory, a thread or a descriptor")                                     \
    X(CANNOT_CREATE, 73, "an output file cannot be created")                                                 \
    X(IO, 74, "reading or writing failed")                                                                   \
    X(PEER, 75, "a peer was lost or did not reply in time")                                                  \
    X(PROTOCOL, 76, "a peer has another version, configuration or data")                                     \
    X(PERMISSION, 77, "not permitted")                                                                       \
    X(CONFIG, 78, "a configuration that cannot run")                                                         \
    X(NONFINITE, 79, "a loss, a gradient or a parameter is not finite")                                      \
    X(STOPPED, 130, "stopped on request")

#define STATUS_ENUM(name, code, text) STATUS_##name,
typedef enum status { STATUS_LIST(STATUS_ENUM) STATUS_COUNT } status;
#undef STATUS_ENUM

/* "DATA", and the exit code that the command line promises for it. */
const char *status_name(status code);
int status_exit_code(status code);

/* Records the message unless an earlier failure of this thread is still recorded; returns `code`. */
status fail(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Does what fail() does, and appends the text of errno. The code becomes STATUS_SYSTEM if memory or
 * descriptors have run out. STATUS_SYSTEM also names the limit that the errno stands for:
 * "(ulimit -n 40)". */
status fail_errno(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " in front of the recorded message. */
void error_context(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The recorded message of this thread, "" if there is none. The next fail() may change it. */
const char *error_message(void);
status error_code(void);
void error_clear(void);

/* Moves a record between threads: copy on the thread that failed, adopt on the other. */
typedef struct error_record {
    status code;
    char message[1024];
} error_record;
void error_copy(error_record *out);
status error_adopt(const error_record *record);
/* Gives this thread the record `to`, or its own again if `to` is NULL. Returns the record before. A fiber has
 * a record of its own. */
error_record *error_switch(error_record *to);

/* The only macros that jump. */
#define TRY(expression)                                                                                      \
    do {                                                                                                     \
        status try_status_ = (expression);                                                                   \
        if (try_status_ != STATUS_OK) return try_status_;                                                    \
    } while (0)

#define TRY_GOTO(result, expression, label)                                                                  \
    do {                                                                                                     \
        (result) = (expression);                                                                             \
        if ((result) != STATUS_OK) goto label;                                                               \
    } while (0)

#endif
