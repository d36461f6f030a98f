package shadow

import (
	"bytes"
	"fmt"
	"slices"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// custody keeps what ops wrote, and holds what ops read to it, bit for bit; what no op writes it holds to the twin.
type custody struct {
	watch   *Watch
	twins   map[engine.Op]engine.Op
	program []engine.Op
	records map[engine.Buffer]*record
	all     []*record              // in the order of the program
	filed   map[engine.Buffer]bool // held to the file: true if they differ
	history map[engine.Op][]byte   // what each op wrote in the pass before, if that was of a single token
	unread  []stray                // found, and the reader is not known yet
	last    engine.Op              // that was run
	ran     int                    // ops
}

// stray is changed bytes that nobody has read yet.
type stray struct {
	*birth
	record *record
	at     extent
}

// nobody is the writer of what was not written in this text.
const nobody = "nobody"

func newCustody(w *Watch, program, twin []engine.Op) *custody {
	if len(program) != len(twin) {
		panic(fmt.Sprintf("BUG: the twin of a program of %d ops has %d", len(program), len(twin)))
	}
	c := &custody{watch: w, twins: map[engine.Op]engine.Op{}, program: program, records: map[engine.Buffer]*record{},
		filed: map[engine.Buffer]bool{}, history: map[engine.Op][]byte{}}
	for i, op := range program {
		c.twins[op] = twin[i]
		outs, _ := op.Operands(nil, nil)
		for _, o := range outs {
			if c.records[o.Buffer] == nil {
				r := &record{buffer: o.Buffer}
				c.records[o.Buffer], c.all = r, append(c.all, r)
			}
		}
	}
	return c
}

// arrive holds everything that op is about to read to its writer.
func (c *custody) arrive(op engine.Op) error {
	c.ran++
	if op == c.program[0] { // between passes, too, nobody may write
		if _, _, err := c.sweep(nil); err != nil {
			return err
		}
	}
	_, ins := op.Operands(nil, nil)
	for _, in := range ins {
		r := c.records[in.Buffer]
		var err error
		switch {
		case r != nil:
			err = c.receive(op, in, r)
		case in.Name == "ids":
			err = c.ids(op, in)
		default:
			err = c.file(op, in)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// receive holds an operand to what its writers left.
func (c *custody) receive(op engine.Op, in engine.Operand, r *record) error {
	host, err := in.Buffer.Host()
	if err != nil {
		return err
	}
	for i := 0; i < len(c.unread); i++ {
		if s := c.unread[i]; s.record == r && slices.ContainsFunc(extents(in), s.at.meets) {
			s.Between.Reader, s.Operand = op.Site().String(), in.Name
			c.unread = slices.Delete(c.unread, i, i+1)
			i--
		}
	}
	changed, unwritten := change{record: r}, change{record: r, unknown: true}
	for _, e := range extents(in) {
		r.held(e, func(s *span, part extent) {
			if s != nil {
				changed.note(s, part, host)
				return
			}
			unwritten.note(&span{part, nobody, in.Name, in.Stride}, part, host)
		})
	}
	if unwritten.bad > 0 {
		f := unwritten.finding(op, in)
		f.Why = append(f.Why, fmt.Sprintf("no op of this text has written the %d elements: they are left from before, or were skipped", unwritten.bad))
		c.watch.add(f, atRead)
		for _, e := range extents(in) {
			r.held(e, func(s *span, part extent) {
				if s == nil {
					r.set(span{part, nobody, in.Name, in.Stride}, host[part.from*in.Buffer.DType().Size():])
				}
			})
		}
	}
	if changed.bad > 0 {
		f := changed.finding(op, in)
		f.Why = append(f.Why, changed.why(host)...)
		f.Why = append(f.Why, fmt.Sprintf("they changed after %v was done and before %v began: no op was run in between", c.last.Site(), op.Site()))
		c.watch.add(f, atRead)
		r.renew(host)
	}
	return nil
}

// sweep looks for changes in everything that was recorded but what op was to write: op has just been run, or none if it is nil. strayed
// tells whether there are any, intact whether op's inputs are what they were.
func (c *custody) sweep(op engine.Op) (strayed, intact bool, err error) {
	var outs, ins []engine.Operand
	if op != nil {
		outs, ins = op.Operands(nil, nil)
		defer func() { c.last = op }()
	}
	intact = true
	for _, r := range c.all {
		if len(r.spans) == 0 {
			continue
		}
		host, err := r.buffer.Host()
		if err != nil {
			return false, false, err
		}
		if !slices.ContainsFunc(outs, func(o engine.Operand) bool { return o.Buffer == r.buffer }) && bytes.Equal(r.bytes, host[:len(r.bytes)]) {
			continue // as most are
		}
		changed := change{record: r}
		for i := range r.spans {
			s := &r.spans[i]
			for _, part := range s.without(outs, r.buffer) {
				changed.note(s, part, host)
			}
		}
		if changed.bad == 0 {
			continue
		}
		for _, in := range ins {
			if in.Buffer == r.buffer && slices.ContainsFunc(extents(in), changed.at.meets) {
				intact = false
			}
		}
		strayed = true
		c.strayed(op, changed, host)
		r.renew(host, outs...)
	}
	return strayed, intact, nil
}

// strayed takes down that op changed what it had no business with; or, if it is nil, that something between two passes did.
func (c *custody) strayed(op engine.Op, changed change, host []byte) {
	by := op
	if op == nil {
		by = c.last
	}
	f := changed.finding(by, engine.Operand{Name: changed.first.name})
	f.Between.Reader = nobody
	f.Why = append(f.Why, changed.why(host)...)
	if op == nil {
		f.Why = append(f.Why, fmt.Sprintf("they changed after %v was done, between two passes", by.Site()))
	} else {
		f.Why = append(f.Why, fmt.Sprintf("they changed while %v was run, which has no business with them", by.Site()))
	}
	b := c.watch.add(f, atStray)
	if op != nil {
		_, ins := op.Operands(nil, nil)
		for _, in := range ins {
			if in.Buffer == changed.record.buffer && slices.ContainsFunc(extents(in), changed.at.meets) {
				b.Between.Reader, b.Operand = op.Site().String(), in.Name
				return
			}
		}
	}
	c.unread = append(c.unread, stray{b, changed.record, changed.at})
}

// copies gives what op has just written, output by output.
func (c *custody) copies(op engine.Op) (list [][]byte, err error) {
	outs, _ := op.Operands(nil, nil)
	for _, o := range outs {
		if o.Stride != o.Cols {
			panic(fmt.Sprintf("BUG: %v: %s has gaps between its rows", op.Site(), o.Name))
		}
		host, err := o.Buffer.Host()
		if err != nil {
			return nil, err
		}
		size := o.Buffer.DType().Size()
		list = append(list, bytes.Clone(host[o.Offset*size:][:o.Rows*o.Cols*size]))
	}
	return list, nil
}

// take records what op has written.
func (c *custody) take(op engine.Op, written [][]byte) {
	outs, _ := op.Operands(nil, nil)
	for i, o := range outs {
		r, e := c.records[o.Buffer], extents(o)[0]
		r.set(span{e, op.Site().String(), o.Name, o.Cols}, written[i])
		c.unread = slices.DeleteFunc(c.unread, func(s stray) bool { return s.record == r && e.from <= s.at.from && s.at.to <= e.to })
	}
	delete(c.history, op)
	if op.Pass().Rows == 1 {
		c.history[op] = written[0]
	}
}

// file holds an operand that no op writes to the twin's. What does not change from pass to pass is looked at once, and again whenever ops
// are judged.
func (c *custody) file(op engine.Op, in engine.Operand) error {
	broken, seen := c.filed[in.Buffer]
	if broken || seen && !c.watch.judging && in.Name != "table" && in.Name != "positions" {
		return nil
	}
	twin, err := c.twin(op, in)
	if err != nil {
		return err
	}
	host, err := in.Buffer.Host()
	if err != nil {
		return err
	}
	// The twin's bytes take the place of what a writer left.
	r := &record{buffer: in.Buffer, bytes: twin}
	changed := change{record: r}
	for _, e := range extents(in) {
		changed.note(&span{e, "the file", in.Name, in.Stride}, e, host)
	}
	c.filed[in.Buffer] = changed.bad > 0
	if changed.bad > 0 {
		f := changed.finding(op, in)
		if line := c.mistaken(op, in, host); line != "" {
			f.Why = append(f.Why, line)
		} else {
			f.Why = append(f.Why, changed.why(host)...)
		}
		c.watch.add(f, atRead)
	}
	return nil
}

// mistaken names the operand of another op whose bytes in the file are those that op reads.
func (c *custody) mistaken(op engine.Op, in engine.Operand, host []byte) string {
	size := in.Buffer.DType().Size()
	is := host[in.Offset*size:][:in.Rows*in.Cols*size]
	for _, other := range c.program {
		_, ins := c.twins[other].Operands(nil, nil)
		for _, o := range ins {
			if other == op || o.Name != in.Name || o.Rows*o.Cols != in.Rows*in.Cols || o.Buffer.DType() != in.Buffer.DType() {
				continue
			}
			if b, err := o.Buffer.Host(); err == nil && bytes.Equal(is, b[o.Offset*size:][:len(is)]) {
				return fmt.Sprintf("it is the file's %s of layer %d %s", o.Name, other.Site().Layer, other.Site().Name)
			}
		}
	}
	return ""
}

// twin gives the bytes of the buffer that the twin op reads under the same name.
func (c *custody) twin(op engine.Op, in engine.Operand) ([]byte, error) {
	_, ins := c.twins[op].Operands(nil, nil)
	i := slices.IndexFunc(ins, func(o engine.Operand) bool { return o.Name == in.Name })
	if i < 0 {
		return nil, fmt.Errorf("%v: the twin op reads no %s", op.Site(), in.Name)
	}
	b, end := ins[i].Buffer, in.Offset+(in.Rows-1)*in.Stride+in.Cols
	if b.DType() != in.Buffer.DType() || b.Len() < end || in.Buffer.Len() < end {
		return nil, fmt.Errorf("%v: %s: want %d elements of %v, it has %d and the twin %d of %v", op.Site(), in.Name, end, in.Buffer.DType(), in.Buffer.Len(), b.Len(), b.DType())
	}
	return b.Host()
}

// ids holds token ids to the text.
func (c *custody) ids(op engine.Op, in engine.Operand) error {
	if c.filed[in.Buffer] {
		return nil
	}
	host, err := in.Buffer.Host()
	if err != nil {
		return err
	}
	pass, want := op.Pass(), []byte(nil)
	switch text := c.watch.Text; {
	case text != nil:
		for t := range in.Cols {
			id := -1 // beyond the end of the text
			if pass.Pos+t < len(text) {
				id = text[pass.Pos+t]
			}
			want = append(want, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
		}
	default:
		if other := c.twins[op].Pass(); other.Step != pass.Step || other.Pos != pass.Pos || other.Rows != pass.Rows {
			return nil
		}
		if want, err = c.twin(op, in); err != nil {
			return err
		}
	}
	writer := "the prompt"
	if pass.Step > 1 {
		writer = engine.Site{Step: pass.Step - 1, Layer: engine.NoLayer, Name: "sample"}.String()
	}
	changed := change{record: &record{buffer: in.Buffer, bytes: want}}
	changed.note(&span{extent{0, in.Cols}, writer, in.Name, in.Cols}, extent{0, in.Cols}, host)
	if changed.bad > 0 {
		c.filed[in.Buffer] = true
		f := changed.finding(op, in)
		f.Why = append(f.Why, c.fed(pass.Pos, host, in.Cols)...)
		c.watch.add(f, atRead)
	}
	return nil
}

// fed says how the ids at pos differ from the text, where that is plain.
func (c *custody) fed(pos int, host []byte, n int) []string {
	text := c.watch.Text
	for _, shift := range []int{1, -1} {
		same := text != nil
		for t := range n {
			from := pos + t + shift
			same = same && from >= 0 && from < len(text) && num.Float32At(num.Int32, host, t) == float32(text[from])
		}
		if same && shift == 1 && pos == 0 {
			return []string{fmt.Sprintf("they are the text without its first token, %d", text[0])}
		} else if same {
			return []string{fmt.Sprintf("they are the text moved by %d", -shift)}
		}
	}
	return nil
}
