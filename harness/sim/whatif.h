/* Scaling of a workload in virtual time: step time, weak-scaling efficiency, exposed communication and
 * memory on many numbers of GPUs. Every point is a job of `harness run`. */
#ifndef HARNESS_SIM_WHATIF_H
#define HARNESS_SIM_WHATIF_H

#include "common/base/text.h"
#include "harness/report/lost_time.h"
#include "harness/sim/virtual_measure.h"

#include <jansson.h>

enum { WHATIF_SIZES = 32, WHATIF_SCHEMA_VERSION = 6 };

/* A measured point of several GPUs has at most so many times the samples/s of as many GPUs alone. */
#define WHATIF_MOST_EFFICIENCY 1.1

typedef struct whatif_question {
    const char *profile;
    char *const *words; /* [word_count]: options of `harness run`, borrowed. */
    int word_count;
    const run_config *config; /* The words after parsing, borrowed. */
    int slow_rank;            /* Rank of the last --slow among the words, or -1. */
    bool has_length;          /* The words have --steps or --epochs. */
    /* Measured samples/s and step time of one GPU, to which the computed times are fitted. 0 to use the
     * profile's efficiencies. */
    double one_rate, step_ms;
    /* Measured samples/s of several GPUs under `measured_policy`, or 0. A larger job of any policy loses as
     * much beyond the model as these GPUs. */
    const char *measured_policy;
    int measured_gpus;
    double measured_rate;
    int draws; /* 0 to SIM_DRAWS. If 0, the low and high values equal the values. */
    int gpus[WHATIF_SIZES], size_count;
    policy_list policies;
    bool server_per_rank; /* The policy sync has a server on every rank. */
    /* No policy describes the stack. The draws reach from full overlap of exchange and computation to none,
     * and contain what stacks without a policy lose beyond that. */
    bool unknown_stack;
    bool why; /* Divide exposed communication, and find what the range depends on most. */
    sim_override overrides[SIM_EFFICIENCIES]; /* [override_count] changes of constants. */
    int override_count;
} whatif_question;

/* Figures of one GPU, or of a policy on a number of GPUs, as `harness run` reports them. The low and high
 * values, and the least and the most efficiency, are limits over random draws of the profile's constants
 * (--draw). */
typedef struct whatif_point {
    double step_ms, exposed_ms, waiting_ms; /* Means over ranks and steps. */
    /* Weak-scaling efficiency: samples/s over the number of GPUs times the samples/s of one GPU alone. */
    double efficiency;
    double samples_per_s;
    lost_time lost; /* step_s is NaN if a GPU has only a stage of the model. */
    /* The part of lost.of[LOST_COMMUNICATION] that other hosts add. NaN without `why`, and if there is no job
     * of one host. */
    double between_hosts_s;
    double low_ms, high_ms, least_efficiency, most_efficiency;
    double drawn[SIM_DRAWS + 1]; /* Samples/s in each draw, which the verdict compares draw by draw. */
    int64_t most_bytes;          /* Peak of the rank with the largest peak. */
    bool fits;          /* False if a GPU has too little memory. The other figures then ignore this limit. */
    char refused[200];  /* The reason why the job cannot exist, or "". The other figures are then NaN. */
    json_t *algorithms; /* Algorithms in the job's result. NULL if there are no buckets. */
} whatif_point;

/* The policy with the most samples/s on the largest number of GPUs on which one can run, and the policy that
 * comes nearest. There is none for one GPU. */
typedef struct whatif_verdict {
    int size;       /* Index of the number of GPUs. */
    int best, next; /* Indices of policies, or -1 if there is none. */
    /* Samples/s of `best` divided by the samples/s of `next`, with limits over the draws. Both policies have
     * the same constants in a draw, so a constant that slows both does not decide. */
    double ratio, low, high;
    bool undecided; /* In some draw `next` is as fast as `best`. */
} whatif_verdict;

/* The constant that changes the step of the verdict's best policy most, over
 * the range of the constant, while the other constants keep their values. "efficiency" is the factor of
 * --efficiency.
 */
typedef struct whatif_dependence {
    const char *constant; /* NULL if no constant has a range. */
    double low, high, step_low_ms, step_high_ms;
} whatif_dependence;

typedef struct whatif_answer {
    whatif_point one_gpu; /* Without communication. */
    json_t *workload;
    char hardware[RUN_NOTE_SIZE]; /* Machines and adapters of the last job. */
    double gpu_gib;               /* Memory of a GPU. */
    double efficiency;            /* Value of --efficiency that was fitted to a measured step, or 0. */
    json_t *next;                 /* See next.h. NULL if nothing was tried. */
    bool estimated; /* The profile's efficiencies are estimates and no measured step corrects them. */
    whatif_verdict verdict;
    whatif_dependence dependence;
    /* Samples/s of the measured number of GPUs by the model, and the time that the measurement adds to a step
     * of as many GPUs and of more. */
    double modeled_rate, added_ms;
    whatif_point points[POLICY_LIST_MOST][WHATIF_SIZES];
} whatif_answer;

/* The range from which draws take a constant. */
typedef struct whatif_range {
    sim_constant from; /* Constant whose range this is: unknown_gpus for several_gpus of an unknown stack. */
    double low, value, high;
} whatif_range;
whatif_range whatif_range_of(const whatif_question *q, const sim_profile *p, sim_constant c);

/* Parses "8,16,...,4096", in which the dots continue the last ratio, and sorts the numbers. Returns
 * STATUS_USAGE if the text is invalid. */
status whatif_parse_gpus(const char *text, whatif_question *q);

/* Parses "1:119.6,8:921.3" into the rates. Returns STATUS_USAGE if the text is invalid, or if several GPUs
 * are more than a tenth faster than as many alone. */
status whatif_parse_measured(const char *text, whatif_question *q);

/* Returns true for one GPU, whose points are the same under all policies. */
bool whatif_is_alone(const whatif_question *q, int size);

status whatif_ask(const whatif_question *q, whatif_answer *out);
/* Sets the points and the verdict only. */
status whatif_ask_points(const whatif_question *q, whatif_answer *out);
/* Sets `between_hosts_s` of all points, and `dependence`. */
status whatif_explain(const whatif_question *q, whatif_answer *out);
void whatif_answer_close(whatif_answer *answer);

void whatif_text(const whatif_question *q, const whatif_answer *a, text_buffer *out);
/* Writes a header and one line per point. */
void whatif_csv(const whatif_question *q, const whatif_answer *a, text_buffer *out);
json_t *whatif_json(const whatif_question *q, const whatif_answer *a);

#endif
