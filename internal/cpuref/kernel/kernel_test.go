package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"syscall"
	"testing"

	"llmrun/internal/num"
)

// regions are memory that ends before a page that cannot be touched, for one operand each.
var regions [12][]byte

// fenced gives n bytes of region r, filled with a pattern, that end so many bytes before the fence; and as surroundings, some before
// them and all after them. What the region held is lost.
func fenced(t *testing.T, r, n, before int) (data, surroundings []byte) {
	t.Helper()
	const front = 64
	if need := front + n + before; len(regions[r]) < need {
		page := os.Getpagesize()
		size := (2*need+page-1)/page*page + page
		memory, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mprotect(memory[size-page:], syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		regions[r] = memory[: size-page : size-page]
	}
	surroundings = regions[r][len(regions[r])-before-n-front:]
	for i := range surroundings {
		surroundings[i] = guard
	}
	return surroundings[front:][:n:n], surroundings
}

const guard = 0xa5

// value draws one of the numbers that hurt.
func value(r *rand.Rand, kind int) float32 {
	switch kind {
	case 0:
		return float32(r.NormFloat64())
	case 1:
		return math.Float32frombits(r.Uint32()&0x807fffff | r.Uint32N(3)<<23) // subnormal, or nearly
	case 2:
		return math.Float32frombits(r.Uint32()&0x807fffff | (0x7e+r.Uint32N(2)*0x40)<<23) // about 1, and as large as 2^64
	case 3:
		special := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 0x1p-149, 0x1p-126, math.MaxFloat32, -math.MaxFloat32}
		return special[r.IntN(len(special))]
	}
	return math.Float32frombits(r.Uint32()) // infinities and NaNs among them
}

const kinds = 5

func fill(r *rand.Rand, kind int, x []float32) {
	for i := range x {
		x[i] = value(r, kind)
	}
}

func fillWeights(r *rand.Rand, kind int, d num.DType, b []byte) {
	for i := range len(b) / d.Size() {
		switch v := value(r, kind); {
		case d == num.Int8:
			b[i] = byte(r.Uint32())
		case d == num.Float16 && kind > 0: // subnormals, infinities, NaNs
			binary.LittleEndian.PutUint16(b[2*i:], uint16(r.Uint32()))
		default:
			num.PutFloat32(d, b, i, v)
		}
	}
}

// fast are the sets that are held to the plain one.
func fast(t testing.TB) []*Set {
	sets := Sets()[1:]
	if len(sets) == 0 {
		t.Skip("this machine has no set but the plain one")
	}
	return sets
}

func compare(t *testing.T, what string, want, got []float32) {
	t.Helper()
	for i := range want {
		if !sameFloat(want[i], got[i]) {
			t.Fatalf("%s: element %d: want %x, got %x", what, i, want[i], got[i])
		}
	}
}

// checkProduct compares a product with the plain form's. All operands end at a fence.
func checkProduct(t *testing.T, s *Set, r *rand.Rand, d num.DType, kind, rows, n, cols int) {
	t.Helper()
	const gap = 3 // between rows
	what := fmt.Sprintf("%s, %v, kind %d: %d rows, [%d %d]", s.Name, d, kind, rows, n, cols)
	before := r.IntN(4)
	stride := cols*d.Size() + r.IntN(2)
	data, _ := fenced(t, 0, (n-1)*stride+cols*d.Size(), before)
	w := Matrix{Data: data, DType: d, Rows: n, Cols: cols, Stride: stride}
	for i := range n {
		fillWeights(r, kind, d, data[i*stride:][:cols*d.Size()])
	}
	if d == num.Int8 {
		scales, _ := fenced(t, 1, 4*n, before)
		w.Scale = FloatsOf(scales)
		fill(r, kind, w.Scale)
	}
	xBytes, _ := fenced(t, 2, 4*((rows-1)*(cols+gap)+cols), before)
	x := Floats{FloatsOf(xBytes), cols + gap}
	fill(r, kind, x.Data)
	var outs [2][]byte
	for i, set := range []*Set{generic, s} {
		var out []byte
		out, outs[i] = fenced(t, 3+i, 4*((rows-1)*(n+gap)+n), before)
		set.Product(new(Temp), Floats{FloatsOf(out), n + gap}, x, rows, w)
	}
	if !slices.Equal(outs[0], outs[1]) {
		for i := 0; i < len(outs[0]); i++ {
			if outs[0][i] != outs[1][i] {
				t.Fatalf("%s: other bits %d bytes before the end: want %x, got %x", what, len(outs[0])-i, outs[0][i], outs[1][i])
			}
		}
	}
}

var weightTypes = []num.DType{num.Float32, num.Float16, num.BFloat16, num.Int8}

func TestProduct(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 1))
	for _, s := range fast(t) {
		for _, d := range weightTypes {
			for kind := range kinds {
				for cols := range 32 {
					checkProduct(t, s, r, d, kind, 1+r.IntN(9), 1+r.IntN(9), cols+32*r.IntN(4))
				}
				for rows := 1; rows < 10; rows++ {
					for n := 1; n < 10; n++ {
						checkProduct(t, s, r, d, kind, rows, n, 8*(1+r.IntN(12)))
					}
				}
				checkProduct(t, s, r, d, kind, 33, 65, 8*(1+r.IntN(12)))
			}
			checkProduct(t, s, r, d, 0, 70, 62, 1544) // columns in two blocks, rows in two, weights in two, the last of them short
			checkProduct(t, s, r, d, 0, 1, 7, 9216)
		}
	}
}

// weightedSum is a whole sum, by itself.
func weightedSum(s *Set, y, p []float32, v Floats) {
	whole, part, rest := len(p)&^(lanes-1), make([]float32, lanes*len(y)), v
	s.Weigh(Floats{part, 0}, Floats{p, 0}, 1, v, whole, len(y), 0, lanes, 0)
	rest.Data = v.Data[min(len(v.Data), whole*v.Stride):]
	s.EndSum(y, p[whole:], rest, part)
}

func TestWeightedSum(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 2))
	for _, s := range fast(t) {
		for kind := range kinds {
			for n := range 70 {
				d := 8 * (1 + r.IntN(9))
				stride := d + r.IntN(5)
				data, _ := fenced(t, 0, 4*max(0, (n-1)*stride+d), r.IntN(4))
				weights, _ := fenced(t, 1, 4*n, r.IntN(4))
				v, p := FloatsOf(data), FloatsOf(weights)
				fill(r, kind, v)
				fill(r, kind, p)
				var outs [2][]float32
				for i, set := range []*Set{generic, s} {
					out, whole := fenced(t, 2+i, 4*d, 0)
					outs[i] = FloatsOf(out)
					weightedSum(set, outs[i], p, Floats{v, stride})
					if got := whole[len(whole)-4*d-1]; got != guard {
						t.Fatalf("%s: the byte before the output is %x", s.Name, got)
					}
				}
				compare(t, fmt.Sprintf("%s, kind %d: %d rows of %d", s.Name, kind, n, d), outs[0], outs[1])
			}
		}
	}
}

// Several sums at once have the bits that they have one by one, whatever is left to smaller kernels, and whatever lanes go first.
func TestWeigh(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 12))
	for _, s := range fast(t) {
		for kind := range kinds {
			for sums := range 12 {
				n, more, d, gap := 8*(1+r.IntN(5)), r.IntN(8), 8*(1+r.IntN(20)), r.IntN(5)
				rows, stride, ldp := n+more, d+gap, n+more+r.IntN(3)
				data, _ := fenced(t, 0, 4*((rows-1)*stride+d), r.IntN(4))
				weights, _ := fenced(t, 1, 4*max(0, (sums-1)*ldp+rows), r.IntN(4))
				v, p := Floats{FloatsOf(data), stride}, Floats{FloatsOf(weights), ldp}
				fill(r, kind, v.Data)
				fill(r, kind, p.Data)
				size := lanes * (d + gap)
				partBytes, _ := fenced(t, 2, 4*max(0, (sums-1)*size+lanes*d), 0)
				part := Floats{FloatsOf(partBytes), size}
				clear(part.Data)
				half, from := n/16*8, r.IntN(lanes+1)
				pHalf, vHalf := Floats{p.Data[min(half, len(p.Data)):], ldp}, Floats{v.Data[half*stride:], stride}
				for _, l := range [][2]int{{from, lanes}, {0, from}} {
					s.Weigh(part, p, sums, v, half, d, l[0], l[1], 8)
					s.Weigh(part, pHalf, sums, vHalf, n-half, d, l[0], l[1], 0)
				}
				for sum := range sums {
					weight := p.Data[sum*ldp:][:rows]
					want, got := make([]float32, d), make([]float32, d)
					weightedSum(generic, want, weight, v)
					rest := Floats{Stride: stride}
					if more > 0 {
						rest.Data = v.Data[n*stride:]
					}
					s.EndSum(got, weight[n:], rest, part.Data[sum*size:])
					compare(t, fmt.Sprintf("%s, kind %d: sum %d of %d, %d+%d rows of %d", s.Name, kind, sum, sums, n, more, d), want, got)
				}
			}
		}
	}
}

// The scores of several heads at once are the products one by one, scaled.
func TestScores(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 13))
	for _, s := range Sets() {
		for kind := range kinds {
			for group := 1; group < 9; group++ {
				heads, dim, n, gap := 1+r.IntN(3), 8*(1+r.IntN(9)), 1+r.IntN(13), r.IntN(3)
				row := heads * dim
				keys, _ := fenced(t, 0, 4*((n-1)*(row+gap)+row), r.IntN(4))
				queries, _ := fenced(t, 1, 4*group*row, r.IntN(4))
				fill(r, kind, FloatsOf(keys))
				fill(r, kind, FloatsOf(queries))
				scale := value(r, kind)
				var outs [2][]byte
				for i := range outs {
					var out []byte
					out, outs[i] = fenced(t, 2+i, 4*((heads*group-1)*(n+gap)+n), 0)
					y := Floats{FloatsOf(out), n + gap}
					if i == 1 {
						k := Matrix{Data: keys, Rows: n, Cols: row, Stride: 4 * (row + gap)}
						s.Scores(y, FloatsOf(queries), k, heads, group, dim, scale)
						continue
					}
					for h := range heads * group {
						k := Matrix{Data: keys[h/group*4*dim:], Rows: n, Cols: dim, Stride: 4 * (row + gap)}
						scores := y.Data[h*y.Stride:][:n]
						generic.Product(new(Temp), Floats{scores, 0}, Floats{FloatsOf(queries)[h*dim:], 0}, 1, k)
						generic.Scale(scores, scores, scale)
					}
				}
				if !slices.Equal(outs[0], outs[1]) {
					t.Fatalf("%s, kind %d: %d·%d heads of %d, %d keys: other bits than the products", s.Name, kind, heads, group, dim, n)
				}
			}
		}
	}
}

// What a weighted sum is, stated by itself: a dot product for each column.
func TestWeightedSumIsADot(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 3))
	const n, d = 21, 16
	v, p, column := make([]float32, n*d), make([]float32, n), make([]float32, n)
	fill(r, 0, v)
	fill(r, 0, p)
	for _, s := range Sets() {
		y := make([]float32, d)
		weightedSum(s, y, p, Floats{v, d})
		for i := range d {
			for j := range n {
				column[j] = v[j*d+i]
			}
			if want := reference(p, column); !sameFloat(want, y[i]) {
				t.Errorf("%s: column %d: want %x, got %x", s.Name, i, want, y[i])
			}
		}
	}
}

// vectors are the functions of vectors, by their inputs a, b, c and d and numbers p and q.
var vectors = map[string]func(s *Set, out, out2, a, b, c, d []float32, p, q float32){
	"add":       func(s *Set, out, _, a, b, _, _ []float32, _, _ float32) { s.Add(out, a, b) },
	"mul":       func(s *Set, out, _, a, b, _, _ []float32, _, _ float32) { s.Mul(out, a, b) },
	"scale":     func(s *Set, out, _, a, _, _, _ []float32, p, _ float32) { s.Scale(out, a, p) },
	"normalize": func(s *Set, out, _, a, b, _, _ []float32, p, q float32) { s.Normalize(out, a, b, p, q) },
	"rotate":    func(s *Set, out, out2, a, b, c, d []float32, _, _ float32) { s.Rotate(out, out2, a, b, c, d) },
	"softmax":   func(s *Set, out, _, a, _, _, _ []float32, _, _ float32) { s.Softmax(new(Temp), out, a) },
	"silu":      func(s *Set, out, _, a, _, _, _ []float32, _, _ float32) { s.SiLU(out, a) },
	"gelu":      func(s *Set, out, _, a, _, _, _ []float32, _, _ float32) { s.GELUTanh(out, a) },
	"softcap":   func(s *Set, out, _, a, _, _, _ []float32, p, _ float32) { s.SoftCap(out, a, p) },
}

func TestVectors(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 4))
	for _, s := range fast(t) {
		for name, f := range vectors {
			for kind := range kinds {
				for n := range 67 {
					var in [4][]float32
					for i := range in {
						data, _ := fenced(t, i, 4*n, r.IntN(4))
						in[i] = FloatsOf(data)
						fill(r, kind, in[i])
					}
					p, q := value(r, kind), value(r, kind)
					var outs, outs2, wholes [2][]byte
					for i, set := range []*Set{generic, s} {
						outs[i], wholes[i] = fenced(t, 4+i, 4*n, 1)
						outs2[i], _ = fenced(t, 6+i, 4*n, 2)
						f(set, FloatsOf(outs[i]), FloatsOf(outs2[i]), in[0], in[1], in[2], in[3], p, q)
					}
					if !slices.Equal(wholes[0], wholes[1]) || !slices.Equal(outs2[0], outs2[1]) {
						for i, want := range FloatsOf(outs[0]) {
							if got := FloatsOf(outs[1])[i]; math.Float32bits(want) != math.Float32bits(got) {
								t.Fatalf("%s: %s of %x (%x, %x), element %d of %d: want %x, got %x", s.Name, name, in[0][i], p, q, i, n, want, got)
							}
						}
						t.Fatalf("%s: %s of %d elements: other bits", s.Name, name, n)
					}
				}
			}
		}
	}
}

// Functions of one variable, on two million arguments: one of every 4096 float32 in the order of their bits, common ones, and where the
// functions turn.
func TestFunctions(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 5))
	var x []float32
	count := uint32(1 << 20)
	if testing.Short() {
		count = 1 << 16
	}
	for i := range count {
		step := 1 << 32 / uint64(count)
		x = append(x, math.Float32frombits(uint32(uint64(i)*step)+r.Uint32N(uint32(step))), float32(r.NormFloat64()*8))
	}
	for _, edge := range []float64{0, 22, 1e-4, 709, 710, 745, 708, math.MaxFloat32, 88, 104, 44, 1e-4 * math.Sqrt2 * math.SqrtPi / 2} {
		for _, v := range []float64{edge, -edge, edge / 2, -edge / 2} {
			f := float32(v)
			x = append(x, f, math.Nextafter32(f, 1e38), math.Nextafter32(f, -1e38))
		}
	}
	want, got := make([]float32, len(x)), make([]float32, len(x))
	for _, s := range fast(t) {
		for _, name := range []string{"silu", "gelu", "softcap"} {
			vectors[name](generic, want, nil, x, nil, nil, nil, 1, 0)
			vectors[name](s, got, nil, x, nil, nil, nil, 1, 0)
			for i := range x {
				if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
					t.Fatalf("%s: %s(%x): want %x, got %x", s.Name, name, x[i], want[i], got[i])
				}
			}
		}
		for _, top := range []float32{0, 1, -3e38, 1e-30, float32(math.Inf(1))} {
			var a, b [8]float32
			n := len(x) &^ 7
			generic.vector.expSum(&want[0], &x[0], top, n, &a[0])
			s.vector.expSum(&got[0], &x[0], top, n, &b[0])
			compare(t, fmt.Sprintf("%s: exp(x - %g)", s.Name, top), want[:n], got[:n])
			compare(t, fmt.Sprintf("%s: the sum of exp(x - %g)", s.Name, top), a[:], b[:])
		}
	}
}

// Read reads every stream to its end, and no further.
func TestRead(t *testing.T) {
	for _, s := range Sets() {
		for _, n := range []int{0, 255, 256, 1000, 1 << 16} {
			data, _ := fenced(t, 0, n, 0)
			ones := 0
			for i := range len(data) / 4 {
				binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(1))
				ones = (i + 1) &^ 63
			}
			if got := s.Read(data); got != float32(ones) {
				t.Errorf("%s: %d bytes of ones: want %d, got %g", s.Name, n, ones, got)
			}
			for _, row := range []int{1, 60, 64, 65} {
				s.Fetch(data, row, n/row/4*row, n/row-n/row/4*3, row)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	if s, err := Choose("generic"); err != nil || s != generic {
		t.Errorf("generic: got %v, %v", s, err)
	}
	sets := Sets()
	if s, err := Choose(""); err != nil || s != sets[len(sets)-1] {
		t.Errorf("no name: got %v, %v", s, err)
	}
	if _, err := Choose("mmx"); err == nil {
		t.Error("mmx: want an error")
	}
}

// The registers beyond 15 are AVX-512's: on a machine with AVX2 they are illegal instructions.
func TestNoRegisterOfAVX512(t *testing.T) {
	text, err := os.ReadFile("kernel_amd64.s")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`\bY15\b`).Match(text) {
		t.Error("no Y15: this test may look for the wrong names")
	}
	if found := regexp.MustCompile(`\b([XYZ](1[6-9]|2\d|3[01])|Z\d+|K[0-7])\b`).Find(text); found != nil {
		t.Errorf("found %s", found)
	}
}
