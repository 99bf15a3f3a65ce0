/* The causes of `whatif --why`, found by asking again: about one host, and with a constant changed. */
#include "harness/sim/whatif.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Asks without draws. Sets *out to NULL if a job does not exist with the changed constants. */
static status ask_again(whatif_question *changed, whatif_answer **out)
{
    changed->draws = 0;
    *out = calloc(1, sizeof **out);
    if (!*out) return fail(STATUS_SYSTEM, "no memory for a table");
    status rc = whatif_ask_points(changed, *out);
    if (rc == STATUS_OK) return rc;
    whatif_answer_close(*out);
    free(*out);
    *out = NULL;
    if (rc == STATUS_CONFIG) error_clear();
    return rc == STATUS_CONFIG ? STATUS_OK : rc;
}

static void free_answer(whatif_answer *a)
{
    if (a) whatif_answer_close(a);
    free(a);
}

/* Returns the GPUs of one host of a job. `nodes` is the value of --nodes, or 0. */
static int gpus_of_host(const sim_profile *p, int nodes, int gpus)
{
    int room = p->wiring.gpus, hosts = nodes ? nodes : (gpus + room - 1) / room;
    return (gpus + hosts - 1) / hosts;
}

/* Divides exposed communication: what the GPUs of one host expose alone, and what the other hosts add. */
static status divide_exposed(const whatif_question *q, const sim_profile *p, whatif_answer *out)
{
    static const option nodes[] = {{"nodes", OPTION_TEXT, .help = ""}};
    const option_table table = {"Hosts", nodes, 1};
    const char *left_out;
    whatif_answer *host = NULL;
    whatif_question one = *q;
    int devices = run_config_devices(q->config);
    for (int i = 0; i < q->size_count; i++)
        one.gpus[i] = gpus_of_host(p, (int)q->config->run.nodes, q->gpus[i] * devices) / devices;
    char **words = calloc((size_t)q->word_count + 1, sizeof *words);
    if (!words) return fail(STATUS_SYSTEM, "no memory for a command line");
    status rc = options_take(&(option_binding){.table = &table, .storage = &left_out}, 1, q->word_count,
                             q->words, words, &one.word_count);
    one.words = words;
    if (rc == STATUS_OK) rc = ask_again(&one, &host);
    free(words);
    for (int k = 0; host && k < q->policies.count; k++)
        for (int i = 0; i < q->size_count; i++)
            out->points[k][i].between_hosts_s = out->points[k][i].lost.of[LOST_COMMUNICATION] -
                                                host->points[k][i].lost.of[LOST_COMMUNICATION];
    free_answer(host);
    return rc;
}

/* Sets *step_ms to the step of the only policy and number of GPUs with a constant at an end of its range, or
 * to NaN. A constant with several values is scaled as its first value. */
static status ask_at(whatif_question *one, const sim_profile *p, sim_constant c, double at, double *step_ms)
{
    whatif_answer *answer;
    bool scales = sim_constant_table[c].count > 1 && p->values[c][0] > 0;
    one->overrides[0] =
        (sim_override){.constant = c, .value = scales ? at / p->values[c][0] : at, .multiplies = scales};
    one->override_count = 1;
    TRY(ask_again(one, &answer));
    *step_ms = answer ? answer->points[0][0].step_ms : NAN;
    free_answer(answer);
    return STATUS_OK;
}

static status find_dependence(const whatif_question *q, const sim_profile *p, whatif_dependence *out)
{
    for (int c = 0; c < SIM_CONSTANT_COUNT; c++) {
        double low = p->low[c][0], high = p->high[c][0];
        whatif_question one = *q;
        whatif_dependence found = {.constant = sim_constant_table[c].name, .low = low, .high = high};
        if (!sim_profile_has(p, (sim_constant)c) || low >= high) continue;
        TRY(ask_at(&one, p, (sim_constant)c, low, &found.step_low_ms));
        TRY(ask_at(&one, p, (sim_constant)c, high, &found.step_high_ms));
        double most = fabs(out->step_high_ms - out->step_low_ms);
        if (fabs(found.step_high_ms - found.step_low_ms) > most) *out = found;
    }
    return STATUS_OK;
}

status whatif_explain(const whatif_question *q, whatif_answer *out)
{
    sim_profile *p = NULL;
    whatif_question one = *q;
    TRY(sim_profile_load(q->profile, &p));
    status rc = divide_exposed(q, p, out);
    if (rc == STATUS_OK && out->verdict.best >= 0) {
        one.policies = (policy_list){.count = 1};
        memcpy(one.policies.names[0], q->policies.names[out->verdict.best], POLICY_LENGTH);
        one.gpus[0] = q->gpus[q->size_count - 1];
        one.size_count = 1;
        rc = find_dependence(&one, p, &out->dependence);
    }
    sim_profile_free(&p);
    return rc;
}
