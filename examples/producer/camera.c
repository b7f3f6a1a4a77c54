/* A camera that knows no Python: it plays a recording into a frame queue.
 *
 *     cc -O2 -o camera camera.c -lrt -pthread
 *     ./camera QUEUE RECORDING
 */
#define _GNU_SOURCE
#include "frame_queue.h"

#include <stdlib.h>

static int failed(const char *what)
{
    fprintf(stderr, "camera: %s: %s\n", what, strerror(errno));
    return EXIT_FAILURE;
}

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "usage: camera QUEUE RECORDING\n");
        return 2;
    }
    FILE *recording = fopen(arguments[2], "rb");
    if (recording == NULL)
        return failed(arguments[2]);
    struct frame_queue queue;
    if (frame_queue_open(&queue, arguments[1]) < 0)
        return failed(arguments[1]);
    void *place;
    while ((place = frame_queue_place(&queue)) != NULL
           && fread(place, queue.frame_bytes, 1, recording) == 1)
        frame_queue_push(&queue);
    frame_queue_close(&queue);
    fclose(recording);
    return EXIT_SUCCESS;
}
