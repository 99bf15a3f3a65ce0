/* Tests parts of the parameter server separately: policies and options, the plan, queues, handshakes. */
#include "common/base/random.h"
#include "common/sync/average.h"
#include "models/models.h"
#include "ps/handshake.h"
#include "ps/keys.h"
#include "tests/ps/job.h"
#include "tests/support/check.h"

#include <stdlib.h>

/* ---- policies ---------------------------------------------------------------------------------- */

static ps_options parse(const char *text)
{
    ps_options o;
    option_binding binding = {.table = &ps_option_table, .storage = &o};
    char copy[256], *words[16];
    const char *positional[16];
    int count = 0, positional_count = 0;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) words[count++] = word;
    assert_ok(options_defaults(&binding, 1));
    assert_ok(options_parse(&binding, 1, count, words, positional, &positional_count));
    return o;
}

static void options_override_policies_and_nonsense_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *policy, *options;
        int world;
        status code;
        const char *says; /* expected error, or NULL if the settings that follow are expected */
        ps_policy is;
    } cases[] = {
#define BYTEPS .partition_bytes = 4096000, .credit_bytes = 16384000, .server_optimizer = true
        {"sync", "", 4, STATUS_OK, NULL, {PS_SYNC, .servers = 1, BYTEPS}},
        {"ssp", "", 4, STATUS_OK, NULL, {PS_SSP, .staleness = 3, .servers = 1, BYTEPS}},
        {"async",
         "--servers 2 --priority fifo",
         4,
         STATUS_OK,
         NULL,
         {PS_ASYNC, .servers = 2, .priority = PS_PRIORITY_FIFO, BYTEPS}},
        {"sync",
         "--consistency ssp --staleness 5",
         4,
         STATUS_OK,
         NULL,
         {PS_SSP, .staleness = 5, .servers = 1, BYTEPS}},
        {"ssp", "--consistency sync", 4, STATUS_OK, NULL, {PS_SYNC, .servers = 1, BYTEPS}},
        {"sync",
         "--server-placement own --servers 9 --server-optimizer off",
         4,
         STATUS_OK,
         NULL,
         {PS_SYNC, .servers = 9, .placement = PS_PLACEMENT_OWN, .partition_bytes = 4096000,
          .credit_bytes = 16384000}},
        {"sync",
         "--partition-bytes 1MiB --credit-bytes 2MiB",
         1,
         STATUS_OK,
         NULL,
         {PS_SYNC, .servers = 1, .partition_bytes = 1 << 20, .credit_bytes = 2 << 20,
          .server_optimizer = true}},
        {"lazy", "", 4, STATUS_USAGE, "expected a policy of dp, sync, ssp, async, got 'lazy'", {0}},
        {"dp", "", 4, STATUS_OK, NULL, {PS_DATA_PARALLEL, .servers = 1, .server_optimizer = true}},
        {"dp",
         "--dp-loss replica --keep-grads",
         4,
         STATUS_OK,
         NULL,
         {PS_DATA_PARALLEL, .servers = 1, .server_optimizer = true, .loss = PS_DP_LOSS_REPLICA,
          .keep_grads = true}},
        {"dp",
         "--servers 2",
         4,
         STATUS_USAGE,
         "--servers: expected ps=sync, ssp or async, got several with ps=dp",
         {0}},
        {"dp",
         "--server-placement own",
         4,
         STATUS_USAGE,
         "--server-placement: expected ps=sync, ssp or async, got own",
         {0}},
        {"dp",
         "--consistency async",
         4,
         STATUS_USAGE,
         "--consistency: expected ps=sync, ssp or async, got async",
         {0}},
        {"sync",
         "--dp-loss replica",
         4,
         STATUS_USAGE,
         "--dp-loss: expected ps=dp, got replica with ps=sync",
         {0}},
        {"async", "--keep-grads", 4, STATUS_USAGE, "--keep-grads", {0}},
        {"sync", "--servers 5", 4, STATUS_CONFIG, "expected at most 4, one per rank", {0}},
        {"sync", "--staleness 2", 4, STATUS_USAGE, "got 2 with consistency sync", {0}},
        {"async", "--server-optimizer off", 4, STATUS_CONFIG, "got off with consistency async", {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ps_options o = parse(cases[i].options);
        ps_policy p = {0};
        if (cases[i].code != STATUS_OK) {
            assert_fails(ps_policy_resolve(cases[i].policy, &o, cases[i].world, &p), cases[i].code,
                         cases[i].says);
            continue;
        }
        assert_ok(ps_policy_resolve(cases[i].policy, &o, cases[i].world, &p));
        const ps_policy *is = &cases[i].is;
        bool equal = p.consistency == is->consistency && p.staleness == is->staleness &&
                     p.servers == is->servers && p.partition_bytes == is->partition_bytes &&
                     p.credit_bytes == is->credit_bytes && p.priority == is->priority &&
                     p.placement == is->placement && p.server_optimizer == is->server_optimizer &&
                     p.divide_before == is->divide_before && p.loss == is->loss &&
                     p.keep_grads == is->keep_grads;
        if (!equal)
            fail_msg("policy %s with '%s' is not what it should be", cases[i].policy, cases[i].options);
    }
}

static void every_policy_names_its_source(void **state)
{
    (void)state;
    assert_int_equal(sync_ps.policy_count, 4);
    for (int i = 0; i < sync_ps.policy_count; i++) {
        assert_true(strlen(sync_ps.policies[i].source) > 10);
        assert_true(strlen(sync_ps.policies[i].summary) > 10);
    }
}

/* ---- the plan ----------------------------------------------------------------------------------- */

typedef struct planned {
    nn_model *model;
    nn_program *program;
    device *device;
    param_set *set;
} planned;

static void open_planned(const char *model, planned *out)
{
    model_options options = {
        .name = model, .image = 32, .layers = 2, .hidden = 32, .heads = 2, .vocabulary = 100, .sequence = 8};
    device_config device = {.name = "cpu", .world = 1, .threads = 1};
    if (strcmp(model, "bert") != 0) options = (model_options){.name = model, .image = 32, .classes = 10};
    if (strcmp(model, "wine_mlp") == 0) options.image = options.classes = 0;
    assert_ok(model_build(&options, &out->model));
    assert_ok(nn_program_compile(out->model, &(nn_program_config){.batch = 2, .type = DTYPE_F32, .world = 2},
                                 &out->program));
    assert_ok(device_open(&device, &out->device));
    assert_ok(param_set_open(out->device, out->model, out->program, &(param_set_config){.gradients = false},
                             &out->set));
}

static void close_planned(planned *p)
{
    param_set_close(&p->set);
    device_close(&p->device);
    nn_program_free(&p->program);
    nn_model_free(&p->model);
}

static void check_keys(const planned *m, const ps_plan *plan, int servers, int64_t partition)
{
    int64_t total = m->model->parameter_elements, at = 0, limit = partition / 4 > 0 ? partition / 4 : 1;
    int param = 0;
    int64_t in_param = 0;
    for (int k = 0; k < plan->key_count; k++) {
        const ps_key *key = &plan->keys[k];
        piece_list pieces = ps_key_pieces(plan, k);
        assert_true(key->piece_count > 0 && key->piece_count <= PS_KEY_PIECES && key->elements <= limit);
        assert_int_equal(piece_list_elements(pieces), key->elements);
        assert_int_equal(key->first_param, param);
        for (int i = 0; i < pieces.count; i++) {
            assert_int_equal(pieces.pieces[i].offset, m->set->pieces[param].offset + in_param);
            in_param += pieces.pieces[i].count;
            assert_true(in_param <= m->set->pieces[param].count);
            assert_true(k >= plan->first_key[param] && k < plan->first_key[param] + plan->keys_of[param]);
            if (in_param == m->set->pieces[param].count) {
                assert_int_equal(plan->first_key[param] + plan->keys_of[param], k + 1);
                param++;
                in_param = 0;
            }
        }
        /* Each server has a contiguous share of all elements, and a key must lie in the share of its own
         * server. */
        assert_true(at >= total * key->server / servers &&
                    at + key->elements <= total * (key->server + 1) / servers);
        at += key->elements;
    }
    assert_int_equal(at, total);
    assert_int_equal(param, m->model->param_count);
    for (int j = 0; j < servers; j++) {
        assert_int_equal(plan->shards[j].elements, total * (j + 1) / servers - total * j / servers);
        assert_int_equal(piece_list_elements(plan->shards[j].pieces), plan->shards[j].elements);
    }
}

/* Walks over the operations, and checks that none reads or writes a parameter or gradient after it has been
 * pushed. */
static void check_pushes(const planned *m, const ps_plan *plan)
{
    const nn_program *p = m->program;
    int *pushed = calloc((size_t)m->model->param_count, sizeof *pushed);
    for (int op = 0; op < p->op_count; op++) {
        for (int s = 0; s < OP_MAX_OPERANDS; s++) {
            const nn_operand *o = &p->ops[op].operands[s];
            if ((o->space == NN_SPACE_PARAM || o->space == NN_SPACE_GRAD) && pushed[o->index])
                fail_msg("%s is used by operation %d, though it was pushed before",
                         m->model->params[o->index].name, op);
        }
        for (int i = 0; i < p->ops[op].ready_count; i++) {
            int ready = p->ready_order[p->ops[op].ready_first + i];
            for (int q = 0; q < plan->push_count[ready]; q++)
                pushed[plan->pushable[plan->push_first[ready] + q]]++;
        }
    }
    int at_the_end = 0;
    for (int i = 0; i < m->model->param_count; i++) {
        assert_true(pushed[i] <= 1);
        at_the_end += !pushed[i];
    }
    assert_true(at_the_end <= 2); /* read by the last operations of the backward pass */
    free(pushed);
}

static void keys_cover_all_parameters_once_and_are_pushed_when_nobody_needs_them(void **state)
{
    (void)state;
    static const char *const models[] = {"wine_mlp", "resnet18", "bert"};
    static const int servers[] = {1, 2, 3, 8};
    static const int64_t partitions[] = {4096000, 10007, 1};
    for (size_t i = 0; i < 3; i++) {
        planned m;
        open_planned(models[i], &m);
        for (size_t s = 0; s < 4; s++) {
            for (size_t b = 0; b < 3; b++) {
                if (partitions[b] == 1 && m.model->parameter_elements > 100000) continue;
                ps_plan *plan;
                assert_ok(ps_plan_make(m.program, m.set, servers[s], partitions[b], &plan));
                check_keys(&m, plan, servers[s], partitions[b]);
                check_pushes(&m, plan);
                ps_plan_free(&plan);
            }
        }
        close_planned(&m);
    }
}

static void more_servers_than_elements_are_refused(void **state)
{
    (void)state;
    planned m;
    ps_plan *plan;
    open_planned("wine_mlp", &m);
    assert_fails(ps_plan_make(m.program, m.set, 2000, 4096, &plan), STATUS_CONFIG,
                 "--servers: expected at most 1091, the parameters of model wine_mlp, got 2000");
    close_planned(&m);
}

/* ---- queues ------------------------------------------------------------------------------------- */

static void keys_leave_a_queue_in_order_of_priority(void **state)
{
    (void)state;
    enum { KEYS = 57 };
    for (int priority = PS_PRIORITY_REVERSE; priority <= PS_PRIORITY_FIFO; priority++) {
        ps_key_queue q;
        int arrived[KEYS], waiting = 0, put = 0;
        bool queued[KEYS] = {0};
        ps_memory memory = {0};
        ps_key_queue_init(&q, KEYS, (ps_priority)priority, &memory);
        assert_ok(ps_memory_check(&memory, "a queue"));
        for (uint64_t round = 0; round < 5000; round++) {
            int key = (int)random_below(7, round, KEYS);
            if (!queued[key] && random_below(8, round, 3) > 0) {
                ps_key_queue_put(&q, key);
                queued[key] = true;
                arrived[key] = put++;
                waiting++;
            } else if (waiting > 0) {
                int first = -1;
                for (int k = 0; k < KEYS; k++)
                    if (queued[k] &&
                        (first < 0 || (priority == PS_PRIORITY_FIFO && arrived[k] < arrived[first])))
                        first = k;
                assert_int_equal(ps_key_queue_first(&q), first);
                ps_key_queue_drop(&q);
                queued[first] = false;
                waiting--;
            }
            assert_int_equal(q.count, waiting);
        }
        ps_memory_free(&memory);
    }
}

static void a_queue_keeps_order_and_reports_when_it_is_full(void **state)
{
    (void)state;
    sync_queue q = {0};
    int64_t entry;
    assert_ok(sync_queue_init(&q, 16, sizeof entry));
    for (int64_t written = 0, read = 0; read < 100;) {
        bool fits = sync_queue_push(&q, &written);
        assert_int_equal(fits, written - read < 16);
        written += fits;
        if (fits) continue;
        for (int i = 0; i < 5; i++) {
            assert_true(sync_queue_pop(&q, &entry));
            assert_int_equal(entry, read++);
        }
    }
    while (sync_queue_pop(&q, &entry)) continue;
    assert_false(sync_queue_pop(&q, &entry));
    sync_queue_deinit(&q);
}

typedef struct range_counts {
    atomic_int seen[2][50000];
    atomic_int threads[8]; /* number of ranges that each thread has added */
} range_counts;

static const sync_staging on_cpu = {.on_host = true};
static const piece two_pieces[2] = {{3, 50000}, {70000, 11}};

static status count_range(void *context, int thread, int first, piece_list ranges)
{
    range_counts *c = context;
    int64_t at = ranges.pieces[0].offset - two_pieces[first].offset;
    assert_int_equal(ranges.count, 1);
    atomic_fetch_add(&c->threads[thread], 1);
    for (int64_t i = at; i < at + ranges.pieces[0].count; i++) atomic_fetch_add(&c->seen[first][i], 1);
    return STATUS_OK;
}

static void threads_process_every_element_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        range_counts *c = calloc(1, sizeof *c);
        for (int job = 0; job < 20; job++)
            assert_ok(sync_run_ranges(&on_cpu, threads, (piece_list){two_pieces, 2}, count_range, c));
        for (int i = 0; i < 50000; i++) assert_int_equal(c->seen[0][i], 20);
        for (int i = 0; i < 50000; i++) assert_int_equal(c->seen[1][i], i < 11 ? 20 : 0);
        for (int i = 0; i < 8; i++) assert_int_equal(c->threads[i] > 0, i < threads);
        free(c);
    }
}

static status fail_at_seven(void *context, int thread, int first, piece_list ranges)
{
    (void)context, (void)thread;
    static const error_record element_7 = {STATUS_INTERNAL, "element 7"};
    int64_t at = ranges.pieces[0].offset - two_pieces[first].offset;
    return first == 1 && at <= 7 && at + ranges.pieces[0].count > 7 ? error_adopt(&element_7) : STATUS_OK;
}

static void a_failure_of_a_range_is_returned(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        range_counts *c = calloc(1, sizeof *c);
        assert_int_equal(sync_run_ranges(&on_cpu, threads, (piece_list){two_pieces, 2}, fail_at_seven, NULL),
                         STATUS_INTERNAL);
        assert_string_equal(error_message(), "element 7");
        error_clear();
        assert_ok(sync_run_ranges(&on_cpu, threads, (piece_list){two_pieces, 2}, count_range, c));
        free(c);
    }
}

/* ---- handshakes ------------------------------------------------------------------------------------- */

static sync_blob handshake_of(const char *model, const char *options, const optimizer_options *o,
                              bool divide_before)
{
    planned m;
    ps_options parsed = parse(options);
    ps_policy policy;
    optimizer *opt;
    ledger l = {0};
    sync_blob out;
    open_planned(model, &m);
    assert_ok(ps_policy_resolve("sync", &parsed, 4, &policy));
    policy.divide_before = divide_before;
    assert_ok(
        optimizer_open(m.device, o, DTYPE_F32, m.set->arena_elements, m.model->parameter_elements, &l, &opt));
    ps_handshake_own own = {.host = 0x1234, .shared = true, .url = "ipc://@there"};
    sync_context context = {.world = 4, .policy = "sync", .params = m.set, .optimizer = opt};
    ps_member member = {.context = &context, .options = &parsed, .policy = &policy};
    assert_ok(ps_handshake_make(&member, &own, &out));
    optimizer_close(&opt);
    close_planned(&m);
    return out;
}

static void differences_between_handshakes_are_named(void **state)
{
    (void)state;
    optimizer_options sgd = optimizer_defaults(OPTIMIZER_SGD), heavy = sgd, faster = sgd;
    heavy.momentum = 0.9;
    faster.lr = 3;
    sync_blob mine = handshake_of("wine_mlp", "", &sgd, false);
    const struct {
        sync_blob other;
        const char *says; /* expected error, or NULL */
    } cases[] = {
        {handshake_of("wine_mlp", "", &sgd, false), NULL},
        /* The learning rate may differ, since every push contains it. */
        {handshake_of("wine_mlp", "", &faster, false), NULL},
        {handshake_of("wine_mlp", "--servers 2", &sgd, false),
         "found 'servers 1, placement 0' and 'servers 2, placement 0'"},
        {handshake_of("wine_mlp", "--partition-bytes 4K", &sgd, false),
         "found 'partition-bytes 4096000' and 'partition-bytes 4096'"},
        {handshake_of("wine_mlp", "", &heavy, false), "momentum 0.9"},
        {handshake_of("wine_mlp", "", &sgd, true), "found 'divide after' and 'divide before'"},
        {handshake_of("lenet", "", &sgd, false), "found 'parameter 0: fc1.weight 64x13 float32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].says)
            assert_fails(ps_handshake_compare(&mine, "rank 0", &cases[i].other, "rank 3"), STATUS_PROTOCOL,
                         cases[i].says);
        else
            assert_ok(ps_handshake_compare(&mine, "rank 0", &cases[i].other, "rank 3"));
        free(cases[i].other.data);
    }
    free(mine.data);
}

static void garbage_is_refused_as_a_handshake(void **state)
{
    (void)state;
    optimizer_options sgd = optimizer_defaults(OPTIMIZER_SGD);
    sync_blob whole = handshake_of("wine_mlp", "", &sgd, false);
    char garbage[] = "psring parameter server 4\nhost 12\n";
    ps_handshake_own own;
    assert_ok(ps_handshake_read(&whole, "rank 1", &own));
    assert_true(own.host == 0x1234 && own.shared && strcmp(own.url, "ipc://@there") == 0);
    assert_fails(ps_handshake_read(&(sync_blob){garbage, sizeof garbage}, "rank 1", &own), STATUS_PROTOCOL,
                 "rank 1: expected 'psring parameter server 4', got");
    assert_fails(ps_handshake_read(&(sync_blob){NULL, 0}, "rank 1", &own), STATUS_PROTOCOL,
                 "rank 1: expected 'psring parameter server 4', got ''");
    for (size_t cut = 0; cut + 1 < whole.bytes;
         cut += 7) { /* the handshake is complete even if its last byte is cut off */
        sync_blob part = {whole.data, cut};
        if (ps_handshake_read(&part, "rank 1", &own) == STATUS_OK)
            assert_int_equal(ps_handshake_compare(&whole, "rank 0", &part, "rank 1"), STATUS_PROTOCOL);
        error_clear();
    }
    free(whole.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_override_policies_and_nonsense_is_refused),
        cmocka_unit_test(every_policy_names_its_source),
        cmocka_unit_test(keys_cover_all_parameters_once_and_are_pushed_when_nobody_needs_them),
        cmocka_unit_test(more_servers_than_elements_are_refused),
        cmocka_unit_test(keys_leave_a_queue_in_order_of_priority),
        cmocka_unit_test(a_queue_keeps_order_and_reports_when_it_is_full),
        cmocka_unit_test(threads_process_every_element_once),
        cmocka_unit_test(a_failure_of_a_range_is_returned),
        cmocka_unit_test(differences_between_handshakes_are_named),
        cmocka_unit_test(garbage_is_refused_as_a_handshake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
