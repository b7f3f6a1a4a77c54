/* A prescan of all operands and operations of a subgraph, in place of `checking` of
 * operand.py, `checking_*` of graph.py, and `_Signatures.checking` of model.py.
 *
 * It has no rule of its own, and words no error. It finds the first of each kind, which
 * Python looks at, and for whose verdict nothing counts but what makes the kind:
 *
 *   operands    all but the consumers and the offset, of which the greatest is found;
 *               see OperandRules.check in operand.py. One that refers to a subgraph is
 *               of no kind, and one whose fields are not of the very types that types.py
 *               declares, or that has extra parameters.
 *   operations  their type, and the kinds of their operands; see asyncnn.hal.operations.
 *
 * Python also looks at each operand and operation that is of no kind, or of one too
 * many, and in doubt, as where something may be wrong or too many operands are of kinds
 * of their own (a scale and a zero point are a part of it), at all of the subgraph.
 *
 * Fields are read where they lie in the structs: asking for attributes would take as
 * long as all the rest. Where they lie is learned from samples. No code of others runs
 * within a call, and from one call to the next only numbers are kept.
 */

#include "../../_native.h"
#include <structmember.h>

#include <stddef.h>
#include <string.h>

enum { OPERAND, OPERATION, LOCATION, STRUCTS, TYPES = STRUCTS + 3 };
enum { TYPE, LIFETIME, DIMENSIONS, SCALE, ZERO_POINT, CONSUMERS, PLACE, EXTRA, FIELDS };
enum { INPUTS = 1, OUTPUTS };
enum { POOL, OFFSET, LENGTH };

static const char *const fields[STRUCTS][FIELDS] = {
    {"type", "lifetime", "dimensions", "scale", "zero_point", "number_of_consumers",
     "location", "extra_params"},
    {"type", "inputs", "outputs"},
    {"pool_index", "offset", "length"},
};

/* Kinds of operands and of operations that are remembered, places for them by hash. */
enum { MOST = 250, TABLE = 512, RANK = 6, OPERANDS = 64 };

typedef struct {
    PyObject *types[TYPES];             /* of structs, then enumerations */
    Py_ssize_t places[STRUCTS][FIELDS]; /* bytes from where an object begins */
    PyObject *zero;                     /* what most numbers are */
    long subgraph;                      /* the lifetime of operands of no kind */
} State;

/* What a verdict on operands depends on, in words without padding. */
typedef struct {
    double scale;
    int64_t type, lifetime, zero_point, pool, length, rank, dimensions[RANK];
} Kind;

typedef enum { GIVEN, PENDING, WRITTEN } Progress;

typedef struct {
    int64_t unread; /* how many times operations have still to read it */
    int kind;       /* its number, -1 where it has none */
    Progress progress;
} Known;

typedef struct {
    PyObject_HEAD
    PyObject *operands, *operations; /* tuples */
    Py_ssize_t operand_count, operation_count;
    Py_ssize_t looked, connected; /* how many of them, so far */
    Py_ssize_t pending;           /* operands that nothing has written yet */
    char are_structs, is_ordered, is_counted;
    PyObject *alone_operands, *alone_operations; /* lists of those that Python looks at */
    Known *known;                                /* of each operand */
    int alone, kind_count, operation_kind_count;
    unsigned char kinds_at[TABLE], operation_kinds_at[TABLE]; /* numbers from 1 on */
    Kind kinds[MOST];
    int64_t greatest_offsets[MOST];
    Py_ssize_t firsts[MOST]; /* the first operation of each kind */
} Prescan;

/* ---- reading -------------------------------------------------------------------- */

/* Return a field of a struct, NULL if it was never set. Borrowed. */
static inline PyObject *
field(const State *state, int kind, PyObject *object, int number)
{
    return *(PyObject **)((char *)object + state->places[kind][number]);
}

static inline bool
is_a(const State *state, int kind, PyObject *object)
{
    return (PyObject *)Py_TYPE(object) == state->types[kind];
}

/* Read an integer that is nothing else, or one that may be an enumerator. */
static inline bool
read_number(const State *state, PyObject *object, int64_t *number, bool may_be_enum)
{
    *number = 0;
    if (!object || object == state->zero)
        return object;
    PyObject *type = (PyObject *)Py_TYPE(object), *const *enums = state->types + STRUCTS;
    bool is_enum = type == enums[0] || type == enums[1] || type == enums[2];
    if (!PyLong_CheckExact(object) && !(may_be_enum && is_enum))
        return false;
    int overflow;
    *number = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow;
}

/* Read all that a verdict depends on; false if something is not what is declared. */
static bool
read_kind(const State *state, PyObject *operand, Kind *kind, int64_t *offset)
{
#define OF(number) field(state, OPERAND, operand, number)
    PyObject *scale = OF(SCALE), *dimensions = OF(DIMENSIONS), *location = OF(PLACE);
    if (!scale || !PyFloat_CheckExact(scale) || OF(EXTRA) != Py_None || !dimensions
        || !PyTuple_CheckExact(dimensions) || !location
        || !is_a(state, LOCATION, location))
        return false;
    kind->scale = PyFloat_AsDouble(scale);
    kind->rank = PyTuple_Size(dimensions);
    if (kind->rank > RANK)
        return false;
    for (Py_ssize_t i = 0; i < kind->rank; i++) {
        PyObject *length = PyTuple_GetItem(dimensions, i);
        if (!read_number(state, length, &kind->dimensions[i], false))
            return false;
    }
    return read_number(state, OF(TYPE), &kind->type, true)
           && read_number(state, OF(LIFETIME), &kind->lifetime, true)
           && read_number(state, OF(ZERO_POINT), &kind->zero_point, false)
#undef OF
#define OF(number) field(state, LOCATION, location, number)
           && read_number(state, OF(POOL), &kind->pool, false)
           && read_number(state, OF(OFFSET), offset, false)
           && read_number(state, OF(LENGTH), &kind->length, false);
#undef OF
}

/* Return where so many more than `begin` end, at `count` at the latest; -1: an error. */
static Py_ssize_t
end_of(Py_ssize_t begin, Py_ssize_t count, PyObject *most)
{
    Py_ssize_t wanted = PyLong_AsSsize_t(most);
    if (wanted < 0)
        return PyErr_Occurred() ? -1 : begin;
    return wanted < count - begin ? begin + wanted : count;
}

static inline uint64_t
mixed(uint64_t hash, uint64_t word)
{
    return (hash + word) * UINT64_C(0x9E3779B97F4A7C15);
}

/* ---- operands ------------------------------------------------------------------- */

/* Return the place for the number of a kind, which is 0 there if it is a new one. */
static unsigned char *
place_of_kind(Prescan *self, const Kind *kind)
{
    uint64_t words[sizeof *kind / sizeof(uint64_t)], hash = 0;
    memcpy(words, kind, sizeof words);
    size_t count = sizeof words / sizeof *words - RANK + (size_t)kind->rank;
    for (size_t i = 0; i < count; i++)
        hash = mixed(hash, words[i]);
    for (hash >>= 32;; hash++) {
        unsigned char *place = &self->kinds_at[hash % TABLE];
        if (!*place || !memcmp(&self->kinds[*place - 1], kind, sizeof *kind))
            return place;
    }
}

static bool
add(PyObject *list, Py_ssize_t index)
{
    PyObject *number = PyLong_FromSsize_t(index);
    bool is_added = number && !PyList_Append(list, number);
    Py_XDECREF(number);
    return is_added;
}

/* Look at so many more operands; return how many are left, or -1 in doubt. */
static PyObject *
Prescan_operands(Prescan *self, PyObject *most)
{
    const State *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    Py_ssize_t end = end_of(self->looked, self->operand_count, most);
    for (; self->looked < end; self->looked++) {
        PyObject *operand = PyTuple_GetItem(self->operands, self->looked);
        Known *known = &self->known[self->looked];
        Kind kind = {0};
        int64_t offset = 0;
        bool is_plain = false;
        *known = (Known){.kind = -1, .unread = INT64_MIN}; /* which never comes to 0 */
        if (!is_a(state, OPERAND, operand))
            self->are_structs = false;
        else {
            PyObject *declared = field(state, OPERAND, operand, CONSUMERS);
            int64_t consumers;
            if (read_number(state, declared, &consumers, false) && consumers >= 0)
                known->unread = consumers;
            is_plain = read_kind(state, operand, &kind, &offset)
                       && kind.lifetime != state->subgraph;
        }
        if (offset < 0)
            return PyLong_FromLong(-1);
        unsigned char *place = is_plain ? place_of_kind(self, &kind) : NULL;
        if (place && *place) {
            known->kind = *place - 1;
            if (self->greatest_offsets[known->kind] < offset)
                self->greatest_offsets[known->kind] = offset;
            continue;
        }
        if (self->alone == MOST)
            return PyLong_FromLong(-1);
        self->alone++;
        if (place) {
            known->kind = self->kind_count++;
            self->kinds[known->kind] = kind;
            self->greatest_offsets[known->kind] = offset;
            *place = (unsigned char)self->kind_count;
        }
        if (!add(self->alone_operands, self->looked))
            return NULL;
    }
    return end < 0 ? NULL : PyLong_FromSsize_t(self->operand_count - self->looked);
}

/* Return the greatest offset of operands of the kind of that one, -1 if it has none. */
static PyObject *
Prescan_greatest_offset(Prescan *self, PyObject *index)
{
    Py_ssize_t number = PyLong_AsSsize_t(index);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    if (number < 0 || number >= self->looked)
        return PyErr_Format(PyExc_IndexError, "no such operand was looked at");
    int kind = self->known[number].kind;
    return PyLong_FromLongLong(kind < 0 ? -1 : self->greatest_offsets[kind]);
}

/* ---- operations ----------------------------------------------------------------- */

typedef struct {
    PyObject *inputs, *outputs; /* tuples, borrowed */
    int64_t type;
    Py_ssize_t reads, count; /* inputs, and all operands */
    int kinds[OPERANDS];     /* of those, -1 where one has none */
    bool is_plain;           /* all have one */
} Read;

static bool
read_operation(const Prescan *self, const State *state, Py_ssize_t index, Read *read)
{
    PyObject *operation = PyTuple_GetItem(self->operations, index);
    if (!is_a(state, OPERATION, operation))
        return false;
    PyObject *type = field(state, OPERATION, operation, TYPE);
    read->inputs = field(state, OPERATION, operation, INPUTS);
    read->outputs = field(state, OPERATION, operation, OUTPUTS);
    if (!read_number(state, type, &read->type, true) || !read->inputs || !read->outputs
        || !PyTuple_CheckExact(read->inputs) || !PyTuple_CheckExact(read->outputs))
        return false;
    read->reads = PyTuple_Size(read->inputs);
    read->count = read->reads + PyTuple_Size(read->outputs);
    return true;
}

/* Return an operand of an operation, inputs first, NULL if there is none. */
static inline Known *
operand_of(const Prescan *self, const State *state, const Read *read, Py_ssize_t i)
{
    PyObject *number = i < read->reads ? PyTuple_GetItem(read->inputs, i)
                                       : PyTuple_GetItem(read->outputs, i - read->reads);
    int64_t index;
    if (!read_number(state, number, &index, false) || index < 0
        || index >= self->operand_count)
        return NULL;
    return &self->known[index];
}

static bool
is_like(const Prescan *self, const State *state, const Read *read, Py_ssize_t other)
{
    Read first;
    if (!read_operation(self, state, other, &first) || first.type != read->type
        || first.reads != read->reads || first.count != read->count)
        return false;
    for (Py_ssize_t i = 0; i < read->count; i++) {
        const Known *known = operand_of(self, state, &first, i);
        if (!known || known->kind != read->kinds[i])
            return false;
    }
    return true;
}

/* Return whether an operation is of a kind that was seen; else it is, from now on. */
static bool
is_like_another(
    Prescan *self, const State *state, Py_ssize_t index, const Read *read, uint64_t hash)
{
    if (!read->is_plain)
        return false;
    for (hash >>= 32;; hash++) {
        unsigned char *place = &self->operation_kinds_at[hash % TABLE];
        if (!*place) {
            if (self->operation_kind_count < MOST) {
                self->firsts[self->operation_kind_count] = index;
                *place = (unsigned char)++self->operation_kind_count;
            }
            return false;
        }
        if (is_like(self, state, read, self->firsts[*place - 1]))
            return true;
    }
}

/* Let an operation read and write; return whether it surely may. is_ordered is apart. */
static bool
connect(Prescan *self, const State *state, Read *read, uint64_t *hash)
{
    read->is_plain = read->count <= OPERANDS;
    *hash = mixed((uint64_t)read->type, (uint64_t)read->reads);
    for (Py_ssize_t i = 0; i < read->count; i++) {
        Known *known = operand_of(self, state, read, i);
        if (!known || (i >= read->reads && known->progress == GIVEN))
            return false;
        *hash = mixed(*hash, (uint64_t)known->kind);
        if (i < OPERANDS)
            read->kinds[i] = known->kind;
        read->is_plain &= known->kind >= 0;
        if (i < read->reads) {
            known->unread -= known->unread != INT64_MIN;
            self->is_ordered &= known->progress != PENDING;
        } else {
            self->is_ordered &= known->progress == PENDING;
            self->pending -= known->progress == PENDING;
            known->progress = WRITTEN;
        }
    }
    return true;
}

/* Say of each operand, by its byte, whether an operation must write it. */
static PyObject *
Prescan_connect(Prescan *self, PyObject *args)
{
    Py_ssize_t count;
    const char *written;
    if (!PyArg_ParseTuple(args, "y#", &written, &count))
        return NULL;
    if (count != self->operand_count || self->looked < count || self->connected)
        return PyErr_Format(PyExc_ValueError, "not all operands were looked at");
    self->pending = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        self->known[i].progress = written[i] ? PENDING : GIVEN;
        self->pending += !!written[i];
    }
    self->is_ordered = true;
    return Py_NewRef(Py_None);
}

/* Look at so many more operations; return how many are left, or -1 in doubt. */
static PyObject *
Prescan_operations(Prescan *self, PyObject *most)
{
    const State *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    Py_ssize_t end = end_of(self->connected, self->operation_count, most);
    for (; self->connected < end; self->connected++) {
        uint64_t hash;
        Read read;
        if (!read_operation(self, state, self->connected, &read)
            || !connect(self, state, &read, &hash))
            return PyLong_FromLong(-1);
        if (!is_like_another(self, state, self->connected, &read, hash)
            && !add(self->alone_operations, self->connected))
            return NULL;
    }
    Py_ssize_t left = self->operation_count - self->connected;
    if (!left && end >= 0) {
        self->is_ordered &= !self->pending;
        self->is_counted = true;
        for (Py_ssize_t i = 0; i < self->operand_count && self->is_counted; i++)
            self->is_counted = !self->known[i].unread;
    }
    return end < 0 ? NULL : PyLong_FromSsize_t(left);
}

/* ---- the module ----------------------------------------------------------------- */

static PyObject *
Prescan_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    const State *state = PyType_GetModuleState(type);
    PyObject *operands, *operations;
    if (!PyArg_ParseTuple(
            args, "O!O!", &PyTuple_Type, &operands, &PyTuple_Type, &operations))
        return NULL;
    if (!state->zero)
        return PyErr_Format(PyExc_RuntimeError, "learn comes first");
    Prescan *self = (Prescan *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self)
        return NULL;
    self->operands = Py_NewRef(operands);
    self->operations = Py_NewRef(operations);
    self->operand_count = PyTuple_Size(operands);
    self->operation_count = PyTuple_Size(operations);
    self->are_structs = true;
    self->alone_operands = PyList_New(0);
    self->alone_operations = PyList_New(0);
    self->known = PyMem_Calloc((size_t)self->operand_count, sizeof *self->known);
    if (self->alone_operands && self->alone_operations && self->known)
        return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return PyErr_NoMemory();
}

static void
Prescan_dealloc(Prescan *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Py_XDECREF(self->operands);
    Py_XDECREF(self->operations);
    Py_XDECREF(self->alone_operands);
    Py_XDECREF(self->alone_operations);
    PyMem_Free(self->known);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF((PyObject *)type);
}

/* Find the field of a sample in which each has an object of its own; 0 if that fails. */
static Py_ssize_t
place_of(PyObject *sample, const char *name)
{
    PyObject *value = PyObject_GetAttrString(sample, name);
    PyObject *size = PyObject_GetAttrString((PyObject *)Py_TYPE(sample), "__basicsize__");
    Py_ssize_t end = size && value ? PyLong_AsSsize_t(size) : 0;
    Py_ssize_t step = (Py_ssize_t)sizeof value, found = 0;
    for (Py_ssize_t at = (Py_ssize_t)sizeof(PyObject); at + step <= end; at += step)
        if (*(PyObject **)((char *)sample + at) == value)
            found = at;
    Py_XDECREF(value);
    Py_XDECREF(size);
    if (!found && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%s is not where it was looked for", name);
    return found;
}

/* Learn what structs look like from samples, enumerations, and the subgraph's lifetime. */
static PyObject *
learn(PyObject *module, PyObject *args)
{
    State *state = PyModule_GetState(module);
    PyObject *of[TYPES];
    if (state->zero)
        return PyErr_Format(PyExc_RuntimeError, "it has learned already");
    if (!PyArg_ParseTuple(
            args, "OOOOOOl", &of[0], &of[1], &of[2], &of[3], &of[4], &of[5],
            &state->subgraph))
        return NULL;
    for (int i = 0; i < STRUCTS; of[i] = (PyObject *)Py_TYPE(of[i]), i++)
        for (int j = 0; j < FIELDS && fields[i][j]; j++)
            if (!(state->places[i][j] = place_of(of[i], fields[i][j])))
                return NULL;
    for (int i = 0; i < TYPES; i++)
        state->types[i] = Py_NewRef(of[i]);
    state->zero = PyLong_FromLong(0);
    return state->zero ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef prescan_methods[] = {
    {"operands", (PyCFunction)(void (*)(void))Prescan_operands, METH_O, NULL},
    {"greatest_offset", (PyCFunction)(void (*)(void))Prescan_greatest_offset, METH_O, NULL},
    {"connect", (PyCFunction)(void (*)(void))Prescan_connect, METH_VARARGS, NULL},
    {"operations", (PyCFunction)(void (*)(void))Prescan_operations, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef prescan_members[] = {
    {"alone_operands", T_OBJECT_EX, offsetof(Prescan, alone_operands), READONLY, NULL},
    {"alone_operations", T_OBJECT_EX, offsetof(Prescan, alone_operations), READONLY, NULL},
    {"are_structs", T_BOOL, offsetof(Prescan, are_structs), READONLY, NULL},
    {"is_ordered", T_BOOL, offsetof(Prescan, is_ordered), READONLY, NULL},
    {"is_counted", T_BOOL, offsetof(Prescan, is_counted), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot prescan_slots[] = {
    {Py_tp_doc, "A prescan of a subgraph; see asyncnn.hal.validate.model."},
    {Py_tp_new, Prescan_new},
    {Py_tp_dealloc, Prescan_dealloc},
    {Py_tp_methods, prescan_methods},
    {Py_tp_members, prescan_members},
    {0, NULL},
};

static PyType_Spec prescan_spec = {
    .name = "asyncnn.hal.validate._prescan.Prescan",
    .basicsize = sizeof(Prescan),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = prescan_slots,
};

static PyMethodDef functions[] = {
    {"learn", learn, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module)
{
    PyTypeObject *type = add_type(module, &prescan_spec);
    Py_XDECREF((PyObject *)type);
    return type ? 0 : -1;
}

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    for (int i = 0; i < TYPES; i++)
        Py_VISIT(state->types[i]);
    return 0;
}

static int
clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    for (int i = 0; i < TYPES; i++)
        Py_CLEAR(state->types[i]);
    Py_CLEAR(state->zero);
    return 0;
}

NATIVE_MODULE(
    _prescan,
    .m_doc = "Prescans of subgraphs, compiled.",
    .m_size = sizeof(State),
    .m_methods = functions,
    .m_traverse = traverse,
    .m_clear = clear)
