/* Compares models trained through the parameter server with PyTorch's trajectories. */
#include "harness/verify/verify.h"
#include "ps/policy.h"
#include "ps/ps.h"
#include "tests/support/check.h"

typedef struct golden_case {
    const char *file, *device, *policy;
    int64_t servers;
    int server_optimizer; /* 0 for the policy's default, 2 to switch it off */
    int payload;
    ps_dp_loss loss;
} golden_case;

static const golden_case cases[] = {
    {"toy_w4", "reference", "sync", 1, 0, PS_PAYLOAD_AUTO, PS_DP_LOSS_DEVICE0},
    {"toy_w4", "reference", "sync", 4, 2, PS_PAYLOAD_ZMQ, PS_DP_LOSS_DEVICE0},
    {"toy_w4", "cpu", "sync", 3, 0, PS_PAYLOAD_ZMQ, PS_DP_LOSS_DEVICE0},
    {"wine_mlp_w2", "reference", "sync", 2, 0, PS_PAYLOAD_SHM, PS_DP_LOSS_DEVICE0},
    {"wine_mlp_w4", "cpu", "sync", 1, 2, PS_PAYLOAD_AUTO, PS_DP_LOSS_DEVICE0},
    {"bert_tiny_w2", "reference", "sync", 1, 0, PS_PAYLOAD_AUTO, PS_DP_LOSS_DEVICE0},
    {"bert_tiny_w2", "cpu", "sync", 2, 0, PS_PAYLOAD_ZMQ, PS_DP_LOSS_DEVICE0},
    {"gpt2_tiny_w2", "reference", "sync", 2, 0, PS_PAYLOAD_ZMQ, PS_DP_LOSS_DEVICE0},
    {"resnet18_32_w2_silu", "cpu", "sync", 1, 0, PS_PAYLOAD_AUTO, PS_DP_LOSS_DEVICE0},
    {"resnet18_32_w3_silu", "cpu", "sync", 3, 0, PS_PAYLOAD_ZMQ, PS_DP_LOSS_DEVICE0},
    {"resnet18_32_w2_syncbn_silu", "cpu", "sync", 2, 2, PS_PAYLOAD_ZMQ, PS_DP_LOSS_DEVICE0},
    {"resnet18_32_w2_syncbn", "cpu", "sync", 1, 0, PS_PAYLOAD_SHM, PS_DP_LOSS_DEVICE0},
    {"toy_w4", "reference", "dp", .payload = PS_PAYLOAD_ZMQ},
    {"wine_mlp_w2", "reference", "dp", .payload = PS_PAYLOAD_SHM},
    {"wine_mlp_w4", "cpu", "dp", .payload = PS_PAYLOAD_AUTO},
    {"bert_tiny_w2_global_loss", "reference", "dp", .payload = PS_PAYLOAD_SHM},
    {"bert_tiny_w2_global_loss", "cpu", "dp", .payload = PS_PAYLOAD_ZMQ},
    {"bert_tiny_w2", "reference", "dp", .payload = PS_PAYLOAD_SHM, .loss = PS_DP_LOSS_REPLICA},
    {"gpt2_tiny_w2", "reference", "dp", .payload = PS_PAYLOAD_ZMQ, .loss = PS_DP_LOSS_REPLICA},
    {"resnet18_32_w2_silu", "cpu", "dp", .payload = PS_PAYLOAD_ZMQ},
    {"resnet18_32_w4_silu", "cpu", "dp", .payload = PS_PAYLOAD_SHM},
    {"resnet18_32_w2_syncbn_silu", "cpu", "dp", .payload = PS_PAYLOAD_SHM},
    {"resnet18_32_w2", "cpu", "dp", .payload = PS_PAYLOAD_SHM},
};

static void trajectories_agree(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const golden_case *c = &cases[i];
        char path[256];
        golden_file *file = NULL;
        ps_options options;
        option_binding binding = {.table = &ps_option_table, .storage = &options};
        assert_ok(options_defaults(&binding, 1));
        options.servers = c->servers;
        options.server_optimizer = c->server_optimizer;
        options.payload = c->payload;
        if (c->loss) options.dp_loss = 1 + c->loss;
        snprintf(path, sizeof path, "tests/golden/%s.json", c->file);
        assert_ok(golden_open(path, &file));
        verify_config config = {.file = file,
                                .device = c->device,
                                .threads = 1,
                                .engine = &sync_ps,
                                .engine_options = &options,
                                .policy = c->policy};
        comparison found;
        status rc = verify_run(&config, &found);
        if (rc != STATUS_OK)
            fail_msg("%s on %s: %s: %s", c->file, c->device, status_name(rc), error_message());
        print_message("# %s on %s, %s, %d servers: %.3g of the limit (%s)\n", c->file, c->device, c->policy,
                      (int)c->servers, found.share, found.what);
        if (found.share > 1)
            fail_msg("%s on %s: %s: found %.9g, expected %.9g", c->file, c->device, found.what, found.found,
                     found.expected);
        assert_true(found.tensors > 0);
        golden_close(&file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trajectories_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
