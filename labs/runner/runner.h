/* The program around a student's functions: one process, which exchanges messages with the grader through one
 * socket and may do nothing else. Each lab adds runner_run(), which carries its messages. */
#ifndef LABS_RUNNER_RUNNER_H
#define LABS_RUNNER_RUNNER_H

#include <stdint.h>

/* Descriptors of the grader's socket, and of the memory that the ranks of a timed run share. */
enum { RUNNER_SOCKET = 3, RUNNER_SHARED = 4 };

/* A message: this header, then `bytes` bytes. The lab defines `kind`, `code` and `n`. */
typedef struct runner_message {
    int32_t kind, code;
    int64_t n, bytes;
} runner_message;

enum { RUNNER_CASE = 1, RUNNER_RESULT, RUNNER_FIRST_OF_LAB };

/* Send and receive. End the process if the grader is gone. */
void runner_write(runner_message m, const void *data);
runner_message runner_read(void);
void runner_read_data(void *data, int64_t bytes);

/* Count the most bytes that the student's code has had allocated since runner_watch_memory(). Only the
 * address sanitizer counts; without it the result is 0. */
void runner_watch_memory(void);
int64_t runner_most_memory(void);

/* Serves the grader until it closes the socket. `words` follow the program's name. `set_up` ends the set-up:
 * afterwards no file can be opened. Each lab defines it. */
void runner_run(char **words, void (*set_up)(void));

#endif
