/* The parts of the labs and their questions, each in a file lab_NAME.c. */
#ifndef HARNESS_LABS_LABS_H
#define HARNESS_LABS_LABS_H

#include "harness/labs/grader.h"

extern const lab_part count_bytes_parts[], reducer_parts[], ring_parts[], alpha_beta_parts[], buckets_parts[],
    stragglers_parts[], memory_parts[], choose_parts[];

typedef void lab_questions(uint64_t seed, text_buffer *out);
lab_questions count_bytes_ask, reducer_ask, ring_ask, alpha_beta_ask, buckets_ask, stragglers_ask, memory_ask,
    choose_ask;

/* Runs a hidden test of lab 3, a line "RANKS ELEMENTS". */
status ring_hidden(grader *g, lab_test *t, const char *words);

#endif
