package kernel

import (
	"fmt"
	"unsafe"
)

// Scores compares one token's queries with keys: out[h, j] = dot(q[h], k[j, h/group]) · scale. A row of k is the keys of all KV heads at
// a position; group query heads share each. Keys come from memory in four streams, as weights do in Product.
func (s *Set) Scores(out Floats, q []float32, k Matrix, heads, group, dim int, scale float32) {
	if k.Rows == 0 || heads*group*dim == 0 {
		return
	}
	if k.Cols != heads*dim || len(k.Data) < (k.Rows-1)*k.Stride+4*k.Cols || len(q) < heads*group*dim || len(out.Data) < (heads*group-1)*out.Stride+k.Rows {
		panic(fmt.Sprintf("BUG: %d heads of %d for %d of [%d %d]: %d queries, %d bytes, %d outputs", heads*group, dim, heads, k.Rows, k.Cols,
			len(q), len(k.Data), len(out.Data)))
	}
	quarter := k.Rows / 4
	s.scoreKeys((*float32)(unsafe.Pointer(&k.Data[0])), k.Stride-4*k.Cols, quarter*k.Stride, &q[0], heads, group, dim, scale,
		&out.Data[0], 4*out.Stride, 4*quarter, k.Rows-3*quarter)
}

// Weigh goes on with lanes [from, to) of several weighted sums Σⱼ p[j]·v[j] of the same values, d columns of the first n rows of v, both a multiple of 8;
// EndSum ends them. Sum s has its weights in row s of p, and its lanes in row s of part, 8·d that begin with zeros. The values that lie ahead rows after these
// come from memory meanwhile, if it is not 0.
func (s *Set) Weigh(part, p Floats, sums int, v Floats, n, d, from, to, ahead int) {
	if n%lanes != 0 || d%lanes != 0 || from < 0 || from > to || to > lanes ||
		sums > 0 && n > 0 && (len(part.Data) < (sums-1)*part.Stride+lanes*d || len(p.Data) < (sums-1)*p.Stride+n || len(v.Data) < (n-1)*v.Stride+d) {
		panic(fmt.Sprintf("BUG: lanes [%d, %d) of %d sums of %d weights of %d columns, %d apart, in %d values", from, to, sums, n, d, v.Stride, len(v.Data)))
	}
	if n > 0 && from < to {
		weighing{s, part, p, v, n, d, from, to, ahead}.rectangle(0, 0, sums, 0, d)
	}
}

// EndSum gives y = Σⱼ p[j]·v[j], of which part has the lanes of all terms but the last, fewer than 8, that p and v have.
func (s *Set) EndSum(y, p []float32, v Floats, part []float32) {
	if len(y)%lanes != 0 || len(p) >= lanes || len(v.Data) < (len(p)-1)*v.Stride+len(y) || len(part) < lanes*len(y) {
		panic(fmt.Sprintf("BUG: %d weights of %d columns, %d apart, in %d values", len(p), len(y), v.Stride, len(v.Data)))
	}
	if len(y) > 0 {
		s.endSum(unsafe.SliceData(v.Data), 4*v.Stride, unsafe.SliceData(p), len(p), &y[0], len(y), &part[0])
	}
}

type weighing struct {
	*Set
	part, p, v     Floats
	n, d, from, to int
	ahead          int
}

// rectangle does columns [i0, i1) of sums [s0, s1), with the weighers from number k on.
func (w weighing) rectangle(k, s0, s1, i0, i1 int) {
	if s0 == s1 || i0 == i1 {
		return
	}
	f := w.weigh[k]
	s, i := s1-(s1-s0)%f.sums, i1-(i1-i0)%f.columns
	for sum := s0; sum < s && i0 < i; sum += f.sums {
		f.run(&w.v.Data[w.from*w.v.Stride+i0], 4*w.v.Stride, &w.p.Data[sum*w.p.Stride+w.from], 4*w.p.Stride, w.n,
			&w.part.Data[sum*w.part.Stride+lanes*(i0+w.from)], 4*w.part.Stride, i-i0, w.to-w.from, 4*w.ahead*w.v.Stride)
	}
	w.rectangle(k+1, s0, s, i, i1)
	w.rectangle(k+1, s, s1, i0, i1)
}

// Fetch reads 4·n rows of so many bytes, those of four streams that are far apart, near after near: they will be used soon, and perhaps in an order that
// memory does not serve as well.
func (s *Set) Fetch(data []byte, near, far, n, bytes int) {
	if n <= 0 || bytes <= 0 {
		return
	}
	if len(data) < 3*far+(n-1)*near+bytes {
		panic(fmt.Sprintf("BUG: 4·%d rows of %d bytes, %d and %d apart, in %d", n, bytes, near, far, len(data)))
	}
	s.fetch(&data[0], near, far, n, bytes)
}
