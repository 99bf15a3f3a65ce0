/* Writes the end of a page: how its results were obtained, and how to obtain them again. */
#include "harness/report/figures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void append_entry(const char *term, const char *text, text_buffer *out)
{
    if (!text[0]) return;
    text_append(out, "<dt>%s</dt>", term);
    svg_element(out, "<dd><bdi>", text, "</bdi></dd>");
}

static void append_command(const json_t *command, text_buffer *out)
{
    size_t i;
    json_t *word;
    text_append(out, "<pre class=\"command\" dir=\"ltr\"><span>harness</span>");
    json_array_foreach(command, i, word)
    {
        text_buffer text = {0};
        if (!json_is_string(word)) continue;
        text_append_shell_word(&text, json_string_value(word));
        svg_element(out, " <span>", text.data, "</span>");
        text_free(&text);
    }
    text_append(out, "</pre>\n");
}

static void append_configuration(const json_t *result, text_buffer *out)
{
    const char *name, *title = report_is_sweep(result) ? "Configuration of all points" : "Configuration";
    json_t *value;
    page_details("", title, title, out);
    text_append(out, "<table><thead><tr><th scope=\"col\">option</th><th scope=\"col\">value</th></tr>"
                     "</thead><tbody>\n");
    json_object_foreach(json_object_get(result, "configuration"), name, value)
    {
        svg_element(out, "<tr><th scope=\"row\">", name, "</th>");
        svg_element(out, "<td class=\"text\">", json_string_value(value), "</td></tr>\n");
    }
    text_append(out, "</tbody></table></div></details>\n");
}

/* Writes the configuration file in TOML that repeats the run. Texts and lists are written alike in JSON
 * and TOML. */
static void append_config_file(const json_t *result, text_buffer *out)
{
    const char *name;
    json_t *value;
    if (!json_is_object(json_object_get(result, "options"))) return;
    page_details("",
                 report_is_sweep(result) ? "Configuration file: harness sweep --config FILE.toml -o DIR"
                                         : "Configuration file: harness run --config FILE.toml",
                 "Configuration file", out);
    text_append(out, "<pre class=\"config\" dir=\"ltr\">");
    json_object_foreach(json_object_get(result, "options"), name, value)
    {
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        if (text && (json_is_string(value) || json_is_array(value))) {
            svg_element(out, "", name, " = ");
            svg_element(out, "", text, "\n");
        }
        free(text);
    }
    text_append(out, "</pre></div></details>\n");
}

static void append_text_report(const json_t *result, text_buffer *out)
{
    text_buffer text = {0};
    report_run(result, true, &text);
    page_details(" class=\"text\"", "All figures as text", "All figures as text", out);
    text_append(out, "<pre>");
    for (char *line = text.data ? strtok(text.data, "\n") : NULL; line; line = strtok(NULL, "\n"))
        svg_element(out, "", line, "\n");
    text_append(out, "</pre></div></details>\n");
    text_free(&text);
}

void page_provenance(const json_t *result, text_buffer *out)
{
    char processors[128] = "", runs[64] = "";
    size_t i;
    json_t *joined;
    if (!isnan(report_number_at(result, "host.processors")))
        snprintf(processors, sizeof processors, "%.0f", report_number_at(result, "host.processors"));
    text_append(out, "<h2>How this was obtained</h2>\n");
    append_command(json_object_get(result, "command"), out);
    json_array_foreach(json_object_get(result, "joined"), i, joined)
        append_command(json_object_get(joined, "command"), out);
    text_append(out, "<dl>");
    if (report_is_sweep(result))
        snprintf(runs, sizeof runs, "%zu points, %.0f of each",
                 json_array_size(json_object_get(result, "points")), report_number_at(result, "rounds"));
    append_entry("Runs", runs, out);
    append_entry("Started", report_text_at(result, "started_at"), out);
    append_entry("Host", report_text_at(result, "host.name"), out);
    append_entry("System", report_text_at(result, "host.system"), out);
    append_entry("Processor", report_text_at(result, "host.processor"), out);
    append_entry("Usable processors", processors, out);
    append_entry("Hardware of the ranks", report_text_at(result, "hardware_note"), out);
    append_entry("Program", report_text_at(result, "program.version"), out);
    append_entry("Commit", report_text_at(result, "program.commit"), out);
    if (json_is_false(json_object_get(result, "one_origin")))
        append_entry("Other runs", "from another program or another host", out);
    const char *name;
    json_t *version;
    json_object_foreach(json_object_get(result, "libraries"), name, version)
    {
        char term[64] = "";
        snprintf(term, sizeof term, "%.48s", name);
        if (strspn(term, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_ .") ==
            strlen(term))
            append_entry(term, json_is_string(version) ? json_string_value(version) : "", out);
    }
    text_append(out, "</dl>\n");
    append_configuration(result, out);
    append_config_file(result, out);
    json_array_foreach(json_object_get(result, "joined"), i, joined) append_config_file(joined, out);
    if (!report_is_sweep(result)) append_text_report(result, out);
}
