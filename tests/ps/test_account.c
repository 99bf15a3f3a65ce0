/* Tests the numbers that the engine reports (bytes sent, memory by class, averaged gradients), and its
 * smaller functions (sums over the ranks, micro-batches, flushes). */
#include "ps/engine_impl.h"
#include "tests/ps/job.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>

enum { STEPS = 5 };

#define MOMENTUM                                                                                             \
    {                                                                                                        \
        .kind = OPTIMIZER_SGD, .lr = 0.1, .momentum = 0.9                                                    \
    }

static void run_case(const job_config *config, job_function function, void *context)
{
    job j;
    job_open(config, &j);
    j.context = context;
    status rc = job_run(&j, function);
    if (rc != STATUS_OK)
        fail_msg("%d ranks, %s: %s: %s", config->world, config->options ? config->options : "",
                 status_name(rc), error_message());
    job_close(&j);
}

#define note(r, ...) snprintf((r)->error, sizeof(r)->error, __VA_ARGS__)

/* ---- bytes over links -------------------------------------------------------------------------- */

/* Returns the bytes that a rank sends in STEPS steps after the first pull. They are the gradients of all
 * other shards, and the parameters of this rank's shard for every other rank. Rank 0 also sends the
 * buffers. */
static double expected_bytes_sent(const job_rank *r)
{
    const ps_engine *e = (const ps_engine *)r->engine;
    double all = (double)r->params->logical_bytes, shard = 0, others = r->job->config.world - 1;
    int64_t size = dtype_size(r->params->type);
    if (e->server) shard = (double)(e->plan->shards[r->rank].elements * size);
    double buffers = e->server && r->rank == 0 ? others * (double)r->params->buffer_bytes : 0;
    if (e->policy.placement == PS_PLACEMENT_OWN && r->rank == 0) buffers = (double)r->params->buffer_bytes;
    return STEPS * (all - shard + others * shard + buffers);
}

static status count_bytes(local_ranks *group, job_rank *r)
{
    (void)group;
    sync_counters before, after;
    TRY(sync_ps.flush(r->engine)); /* the first pull */
    TRY(local_ranks_barrier(group));
    sync_ps.counters(r->engine, &before);
    for (int64_t step = 0; step < STEPS; step++) TRY(job_step(r));
    TRY(sync_ps.flush(r->engine));
    TRY(local_ranks_barrier(group));
    sync_ps.counters(r->engine, &after);
    double found = (double)(after.bytes_sent - before.bytes_sent), expected = expected_bytes_sent(r);
    double n = r->job->config.world, ring = STEPS * 2 * (n - 1) / n * (double)r->params->logical_bytes;
    double buffers = r->rank == 0 ? STEPS * (n - 1) * (double)r->params->buffer_bytes : 0;
    bool sharded = ((ps_engine *)r->engine)->policy.servers == r->job->config.world;
    if (found != expected)
        note(r, "rank %d sent %.0f bytes, expected %.0f", r->rank, found, expected);
    else if (sharded && fabs(found - buffers - ring) > 0.02 * ring)
        note(r, "rank %d sent %.0f bytes of gradients and parameters, a ring %.0f", r->rank, found - buffers,
             ring);
    else if (after.messages_sent <= before.messages_sent && n > 1)
        note(r, "rank %d sent no messages", r->rank);
    return STATUS_OK;
}

static void bytes_over_links_are_those_of_the_formulas(void **state)
{
    (void)state;
    static const job_config cases[] = {
        {.world = 1},
        {.world = 2},
        {.world = 4},
        {.world = 4, .options = "--servers 4"},
        {.world = 4, .processes = true, .options = "--servers 4"},
        {.world = 4, .processes = true, .options = "--servers 4 --payload zmq --partition-bytes 900"},
        {.world = 3, .options = "--servers 3 --server-optimizer off"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_case(&cases[i], count_bytes, NULL);
}

/* ---- memory ------------------------------------------------------------------------------------ */

typedef struct memory_case {
    job_config config;
    double params, replicas, buckets, state; /* bytes of rank 0, in units of the parameters' bytes */
    double other_params, other_replicas, other_buckets, other_state; /* bytes of rank 1 */
} memory_case;

static status weigh(local_ranks *group, job_rank *r)
{
    (void)group;
    const memory_case *c = r->job->context;
    for (int64_t step = 0; step < STEPS; step++) TRY(job_step(r));
    TRY(sync_ps.flush(r->engine));
    double p = (double)r->params->logical_bytes, b = (double)r->params->buffer_bytes;
    bool first = r->rank == 0;
    const ps_engine *e = (const ps_engine *)r->engine;
    /* If server 0 works in the rank's memory, buffers count as parameters. Both sides keep packed copies. */
    bool own = c->config.policy == NULL && e->server && first;
    const struct {
        ledger_class class;
        double share, buffers;
    } expected[] = {
        {LEDGER_PARAMETERS, first ? c->params : c->other_params, own || !e->policy.server_optimizer ? 1 : 0},
        {LEDGER_REPLICAS, first ? c->replicas : c->other_replicas,
         own || !e->policy.server_optimizer ? 0 : 1},
        {LEDGER_GRADIENTS, 1, 0},
        {LEDGER_BUCKETS, first ? c->buckets : c->other_buckets, e->server && first ? 2 : 1},
        {LEDGER_OPTIMIZER, first ? c->state : c->other_state, 0},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0] && !r->error[0]; i++) {
        double found = (double)r->ledger.classes[expected[i].class].current;
        double wanted = expected[i].share * p + expected[i].buffers * b;
        if (fabs(found - wanted) > 8) /* shards are whole elements */
            note(r, "rank %d, %s: found %.0f bytes, expected %.0f", r->rank,
                 ledger_class_name(expected[i].class), found, wanted);
    }
    return STATUS_OK;
}

static void memory_is_where_the_servers_are(void **state)
{
    (void)state;
    /*                                                            rank 0                rank 1 */
    static const memory_case cases[] = {
        {{.world = 2, .optimizer = MOMENTUM}, 1, 0, 1, 1, 0, 1, 0, 0},
        {{.world = 2, .options = "--servers 2", .optimizer = MOMENTUM}, .5, .5, .5, .5, .5, .5, .5, .5},
        {{.world = 3, .policy = "ssp", .options = "--staleness 2", .optimizer = MOMENTUM},
         1,
         1,
         1 + 3 * 3,
         1,
         0,
         1,
         0,
         0},
        {{.world = 2, .policy = "async", .optimizer = MOMENTUM}, 1, 1, 0, 1, 0, 1, 0, 0},
        {{.world = 2, .options = "--server-optimizer off", .optimizer = MOMENTUM}, 1, 0, 1, 1, 1, 0, 0, 1},
        {{.world = 2, .options = "--server-placement own", .optimizer = MOMENTUM}, 0, 1, 0, 0, 0, 1, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memory_case c = cases[i];
        run_case(&c.config, weigh, &c);
    }
}

/* ---- averaged gradients ------------------------------------------------------------------------ */

typedef struct gradient_check {
    atomic_int seen; /* number of elements that were compared */
} gradient_check;

static status check_gradients(local_ranks *group, job_rank *r)
{
    (void)group;
    gradient_check *check = r->job->context;
    double n = r->job->config.world;
    for (int64_t step = 0; step < STEPS; step++) TRY(job_step(r));
    TRY(sync_ps.flush(r->engine));
    piece_list owned;
    const void *arena = sync_ps.reduced_gradients(r->engine, &owned);
    const param_set *set = r->params;
    for (int k = 0; k < owned.count && !r->error[0]; k++) {
        for (int64_t at = owned.pieces[k].offset; at < owned.pieces[k].offset + owned.pieces[k].count; at++) {
            int p = 0;
            while (p + 1 < set->model->param_count && set->pieces[p + 1].offset <= at) p++;
            double sum = 0, found = job_param(set, arena, p, at - set->pieces[p].offset);
            for (int rank = 0; rank < r->job->config.world; rank++)
                sum += job_gradient(rank, STEPS - 1, p, at - set->pieces[p].offset);
            if (found != sum / n)
                note(r, "rank %d, %s: found %.17g, expected %.17g", r->rank, set->model->params[p].name,
                     found, sum / n);
            atomic_fetch_add(&check->seen, 1);
        }
    }
    return STATUS_OK;
}

static void every_averaged_gradient_is_with_one_rank(void **state)
{
    (void)state;
    static const job_config cases[] = {
        {.world = 2},
        {.world = 3, .options = "--servers 3"},
        {.world = 4, .options = "--servers 2 --partition-bytes 1000"},
        {.world = 3, .policy = "ssp", .options = "--servers 2"},
        {.world = 2, .options = "--server-optimizer off --server-placement own"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gradient_check check = {0};
        job j;
        job_open(&cases[i], &j);
        int64_t elements = j.model->parameter_elements;
        job_close(&j);
        run_case(&cases[i], check_gradients, &check);
        if (check.seen != elements)
            fail_msg("%s: %d averaged elements, the model has %d", cases[i].options ? cases[i].options : "",
                     check.seen, (int)elements);
    }
}

/* ---- smaller stages ---------------------------------------------------------------------------- */

static status add_up(local_ranks *group, job_rank *r)
{
    (void)group;
    double values[10];
    int n = r->job->config.world;
    for (int round = 0; round < 20 && !r->error[0]; round++) {
        int count = round % 10 + 1;
        for (int i = 0; i < count; i++) values[i] = 0.1 * (r->rank + 1) + i;
        TRY(sync_ps.group_sum(r->engine, values, count));
        for (int i = 0; i < count; i++) {
            double expected = 0;
            for (int rank = 0; rank < n; rank++) expected += 0.1 * (rank + 1) + i;
            if (values[i] != expected)
                note(r, "rank %d, sum %d: found %.17g, expected %.17g", r->rank, i, values[i], expected);
        }
        if (round % 5 == 4) TRY(job_step(r));
    }
    return sync_ps.flush(r->engine);
}

static void sums_over_the_ranks_are_in_their_order(void **state)
{
    (void)state;
    static const job_config cases[] = {
        {.world = 1, .sync_batchnorm = true},
        {.world = 3, .sync_batchnorm = true},
        {.world = 3, .sync_batchnorm = true, .processes = true, .options = "--servers 2"},
        {.world = 2, .sync_batchnorm = true, .inline_progress = true, .options = "--server-placement own"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_case(&cases[i], add_up, NULL);
}

/* Runs two micro-batches per step. The gradients of the first one must not be sent, so they are NaN. */
static status accumulate(local_ranks *group, job_rank *r)
{
    (void)group;
    job_reference expected;
    job_reference_open(r->job, &expected);
    status rc = STATUS_OK;
    for (int64_t step = 0; step < STEPS && rc == STATUS_OK; step++) {
        sync_step s = job_begin(r);
        s.synchronize = false;
        rc = sync_ps.begin_forward(r->engine, &s);
        for (int p = 0; p < r->params->model->param_count && rc == STATUS_OK; p++)
            rc = sync_ps.need(r->engine, p);
        if (rc == STATUS_OK) rc = sync_ps.end_forward(r->engine, &s);
        for (int p = 0; p < r->params->model->param_count && rc == STATUS_OK; p++) {
            job_set(r->params, r->params->grads.data, p, 0, NAN);
            rc = sync_ps.ready(r->engine, p);
        }
        if (rc == STATUS_OK) rc = sync_ps.reduce(r->engine, &s);
        if (rc == STATUS_OK) rc = job_step(r);
        job_reference_step(r->job, &expected, step);
    }
    if (rc == STATUS_OK) rc = sync_ps.flush(r->engine);
    if (rc == STATUS_OK) job_expect_params(r, expected.params);
    job_reference_close(&expected);
    return rc;
}

static void micro_batches_send_nothing(void **state)
{
    (void)state;
    static const job_config cases[] = {{.world = 2, .optimizer = MOMENTUM},
                                       {.world = 2, .policy = "ssp", .optimizer = MOMENTUM}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_case(&cases[i], accumulate, NULL);
}

/* Gives ranks different parameters at the start. All must begin with the parameters of the ranks that have
 * the servers. */
static status start_apart(local_ranks *group, job_rank *r)
{
    (void)group;
    job_reference expected;
    job_reference_open(r->job, &expected);
    if (r->rank > 0)
        memset(r->params->params.data, 0x5a,
               (size_t)r->params->arena_elements * (size_t)dtype_size(r->params->type));
    status rc = sync_ps.flush(r->engine);
    if (rc == STATUS_OK) job_expect_params(r, expected.params);
    if (rc == STATUS_OK) job_expect_buffers(r, 0, -1);
    if (rc == STATUS_OK) rc = sync_ps.flush(r->engine);
    if (rc == STATUS_OK) rc = job_step(r);
    if (rc == STATUS_OK) rc = sync_ps.flush(r->engine);
    job_reference_step(r->job, &expected, 0);
    if (rc == STATUS_OK) job_expect_params(r, expected.params);
    job_reference_close(&expected);
    return rc;
}

static void all_ranks_begin_with_rank_0s_parameters(void **state)
{
    (void)state;
    static const job_config cases[] = {
        {.world = 3},
        {.world = 3, .processes = true},
        {.world = 3, .policy = "ssp"},
        {.world = 2, .policy = "ssp", .processes = true, .options = "--payload zmq"},
        {.world = 3, .options = "--server-placement own --servers 2"},
        {.world = 2, .options = "--server-optimizer off"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_case(&cases[i], start_apart, NULL);
}

/* Runs steps in which only rank 0 has samples. The other ranks contribute gradients of zero. */
static status sit_out(local_ranks *group, job_rank *r)
{
    (void)group;
    for (int64_t step = 0; step < STEPS; step++) {
        if (r->rank == 0) {
            TRY(job_step(r));
            continue;
        }
        sync_step s = job_begin(r);
        s.samples = 0;
        TRY(sync_ps.begin_forward(r->engine, &s));
        TRY(sync_ps.end_forward(r->engine, &s));
        TRY(sync_ps.reduce(r->engine, &s));
        r->next++;
    }
    TRY(sync_ps.flush(r->engine));
    for (int p = 0; p < r->params->model->param_count && !r->error[0]; p++) {
        double wanted = job_initial(p, 0), found = job_param(r->params, r->params->params.data, p, 0);
        for (int64_t step = 0; step < STEPS; step++) wanted -= 0.125 * (job_gradient(0, step, p, 0) + 0) / 2;
        if (found != wanted)
            note(r, "rank %d, parameter %d: found %.17g, expected %.17g", r->rank, p, found, wanted);
    }
    return STATUS_OK;
}

static void a_rank_without_samples_takes_part(void **state)
{
    (void)state;
    static const job_config cases[] = {{.world = 2},
                                       {.world = 2, .processes = true, .options = "--servers 2"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_case(&cases[i], sit_out, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_over_links_are_those_of_the_formulas),
        cmocka_unit_test(memory_is_where_the_servers_are),
        cmocka_unit_test(every_averaged_gradient_is_with_one_rank),
        cmocka_unit_test(sums_over_the_ranks_are_in_their_order),
        cmocka_unit_test(micro_batches_send_nothing),
        cmocka_unit_test(all_ranks_begin_with_rank_0s_parameters),
        cmocka_unit_test(a_rank_without_samples_takes_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
