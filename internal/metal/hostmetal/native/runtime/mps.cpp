// MetalPerformanceShaders, as far as MPSMatrixMultiplication goes. As Apple's does, it encodes a compute kernel of its own, through the
// same messages as everybody: it runs in the command buffer's order, and is held to the same rules.
#include "metal.h"

#include <string.h>

EXPORT void objc_msgSend();  // cast to the method's type before it is called
EXPORT SEL sel_registerName(const char*);

namespace {

// ---- MPSMatrixDescriptor, MPSMatrix ----

struct Descriptor : Object {
    u64     rows, columns, row_bytes;
    msl_u32 type;
};
struct Matrix : Object {
    Buffer*    buffer;
    u64        offset;
    Descriptor d;  // a copy
};

enum : msl_u32 { float32 = 0x10000020, float16 = 0x10000010, int16 = 0x20000010, int8 = 0x20000008 };

u64 size_of(msl_u32 type) { return (type & 0xffff) / 8; }

typedef unsigned long long ull;

Descriptor* descriptor_new(Class*, SEL, u64 rows, u64 columns, u64 row_bytes, msl_u32 type) {
    Descriptor* d = make<Descriptor>(MatrixDescriptor_);
    d->rows = rows;
    d->columns = columns;
    d->row_bytes = row_bytes;
    d->type = type;
    return later(d);
}
u64 descriptor_row_bytes(Descriptor* d, SEL) { return d->row_bytes; }

// Metal Performance Shaders ends the process over a bad matrix, so does this.
Matrix* matrix_init(Matrix* m, SEL, Buffer* b, u64 offset, Descriptor* d) {
    static const char method[] = "MPSMatrix initWithBuffer:offset:descriptor:";
    if (!b) assertion(method, "buffer may not be nil.");
    if (!d) assertion(method, "descriptor may not be nil.");
    u64 size = size_of(d->type);
    if (!size) assertion(method, "data type 0x%x is not supported", d->type);
    if (!d->rows || !d->columns) assertion(method, "rows(%llu) and columns(%llu) must be positive", (ull)d->rows, (ull)d->columns);
    if (d->row_bytes / size < d->columns)
        assertion(method, "not enough rowBytes for all the columns: rowBytes(%llu), columns(%llu) of %llu bytes", (ull)d->row_bytes, (ull)d->columns, (ull)size);
    if (d->row_bytes % size || offset % size)
        assertion(method, "rowBytes(%llu) and offset(%llu) must be multiples of the element size(%llu)", (ull)d->row_bytes, (ull)offset, (ull)size);
    if (offset > b->length || (b->length - offset) / d->row_bytes < d->rows)
        assertion(method, "offset(%llu) and %llu rows of %llu bytes exceed the buffer length(%llu)", (ull)offset, (ull)d->rows, (ull)d->row_bytes, (ull)b->length);
    m->buffer = keep(b);
    m->offset = offset;
    m->d.rows = d->rows;
    m->d.columns = d->columns;
    m->d.row_bytes = d->row_bytes;
    m->d.type = d->type;
    return m;
}
id matrix_data(Matrix* m, SEL) { return m->buffer; }
void matrix_dealloc(id o) { objc_drop(((Matrix*)o)->buffer); }

// ---- the kernel ----

// A matrix as the kernel sees it: element (i, k) of op(A) begins at byte i·row + k·column.
struct Side {
    u64     row, column;
    msl_u32 type;
};
struct Parameters {
    msl_u32 rows, columns, inner;
    float   alpha, beta;
    Side    result, left, right;  // right is transposed: element (n, k)
};

float widen(msl_u32 h) {  // a half's bits, IEEE binary16
    msl_u32 u = (h & 0x7fff) << 13;
    float f;
    memcpy(&f, &u, 4);
    f *= 0x1p112f;
    memcpy(&u, &f, 4);
    if ((h & 0x7c00) == 0x7c00) u = 0x7f800000 | (h & 0x3ff) << 13;
    u |= (h & 0x8000) << 16;
    memcpy(&f, &u, 4);
    return f;
}
unsigned short narrow(float f) {  // to nearest, ties to even
    msl_u32 u;
    memcpy(&u, &f, 4);
    msl_u32 sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (unsigned short)(sign | 0x7e00);
    if (a >= 0x477ff000) return (unsigned short)(sign | 0x7c00);
    if (a >= 0x38800000) return (unsigned short)(sign | (a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13);
    float small;
    memcpy(&small, &a, 4);
    small += 0.5f;  // whose last place is a half's
    memcpy(&u, &small, 4);
    return (unsigned short)(sign | (u - 0x3f000000));
}

float load(const char* p, msl_u32 type) {
    float f;
    unsigned short h;
    short i;
    switch (type) {
    case float32: memcpy(&f, p, 4); return f;
    case float16: memcpy(&h, p, 2); return widen(h);
    case int16: memcpy(&i, p, 2); return i;
    default: return (signed char)*p;
    }
}

// A threadgroup computes a tile of the result, some products of each sum at a time, as floats on the stack. Each sum is kept in as many
// parts as a vector has floats.
const msl_u32 tile_rows = 8, tile_columns = 16, depth = 128, lanes = 8;
typedef float Vector __attribute__((vector_size(4 * lanes)));

void load_rows(float (*to)[depth], const char* from, const Side& s, msl_u32 row, msl_u32 rows, msl_u32 k, msl_u32 n) {
    for (msl_u32 i = 0; i < rows; ++i) {
        const char* p = from + (row + i) * s.row + k * s.column;
        memset(to[i] + n, 0, (depth - n) * sizeof(float));
        if (s.type == float32 && s.column == 4) memcpy(to[i], p, n * sizeof(float));
        else
            for (msl_u32 j = 0; j < n; ++j) to[i][j] = load(p + j * s.column, s.type);
    }
}

__attribute__((noinline)) void multiply_tile(const MslCmd* c, const Parameters& a, msl_u32 row, msl_u32 column) {
    alignas(32) float left[tile_rows][depth], right[tile_columns][depth];
    Vector sums[tile_rows][tile_columns] = {};
    msl_u32 rows = a.rows - row < tile_rows ? a.rows - row : tile_rows;
    msl_u32 columns = a.columns - column < tile_columns ? a.columns - column : tile_columns;
    for (msl_u32 k = 0; k < a.inner; k += depth) {
        msl_u32 n = a.inner - k < depth ? a.inner - k : depth;
        load_rows(left, (const char*)c->buf[1].p, a.left, row, rows, k, n);
        load_rows(right, (const char*)c->buf[2].p, a.right, column, columns, k, n);
        for (msl_u32 i = 0; i < rows; ++i)
            for (msl_u32 j = 0; j < columns; ++j) {
                const Vector *l = (const Vector*)left[i], *r = (const Vector*)right[j];
                Vector s = sums[i][j];
                for (msl_u32 v = 0; v < depth / lanes; ++v) s += l[v] * r[v];
                sums[i][j] = s;
            }
    }
    for (msl_u32 i = 0; i < rows; ++i)
        for (msl_u32 j = 0; j < columns; ++j) {
            const Vector& s = sums[i][j];
            float f = a.alpha * (((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
            char* to = (char*)c->buf[0].p + (row + i) * a.result.row + (column + j) * a.result.column;
            if (a.beta != 0) f += a.beta * load(to, a.result.type);
            unsigned short h = narrow(f);
            if (a.result.type == float32) memcpy(to, &f, 4);
            else memcpy(to, &h, 2);
        }
}

void multiply_loop(MslGroup* g, const msl_u32*, const msl_u32*) {
    Parameters a;
    memcpy(&a, g->cmd->buf[3].p, sizeof a);
    multiply_tile(g->cmd, a, g->pos[1] * tile_rows, g->pos[0] * tile_columns);
}

const MslArg multiply_args[] = {{MSL_ARG_BUFFER, 0, 0, 1, 1}, {MSL_ARG_BUFFER, 1, 0, 1, 1}, {MSL_ARG_BUFFER, 2, 0, 1, 1},
                                {MSL_ARG_BUFFER, 3, MSL_REF | MSL_CONSTANT, sizeof(Parameters), alignof(Parameters)}};
const char* const multiply_names[] = {"resultMatrix", "leftMatrix", "rightMatrix", "parameters"};
MslKernel multiply_kernel = {"MPSMatrixMultiplication", "MetalPerformanceShaders", 0, 4, multiply_args, multiply_names, 0, 1, 0, 0, multiply_loop};
Pipeline multiply_pipeline = {{&Pipeline_, -1}, 0, &multiply_kernel};

// ---- MPSMatrixMultiplication ----

struct Multiplication : Object {
    Device* device;
    bool    transpose_left, transpose_right;
    u64     rows, columns, inner;
    double  alpha, beta;
};

Multiplication* multiplication_init(Multiplication* m, SEL, Device* d, bool left, bool right, u64 rows, u64 columns, u64 inner, double alpha, double beta) {
    if (!d) assertion("MPSMatrixMultiplication initWithDevice:", "device may not be nil.");
    if (!rows || !columns || !inner || (rows | columns | inner) >> 32) {
        objc_drop(m);
        return 0;
    }
    m->device = d;
    m->transpose_left = left;
    m->transpose_right = right;
    m->rows = rows;
    m->columns = columns;
    m->inner = inner;
    m->alpha = alpha;
    m->beta = beta;
    return m;
}

// want is how many rows and columns of the matrix, as it lies in memory, the product takes.
void check_size(const char* name, const Matrix* m, u64 rows, u64 columns) {
    static const char method[] = "MPSMatrixMultiplication encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:";
    if (!m) assertion(method, "%s matrix may not be nil.", name);
    if (m->d.rows < rows) assertion(method, "Number of requested rows(%llu) in %s matrix exceeds %s matrix size(%llu).", (ull)rows, name, name, (ull)m->d.rows);
    if (m->d.columns < columns)
        assertion(method, "Number of requested columns(%llu) in %s matrix exceeds %s matrix size(%llu).", (ull)columns, name, name, (ull)m->d.columns);
}
bool is_input(msl_u32 t) { return t == float32 || t == float16 || t == int8 || t == int16; }

void check_types(msl_u32 left, msl_u32 right, msl_u32 result) {
    static const char method[] = "MPSMatrixMultiplication encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:";
    if (!is_input(left) || !is_input(right))
        assertion(method, "Input data type must be one of MPSDataTypeFloat32, MPSDataTypeFloat16, MPSDataTypeInt8, or MPSDataTypeInt16.");
    if (result != float32 && result != float16)
        assertion(method, "Only MPSDataTypeFloat16 and MPSDataTypeFloat32 are supported for the result matrix.");
    if (left != right && !(left == float32 && right == float16 && result == float32))
        assertion(method, "Mixed input matrix multiplication is only for MPSDataTypeFloat32, MPSDataTypeFloat16, MPSDataTypeFloat32.");
    if (left == float32 && result == float16) assertion(method, "MPSDataTypeFloat32 inputs have a MPSDataTypeFloat32 result.");
}

template <class R, class... A> R send(id o, const char* name, A... arguments) {
    return ((R(*)(id, SEL, A...))objc_msgSend)(o, sel_registerName(name), arguments...);
}

// How the kernel walks a matrix; transposed: element (i, k) of the operand is element (k, i) of the matrix.
Side side(const Matrix* m, bool transposed) {
    u64 size = size_of(m->d.type);
    return transposed ? Side{size, m->d.row_bytes, m->d.type} : Side{m->d.row_bytes, size, m->d.type};
}

void multiplication_encode(Multiplication* m, SEL, CommandBuffer* b, Matrix* left, Matrix* right, Matrix* result) {
    if (!b) assertion("MPSMatrixMultiplication encodeToCommandBuffer:", "commandBuffer may not be nil.");
    check_size("left input", left, m->transpose_left ? m->inner : m->rows, m->transpose_left ? m->rows : m->inner);
    check_size("right input", right, m->transpose_right ? m->columns : m->inner, m->transpose_right ? m->inner : m->columns);
    check_size("result", result, m->rows, m->columns);
    check_types(left->d.type, right->d.type, result->d.type);
    Parameters a = {(msl_u32)m->rows, (msl_u32)m->columns, (msl_u32)m->inner, (float)m->alpha, (float)m->beta,
                    side(result, false), side(left, m->transpose_left), side(right, !m->transpose_right)};
    id e = send<id>(b, "computeCommandEncoder");
    send<void>(e, "setComputePipelineState:", (id)&multiply_pipeline);
    Matrix* all[] = {result, left, right};
    for (u64 i = 0; i < 3; ++i) send<void>(e, "setBuffer:offset:atIndex:", (id)all[i]->buffer, all[i]->offset, i);
    send<void>(e, "setBytes:length:atIndex:", (const void*)&a, (u64)sizeof a, (u64)3);
    MTLSize groups = {(m->columns + tile_columns - 1) / tile_columns, (m->rows + tile_rows - 1) / tile_rows, 1}, one = {1, 1, 1};
    send<void>(e, "dispatchThreadgroups:threadsPerThreadgroup:", groups, one);
    send<void>(e, "endEncoding");
}

const Method descriptor_methods[] = {{"rowBytes", (void*)descriptor_row_bytes}, {0, 0}};
const Method descriptor_class_methods[] = {{"matrixDescriptorWithRows:columns:rowBytes:dataType:", (void*)descriptor_new}, {0, 0}};
const Method matrix_methods[] = {{"initWithBuffer:offset:descriptor:", (void*)matrix_init}, {"data", (void*)matrix_data}, {0, 0}};
const Method multiplication_methods[] = {
    {"initWithDevice:transposeLeft:transposeRight:resultRows:resultColumns:interiorColumns:alpha:beta:", (void*)multiplication_init},
    {"encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:", (void*)multiplication_encode},
    {0, 0},
};
const Method no_methods[] = {{0, 0}};

}  // namespace

#define PUBLIC_CLASS(name, T, dealloc, methods, class_methods) {{0, -1}, name, &NSObject_, sizeof(T), dealloc, methods, class_methods, 0, 0}
Class MatrixDescriptor_ = PUBLIC_CLASS("MPSMatrixDescriptor", Descriptor, 0, descriptor_methods, descriptor_class_methods);
Class Matrix_ = PUBLIC_CLASS("MPSMatrix", Matrix, matrix_dealloc, matrix_methods, no_methods);
Class MatrixMultiplication_ = PUBLIC_CLASS("MPSMatrixMultiplication", Multiplication, 0, multiplication_methods, no_methods);

EXPORT bool MPSSupportsMTLDevice(Device* d) { return d != 0; }
