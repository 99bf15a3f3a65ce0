/* The program around a student's functions: one process, which exchanges messages with the grader through one
 * socket and may do nothing else. Each lab adds runner_case(), which exchanges the messages of the lab. */
#ifndef LABS_RUNNER_RUNNER_H
#define LABS_RUNNER_RUNNER_H

#include "labs/runner/messages.h"

#include <stddef.h>

/* Arguments of the command line: the rank of this process, the number of ranks, and the capacity of a link in
 * elements. The capacity is 0 if the run is not timed. */
extern int runner_rank, runner_size;
extern size_t runner_capacity;

/* Send a message; send a message and receive the header of the answer; receive the data that follow a header.
 * The three functions end the process if the grader has closed the socket. */
void runner_write(runner_message m, const void *data);
runner_message runner_ask(runner_message m, const void *data);
void runner_read_data(void *data, int64_t bytes);

/* Returns zeroed memory of exactly this size, so that the sanitizer finds accesses beyond the end of the
 * memory. Ends the process if there is no memory. */
void *runner_memory(size_t bytes);

/* Measure the most bytes that the student's code had allocated at one time since runner_watch_memory(). Only
 * the address sanitizer counts allocations. Without it the result is 0. */
void runner_watch_memory(void);
int64_t runner_most_memory(void);

/* Calls the student's function for the case `m` with data[0 .. m.bytes), and sends RUNNER_RESULT. Each lab
 * defines runner_case(). */
void runner_case(runner_message m, void *data);

#endif
