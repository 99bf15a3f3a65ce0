/* Processes that run a student's code: confined, limited in time and memory, each with one socket to the
 * grader. */
#ifndef HARNESS_LABS_STUDENTS_H
#define HARNESS_LABS_STUDENTS_H

#include "harness/labs/grader.h"
#include "labs/runner/runner.h"

#include <sys/types.h>

/* A process has so much processor time, which may take a while on a loaded machine; where all of them wait,
 * nothing will come. */
enum { STUDENTS_MOST = 8, STUDENT_CPU_SECONDS = 2, STUDENT_WAIT_SECONDS = 3, STUDENT_SILENCE_SECONDS = 120 };

typedef struct student_process {
    pid_t pid;
    int socket, printed_fd;
    char *in, *out; /* received and not yet handled; to be sent */
    size_t in_size, in_capacity, out_size, out_sent, out_capacity;
    text_buffer printed; /* stdout and stderr, its first 16 KiB */
} student_process;

typedef struct students students;
/* A complete message of a process; data[0..m.bytes). */
typedef void student_handler(void *context, students *s, int rank, runner_message m, const char *data);

struct students {
    const grader *g;
    bool fast;
    int count;
    student_process process[STUDENTS_MOST];
    student_handler *handler;
    void *context;
    bool finished;      /* set by the handler */
    char failure[2048]; /* why the processes cannot go on, set by students_serve() or the handler; "": nothing
                           failed */
    bool out_of_memory;
};

/* Starts `count` processes of the program (fast or sanitized), process r with the words `words[r]`. `shared`
 * becomes RUNNER_SHARED; -1: none. */
status students_start(const grader *g, bool fast, int count, char words[][64], int shared, students *s);
void students_send(students *s, int rank, runner_message m, const void *data);
/* Until the handler sets `finished` or something has failed. */
status students_serve(students *s, student_handler *handler, void *context);
/* Kills what still runs, and frees. */
void students_end(students *s);
/* Adds what the processes printed to the test's details. */
void students_printed(const students *s, lab_test *t);

/* Runs a tool such as the compiler, limited to the folders that it needs, and appends what it prints. *code:
 * its exit code, 128 + signal. */
status tool_run(const grader *g, char *const argv[], text_buffer *printed, int *code);

/* In a child before exec: files of the system and the labs to read, the build folder to read, and to write
 * where `write`. -1: the kernel lacks Landlock. */
int limit_files(const grader *g, bool write);

extern volatile int grader_interrupted; /* by a signal that asks it to stop: its number */

#endif
