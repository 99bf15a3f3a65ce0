/* The form of a sample: what a data set holds, and what a model takes. */
#ifndef COMMON_DATA_FORM_H
#define COMMON_DATA_FORM_H

#include <stddef.h>
#include <stdint.h>

struct nn_model;

typedef enum data_kind { DATA_IMAGE, DATA_FEATURES, DATA_TOKENS } data_kind;

/* What a sample's target is, and how targets lie in a batch of `count` samples. */
typedef enum data_target {
    DATA_TARGET_CLASS,  /* int32 (count): a class in [0, classes) */
    DATA_TARGET_VALUES, /* float32 (count, classes): regression */
    DATA_TARGET_MASKED, /* int32 (count, sequence): LOSS_IGNORE where a position has no target */
    DATA_TARGET_NEXT    /* int32 (count, sequence): the token that follows each position */
} data_target;

enum { DATA_MAX_CHANNELS = 4 };

typedef struct data_form {
    data_kind kind;
    data_target target;
    int64_t h, w, c;    /* images */
    int64_t features;   /* feature vectors */
    int64_t sequence;   /* token sequences: tokens per sample */
    int64_t vocabulary; /* token sequences: tokens are in [0, vocabulary) */
    int64_t classes;    /* of a class or token target; columns of a regression target */
} data_form;

/* Elements of one sample's input (h * w * c, features, sequence) and target. */
int64_t data_form_input_elements(const data_form *form);
int64_t data_form_target_elements(const data_form *form);

/* "images of 3x32x32 with 10 classes" (channels, height, width: as --data takes it), "13 features with 3
 * classes", "sequences of 128 tokens out of 30522 with masked targets". 128 bytes hold any. Returns
 * `buffer`. */
char *data_form_format(char *buffer, size_t size, const data_form *form);

/* What a finished model takes. Regression where its loss is the mean squared error; for outputs at every
 * token next-token targets where its attention is causal, masked ones where not. */
data_form data_form_of_model(const struct nn_model *model);

#endif
