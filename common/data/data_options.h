/* The data options of a run, as every program that trains declares them. */
#ifndef COMMON_DATA_DATA_OPTIONS_H
#define COMMON_DATA_DATA_OPTIONS_H

#include "common/base/options.h"

typedef struct data_options {
    const char *data; /* dataset.h */
    int64_t batch;    /* samples a rank and step */
    int sampler;      /* sampler_mode */
    bool drop_last;
    const char *augment; /* data_augment_parse() */
    int64_t loader_threads;
} data_options;

extern const option_table data_option_table;

#endif
