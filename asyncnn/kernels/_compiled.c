/* Kernels in C: what compiled.py makes of operations, each with its twin in NumPy.
 *
 * A kernel holds constants only, all checked as it is made, so that any number of
 * threads may compute with it. `compute` is what a job calls, without the interpreter
 * lock; see asyncnn/engine/job.py. Arrays may begin anywhere: arrays of 16 bits are
 * copied byte by byte.
 *
 * `Step` is a step of QUANTIZED_LSTM, bit for bit, in the order of quantized_lstm.py;
 * integer_steps.py says what its numbers mean. Its weights are rows of 8-bit codes.
 * `Moves` copies elements from arrays to arrays. `Logic` combines booleans one by one.
 */

#include "../_native.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { OUTPUT_GATE, INPUT_GATE }; /* the last two are forget and candidate */
enum { FOLD, FACTOR, RIGHT, LIMIT, TERMS };          /* of a rescaling */
enum { MULTIPLIER, SHIFT, LEAST_VARIANCE, OF_NORM }; /* of a gate's normalisation */
enum { AND, OR, NOT };
enum { X, STATE, MEMORY, NEW_STATE, NEW_MEMORY, NEW_OUTPUT, ARRAYS };

enum {
    AXES = 4,
    FARTHEST = 1 << 30,    /* of a move */
    MOST_CHUNKS = 1 << 10, /* NumPy copies more of them in less time */
    ONE = 32767,
    TABLE = 65536,            /* values of 16 bits */
    MOST_COLUMNS = 1 << 16,   /* so that sums of products fit in 32 bits */
    WORTH_UNLOCKING = 1 << 17 /* multiply-adds that take longer than to wake others */
};

typedef struct {
    Py_ssize_t rows;
    Py_ssize_t columns;
    const int8_t *weights;
    const int64_t *terms; /* [TERMS, rows] */
} Product;

typedef struct Kernel Kernel;

/* What all kernels begin with. Arrays are inputs, then outputs. */
struct Kernel {
    PyObject_HEAD
    int (*compute)(const Kernel *, char *const *arrays);
    Py_ssize_t inputs;
    Py_ssize_t count;
    Py_ssize_t *places; /* of arrays among the operation's inputs, or outputs */
    Py_ssize_t *sizes;  /* bytes */
    bool is_long;
    Py_buffer views[13]; /* of constants */
    int viewed;
};

typedef struct {
    Kernel kernel;
    Py_ssize_t batches;
    Py_ssize_t gates;
    Py_ssize_t units;
    Py_ssize_t outputs;
    int state_shift; /* what products of gates are divided by, as a power of two */
    int32_t state_low, state_high;
    Product data;
    Product recurrent;
    Product projection;         /* without weights if there is none */
    const int64_t *peepholes;   /* [gates - 1, units], or NULL */
    const int64_t *of_peephole; /* [TERMS, gates - 1] */
    const int64_t *norm;        /* weights, then bias [2, gates, units], or NULL */
    const int64_t *of_norm;     /* [OF_NORM, gates] */
    const int64_t *hidden; /* terms */
    int hidden_zero_point;
    int zero_point, low, high; /* of projected codes */
    const int32_t *gate_table;     /* logistic function, then tanh */
    const int32_t *tanh_table;
} Step;

/* Copies `width` bytes so many times along each axis. */
typedef struct {
    int64_t from, to; /* numbers of arrays */
    int64_t from_offset, to_offset;
    int64_t width;
    int64_t lengths[AXES], from_strides[AXES], to_strides[AXES];
} Move;

typedef struct {
    Kernel kernel;
    Py_ssize_t count;
    Move *moves;
} Moves;

typedef struct {
    Kernel kernel;
    int kind;
} Logic;

/* ---- arithmetic ----------------------------------------------------------------- */

static inline int64_t
clamped(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Divide by a power of two and round to the nearest, halves away from zero. */
static inline int64_t
rounded(int64_t value, int64_t shift)
{
    return shift ? (value + ((int64_t)1 << (shift - 1)) - (value < 0)) >> shift : value;
}

/* Rescaling: numbers beyond all reason wrap around, as NumPy's do. */
static inline int64_t
rescaled(int64_t value, const int64_t *terms, Py_ssize_t stride)
{
    int64_t limit = terms[LIMIT * stride];
    value = (int64_t)((uint64_t)value + (uint64_t)terms[FOLD * stride]);
    value = clamped(value, -limit - 1, limit);
    uint64_t product = (uint64_t)value * (uint64_t)terms[FACTOR * stride];
    return rounded((int64_t)(product + (1u << 30)) >> 31, terms[RIGHT * stride]);
}

/* multiply_by_quantized_multiplier */
static inline int64_t
multiplied(int64_t value, int64_t multiplier, int64_t shift)
{
    int64_t left = clamped(shift, 0, 30), limit = INT32_MAX >> left;
    value = clamped(value, -limit - 1, limit) * ((int64_t)1 << left);
    return rounded((value * multiplier + (1 << 30)) >> 31, shift < 0 ? -shift : 0);
}

static inline int64_t
high_product(int64_t first, int64_t second)
{
    int64_t product = (first * second + (1 << 30)) >> 31;
    return product < INT32_MAX ? product : INT32_MAX;
}

static inline int64_t
saturated(int64_t value, int shift)
{
    return clamped(value * ((int64_t)1 << shift), INT32_MIN, INT32_MAX);
}

/* _inverse_square_root */
static int64_t
inverse_root(int64_t value, int64_t *right)
{
    int bits = 0;
    if (value <= 1) {
        *right = 0;
        return INT32_MAX;
    }
    while (bits < 63 && value >> bits)
        bits++;
    int pairs = ((31 - bits) >> 1) - 1, shift = 11 - pairs;
    int64_t scaled = pairs >= 0 ? value << 2 * pairs : value >> -2 * pairs;
    int64_t half = rounded(scaled >> 1, 1), one = 1 << 28, root = one;
    for (int steps = 0; steps < 5; steps++) {
        int64_t square = high_product(root, root);
        int64_t cube = saturated(high_product(square, root), 6);
        root = saturated(
            high_product(root, one + one / 2) - high_product(half, cube), 3);
    }
    root = high_product(root, 1518500250);
    *right = shift > 0 ? shift : 0;
    return shift < 0 ? root * ((int64_t)1 << -shift) : root;
}

/* The products of all rows with as many codes as there are batches. */
static void
multiply(const Product *product, const int16_t *codes, Py_ssize_t batches,
         int32_t *sums)
{
    Py_ssize_t rows = product->rows, columns = product->columns;
    for (Py_ssize_t row = 0; row < rows; row++) {
        const int8_t *weights = product->weights + row * columns;
        for (Py_ssize_t batch = 0; batch < batches; batch++) {
            const int16_t *of = codes + batch * columns;
            int32_t sum = 0;
            for (Py_ssize_t column = 0; column < columns; column++)
                sum += weights[column] * of[column];
            sums[batch * rows + row] = sum;
        }
    }
}

static void
widen(const int8_t *codes, Py_ssize_t count, int16_t *wide)
{
    for (Py_ssize_t i = 0; i < count; i++)
        wide[i] = codes[i];
}

/* ---- the cell, one batch at a time ---------------------------------------------- */

/* IntegerLayerNorm.apply, for one gate */
static void
normalise(const Step *self, Py_ssize_t gate, int32_t *raw)
{
    Py_ssize_t units = self->units;
    const int64_t *weights = self->norm + gate * units;
    const int64_t *bias = weights + self->gates * units;
    const int64_t *of = self->of_norm + gate;
    int64_t sum = 0, squares = 0, right;
    for (Py_ssize_t unit = 0; unit < units; unit++) {
        sum += raw[unit];
        squares += (int64_t)raw[unit] * raw[unit];
    }
    int64_t mean = sum * 1024 / units;
    int64_t variance = (squares * ((1 << 20) / units) - mean * mean) >> 20;
    if (variance < 1)
        variance = of[LEAST_VARIANCE * self->gates];
    int64_t factor = inverse_root(variance, &right);
    for (Py_ssize_t unit = 0; unit < units; unit++) {
        int64_t value = multiplied(raw[unit] * (int64_t)1024 - mean, factor, -right);
        value = rounded(value * weights[unit] + bias[unit], 10);
        value = multiplied(value, of[MULTIPLIER * self->gates],
                           of[SHIFT * self->gates] + 12);
        raw[unit] = (int32_t)clamped(value, INT16_MIN, INT16_MAX);
    }
}

/* From the sums of gates to their values; peepholes see the memory as it is then. */
static void
finish(const Step *self, Py_ssize_t first, Py_ssize_t last, const int32_t *memory,
       int32_t *gates)
{
    Py_ssize_t units = self->units, logistic = self->gates - 1;
    for (Py_ssize_t gate = first; gate < last; gate++) {
        int32_t *raw = gates + gate * units;
        if (self->peepholes && gate < logistic) {
            const int64_t *weights = self->peepholes + gate * units;
            for (Py_ssize_t unit = 0; unit < units; unit++) {
                int64_t seen = rescaled(memory[unit] * weights[unit],
                                        self->of_peephole + gate, logistic);
                raw[unit] = (int32_t)clamped(raw[unit] + seen, INT16_MIN, INT16_MAX);
            }
        }
        if (self->norm)
            normalise(self, gate, raw);
        const int32_t *table = self->gate_table + (gate < logistic ? 0 : TABLE);
        for (Py_ssize_t unit = 0; unit < units; unit++)
            raw[unit] = table[raw[unit] - INT16_MIN];
    }
}

static void
add_sums(const Step *self, const int32_t *data, const int32_t *recurrent,
         int32_t *gates)
{
    Py_ssize_t rows = self->data.rows;
    for (Py_ssize_t row = 0; row < rows; row++) {
        int64_t first = rescaled(data[row], self->data.terms + row, rows);
        int64_t second = rescaled(recurrent[row], self->recurrent.terms + row, rows);
        first = clamped(first, INT16_MIN, INT16_MAX) + second;
        gates[row] = (int32_t)clamped(first, INT16_MIN, INT16_MAX);
    }
}

static void
update(const Step *self, const int32_t *gates, int32_t *memory)
{
    Py_ssize_t units = self->units;
    const int32_t *forget = gates + (self->gates - 2) * units;
    const int32_t *candidate = forget + units;
    const int32_t *input = self->gates == 4 ? gates + INPUT_GATE * units : NULL;
    for (Py_ssize_t unit = 0; unit < units; unit++) {
        int32_t entering = input ? input[unit] : ONE - forget[unit];
        int64_t kept = rounded((int64_t)memory[unit] * forget[unit], 15);
        int64_t added =
            rounded((int64_t)candidate[unit] * entering, self->state_shift);
        memory[unit] =
            (int32_t)clamped(kept + added, self->state_low, self->state_high);
    }
}

/* From the memory to the hidden codes. */
static void
hide(const Step *self, const int32_t *memory, const int32_t *gate, int16_t *hidden)
{
    for (Py_ssize_t unit = 0; unit < self->units; unit++) {
        int64_t value = self->tanh_table[memory[unit] - INT16_MIN];
        value = rescaled(value * gate[unit], self->hidden, 1) + self->hidden_zero_point;
        hidden[unit] = (int16_t)clamped(value, -128, 127);
    }
}

static void
store(const Step *self, const int16_t *hidden, const int32_t *sums, int8_t *codes)
{
    const Product *projection = &self->projection;
    for (Py_ssize_t output = 0; output < self->outputs; output++) {
        int64_t code;
        if (projection->weights) {
            code = rescaled(sums[output], projection->terms + output, self->outputs);
            code = clamped(code + self->zero_point, self->low, self->high);
        } else {
            code = hidden[output]; /* as many as outputs */
        }
        codes[output] = (int8_t)code;
    }
}

static int
compute_step(const Kernel *kernel, char *const *at)
{
    const Step *self = (const Step *)kernel;
    Py_ssize_t rows = self->data.rows, units = self->units, outputs = self->outputs;
    Py_ssize_t inputs = self->data.columns, batches = self->batches;
    size_t sums = (size_t)(2 * rows * batches + rows + units + outputs * batches);
    size_t codes = (size_t)((inputs + outputs + units) * batches);
    int32_t *of_data = malloc(sums * sizeof(int32_t) + codes * sizeof(int16_t));
    if (!of_data)
        return ENOMEM;
    int32_t *of_state = of_data + rows * batches, *gates = of_state + rows * batches;
    int32_t *memory = gates + rows, *projected = memory + units;
    int16_t *x = (int16_t *)(of_data + sums), *state = x + inputs * batches;
    int16_t *hidden = state + outputs * batches;
    widen((const int8_t *)at[X], inputs * batches, x);
    widen((const int8_t *)at[STATE], outputs * batches, state);
    multiply(&self->data, x, batches, of_data);
    multiply(&self->recurrent, state, batches, of_state);
    for (Py_ssize_t batch = 0; batch < batches; batch++) {
        for (Py_ssize_t unit = 0; unit < units; unit++) {
            int16_t stored;
            memcpy(&stored, at[MEMORY] + 2 * (batch * units + unit), 2);
            memory[unit] = stored;
        }
        add_sums(self, of_data + batch * rows, of_state + batch * rows, gates);
        finish(self, self->peepholes ? 1 : 0, self->gates, memory, gates);
        update(self, gates, memory);
        if (self->peepholes)
            finish(self, OUTPUT_GATE, 1, memory, gates);
        hide(self, memory, gates + OUTPUT_GATE * units, hidden + batch * units);
        for (Py_ssize_t unit = 0; unit < units; unit++) {
            int16_t stored = (int16_t)memory[unit];
            memcpy(at[NEW_MEMORY] + 2 * (batch * units + unit), &stored, 2);
        }
    }
    if (self->projection.weights)
        multiply(&self->projection, hidden, batches, projected);
    for (Py_ssize_t batch = 0; batch < batches; batch++) {
        int8_t *codes_of = (int8_t *)at[NEW_STATE] + batch * outputs;
        store(self, hidden + batch * units, projected + batch * outputs, codes_of);
    }
    memcpy(at[NEW_OUTPUT], at[NEW_STATE], (size_t)(batches * outputs));
    free(of_data);
    return 0;
}

/* ---- moves ---------------------------------------------------------------------- */

static void
move_along(const Move *move, int axis, const char *from, char *to)
{
    for (int64_t i = 0; i < move->lengths[axis]; i++) {
        if (axis + 1 < AXES)
            move_along(move, axis + 1, from, to);
        else
            memcpy(to, from, (size_t)move->width);
        from += move->from_strides[axis];
        to += move->to_strides[axis];
    }
}

static int
compute_moves(const Kernel *kernel, char *const *at)
{
    const Moves *self = (const Moves *)kernel;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const Move *move = &self->moves[i];
        move_along(move, 0, at[move->from] + move->from_offset,
                   at[move->to] + move->to_offset);
    }
    return 0;
}

/* ---- logic ---------------------------------------------------------------------- */

static int
compute_logic(const Kernel *kernel, char *const *at)
{
    const Logic *self = (const Logic *)kernel;
    const char *first = at[0], *second = at[kernel->inputs - 1];
    char *to = at[kernel->inputs];
    Py_ssize_t size = kernel->sizes[0];
    if (self->kind == AND)
        for (Py_ssize_t i = 0; i < size; i++)
            to[i] = (first[i] != 0) & (second[i] != 0);
    else if (self->kind == OR)
        for (Py_ssize_t i = 0; i < size; i++)
            to[i] = (first[i] != 0) | (second[i] != 0);
    else
        for (Py_ssize_t i = 0; i < size; i++)
            to[i] = first[i] == 0;
    return 0;
}

/* ---- kernels -------------------------------------------------------------------- */

/* Compute from and to arrays at these addresses; an error number if it cannot. */
static int
compute(uintptr_t kernel, uintptr_t arrays, uintptr_t Py_UNUSED(c),
        uintptr_t Py_UNUSED(d), uintptr_t Py_UNUSED(e), uintptr_t Py_UNUSED(f))
{
    const Kernel *self = (const Kernel *)kernel;
    return self->compute(self, (char *const *)arrays);
}

static bool
refused(const char *what)
{
    PyErr_Format(PyExc_ValueError, "in a compiled kernel, %s", what);
    return false;
}

static bool
has_arrays(Kernel *self, Py_ssize_t inputs, Py_ssize_t count)
{
    self->inputs = inputs;
    self->count = count;
    self->places = PyMem_Calloc((size_t)count, sizeof(Py_ssize_t));
    self->sizes = PyMem_Calloc((size_t)count, sizeof(Py_ssize_t));
    if (self->places && self->sizes)
        return true;
    PyErr_NoMemory();
    return false;
}

static void
Kernel_dealloc(Kernel *self)
{
    while (self->viewed)
        PyBuffer_Release(&self->views[--self->viewed]);
    PyMem_Free(self->places);
    PyMem_Free(self->sizes);
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static bool
open_array(const Kernel *self, Py_ssize_t number, PyObject *arrays, Py_buffer *view)
{
    PyObject *array = PySequence_GetItem(arrays, self->places[number]);
    int flags = number < self->inputs ? PyBUF_SIMPLE : PyBUF_WRITABLE;
    view->obj = NULL;
    bool is_open = array && !PyObject_GetBuffer(array, view, flags);
    if (array && !is_open && number < self->inputs
        && PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyErr_Clear(); /* it is no whole piece of memory, but a copy is */
        PyObject *copy = PyObject_CallMethod(array, "copy", NULL);
        is_open = copy && !PyObject_GetBuffer(copy, view, flags);
        Py_XDECREF(copy);
    }
    Py_XDECREF(array);
    return is_open
           && (view->len == self->sizes[number]
               || refused("an array has another size"));
}

/* Compute as `Run` does: on the arrays of the operation. */
static PyObject *
Kernel_run(Kernel *self, PyObject *args)
{
    PyObject *inputs, *outputs;
    if (!PyArg_ParseTuple(args, "OO:run", &inputs, &outputs))
        return NULL;
    size_t count = (size_t)self->count;
    Py_buffer *views = PyMem_Calloc(count, sizeof(Py_buffer) + sizeof(char *));
    if (!views)
        return PyErr_NoMemory();
    char **at = (char **)(views + count);
    Py_ssize_t opened = 0;
    bool is_right = true;
    for (; is_right && opened < self->count; opened++) {
        PyObject *arrays = opened < self->inputs ? inputs : outputs;
        is_right = open_array(self, opened, arrays, &views[opened]);
        at[opened] = views[opened].buf;
    }
    if (is_right) {
        PyThreadState *saved = self->is_long ? PyEval_SaveThread() : NULL;
        int status = self->compute(self, at);
        if (saved)
            PyEval_RestoreThread(saved);
        if (status) {
            PyErr_NoMemory();
            is_right = false;
        }
    }
    while (opened)
        PyBuffer_Release(&views[--opened]);
    PyMem_Free(views);
    return is_right ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
Kernel_address(Kernel *self, void *Py_UNUSED(closure))
{
    return PyLong_FromVoidPtr(self);
}

/* Take the next constant: numbers of that format and, unless it is 0, as many. */
static const void *
constant(void *kernel, PyObject *array, char format, Py_ssize_t count)
{
    Kernel *self = kernel;
    Py_buffer *view = &self->views[self->viewed];
    if (PyObject_GetBuffer(array, view, PyBUF_ND | PyBUF_FORMAT))
        return NULL;
    self->viewed++;
    /* Where a long has 64 bits, that is what NumPy calls them. */
    char given = *view->format == 'q' ? 'l' : *view->format;
    Py_ssize_t size = format == 'b' ? 1 : format == 'i' ? 4 : 8;
    bool is_right = given == format && view->itemsize == size && !view->format[1]
                    && (!count || view->len == count * size);
    return is_right || refused("a constant has another type or size") ? view->buf
                                                                      : NULL;
}

static bool
are_terms(const int64_t *terms, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; terms && i < count; i++)
        if (terms[FACTOR * count + i] < 0 || terms[LIMIT * count + i] < 0
            || terms[LIMIT * count + i] == INT64_MAX || terms[RIGHT * count + i] < 0
            || terms[RIGHT * count + i] > 31)
            return refused("a multiplier is out of range");
    return terms;
}

static bool
product_of(Step *self, PyObject *weights, PyObject *terms, Product *product)
{
    if (!(product->weights = constant(self, weights, 'b', 0)))
        return false;
    const Py_buffer *view = &self->kernel.views[self->kernel.viewed - 1];
    if (view->ndim != 2 || view->shape[0] < 1 || view->shape[1] < 1
        || view->shape[1] > MOST_COLUMNS || view->shape[0] > PY_SSIZE_T_MAX / 64)
        return refused("weights are no matrix that it can multiply");
    product->rows = view->shape[0];
    product->columns = view->shape[1];
    product->terms = constant(self, terms, 'l', TERMS * product->rows);
    return are_terms(product->terms, product->rows);
}

static bool
peepholes_of(Step *self, PyObject *weights, PyObject *terms)
{
    Py_ssize_t gates = self->gates - 1;
    self->peepholes = constant(self, weights, 'l', gates * self->units);
    if (!self->peepholes)
        return false;
    for (Py_ssize_t i = 0; i < gates * self->units; i++)
        if (self->peepholes[i] < INT16_MIN || self->peepholes[i] > INT16_MAX)
            return refused("a peephole is out of range");
    self->of_peephole = constant(self, terms, 'l', TERMS * gates);
    return are_terms(self->of_peephole, gates);
}

static bool
norm_of(Step *self, PyObject *weights, PyObject *terms)
{
    Py_ssize_t count = self->gates * self->units;
    if (!(self->norm = constant(self, weights, 'l', 2 * count))
        || !(self->of_norm = constant(self, terms, 'l', OF_NORM * self->gates)))
        return false;
    for (Py_ssize_t i = 0; i < count; i++)
        if (self->norm[i] < INT16_MIN || self->norm[i] > INT16_MAX
            || self->norm[count + i] < INT32_MIN || self->norm[count + i] > INT32_MAX)
            return refused("a normalisation is out of range");
    for (Py_ssize_t gate = 0; gate < self->gates; gate++) {
        const int64_t *of = self->of_norm + gate;
        if (of[0] < 0 || of[0] > INT32_MAX || of[self->gates] < -31
            || of[self->gates] > 31 || of[2 * self->gates] < 1
            || of[2 * self->gates] > INT32_MAX)
            return refused("a normalisation is out of range");
    }
    return true;
}

static bool
is_sound(Step *self)
{
    if (self->batches < 1 || self->batches > MOST_COLUMNS
        || (self->gates != 3 && self->gates != 4) || self->data.rows % self->gates
        || self->recurrent.rows != self->data.rows)
        return refused("sizes do not fit");
    self->units = self->data.rows / self->gates;
    self->outputs = self->recurrent.columns;
    /* What `compute_step` allocates for each batch, and what a batch has. */
    Py_ssize_t each = 2 * self->data.rows + self->units + self->outputs
                      + self->data.columns;
    if (self->batches > PY_SSIZE_T_MAX / 16 / each)
        return refused("sizes do not fit");
    if (self->state_shift < 15 || self->state_shift > 21
        || self->state_low > self->state_high || self->state_low < INT16_MIN
        || self->state_high > INT16_MAX || self->low > self->high || self->low < -128
        || self->high > 127 || self->zero_point < -128 || self->zero_point > 127)
        return refused("a bound is out of range");
    if (self->projection.weights
            ? self->projection.rows != self->outputs
                  || self->projection.columns != self->units
            : self->outputs != self->units)
        return refused("sizes do not fit");
    return are_terms(self->hidden, 1);
}

/* All at once, so that there is none which is not checked. */
static PyObject *
Step_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {
        "batches", "gates", "state", "hidden", "data", "recurrent", "projection",
        "bounds", "peepholes", "norm", "tables", NULL};
    PyObject *data[2], *recurrent[2], *projection[2], *holes[2], *norm[2], *tables[2];
    PyObject *hidden;
    Step *self = (Step *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self)
        return NULL;
    bool is_right =
        has_arrays(&self->kernel, NEW_STATE, ARRAYS)
        && PyArg_ParseTupleAndKeywords(
            args, kwargs, "nn(iii)(Oi)(OO)(OO)(OO)(iii)(OO)(OO)(OO)", names,
            &self->batches, &self->gates, &self->state_shift, &self->state_low,
            &self->state_high, &hidden, &self->hidden_zero_point, &data[0], &data[1],
            &recurrent[0], &recurrent[1], &projection[0], &projection[1],
            &self->zero_point, &self->low, &self->high, &holes[0], &holes[1], &norm[0],
            &norm[1], &tables[0], &tables[1])
        && product_of(self, data[0], data[1], &self->data)
        && product_of(self, recurrent[0], recurrent[1], &self->recurrent)
        && (projection[0] == Py_None
            || product_of(self, projection[0], projection[1], &self->projection))
        && (self->hidden = constant(self, hidden, 'l', TERMS)) && is_sound(self)
        && (holes[0] == Py_None || peepholes_of(self, holes[0], holes[1]))
        && (norm[0] == Py_None || norm_of(self, norm[0], norm[1]))
        && (self->gate_table = constant(self, tables[0], 'i', 2 * TABLE))
        && (self->tanh_table = constant(self, tables[1], 'i', TABLE));
    if (!is_right) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    Py_ssize_t codes = self->batches * self->outputs;
    Py_ssize_t memory = 2 * self->batches * self->units;
    Py_ssize_t products = (self->data.columns + self->outputs) * self->data.rows;
    Py_ssize_t sizes[ARRAYS] = {
        self->batches * self->data.columns, codes, memory, codes, memory, codes};
    static const Py_ssize_t places[ARRAYS] = {0, 18, 19, 0, 1, 2};
    memcpy(self->kernel.sizes, sizes, sizeof sizes);
    memcpy(self->kernel.places, places, sizeof places);
    self->kernel.is_long = (double)products * (double)self->batches >= WORTH_UNLOCKING;
    self->kernel.compute = compute_step;
    return (PyObject *)self;
}

/* Find the array of a side that memory begins in. */
static bool
find_array(const Kernel *self, char *const *begins, bool is_input, const char *memory,
           int64_t *number, int64_t *offset)
{
    Py_ssize_t first = is_input ? 0 : self->inputs;
    Py_ssize_t last = is_input ? self->inputs : self->count;
    for (Py_ssize_t i = first; i < last; i++) {
        *number = i;
        *offset = memory - begins[i];
        if (*offset >= 0 && *offset < self->sizes[i])
            return true;
    }
    return refused("what is moved is no part of an array");
}

/* Return whether a move stays within an array from one offset to another. */
static bool
is_within(const Move *move, int64_t offset, const int64_t *strides, Py_ssize_t size)
{
    int64_t low = offset, high = offset + move->width;
    for (int axis = 0; axis < AXES; axis++) {
        int64_t reach = (move->lengths[axis] - 1) * strides[axis];
        *(reach < 0 ? &low : &high) += reach;
    }
    return (low >= 0 && high <= size) || refused("a move goes beyond an array");
}

/* Describe how elements go from one view to another, as which the first is repeated. */
static bool
move_of(const Kernel *self, char *const *begins, const Py_buffer *to,
        const Py_buffer *from, Move *move, int64_t *chunks)
{
    if (to->itemsize != from->itemsize || strcmp(to->format, from->format)
        || to->ndim < from->ndim)
        return refused("elements are converted");
    int axis = AXES, more = to->ndim - from->ndim;
    move->width = to->itemsize;
    for (int i = 0; i < AXES; i++)
        move->lengths[i] = 1;
    for (int i = to->ndim - 1; i >= 0; i--) {
        int64_t length = to->shape[i], from_stride = 0, to_stride = to->strides[i];
        if (i >= more && from->shape[i - more] != 1) {
            from_stride = from->strides[i - more];
            if (from->shape[i - more] != length)
                return refused("shapes do not fit");
        }
        if (length < 1 || length > FARTHEST || from_stride > FARTHEST
            || from_stride < -FARTHEST || to_stride > FARTHEST || to_stride < -FARTHEST)
            return refused("sizes do not fit");
        if (length == 1)
            continue;
        if (axis == AXES && from_stride == move->width && to_stride == move->width) {
            move->width *= length; /* in one piece */
        } else if (axis < AXES
                   && from_stride == move->from_strides[axis] * move->lengths[axis]
                   && to_stride == move->to_strides[axis] * move->lengths[axis]) {
            move->lengths[axis] *= length;
        } else {
            if (!axis--)
                return refused("there are too many axes");
            move->lengths[axis] = length;
            move->from_strides[axis] = from_stride;
            move->to_strides[axis] = to_stride;
        }
    }
    int64_t count = 1;
    for (int i = 0; i < AXES; i++)
        count = count > MOST_CHUNKS ? count : count * move->lengths[i];
    *chunks += count;
    return (*chunks <= MOST_CHUNKS || refused("there are too many pieces"))
           && find_array(self, begins, true, from->buf, &move->from, &move->from_offset)
           && find_array(self, begins, false, to->buf, &move->to, &move->to_offset)
           && is_within(move, move->from_offset, move->from_strides,
                        self->sizes[move->from])
           && is_within(move, move->to_offset, move->to_strides, self->sizes[move->to]);
}

/* Note the memory of an array as long as it is made. */
static bool
note_array(Kernel *self, Py_ssize_t number, PyObject *array, char **begin)
{
    Py_buffer view;
    if (!array || PyObject_GetBuffer(array, &view, PyBUF_SIMPLE))
        return false;
    *begin = view.buf;
    self->sizes[number] = view.len;
    PyBuffer_Release(&view);
    return true;
}

static bool
take_move(Moves *self, char *const *begins, PyObject *pair, int64_t *chunks)
{
    PyObject *target, *source;
    Py_buffer to, from;
    if (!PyArg_ParseTuple(pair, "OO", &target, &source)
        || PyObject_GetBuffer(target, &to, PyBUF_STRIDES | PyBUF_FORMAT))
        return false;
    bool is_right = !PyObject_GetBuffer(source, &from, PyBUF_STRIDES | PyBUF_FORMAT);
    if (is_right) {
        Move *move = &self->moves[self->count++];
        is_right = move_of(&self->kernel, begins, &to, &from, move, chunks);
        PyBuffer_Release(&from);
    }
    PyBuffer_Release(&to);
    return is_right;
}

/* Of inputs at these places and outputs, and of pairs of views of them. */
static PyObject *
Moves_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"places", "arrays", "pairs", NULL};
    PyObject *places, *arrays, *pairs;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!", names, &PyTuple_Type,
                                     &places, &PyTuple_Type, &arrays, &PyTuple_Type,
                                     &pairs))
        return NULL;
    Py_ssize_t inputs = PyTuple_Size(places), count = PyTuple_Size(arrays);
    if (count <= inputs) {
        refused("there are no outputs");
        return NULL;
    }
    Moves *self = (Moves *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self)
        return NULL;
    int64_t chunks = 0;
    char **begins = PyMem_Calloc((size_t)count, sizeof(char *));
    self->moves = PyMem_Calloc((size_t)PyTuple_Size(pairs) + 1, sizeof(Move));
    bool is_right = begins && self->moves && has_arrays(&self->kernel, inputs, count);
    if (!is_right)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; is_right && i < count; i++) {
        Py_ssize_t place = i - inputs;
        if (i < inputs)
            place = PyLong_AsSsize_t(PyTuple_GetItem(places, i));
        self->kernel.places[i] = place;
        is_right = !PyErr_Occurred() && (place >= 0 || refused("a place is negative"))
                   && note_array(&self->kernel, i, PyTuple_GetItem(arrays, i),
                                 &begins[i]);
    }
    for (Py_ssize_t i = 0; is_right && i < PyTuple_Size(pairs); i++)
        is_right = take_move(self, begins, PyTuple_GetItem(pairs, i), &chunks);
    PyMem_Free(begins);
    self->kernel.compute = compute_moves;
    if (!is_right)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void
Moves_dealloc(Moves *self)
{
    PyMem_Free(self->moves);
    Kernel_dealloc(&self->kernel);
}

static PyObject *
Logic_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kind", "size", NULL};
    int kind;
    Py_ssize_t size;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "in", names, &kind, &size))
        return NULL;
    if (kind < AND || kind > NOT || size < 1) {
        refused("sizes do not fit");
        return NULL;
    }
    Logic *self = (Logic *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self)
        return NULL;
    Py_ssize_t inputs = kind == NOT ? 1 : 2;
    if (!has_arrays(&self->kernel, inputs, inputs + 1)) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    for (Py_ssize_t i = 0; i <= inputs; i++) {
        self->kernel.places[i] = i < inputs ? i : 0;
        self->kernel.sizes[i] = size;
    }
    self->kernel.is_long = size >= 8 * WORTH_UNLOCKING;
    self->kernel.compute = compute_logic;
    self->kind = kind;
    return (PyObject *)self;
}

/* ---- the module ----------------------------------------------------------------- */

static PyMethodDef kernel_methods[] = {
    {"run", (PyCFunction)(void (*)(void))Kernel_run, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef kernel_getters[] = {
    {"address", (getter)Kernel_address, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define SLOTS(make, end) \
    { \
        {Py_tp_doc, "A kernel; see asyncnn.kernels.compiled."}, {Py_tp_new, make}, \
            {Py_tp_dealloc, end}, {Py_tp_methods, kernel_methods}, \
            {Py_tp_getset, kernel_getters}, {0, NULL}, \
    }

static PyType_Slot step_slots[] = SLOTS(Step_new, Kernel_dealloc);
static PyType_Slot moves_slots[] = SLOTS(Moves_new, Moves_dealloc);
static PyType_Slot logic_slots[] = SLOTS(Logic_new, Kernel_dealloc);

static PyType_Spec specs[] = {
    {"asyncnn.kernels._compiled.Step", sizeof(Step), 0, Py_TPFLAGS_DEFAULT, step_slots},
    {"asyncnn.kernels._compiled.Moves", sizeof(Moves), 0, Py_TPFLAGS_DEFAULT,
     moves_slots},
    {"asyncnn.kernels._compiled.Logic", sizeof(Logic), 0, Py_TPFLAGS_DEFAULT,
     logic_slots},
};

static int
execute(PyObject *module)
{
    int failed = 0;
    for (int i = 0; !failed && i < 3; i++) {
        PyTypeObject *type = add_type(module, &specs[i]);
        failed = !type;
        Py_XDECREF((PyObject *)type);
    }
    PyObject *function = failed ? NULL : PyLong_FromVoidPtr((void *)(uintptr_t)compute);
    failed = !function || PyModule_AddObjectRef(module, "FUNCTION", function);
    Py_XDECREF(function);
    return failed ? -1 : 0;
}

NATIVE_MODULE(_compiled, .m_doc = "Kernels, compiled.")
