/* Runs the steps of a case on a device through device.h's public functions. Failures end the test. */
#ifndef TESTS_COMMON_DEVICE_OP_RUNNER_H
#define TESTS_COMMON_DEVICE_OP_RUNNER_H

#include "common/device/device.h"
#include "tests/common/device/op_case.h"
#include "tests/support/check.h"

typedef struct op_runner {
    const op_case *c;
    device *device; /* borrowed */
    device_stream *stream;
    device_memory memory[CASE_MAX_TENSORS];
    device_layout layouts[CASE_MAX_TENSORS]; /* Layouts of parameters. */
    device_kernel *kernels[CASE_MAX_STEPS];
    device_memory workspace[CASE_MAX_STEPS];
} op_runner;

void op_runner_open(device *d, const op_case *c, op_runner *out);
void op_runner_close(op_runner *r);

/* Copies all tensors from the host to the device, with guards before and after each. */
void op_runner_load(op_runner *r, const case_state *state);
void op_runner_run(op_runner *r, int first_step, int end_step);
/* Copies all tensors from the device to the host. Fails if a guard was overwritten. */
void op_runner_store(op_runner *r, case_state *state);

/* Loads `from`, runs one step, and stores to `to`. */
void op_runner_step(op_runner *r, int step, const case_state *from, case_state *to);

/* Returns whether the device stores the tensor as bfloat16. */
bool op_runner_is_bf16(const op_runner *r, int tensor);

/* Rounds the values of a state to the types in which the device stores them. */
void op_runner_round(const op_runner *r, case_state *state);

#endif
