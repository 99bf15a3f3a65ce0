/* Reads a trace of torch.profiler in Chrome's format, and finds its training steps. `harness import` turns
 * one step into a workload, and `harness explain` shows what a step spends its time on.
 *
 *   trace_read.c    reads the file as a stream: JSON, or JSON compressed by gzip
 *   trace_event.c   decodes an event, and keeps it if it matters
 *   trace_steps.c   finds the steps, their passes, gradients and collectives
 *   trace_time.c    splits a step's time into slices, which add up to the step
 *   trace_parts.c   sums the parts of a step, without the profiler's time
 *   trace_ranks.c   reads the traces of several ranks, and compares their collectives
 *   trace_units.c   names the parameters, and groups them into units
 *   import.c        makes a workload from a step
 *   explain.c       lists the facts that a step proves
 *
 * Definition of a step's time. Without a GPU the compute device is the thread that calls the profiler's
 * step(), and a step lasts from one call to the next. All of this time counts as kernels.
 *
 * If there is a GPU, a step lasts from the end of the last kernel of the previous step to the end of the last
 * kernel of this step. Kernels of communication do not count. The first step begins with its first kernel. A
 * kernel belongs to the step and to the part in which the host launched the kernel. So does the gap before
 * the kernel. In a gap the GPU idles until the host has launched the next kernel. If a kernel of
 * communication runs after that, this time is exposed communication. The rest of the gap is idle time, too.
 */
#ifndef HARNESS_WORKLOAD_TORCH_TRACE_H
#define HARNESS_WORKLOAD_TORCH_TRACE_H

#include "common/base/text.h"
#include "harness/workload/workload.h"

/* A list of pairs, sorted by key and value: times and ends of ranges, or numbers and times. */
typedef struct torch_pair {
    int64_t key, value;
} torch_pair;

typedef struct torch_pairs {
    torch_pair *list; /* [count] */
    int count, capacity;
} torch_pairs;

/* Makes room for one more element of a list. Fails with STATUS_SYSTEM. */
status torch_reserve(void **list, int count, int *capacity, size_t size);
status torch_pairs_add(torch_pairs *pairs, int64_t key, int64_t value);
void torch_pairs_sort(torch_pairs *pairs);
/* Returns the number of elements whose key is at most `key`. The elements of the list are sorted by key,
 * which is their first field. */
int torch_count_until(const void *list, int count, size_t size, int64_t key);

typedef enum torch_kind {
    TORCH_OP,                   /* operation of the forward pass; id: sequence number */
    TORCH_MATRIX,               /* matrix multiplication or convolution without a sequence number */
    TORCH_NODE,                 /* evaluation of a node of the backward pass; id: sequence number */
    TORCH_ACCUMULATE,           /* evaluation of a node that accumulates a gradient, with its hooks */
    TORCH_GRADIENT,             /* accumulation of a gradient, without hooks */
    TORCH_CALL,                 /* call of a collective operation */
    TORCH_COMMS,                /* record_param_comms, within a call */
    TORCH_BACKEND,              /* work of Gloo on a collective, or NCCL's launch of a collective */
    TORCH_REDUCER,              /* copy between a gradient and a bucket of DDP */
    TORCH_SHARDING,             /* work of FSDP on the host */
    TORCH_STEP,                 /* ProfilerStep; id: number */
    TORCH_OPTIMIZER,            /* zero_grad() */
    TORCH_OPTIMIZER_STEP,       /* step() */
    TORCH_LOADER,               /* wait for the data loader */
    TORCH_MODEL,                /* DistributedDataParallel.forward */
    TORCH_LAUNCH,               /* launch of a kernel by the host; id: correlation */
    TORCH_KERNEL,               /* kernel, copy or memset; id: correlation */
    TORCH_COMMUNICATION_KERNEL, /* kernel of NCCL; id: correlation */
    TORCH_KINDS
} torch_kind;

typedef enum torch_collective_kind {
    TORCH_ALL_REDUCE,
    TORCH_BROADCAST,
    TORCH_ALL_GATHER,
    TORCH_REDUCE_SCATTER,
    TORCH_ALL_TO_ALL,
    TORCH_OTHER_COLLECTIVE,
    TORCH_COLLECTIVE_KINDS
} torch_collective_kind;
extern const char *const torch_collective_names[TORCH_COLLECTIVE_KINDS];

typedef struct torch_event {
    int64_t begin_ns, end_ns, id;
    int64_t elements;      /* elements of the gradient or of the collective's input, or -1 if unknown */
    int64_t host_ns;       /* time at which the host launched the kernel, or INT64_MIN if unknown */
    int32_t thread, shape; /* shape: index into trace->shapes, or -1 */
    int32_t group;         /* number of ranks of the collective, or 0 if unknown */
    uint8_t kind, collective, element_bytes;
    bool matrix; /* an operation or a kernel that multiplies matrices or convolves */
    bool half;   /* float16 if element_bytes is 2, else bfloat16 */
} torch_event;

typedef struct torch_trace {
    char name[256];      /* path of the file */
    torch_event *events; /* [count], by begin */
    int count, capacity;
    shape *shapes; /* [shape_count]: shapes of gradients */
    int shape_count, shape_capacity;
    json_t *description;                          /* "harness" of add_metadata_json(), or NULL */
    char device[96];                              /* "NVIDIA A100", or "CPU" */
    char optimizer[32];                           /* class, or "" if unknown */
    int rank, world;                              /* 0 of 1 unless the trace says otherwise */
    bool has_gpu, compiled, seen[TORCH_KINDS];    /* seen: kinds of which there are events */
    int64_t host_events, first_index, last_index; /* number of "Ev Idx", the smallest and the largest */
} torch_trace;

/* Reads a trace. `fd` is closed. Fails with STATUS_DATA if the file is not a trace, or does not contain all
 * events of a process. The caller frees *out, also after a failure. */
status torch_read(const char *path, torch_trace *out);
status torch_read_fd(int fd, const char *name, torch_trace *out);
void torch_free(torch_trace *t);

/* Decodes an event, whose text is JSON, and adds it to the trace if it matters. */
status torch_add_event(torch_trace *t, const char *text, size_t length, int64_t number);
/* Reads dimensions. Further dimensions are multiplied into the fourth. Returns false if they are not
 * positive or have more than SHAPE_MOST_ELEMENTS elements. */
bool torch_read_shape(const json_t *dims, shape *out);
/* Returns the size of a type that is named as in C++, in Python or in NCCL's fields. */
int torch_type_bytes(const char *type);
/* Returns true if a dimension is 0. */
bool torch_is_empty(const json_t *dims);

enum { TORCH_MOST_PARAMETERS = 20000, TORCH_MOST_TRACES = 1024 };

typedef struct torch_gradient {
    torch_event event; /* the accumulation, which ends when the gradient is ready */
    int64_t used_ns;   /* time at which the forward pass first used the parameter, on the host */
    int64_t call_ns;   /* begin of the outermost operation around that use */
    int64_t sequence;  /* number of the operation in the forward pass, or -1 */
    int parameter;     /* index of the parameter, or -1 if it is left out */
} torch_gradient;

typedef struct torch_collective {
    torch_event call;         /* the call on the host */
    int64_t begin_ns, end_ns; /* time in which the collective ran; both are 0 if the trace does not say */
    int64_t exposed_ns;       /* part of that time without computation, in the step that has slices */
    int micro_batch;          /* number, from 1, of the one whose gradients it reduces, or 0 if it does not */
} torch_collective;

/* A piece of a step's time, in the order of time. */
typedef struct torch_slice {
    int64_t host_ns; /* time on the host at which the piece was launched */
    int64_t kernel_ns, idle_ns, matrix_ns;
    workload_part part;
} torch_slice;

typedef struct torch_step {
    int64_t number;
    int64_t host_begin_ns, host_end_ns, begin_ns, end_ns; /* on the host, and on the compute device */
    int64_t forward_ns, backward_ns, backward_end_ns;     /* begin of the passes on the host */
    /* Number of backward passes since an optimizer stepped. */
    int micro_batches;
    torch_pairs passes;        /* begins and ends of all backward passes */
    int64_t recomputed_ns;     /* time of forward operations within the backward passes */
    torch_gradient *gradients; /* [gradient_count], in the order in which they become ready */
    int gradient_count, gradient_capacity;
    /* Number of gradients in the trace. If all their shapes are unknown, the reductions take their place. */
    int accumulations;
    torch_collective *collectives; /* [collective_count] */
    int collective_count, collective_capacity;
    torch_pairs parts[WORKLOAD_PARTS]; /* begins and ends on the host */
    torch_slice *slices;               /* [slice_count] */
    int slice_count, slice_capacity;
    torch_pairs
        computation; /* begins and ends of the ranges in which the GPU, or without it the thread, computes */
    int64_t busy_ns, communication_only_ns, span_ns; /* times of the GPU, from the first kernel to the last */
} torch_step;

/* Finds the steps with a backward pass. Fails with STATUS_DATA if there is none; the message of this function
 * and of the following ones does not name the file. The caller frees *out with torch_steps_free(), also after
 * a failure. */
status torch_find_steps(const torch_trace *t, torch_step **out, int *count);
void torch_steps_free(torch_step **steps, int count);

/* Sets *out to the step whose time is nearest to the median. */
status torch_typical_step(const torch_trace *t, torch_step *steps, int count, torch_step **out);

/* Returns the time within [begin, end) that the ranges cover. *at is the first range that ends after `begin`;
 * it only increases. */
int64_t torch_covered(const torch_pairs *ranges, int *at, int64_t begin, int64_t end);

/* Fills in the step's slices and computation, which add up to end_ns - begin_ns, and the exposed time of its
 * collectives. */
status torch_split_time(const torch_trace *t, torch_step *s);

/* A trace, its steps, and the parts of one of them. */
typedef struct torch_recording {
    torch_trace trace;
    torch_step *steps, *step; /* [step_count], and the one that has been split */
    int step_count;
    int64_t recorded_ns, measured_ns; /* the step with the profiler, and without it or 0 */
    bool adjusted;                    /* the parts are those without the profiler */
    int64_t kernel_ns[WORKLOAD_PARTS], idle_ns[WORKLOAD_PARTS], step_ns; /* parts, and their sum */
} torch_recording;

/* Finds the steps of r->trace, and splits the typical one, or the one with *number if `number` is not NULL.
 * Removes the profiler's time, and multiplies the times of kernels by `scale`. Frees the events. */
status torch_split_step(torch_recording *r, const int64_t *number, double scale);
/* Returns a number that add_metadata_json() has stored, or 0 if it is missing or not sensible. */
double torch_number(const torch_trace *t, const char *key);
/* Adds the rank, the device and the times of the step to a report. */
void torch_report_step(const torch_recording *r, text_buffer *out);
/* Adds the table of the parts to a report. */
void torch_report_parts(const torch_recording *r, text_buffer *out);

/* The same step of several ranks of a job. */
typedef struct torch_job {
    torch_recording *ranks; /* [count], in the order of the files */
    int count;
} torch_job;

/* Reads the traces, which must be different ranks of one job with the same collectives, and splits the
 * typical step of the first trace. The caller calls torch_job_close(), also after a failure. */
status torch_job_open(const char *const *paths, int count, double scale, torch_job *out);
void torch_job_close(torch_job *job);

/* Returns the duration of collective `i` of the step on a rank. */
int64_t torch_duration(const torch_job *job, int rank, int i);
/* Returns the least duration over the ranks: the others of them wait before they transfer. */
int64_t torch_transfer(const torch_job *job, int i);
/* Returns the time in which the collectives of a rank wait for other ranks, and the rank computes nothing.
 * Waits that overlap count once. */
int64_t torch_waiting(const torch_job *job, int rank);

/* Facts about the parameters that add_metadata_json() has stored. */
typedef struct torch_names {
    int named;            /* gradients whose names are known */
    int without_gradient; /* trained parameters without a gradient in the step */
    int left_out;         /* gradients of other tensors, or of a parameter for the second time */
    int64_t frozen_bytes; /* bytes of parameters without a gradient, trained or not */
} torch_names;

/* Adds the step's parameters and units to the workload, in the order of registration, or of the first use if
 * the trace has no names. Sets the gradients' `parameter`. */
status torch_add_parameters(const torch_trace *t, torch_step *s, workload *w, torch_names *names);

/* Imports the trace of the lowest rank. Times of kernels are multiplied by `scale`. Adds a
 * report to `out`. The caller frees *w, also after a failure. */
status torch_import(const char *const *paths, int count, double scale, workload *w, text_buffer *out);

/* Explains the typical step of the first trace, with the same step of the other traces, which must be other
 * ranks of the job. Collectives of the ranks are matched by their order in the step.
 *
 * A fact is listed only if the trace proves it:
 *   - gradients are reduced in more than one micro-batch;
 *   - the last compiled graph holds more than half of the gradients' bytes: less than half of them can then
 * be exchanged during the backward pass;
 *   - the GPU waits for its host for more than a fifth of the step: less may be the profiler's doing;
 *   - FSDP calls one reduce-scatter per backward pass;
 *   - a rank waits less for the others than each of them, by more than a fifth of the step: in the tests'
 *     traces, differences that are due to chance reach an eighth;
 *   - the data part, with a call of the data loader, is more than a tenth of the step.
 * The caller frees *json, which docs/schemas/explain.schema.json describes. */
status torch_explain(const char *const *paths, int count, json_t **json, text_buffer *out);

#endif
