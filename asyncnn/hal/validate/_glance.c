/* A glance at all operands and operations of a subgraph; model.py has its twin.
 *
 * It has no rule of its own, and words no error. It asks Python for a verdict on the
 * first of a kind, and takes for valid what is like it in all that a verdict depends on:
 *
 *   operands    all but the offset, up to the greatest one, which is the verdict, and
 *               but the consumers; see OperandRules.check in operand.py.
 *   operations  their type, and the kinds of their operands; see _Signatures.check in
 *               model.py, which says whether one stands for all others like it.
 *
 * Python is asked for each that is not of the very types that types.py declares, or has
 * extra parameters. Too many questions are a doubt, as is whatever may be wrong; then
 * Python looks at all of the subgraph.
 *
 * Fields are read where they lie in the structs: asking for attributes would take as
 * long as all the rest. Where they lie is learned from samples. While Python is asked
 * anything may happen, so that nothing is kept of an object but what self holds.
 *
 * No Py_RETURN_NONE and the like; see asyncnn/fmq/_ring.c.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { OPERAND, OPERATION, LOCATION, STRUCTS, ENUMS = 3 };
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
    PyTypeObject *glance;
    PyTypeObject *types[STRUCTS];
    Py_ssize_t places[STRUCTS][FIELDS]; /* bytes from where an object begins */
    PyObject *enums[ENUMS];             /* what types and lifetimes may be of */
    PyObject *zero;                     /* what most numbers are */
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
    Py_ssize_t looked, connected, checked; /* how many of them, so far */
    Py_ssize_t pending;                    /* operands that nothing has written yet */
    char are_structs, is_ordered, is_counted;
    Known *known;  /* of each operand */
    int *kinds_of; /* number of each operation's kind, -1 where it has none */
    int asked, kind_count, operation_kind_count;
    unsigned char kinds_at[TABLE], operation_kinds_at[TABLE]; /* numbers from 1 on */
    Kind kinds[MOST];
    int64_t greatest_offsets[MOST];
    Py_ssize_t firsts[MOST]; /* the first operation of each kind */
    bool is_settled[MOST];   /* whether it stands for the others */
} Glance;

/* ---- reading -------------------------------------------------------------------- */

/* Return a field of a struct, NULL if it was never set. Borrowed. */
static inline PyObject *
field(const State *state, int kind, PyObject *object, int number)
{
    return *(PyObject **)((char *)object + state->places[kind][number]);
}

/* Read an integer that is nothing else, or one that may be an enumerator. */
static inline bool
read_number(const State *state, PyObject *object, int64_t *number, bool may_be_enum)
{
    *number = 0;
    if (!object || object == state->zero)
        return object;
    PyObject *type = (PyObject *)Py_TYPE(object), *const *enums = state->enums;
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
        || Py_TYPE(location) != state->types[LOCATION])
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

static inline uint64_t
mixed(uint64_t hash, uint64_t word)
{
    return (hash + word) * UINT64_C(0x9E3779B97F4A7C15);
}

/* ---- operands ------------------------------------------------------------------- */

/* Return the place for the number of a kind, which is 0 there if it is a new one. */
static unsigned char *
place_of_kind(Glance *self, const Kind *kind)
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

/* Return whether an operand is valid: 1 or, in doubt, 0; -1 with an error. */
static int
look_at_operand(Glance *self, const State *state, Py_ssize_t index, PyObject *judge)
{
    PyObject *operand = PyTuple_GetItem(self->operands, index);
    Known *known = &self->known[index];
    known->kind = -1;
    known->unread = INT64_MIN; /* which never comes to 0 */
    Kind kind = {0};
    int64_t offset = -1, consumers;
    bool is_plain = false;
    if (Py_TYPE(operand) != state->types[OPERAND])
        self->are_structs = false;
    else {
        PyObject *declared = field(state, OPERAND, operand, CONSUMERS);
        if (read_number(state, declared, &consumers, false) && consumers >= 0)
            known->unread = consumers;
        is_plain = read_kind(state, operand, &kind, &offset);
    }
    unsigned char *place = is_plain ? place_of_kind(self, &kind) : NULL;
    if (is_plain && *place) {
        known->kind = *place - 1;
        return offset >= 0 && offset <= self->greatest_offsets[known->kind];
    }
    if (self->asked++ == MOST)
        return 0;
    PyObject *told = PyObject_CallFunction(judge, "n", index);
    int64_t greatest = told ? PyLong_AsLongLong(told) : -1;
    Py_XDECREF(told);
    if (greatest == -1 && PyErr_Occurred())
        return -1;
    if (is_plain && self->kind_count < MOST && !*place) {
        known->kind = self->kind_count++;
        self->kinds[known->kind] = kind;
        self->greatest_offsets[known->kind] = greatest;
        *place = (unsigned char)self->kind_count;
    }
    return 1;
}

/* Look at so many more operands; return how many are left, or -1 in doubt. */
static PyObject *
Glance_operands(Glance *self, PyObject *args)
{
    const State *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    Py_ssize_t most;
    PyObject *judge;
    if (!PyArg_ParseTuple(args, "nO", &most, &judge))
        return NULL;
    for (Py_ssize_t i; most-- > 0 && (i = self->looked) < self->operand_count;) {
        int outcome = look_at_operand(self, state, i, judge);
        if (outcome <= 0)
            return outcome ? NULL : PyLong_FromLong(-1);
        self->looked = i + 1;
    }
    return PyLong_FromSsize_t(self->operand_count - self->looked);
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
read_operation(const Glance *self, const State *state, Py_ssize_t index, Read *read)
{
    PyObject *operation = PyTuple_GetItem(self->operations, index);
    if (Py_TYPE(operation) != state->types[OPERATION])
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
operand_of(const Glance *self, const State *state, const Read *read, Py_ssize_t i)
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
is_like(const Glance *self, const State *state, const Read *read, Py_ssize_t other)
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

/* Return the number of an operation's kind, a new one if need be; -1 without a place. */
static int
kind_of(
    Glance *self, const State *state, Py_ssize_t index, const Read *read, uint64_t hash)
{
    if (!read->is_plain)
        return -1;
    for (hash >>= 32;; hash++) {
        unsigned char *place = &self->operation_kinds_at[hash % TABLE];
        if (*place && is_like(self, state, read, self->firsts[*place - 1]))
            return *place - 1;
        if (*place)
            continue;
        if (self->operation_kind_count == MOST)
            return -1;
        self->firsts[self->operation_kind_count] = index;
        *place = (unsigned char)++self->operation_kind_count;
        return *place - 1;
    }
}

/* Let an operation read and write; return whether it surely may. is_ordered is apart. */
static bool
connect(Glance *self, const State *state, Read *read, uint64_t *hash)
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

/* Look at so many more operations; return how many are left, or -1 in doubt.

   The bytes say of each operand whether it must be written. */
static PyObject *
Glance_operations(Glance *self, PyObject *args)
{
    const State *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    Py_ssize_t most, count;
    const char *written;
    PyObject *check;
    if (!PyArg_ParseTuple(args, "ny#O", &most, &written, &count, &check))
        return NULL;
    if (count != self->operand_count || self->looked < count) {
        PyErr_SetString(PyExc_ValueError, "not all operands were looked at");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count && !self->connected; i++) {
        self->known[i].progress = written[i] ? PENDING : GIVEN;
        self->pending += !!written[i];
    }
    for (Py_ssize_t i; most-- > 0 && (i = self->connected) < self->operation_count;) {
        uint64_t hash;
        Read read;
        if (!read_operation(self, state, i, &read)
            || !connect(self, state, &read, &hash))
            return PyLong_FromLong(-1);
        int before = self->operation_kind_count;
        int kind = self->kinds_of[i] = kind_of(self, state, i, &read, hash);
        if (kind < 0 || kind == before) {
            PyObject *told = PyObject_CallFunction(check, "n", i);
            if (!told)
                return NULL;
            Py_DECREF(told);
        }
        self->connected = i + 1;
    }
    Py_ssize_t left = self->operation_count - self->connected;
    if (!left) {
        self->is_ordered &= !self->pending;
        self->is_counted = true;
        for (Py_ssize_t i = 0; i < count && self->is_counted; i++)
            self->is_counted = !self->known[i].unread;
    }
    return PyLong_FromSsize_t(left);
}

/* Have so many more operations checked for which no other one stands.

   Python tells whether one stands for those of its kind. Return how many are left. */
static PyObject *
Glance_signatures(Glance *self, PyObject *args)
{
    Py_ssize_t most;
    PyObject *check;
    if (!PyArg_ParseTuple(args, "nO", &most, &check))
        return NULL;
    for (Py_ssize_t i; most-- > 0 && (i = self->checked) < self->connected;) {
        int kind = self->kinds_of[i];
        if (kind < 0 || !self->is_settled[kind]) {
            PyObject *told = PyObject_CallFunction(check, "n", i);
            if (!told)
                return NULL;
            if (kind >= 0)
                self->is_settled[kind] = told == Py_True;
            Py_DECREF(told);
        }
        self->checked = i + 1;
    }
    return PyLong_FromSsize_t(self->operation_count - self->checked);
}

/* ---- the module ----------------------------------------------------------------- */

static PyObject *
Glance_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    const State *state = PyType_GetModuleState(type);
    PyObject *operands, *operations;
    if (!PyArg_ParseTuple(
            args, "O!O!", &PyTuple_Type, &operands, &PyTuple_Type, &operations))
        return NULL;
    if (!state->enums[ENUMS - 1]) {
        PyErr_SetString(PyExc_RuntimeError, "learn comes first");
        return NULL;
    }
    Glance *self = (Glance *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self)
        return NULL;
    self->operands = Py_NewRef(operands);
    self->operations = Py_NewRef(operations);
    self->operand_count = PyTuple_Size(operands);
    self->operation_count = PyTuple_Size(operations);
    self->are_structs = self->is_ordered = true;
    self->known = PyMem_Calloc((size_t)self->operand_count, sizeof *self->known);
    self->kinds_of = PyMem_Calloc((size_t)self->operation_count, sizeof *self->kinds_of);
    if (self->known && self->kinds_of)
        return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return PyErr_NoMemory();
}

static void
Glance_dealloc(Glance *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Py_XDECREF(self->operands);
    Py_XDECREF(self->operations);
    PyMem_Free(self->known);
    PyMem_Free(self->kinds_of);
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

/* Learn what an operand, an operation and a location look like, and enumerators. */
static PyObject *
learn(PyObject *module, PyObject *args)
{
    State *state = PyModule_GetState(module);
    PyObject *samples[STRUCTS], *enums[ENUMS];
    if (!PyArg_ParseTuple(
            args, "OOOOOO", &samples[0], &samples[1], &samples[2], &enums[0], &enums[1],
            &enums[2]))
        return NULL;
    for (int i = 0; i < STRUCTS; i++) {
        for (int j = 0; j < FIELDS && fields[i][j]; j++)
            if (!(state->places[i][j] = place_of(samples[i], fields[i][j])))
                return NULL;
        Py_XDECREF(state->types[i]);
        state->types[i] = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(samples[i]));
    }
    for (int i = 0; i < ENUMS; i++) {
        Py_XDECREF(state->enums[i]);
        state->enums[i] = Py_NewRef(enums[i]);
    }
    return Py_NewRef(Py_None);
}

static PyMethodDef glance_methods[] = {
    {"operands", (PyCFunction)(void (*)(void))Glance_operands, METH_VARARGS, NULL},
    {"operations", (PyCFunction)(void (*)(void))Glance_operations, METH_VARARGS, NULL},
    {"signatures", (PyCFunction)(void (*)(void))Glance_signatures, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef glance_members[] = {
    {"are_structs", T_BOOL, offsetof(Glance, are_structs), READONLY, NULL},
    {"is_ordered", T_BOOL, offsetof(Glance, is_ordered), READONLY, NULL},
    {"is_counted", T_BOOL, offsetof(Glance, is_counted), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot glance_slots[] = {
    {Py_tp_doc, "A glance at a subgraph; see asyncnn.hal.validate.model."},
    {Py_tp_new, Glance_new},
    {Py_tp_dealloc, Glance_dealloc},
    {Py_tp_methods, glance_methods},
    {Py_tp_members, glance_members},
    {0, NULL},
};

static PyType_Spec glance_spec = {
    .name = "asyncnn.hal.validate._glance.Glance",
    .basicsize = sizeof(Glance),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = glance_slots,
};

static PyMethodDef functions[] = {
    {"learn", learn, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->zero = PyLong_FromLong(0);
    state->glance = (PyTypeObject *)PyType_FromModuleAndSpec(module, &glance_spec, NULL);
    return state->zero && state->glance ? PyModule_AddType(module, state->glance) : -1;
}

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->glance);
    for (int i = 0; i < STRUCTS; i++)
        Py_VISIT(state->types[i]);
    for (int i = 0; i < ENUMS; i++)
        Py_VISIT(state->enums[i]);
    return 0;
}

static int
clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->glance);
    Py_CLEAR(state->zero);
    for (int i = 0; i < STRUCTS; i++)
        Py_CLEAR(state->types[i]);
    for (int i = 0; i < ENUMS; i++)
        Py_CLEAR(state->enums[i]);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_glance",
    .m_doc = "A glance at subgraphs, compiled.",
    .m_size = sizeof(State),
    .m_methods = functions,
    .m_slots = module_slots,
    .m_traverse = traverse,
    .m_clear = clear,
};

PyMODINIT_FUNC
PyInit__glance(void)
{
    return PyModuleDef_Init(&module);
}
