/* The form of a data set, or of a model's input and targets. A form contains the shapes and types of samples
 * and targets. */
#ifndef COMMON_DATA_FORM_H
#define COMMON_DATA_FORM_H

#include <stddef.h>
#include <stdint.h>

struct nn_model;

typedef enum data_kind { DATA_IMAGE, DATA_FEATURES, DATA_TOKENS } data_kind;

/* The kind of a sample's target, and the layout of the targets in a batch of `count` samples. */
typedef enum data_target {
    DATA_TARGET_CLASS,  /* int32 (count): one class in [0, classes) per sample */
    DATA_TARGET_VALUES, /* float32 (count, classes): values, for a regression */
    DATA_TARGET_MASKED, /* int32 (count, sequence): token, or LOSS_IGNORE at a position without a target */
    DATA_TARGET_NEXT    /* int32 (count, sequence): the token that follows each position */
} data_target;

enum { DATA_MAX_CHANNELS = 4 };

typedef struct data_form {
    data_kind kind;
    data_target target;
    int64_t h, w, c;    /* height, width and channels of images */
    int64_t features;   /* number of features of feature vectors */
    int64_t sequence;   /* number of tokens per sample of token sequences */
    int64_t vocabulary; /* vocabulary size of token sequences, whose tokens are in [0, vocabulary) */
    int64_t classes;    /* number of classes, or number of values per sample if targets are values */
} data_form;

/* Returns the number of elements of the input of one sample (h * w * c, features or sequence). */
int64_t data_form_input_elements(const data_form *form);
int64_t data_form_target_elements(const data_form *form);

/* Formats a form, for example "images of 3x32x32 with 10 classes" (channels, height, width), "13 features
 * with 3 classes" or "sequences of 128 tokens out of 30522 with masked targets". 128 bytes are enough.
 * Returns `buffer`. */
char *data_form_format(char *buffer, size_t size, const data_form *form);

/* Returns the form of a model's input and targets. The targets are values if the loss is the mean squared
 * error. A model that has an output for every token has next-token targets if its attention is causal, else
 * masked targets. */
data_form data_form_of_model(const struct nn_model *model);

#endif
