/* Runs the same job on the CPU with ranks as threads, and on virtual devices. In both, every rank's ledger
 * must have the same logical bytes in each class and phase, except for the workspace. The ranks must make the
 * same calls and send the same messages. */
#include "common/base/clock.h"
#include "common/data/batches.h"
#include "harness/options/engines.h"
#include "harness/options/run_options.h"
#include "harness/sim/virtual_job.h"
#include "harness/train/local_ranks.h"
#include "models/models.h"
#include "ps/ps.h"
#include "tests/harness/sim/recorder.h"
#include "tests/support/check.h"
#include "tests/support/sanitized.h"

#include <stdlib.h>
#include <unistd.h>

enum { STEPS = SANITIZED ? 2 : 3, RANKS_MOST = 4, MEMBERS_MOST = 8 };

enum { RESNET, BERT };
static const model_options models[] = {
    [RESNET] = {.name = "resnet18", .image = 32},
    [BERT] = {.name = "bert",
              .layers = 2,
              .hidden = 64,
              .heads = 4,
              .vocabulary = 500,
              .positions = 32,
              .sequence = 16},
};

typedef struct job {
    nn_model *model;
    dataset *set;
    int world, engine;
    const char *policy;
    optimizer_options optimizer;
    data_options data;
    _Alignas(16) char options[ENGINE_OPTIONS_SIZE];
    status_table *table;
    /* Ledgers on the CPU, and ledgers in virtual time. The ledgers of the server processes follow the ledgers
     * of the ranks. */
    ledger ledgers[2][MEMBERS_MOST];
    int members; /* Number of ranks and server processes. */
} job;

/* An option of the engine in addition to its policy. */
typedef struct setting {
    const char *name, *value;
} setting;

/* Sets the options so that the result on the CPU does not depend on timing: keys are sent in the order in
 * which they become ready. */
static void set_options(job *j, const setting *settings)
{
    option_binding binding = {.table = engine_table[j->engine]->options, .storage = j->options};
    if (!binding.table) return;
    must(options_defaults(&binding, 1));
    bool dp = strcmp(j->policy, "dp") == 0; /* By default dp sends messages only on a CPU. */
    if (j->engine == ENGINE_PS)
        must(options_set(&binding, 1, dp ? "payload" : "priority", dp ? "zmq" : "fifo"));
    for (; settings && settings->name; settings++)
        must(options_set(&binding, 1, settings->name, settings->value));
}

static void open_job(job *j, const model_options *model, int world, int engine, const char *policy,
                     const setting *settings)
{
    int servers = 0;
    data_form form;
    *j = (job){.world = world, .engine = engine, .policy = policy, .data = {.batch = 2}};
    must(model_build(model, &j->model));
    form = data_form_of_model(j->model);
    dataset_config config = {.spec = "synthetic", .seed = 1, .model = &form, .synthetic_samples = {64, 16}};
    must(dataset_open(&config, &j->set));
    j->optimizer = optimizer_defaults(OPTIMIZER_SGD);
    j->optimizer.momentum = 0.9;
    set_options(j, settings);
    must(engine_servers(engine, j->options, policy, world, &servers));
    j->members = world + servers;
    assert_true(j->members <= MEMBERS_MOST);
}

static void close_job(job *j)
{
    dataset_close(&j->set);
    nn_model_free(&j->model);
}

/* ---- on the CPU ------------------------------------------------------------------------------- */

static status open_source(const job *j, int rank, const trainer *t, batch_source **out)
{
    trainer_load loads = trainer_loads(t);
    batches_config config = {.set = j->set,
                             .part = DATA_TRAIN,
                             .purpose = BATCHES_TRAIN,
                             .model = data_form_of_model(j->model),
                             .seed = 1,
                             .rank = rank,
                             .world = j->world,
                             .batch = j->data.batch,
                             .whole = loads == TRAINER_LOADS_ALL,
                             .threads = loads == TRAINER_LOADS_OWN || loads == TRAINER_LOADS_ALL ? 1 : 0};
    return batches_open(&config, out);
}

typedef struct server_exchange {
    local_ranks *group;
    int member;
} server_exchange;

static status exchange_handshakes(void *context, sync_blob mine, const sync_blob **handshakes)
{
    const server_exchange *x = context;
    return local_ranks_exchange(x->group, x->member, mine, handshakes);
}

/* Runs a separate server as harness/rank/server.c does. */
static status serve(local_ranks *group, int member, job *j)
{
    device_config device_of = {.name = "cpu", .rank = member, .world = j->world, .threads = 1};
    nn_program_config program_of = {
        .batch = j->data.batch, .mode = NN_TRAIN, .type = DTYPE_F32, .world = j->world};
    server_exchange x = {group, member};
    sync_context c = {.rank = member,
                      .world = j->world,
                      /* Tests of two builds may run at the same time, so their tokens must differ. */
                      .job_token = (uint64_t)getpid(),
                      .ledger = &j->ledgers[0][member],
                      .options = j->options,
                      .policy = j->policy,
                      .stall_timeout_ns = 60 * NS_PER_S};
    sync_requirements needs = {0};
    nn_program *program = NULL;
    status rc;
    TRY_GOTO(rc, engine_table[j->engine]->requirements(j->options, j->policy, j->world, &needs), out);
    param_set_config params_of = {.param_kind = needs.param_kind};
    TRY_GOTO(rc, device_open(&device_of, &c.device), out);
    TRY_GOTO(rc, nn_program_compile(j->model, &program_of, &program), out);
    c.program = program;
    TRY_GOTO(rc, param_set_open(c.device, j->model, program, &params_of, &c.params), out);
    TRY_GOTO(rc,
             optimizer_open(c.device, &j->optimizer, DTYPE_F32, c.params->arena_elements,
                            j->model->parameter_elements, c.ledger, &c.optimizer),
             out);
    rc = ps_server_main(&c, exchange_handshakes, &x);
out:
    optimizer_close(&c.optimizer);
    param_set_close(&c.params);
    nn_program_free(&program);
    device_close(&c.device);
    return rc;
}

static status run_rank(local_ranks *group, int rank, void *context)
{
    job *j = context;
    if (rank >= j->world) return serve(group, rank, j);
    trainer_config config = {.sync.rank = rank,
                             .sync.world = j->world,
                             /* Tests of two builds may run at the same time, so their tokens must differ. */
                             .sync.job_token = (uint64_t)getpid(),
                             .device = "cpu",
                             .threads = 1,
                             .model = j->model,
                             .engine = engine_table[j->engine],
                             .sync.options = j->options,
                             .sync.policy = j->policy,
                             .optimizer = &j->optimizer,
                             .batch = j->data.batch,
                             .total_steps = STEPS,
                             .sync.slot = status_table_slot(j->table, rank),
                             .sync.stall_timeout_ns = 60 * NS_PER_S};
    trainer *t = NULL;
    batch_source *source = NULL;
    status rc;
    TRY_GOTO(rc, trainer_open(&config, &t), out);
    TRY_GOTO(rc, open_source(j, rank, t, &source), out);
    TRY_GOTO(rc, local_ranks_connect(group, rank, t), out);
    ledger_reset_peaks(trainer_ledger(t)); /* In virtual time this happens before the measured steps. */
    for (int s = 0; s < STEPS; s++) {
        step_result result;
        TRY_GOTO(rc, trainer_step(t, source, s, s, &result), out);
    }
    TRY_GOTO(rc, sync_flush(trainer_engine(t)), out);
    j->ledgers[0][rank] = *trainer_ledger(t);
    /* The servers wait until the ranks end. */
    rc = j->members == j->world ? local_ranks_barrier(group) : STATUS_OK;
out:
    if (source) batch_source_close(&source);
    trainer_close(&t);
    return rc;
}

static void run_on_cpu(job *j)
{
    must(status_table_create(77, j->world, &j->table));
    must(local_ranks_run(j->members, run_rank, j));
    status_table_close(&j->table);
}

/* ---- in virtual time -------------------------------------------------------------------------- */

static int64_t bytes_at(const json_t *classes, int class, const char *key)
{
    const json_t *value = json_object_get(classes, ledger_class_name((ledger_class) class));
    return json_integer_value(key ? json_object_get(value, key) : value);
}

/* Reads the values that check_ledgers() compares. */
static void read_ledger(const json_t *row, ledger *out)
{
    const json_t *memory = json_object_get(row, "memory"), *classes = json_object_get(memory, "classes");
    assert_non_null(classes);
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++) {
        out->classes[c].current = bytes_at(classes, c, "current_bytes");
        out->classes[c].peak = bytes_at(classes, c, "peak_bytes");
        for (int p = 0; p < LEDGER_PHASE_COUNT; p++) {
            const json_t *phase =
                json_object_get(json_object_get(memory, "phases"), ledger_phase_name((ledger_phase)p));
            out->phase_end_classes[p][c] = bytes_at(json_object_get(phase, "end_classes"), c, NULL);
        }
    }
}

static void run_virtually(job *j, const char *profile)
{
    run_config *c = calloc(1, sizeof *c);
    run_plan plan = {.set = j->set, .model = j->model};
    const virtual_variant as_it_is = {0};
    run_job out;
    char note[192];
    assert_non_null(c);
    must(run_config_init(c));
    must(engine_parse_policies(NULL, c->policies, NULL));
    c->run.gpus = j->world;
    c->run.mode = j->engine;
    c->policies[j->engine] = j->policy;
    memcpy(c->engine_options[j->engine], j->options, sizeof j->options);
    c->optimizer = j->optimizer;
    c->data.batch = j->data.batch;
    c->run.prefetch = 0;
    virtual_job_config config = {.run = c,
                                 .plan = &plan,
                                 .engine = j->engine,
                                 .profile = profile ? profile : SIM_DEFAULT_PROFILE,
                                 .variant = &as_it_is,
                                 .steps = STEPS};
    must(virtual_job_run(&config, &out, note, sizeof note));
    const json_t *ranks = json_object_get(out.result, "ranks"),
                 *servers = json_object_get(out.result, "servers");
    for (int m = 0; m < j->members; m++)
        read_ledger(m < j->world ? json_array_get(ranks, (size_t)m)
                                 : json_array_get(servers, (size_t)(m - j->world)),
                    &j->ledgers[1][m]);
    json_decref(out.result);
    free(c);
}

/* ---- comparing -------------------------------------------------------------------------------- */

static void check_classes(const job *j, int rank, const char *what, const int64_t *found,
                          const int64_t *expected)
{
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++)
        if (c != LEDGER_WORKSPACE && found[c] != expected[c])
            fail_msg("%s, %s, rank %d of %d, %s, %s: found %lld bytes in virtual time, %lld on the CPU",
                     j->model->name, j->policy, rank, j->world, what, ledger_class_name((ledger_class)c),
                     (long long)found[c], (long long)expected[c]);
}

static void check_ledgers(const job *j, int rank)
{
    const ledger *cpu = &j->ledgers[0][rank], *sim = &j->ledgers[1][rank];
    assert_true(cpu->total.peak > 0);
    int64_t found[2][LEDGER_CLASS_COUNT], expected[2][LEDGER_CLASS_COUNT];
    for (int c = 0; c < LEDGER_CLASS_COUNT; c++) {
        found[0][c] = sim->classes[c].current, expected[0][c] = cpu->classes[c].current;
        found[1][c] = sim->classes[c].peak, expected[1][c] = cpu->classes[c].peak;
    }
    check_classes(j, rank, "at the end", found[0], expected[0]);
    check_classes(j, rank, "peak", found[1], expected[1]);
    for (int p = 0; p < LEDGER_PHASE_COUNT; p++)
        check_classes(j, rank, ledger_phase_name((ledger_phase)p), sim->phase_end_classes[p],
                      cpu->phase_end_classes[p]);
}

static bool same(const recorded *a, const recorded *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static char *describe(const recorded *r, char *text, size_t size)
{
    snprintf(text, size, "%s of rank %d%s to %d: kind %d, step or tag %lld, key or root %lld, %lld bytes",
             r->kind == RECORDED_CALL ? "call" : "message", r->rank, r->server ? "'s server" : "", r->peer,
             r->what, (long long)r->step_or_tag, (long long)r->key_or_root, (long long)r->bytes);
    return text;
}

static int by_content(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(recorded));
}

/* Sorts the answers of servers, whose order does not matter. */
static void sort_answers(recorded *list, int count)
{
    for (int begin = 0; begin < count;) {
        int end = begin + 1;
        while (end < count && list[end].server == list[begin].server) end++;
        if (list[begin].server) qsort(list + begin, (size_t)(end - begin), sizeof *list, by_content);
        begin = end;
    }
}

static void check_sequences(const job *j, const recorded *sim, int sim_count, const recorded *cpu,
                            int cpu_count)
{
    char found[200], expected[200];
    if (sim_count != cpu_count)
        fail_msg("%s, %s, %d ranks: found %d calls and messages in virtual time, %d on the CPU",
                 j->model->name, j->policy, j->world, sim_count, cpu_count);
    for (int i = 0; i < sim_count; i++)
        if (!same(&sim[i], &cpu[i]))
            fail_msg("%s, %s, %d ranks, number %d: found %s; expected %s", j->model->name, j->policy,
                     j->world, i, describe(&sim[i], found, sizeof found),
                     describe(&cpu[i], expected, sizeof expected));
}

static void compare_with(const model_options *model, int world, int engine, const char *policy,
                         const setting *settings, const char *profile)
{
    job *j = calloc(1, sizeof *j);
    recorded *cpu = calloc(RECORDER_MOST, sizeof *cpu), *sim = calloc(RECORDER_MOST, sizeof *sim);
    int cpu_count, sim_count;
    assert_true(j && cpu && sim);
    open_job(j, model, world, engine, policy, settings);
    recorder_start();
    run_on_cpu(j);
    memcpy(cpu, recorder_stop(&cpu_count), RECORDER_MOST * sizeof *cpu);
    recorder_start();
    run_virtually(j, profile);
    memcpy(sim, recorder_stop(&sim_count), RECORDER_MOST * sizeof *sim);
    for (int r = 0; r < j->members; r++) check_ledgers(j, r);
    assert_true(cpu_count > 0);
    /* The order of answers depends on timing, so it is not compared. */
    if (strcmp(policy, "async") == 0 || strcmp(policy, "ssp") == 0) {
        sort_answers(cpu, cpu_count);
        sort_answers(sim, sim_count);
    }
    check_sequences(j, sim, sim_count, cpu, cpu_count);
    close_job(j);
    free(j);
    free(cpu);
    free(sim);
}

static void compare_devices(const model_options *model, int world, int engine, const char *policy,
                            const char *profile)
{
    compare_with(model, world, engine, policy, NULL, profile);
}

static bool is_long; /* Set by --long: runs ResNet-18 under every policy. */

/* Compares the small model with two and with four ranks. Without --long, ResNet-18 runs only in
 * the_profile_makes_no_difference, which uses another profile. For ResNet-18 the policies run the same code,
 * and only the bytes differ. */
static void compare_all(int engine)
{
    for (int p = 0; p < engine_table[engine]->policy_count; p++) {
        const char *policy = engine_table[engine]->policies[p].name;
        if (is_long) compare_devices(&models[RESNET], 2, engine, policy, NULL);
        compare_devices(&models[BERT], 2, engine, policy, NULL);
        compare_devices(&models[BERT], 4, engine, policy, NULL);
    }
}

static void every_policy_of_the_ring_is_the_same(void **context)
{
    (void)context;
    compare_all(ENGINE_RING);
}

static void every_policy_of_the_parameter_server_is_the_same(void **context)
{
    (void)context;
    compare_all(ENGINE_PS);
}

static void servers_of_their_own_are_the_same(void **context)
{
    (void)context;
    static const char *const policies[] = {"sync", "ssp", "async"}, *const servers[] = {"1", "2", "3"};
    for (int p = 0; p < 3; p++)
        for (int m = is_long ? RESNET : BERT; m <= BERT; m++) {
            const setting own[] = {{"server-placement", "own"}, {"servers", servers[p]}, {NULL, NULL}};
            compare_with(&models[m], 2, ENGINE_PS, policies[p], own, p == 0 ? "cpu" : NULL);
        }
}

/* The first step sends whole gradients, so the comparison begins with the second step. */
static void powersgd_is_the_same(void **context)
{
    (void)context;
    static const char *const policies[] = {"ddp", "apex", "ddp-2019"};
    for (int p = 0; p < 3; p++)
        for (int m = is_long ? RESNET : BERT; m <= BERT; m++) {
            const setting hook[] = {{"comm-hook", "powersgd"},
                                    {"powersgd-start", "1"},
                                    {"powersgd-rank", p ? "1" : "2"},
                                    {NULL, NULL}};
            compare_with(&models[m], p == 0 ? 4 : 2, ENGINE_RING, policies[p], hook, p == 2 ? "cpu" : NULL);
        }
}

static void the_profile_makes_no_difference(void **context)
{
    (void)context;
    compare_devices(&models[0], 4, ENGINE_RING, "ddp", "cpu");
    compare_devices(&models[0], 4, ENGINE_PS, "sync", "cpu");
    compare_devices(&models[0], 4, ENGINE_RING, "apex", "v100-pcie-10gbe");
}

int main(int argc, char **argv)
{
    is_long = argc > 1 && strcmp(argv[1], "--long") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_of_the_ring_is_the_same),
        cmocka_unit_test(every_policy_of_the_parameter_server_is_the_same),
        cmocka_unit_test(servers_of_their_own_are_the_same),
        cmocka_unit_test(powersgd_is_the_same),
        cmocka_unit_test(the_profile_makes_no_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
