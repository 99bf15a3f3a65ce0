/* Growing strings: functions that append text, quote shell words, and break lines at a given width. */
#include "common/base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_append(text_buffer *buffer, const char *format, ...)
{
    while (!buffer->out_of_memory) {
        size_t room = buffer->capacity - buffer->length;
        va_list args;
        va_start(args, format);
        int more = vsnprintf(room ? buffer->data + buffer->length : NULL, room, format, args);
        va_end(args);
        if (more >= 0 && (size_t)more >= room) {
            size_t capacity = 2 * (buffer->length + (size_t)more + 1);
            char *data = realloc(buffer->data, capacity);
            if (data) {
                buffer->data = data;
                buffer->capacity = capacity;
                continue;
            }
            buffer->out_of_memory = true;
            if (room) buffer->data[buffer->length] = '\0';
        } else if (more > 0) {
            buffer->length += (size_t)more;
        }
        return;
    }
}

void text_free(text_buffer *buffer)
{
    free(buffer->data);
    *buffer = (text_buffer){0};
}

void text_append_shell_word(text_buffer *buffer, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=.,:/+@%";
    if (word[0] && !word[strspn(word, plain)]) {
        text_append(buffer, "%s", word);
        return;
    }
    text_append(buffer, "'");
    for (; *word; word++) {
        if (*word == '\'')
            text_append(buffer, "'\\''");
        else
            text_append(buffer, "%c", *word);
    }
    text_append(buffer, "'");
}

/* Returns the column at which text begins after a line break. The column is at most half of `columns`, and
 * leaves room for the longest word. */
static int hanging_indent(const char *line, int length, int columns)
{
    int leading = 0, indent = 0;
    while (leading < length && line[leading] == ' ') leading++;
    for (int i = leading; i + 2 < length && i < columns / 2 - 2; i++)
        if (line[i] == ' ' && line[i + 1] == ' ' && line[i + 2] != ' ') indent = i + 2;
    for (int i = indent, word; i < length; i += word + 1) {
        word = (int)strcspn(line + i, " \n");
        if (word > columns - indent) indent = 0;
    }
    return indent ? indent : leading + 2;
}

/* Returns how many characters of `text` go on a line with `room` columns. The line ends at the last blank
 * that fits, or after the first word if this word is longer than `room`. */
static int fitting(const char *text, int length, int room)
{
    if (length <= room) return length;
    int end = room;
    while (end > 0 && text[end] != ' ') end--;
    if (end == 0) end = (int)strcspn(text, " \n");
    return end < length ? end : length;
}

void text_append_wrapped(text_buffer *out, const char *line, int indent, int columns)
{
    int length = (int)strcspn(line, "\n"), at = 0;
    int begin = (int)strspn(line, " "), margin = 0; /* a line is not broken within the indentation */
    do {
        int shown = begin + fitting(line + at + begin, length - at - begin, columns - begin - margin);
        int visible = shown;
        while (visible > 0 && line[at + visible - 1] == ' ') visible--;
        text_append(out, "%*s%.*s\n", margin, "", visible, line + at);
        at += shown;
        while (at < length && line[at] == ' ') at++;
        begin = 0;
        margin = indent;
    } while (at < length);
}

void text_wrap(text_buffer *buffer, int columns)
{
    text_buffer out = {0};
    for (const char *line = buffer->data; line && *line;) {
        int length = (int)strcspn(line, "\n");
        text_append_wrapped(&out, line, length > columns ? hanging_indent(line, length, columns) : 0,
                            columns);
        line += length + (line[length] == '\n');
    }
    out.out_of_memory = out.out_of_memory || buffer->out_of_memory;
    text_free(buffer);
    *buffer = out;
}
