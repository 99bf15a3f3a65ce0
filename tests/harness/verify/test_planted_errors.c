/* Tests that golden trajectories find errors: the comparison of `harness verify` fails if an error is planted
 * into operations, and succeeds without errors. */
#include "harness/verify/verify.h"
#include "ring/ring.h"
#include "tests/harness/verify/planted.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* A planted error, and the kind of figure in which it must show, or NULL for any figure. */
typedef struct planted_case {
    planted_error error;
    const char *file, *device, *kind;
} planted_case;

static const planted_case cases[] = {
    {PLANTED_NOTHING, "resnet18_32_w1_silu", "cpu", NULL},
    {PLANTED_NO_DECAY, "resnet18_32_w1_silu", "cpu", "parameter"},
    {PLANTED_MORE_DECAY, "resnet18_32_w1_silu", "cpu", NULL},
    {PLANTED_GRADIENT_OF_LAYER, "resnet18_32_w1_silu", "cpu", "gradient fc.weight"},
    {PLANTED_GRADIENT_OF_ALL, "resnet18_32_w1_silu", "cpu", NULL},
    {PLANTED_COLORS, "resnet18_32_w1_silu", "cpu", "gradient"},
    {PLANTED_CHANNELS, "resnet18_32_w1_silu", "cpu", "gradient"},
    {PLANTED_BIASED_VARIANCE, "resnet18_32_w1_silu", "cpu", "buffer"},
    /* several ranks */
    {PLANTED_NOTHING, "wine_mlp_w2", "cpu", NULL},
    {PLANTED_NO_DECAY, "wine_mlp_w2", "cpu", NULL},
    {PLANTED_MORE_DECAY, "wine_mlp_w2", "cpu", NULL},
    {PLANTED_GRADIENT_OF_LAYER, "wine_mlp_w2", "cpu", "gradient"},
    {PLANTED_NOTHING, "resnet18_32_w2_silu", "cpu", NULL},
    {PLANTED_BIASED_VARIANCE, "resnet18_32_w2_silu", "cpu", "buffer"},
    {PLANTED_CHANNELS, "resnet18_32_w2_silu", "cpu", "gradient"},
    /* In float32 a network with kinks is compared only roughly, in float64 to 1e-9. */
    {PLANTED_NOTHING, "resnet18_32_w1", "reference", NULL},
    {PLANTED_MORE_DECAY, "resnet18_32_w1", "reference", NULL},
    {PLANTED_BIASED_VARIANCE, "resnet18_32_w1", "reference", NULL},
    /* transformers */
    {PLANTED_NOTHING, "gpt2_tiny_w2", "cpu", NULL},
    {PLANTED_MORE_DECAY, "gpt2_tiny_w2", "cpu", NULL},
    {PLANTED_GRADIENT_OF_LAYER, "gpt2_tiny_w2", "cpu", "gradient"},
    {PLANTED_GRADIENT_OF_LAYER, "bert_tiny_w1", "cpu", "gradient"},
};

static void check(const planted_case *c)
{
    ring_options ring;
    option_binding binding = {.table = &ring_option_table, .storage = &ring};
    golden_file *file = NULL;
    char path[256];
    snprintf(path, sizeof path, "tests/golden/%s.json", c->file);
    if (options_defaults(&binding, 1) != STATUS_OK || golden_open(path, &file) != STATUS_OK)
        fail_msg("%s", error_message());
    bool alone = file->world == 1;
    verify_config config = {.file = file,
                            .device = c->device,
                            .threads = 1,
                            .engine = alone ? &sync_none : &sync_ring,
                            .engine_options = alone ? NULL : &ring,
                            .policy = alone ? "none" : "ddp"};
    comparison found;
    planted_set(c->error);
    status rc = verify_run(&config, &found);
    golden_close(&file);
    if (rc != STATUS_OK) fail_msg("%s: %s", c->file, error_message());
    print_message("# error %d in %s on %s: %.3g of the limit (%s)\n", c->error, c->file, c->device,
                  found.share, found.what);
    if ((c->error == PLANTED_NOTHING) != (planted_count() == 0))
        fail_msg("%s: the error was never made", c->file);
    if ((c->error == PLANTED_NOTHING) != (found.share <= 1))
        fail_msg("error %d in %s on %s: %.3g of the limit, found %.9g, expected %.9g", c->error, c->file,
                 c->device, found.share, found.found, found.expected);
    if (c->kind && strncmp(found.what, c->kind, strlen(c->kind)) != 0)
        fail_msg("error %d in %s shows in %s, expected is a %s", c->error, c->file, found.what, c->kind);
}

static void planted_errors_are_found_and_nothing_else_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planted_errors_are_found_and_nothing_else_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
