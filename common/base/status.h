/* Status codes and the error record.
 *
 * Every function that can fail returns a `status`. The first failure on a thread writes one line into the
 * record of that thread. Callers may put context in front of the line, and pass the code up with TRY. No
 * function here prints or exits: only the main function of the program turns a status into a message and an
 * exit code. */
#ifndef COMMON_BASE_STATUS_H
#define COMMON_BASE_STATUS_H

#include <stddef.h>

/* Columns: name, exit code of the process, meaning. */
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

/* Returns the exit code of the process. */
int status_exit_code(status code);

/* Records the message unless this thread has recorded an earlier failure. Returns `code`. */
status fail(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Does the same as fail(), and appends the text of errno. If errno says that memory or descriptors have run
 * out, records and returns STATUS_SYSTEM in place of `code`. The message of STATUS_SYSTEM also names the
 * exhausted limit: "(ulimit -n 40)". */
status fail_errno(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts the formatted text and ": " in front of the recorded message. */
void error_context(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns the recorded message of this thread, or "" if there is none. The next fail() may change the
 * message. */
const char *error_message(void);
status error_code(void);
void error_clear(void);

/* Functions that move an error record to another thread. The thread that failed copies the record with
 * error_copy(), and the other thread adopts the copy with error_adopt(). */
typedef struct error_record {
    status code;
    char message[1024];
} error_record;
void error_copy(error_record *out);
status error_adopt(const error_record *record);
/* Makes `to` the error record of this thread, for instance when a fiber begins to run. If `to` is NULL,
 * restores the record that belongs to the thread. Returns the record that was set by the previous call, or
 * NULL. */
error_record *error_switch(error_record *to);

/* TRY and TRY_GOTO are the only macros that return or jump. */
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
