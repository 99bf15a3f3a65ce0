/* Starts and serves the processes that run a student's code. Each process is confined, limited in time and
 * memory, and has one socket to the grader. */
#ifndef HARNESS_LABS_STUDENTS_H
#define HARNESS_LABS_STUDENTS_H

#include "harness/labs/grader.h"
#include "labs/runner/runner.h"

#include <sys/types.h>

/* Limits of a process. The grader gives up after STUDENT_WAIT_SECONDS if all processes sleep, because no
 * message will come. If some process computes, the grader waits STUDENT_SILENCE_SECONDS, because on a
 * loaded machine a process may take long to use its processor time. */
enum { STUDENTS_MOST = 8, STUDENT_CPU_SECONDS = 2, STUDENT_WAIT_SECONDS = 3, STUDENT_SILENCE_SECONDS = 120 };

typedef struct student_process {
    pid_t pid;
    int socket, printed_fd;
    char *in, *out; /* received and not yet handled; to be sent */
    size_t in_size, in_capacity, out_size, out_sent, out_capacity;
    text_buffer printed; /* first 16 KiB of stdout and stderr */
} student_process;

typedef struct students students;
/* Handles a complete message of a process, with data[0..m.bytes). */
typedef void student_handler(void *context, students *s, int rank, runner_message m, const char *data);

struct students {
    const grader *g;
    bool fast;
    int count;
    student_process process[STUDENTS_MOST];
    student_handler *handler;
    void *context;
    bool finished; /* set by the handler */
    /* Failure that stops the processes, set by students_serve() or the handler, or "". */
    char failure[2048];
    bool out_of_memory;
};

/* Starts `count` processes of the program (fast or sanitized), process r with the words `words[r]`.
 * `shared` becomes RUNNER_SHARED unless it is -1. */
status students_start(const grader *g, bool fast, int count, char words[][64], int shared, students *s);
void students_send(students *s, int rank, runner_message m, const void *data);
/* Serves messages until the handler sets `finished`, or after a failure. */
status students_serve(students *s, student_handler *handler, void *context);
/* Kills the remaining processes, and frees the memory. */
void students_end(students *s);
/* Adds the output of the processes to the test's details. */
void students_printed(const students *s, lab_test *t);

/* Runs a tool such as the compiler, limited to the folders that it needs, and appends its output. *code is
 * its exit code, or 128 + signal. */
status tool_run(const grader *g, char *const argv[], text_buffer *printed, int *code);

/* Limits the files that a child may use, before exec. The child may read the files of the system and of
 * the labs, and the build folder. If `write`, it may also write to the build folder. Returns -1 if the
 * kernel lacks Landlock. */
int limit_files(const grader *g, bool write);

extern volatile int grader_interrupted; /* number of the signal that asks the grader to stop, or 0 */

#endif
