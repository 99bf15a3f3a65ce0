#include "common/nn/program.h"
#include "models/models.h"
#include "ring/policy.h"
#include "tests/support/status_name.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static ring_options options;
static shared_options shared;
static option_binding bindings[] = {{.table = &ring_option_table, .storage = &options},
                                    {.table = &shared_option_table, .storage = &shared}};

/* Resolves a policy with the options `words`, as the command line does. */
static status resolve(const char *policy, char *const *words, int count, ring_settings *out)
{
    const char *positional[16];
    int positionals;
    error_clear();
    TRY(options_defaults(bindings, 2));
    TRY(options_parse(bindings, 2, count, words, positional, &positionals));
    return ring_settings_resolve(&options, shared.divide, policy, out);
}

/* ---- buckets of ResNet-50 --------------------------------------------------------------------- */

static nn_program *resnet50(nn_model **model)
{
    nn_program *program = NULL;
    model_options o = {.name = "resnet50"};
    nn_program_config config = {.batch = 1, .mode = NN_TRAIN, .type = DTYPE_F32, .world = 1};
    assert_int_equal(model_build(&o, model), STATUS_OK);
    assert_int_equal(nn_program_compile(*model, &config, &program), STATUS_OK);
    return program;
}

typedef struct bucket_case {
    const char *policy, *option;
    bool later;
    int count;
    int64_t bytes[6];
} bucket_case;

/* Derived from the rules of the systems, for gradients that become ready in exactly the reverse order of
 * registration. */
static const bucket_case bucket_cases[] = {
    {"ddp", NULL, false, 1, {102228128}},
    {"ddp", NULL, true, 5, {8196000, 31502336, 26255360, 26550272, 9724160}},
    {"ddp", "--find-unused-parameters", false, 5, {12410784, 31502336, 29669376, 27022336, 1623296}},
    {"ddp", "--find-unused-parameters", true, 5, {12410784, 31502336, 29669376, 27022336, 1623296}},
    {"ddp-2019", NULL, false, 5, {12410784, 31502336, 29669376, 27022336, 1623296}},
    {"ddp-2019", NULL, true, 5, {12410784, 31502336, 29669376, 27022336, 1623296}},
    {"apex", NULL, false, 1, {102228128}},
    {"apex", NULL, true, 3, {43896736, 40982528, 17348864}},
    {"torch-0.4.1", NULL, false, 1, {102228128}},
    {"torch-0.4.1", NULL, true, 1, {102228128}},
    {"flat", NULL, false, 1, {102228128}},
    {"ddp", "--order=reverse", false, 5, {8196000, 31502336, 26255360, 26550272, 9724160}},
};

static void resnet50_has_the_buckets_of_the_reproduced_systems(void **state)
{
    (void)state;
    nn_model *model = NULL;
    nn_program *program = resnet50(&model);
    for (size_t i = 0; i < sizeof bucket_cases / sizeof bucket_cases[0]; i++) {
        const bucket_case *c = &bucket_cases[i];
        ring_settings s;
        bucket_schedule list;
        char word[64];
        snprintf(word, sizeof word, "%s", c->option ? c->option : "");
        char *words[] = {word};
        assert_int_equal(resolve(c->policy, words, c->option ? 1 : 0, &s), STATUS_OK);
        assert_int_equal(ring_program_buckets(&s, program, c->later, &list), STATUS_OK);
        if (list.count != c->count)
            fail_msg("%s %s: found %d buckets, expected %d", c->policy, word, list.count, c->count);
        for (int k = 0; k < c->count; k++)
            if (list.buckets[k].bytes != c->bytes[k])
                fail_msg("%s %s, bucket %d: found %lld bytes, expected %lld", c->policy, word, k,
                         (long long)list.buckets[k].bytes, (long long)c->bytes[k]);
        bucket_schedule_close(&list);
    }
    nn_program_free(&program);
    nn_model_free(&model);
}

static void naive_has_one_bucket_per_parameter_last_registered_first(void **state)
{
    (void)state;
    nn_model *model = NULL;
    nn_program *program = resnet50(&model);
    ring_settings s;
    bucket_schedule list;
    assert_int_equal(resolve("naive", NULL, 0, &s), STATUS_OK);
    assert_int_equal(ring_program_buckets(&s, program, true, &list), STATUS_OK);
    assert_int_equal(list.count, 161);
    for (int k = 0; k < list.count; k++) assert_int_equal(list.tensors[list.buckets[k].first], 160 - k);
    bucket_schedule_close(&list);
    nn_program_free(&program);
    nn_model_free(&model);
}

/* ---- fields ----------------------------------------------------------------------------------- */

typedef struct field_case {
    const char *policy;
    bool divide_before, broadcast_buffers, rebuilds, serial;
    ring_launch first, later;
    ring_bucket_lifetime lifetime;
} field_case;

static const field_case field_cases[] = {
    {"ddp", true, true, true, false, RING_WHEN_READY, RING_WHEN_READY, RING_BUCKETS_PERSIST},
    {"ddp-2019", true, true, false, false, RING_WHEN_READY, RING_WHEN_READY, RING_BUCKETS_PERSIST},
    {"ddp-1.0", true, true, false, false, RING_WHEN_READY, RING_WHEN_READY, RING_BUCKETS_PERSIST},
    {"apex", false, false, true, false, RING_AFTER_BACKWARD, RING_WHEN_READY, RING_BUCKETS_PASS},
    {"torch-0.4.1", false, true, false, true, RING_AFTER_BACKWARD, RING_AFTER_BACKWARD, RING_BUCKETS_PASS},
    {"torch-0.4.1-gloo", true, true, false, false, RING_WHEN_READY, RING_WHEN_READY, RING_BUCKETS_PASS},
    {"horovod", false, false, false, false, RING_WHEN_READY, RING_WHEN_READY, RING_BUCKETS_PERSIST},
    {"horovod-xla", false, false, false, false, RING_AFTER_BACKWARD, RING_AFTER_BACKWARD,
     RING_BUCKETS_PERSIST},
    {"flat", false, false, false, false, RING_AFTER_BACKWARD, RING_AFTER_BACKWARD, RING_BUCKETS_PERSIST},
    {"naive", false, false, false, false, RING_WHEN_READY, RING_WHEN_READY, RING_BUCKETS_PERSIST},
    {"zero1", true, true, false, false, RING_WHEN_READY, RING_WHEN_READY, RING_BUCKETS_PERSIST},
    {"zero2", true, true, false, false, RING_WHEN_READY, RING_WHEN_READY, RING_BUCKETS_PERSIST},
    {"zero3", true, true, false, false, RING_WHEN_READY, RING_WHEN_READY, RING_BUCKETS_PERSIST},
    {"fsdp", true, true, false, false, RING_WHEN_READY, RING_WHEN_READY, RING_BUCKETS_PERSIST},
};

static void every_policy_is_in_the_table_with_its_source(void **state)
{
    (void)state;
    assert_int_equal(RING_POLICIES, sizeof field_cases / sizeof field_cases[0]);
    for (int i = 0; i < RING_POLICIES; i++) {
        const field_case *c = &field_cases[i];
        ring_settings s;
        assert_int_equal(resolve(c->policy, NULL, 0, &s), STATUS_OK);
        assert_string_equal(ring_policy_infos[i].name, c->policy);
        assert_string_equal(ring_policies[i].name, c->policy);
        assert_true(strlen(ring_policy_infos[i].source) > 10);
        assert_true(strlen(ring_policy_infos[i].summary) > 10);
        bool same = s.policy.divide_before == c->divide_before &&
                    s.policy.broadcast_buffers == c->broadcast_buffers && s.policy.rebuilds == c->rebuilds &&
                    s.policy.serial == c->serial && s.policy.first.launch == c->first &&
                    s.policy.later.launch == c->later && s.policy.lifetime == c->lifetime;
        if (!same) fail_msg("%s differs from its expected row", c->policy);
    }
}

static void options_change_single_fields(void **state)
{
    (void)state;
    char a[] = "--bucket-cap-mb=10", b[] = "--launch=after-backward", c[] = "--divide=after",
         d[] = "--broadcast-buffers=no", e[] = "--first-bucket-mb=2", f[] = "--message-size=1000",
         g[] = "--order=ready", h[] = "--bucket-cap-mb=10MiB", i[] = "--bucket-cap-mb=25MB";
    ring_settings s;
    assert_int_equal(resolve("ddp", (char *[]){a, e}, 2, &s), STATUS_OK);
    assert_int_equal(s.policy.later.buckets.limit, 10 << 20);
    assert_int_equal(s.policy.later.buckets.first_limit, 2 << 20);
    assert_int_equal(resolve("ddp", (char *[]){a}, 1, &s), STATUS_OK);
    assert_int_equal(s.policy.later.buckets.first_limit, 1 << 20);
    assert_int_equal(resolve("ddp", (char *[]){h}, 1, &s), STATUS_OK);
    assert_int_equal(s.policy.later.buckets.limit, 10 << 20);
    assert_int_equal(resolve("ddp", (char *[]){i}, 1, &s), STATUS_OK);
    assert_int_equal(s.policy.later.buckets.limit, 25000000);
    assert_int_equal(resolve("ddp-1.0", (char *[]){a}, 1, &s), STATUS_OK);
    assert_int_equal(s.policy.first.buckets.first_limit, 10 << 20);
    assert_int_equal(resolve("ddp", (char *[]){b, c, d}, 3, &s), STATUS_OK);
    assert_int_equal(s.policy.later.launch, RING_AFTER_BACKWARD);
    assert_false(s.policy.divide_before);
    assert_false(s.policy.broadcast_buffers);
    assert_int_equal(resolve("apex", (char *[]){f}, 1, &s), STATUS_OK);
    assert_int_equal(s.policy.later.buckets.limit, 1000);
    assert_int_equal(resolve("ddp-2019", (char *[]){g}, 1, &s), STATUS_OK);
    assert_true(s.policy.rebuilds);
    assert_int_equal(s.policy.first.buckets.order, BUCKET_ORDER_LAST_FIRST);
    assert_int_equal(s.policy.later.buckets.order, BUCKET_ORDER_READY);
}

typedef struct refusal {
    const char *policy, *option, *other, *text;
} refusal;

static const refusal refusals[] = {
    {"pytorch", NULL, NULL, "ring policy: expected one of ddp, "},
    {"apex", "--bucket-cap-mb=3", NULL, "--bucket-cap-mb: "},
    {"flat", "--first-bucket-mb=3", NULL, "--first-bucket-mb: "},
    {"ddp", "--message-size=3", NULL, "--message-size: "},
    {"ddp", "--predivide=2", NULL, "--predivide: "},
    {"ddp", "--bucket-view", "--comm-hook=fp16", "--bucket-view: "},
    {"ddp", "--allreduce-fp32", "--comm-hook=bf16", "--allreduce-fp32: "},
    {"ddp", "--order=random", NULL, "--order: expected one of policy, registration"},
    {"ddp", "--powersgd-rank=0", NULL, "--powersgd-rank: "},
};

static void contradicting_options_are_errors_that_name_them(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *r = &refusals[i];
        ring_settings s;
        char a[64], b[64];
        snprintf(a, sizeof a, "%s", r->option ? r->option : "");
        snprintf(b, sizeof b, "%s", r->other ? r->other : "");
        status rc = resolve(r->policy, (char *[]){a, b}, r->other ? 2 : r->option ? 1 : 0, &s);
        if (rc != STATUS_USAGE || strncmp(error_message(), r->text, strlen(r->text)) != 0)
            fail_msg("%s %s: found %s '%s', expected '%s'", r->policy, a, status_name(rc), error_message(),
                     r->text);
    }
    error_clear();
}

static void an_order_is_completed_to_a_permutation(void **state)
{
    (void)state;
    int ready[] = {4, 1, 0}, out[6];
    static const int expected[] = {4, 1, 0, 5, 3, 2};
    ring_complete_order(ready, 3, 6, out);
    assert_memory_equal(out, expected, sizeof expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resnet50_has_the_buckets_of_the_reproduced_systems),
        cmocka_unit_test(naive_has_one_bucket_per_parameter_last_registered_first),
        cmocka_unit_test(every_policy_is_in_the_table_with_its_source),
        cmocka_unit_test(options_change_single_fields),
        cmocka_unit_test(contradicting_options_are_errors_that_name_them),
        cmocka_unit_test(an_order_is_completed_to_a_permutation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
