package shadow

import (
	"bytes"
	"math"
	"slices"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// extent is elements [from, to) of a buffer.
type extent struct{ from, to int }

func (e extent) meets(o extent) bool { return e.from < o.to && o.from < e.to }

// extents lists what an operand covers, in order.
func extents(o engine.Operand) (list []extent) {
	if o.Stride == o.Cols {
		return []extent{{o.Offset, o.Offset + o.Rows*o.Cols}}
	}
	for r := range o.Rows {
		from := o.Offset + r*o.Stride
		list = append(list, extent{from, from + o.Cols})
	}
	return list
}

// span is what one op wrote, in rows of so many elements.
type span struct {
	extent
	writer string // a site
	name   string // the writer's operand
	cols   int
}

// without gives the parts of s that none of the operands in buffer b cover.
func (s *span) without(operands []engine.Operand, b engine.Buffer) []extent {
	parts := []extent{s.extent}
	for _, o := range operands {
		if o.Buffer != b {
			continue
		}
		for _, e := range extents(o) {
			var left []extent
			for _, p := range parts {
				left = append(left, extent{p.from, min(p.to, max(p.from, e.from))}, extent{max(p.from, min(p.to, e.to)), p.to})
			}
			parts = slices.DeleteFunc(left, func(p extent) bool { return p.from >= p.to })
		}
	}
	return parts
}

// record is what a buffer held when its writers were done.
type record struct {
	buffer engine.Buffer
	bytes  []byte // from the buffer's first element
	spans  []span // in order, none meets another
}

// part gives the recorded bytes of e, as far as they reach.
func (r *record) part(e extent) []byte {
	size := r.buffer.DType().Size()
	return r.bytes[min(e.from*size, len(r.bytes)):min(e.to*size, len(r.bytes))]
}

// set records the bytes of s. Of spans that it meets only the rest stays.
func (r *record) set(s span, data []byte) {
	size := r.buffer.DType().Size()
	if more := s.to*size - len(r.bytes); more > 0 {
		r.bytes = append(r.bytes, make([]byte, more)...)
	}
	copy(r.bytes[s.from*size:s.to*size], data)
	var kept []span
	for _, old := range r.spans {
		for _, part := range []extent{{old.from, min(old.to, s.from)}, {max(old.from, s.to), old.to}} {
			if part.from < part.to {
				rest := old
				rest.extent = part
				kept = append(kept, rest)
			}
		}
	}
	i := slices.IndexFunc(kept, func(k span) bool { return k.from > s.from })
	if i < 0 {
		i = len(kept)
	}
	r.spans = slices.Insert(kept, i, s)
}

// held calls f with the parts of e, in order: each with the span that holds it, or nil where nothing was written.
func (r *record) held(e extent, f func(*span, extent)) {
	spans := slices.Clone(r.spans) // f may change them
	at := e.from
	for i := range spans {
		s := &spans[i]
		if !s.meets(extent{at, e.to}) {
			continue
		}
		if at < s.from {
			f(nil, extent{at, s.from})
		}
		end := min(s.to, e.to)
		f(s, extent{max(at, s.from), end})
		at = end
	}
	if at < e.to {
		f(nil, extent{at, e.to})
	}
}

// renew records the bytes of all spans as they are now, but for what operands of except cover.
func (r *record) renew(host []byte, except ...engine.Operand) {
	size := r.buffer.DType().Size()
	for i := range r.spans {
		for _, p := range r.spans[i].without(except, r.buffer) {
			copy(r.bytes[p.from*size:p.to*size], host[p.from*size:])
		}
	}
}

// change counts elements of a buffer that are not what was recorded.
type change struct {
	record    *record
	unknown   bool // there is no record: all count
	bad       int
	nonFinite int
	at        extent // around all of them
	first     span   // which the first of them is in
	want, got float64
	index     int // of the first
}

// note looks at a part of span s.
func (c *change) note(s *span, part extent, host []byte) {
	d := c.record.buffer.DType()
	size := d.Size()
	is, was := host[part.from*size:part.to*size], c.record.part(part)
	if !c.unknown && bytes.Equal(is, was) {
		return
	}
	for i := range part.to - part.from {
		if !c.unknown && bytes.Equal(is[i*size:(i+1)*size], was[i*size:(i+1)*size]) {
			continue
		}
		got := float64(num.Float32At(d, is, i))
		if math.IsNaN(got) || math.IsInf(got, 0) {
			c.nonFinite++
		}
		if c.bad++; c.bad == 1 {
			c.first, c.index, c.got, c.at = *s, part.from+i, got, extent{part.from + i, part.from + i}
			c.want = math.NaN()
			if !c.unknown {
				c.want = float64(num.Float32At(d, was, i))
			}
		}
		c.at.to = part.from + i + 1
	}
}

// finding puts a change into words: op is the one that did it, or found it; the elements are o's, if it has any.
func (c *change) finding(op engine.Op, o engine.Operand) Finding {
	site := op.Site()
	f := Finding{Step: site.Step, Layer: site.Layer, Site: site.Name, Family: string(op.Family()), Op: kind(op),
		Between: &Between{c.first.writer, site.String()}, Operand: o.Name, Elements: o.Rows * o.Cols, Bad: c.bad, NonFinite: c.nonFinite,
		Ratio: ctconv.Number(math.Inf(1)), Why: []string{}}
	if f.Elements == 0 {
		f.Elements = c.first.to - c.first.from
	}
	f.Worst = Worst{Row: c.index / c.first.cols, Col: c.index % c.first.cols, Inputs: []Input{}, Want: ctconv.Number(c.want),
		Got: ctconv.Number(c.got), Error: ctconv.Number(math.Abs(c.got - c.want))}
	return f
}
