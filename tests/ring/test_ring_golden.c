/* Compares models trained through the ring engine with PyTorch's trajectories. */
#include "harness/verify/verify.h"
#include "ring/ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct golden_case {
    const char *file, *device, *policy;
    const char *words[2];
} golden_case;

static const golden_case cases[] = {
    {"toy_w4", "reference", "ddp", {NULL}},
    {"toy_w4", "reference", "torch-0.4.1", {NULL}},
    {"toy_w4", "cpu", "naive", {"--algorithm=ring"}},
    {"wine_mlp_w2", "reference", "apex", {"--bucket-view"}},
    {"wine_mlp_w4", "cpu", "ddp", {"--bucket-view"}},
    {"bert_tiny_w2", "reference", "flat", {NULL}},
    {"bert_tiny_w2", "cpu", "ddp", {"--bucket-cap-mb=0.05"}},
    {"gpt2_tiny_w2", "reference", "ddp-2019", {"--bucket-cap-mb=0.05", "--find-unused-parameters"}},
    {"resnet18_32_w2_silu", "cpu", "ddp", {NULL}},
    {"resnet18_32_w3_silu", "cpu", "torch-0.4.1-gloo", {"--algorithm=ring"}},
    {"resnet18_32_w2_syncbn_silu", "cpu", "ddp-1.0", {NULL}},
    {"resnet18_32_w2_syncbn", "cpu", "torch-0.4.1", {NULL}},
    {"inception_v3_107_w2_silu", "cpu", "zero3", {NULL}},
    {"wine_mlp_w3_fully_shard", "reference", "fsdp", {NULL}},
    {"wine_mlp_w3_fully_shard", "reference", "zero3", {NULL}},
    {"wine_mlp_w3_fully_shard", "cpu", "fsdp", {"--algorithm=two-shot"}},
    {"gpt2_tiny_w2_fully_shard", "reference", "fsdp", {NULL}},
    {"gpt2_tiny_w2_fully_shard", "reference", "zero3", {NULL}},
    {"gpt2_tiny_w3_fully_shard", "reference", "fsdp", {NULL}},
    {"gpt2_tiny_w3_fully_shard", "reference", "zero3", {NULL}},
    {"gpt2_tiny_w3_fully_shard", "cpu", "fsdp", {NULL}},
    {"gpt2_tiny_w3_fully_shard", "cpu", "zero3", {NULL}},
    {"toy_w4", "reference", "zero3", {"--group=2"}},
    {"wine_mlp_w4", "reference", "fsdp", {"--group=2"}},
    {"wine_mlp_w4", "cpu", "zero1", {"--group=2"}},
    {"resnet18_32_w4_silu", "cpu", "zero3", {"--group=2"}},
};

static void run_case(const golden_case *c)
{
    char path[256], copies[2][48];
    char *words[2];
    const char *positional[2];
    int count = 0, positionals;
    ring_options options;
    golden_file *file = NULL;
    comparison found;
    option_binding binding = {.table = &ring_option_table, .storage = &options};
    for (; count < 2 && c->words[count]; count++) {
        snprintf(copies[count], sizeof copies[count], "%s", c->words[count]);
        words[count] = copies[count];
    }
    error_clear();
    assert_int_equal(options_defaults(&binding, 1), STATUS_OK);
    assert_int_equal(options_parse(&binding, 1, count, words, positional, &positionals), STATUS_OK);
    snprintf(path, sizeof path, "tests/golden/%s.json", c->file);
    if (golden_open(path, &file) != STATUS_OK) fail_msg("%s", error_message());
    verify_config config = {.file = file,
                            .device = c->device,
                            .threads = 1,
                            .engine = &sync_ring,
                            .engine_options = &options,
                            .policy = c->policy};
    status rc = verify_run(&config, &found);
    if (rc != STATUS_OK) fail_msg("%s, %s on %s: %s", c->file, c->policy, c->device, error_message());
    print_message("# %s, %s on %s: %.3g of the limit (%s)\n", c->file, c->policy, c->device, found.share,
                  found.what);
    if (found.share > 1)
        fail_msg("%s, %s on %s: %s: found %.9g, expected %.9g", c->file, c->policy, c->device, found.what,
                 found.found, found.expected);
    assert_true(found.tensors > 0);
    golden_close(&file);
}

static void trajectories_agree_with_those_of_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) run_case(&cases[i]);
}

/* Runs golden files of several ranks under every policy. */
static void run_under_every_policy(const char *const *files, size_t count, const char *collective)
{
    for (size_t i = 0; i < count; i++)
        for (int p = 0; p < RING_POLICIES; p++)
            run_case(&(golden_case){files[i], "cpu", ring_policies[p].name, {collective}});
}

static void every_policy_agrees_with_the_trajectories_of_pytorch(void **state)
{
    (void)state;
    static const char *const files[] = {"toy_w4", "wine_mlp_w2", "wine_mlp_w4", "bert_tiny_w2"};
    run_under_every_policy(files, sizeof files / sizeof files[0], "--algorithm=two-shot");
    run_under_every_policy(files, 1, "--algorithm=ring");
}

static void every_policy_agrees_with_every_trajectory_of_several_ranks(void **state)
{
    (void)state;
    static const char *const files[] = {"toy_w4",
                                        "wine_mlp_w2",
                                        "wine_mlp_w4",
                                        "bert_tiny_w2",
                                        "gpt2_tiny_w2",
                                        "resnet18_32_w2_silu",
                                        "resnet18_32_w3_silu",
                                        "resnet18_32_w4_silu",
                                        "resnet18_32_w2_syncbn",
                                        "resnet18_32_w2_syncbn_silu",
                                        "resnet50_96_w2_silu",
                                        "inception_v3_107_w2_silu"};
    run_under_every_policy(files, sizeof files / sizeof files[0], "--algorithm=two-shot");
    run_under_every_policy(files, sizeof files / sizeof files[0], "--algorithm=ring");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest long_tests[] = {
        cmocka_unit_test(every_policy_agrees_with_every_trajectory_of_several_ranks),
    };
    if (argc > 1 && strcmp(argv[1], "--long") == 0) return cmocka_run_group_tests(long_tests, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trajectories_agree_with_those_of_pytorch),
        cmocka_unit_test(every_policy_agrees_with_the_trajectories_of_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
