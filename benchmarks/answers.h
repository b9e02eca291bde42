/* The answers of upstream.c, written once at start: streams and documents, as OpenAI and as Anthropic send them. */
#pragma once
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"

struct text {
    char *bytes;
    size_t length, mark; /* mark: where a stamp or a call's number goes */
};

/* One way of answering: a stream's parts and the whole document. */
struct voice {
    struct text opening, chunk, ending, document;
};

static struct voice openai, anthropic;
static struct text tool_step, tool_document; /* OpenAI only */

#define ID "\"id\":\"chatcmpl-bench\",\"created\":1700000000,\"model\":\"bench\""
#define CHUNK ID ",\"object\":\"chat.completion.chunk\""
#define DELTA "{" CHUNK ",\"choices\":[{\"index\":0,\"delta\":{%s},\"finish_reason\":%s}]}"
#define COUNTS "\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":10,\"total_tokens\":30}"
#define WORDS "The answer is short, whole and always the same, as a model server's answer to a small question is. t@"
#define MESSAGE "\"id\":\"msg_bench\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"bench\""

/* One server-sent event, in an HTTP chunk of its own, as model servers send it. */
static void put_event(FILE *to, const char *data) {
    fprintf(to, "%zx\r\ndata: %s\n\n\r\n", strlen(data) + 8, data);
}

/* The same with its name, which is the type that the data begins with. */
static void put_named(FILE *to, const char *data) {
    const char *name = data + sizeof "{\"type\":\"" - 1;
    int length = (int)strcspn(name, "\"");
    fprintf(to, "%zx\r\nevent: %.*s\ndata: %s\n\n\r\n", strlen(data) + 16 + (size_t)length, length, name, data);
}

static void put_delta(FILE *to, const char *delta, const char *finish_reason) {
    char *data;
    if (asprintf(&data, DELTA, delta, finish_reason) < 0)
        abort();
    put_event(to, data);
    free(data);
}

static void put_head(FILE *to) {
    fputs("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
          "Transfer-Encoding: chunked\r\n\r\n", to);
}

static void put_document(FILE *to, const char *body) {
    fprintf(to, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
}

static void put_tail(FILE *to, const char *finish_reason) {
    put_delta(to, "", finish_reason);
    put_event(to, "{" CHUNK ",\"choices\":[]," COUNTS "}");
    put_event(to, "[DONE]");
    fputs("0\r\n\r\n", to);
}

/* The text as it stands inside a JSON string. */
static char *escape(const char *plain) {
    char *escaped = malloc(2 * strlen(plain) + 1), *to = escaped;
    for (const char *from = plain; *from; from++) {
        if (*from == '"' || *from == '\\')
            *to++ = '\\';
        *to++ = *from;
    }
    *to = 0;
    return escaped;
}

static void put_tool_step(FILE *to, const char *tool, const char *arguments) {
    char *delta, *first = strndup(arguments, strlen(arguments) / 2);
    const char *halves[] = {first, arguments + strlen(first)};
    put_head(to);
    if (asprintf(&delta, "\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"index\":0,\"id\":\"call_%0*d\","
                 "\"type\":\"function\",\"function\":{\"name\":\"%s\",\"arguments\":\"\"}}]", STAMP_DIGITS, 0, tool) < 0)
        abort();
    put_delta(to, delta, "null");
    free(delta);
    for (int half = 0; half < 2; half++) {
        char *part = escape(halves[half]);
        if (asprintf(&delta, "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"%s\"}}]", part) < 0)
            abort();
        put_delta(to, delta, "null");
        free(delta);
        free(part);
    }
    put_tail(to, "\"tool_calls\"");
    free(first);
}

static void put_tool_document(FILE *to, const char *tool, const char *arguments) {
    char *body, *whole = escape(arguments);
    if (asprintf(&body, "{" ID ",\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
                 "\"content\":null,\"tool_calls\":[{\"id\":\"call_%0*d\",\"type\":\"function\",\"function\":{\"name\":\"%s\","
                 "\"arguments\":\"%s\"}}]},\"finish_reason\":\"tool_calls\"}]," COUNTS "}", STAMP_DIGITS, 0, tool, whole) < 0)
        abort();
    put_document(to, body);
    free(body);
    free(whole);
}

static FILE *begin(struct text *text) { return open_memstream(&text->bytes, &text->length); }

static void finish(struct text *text, FILE *stream) {
    fclose(stream);
    char *zeros = strstr(text->bytes, "0000000000000000");
    text->mark = zeros ? (size_t)(zeros - text->bytes) : 0;
}

static void write_openai(void) {
    char content[64];
    FILE *to = begin(&openai.opening);
    put_head(to);
    put_delta(to, "\"role\":\"assistant\",\"content\":\"\"", "null");
    finish(&openai.opening, to);
    snprintf(content, sizeof content, "\"content\":\" t@%0*d\"", STAMP_DIGITS, 0);
    put_delta(to = begin(&openai.chunk), content, "null");
    finish(&openai.chunk, to);
    put_tail(to = begin(&openai.ending), "\"stop\"");
    finish(&openai.ending, to);
    put_document(to = begin(&openai.document), "{" ID ",\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":"
                 "{\"role\":\"assistant\",\"content\":\"" WORDS "0000000000000000\"},\"finish_reason\":\"stop\"}]," COUNTS "}");
    finish(&openai.document, to);
}

static void write_anthropic(void) {
    FILE *to = begin(&anthropic.opening);
    put_head(to);
    put_named(to, "{\"type\":\"message_start\",\"message\":{" MESSAGE ",\"content\":[],\"stop_reason\":null,"
              "\"stop_sequence\":null,\"usage\":{\"input_tokens\":20,\"output_tokens\":1}}}");
    put_named(to, "{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}");
    put_named(to, "{\"type\":\"ping\"}");
    finish(&anthropic.opening, to);
    put_named(to = begin(&anthropic.chunk), "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":"
              "{\"type\":\"text_delta\",\"text\":\" t@0000000000000000\"}}");
    finish(&anthropic.chunk, to);
    put_named(to = begin(&anthropic.ending), "{\"type\":\"content_block_stop\",\"index\":0}");
    put_named(to, "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},"
              "\"usage\":{\"output_tokens\":10}}");
    put_named(to, "{\"type\":\"message_stop\"}");
    fputs("0\r\n\r\n", to);
    finish(&anthropic.ending, to);
    put_document(to = begin(&anthropic.document), "{" MESSAGE ",\"content\":[{\"type\":\"text\",\"text\":\"" WORDS
                 "0000000000000000\"}],\"stop_reason\":\"end_turn\",\"stop_sequence\":null,"
                 "\"usage\":{\"input_tokens\":20,\"output_tokens\":10}}");
    finish(&anthropic.document, to);
}

static void write_answers(const char *tool, const char *arguments) {
    write_openai();
    write_anthropic();
    FILE *to = begin(&tool_step);
    put_tool_step(to, tool, arguments);
    finish(&tool_step, to);
    put_tool_document(to = begin(&tool_document), tool, arguments);
    finish(&tool_document, to);
}
