// Package backendtest is the one suite that every backend passes: a table of ops held to the oracle's bounds, and properties
// that hold whatever the oracle says.
package backendtest

import (
	"bytes"
	"fmt"
	"math"
	"sort"
	"strings"
	"testing"

	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/engine"
)

// Run runs the suite. open gives a fresh backend, which Run closes.
func Run(t *testing.T, open func() (engine.Backend, error)) {
	Ops(t, open, func(string) bool { return true })
	for name, property := range properties {
		t.Run(name, func(t *testing.T) { property(t, opened(t, open)) })
	}
}

// Ops runs the table alone, those cases whose names keep holds to.
func Ops(t *testing.T, open func() (engine.Backend, error), keep func(name string) bool) {
	t.Run("ops", func(t *testing.T) { ops(t, opened(t, open), keep) })
}

func opened(t *testing.T, open func() (engine.Backend, error)) engine.Backend {
	t.Helper()
	b, err := open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// used is how much of its bound an op has used, over all cases.
type used struct {
	worst          float64
	in             string  // the case
	elements, half int     // half: elements are not counted but cases that used more than half of the bound
	ulp            float64 // see finding.ulp
}

func ops(t *testing.T, b engine.Backend, keep func(name string) bool) {
	summary := map[string]*used{}
	for _, c := range Cases() {
		if !keep(c.Name) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			for _, f := range check(t, b, c.Build(t, b)) {
				name, _, _ := strings.Cut(c.Name, "/")
				if summary[name] == nil {
					summary[name] = &used{}
				}
				summary[name].note(c.Name, f)
			}
		})
	}
	var names []string
	for name := range summary {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		u := summary[name]
		t.Logf("%-9s %8d elements, worst at %.3f of its bound (%s); %d cases beyond half of it; %.2f ulp", name, u.elements, u.worst, u.in, u.half, u.ulp)
	}
}

func (u *used) note(name string, r finding) {
	u.elements += r.Elements
	u.ulp = max(u.ulp, r.ulp())
	if r.WorstRatio > 0.5 {
		u.half++
	}
	if r.WorstRatio >= u.worst {
		u.worst, u.in = r.WorstRatio, name
	}
}

// Check runs op, and holds each of its outputs to the oracle, every byte around them to what it was, and its inputs too. It
// returns what it found, by output.
func check(tb testing.TB, b engine.Backend, op engine.Op) []finding {
	tb.Helper()
	outs, ins := op.Operands(nil, nil)
	before := map[engine.Buffer][]byte{}
	for _, o := range append(outs, ins...) {
		before[o.Buffer] = bytes.Clone(host(tb, o.Buffer))
	}
	b.Run(op)
	if err := b.Sync(); err != nil {
		tb.Fatal(err)
	}
	for _, o := range outs {
		blank(o, before[o.Buffer])
	}
	for buffer, was := range before {
		is := bytes.Clone(host(tb, buffer))
		for _, o := range outs {
			if o.Buffer == buffer {
				blank(o, is)
			}
		}
		for i := range was {
			if was[i] != is[i] {
				tb.Errorf("%v: byte %d (element %d) of a buffer of %d elements of %v is none of its outputs and has changed",
					op.Site(), i, i/buffer.DType().Size(), buffer.Len(), buffer.DType())
				break
			}
		}
	}
	found, err := compare(op)
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range found {
		if !f.OK() {
			tb.Errorf("%v: %v", op.Site(), f)
		}
	}
	return found
}

// finding is an output, what it should be, and how the two compare.
type finding struct {
	oracle.Judged
	oracle.Report
	got []float64
}

func (f finding) String() string {
	i, cols := f.WorstIndex, f.Operand.Cols
	return fmt.Sprintf("%s [%d %d]: want %g within %.3g, got %g: %.3g × the bound; %d of %d elements are beyond it",
		f.Operand.Name, i/cols, i%cols, f.Want[i], f.Allowed[i], f.got[i], f.WorstRatio, f.Bad, f.Elements)
}

// ulp is the greatest error in ulps of the wanted value, over values of a 16th of the largest one and more: in those below, what
// counts is what cancelled.
func (f finding) ulp() (worst float64) {
	largest, bits := 0.0, f.Operand.Buffer.DType().Precision().Digits
	for _, w := range f.Want {
		if !math.IsInf(w, 0) && !math.IsNaN(w) {
			largest = max(largest, math.Abs(w))
		}
	}
	for i, w := range f.Want {
		if size := math.Abs(w); size > 0 && size >= largest/16 && !math.IsInf(w, 0) && !math.IsInf(f.got[i], 0) && f.got[i] == f.got[i] {
			_, exponent := math.Frexp(w)
			worst = max(worst, math.Abs(f.got[i]-w)/math.Ldexp(1, exponent-bits))
		}
	}
	return worst
}

// compare holds what op has written to the oracle.
func compare(op engine.Op) ([]finding, error) {
	judged, err := oracle.Judge(op)
	if err != nil {
		return nil, err
	}
	var found []finding
	for _, j := range judged {
		got, err := j.Got()
		if err != nil {
			return nil, err
		}
		found = append(found, finding{j, j.Compare(got), got})
	}
	return found, nil
}

// blank clears the bytes of an operand, so that what is left can be compared.
func blank(o engine.Operand, data []byte) {
	size := o.Buffer.DType().Size()
	for r := range o.Rows {
		clear(data[(o.Offset+r*o.Stride)*size:][:o.Cols*size])
	}
}

func host(tb testing.TB, b engine.Buffer) []byte {
	tb.Helper()
	data, err := b.Host()
	if err != nil {
		tb.Fatal(err)
	}
	return data
}
