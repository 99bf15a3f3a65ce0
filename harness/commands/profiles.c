/* harness profiles [NAME]: lists the machines that can be simulated, or one machine's constants and their
 * sources. */
#include "harness/commands/commands.h"

#include "common/base/log.h"
#include "common/sim/cluster.h"
#include "common/sim/profile.h"
#include "harness/result/output.h"

#include <limits.h>
#include <string.h>
#include <sys/stat.h>

static void append_wiring(const sim_wiring *w, text_buffer *out)
{
    text_append(out, "%d GPU%s per machine", w->gpus, w->gpus == 1 ? "" : "s");
    if (w->nics > 0)
        text_append(out, ", %d adapter%s, up to %d machine%s", w->nics, w->nics == 1 ? "" : "s", w->machines,
                    w->machines == 1 ? "" : "s");
}

/* Says so if the user has a profile with the same name, since the user's folder is searched last. */
static void append_hidden(const sim_profile *p, text_buffer *out)
{
    char folder[PATH_MAX], path[PATH_MAX + NAME_MAX];
    struct stat own, used;
    if (sim_profile_user_folder(folder, sizeof folder) != STATUS_OK) {
        error_clear();
        return;
    }
    snprintf(path, sizeof path, "%s/%s.json", folder, p->name);
    if (stat(path, &own) != 0 || stat(p->file, &used) != 0) return;
    if (own.st_ino != used.st_ino || own.st_dev != used.st_dev)
        text_append(out, "%-20s not used, since the name is taken: %s\n", "", path);
}

static status list_profiles(text_buffer *out)
{
    char **names = NULL;
    size_t count = 0;
    TRY(sim_profile_list(&names, &count));
    error_record first = {STATUS_OK, ""};
    for (size_t i = 0; i < count; i++) {
        sim_profile *p = NULL;
        if (sim_profile_load(names[i], &p) != STATUS_OK) {
            if (first.code == STATUS_OK)
                error_copy(&first);
            else
                log_error("%s", error_message());
            error_clear();
            continue;
        }
        text_append(out, "%-20s %s%s\n%-20s ", names[i], p->summary,
                    strcmp(names[i], SIM_DEFAULT_PROFILE) ? "" : " (default)", "");
        append_wiring(&p->wiring, out);
        text_append(out, "\n");
        append_hidden(p, out);
        sim_profile_free(&p);
    }
    sim_profile_free_names(names, count);
    char gpus[160];
    text_append(out,
                "\nOther machines: run and whatif take --gpu NAME, --per-host N, --nvlink,\n"
                "--adapters N, --link RATE, --nodes N and --oversubscription X, or --gpu NAME and\n"
                "--topology FILE with the output of nvidia-smi topo -m. NAME is a profile with\n"
                "the constants, or one of %s.\n",
                text_join(gpus, sizeof gpus, sim_gpu_names, SIM_GPU_NAMES));
    TRY(output_text(out));
    return first.code == STATUS_OK ? STATUS_OK : error_adopt(&first);
}

static void append_links(const sim_wiring *w, text_buffer *out)
{
    enum { A_LINE = 4 };
    text_append(out, "\ntopology: ");
    append_wiring(w, out);
    text_append(out, "; peer access %s\n  source: %s\n", w->peer_access ? "yes" : "no", w->source);
    for (int i = 0; i < w->link_count; i++) {
        const sim_link *l = &w->links[i];
        const sim_node *a = &w->nodes[l->a], *b = &w->nodes[l->b];
        text_append(out, "%s%s%d-%s%d %s", i % A_LINE ? ", " : "  ", sim_node_names[a->kind], a->index,
                    sim_node_names[b->kind], b->index, sim_link_names[l->kind]);
        if (l->count > 1) text_append(out, " x%d", l->count);
        if (i % A_LINE == A_LINE - 1 || i + 1 == w->link_count) text_append(out, "\n");
    }
}

static void append_constant(const sim_profile *p, sim_constant c, text_buffer *out)
{
    const sim_constant_info *info = &sim_constant_table[c];
    const sim_provenance *from = &p->provenance[c];
    text_append(out, "%s: ", info->name);
    for (int i = 0; i < info->count; i++) text_append(out, "%s%g", i ? ", " : "", sim_profile_at(p, c, i));
    for (int i = 0; i < info->count && sim_profile_has_range(p, c); i++)
        text_append(out, "%s%g to %g", i ? ", " : " (", p->low[c][i], p->high[c][i]);
    if (sim_profile_has_range(p, c)) text_append(out, "; range: %s)", from->guessed ? "guess" : "source");
    if (strcmp(info->unit, "1") != 0) text_append(out, " %s", info->unit);
    if (c == SIM_NIC)
        text_append(out, " = %g Gbit/s", 8 * sim_profile_at(p, c, 0)); /* data sheets use this unit */
    text_append(out, " (%s)\n  %s; in profile %s\n  %s\n", info->meaning, from->tag, from->from,
                from->source);
}

static status show_profile(const char *name, text_buffer *out)
{
    sim_profile *p = NULL;
    TRY(sim_profile_load(name, &p));
    text_append(out, "%s: %s\nfile: %s", p->name, p->summary, p->file);
    sim_cluster_describe(p, out);
    text_append(out, "\n");
    append_hidden(p, out);
    text_append(out, "\n");
    for (int c = 0; c < SIM_CONSTANT_COUNT; c++)
        if (sim_profile_has(p, (sim_constant)c)) append_constant(p, (sim_constant)c, out);
    append_links(&p->wiring, out);
    sim_profile_free(&p);
    return STATUS_OK;
}

static status run_profiles(command_line *line)
{
    return line->word_count == 1 ? show_profile(line->words[0], line->out) : list_profiles(line->out);
}

const command command_profiles = {.name = "profiles",
                                  .usage = "[NAME|FILE]",
                                  .summary = "list the machines of device sim, or the constants of one",
                                  .most_words = 1,
                                  .run = run_profiles};
