/* A folder of small files, and the parts of a rank that a checkpoint holds. */
#ifndef TESTS_COMMON_CHECKPOINT_FIXTURE_H
#define TESTS_COMMON_CHECKPOINT_FIXTURE_H

#include "common/checkpoint/checkpoint.h"
#include "models/models.h"
#include "tests/support/folder.h"

int files_in(const char *folder);

/* Returns the content of a file, allocated with malloc, or NULL if the file does not exist. */
uint8_t *read_file(const char *path, size_t *size);

/* Writes a safetensors file with `header` and `data_bytes` bytes 0, 1, 2, ... after it. */
void write_safetensors(const char *path, const char *header, size_t data_bytes);

/* The parts of a rank that a checkpoint holds. A rank_state must not move while it is open. */
typedef struct rank_state {
    model_options options;
    option_binding model_binding;
    optimizer_options optimizer_options;
    nn_model *model;
    nn_program *program;
    device *device;
    device_stream *stream;
    param_set *set;
    optimizer *optimizer;
    ledger ledger;
    checkpoint_arenas arenas;
    checkpoint_subject subject;
} rank_state;

/* Opens a rank. If `optimizer` is NULL, the rank has Adam. Skips the test if the device is not available. */
void rank_open(rank_state *r, const char *device, const model_options *options,
               const optimizer_options *optimizer);
void rank_close(rank_state *r);

/* Sets every element of every arena to a different value, which is a function of `seed` and exact in float32.
 */
void rank_fill(rank_state *r, uint64_t seed);

/* Compares all arenas bit for bit, padding included. */
void expect_same_rank(const rank_state *found, const rank_state *wanted);
void expect_same_parameters(const rank_state *found, const rank_state *wanted);

status rank_save(rank_state *r, const char *path, const checkpoint_progress *progress);
/* Loads the checkpoint. `progress` may be NULL. */
status rank_load(rank_state *r, const char *path, checkpoint_progress *progress);

extern const model_options toy_model, lenet_model, bert_model, gpt2_model;
/* A model of two blocks of convolution, BatchNorm and ReLU, and a classifier, for images of 6x6. Parameters
 * are named as in a ResNet. The model is not in models/. */
extern const model_options small_model;
extern const checkpoint_progress some_progress;

#endif
