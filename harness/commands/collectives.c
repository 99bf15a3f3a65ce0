/* harness collectives: starts ranks, which are processes, and shows what each collective operation does. */
#include "harness/commands/commands.h"

#include "harness/commands/demonstrations.h"
#include "harness/launch/environment.h"
#include "harness/launch/launch.h"
#include "harness/result/output.h"

#include <stddef.h>
#include <string.h>

static const char *const libraries[] = {"shm", "mpi", NULL};
typedef struct collectives_options {
    int64_t gpus, timeout_ns;
    int library, mistake;
    bool list;
} collectives_options;

#define FIELD(name) offsetof(collectives_options, name)
static const option option_list[] = {
    {"gpus", OPTION_INT, FIELD(gpus), .letter = 'g', .alias = "nproc-per-node", .argument = "N",
     .initial = "4", .low = 2, .high = COLLECTIVE_MOST_SHARED_RANKS, .help = "ranks, each a CPU process"},
    {"collective", OPTION_CHOICE, FIELD(library), .initial = "shm", .choices = libraries,
     .help = "library: shm, or mpi for ranks that mpirun has started, also on several hosts"},
    {"mistake", OPTION_CHOICE, FIELD(mistake), .initial = "none", .choices = group_mistakes,
     .help = "make a mistake with groups and show its message; outside: a rank opens a group of which it is "
             "not a member; order: a rank opens two groups in another order; missing: a rank does not open a "
             "group"},
    {"timeout", OPTION_DURATION, FIELD(timeout_ns), .argument = "TIME", .initial = "5s", .low = 1e6,
     .help = "how long ranks wait for each other"},
    {"list", OPTION_FLAG, FIELD(list), .help = "list the demonstrations"},
};

/* Finds the demonstrations that the words name, or all. */
static status choose(const collectives_options *o, const command_line *line, int chosen[DEMONSTRATIONS],
                     int *count)
{
    *count = line->word_count > 0 ? line->word_count : DEMONSTRATIONS;
    if (o->mistake != NO_MISTAKE && line->word_count > 0)
        return fail(STATUS_USAGE, "collectives: unexpected argument '%s' with --mistake", line->words[0]);
    for (int i = 0; i < *count; i++) {
        chosen[i] = i;
        if (line->word_count > 0)
            TRY(text_parse_choice("collectives", line->words[i], &demonstrations[0].name,
                                  sizeof demonstrations[0], DEMONSTRATIONS, &chosen[i]));
    }
    return STATUS_OK;
}

static status run_all(const demonstrator *d, const collectives_options *o, const command_line *line)
{
    int chosen[DEMONSTRATIONS], count;
    if (o->mistake != NO_MISTAKE) return demonstrate_mistake(d, (group_mistake)o->mistake);
    TRY(choose(o, line, chosen, &count));
    for (int i = 0; i < count; i++) TRY(demonstrate(d, &demonstrations[chosen[i]]));
    return STATUS_OK;
}

static status run_rank(const collectives_options *o, const launch_environment *e, const command_line *line)
{
    collective_config config = {.rank = e->rank,
                                .world = e->world,
                                .job_token = e->token,
                                .name = "collectives",
                                .pairs = true,
                                .stall_timeout_ns = 2 * o->timeout_ns,
                                .connect_timeout_ns = o->timeout_ns};
    demonstrator d = {.rank = e->rank, .size = e->world};
    status rc = collective_open(libraries[o->library], &config, &d.world);
    if (rc == STATUS_OK) rc = collective_group_open(d.world, "all", NULL, d.size, &d.all);
    if (rc == STATUS_OK) rc = run_all(&d, o, line);
    /* No rank may end while others wait for it. */
    if (rc == STATUS_OK)
        rc = collective_run(d.all, &(collective_call){.kind = COLLECTIVE_BARRIER, .type = DTYPE_F64});
    launch_environment_end_rank(e, rc);
    if (d.all) collective_group_close(&d.all);
    if (d.world) collective_close(&d.world);
    return rc;
}

static status run_launcher(const collectives_options *o, command_line *line)
{
    int chosen[DEMONSTRATIONS], count;
    TRY(choose(o, line, chosen, &count));
    if (strcmp(libraries[o->library], "mpi") == 0)
        return fail(
            STATUS_USAGE,
            "--collective: expected mpirun to start the ranks of 'mpi': mpirun -n %d harness collectives ...",
            (int)o->gpus);
    if (o->mistake != NO_MISTAKE) {
        text_append(line->out, "%s\n", group_mistake_texts[o->mistake]);
        TRY(output_text(line->out));
    }
    launch_job job = {.name = "collectives", .world = (int)o->gpus};
    launch_options options = {.jobs = &job,
                              .job_count = 1,
                              .argv = line->argv,
                              .stall_timeout_ns = 10 * o->timeout_ns,
                              .connect_timeout_ns = o->timeout_ns};
    return launch_run_and_log(&options, &line->exit_code);
}

static status run_collectives(command_line *line)
{
    const collectives_options *o = line->options;
    launch_environment e;
    for (int i = 0; i < DEMONSTRATIONS && o->list; i++)
        text_append(line->out, "%-16s %s\n", demonstrations[i].name, demonstrations[i].title);
    if (o->list) return STATUS_OK;
    bool started = launch_environment_is_started();
    if (started && options_given(&line->bindings[0], "gpus"))
        return fail(STATUS_USAGE, "--gpus: unexpected if another program has started the ranks");
    TRY(launch_environment_open(started, &e));
    status rc =
        e.origin == LAUNCH_BY_HAND ? run_launcher(o, line)
        : e.several_hosts && o->library == 0
            ? fail(STATUS_CONFIG, "--collective: expected mpi and mpirun for ranks on several hosts, got shm")
            : run_rank(o, &e, line);
    launch_environment_close(&e);
    return rc;
}

const command command_collectives = {
    .name = "collectives",
    .usage = "[NAME...] [options]",
    .summary = "show what all_reduce, all_gather, send and others do",
    .options_size = sizeof(collectives_options),
    .table = {"Collectives", option_list, sizeof option_list / sizeof option_list[0]},
    .most_words = DEMONSTRATIONS,
    .run = run_collectives};
