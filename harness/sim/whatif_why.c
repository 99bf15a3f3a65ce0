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

/* Leaves NaN if one of the jobs cannot run, or has no divided steps. */
static void set_between_hosts(whatif_point *x, const whatif_point *of_host)
{
    bool known =
        !x->refused[0] && !of_host->refused[0] && !isnan(x->lost.step_s) && !isnan(of_host->lost.step_s);
    x->between_hosts_s = known ? x->lost.of[LOST_COMMUNICATION] - of_host->lost.of[LOST_COMMUNICATION] : NAN;
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
        for (int i = 0; i < q->size_count; i++) set_between_hosts(&out->points[k][i], &host->points[k][i]);
    free_answer(host);
    return rc;
}

static bool is_efficiency(int c)
{
    return c >= SIM_CONVOLUTION_FORWARD && c < SIM_CONVOLUTION_FORWARD + SIM_EFFICIENCIES;
}

/* Sets *step_ms to the step of the only policy and number of GPUs with a constant at an end of its range, or
 * to NaN. All efficiencies change together, as in a draw. A constant with several values is scaled as its
 * first value. */
static status ask_at(whatif_question *one, const sim_profile *p, sim_constant c, double at, double *step_ms)
{
    whatif_answer *answer;
    bool scales = (sim_constant_table[c].count > 1 && p->values[c][0] > 0) || is_efficiency(c);
    one->override_count = is_efficiency(c) ? SIM_EFFICIENCIES : 1;
    for (int i = 0; i < one->override_count; i++)
        one->overrides[i] = (sim_override){.constant = (sim_constant)(c + i),
                                           .value = scales ? at / p->values[c][0] : at,
                                           .multiplies = scales};
    TRY(ask_again(one, &answer));
    *step_ms = answer ? answer->points[0][0].step_ms : NAN;
    free_answer(answer);
    return STATUS_OK;
}

static status find_dependence(const whatif_question *q, const sim_profile *p, whatif_dependence *out)
{
    for (int c = 0; c < SIM_CONSTANT_COUNT; c++) {
        whatif_question one = *q;
        whatif_dependence found = {.constant = is_efficiency(c) ? "efficiency" : sim_constant_table[c].name};
        if (!sim_profile_has(p, (sim_constant)c) || (is_efficiency(c) && c != SIM_CONVOLUTION_FORWARD))
            continue;
        whatif_range range = whatif_range_of(q, p, (sim_constant)c);
        if (range.low >= range.high) continue;
        found.low = range.low;
        found.high = range.high;
        TRY(ask_at(&one, p, (sim_constant)c, found.low, &found.step_low_ms));
        TRY(ask_at(&one, p, (sim_constant)c, found.high, &found.step_high_ms));
        if (is_efficiency(c)) { /* the factor of --efficiency */
            found.low /= p->values[c][0];
            found.high /= p->values[c][0];
        }
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
        one.gpus[0] = q->gpus[out->verdict.size];
        one.size_count = 1;
        rc = find_dependence(&one, p, &out->dependence);
    }
    sim_profile_free(&p);
    return rc;
}
