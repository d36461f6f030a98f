package engine_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"llmrun/internal/cpuref"
	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// traced decodes a text of prefill ids and one step under a trace.
func traced(t *testing.T, level engine.TraceLevel, spoil func(engine.Op)) []engine.TraceLine {
	t.Helper()
	var out bytes.Buffer
	trace, err := engine.NewTrace(level, &out)
	if err != nil {
		t.Fatal(err)
	}
	s := session(t, load(t, "m_gemma2", cpu(t, 1)), 8)
	tap := trace.Tap("candidate", "once")
	s.Tap = func(op engine.Op) {
		spoil(op)
		tap(op)
	}
	bits(t, s, []int{1, 17, 33, 4}, 3)
	if err := trace.Close(); err != nil {
		t.Fatal(err)
	}
	var lines []engine.TraceLine
	for line := range strings.Lines(out.String()) {
		var l engine.TraceLine
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&l); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		lines = append(lines, l)
	}
	return lines
}

func write(t *testing.T, o engine.Operand, i int, bits uint32) {
	host, err := o.Buffer.Host()
	if err != nil {
		t.Error(err)
		return
	}
	num.PutFloat32(num.Float32, host, o.Offset+i/o.Cols*o.Stride+i%o.Cols, math.Float32frombits(bits))
}

// TestTraceLines: one line for each thing that an op wrote, with numbers that can be checked.
func TestTraceLines(t *testing.T) {
	var sum, squares, most float64
	lines := traced(t, engine.TraceOps, func(op engine.Op) {
		outs, _ := op.Operands(nil, nil)
		o := outs[0]
		switch site := op.Site(); {
		case site == engine.Site{Step: 0, Layer: 1, Name: "act"}:
			// A quiet NaN, a signalling one with its sign, and both infinities.
			for i, bits := range []uint32{0x7fc00000, 0xff800001, 0x7f800000, 0xff800000} {
				write(t, o, o.Cols+3+i, bits)
			}
		case site == engine.Site{Step: 1, Layer: 0, Name: "gate"}:
			host, err := o.Buffer.Host()
			if err != nil {
				t.Fatal(err)
			}
			row := make([]float32, o.Cols)
			num.Float32s(row, num.Float32, host)
			for _, v := range row {
				sum += float64(v)
				squares += float64(v) * float64(v)
				most = max(most, math.Abs(float64(v)))
			}
		}
	})
	s := session(t, load(t, "m_gemma2", cpu(t, 1)), 8)
	body := 0
	layers := map[int]bool{}
	for _, op := range s.Program() {
		outs, _ := op.Operands(nil, nil)
		body += len(outs)
		layers[op.Site().Layer] = true
	}
	if len(lines) < 2*body-4 || len(lines) > 2*body || len(layers) < 3 { // step 0 has no logits
		t.Errorf("%d lines for two passes of %d operands", len(lines), body)
	}
	seen := 0
	for _, l := range lines {
		if l.Side != "candidate" || l.Prompt != "once" || l.Rows < 1 || l.Cols < 1 || l.Family == "" || l.Pos != 3*l.Step {
			t.Errorf("%+v", l)
		}
		switch {
		case l.Step == 0 && l.Layer == 1 && l.Site == "act":
			seen++
			if l.NaN != 2 || l.Inf != 2 || l.FirstBad != l.Cols+3 || l.Rows != 3 {
				t.Errorf("%+v", l)
			}
		case l.Step == 1 && l.Layer == 0 && l.Site == "gate":
			seen++
			if l.Sum != sum || l.MaxAbs != most || math.Abs(l.MeanSquare-squares/float64(l.Cols)) > 1e-12*squares || l.FirstBad != -1 || l.NaN+l.Inf != 0 {
				t.Errorf("%+v; want sum %v, max %v, squares %v", l, sum, most, squares)
			}
		case l.Step == 0 && l.FirstBad >= 0 && l.Layer == 0:
			t.Errorf("before the NaN: %+v", l)
		}
	}
	if seen != 2 {
		t.Errorf("%d of the 2 lines that are looked at", seen)
	}
}

func TestTraceLayers(t *testing.T) {
	sites := map[string]int{}
	for _, l := range traced(t, engine.TraceLayers, func(engine.Op) {}) {
		sites[l.Site]++
	}
	if len(sites) != 4 || sites["embed"] != 2 || sites["layer_out"] < 4 || sites["final_norm"] != 1 || sites["lm_head"] != 1 {
		t.Errorf("%v", sites)
	}
}

func TestTraceRefuses(t *testing.T) {
	if _, err := engine.NewTrace("some", nil); err == nil || err.Error() != `trace: want off, layers or ops, got "some"` {
		t.Error(err)
	}
	trace, err := engine.NewTrace(engine.TraceOps, broken{})
	if err != nil {
		t.Fatal(err)
	}
	s := session(t, load(t, "m_gemma2", cpu(t, 1)), 8)
	s.Tap = trace.Tap("cpu", "")
	bits(t, s, []int{1, 17}, 1)
	if err := trace.Close(); !errors.Is(err, errFull) || err.Error() != "trace: the disk is full" {
		t.Error(err)
	}
}

type broken struct{}

var errFull = errors.New("the disk is full")

func (broken) Write([]byte) (int, error) { return 0, errFull }

// idle runs nothing, so that what is left is the session's own work.
type idle struct{ engine.Backend }

func (idle) Run(engine.Op) {}

// TestTraceOff: no trace is no tap, and a pass without a tap allocates nothing.
func TestTraceOff(t *testing.T) {
	for _, level := range []engine.TraceLevel{engine.TraceOff, ""} {
		trace, err := engine.NewTrace(level, nil)
		if trace != nil || err != nil || trace.Tap("cpu", "") != nil || trace.Close() != nil {
			t.Errorf("%q: %v, %v", level, trace, err)
		}
	}
	s := session(t, load(t, "m_gemma2", cpu(t, 1)), 256)
	s.Backend = idle{s.Backend}
	var none *engine.Trace
	s.Tap = none.Tap("cpu", "")
	if n := testing.AllocsPerRun(100, func() {
		if _, err := s.Step(1); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

// BenchmarkStep is what a step costs beside its ops, without and with a tap: go test -bench Step.
func BenchmarkStep(b *testing.B) {
	for _, level := range []engine.TraceLevel{engine.TraceOff, engine.TraceOps} {
		b.Run(string(level), func(b *testing.B) {
			m, err := ctconv.Open(goldenDir + "/m_gemma2")
			if err != nil {
				b.Fatal(err)
			}
			defer m.Close()
			backend := cpuref.Open(cpuref.Options{Threads: 1})
			defer backend.Close()
			d, err := engine.Load(m, backend)
			if err != nil {
				b.Fatal(err)
			}
			s, err := d.NewSession(2)
			if err != nil {
				b.Fatal(err)
			}
			s.Backend = idle{s.Backend}
			trace, err := engine.NewTrace(level, io.Discard)
			if err != nil {
				b.Fatal(err)
			}
			s.Tap = trace.Tap("cpu", "")
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Reset(); err != nil {
					b.Fatal(err)
				}
				if _, err := s.Step(1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
