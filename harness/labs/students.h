/* Starts and serves the processes that run a student's code. Each process is confined, limited in time and
 * memory, and has one socket to the grader. */
#ifndef HARNESS_LABS_STUDENTS_H
#define HARNESS_LABS_STUDENTS_H

#include "harness/labs/grader.h"
#include "labs/runner/messages.h"

#include <sys/types.h>

/* Limits of a process. The grader gives up after STUDENT_WAIT_SECONDS if all processes sleep, because no
 * message will come. If some process computes, the grader waits STUDENT_SILENCE_SECONDS, because on a
 * loaded machine a process may take long to use its processor time. */
enum { STUDENTS_MOST = 8, STUDENT_CPU_SECONDS = 2, STUDENT_WAIT_SECONDS = 3, STUDENT_SILENCE_SECONDS = 120 };
enum { CALL_MOST_RESULTS = 16384 };

typedef struct student_process {
    pid_t pid;
    int socket, printed_fd;
    char *in, *out; /* `in`: received bytes that are not handled yet; `out`: bytes to send */
    size_t in_size, out_size, out_sent;
    text_buffer printed; /* first 16 KiB of stdout and stderr */
} student_process;

typedef struct students students;
/* Handles a complete message of a process, with data[0..m.bytes). */
typedef void student_handler(void *context, students *s, int rank, runner_message m, const char *data);

struct students {
    const grader *g;
    lab_test *t; /* receives the failures of the processes */
    bool timed;
    int count;
    student_process process[STUDENTS_MOST];
    student_handler *handler;
    void *context;
    bool finished; /* true if the handler needs no more messages, or after a failure */
    bool out_of_memory;
    char where[48]; /* text at the beginning of a failure's message */
    double result[CALL_MOST_RESULTS];
    int result_count; /* number of results of the last call, or a LAB_E... code */
};

/* Ends the processes that run, and starts `count` processes of the sanitized program. The grader ends them at
 * the end of the test. If the test has failed, the grader shows their output. */
status students_start(grader *g, lab_test *t, int count, students **out);
/* Starts processes of the fast program, with links of `capacity` elements in the shared memory `shared`. */
status students_start_timed(grader *g, lab_test *t, int count, int64_t capacity, int shared, students **out);
void students_send(students *s, int rank, runner_message m, const void *data);
/* Sends a message with the data head[0 .. head_bytes), then data[0 .. bytes). Sets m.bytes. */
void students_send_two(students *s, int rank, runner_message m, const void *head, size_t head_bytes,
                       const void *data, size_t bytes);
/* Sends a message without data. */
void students_answer(students *s, int rank, int code, int64_t n);
/* Serves messages. Returns when the handler sets `finished`, or after a failure. */
status students_serve(students *s, student_handler *handler, void *context);
/* Fails the test and finishes. */
void students_fail(students *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Kills the remaining processes, and frees their memory. */
void students_end(grader *g);

/* ---- call.c ---- */
/* Calls function `which` (labs/runner/call.h) with in[0..n). The results are in s->result. Fails the test if
 * the function crashes, hangs or has not been written yet. */
status students_call(students *s, int which, const double *in, int n);
/* Does the same as students_call(), but accepts any number of results and any LAB_E... code. */
status students_call_unchecked(students *s, int which, const double *in, int n);

/* Runs `harness COMMAND`, with --trace if `trace` is not NULL, and reads the JSON that it prints. *out is a
 * new reference. No word of the command may hold a blank. */
status program_json(json_t **out, const char *trace, const char *command, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- build.c ---- */
/* Runs a tool, such as the compiler, which can open only files of the folders that it needs. Appends the
 * tool's output. *code is the tool's exit code, or 128 + signal. */
status tool_run(const grader *g, char *const argv[], text_buffer *printed, int *code);

/* Limits the files that a child may use, before exec. The child may read the files of the system and of
 * the labs, and the build folder. If `write`, it may also write to the build folder. Returns -1 if the
 * kernel lacks Landlock. */
int limit_files(const grader *g, bool write);

/* Sets up a child that runs a program: its input is empty, its output goes to descriptor `printed`, and it is
 * killed when the grader ends. */
void child_begin(int printed);

extern volatile int grader_interrupted; /* number of the signal that asks the grader to stop, or 0 */

#endif
