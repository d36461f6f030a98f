package parity

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// The numbers of rows that a linear is given at once: what a prompt of few tokens gives it, and one more than a tile of 32.
var rowCounts = []int{2, 3, 4, 5, 6, 7, 8, 9, 33}

const mostRows = 33

// rowsTime is how long the leg may take on one backend. A large model's layers are alike, so the first ones speak for the rest.
const rowsTime = 20 * time.Second

// rowsLeg: every linear gives a row the same results alone as among others.
func (r *run) rowsLeg(ctx context.Context, s *side, _ *legText) (outcome, error) {
	var linears []*engine.Linear
	cols, rows := 0, 0
	for _, op := range s.Program() {
		if l, ok := op.(*engine.Linear); ok {
			linears = append(linears, l)
			cols, rows = max(cols, l.W.Cols), max(rows, l.W.Rows)
		}
	}
	b, err := newBench(s.backend, cols, rows)
	if err != nil {
		return outcome{}, err
	}
	deadline := time.Now().Add(rowsTime)
	bits, tried := true, 0
	for ; tried < len(linears) && (tried == 0 || time.Now().Before(deadline)); tried++ {
		if err := ctx.Err(); err != nil {
			return outcome{}, err
		}
		l := linears[tried]
		broken, same, err := b.test(l)
		if err != nil {
			return outcome{}, err
		}
		if broken != "" {
			return outcome{broken: place(l) + ": " + broken}, nil
		}
		bits = bits && same
	}
	found := outcome{bits: bits}
	if tried < len(linears) {
		found.note = fmt.Sprintf("the first %d of %d linears, in %v", tried, len(linears), rowsTime)
	}
	return found, nil
}

// place is a linear's site without a step.
func place(l *engine.Linear) string {
	if l.Layer == engine.NoLayer {
		return l.Name
	}
	return fmt.Sprintf("layer %d %s", l.Layer, l.Name)
}

// bench runs linears on rows of its own.
type bench struct {
	engine.Backend
	x, out engine.Buffer
}

// newBench makes room, and rows of random numbers of size 1, as norms make them.
func newBench(b engine.Backend, cols, rows int) (*bench, error) {
	x, err := b.NewBuffer(b.Activations(), mostRows*cols)
	if err != nil {
		return nil, err
	}
	out, err := b.NewBuffer(b.Activations(), mostRows*rows)
	if err != nil {
		return nil, err
	}
	return &bench{b, x, out}, nil
}

// fill writes the leg's rows from one on, so many, at the buffer's beginning.
func (b *bench) fill(cols, from, rows int) error {
	host, err := b.x.Host()
	if err != nil {
		return err
	}
	row := make([]float32, cols)
	for r := range rows {
		random := rand.New(rand.NewPCG(uint64(from+r), 7))
		for i := range row {
			row[i] = float32(random.NormFloat64())
		}
		num.PutFloat32s(b.x.DType(), host[r*cols*b.x.DType().Size():], row)
	}
	return nil
}

// run gives l's outputs for rows from one on.
func (b *bench) run(l *engine.Linear, from, rows int) ([]float32, error) {
	if err := b.fill(l.W.Cols, from, rows); err != nil {
		return nil, err
	}
	op := *l
	op.Place.In = &engine.Pass{Step: 1, Rows: rows, Span: engine.Span{Decode: rows == 1}}
	op.X, op.Out = b.x, b.out
	b.Run(&op)
	if err := b.Sync(); err != nil {
		return nil, err
	}
	host, err := b.out.Host()
	if err != nil {
		return nil, err
	}
	out := make([]float32, rows*l.W.Rows)
	num.Float32s(out, b.out.DType(), host)
	return out, nil
}

// test compares a linear's rows alone and together.
func (b *bench) test(l *engine.Linear) (broken string, bits bool, err error) {
	n := l.W.Rows
	single := make([]float32, 0, mostRows*n)
	for r := range mostRows {
		row, err := b.run(l, r, 1)
		if err != nil {
			return "", false, err
		}
		single = append(single, row...)
	}
	bits = true
	for _, rows := range rowCounts {
		together, err := b.run(l, 0, rows)
		if err != nil {
			return "", false, err
		}
		for r := range rows {
			want, got := single[r*n:(r+1)*n], together[r*n:(r+1)*n]
			bad, at, same := b.differ(l, want, got)
			if bad > 0 {
				return fmt.Sprintf("M=%d, row %d: %d of %d elements differ from M=1, [%d] is %.6g, not %.6g", rows, r, bad, n, at, got[at], want[at]), false, nil
			}
			bits = bits && same
		}
	}
	return "", bits, nil
}

// differ counts the elements of a row that differ by more than rounding: not at all on the reference, whose bits do not depend on the number
// of rows; elsewhere by what two float32 sums in different orders may (see roundoff.perturb), each rounded to the type of activations.
func (b *bench) differ(l *engine.Linear, want, got []float32) (bad, at int, bits bool) {
	squares := 0.0
	for _, v := range want {
		squares += float64(v) * float64(v)
	}
	sum := 0x1p-24 * math.Sqrt(float64(l.W.Cols)*squares/float64(len(want)))
	unit := unitRoundoff(b.Activations())
	bits = true
	for i, v := range want {
		if math.Float32bits(v) == math.Float32bits(got[i]) && engine.CountNonFinite(want[i:i+1]) == 0 {
			continue
		}
		bits = false
		allowed := 0.0
		if b.Name() != "cpu" {
			allowed = allowance * (unit*math.Abs(float64(v)) + sum)
		}
		if !(math.Abs(float64(v)-float64(got[i])) <= allowed) {
			if bad++; bad == 1 {
				at = i
			}
		}
	}
	return bad, at, bits
}
