package engine

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"

	"llmrun/internal/num"
)

// TraceLevel says which sites a trace tells of.
type TraceLevel string

// The levels.
const (
	TraceOff    TraceLevel = "off"
	TraceLayers TraceLevel = "layers" // what goes into the first layer, what comes out of each, and what is made of the last
	TraceOps    TraceLevel = "ops"    // every op
)

// TraceLevels are the names that --trace takes.
var TraceLevels = []TraceLevel{TraceOff, TraceLayers, TraceOps}

var layerSites = []string{"embed", "layer_out", "final_norm", "lm_head", "logits"}

// Trace writes one JSON object a line for each thing that an op wrote, as soon as it was written.
type Trace struct {
	level TraceLevel
	w     *bufio.Writer
	json  *json.Encoder
	row   []float32
	err   error // the first
}

// TraceLine is a line of a trace. Sum, MaxAbs and MeanSquare are of the finite elements; the others are counted.
type TraceLine struct {
	Side       string  `json:"side"`
	Prompt     string  `json:"prompt"`
	Step       int     `json:"step"`
	Pos        int     `json:"pos"`   // of the first row
	Layer      int     `json:"layer"` // -1 outside the layers
	Site       string  `json:"site"`
	Family     Family  `json:"family"`
	Operand    string  `json:"operand"`
	Rows       int     `json:"rows"`
	Cols       int     `json:"cols"`
	Sum        float64 `json:"sum"`
	MaxAbs     float64 `json:"max_abs"`
	MeanSquare float64 `json:"mean_square"`
	NaN        int     `json:"nan"`
	Inf        int     `json:"inf"`
	FirstBad   int     `json:"first_bad"` // index of the first NaN or infinity, rows one after the other; -1: none
}

// NewTrace begins a trace. It is nil if level is off, which is what a session without a trace costs: nothing.
func NewTrace(level TraceLevel, w io.Writer) (*Trace, error) {
	switch level {
	case TraceOff, "":
		return nil, nil
	case TraceLayers, TraceOps:
		b := bufio.NewWriter(w)
		return &Trace{level: level, w: b, json: json.NewEncoder(b)}, nil
	}
	return nil, fmt.Errorf("trace: want off, layers or ops, got %q", level)
}

// Tap is a session's Tap that writes the trace; nil, if t is.
func (t *Trace) Tap(side, prompt string) func(Op) {
	if t == nil {
		return nil
	}
	return func(op Op) {
		if t.level == TraceLayers && !slices.Contains(layerSites, op.Site().Name) || t.err != nil {
			return
		}
		outs, _ := op.Operands(nil, nil)
		for _, o := range outs {
			line, err := t.line(op, o)
			line.Side, line.Prompt = side, prompt
			if err == nil {
				err = t.json.Encode(line)
			}
			if err != nil && t.err == nil {
				t.err = fmt.Errorf("trace: %w", err)
			}
		}
	}
}

// line reads what op wrote to one operand.
func (t *Trace) line(op Op, o Operand) (TraceLine, error) {
	site, d := op.Site(), o.Buffer.DType()
	l := TraceLine{Step: site.Step, Pos: op.Pass().Pos, Layer: site.Layer, Site: site.Name, Family: op.Family(),
		Operand: o.Name, Rows: o.Rows, Cols: o.Cols, FirstBad: -1}
	host, err := o.Buffer.Host()
	if err != nil {
		return l, err
	}
	t.row = slices.Grow(t.row[:0], o.Cols)[:o.Cols]
	for r := range o.Rows {
		num.Float32s(t.row, d, host[(o.Offset+r*o.Stride)*d.Size():])
		for i, v := range t.row {
			l.add(r*o.Cols+i, v)
		}
	}
	if n := o.Rows*o.Cols - l.NaN - l.Inf; n > 0 {
		l.MeanSquare /= float64(n)
	}
	return l, nil
}

// add takes in element i. MeanSquare holds the sum until the end. NaN and infinities are told by their bits.
func (l *TraceLine) add(i int, v float32) {
	switch bits := math.Float32bits(v) &^ (1 << 31); {
	case bits > 0x7f800000:
		l.NaN++
	case bits == 0x7f800000:
		l.Inf++
	default:
		x := float64(v)
		l.Sum += x
		l.MaxAbs = max(l.MaxAbs, math.Abs(x))
		l.MeanSquare += float64(x * x) // not fused, on any machine
		return
	}
	if l.FirstBad < 0 {
		l.FirstBad = i
	}
}

// Close writes what is left and returns the trace's first failure. It does not close the writer.
func (t *Trace) Close() error {
	if t == nil {
		return nil
	}
	if err := t.w.Flush(); t.err == nil && err != nil {
		t.err = fmt.Errorf("trace: %w", err)
	}
	return t.err
}
