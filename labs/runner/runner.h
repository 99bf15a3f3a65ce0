/* The program around a student's functions: one process, which talks to the grader through one socket and may
 * do nothing else. Each lab adds the part that carries its messages: runner_run(). */
#ifndef LABS_RUNNER_RUNNER_H
#define LABS_RUNNER_RUNNER_H

#include <stdint.h>

/* The grader's socket; the memory that the ranks of a timed run share, where there is any. */
enum { RUNNER_SOCKET = 3, RUNNER_SHARED = 4 };

/* A message: this, then `bytes` bytes. The lab gives `kind`, `code` and `n` their meaning. */
typedef struct runner_message {
    int32_t kind, code;
    int64_t n, bytes;
} runner_message;

/* Kinds of all labs. */
enum { RUNNER_CASE = 1, RUNNER_RESULT, RUNNER_FIRST_OF_LAB };

/* Ends the process where the grader is gone: nobody reads a result any more. */
void runner_write(runner_message m, const void *data);
runner_message runner_read(void);
void runner_read_data(void *data, int64_t bytes);

/* The most that the student's code has had allocated since runner_watch_memory(), in bytes; 0 where it is not
 * counted (only the address sanitizer counts). */
void runner_watch_memory(void);
int64_t runner_most_memory(void);

/* A lab's part: serves the grader until it closes the socket. `words` follow the program's name. `set_up`
 * ends set-up: after it no file can be opened. */
void runner_run(char **words, void (*set_up)(void));

#endif
