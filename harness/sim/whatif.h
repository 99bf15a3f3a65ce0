/* A workload on many numbers of GPUs, in virtual time: how step time, weak-scaling efficiency, exposed
 * communication and memory go. Every point is a job of `harness run`. */
#ifndef HARNESS_SIM_WHATIF_H
#define HARNESS_SIM_WHATIF_H

#include "common/base/text.h"
#include "harness/sim/virtual_measure.h"

#include <jansson.h>

enum { WHATIF_SIZES = 32, WHATIF_POLICIES = 8, WHATIF_POLICY_LENGTH = 120 };

typedef struct whatif_question {
    const char *profile;
    char *const *words; /* [word_count] options of `harness run`, borrowed */
    int word_count;
    int slow_rank;       /* the last of --slow among the words; -1: none */
    bool has_length;     /* the words have --steps or --epochs */
    int stages, devices; /* of --stages, and of a rank: --stages-on devices; 1: none */
    double step_ms;      /* measured on one GPU, to anchor what is computed; 0: the profile's efficiencies */
    int gpus[WHATIF_SIZES], size_count;
    char policies[WHATIF_POLICIES][WHATIF_POLICY_LENGTH];
    int policy_count;
} whatif_question;

/* Of one GPU, or of a policy on some: as `harness run` reports them, and the limits of the same over the
 * draws of the profile's constants from their ranges (--draw). */
typedef struct whatif_point {
    double step_ms, exposed_ms, waiting_ms; /* medians of the steps */
    double efficiency;    /* the step of one GPU without communication, over this step and its stages */
    double samples_per_s; /* of all steps: batches over the mean step */
    double low_ms, high_ms, least_efficiency, most_efficiency;
    int64_t most_bytes; /* the largest rank's peak */
    json_t *algorithms; /* of the job's result; NULL: no buckets */
} whatif_point;

typedef struct whatif_answer {
    whatif_point one_gpu; /* without communication */
    json_t *workload;     /* of a result */
    bool estimated;       /* the profile's efficiencies are guesses, and nothing anchors them */
    whatif_point points[WHATIF_POLICIES][WHATIF_SIZES];
} whatif_answer;

/* "8,16,...,4096" (ratios go on), "ddp:order=ready,ps=sync". STATUS_USAGE. */
status whatif_parse_gpus(const char *text, whatif_question *q);
status whatif_parse_policies(const char *text, whatif_question *q);

status whatif_ask(const whatif_question *q, whatif_answer *out);
/* Frees what it holds. */
void whatif_answer_close(whatif_answer *answer);

void whatif_text(const whatif_question *q, const whatif_answer *a, text_buffer *out);
/* A header and one line per point. */
void whatif_csv(const whatif_question *q, const whatif_answer *a, text_buffer *out);
json_t *whatif_json(const whatif_question *q, const whatif_answer *a);

#endif
