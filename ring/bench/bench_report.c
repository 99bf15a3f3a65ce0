#include "common/reduce/reduce.h"
#include "ring/bench/bench_impl.h"

#include <stdio.h>
#include <string.h>

/* Width of the columns for out-of-place times, and of the columns for in-place times. */
enum { PLACE_WIDTH = 28 };

void ring_bench_header(const ring_bench_config *config, text_buffer *out)
{
    const ring_bench_options *o = config->options;
    bench_system systems[BENCH_MOST_SYSTEMS];
    char list[160] = "";
    int count = 0, used = 0;
    bench_parse_systems(o, systems, &count); /* the options have been checked */
    for (int i = 0; i < count; i++)
        used += snprintf(list + used, sizeof list - (size_t)used, "%s%s %s", i ? ", " : "",
                         systems[i].library, collective_algorithm_names[systems[i].algorithm]);
    text_append(out, "# %s, %d rank%s on one machine, reductions with %s\n", list, config->world,
                config->world == 1 ? "" : "s", reduce_instruction_set());
    text_append(out,
                "# time: median of the slowest rank's; algbw = size / time; busbw = algbw * 2(n-1)/n for "
                "all_reduce (doc/PERFORMANCE.md of nccl-tests)\n");
    text_append(out, "# p90 and p99 are in the JSON\n");
}

/* Appends the values that are common to the following rows, and the column heads. The root is printed as -1
 * if the operation has no root. */
static void append_group(const ring_bench_row *row, text_buffer *out)
{
    text_append(out, "#\n# %s %s, %s, %s, %s, root %d\n", row->collective, row->algorithm,
                collective_kind_name(row->kind), dtype_name(row->type),
                collective_reduces(row->kind) ? reduce_op_name(row->op) : "none",
                collective_has_root(row->kind) ? row->root : -1);
    text_append(out, "#%10s %10s %*s%*s\n", "", "", PLACE_WIDTH - 1, "out-of-place", PLACE_WIDTH, "in-place");
    text_append(out, "#%10s %10s", "size", "count");
    for (int place = 0; place < 2; place++)
        text_append(out, " %8s %6s %6s %4s", "time", "algbw", "busbw", "#wr.");
    text_append(out, "\n#%10s %10s", "(B)", "(elements)");
    for (int place = 0; place < 2; place++)
        text_append(out, " %8s %6s %6s %4s", "(us)", "(GB/s)", "(GB/s)", "");
    text_append(out, "\n");
}

static void append_times(const ring_bench_times *t, text_buffer *out)
{
    char wrong[24] = "N/A";
    if (!t->run) {
        text_append(out, " %8s %6s %6s %4s", "-", "-", "-", "-");
        return;
    }
    if (t->wrong >= 0) snprintf(wrong, sizeof wrong, "%lld", (long long)t->wrong);
    text_append(out, " %8.2f %6.2f %6.2f %4s", t->median_us, t->algorithm_gbs, t->bus_gbs, wrong);
}

void ring_bench_line(const ring_bench_row *row, const ring_bench_row *before, text_buffer *out)
{
    if (!before || strcmp(row->collective, before->collective) != 0 ||
        strcmp(row->algorithm, before->algorithm) != 0 || row->kind != before->kind ||
        row->type != before->type || row->op != before->op || row->root != before->root)
        append_group(row, out);
    text_append(out, "%11lld %10lld", (long long)row->bytes, (long long)row->count);
    append_times(&row->out_of_place, out);
    append_times(&row->in_place, out);
    text_append(out, "\n");
}

void ring_bench_footer(const ring_bench_row *rows, int count, text_buffer *out)
{
    double sum = 0;
    int64_t wrong = 0;
    int measured = 0;
    for (int i = 0; i < count; i++) {
        const ring_bench_times *both[2] = {&rows[i].out_of_place, &rows[i].in_place};
        for (int k = 0; k < 2; k++) {
            if (!both[k]->run) continue;
            sum += both[k]->bus_gbs;
            measured++;
            if (both[k]->wrong > 0) wrong += both[k]->wrong;
        }
    }
    text_append(out, "# Out of bounds values : %lld %s\n", (long long)wrong, wrong ? "FAILED" : "OK");
    text_append(out, "# Avg bus bandwidth    : %g GB/s\n", measured ? sum / measured : 0.0);
}

static json_t *times_json(const ring_bench_times *t)
{
    if (!t->run) return json_null();
    return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "iterations", t->iterations,
                     "median_s", t->median_us / 1e6, "mean_s", t->mean_us / 1e6, "best_s", t->best_us / 1e6,
                     "p90_s", t->p90_us / 1e6, "p99_s", t->p99_us / 1e6, "worst_s", t->worst_us / 1e6,
                     "algorithm_bandwidth_bytes_per_s", t->algorithm_gbs * 1e9, "bus_bandwidth_bytes_per_s",
                     t->bus_gbs * 1e9, "wrong_elements", (json_int_t)t->wrong);
}

json_t *ring_bench_json(const ring_bench_row *row)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:o, s:o}", "collective", row->collective,
                     "algorithm", row->algorithm, "operation", collective_kind_name(row->kind), "type",
                     dtype_name(row->type), "reduction",
                     collective_reduces(row->kind) ? reduce_op_name(row->op) : "none", "root",
                     collective_has_root(row->kind) ? row->root : -1, "ranks", row->ranks, "size_bytes",
                     (json_int_t)row->bytes, "count", (json_int_t)row->count, "out_of_place",
                     times_json(&row->out_of_place), "in_place", times_json(&row->in_place));
}
