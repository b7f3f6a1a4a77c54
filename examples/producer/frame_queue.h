/* The producer's end of an asyncnn.memory.FrameQueue, in C11 on Linux.
 *
 *     struct frame_queue queue;
 *     if (frame_queue_open(&queue, name) < 0) ...
 *     while ((place = frame_queue_place(&queue)) != NULL) {
 *         ... write queue.frame_bytes bytes there ...
 *         frame_queue_push(&queue);
 *     }
 *     frame_queue_close(&queue);
 *
 * Who owns the queue may end it at any time: then there are no places any more. A process
 * that dies in between leaves nothing locked, and the frame that it was writing is not
 * seen by anybody.
 */
#ifndef FRAME_QUEUE_H
#define FRAME_QUEUE_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE first: the locks are those of open file descriptions"
#endif

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct frame_queue {
    uint64_t places, frame_bytes;
    int fd;
    char *memory;
    size_t size;
    uint64_t number; /* of the frame that is written next; the first one is 1 */
    sem_t *filled, *free;
};

/* Where things lie, as asyncnn/memory/frame_layout.py says. */
enum {
    FQ_PLACES = 8, FQ_FRAME_BYTES = 16, FQ_BEGIN = 24, FQ_STRIDE = 32,
    FQ_CLOSED = 128, FQ_TAKEN = 136, FQ_PID = 192, FQ_PRODUCERS = 200,
    FQ_TABLE = 256,
    FQ_OWNER_LOCK = 0, FQ_PRODUCER_LOCK = 1
};

static inline uint64_t *fq_word(const struct frame_queue *queue, uint64_t offset)
{
    return (uint64_t *)(void *)(queue->memory + offset);
}

static inline uint64_t fq_load(const struct frame_queue *queue, uint64_t offset)
{
    return __atomic_load_n(fq_word(queue, offset), __ATOMIC_ACQUIRE);
}

static inline void fq_store(const struct frame_queue *queue, uint64_t offset,
                            uint64_t value)
{
    __atomic_store_n(fq_word(queue, offset), value, __ATOMIC_RELEASE);
}

static inline uint64_t fq_free_at(const struct frame_queue *queue, uint64_t number)
{
    return FQ_TABLE + 16 * ((number - 1) % queue->places);
}

static inline int fq_lock(int fd, int command, short *type, int byte)
{
    struct flock lock = {.l_type = *type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result = fcntl(fd, command, &lock);
    *type = lock.l_type;
    return result;
}

static inline int fq_has_owner(const struct frame_queue *queue)
{
    short type = F_WRLCK;
    return fq_lock(queue->fd, F_OFD_GETLK, &type, FQ_OWNER_LOCK) == 0 && type != F_UNLCK;
}

static inline sem_t *fq_semaphore(const char *name, const char *suffix)
{
    char full[256];
    int length = snprintf(full, sizeof full, "%s%s", name, suffix);
    if (length < 0 || length >= (int)sizeof full) {
        errno = ENAMETOOLONG;
        return SEM_FAILED;
    }
    return sem_open(full, 0);
}

/* Leave the queue to the next producer; its owner takes what was pushed, and then knows
 * that no more frames come. */
static inline void frame_queue_close(struct frame_queue *queue)
{
    int error = errno;
    if (queue->filled != SEM_FAILED && queue->free != SEM_FAILED) {
        fq_store(queue, FQ_PID, 0);
        sem_post(queue->filled);
    }
    if (queue->filled != SEM_FAILED)
        sem_close(queue->filled);
    if (queue->free != SEM_FAILED)
        sem_close(queue->free);
    if (queue->memory != MAP_FAILED)
        munmap(queue->memory, queue->size);
    if (queue->fd >= 0)
        close(queue->fd);
    errno = error;
}

/* Become the producer of a queue: 0, or -1 and errno (EBUSY: it has one). The name is
 * FrameQueue.name, such as "/asyncnn-1000-pictures". */
static inline int frame_queue_open(struct frame_queue *queue, const char *name)
{
    *queue = (struct frame_queue){.fd = -1, .memory = MAP_FAILED,
                                  .filled = SEM_FAILED, .free = SEM_FAILED};
    struct stat status;
    short type = F_WRLCK;
    queue->fd = shm_open(name, O_RDWR, 0);
    if (queue->fd < 0 || fstat(queue->fd, &status) < 0)
        goto failed;
    if (status.st_uid != geteuid() || status.st_size < 4096) {
        errno = EPERM;
        goto failed;
    }
    if (fq_lock(queue->fd, F_OFD_SETLK, &type, FQ_PRODUCER_LOCK) < 0) {
        errno = EBUSY;
        goto failed;
    }
    queue->size = (size_t)status.st_size;
    queue->memory = mmap(NULL, queue->size, PROT_READ | PROT_WRITE, MAP_SHARED, queue->fd, 0);
    if (queue->memory == MAP_FAILED)
        goto failed;
    queue->places = fq_load(queue, FQ_PLACES);
    queue->frame_bytes = fq_load(queue, FQ_FRAME_BYTES);
    if (memcmp(queue->memory, "asyncnn1", 8) != 0 || !queue->places || !fq_has_owner(queue)) {
        errno = ENOENT;
        goto failed;
    }
    queue->filled = fq_semaphore(name, ".filled");
    queue->free = fq_semaphore(name, ".free");
    if (queue->filled == SEM_FAILED || queue->free == SEM_FAILED)
        goto failed;
    /* After the last complete frame; one that was begun is written again. */
    queue->number = fq_load(queue, FQ_TAKEN) + 1;
    while (fq_load(queue, fq_free_at(queue, queue->number) + 8) == queue->number)
        queue->number++;
    /* In this order: an ID of 0 is that of a producer that has ended. */
    fq_store(queue, FQ_PID, (uint64_t)getpid());
    fq_store(queue, FQ_PRODUCERS, fq_load(queue, FQ_PRODUCERS) + 1);
    sem_post(queue->filled);
    return 0;
failed:
    frame_queue_close(queue);
    return -1;
}

/* Wait for a place for the next frame: where it lies, or NULL if nobody takes it. */
static inline void *frame_queue_place(struct frame_queue *queue)
{
    uint64_t free_at = fq_free_at(queue, queue->number);
    int is_free = 0;
    while (!fq_load(queue, FQ_CLOSED) && fq_has_owner(queue)) {
        if (is_free) {
            uint64_t place = (queue->number - 1) % queue->places;
            return queue->memory + *fq_word(queue, FQ_BEGIN) + place * *fq_word(queue, FQ_STRIDE);
        }
        is_free = fq_load(queue, free_at) == queue->number;
        if (is_free) {
            sem_trywait(queue->free); /* or its count would ever rise */
        } else {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += 1; /* then see whether the owner is there */
            sem_timedwait(queue->free, &until);
        }
    }
    return NULL;
}

/* Hand the frame at the latest place over. */
static inline void frame_queue_push(struct frame_queue *queue)
{
    fq_store(queue, fq_free_at(queue, queue->number) + 8, queue->number);
    queue->number++;
    sem_post(queue->filled);
}

#endif
