/* Whether a TFLite file is surely sound: one pass in place of reading all its tables
 * (contents.py) and checking them (runnable.py).
 *
 * It has no rule of its own, words no error, and knows the usual form alone: one graph
 * of well-known operators, every tensor plain, and no bytes of a buffer within another or
 * what describes the graph. Of such a file it says where tables lie; for any other the
 * answer is None, and Python decides. So it may be stricter than
 * Python, never laxer. Of a file that it takes it reports what heads are made of
 * (region_file.py), so that nothing is read twice. Numbers of the rules, and the classes
 * of records, come from Python (scan.py).
 *
 * No byte is trusted. What is odd is noted once, by `odd`, and reads as nothing from
 * then on; nothing beyond the file is ever looked at.
 */

#include "../_native.h"

#include <stdlib.h>
#include <string.h>

enum { FIELDS = 16, MOST_TABLE = 64, RANK = 8, RANKS = 3, NUMBERS = 256, OPEN = 255 };
enum { FLOAT = 1, BYTE = 2, INTEGER = 4, SCALED = 8 };  /* what types are */
enum { KNOWN = 1, ALIKE = 2, KEPT = 4, COMPARING = 8, MEASURED = 16 }; /* what operators are */
enum { SHAPED = 1, SURPRISING };                        /* shapes of results */
enum { FILTERED = 1, DEPTHWISE, TRANSPOSED, MULTIPLYING, CHANNELS = 8 }; /* work */
enum { MOST_VECTOR = 1 << 12, MOST_TABLES = 1 << 13 }; /* more would hold the interpreter */

typedef struct {
    int64_t least, greatest; /* zero points */
    uint8_t size, flags, unused[6];
} Type;

typedef struct {
    uint8_t flags, fewest, most, made, left_out, whole, shaping, shaped_by, work;
    int8_t ranks[RANKS];
} Rule;

typedef struct {
    uint8_t is_known, width, positive, dilations, unset;
} Options;

typedef struct {
    double most_bytes, most_scale, most_ratio, most_positive;
    Type types[NUMBERS];
    Rule operators[NUMBERS];
    Options options[NUMBERS];
} Rules;

typedef struct {
    uint64_t begin, end;
} Extent;

typedef struct {
    const uint8_t *data;
    uint64_t size, left; /* bytes, and how many more of vectors may be read */
    bool is_odd, lacks_memory;
    Extent *extents; /* of all tables and vectors, but for the bytes of buffers */
    uint64_t extent_count, extent_room;
} File;

typedef struct {
    uint64_t at, used; /* a bit for each byte that a field takes */
    uint16_t offsets[FIELDS];
    int size, count;
} Table;

typedef struct {
    uint64_t at, count;
} Vector;

typedef struct {
    uint64_t table, start, size;
    uint64_t width; /* bytes of the largest elements that operators read there, if any */
} Buffer;

typedef struct {
    uint64_t table, code, kind, options;
    Vector inputs, outputs;
    double elements, macs; /* of all operands; multiply-adds */
    bool is_scaled, is_depthwise, varies;
} Operator;

typedef struct {
    uint64_t table, kind, buffer;
    const Type *type;
    Vector name, lengths, open, scales, points;
    int32_t rank, shape[RANK], axis;
    bool is_made, is_end, is_read, is_misaxed;
    bool varies; /* from run to run */
    uint64_t start, size; /* of a constant's bytes, none of others */
    double elements, scale;
} Tensor;

/* Classes of records, and names of types by their numbers. */
typedef struct {
    PyObject *tensor, *short_tensor, *short_operator, *signature, *types;
} Records;

typedef struct {
    File file;
    const Rules *rules;
    Tensor *tensors;
    Buffer *buffers;
    Operator *operators;
    const Rule **codes;
    Vector tensor_tables, buffer_tables, operator_tables, code_tables, inputs, outputs;
    Vector name, metadata, signatures;
    int is_surprising, is_hybrid;
    Records records;
} Scan;

/* ---- reading --------------------------------------------------------------------- */

static uint64_t
odd(File *file)
{
    file->is_odd = true;
    return 0;
}

static inline bool
is_within(const File *file, uint64_t at, uint64_t size)
{
    return size <= file->size && at <= file->size - size;
}

/* Read so many bytes, which lie within the file. */
static uint64_t
word(const File *file, uint64_t at, int width)
{
    uint64_t value = 0;
    memcpy(&value, file->data + at, (size_t)width);
    return value;
}

static inline int32_t
integer(const File *file, uint64_t at)
{
    return (int32_t)(uint32_t)word(file, at, 4);
}

static void
note_extent(File *file, uint64_t begin, uint64_t size)
{
    if (file->extent_count == file->extent_room) {
        uint64_t room = 2 * file->extent_room + 256;
        Extent *more = PyMem_Realloc(file->extents, (size_t)room * sizeof *more);
        if (!more) {
            file->lacks_memory = true;
            odd(file);
            return;
        }
        file->extents = more;
        file->extent_room = room;
    }
    file->extents[file->extent_count++] = (Extent){begin, begin + size};
}

/* Open the table there; one of more than `most` fields is odd. */
static Table
table_at(File *file, uint64_t at, int most)
{
    Table table = {.at = at, .used = 15};
    uint64_t vtable = is_within(file, at, 4) ? at - (uint64_t)(int64_t)integer(file, at)
                                             : file->size;
    if (file->is_odd || !is_within(file, vtable, 4))
        return odd(file), table;
    int size = (int)word(file, vtable, 2), own = (int)word(file, vtable + 2, 2);
    int count = size / 2 - 2;
    if (size % 2 || count < 0 || count > most || !is_within(file, vtable, (uint64_t)size)
        || own < 4 || own > MOST_TABLE || !is_within(file, at, (uint64_t)own))
        return odd(file), table;
    memcpy(table.offsets, file->data + vtable + 4, 2 * (size_t)count);
    for (int i = 0; i < count; i++)
        if (table.offsets[i] && (table.offsets[i] < 4 || table.offsets[i] >= own))
            return odd(file), table;
    table.size = own;
    table.count = count;
    note_extent(file, vtable, (uint64_t)size);
    note_extent(file, at, (uint64_t)own);
    return table;
}

/* Return where a field of so many bytes lies, 0 if it is left out. */
static uint64_t
field(File *file, Table *table, int slot, int width)
{
    int offset = slot < table->count ? table->offsets[slot] : 0;
    uint64_t bits = ((UINT64_C(1) << width) - 1) << offset;
    if (file->is_odd || !offset)
        return 0;
    if (offset + width > table->size || table->used & bits)
        return odd(file);
    table->used |= bits;
    return table->at + (uint64_t)offset;
}

static uint64_t
number(File *file, Table *table, int slot, int width)
{
    uint64_t at = field(file, table, slot, width);
    return at ? word(file, at, width) : 0;
}

/* Return where the table or vector of a field lies, 0 if it is left out. */
static uint64_t
target(File *file, Table *table, int slot)
{
    uint64_t at = field(file, table, slot, 4);
    return at ? at + word(file, at, 4) : 0;
}

/* Return the elements of a field's vector, none if it is left out. */
static Vector
vector(File *file, Table *table, int slot, uint64_t width)
{
    uint64_t at = target(file, table, slot);
    if (!at)
        return (Vector){0};
    uint64_t count = is_within(file, at, 4) ? word(file, at, 4) : odd(file);
    if (!is_within(file, at + 4, count * width) || count * width > file->left)
        return odd(file), (Vector){0};
    file->left -= count * width;
    note_extent(file, at, 4 + count * width);
    return (Vector){at + 4, count};
}

static Vector
tables(File *file, Table *table, int slot)
{
    Vector found = vector(file, table, slot, 4);
    return found.count > MOST_TABLES ? (odd(file), (Vector){0}) : found;
}

static inline uint64_t
element(const File *file, Vector tables, uint64_t index)
{
    uint64_t at = tables.at + 4 * index;
    return at + word(file, at, 4);
}

static Vector
text(File *file, Table *table, int slot)
{
    Vector found = vector(file, table, slot, 1);
    uint64_t end = found.at + found.count;
    if (found.at && (!is_within(file, end, 1) || file->data[end]))
        odd(file);
    return found;
}

/* ---- tensors ---------------------------------------------------------------------- */

static void
read_buffer(File *file, Buffer *own)
{
    Table table = table_at(file, own->table, 3);
    Vector bytes = vector(file, &table, 0, 1);
    file->left += bytes.count; /* nobody reads them here */
    file->extent_count -= bytes.at && !file->is_odd;
    own->start = bytes.at ? bytes.at : 4; /* as Python has it */
    own->size = bytes.count;
    if (field(file, &table, 1, 8) || field(file, &table, 2, 8))
        odd(file);
}

static void
read_scales(File *file, const Rules *rules, Tensor *tensor, uint64_t at)
{
    Table table = table_at(file, at, 7);
    vector(file, &table, 0, 4);
    vector(file, &table, 1, 4);
    Vector scales = vector(file, &table, 2, 4), points = vector(file, &table, 3, 8);
    uint64_t kind = number(file, &table, 4, 1), details = field(file, &table, 5, 4);
    uint64_t axis = number(file, &table, 6, 4), count = scales.count;
    tensor->axis = (int32_t)(uint32_t)axis;
    /* Some files have a bias whose scales are of an axis that only the filter has. */
    tensor->is_misaxed = count > 1 && tensor->rank == 1 && axis;
    axis = tensor->is_misaxed ? 0 : axis;
    if (kind || details || points.count != count || (count < 2 && axis)
        || (count > 1 && axis >= (uint64_t)tensor->rank)
        || (count > 1 && (uint64_t)tensor->shape[axis] != count))
        odd(file);
    tensor->scales = scales;
    tensor->points = points;
    for (uint64_t i = 0; i < count && !file->is_odd; i++) {
        float scale;
        int64_t point = (int64_t)word(file, points.at + 8 * i, 8);
        memcpy(&scale, file->data + scales.at + 4 * i, 4);
        if (!(scale >= 1 / rules->most_scale && scale <= rules->most_scale)
            || point != (int64_t)word(file, points.at, 8) || point < tensor->type->least
            || point > tensor->type->greatest)
            odd(file);
        tensor->scale = scale;
    }
}

static void
read_tensor(Scan *scan, Tensor *own)
{
    File *file = &scan->file;
    Table table = table_at(file, own->table, 9);
    Vector shape = vector(file, &table, 0, 4), open = vector(file, &table, 7, 4);
    own->kind = number(file, &table, 1, 1);
    own->type = &scan->rules->types[own->kind];
    own->buffer = number(file, &table, 2, 4);
    own->name = text(file, &table, 3);
    uint64_t quantised = target(file, &table, 4);
    if (number(file, &table, 5, 1) || field(file, &table, 6, 4) || !own->type->size
        || own->buffer >= scan->buffer_tables.count || shape.count > RANK
        || (open.count && open.count != shape.count))
        odd(file);
    field(file, &table, 8, 1);
    if (file->is_odd)
        return;
    own->lengths = shape;
    own->open = open;
    own->rank = (int32_t)shape.count;
    own->elements = 1;
    for (uint64_t i = 0; i < shape.count; i++) {
        int32_t length = own->shape[i] = integer(file, shape.at + 4 * i);
        int32_t given = open.count ? integer(file, open.at + 4 * i) : -1;
        own->elements *= length;
        if (length < 1 || (given != -1 && given != length)
            || own->elements * own->type->size > scan->rules->most_bytes)
            odd(file);
    }
    if (quantised)
        read_scales(file, scan->rules, own, quantised);
    own->start = scan->buffers[own->buffer].start;
    own->size = scan->buffers[own->buffer].size;
    own->is_made = own->size;
    own->varies = !own->size;
    /* Buffer 0 stands for no data to LiteRT. */
    if (own->size && (!own->buffer || (double)own->size != own->elements * own->type->size))
        odd(file);
}

/* Return an operand, NULL where it is left out. */
static Tensor *
operand(Scan *scan, Vector operands, uint64_t position)
{
    int32_t index = integer(&scan->file, operands.at + 4 * position);
    if (index >= 0 && (uint64_t)index < scan->tensor_tables.count)
        return &scan->tensors[index];
    if (index != -1)
        odd(&scan->file);
    return NULL;
}

/* ---- operators -------------------------------------------------------------------- */

static void
check_options(Scan *scan, uint64_t kind, uint64_t at)
{
    File *file = &scan->file;
    const Options *options = &scan->rules->options[kind];
    if (!kind != !at || !options->is_known)
        odd(file);
    if (!at)
        return;
    Table table = table_at(file, at, FIELDS);
    if (options->width && vector(file, &table, 0, options->width).count > MOST_VECTOR)
        odd(file);
    for (int slot = 0; options->positive >> slot; slot++) {
        uint64_t place = options->positive >> slot & 1 ? field(file, &table, slot, 4) : 0;
        int32_t value = place ? integer(file, place) : options->dilations >> slot & 1;
        if (options->positive >> slot & 1
            && (value < 1 || value > scan->rules->most_positive))
            odd(file);
    }
    for (int slot = 0; options->unset >> slot; slot++)
        if (options->unset >> slot & 1 && number(file, &table, slot, 1))
            odd(file);
}

/* Check that no element of a constant, of lengths or places, is below 0. */
static void
check_whole(File *file, const Tensor *constant)
{
    uint64_t width = constant->type->size;
    if (!(constant->type->flags & INTEGER))
        odd(file);
    for (uint64_t end = width; end <= constant->size; end += width)
        if (file->data[constant->start + end - 1] & 0x80)
            odd(file);
}

/* Check types, ranks and scales of what is read and made. */
static void
check_operands(Scan *scan, const Operator *own, const Rule *rule)
{
    File *file = &scan->file;
    const Type *first = NULL;
    uint64_t reads = own->inputs.count;
    int flags = 0, scaled = 0, known = 0;
    double least = 1, most = 1, ratio = scan->rules->most_ratio;
    for (uint64_t i = 0; i < reads + own->outputs.count; i++) {
        bool is_read = i < reads;
        const Tensor *each = is_read ? operand(scan, own->inputs, i)
                                     : operand(scan, own->outputs, i - reads);
        if (!each)
            continue;
        int rank = is_read && i < RANKS ? rule->ranks[i] : 0;
        first = i ? first : each->type;
        bool is_like = is_read ? rule->flags & ALIKE : i == reads && rule->flags & KEPT;
        if (each->rank < abs(rank) || (rank > 0 && each->rank != rank)
            || (is_like && each->type != first))
            odd(file);
        if (is_read && i < 8 && rule->whole >> i & 1 && each->size)
            check_whole(file, each);
        flags |= is_read ? each->type->flags : 0;
        if (!(each->type->flags & SCALED) || each->scales.count > 1)
            continue;
        scaled++;
        if (each->scales.count) {
            least = !known || each->scale < least ? each->scale : least;
            most = !known || each->scale > most ? each->scale : most;
            known++;
        }
    }
    if (most > ratio * least
        || (known < scaled && rule->flags & (known ? ALIKE : MEASURED))
        || (scaled && rule->flags & COMPARING
            && !(known == scaled && 1 / ratio < least && most < 1)))
        odd(file);
    scan->is_hybrid |= flags & FLOAT && flags & BYTE;
}

/* Let an operator read what was made, and make what was not. */
static void
connect(Scan *scan, Operator *own, const Rule *rule)
{
    File *file = &scan->file;
    uint64_t reads = own->inputs.count, made = own->outputs.count;
    if (reads < rule->fewest
        || (rule->most != OPEN && (reads > rule->most || made != rule->made)))
        odd(file);
    scan->is_surprising |= rule->shaping == SURPRISING;
    for (uint64_t i = 0; i < reads && !file->is_odd; i++) {
        Tensor *each = operand(scan, own->inputs, i);
        if (each ? !each->is_made : i != rule->left_out || rule->left_out == OPEN)
            odd(file);
        if (rule->shaping == SHAPED && i < 8 && rule->shaped_by >> i & 1)
            scan->is_surprising |= !each || !each->size;
        if (each) {
            each->is_read = true;
            own->varies |= each->varies;
            Buffer *buffer = &scan->buffers[each->buffer];
            if (each->size && buffer->width < each->type->size)
                buffer->width = each->type->size;
        }
    }
    for (uint64_t i = 0; i < made && !file->is_odd; i++) {
        Tensor *each = operand(scan, own->outputs, i);
        if (!each || each->is_made)
            odd(file);
        else {
            each->is_made = true;
            each->varies = own->varies;
        }
    }
    if (!file->is_odd)
        check_operands(scan, own, rule);
}

static double
product(const Tensor *tensor, int begin, int end)
{
    double found = 1;
    for (int axis = begin; axis < end; axis++)
        found *= tensor->shape[axis];
    return found;
}

/* Estimate what it takes, as `work_of` in engine/costs.py. */
static void
estimate(Scan *scan, Operator *own, int work)
{
    const Tensor *read[2] = {NULL, NULL}, *made = operand(scan, own->outputs, 0);
    uint64_t reads = own->inputs.count, found = 0;
    for (uint64_t i = 0; i < reads; i++) {
        uint64_t place = work == TRANSPOSED && i < 3 ? 2 - i : i; /* the image comes third */
        const Tensor *each = operand(scan, own->inputs, place);
        own->elements += each ? each->elements : 0;
        if (each && found < 2)
            read[found++] = each;
    }
    for (uint64_t i = 0; i < own->outputs.count; i++)
        own->elements += operand(scan, own->outputs, i)->elements;
    own->is_scaled = made->scales.count;
    own->is_depthwise = work == DEPTHWISE;
    own->macs = made->elements;
    if (work == FILTERED) {
        int64_t last = read[1]->shape[read[1]->rank - 1];
        double channels = (double)((last + CHANNELS - 1) / CHANNELS * CHANNELS);
        own->macs *= product(read[1], 1, read[1]->rank - 1) * channels;
    } else if (work == DEPTHWISE)
        own->macs *= product(read[1], 1, 3);
    else if (work == TRANSPOSED)
        own->macs = read[0]->elements * product(read[1], 0, read[1]->rank - 1);
    else if (work == MULTIPLYING) {
        const int32_t *end = read[0]->shape + read[0]->rank;
        own->macs *= end[-1] > end[-2] ? end[-1] : end[-2];
    }
}

static void
read_operator(Scan *scan, Operator *own)
{
    File *file = &scan->file;
    Table table = table_at(file, own->table, 14);
    own->code = number(file, &table, 0, 4);
    own->inputs = vector(file, &table, 1, 4);
    own->outputs = vector(file, &table, 2, 4);
    own->kind = number(file, &table, 3, 1);
    own->options = target(file, &table, 4);
    for (int slot = 5; slot < 13; slot++)
        if (slot == 8 ? vector(file, &table, slot, 4).count : field(file, &table, slot, 1))
            odd(file);
    if (file->is_odd || own->code >= scan->code_tables.count || !own->outputs.count)
        odd(file);
    else {
        check_options(scan, own->kind, own->options);
        connect(scan, own, scan->codes[own->code]);
        if (!file->is_odd)
            estimate(scan, own, scan->codes[own->code]->work);
    }
}

static const Rule *
read_code(Scan *scan, uint64_t at)
{
    File *file = &scan->file;
    Table table = table_at(file, at, 4);
    int8_t older = (int8_t)number(file, &table, 0, 1);
    field(file, &table, 2, 4);
    int32_t newer = (int32_t)(uint32_t)number(file, &table, 3, 4);
    int32_t code = newer > older ? newer : older;
    if (field(file, &table, 1, 4) || code < 0 || code >= NUMBERS
        || !(scan->rules->operators[code].flags & KNOWN))
        return odd(file), NULL;
    return &scan->rules->operators[code];
}

/* ---- the file --------------------------------------------------------------------- */

/* Check the inputs of the graph, which nothing has made, or its outputs. */
static void
check_ends(Scan *scan, Vector ends, bool are_made)
{
    for (uint64_t i = 0; i < ends.count && !scan->file.is_odd; i++) {
        Tensor *each = operand(scan, ends, i);
        if (!each || each->is_end || each->size || each->is_made != are_made)
            odd(&scan->file);
        else
            each->is_made = each->is_end = true;
    }
}

static int
by_begin(const void *one, const void *other)
{
    const Extent *a = one, *b = other;
    return a->begin != b->begin ? (a->begin > b->begin) - (a->begin < b->begin)
                                : (a->end > b->end) - (a->end < b->end);
}

/* Check that bytes of buffers belong to no other, nor to what describes the graph. */
static void
check_apart(Scan *scan, Extent *holes)
{
    File *file = &scan->file;
    uint64_t count = 0;
    for (uint64_t i = 0; i < scan->buffer_tables.count; i++) {
        const Buffer *own = &scan->buffers[i];
        if (own->size)
            holes[count++] = (Extent){own->start - 4, own->start + own->size};
    }
    qsort(holes, (size_t)count, sizeof *holes, by_begin);
    for (uint64_t i = 1; i < count; i++)
        if (holes[i].begin < holes[i - 1].end
            && (holes[i].begin != holes[i - 1].begin || holes[i].end != holes[i - 1].end))
            odd(file);
    for (uint64_t i = 0; i < file->extent_count && !file->is_odd; i++) {
        uint64_t low = 0, high = count; /* of those that begin before its end */
        while (low < high) {
            uint64_t middle = (low + high) / 2;
            if (holes[middle].begin < file->extents[i].end)
                low = middle + 1;
            else
                high = middle;
        }
        if (low && holes[low - 1].end > file->extents[i].begin)
            odd(file);
    }
}

/* Read all; false if there is no memory. */
static bool
read_file(Scan *scan)
{
    File *file = &scan->file;
    if (!is_within(file, 0, 8) || memcmp(file->data + 4, "TFL3", 4))
        return odd(file), true;
    Table root = table_at(file, word(file, 0, 4), FIELDS);
    if (number(file, &root, 0, 4) != 3)
        odd(file);
    scan->code_tables = tables(file, &root, 1);
    Vector graphs = tables(file, &root, 2);
    scan->buffer_tables = tables(file, &root, 4);
    scan->metadata = tables(file, &root, 6);
    scan->signatures = tables(file, &root, 7);
    if (file->is_odd || graphs.count != 1)
        return odd(file), true;
    Table graph = table_at(file, element(file, graphs, 0), FIELDS);
    scan->tensor_tables = tables(file, &graph, 0);
    scan->inputs = vector(file, &graph, 1, 4);
    scan->outputs = vector(file, &graph, 2, 4);
    scan->operator_tables = tables(file, &graph, 3);
    scan->name = text(file, &graph, 4);
    if (file->is_odd || !scan->outputs.count)
        return odd(file), true;
#define ROOM(name, of) \
    if (!(scan->name = PyMem_Calloc((size_t)scan->of.count + 1, sizeof *scan->name))) \
        return false
    ROOM(codes, code_tables);
    ROOM(buffers, buffer_tables);
    ROOM(tensors, tensor_tables);
    ROOM(operators, operator_tables);
#define EACH(of) for (uint64_t i = 0; i < scan->of.count && !file->is_odd; i++)
    EACH(code_tables)
        scan->codes[i] = read_code(scan, element(file, scan->code_tables, i));
    EACH(buffer_tables) {
        scan->buffers[i].table = element(file, scan->buffer_tables, i);
        read_buffer(file, &scan->buffers[i]);
    }
    EACH(tensor_tables) {
        scan->tensors[i].table = element(file, scan->tensor_tables, i);
        read_tensor(scan, &scan->tensors[i]);
    }
    check_ends(scan, scan->inputs, false);
    EACH(operator_tables) {
        scan->operators[i].table = element(file, scan->operator_tables, i);
        read_operator(scan, &scan->operators[i]);
    }
    check_ends(scan, scan->outputs, true);
    Extent *holes = PyMem_Calloc((size_t)scan->buffer_tables.count + 1, sizeof *holes);
    if (!holes || file->lacks_memory)
        return PyMem_Free(holes), false;
    check_apart(scan, holes);
    PyMem_Free(holes);
    return true;
}

/* ---- what is reported of it ------------------------------------------------------- */

static PyObject *
decoded(const File *file, Vector text)
{
    const char *bytes = (const char *)file->data + text.at;
    return PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)text.count, "replace");
}

/* Return numbers as a tuple: int32 (i), int64 (q) or float32 (f). */
static PyObject *
numbers(const File *file, Vector found, char form)
{
    PyObject *result = PyTuple_New((Py_ssize_t)found.count);
    for (uint64_t i = 0; result && i < found.count; i++) {
        uint64_t at = found.at + (form == 'q' ? 8 : 4) * i;
        float real;
        memcpy(&real, file->data + at, 4);
        PyObject *own = form == 'f' ? PyFloat_FromDouble(real)
            : form == 'q' ? PyLong_FromLongLong((int64_t)word(file, at, 8))
                          : PyLong_FromLong(integer(file, at));
        if (!own || PyTuple_SetItem(result, (Py_ssize_t)i, own))
            Py_CLEAR(result);
    }
    return result;
}

/* Return the inputs that vary from run to run. */
static PyObject *
varying(Scan *scan, Vector inputs)
{
    PyObject *result = PyList_New(0);
    for (uint64_t i = 0; result && i < inputs.count; i++) {
        const Tensor *each = operand(scan, inputs, i);
        if (!each || !each->varies)
            continue;
        PyObject *index = PyLong_FromLong((long)(each - scan->tensors));
        if (!index || PyList_Append(result, index))
            Py_CLEAR(result);
        Py_XDECREF(index);
    }
    PyObject *all = result ? PyList_AsTuple(result) : NULL;
    Py_XDECREF(result);
    return all;
}

typedef PyObject *(*Record)(Scan *, uint64_t);

static PyObject *
code_record(Scan *scan, uint64_t i)
{
    return PyLong_FromUnsignedLongLong(element(&scan->file, scan->code_tables, i));
}

static PyObject *
buffer_record(Scan *scan, uint64_t i)
{
    const Buffer *own = &scan->buffers[i];
    return Py_BuildValue("(KKKK)", own->table, own->start, own->size, own->width);
}

/* Return where a vector begins, with its count; 0 without one. */
static uint64_t
place_of(Vector found)
{
    return found.at ? found.at - 4 : 0;
}

static PyObject *
tensor_record(Scan *scan, uint64_t i)
{
    const Tensor *own = &scan->tensors[i];
    bool is_anew = (!own->is_read && own->size) || own->is_end || own->is_misaxed;
    return PyObject_CallFunction(
        scan->records.short_tensor, "KKKKKKKii", own->table, own->buffer, own->kind,
        place_of(own->lengths), own->scales.count, place_of(own->scales),
        place_of(own->points), own->is_misaxed ? 0 : own->axis, is_anew);
}

static PyObject *
operator_record(Scan *scan, uint64_t i)
{
    const Operator *own = &scan->operators[i];
    const File *file = &scan->file;
    return PyObject_CallFunction(
        scan->records.short_operator, "KKKKKNNNddii", i, own->table, own->code, own->kind,
        own->options, numbers(file, own->inputs, 'i'), varying(scan, own->inputs),
        numbers(file, own->outputs, 'i'), own->elements, own->macs, own->is_scaled,
        own->is_depthwise);
}

static PyObject *
list_of(Scan *scan, uint64_t count, Record record)
{
    PyObject *result = PyList_New((Py_ssize_t)count);
    for (uint64_t i = 0; result && i < count; i++) {
        PyObject *own = record(scan, i);
        if (!own || PyList_SetItem(result, (Py_ssize_t)i, own))
            Py_CLEAR(result);
    }
    return result;
}

/* Add inputs or outputs of the graph to a dictionary. */
static bool
add_ends(Scan *scan, PyObject *result, Vector ends)
{
    const File *file = &scan->file;
    for (uint64_t i = 0; i < ends.count; i++) {
        const Tensor *own = operand(scan, ends, i);
        PyObject *index = PyLong_FromLong((long)(own - scan->tensors));
        PyObject *kind = PyLong_FromUnsignedLongLong(own->kind);
        PyObject *name = kind ? PyObject_GetItem(scan->records.types, kind) : NULL;
        PyObject *made = index && name ? PyObject_CallFunction(
            scan->records.tensor, "ONONNNiOsONOKKO", index, decoded(file, own->name), name,
            numbers(file, own->lengths, 'i'), numbers(file, own->scales, 'f'),
            numbers(file, own->points, 'q'), own->axis, Py_None, "", Py_False,
            numbers(file, own->open, 'i'), Py_None, own->table, own->buffer,
            own->is_misaxed ? Py_False : Py_True) : NULL;
        bool is_added = made && !PyDict_SetItem(result, index, made);
        Py_XDECREF(index);
        Py_XDECREF(kind);
        Py_XDECREF(name);
        Py_XDECREF(made);
        if (!is_added)
            return false;
    }
    return true;
}

/* Return inputs and outputs of the graph by their indexes. */
static PyObject *
ends_record(Scan *scan)
{
    PyObject *result = PyDict_New();
    if (result && !add_ends(scan, result, scan->inputs))
        Py_CLEAR(result);
    if (result && !add_ends(scan, result, scan->outputs))
        Py_CLEAR(result);
    return result;
}

/* Return names of tensors with their numbers. */
static PyObject *
names_record(Scan *scan, Table *signature, int slot)
{
    File *file = &scan->file;
    Vector found = tables(file, signature, slot);
    PyObject *result = PyTuple_New((Py_ssize_t)found.count);
    for (uint64_t i = 0; result && i < found.count; i++) {
        Table entry = table_at(file, element(file, found, i), FIELDS);
        Vector name = text(file, &entry, 0);
        uint64_t index = number(file, &entry, 1, 4);
        if (index >= scan->tensor_tables.count)
            odd(file);
        PyObject *own = Py_BuildValue("(NK)", decoded(file, name), index);
        if (!own || PyTuple_SetItem(result, (Py_ssize_t)i, own))
            Py_CLEAR(result);
    }
    return result;
}

static PyObject *
signature_record(Scan *scan, uint64_t i)
{
    File *file = &scan->file;
    Table table = table_at(file, element(file, scan->signatures, i), FIELDS);
    Vector name = text(file, &table, 2);
    if (number(file, &table, 4, 4)) /* of another graph than the only one */
        odd(file);
    return PyObject_CallFunction(
        scan->records.signature, "NiNN", decoded(file, name), 0,
        names_record(scan, &table, 0), names_record(scan, &table, 1));
}

/* Return where the bytes of metadata begin, and how many there are; maybe none. */
static PyObject *
metadata_record(Scan *scan)
{
    static const char known[] = "TFLITE_METADATA";
    File *file = &scan->file;
    for (uint64_t i = 0; i < scan->metadata.count && !file->is_odd; i++) {
        Table entry = table_at(file, element(file, scan->metadata, i), FIELDS);
        Vector name = text(file, &entry, 0);
        uint64_t index = number(file, &entry, 1, 4);
        if (name.count == sizeof known - 1 && index < scan->buffer_tables.count
            && !memcmp(file->data + name.at, known, sizeof known - 1))
            return Py_BuildValue(
                "(KK)", scan->buffers[index].start, scan->buffers[index].size);
    }
    return PyTuple_New(0);
}

/* Return what is in a sound file; None if what nobody runs of it is odd. */
static PyObject *
summary(Scan *scan)
{
#define LIST(of, record) list_of(scan, scan->of.count, record)
    PyObject *found = Py_BuildValue(
        "((NNNii)NNNNNNN)", LIST(buffer_tables, buffer_record),
        LIST(tensor_tables, tensor_record), LIST(operator_tables, operator_record),
        scan->is_surprising, scan->is_hybrid, LIST(code_tables, code_record),
        decoded(&scan->file, scan->name), numbers(&scan->file, scan->inputs, 'i'),
        numbers(&scan->file, scan->outputs, 'i'), ends_record(scan),
        LIST(signatures, signature_record), metadata_record(scan));
    if (!found || !scan->file.is_odd)
        return found;
    Py_DECREF(found);
    return Py_NewRef(Py_None);
}

/* Scan a file by packed rules; None if it may not be sound. */
static PyObject *
scan(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer data, rules;
    PyObject *found = NULL;
    Records records;
    const uint16_t one = 1;
    if (!PyArg_ParseTuple(args, "y*y*OOOOO", &data, &rules, &records.tensor,
                          &records.short_tensor, &records.short_operator,
                          &records.signature, &records.types))
        return NULL;
    File file = {data.buf, (uint64_t)data.len, 8 * (uint64_t)data.len, .extents = NULL};
    Scan own = {.file = file, .rules = rules.buf, .records = records};
    if (rules.len != sizeof(Rules) || !*(const char *)&one)
        PyErr_Format(PyExc_ValueError, "rules of %zd bytes", rules.len);
    else if (!read_file(&own))
        PyErr_NoMemory();
    else
        found = own.file.is_odd ? Py_NewRef(Py_None) : summary(&own);
    PyMem_Free(own.file.extents);
    PyMem_Free(own.codes);
    PyMem_Free(own.buffers);
    PyMem_Free(own.tensors);
    PyMem_Free(own.operators);
    PyBuffer_Release(&rules);
    PyBuffer_Release(&data);
    return found;
}

static PyMethodDef functions[] = {
    {"scan", scan, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *Py_UNUSED(module))
{
    return 0;
}

NATIVE_MODULE(_scan, .m_doc = "Scans of TFLite files, compiled.", .m_methods = functions)
