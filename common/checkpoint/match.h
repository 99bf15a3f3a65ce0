/* The tensors of a file, told apart by what the model wants. */
#ifndef COMMON_CHECKPOINT_MATCH_H
#define COMMON_CHECKPOINT_MATCH_H

#include "common/checkpoint/contents.h"
#include "common/checkpoint/safetensors.h"

/* One tensor under two names: a tied weight in a file of state_dict(). */
typedef struct match_twin {
    const safetensors_tensor *one, *other;
} match_twin;

typedef struct match {
    const safetensors_tensor **found; /* [contents->count]; NULL: a num_batches_tracked that is missing */
    bool transposed;                  /* the matrices of match_is_conv1d() are [in, out] */
    match_twin *twins;
    int twin_count;
} match;

typedef struct match_request {
    const nn_model *model;
    const checkpoint_contents *contents;
    bool foreign;     /* PyTorch's habits are met: see match.c */
    bool skips_state; /* optimizer state in the file is left alone */
} match_request;

/* Finds every tensor of the contents and checks its type and shape. STATUS_DATA names what is missing,
 * unexpected or different. */
status match_make(const safetensors_header *h, const match_request *request, match *out);
void match_free(match *m);

/* Whether `name` is of a matrix that Hugging Face's GPT-2 keeps in a Conv1D. */
bool match_is_conv1d(const char *name);

#endif
