/* Tests that every shipped profile loads, and that every error in a profile has a message with a line and a
 * status. */
#include "common/sim/profile.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static const char *const shipped[] = {"cpu",
                                      "dgx-a100-40g",
                                      "dgx-a100-80g",
                                      "dgx-h100",
                                      "dgx1-p100",
                                      "dgx1-p100-nccl1",
                                      "dgx1-v100",
                                      "dgx1-v100-4xib100",
                                      "gce-k80",
                                      "hgx-h200",
                                      "titan-rtx-x2",
                                      "titan-rtx-x2-no-p2p",
                                      "v100-pcie-10gbe",
                                      "v100-pcie-32g",
                                      "v100-sxm2-ib100"};
enum { SHIPPED = sizeof shipped / sizeof shipped[0] };

static void the_list_names_all_profiles_and_no_bases(void **context)
{
    (void)context;
    char **names;
    size_t count;
    must(sim_profile_list(&names, &count));
    for (size_t i = 0; i < count && i < SHIPPED; i++)
        if (strcmp(names[i], shipped[i]) != 0)
            fail_msg("profile %zu: found %s, expected %s", i, names[i], shipped[i]);
    assert_int_equal(count, SHIPPED);
    sim_profile_free_names(names, count);
}

static void every_profile_loads_and_says_where_each_constant_is_from(void **context)
{
    (void)context;
    for (int i = 0; i < SHIPPED; i++) {
        sim_profile *p;
        must(sim_profile_load(shipped[i], &p));
        assert_string_equal(p->name, shipped[i]);
        assert_true(strlen(p->summary) > 10);
        for (int c = 0; c < SIM_CONSTANT_COUNT; c++) {
            const sim_provenance *from = &p->provenance[c];
            if (!sim_profile_has(p, (sim_constant)c)) continue;
            if (!from->source || strlen(from->source) < 5 || !from->from)
                fail_msg("%s: %s has no source", shipped[i], sim_constant_table[c].name);
        }
        sim_profile_free(&p);
    }
}

static void figures_are_those_of_the_data_sheets(void **context)
{
    (void)context;
    static const struct {
        const char *profile;
        int gpus, nics, machines;
        double fp32, tf32, bandwidth, memory; /* A value is 0 if the profile does not have it. */
    } cases[] = {
        {"v100-pcie-32g", 8, 0, 1, 14.1, 0, 897, 32},
        {"dgx1-v100", 8, 0, 1, 15.7, 0, 900, 32},
        {"v100-sxm2-ib100", 8, 1, 1024, 15.7, 0, 900, 16},
        {"dgx1-v100-4xib100", 8, 4, 1024, 15.7, 0, 900, 32},
        {"dgx1-p100", 8, 0, 1, 10.6, 0, 732, 16},
        {"gce-k80", 8, 0, 1, 4.37, 0, 240, 12},
        {"dgx-a100-40g", 8, 8, 1024, 19.5, 156, 1555, 40},
        {"dgx-a100-80g", 8, 8, 1024, 19.5, 156, 2039, 80},
        {"dgx-h100", 8, 8, 1024, 67, 495, 3350, 80},
        {"hgx-h200", 8, 8, 1024, 67, 495, 4800, 140},
        {"titan-rtx-x2", 2, 0, 1, 16.3, 0, 672, 24},
        {"v100-pcie-10gbe", 1, 1, 4096, 14.1, 0, 897, 32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sim_profile *p;
        must(sim_profile_load(cases[i].profile, &p));
        double tf32 = sim_profile_has(p, SIM_PEAK_TF32) ? sim_profile_get(p, SIM_PEAK_TF32) : 0;
        if (p->wiring.gpus != cases[i].gpus || p->wiring.nics != cases[i].nics ||
            p->wiring.machines != cases[i].machines || sim_profile_get(p, SIM_PEAK_FP32) != cases[i].fp32 ||
            tf32 != cases[i].tf32 || sim_profile_get(p, SIM_MEMORY_BANDWIDTH) != cases[i].bandwidth ||
            sim_profile_get(p, SIM_GPU_MEMORY) != cases[i].memory)
            fail_msg("%s: found %d GPUs, %d adapters, %d machines, %g and %g TFLOP/s, %g GB/s, %g GiB",
                     cases[i].profile, p->wiring.gpus, p->wiring.nics, p->wiring.machines,
                     sim_profile_get(p, SIM_PEAK_FP32), tf32, sim_profile_get(p, SIM_MEMORY_BANDWIDTH),
                     sim_profile_get(p, SIM_GPU_MEMORY));
        sim_profile_free(&p);
    }
}

static void what_extends_a_profile_replaces_its_constants(void **context)
{
    (void)context;
    sim_profile *p;
    must(sim_profile_load("dgx-a100-80g", &p));
    assert_string_equal(p->provenance[SIM_GPU_MEMORY].from, "dgx-a100-80g");
    assert_string_equal(p->provenance[SIM_PEAK_TF32].from, "dgx-a100-40g");
    assert_string_equal(p->provenance[SIM_KAPPA].from, "cuda");
    assert_string_equal(p->provenance[SIM_NCCL_BASE_RING].from, "nccl");
    assert_string_equal(p->provenance[SIM_NCCL_BASE_RING].tag, "published");
    assert_true(sim_profile_at(p, SIM_NCCL_BASE_RING, 2) == 8.4);
    assert_true(sim_profile_at(p, SIM_NCCL_CORRECTION_SIMPLE, 23) == 0.9);
    sim_profile_free(&p);
}

/* ---- files ------------------------------------------------------------------------------------ */

static char path[64];

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void write_file(const char *text)
{
    snprintf(path, sizeof path, "/tmp/test-psring-profile-%d.json", (int)getpid());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

#define HEAD "{\"profile\": \"mine\", \"summary\": \"a test\", \"base\": \"v100-pcie-32g\", \"constants\": {"
#define KAPPA(value, tag)                                                                                    \
    "\"kappa\": {\"value\": " value ", \"unit\": \"1\", \"tag\": \"" tag "\", \"source\": \"here\"}"
#define RANGED_KAPPA(range)                                                                                  \
    "\"kappa\": {\"value\": 1.5, \"range\": " range                                                          \
    ", \"unit\": \"1\", \"tag\": \"assumed\", \"source\": \"here\"}"
#define TOPOLOGY(links)                                                                                      \
    "}, \"topology\": {\"machines\": 1, \"peer_access\": true, \"source\": \"here\", \"links\": [" links "]" \
    "}"                                                                                                      \
    "}"

static void a_profile_may_be_a_file(void **context)
{
    (void)context;
    write_file(HEAD KAPPA("1.1", "calibrated on a guess") "}}");
    sim_profile *p;
    must(sim_profile_load(path, &p));
    assert_string_equal(p->name, "mine");
    assert_true(sim_profile_get(p, SIM_KAPPA) == 1.1);
    assert_string_equal(p->provenance[SIM_KAPPA].tag, "calibrated on a guess");
    assert_true(sim_profile_get(p, SIM_PEAK_FP32) == 14.1);
    sim_profile_free(&p);
    unlink(path);
}

/* A value may have another unit than the constant, and is converted. */
static void a_value_may_have_a_unit_of_its_own(void **context)
{
    (void)context;
    write_file(
        HEAD
        "\"nic\": {\"value\": \"10Gbit/s\", \"unit\": \"GB/s\", \"tag\": \"assumed\", \"source\": \"here\"}, "
        "\"launch_time\": {\"value\": \"2500ns\", \"unit\": \"us\", \"tag\": \"assumed\", \"source\": "
        "\"here\"}}}");
    sim_profile *p;
    must(sim_profile_load(path, &p));
    assert_true(sim_profile_get(p, SIM_NIC) == 1.25);
    assert_true(sim_profile_get(p, SIM_LAUNCH_TIME) == 2.5);
    sim_profile_free(&p);
    unlink(path);
}

/* ---- ranges ----------------------------------------------------------------------------------- */

/* In a set of draws, a constant takes each position of its range once, including both ends, and no position
 * outside of the range. */
static void draws_take_each_constant_through_its_range(void **context)
{
    (void)context;
    write_file(HEAD RANGED_KAPPA(
        "[1.2, 3]") ", \"efficiency_loss\": {\"value\": [0.5, 0.6], \"range\": [[0.4, 0.4], "
                    "[0.7, 0.6]], \"unit\": \"1\", \"tag\": \"assumed\", \"source\": \"here\"}}}");
    double found[SIM_DRAWS + 1], expected[SIM_DRAWS];
    sim_profile *p;
    for (int draw = 0; draw <= SIM_DRAWS; draw++) {
        must(sim_profile_load(path, &p));
        assert_true(sim_profile_has_range(p, SIM_KAPPA) && !sim_profile_has_range(p, SIM_PEAK_FP32));
        sim_profile_draw(p, draw);
        found[draw] = sim_profile_get(p, SIM_KAPPA);
        double loss = sim_profile_get(p, SIM_LOSS), bytes = sim_profile_at(p, SIM_LOSS, 1);
        assert_true(fabs(loss < 0.5 ? bytes - (0.4 + 2 * (loss - 0.4)) : bytes - 0.6) <
                    1e-12); /* Both constants are at the same position of their ranges. */
        assert_true(draw > 0 || (found[0] == 1.5 && loss == 0.5 && bytes == 0.6));
        assert_true(sim_profile_get(p, SIM_PEAK_FP32) == 14.1); /* The constant has no range. */
        sim_profile_free(&p);
    }
    qsort(found + 1, SIM_DRAWS, sizeof *found, by_value);
    for (int i = 0; i < SIM_DRAWS; i++) {
        double at = (double)i / (SIM_DRAWS - 1);
        expected[i] = at < 0.5 ? 1.2 + 0.3 * 2 * at : 1.5 + 1.5 * (2 * at - 1);
        if (fabs(found[i + 1] - expected[i]) > 1e-12)
            fail_msg("position %d: found %g, expected %g", i, found[i + 1], expected[i]);
    }
    unlink(path);
}

/* Every constant that was assumed and not measured has a range. The exceptions are constants that are choices
 * rather than quantities, constants of effects that the profile does not have, and kappa if the range of
 * several_gpus contains the slowdown by other processes. */
static void every_assumed_constant_has_a_range(void **context)
{
    (void)context;
    static const sim_constant choices[] = {SIM_GPU_MEMORY, SIM_SYNCHRONOUS, SIM_JITTER_RANK,
                                           SIM_JITTER_KERNEL, SIM_PEER_OVERHEAD};
    char **names = NULL;
    size_t count = 0;
    must(sim_profile_list(&names, &count));
    for (size_t n = 0; n < count; n++) {
        sim_profile *p;
        must(sim_profile_load(names[n], &p));
        for (int c = 0; c < SIM_CONSTANT_COUNT; c++) {
            bool chosen = false;
            for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++)
                chosen = chosen || choices[i] == (sim_constant)c;
            chosen = chosen || sim_profile_get(p, (sim_constant)c) == 0 ||
                     (c == SIM_KAPPA && sim_profile_has_range(p, SIM_SEVERAL_GPUS) &&
                      p->high[SIM_SEVERAL_GPUS][0] > sim_profile_get(p, SIM_KAPPA));
            if (chosen || !sim_profile_has(p, (sim_constant)c) ||
                strcmp(p->provenance[c].tag, "assumed") != 0)
                continue;
            if (!sim_profile_has_range(p, (sim_constant)c))
                fail_msg("profile %s: %s is assumed and has no range", names[n], sim_constant_table[c].name);
        }
        sim_profile_free(&p);
    }
    sim_profile_free_names(names, count);
}

/* Reads the example of the documentation without changes. */
static void the_documented_profile_loads(void **context)
{
    (void)context;
    static char text[65536];
    FILE *file = fopen("docs/simulation.md", "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    char *begin = strstr(text, "```json\n");
    assert_non_null(begin);
    begin += strlen("```json\n");
    *strstr(begin, "```") = '\0';
    write_file(begin);
    sim_profile *p;
    must(sim_profile_load(path, &p));
    assert_int_equal(p->wiring.gpus, 2);
    assert_int_equal(p->wiring.sockets, 1);
    assert_true(p->wiring.links[3].count == 2 && p->wiring.links[3].kind == SIM_LINK_NVLINK);
    sim_profile_free(&p);
    unlink(path);
}

static void a_file_that_is_none_has_one_clear_line(void **context)
{
    (void)context;
    static const struct {
        /* Content of the profile, and the message that follows the name and the file. */
        const char *text, *message;
    } cases[] = {
        {"[]", "expected an object"},
        {"{\"profile\": \"mine\", \"summary\": \"a\", \"constants\": {}, \"topolgy\": {}}",
         "top level: expected one of profile, summary, base, abstract, constants, topology, got 'topolgy'"},
        {"{\"summary\": \"a\", \"constants\": {}}", "profile: the name is missing"},
        {"{\"profile\": \"mine\", \"constants\": {}}", "summary: the text is missing"},
        {"{\"profile\": \"mine\", \"summary\": \"a\"}", "constants: the object is missing"},
        {"{\"profile\": \"mine\", \"summary\": \"a\", \"base\": \"v200\", \"constants\": {}}",
         "base: expected the name of a profile, got 'v200'"},
        {"{\"profile\": \"mine\", \"summary\": \"a\", \"base\": \"cuda\", \"constants\": {}}",
         "topology: the object is missing"},
        {HEAD "\"kapa\": {\"value\": 1}}}",
         "constants: expected the name of a constant, got 'kapa'; did you mean 'kappa'?"},
        {HEAD "\"kappa\": 1}}", "kappa: expected an object with value, unit, tag, source"},
        {HEAD "\"kappa\": {\"value\": \"1\", \"unit\": \"1\", \"tag\": \"assumed\", \"source\": \"here\"}}}",
         "kappa: expected a number from 1 to 3"},
        {HEAD KAPPA("0.5", "assumed") "}}", "kappa: expected 1 to 3, got 0.5"},
        {HEAD KAPPA("1.5", "guessed") "}}",
         "kappa: expected the tag datasheet, published, assumed or 'calibrated on ...', got 'guessed'"},
        {HEAD KAPPA("1.5", "calibrated on ") "}}", "kappa: expected the tag datasheet, published, "
                                                   "assumed or 'calibrated on ...', got 'calibrated on '"},
        {HEAD "\"kappa\": {\"value\": 1, \"unit\": \"%\", \"tag\": \"assumed\", \"source\": \"here\"}}}",
         "kappa: expected the unit '1', got '%'"},
        {HEAD "\"kappa\": {\"value\": 1, \"unit\": \"1\", \"tag\": \"assumed\"}}}",
         "kappa: the source is missing"},
        {HEAD "\"kappa\": {\"value\": 1, \"unit\": \"1\", \"tag\": \"assumed\", \"source\": \"here\", "
              "\"note\": 1}}}",
         "kappa: expected one of value, range, range_is, unit, tag, source, got 'note'"},
        {HEAD RANGED_KAPPA("[1, 2], \"range_is\": \"rumor\"") "}}",
         "kappa: range_is: expected source or guess, got 'rumor'"},
        {HEAD RANGED_KAPPA("1.5") "}}", "kappa: expected a range as [low, high]"},
        {HEAD RANGED_KAPPA("[1.2, \"x\"]") "}}", "kappa: expected a number from 1 to 3"},
        {HEAD RANGED_KAPPA("[1, 9]") "}}", "kappa: expected 1 to 3, got 9"},
        {HEAD RANGED_KAPPA("[1.6, 2]") "}}", "kappa: expected a range around 1.5, got 1.6 to 2"},
        {HEAD "\"nccl_base_ring\": {\"value\": [1, 2], \"unit\": \"us\", \"tag\": \"assumed\", \"source\": "
              "\"here\"}}}",
         "nccl_base_ring: expected an array of 3 values, got 2"},
        {HEAD TOPOLOGY(""), "topology: expected 1 to 256 links, got 0"},
        {HEAD TOPOLOGY("[\"gpu0\", \"socket0\"]"),
         "topology: expected [from, to, kind] or [from, to, kind, count], got a link of 2 parts"},
        {HEAD TOPOLOGY("[\"gpu0\", \"socket0\", \"wire\"]"),
         "topology: expected a link of kind pcie, nvlink or socket, got 'wire'"},
        {HEAD TOPOLOGY("[\"gpuA\", \"socket0\", \"pcie\"]"),
         "topology: expected gpuN, switchN, socketN, nvswitchN or nicN, got 'gpuA'"},
        {HEAD TOPOLOGY("[\"gpu1\", \"socket0\", \"pcie\"]"),
         "topology: expected nodes numbered from 0, got gpu1 among 1 of its kind"},
        {HEAD TOPOLOGY("[\"gpu0\", \"gpu0\", \"pcie\"]"),
         "topology: expected links between two nodes, got one from a node to itself"},
        {HEAD TOPOLOGY("[\"gpu0\", \"socket0\", \"pcie\", 99]"),
         "topology: expected 1 to 64 parallel links, got 99"},
        {HEAD TOPOLOGY("[\"gpu0\", \"socket0\", \"pcie\"], [\"gpu1\", \"gpu0\", \"nvlink\"]"),
         "topology: gpu1 has no path to socket0"},
        {HEAD TOPOLOGY("[\"gpu0\", \"socket0\", \"pcie\"], [\"nic0\", \"socket0\", \"pcie\"]"),
         "nic (a network adapter, one direction) is missing, and the topology has network adapters"},
    };
    sim_profile *none;
    write_file("{");
    assert_int_equal(sim_profile_load(path, &none), STATUS_DATA);
    assert_non_null(strstr(error_message(), ":1:1: string or '}' expected near end of file"));
    error_clear();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(cases[i].text);
        char expected[512];
        snprintf(expected, sizeof expected, "profile %s (%s): %s", path, path, cases[i].message);
        sim_profile *p;
        assert_int_equal(sim_profile_load(path, &p), STATUS_DATA);
        assert_int_equal(status_exit_code(STATUS_DATA), 65);
        if (strcmp(error_message(), expected) != 0)
            fail_msg("case %zu: found \"%s\", expected \"%s\"", i, error_message(), expected);
        assert_null(p);
        error_clear();
        unlink(path);
    }
}

static void a_missing_constant_is_named(void **context)
{
    (void)context;
    write_file("{\"profile\": \"mine\", \"summary\": \"a\", \"base\": \"cuda\", \"constants\": {" TOPOLOGY(
        "[\"gpu0\", \"socket0\", \"pcie\"]"));
    sim_profile *p;
    assert_int_equal(sim_profile_load(path, &p), STATUS_DATA);
    assert_non_null(strstr(error_message(), ": gpu_memory (memory of a GPU) is missing"));
    error_clear();
    unlink(path);
}

static void an_unknown_name_lists_those_there_are(void **context)
{
    (void)context;
    sim_profile *p;
    assert_int_equal(sim_profile_load("v100-pcie", &p), STATUS_USAGE);
    assert_int_equal(status_exit_code(STATUS_USAGE), 64);
    assert_non_null(strstr(error_message(), "got 'v100-pcie'; did you mean 'v100-pcie-32g'?"));
    error_clear();
    assert_int_equal(sim_profile_load("./nowhere.json", &p), STATUS_USAGE);
    assert_string_equal(error_message(), "profile ./nowhere.json cannot be read: No such file or directory");
    error_clear();
    assert_int_equal(sim_profile_load("cuda", &p), STATUS_DATA);
    assert_non_null(strstr(error_message(), "expected a profile, got a base of profiles"));
    error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_names_all_profiles_and_no_bases),
        cmocka_unit_test(every_profile_loads_and_says_where_each_constant_is_from),
        cmocka_unit_test(figures_are_those_of_the_data_sheets),
        cmocka_unit_test(what_extends_a_profile_replaces_its_constants),
        cmocka_unit_test(a_profile_may_be_a_file),
        cmocka_unit_test(a_value_may_have_a_unit_of_its_own),
        cmocka_unit_test(draws_take_each_constant_through_its_range),
        cmocka_unit_test(every_assumed_constant_has_a_range),
        cmocka_unit_test(the_documented_profile_loads),
        cmocka_unit_test(a_file_that_is_none_has_one_clear_line),
        cmocka_unit_test(a_missing_constant_is_named),
        cmocka_unit_test(an_unknown_name_lists_those_there_are),
    };
    /* The test's machine may have a local profile, which does not count as shipped. */
    setenv("XDG_DATA_HOME", "/nowhere", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
