/* The labs, each in a file lab_NAME.c. */
#ifndef HARNESS_LABS_LABS_H
#define HARNESS_LABS_LABS_H

#include "harness/labs/grader.h"

extern const lab count_bytes_lab, reducer_lab, ring_lab, alpha_beta_lab, buckets_lab, stragglers_lab,
    memory_lab, choose_lab;

#endif
