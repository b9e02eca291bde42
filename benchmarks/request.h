/* The requests of load.c: bodies in turn, each with what its answer must hold, and the headers of all. */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BODIES = 8 };

struct request {
    const char *body;
    long chunks; /* that the answer must have, -1 = any number */
};

static struct request requests[MAX_BODIES];
static int request_count;
static const char *path = "/";
static char headers[4096];
static size_t longest; /* request, with room for every id */

static void add_request(const char *body) {
    if (request_count == MAX_BODIES)
        exit(2);
    requests[request_count++] = (struct request){.body = body, .chunks = -1};
    if (strlen(body) * 5 + sizeof headers + 4096 > longest)
        longest = strlen(body) * 5 + sizeof headers + 4096;
}

static void add_header(const char *line) {
    size_t length = strlen(headers);
    if (length + strlen(line) + 3 > sizeof headers)
        exit(2);
    sprintf(headers + length, "%s\r\n", line);
}

/* Copies a body with an id in every place of "%ID%"; gives the length. */
static size_t expand(char *to, const char *body, const char *id) {
    char *start = to;
    for (const char *place; (place = strstr(body, "%ID%")); body = place + 4)
        to += sprintf(to, "%.*s%s", (int)(place - body), body, id);
    return (size_t)(to + sprintf(to, "%s", body) - start);
}

static size_t write_request(char *to, const struct request *request, const char *id) {
    char *body = malloc(strlen(request->body) * 5 + 1);
    size_t length = expand(body, request->body, id);
    int head = sprintf(to, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                       "%sContent-Length: %zu\r\n\r\n", path, headers, length);
    memcpy(to + head, body, length);
    free(body);
    return (size_t)head + length;
}
