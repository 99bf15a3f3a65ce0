/* A job's times from those of its ranks. */
#include "harness/run/run_result.h"

#include <math.h>

/* ---- evaluations ------------------------------------------------------------------------------ */

/* The job has trained as long as the rank that trained longest. */
static double longest_training(const json_t *ranks, size_t evaluation)
{
    double longest = 0;
    size_t r;
    json_t *rank;
    json_array_foreach((json_t *)ranks, r, rank)
    {
        const json_t *e = json_array_get(json_object_get(rank, "evaluations"), evaluation);
        longest = fmax(longest, json_number_value(json_object_get(e, "training_s")));
    }
    return longest;
}

/* The training time of the first evaluation whose figure is at most, or at least, what was chosen; null: none
 * is. */
static json_t *time_to(const json_t *evaluations, const char *figure, const json_t *chosen, bool at_most)
{
    size_t i;
    json_t *e;
    json_array_foreach((json_t *)evaluations, i, e)
    {
        const json_t *found = json_object_get(e, figure);
        if (!json_is_number(found) || !json_is_number(chosen)) continue;
        double above = json_number_value(found) - json_number_value(chosen);
        if (at_most ? above <= 0 : above >= 0) return json_incref(json_object_get(e, "training_s"));
    }
    return json_null();
}

void job_result_add_evaluations(json_t *job, const json_t *ranks)
{
    json_t *evaluations = json_deep_copy(json_object_get(json_array_get(ranks, 0), "evaluations"));
    json_t *target = json_object_get(job, "target");
    size_t count = json_array_size(evaluations);
    for (size_t i = 0; i < count; i++)
        json_object_set_new(json_array_get(evaluations, i), "training_s",
                            json_real(longest_training(ranks, i)));
    json_t *accuracy = count ? json_object_get(json_array_get(evaluations, count - 1), "accuracy") : NULL;
    json_object_set(job, "accuracy", accuracy ? accuracy : json_null());
    if (json_is_object(target)) {
        json_object_set_new(target, "loss_s",
                            time_to(evaluations, "loss", json_object_get(target, "loss"), true));
        json_object_set_new(target, "accuracy_s",
                            time_to(evaluations, "accuracy", json_object_get(target, "accuracy"), false));
    }
    json_object_set_new(job, "evaluations", evaluations);
}
