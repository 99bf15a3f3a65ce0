/* Reads the lists of --gpus and --measured. */
#include "harness/sim/whatif.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static status not_a_list(const char *text)
{
    return fail(STATUS_USAGE, "--gpus: expected a list such as 8,16,...,4096, got '%s'", text);
}

static status add_size(whatif_question *q, int64_t gpus)
{
    if (q->size_count == WHATIF_SIZES)
        return fail(STATUS_USAGE, "--gpus: expected at most %d numbers, got more", WHATIF_SIZES);
    q->gpus[q->size_count++] = (int)gpus;
    return STATUS_OK;
}

/* Continues the series of numbers up to `end` by the ratio of the last two. */
static status go_on(whatif_question *q, int64_t end)
{
    int n = q->size_count;
    int64_t ratio = n > 1 ? q->gpus[n - 1] / q->gpus[n - 2] : 2;
    if (ratio < 2) ratio = 2;
    for (int64_t at = n ? q->gpus[n - 1] * ratio : 1; at < end; at *= ratio) TRY(add_size(q, at));
    return STATUS_OK;
}

static int by_value(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

status whatif_parse_gpus(const char *text, whatif_question *q)
{
    bool dots = false;
    for (const char *at = text; *at;) {
        char word[24];
        int64_t gpus;
        if (strcspn(at, ",") >= sizeof word) return not_a_list(text);
        text_next_word(&at, ',', word, sizeof word);
        if (strcmp(word, "...") == 0) {
            dots = true;
            continue;
        }
        TRY(text_parse_int("--gpus", word, 1, SIM_RANK_LIMIT - 1, &gpus));
        if (dots) TRY(go_on(q, gpus));
        TRY(add_size(q, gpus));
        dots = false;
    }
    qsort(q->gpus, (size_t)q->size_count, sizeof *q->gpus, by_value);
    return dots || q->size_count == 0 ? not_a_list(text) : STATUS_OK;
}

status whatif_parse_measured(const char *text, whatif_question *q)
{
    char word[48];
    const char *at = text;
    while (*at) {
        int64_t gpus;
        double rate;
        text_next_word(&at, ',', word, sizeof word);
        char *colon = strchr(word, ':');
        bool known = colon != NULL;
        if (known) *colon = '\0';
        known = known && text_parse_int("--measured", word, 1, INT_MAX, &gpus) == STATUS_OK &&
                text_parse_double("--measured", colon + 1, 1e-9, 1e12, &rate) == STATUS_OK;
        if (known && gpus == 1 && q->one_rate == 0) {
            q->one_rate = rate;
        } else if (known && gpus > 1 && q->measured_gpus == 0) {
            q->measured_gpus = (int)gpus;
            q->measured_rate = rate;
        } else {
            q->one_rate = 0;
            break;
        }
    }
    if (q->one_rate == 0)
        return fail(STATUS_USAGE,
                    "--measured: expected 1:SAMPLES_PER_S and at most one GPUS:SAMPLES_PER_S of "
                    "several GPUs, got '%.60s'",
                    text);
    return q->measured_rate <= WHATIF_MOST_EFFICIENCY * q->one_rate * q->measured_gpus
               ? STATUS_OK
               : fail(STATUS_USAGE,
                      "--measured: expected at most %d times the samples/s of one GPU, got %g and %g",
                      q->measured_gpus, q->measured_rate, q->one_rate);
}
