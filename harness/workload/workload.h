/* A workload is one training job as seen from one GPU: its parameters and gradients, and the times and the
 * memory of one step. It comes from a trace of torch.profiler, from four numbers, or from a run
 * (harness/sim/virtual_record.c). The file's schema is docs/schemas/workload.schema.json.
 *
 *   workload_file.c     reads and writes the file
 *   workload_numbers.c  "params=350M,units=24,step=412ms,peak=31GiB"
 *   torch/              reads a trace of torch.profiler */
#ifndef HARNESS_WORKLOAD_WORKLOAD_H
#define HARNESS_WORKLOAD_WORKLOAD_H

#include "common/nn/model.h"
#include "common/nn/recording.h"

#include <jansson.h>

enum { WORKLOAD_SCHEMA_VERSION = 1 };

/* The parts of a step. They add up to the step, to the nanosecond. */
typedef enum workload_part {
    WORKLOAD_DATA,          /* wait for the batch, and its copy to the device */
    WORKLOAD_FORWARD,       /* segments of the forward pass, with the loss */
    WORKLOAD_BACKWARD,      /* segments of the backward pass */
    WORKLOAD_COMMUNICATION, /* wait for collectives that computation does not hide */
    WORKLOAD_OPTIMIZER,     /* clearing of gradients, norm and update */
    WORKLOAD_OTHER,         /* the rest */
    WORKLOAD_PARTS
} workload_part;
extern const char *const workload_part_names[WORKLOAD_PARTS]; /* "data", "forward", ... */

typedef struct workload {
    /* Parameters in registration order, units and buffers, and model->recording with the segments. A
     * parameter of bfloat16 or float16 has half as many elements here as in the job, so its bytes are right.
     */
    nn_model *model;
    int64_t part_ns[WORKLOAD_PARTS];
    int64_t part_idle_ns[WORKLOAD_PARTS]; /* part of part_ns in which the GPU idles */
    char optimizer[16];                   /* "sgd", "adam", "adamw", or "" if unknown */
    int state_count;                      /* values that the optimizer keeps per parameter */
    char gradient_type[12];               /* "float32", "bfloat16" or "float16" */
    int64_t peak_bytes;                   /* peak memory of the recorded process, or 0 if unknown */
    int64_t input_elements;               /* elements of one sample, 4 bytes each */
    int64_t rows, classes;                /* rows of the output per sample, and columns */
    /* How it was recorded: "kind" ("trace", "numbers" or "run"), "files", "device", "ranks", "missing" (an
     * array of texts), and what else its source tells. */
    json_t *source;
} workload;

/* Reads a file, or numbers if `spec` has the form NAME=VALUE,... Returns STATUS_DATA if the file is not
 * valid, and STATUS_USAGE if the numbers are not. The caller frees *out, also after a failure. */
status workload_open(const char *spec, workload *out);
void workload_free(workload *w);

int64_t workload_step_ns(const workload *w);

/* Checks that parts add up, that indices are valid, and that each gradient becomes ready at most once. `name`
 * begins the message of a failure. */
status workload_check(const workload *w, const char *name);

/* Opens a job as workload_open() does, and makes the model that replays it. Divides the times of the kernels
 * and of the update by `efficiency`. The caller owns *out. */
status workload_replay(const char *spec, double efficiency, nn_model **out);

json_t *workload_to_json(const workload *w);

#endif
