#include "ring/bench/bench.h"

#include "common/base/least.h"
#include "ring/bench/bench_impl.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ---------------------------------------------------------------------------------- */

static const char *const type_choices[] = {"float32", "float64", "float16", "bfloat16",
                                           "int64",   "int32",   NULL};
static const dtype types[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16, DTYPE_I64, DTYPE_I32};
/* Names of operations in the order of REDUCE_OP_LIST. */
static const char *const op_choices[] = {"sum", "mean", "min", "max", "product", NULL};

#define AT(field) offsetof(ring_bench_options, field)

static const option options[] = {
    {"collective", OPTION_TEXT, AT(collectives), .argument = "NAME,...", .initial = "shm",
     .help = "libraries, measured in turn: shm, mpi"},
    {"algorithm", OPTION_TEXT, AT(algorithms), .argument = "NAME,...", .initial = "auto",
     .help = "algorithms, measured in turn: ring, two-shot, tuned with shm; library, ring with mpi"},
    {"collective-table", OPTION_TEXT, AT(table), .argument = "FILE",
     .help = "table for --algorithm tuned, from --tune"},
    {"operations", OPTION_TEXT, AT(operations), .argument = "NAME,...", .initial = "all_reduce",
     .help = "operations: all_reduce, reduce, broadcast, all_gather, reduce_scatter, gather, scatter, "
             "all_to_all"},
    {"begin", OPTION_BYTES, AT(begin), .letter = 'b', .alias = "minbytes", .argument = "BYTES",
     .initial = "4KiB", .help = "smallest size"},
    {"end", OPTION_BYTES, AT(end), .letter = 'e', .alias = "maxbytes", .argument = "BYTES", .initial = "100M",
     .help = "largest size"},
    {"factor", OPTION_INT, AT(factor), .letter = 'f', .alias = "stepfactor", .argument = "N", .initial = "4",
     .low = 2, .high = 1024, .help = "factor from one size to the next"},
    {"iters", OPTION_INT, AT(iterations), .letter = 'n', .argument = "N", .high = BENCH_MOST_ITERATIONS,
     .help = "measured calls per size (0 for a number that depends on the size)"},
    {"warmup-iters", OPTION_INT, AT(warmups), .letter = 'w', .argument = "N", .initial = "-1", .low = -1,
     .high = BENCH_MOST_ITERATIONS,
     .help = "calls per size before the measured ones (-1 for a fifth of their number)"},
    {"type", OPTION_CHOICE, AT(type), .initial = "float32", .choices = type_choices,
     .help = "type of the elements"},
    {"op", OPTION_CHOICE, AT(op), .initial = "sum", .choices = op_choices, .help = "operation of reductions"},
    {"root", OPTION_INT, AT(root), .argument = "RANK", .help = "root of rooted operations"},
    {"link", OPTION_TEXT, AT(link), .argument = "RATE,LATENCY",
     .help = "emulate a slower network between the ranks, as in 1Gbit/s,50us"},
    {"check", OPTION_FLAG, AT(check), .initial = "yes", .help = "compare results bit for bit"},
};

const option_table ring_bench_option_table = {"Bench", options, sizeof options / sizeof options[0]};

/* ---- lists ------------------------------------------------------------------------------------ */

/* Looks up each word of a list such as "ring,two-shot" in `words`, and returns the indices. */
static status parse_list(const char *what, const char *list, const char *const *words, size_t word_count,
                         int *out, int most, int *count)
{
    char word[32];
    for (*count = 0; *text_next_word(&list, ',', word, sizeof word); ++*count) {
        if (*count == most)
            return fail(STATUS_USAGE, "%s: expected at most %d names, got '%s' too", what, most, word);
        TRY(text_parse_choice(what, word, words, sizeof *words, word_count, &out[*count]));
    }
    return *count > 0 ? STATUS_OK : fail(STATUS_USAGE, "%s: expected a name, got none", what);
}

static status add_system(const char *library, collective_algorithm algorithm, bench_system *out, int *count)
{
    if (*count == BENCH_MOST_SYSTEMS)
        return fail(STATUS_USAGE, "--collective, --algorithm: expected at most %d pairs, got more",
                    BENCH_MOST_SYSTEMS);
    out[*count].library = library;
    return collective_choose_algorithm(library, algorithm, &out[(*count)++].algorithm);
}

/* In older versions an algorithm, for example "two-shot", was a value of --collective. Returns the
 * algorithm that `word` names in this way, or AUTO if it names none. */
static collective_algorithm renamed(const char *word)
{
    static const char *const old[] = {COLLECTIVE_RENAMED};
    for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
        const char *now = options_present_value("--collective", word, old[i]);
        for (int a = 0; now != word && a < COLLECTIVE_ALGORITHM_COUNT; a++)
            if (strcmp(strrchr(now, ' ') + 1, collective_algorithm_names[a]) == 0)
                return (collective_algorithm)a;
    }
    return COLLECTIVE_ALGORITHM_AUTO;
}

status bench_parse_systems(const ring_bench_options *o, bench_system *out, int *count)
{
    static const char *const names[] = {"shm", "mpi"};
    int wanted[COLLECTIVE_ALGORITHM_COUNT], wanted_count, library;
    bool used[COLLECTIVE_ALGORITHM_COUNT] = {false};
    const char *list = o->collectives;
    char word[32];
    TRY(parse_list("--algorithm", o->algorithms, collective_algorithm_names, COLLECTIVE_ALGORITHM_COUNT,
                   wanted, COLLECTIVE_ALGORITHM_COUNT, &wanted_count));
    for (*count = 0; *text_next_word(&list, ',', word, sizeof word);) {
        collective_algorithm old = renamed(word);
        if (old != COLLECTIVE_ALGORITHM_AUTO) {
            TRY(add_system("shm", old, out, count));
            continue;
        }
        if (strcmp(word, "auto") == 0) snprintf(word, sizeof word, "shm");
        TRY(text_parse_choice("--collective", word, names, sizeof *names, 2, &library));
        int before = *count;
        for (int i = 0; i < wanted_count; i++) {
            if (!collective_has_algorithm(names[library], (collective_algorithm)wanted[i])) continue;
            used[i] = true;
            TRY(add_system(names[library], (collective_algorithm)wanted[i], out, count));
        }
        if (*count == before) return add_system(names[library], (collective_algorithm)wanted[0], out, count);
    }
    for (int i = 0; i < *count; i++)
        if (out[i].algorithm == COLLECTIVE_ALGORITHM_TUNED && !o->table)
            return fail(STATUS_USAGE, "--algorithm: tuned needs --collective-table FILE");
    for (int i = 0; *count > 0 && i < wanted_count; i++)
        if (!used[i] && wanted[i] != COLLECTIVE_ALGORITHM_AUTO)
            return add_system(out[0].library, (collective_algorithm)wanted[i], out, count);
    return *count > 0 ? STATUS_OK : fail(STATUS_USAGE, "--collective: expected a name, got none");
}

/* Number of collectives that have a size and in which all ranks take part. They precede COLLECTIVE_SEND. */
enum { KINDS = COLLECTIVE_SEND };

static status parse_operations(const char *list, int *out, int *count)
{
#define KIND_NAME(name, text, ...) text,
    static const char *const names[] = {COLLECTIVE_KIND_LIST(KIND_NAME)};
#undef KIND_NAME
    return parse_list("bench: operation", list, names, KINDS, out, KINDS, count);
}

status ring_bench_check(const ring_bench_options *o, int world)
{
    bench_system systems[BENCH_MOST_SYSTEMS];
    int kinds[KINDS], count;
    if (o->begin < 1 || o->end < o->begin)
        return fail(STATUS_USAGE,
                    "--begin, --end: expected 1 byte or more in ascending order, got %lld and %lld",
                    (long long)o->begin, (long long)o->end);
    if (o->root >= world)
        return fail(STATUS_USAGE, "--root: expected a rank from 0 to %d, got %lld", world - 1,
                    (long long)o->root);
    net_link link;
    TRY(net_link_parse(o->link, &link));
    TRY(parse_operations(o->operations, kinds, &count));
    bool has_root = false, reduces = false;
    for (int i = 0; i < count; i++) {
        has_root = has_root || collective_has_root((collective_kind)kinds[i]);
        reduces = reduces || collective_reduces((collective_kind)kinds[i]);
    }
    if (o->root && !has_root)
        return fail(STATUS_USAGE, "--root: expected an operation with a root, got %s", o->operations);
    if (o->op && !reduces)
        return fail(STATUS_USAGE, "--op: expected an operation that reduces, got %s", o->operations);
    TRY(bench_parse_systems(o, systems, &count));
    for (int i = 0; i < count; i++)
        if (o->link && strcmp(systems[i].library, "shm") != 0)
            return fail(STATUS_USAGE, "--link: expected --collective shm");
    return STATUS_OK;
}

/* ---- one row ---------------------------------------------------------------------------------- */

static int default_iterations(int64_t bytes)
{
    return bytes <= 64 << 10 ? 200 : bytes <= 1 << 20 ? 80 : bytes <= 32 << 20 ? 20 : 8;
}

/* Returns the factor from algorithm bandwidth to bus bandwidth. */
static double bus_factor(collective_kind kind, int ranks)
{
    bool all_reduce = kind == COLLECTIVE_ALL_REDUCE;
    return all_reduce || collective_is_cut(kind) ? (all_reduce ? 2.0 : 1.0) * (ranks - 1) / ranks : 1;
}

static void summarize(const bench_case *c, int ranks, double *times, int count, ring_bench_times *out)
{
    double sum = 0, bytes = (double)(c->count * dtype_size(c->type));
    qsort(times, (size_t)count, sizeof *times, ascending_doubles);
    for (int i = 0; i < count; i++) sum += times[i];
    out->run = true;
    out->iterations = count;
    out->median_us = times[count / 2];
    out->mean_us = sum / count;
    out->best_us = times[0];
    out->p90_us = times[(count - 1) * 90 / 100];
    out->p99_us = times[(count - 1) * 99 / 100];
    out->worst_us = times[count - 1];
    out->algorithm_gbs = out->median_us > 0 ? bytes / out->median_us * 1e-3 : 0;
    out->bus_gbs = out->algorithm_gbs * bus_factor(c->kind, ranks);
}

/* Measures all systems at one size. The systems take BENCH_TURNS turns, and run a part of the iterations in
 * each turn. `times` is [count][BENCH_MOST_ITERATIONS]. */
static status measure(bench_rank *b, const bench_case *c, double *times, ring_bench_times *out)
{
    const ring_bench_options *o = b->config->options;
    int total = o->iterations > 0 ? (int)o->iterations : default_iterations(c->count * dtype_size(c->type));
    int used[BENCH_MOST_SYSTEMS] = {0};
    for (int i = 0; i < b->count; i++) {
        out[i].wrong = -1;
        if (o->check) TRY(bench_check(b, b->groups[i], c, &out[i].wrong));
    }
    for (int turn = 0; turn < BENCH_TURNS; turn++) {
        int part = (int)collective_part_count(total, BENCH_TURNS, turn);
        int warmups =
            o->warmups < 0 ? 1 + part / 5 : (int)collective_part_count(o->warmups, BENCH_TURNS, turn);
        for (int i = 0; i < b->count; i++) {
            int warm = 0;
            double *of = times + (ptrdiff_t)i * BENCH_MOST_ITERATIONS;
            bench_fill(b, c, b->config->rank, b->config->world);
            if (warmups > 0) TRY(bench_time(b, b->groups[i], c, warmups, b->times, &warm));
            TRY(bench_time(b, b->groups[i], c, part, of, &used[i]));
        }
    }
    for (int i = 0; i < b->count; i++)
        summarize(c, b->config->world, times + (ptrdiff_t)i * BENCH_MOST_ITERATIONS, used[i], &out[i]);
    return STATUS_OK;
}

static status run_size(bench_rank *b, bench_case c, double *times, ring_bench_sink sink, void *context)
{
    ring_bench_times out_of_place[BENCH_MOST_SYSTEMS] = {{0}}, in_place[BENCH_MOST_SYSTEMS] = {{0}};
    TRY(measure(b, &c, times, out_of_place));
    c.in_place = true;
    if (c.kind != COLLECTIVE_ALL_TO_ALL) TRY(measure(b, &c, times, in_place));
    for (int i = 0; i < b->count && b->config->rank == 0; i++) {
        ring_bench_row row = {
            .collective = b->systems[i].library,
            .algorithm = collective_algorithm_names[b->systems[i].algorithm],
            .kind = c.kind,
            .type = c.type,
            .op = c.op,
            .root = c.root,
            .ranks = b->config->world,
            .bytes = c.count * dtype_size(c.type),
            .count = c.count,
            .out_of_place = out_of_place[i],
            .in_place = in_place[i],
        };
        sink(context, &row);
    }
    return STATUS_OK;
}

static status run_operation(bench_rank *b, collective_kind kind, double *times, ring_bench_sink sink,
                            void *context)
{
    const ring_bench_options *o = b->config->options;
    bench_case c = {.kind = kind, .type = types[o->type], .op = (reduce_op)o->op, .root = (int)o->root};
    for (int64_t bytes = o->begin; bytes <= o->end; bytes *= o->factor) {
        c.count = bytes / dtype_size(c.type);
        TRY(run_size(b, c, times, sink, context));
    }
    return STATUS_OK;
}

status ring_bench(const ring_bench_config *config, ring_bench_sink sink, void *context)
{
    const ring_bench_options *o = config->options;
    bench_rank b = {0};
    bench_system systems[BENCH_MOST_SYSTEMS];
    int kinds[KINDS], kind_count, system_count;
    status rc;
    TRY(ring_bench_check(o, config->world));
    TRY(bench_parse_systems(o, systems, &system_count));
    double *times = calloc((size_t)BENCH_MOST_SYSTEMS * BENCH_MOST_ITERATIONS, sizeof *times);
    if (!times) return fail(STATUS_SYSTEM, "no memory for a benchmark");
    TRY_GOTO(rc, bench_rank_open(config, systems, system_count, o->end, &b), out);
    TRY_GOTO(rc, parse_operations(o->operations, kinds, &kind_count), out);
    for (int i = 0; i < kind_count; i++)
        TRY_GOTO(rc, run_operation(&b, (collective_kind)kinds[i], times, sink, context), out);
out:
    if (b.config) bench_rank_close(&b);
    free(times);
    return rc;
}
