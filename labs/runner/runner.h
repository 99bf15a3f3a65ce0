/* The program around a student's functions: one process, which exchanges messages with the grader through one
 * socket and may do nothing else. Each lab adds runner_case(), which exchanges the messages of the lab. */
#ifndef LABS_RUNNER_RUNNER_H
#define LABS_RUNNER_RUNNER_H

#include "labs/runner/messages.h"

#include <stddef.h>

/* Words of the command line: rank of this process, number of ranks, and elements of a link in a timed run,
 * else 0. */
extern int runner_rank, runner_size;
extern size_t runner_capacity;

/* Send and receive. End the process if the grader is gone. */
void runner_write(runner_message m, const void *data);
runner_message runner_read(void);
void runner_read_data(void *data, int64_t bytes);

/* Returns zeroed memory of exactly this size, so that the sanitizer finds accesses beyond its end. Ends the
 * process if there is no memory. */
void *runner_memory(size_t bytes);

/* Count the most bytes that the student's code has had allocated since runner_watch_memory(). Only the
 * address sanitizer counts. Without the sanitizer the result is 0. */
void runner_watch_memory(void);
int64_t runner_most_memory(void);

/* Calls the student's function for the case `m` with data[0 .. m.bytes), and sends RUNNER_RESULT. Each lab
 * defines runner_case(). */
void runner_case(runner_message m, void *data);

#endif
