package shadow

import (
	"cmp"
	"fmt"
	"slices"

	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
)

// Watch follows one text through a session. One goroutine uses it and the session.
type Watch struct {
	// Text is the tokens that the session is to be fed, prompt first; the ids that it embeds are held to them. Tokens may be appended as
	// they are chosen. If it is nil, ids are held to the twin's, where that is at the same pass.
	Text []int
	// Progress, if it is set, is told how many ops have been judged.
	Progress func(ops int)

	session     *engine.Session
	before, tap func(engine.Op) // the session's own
	custody     *custody
	judging     bool
	findings    []*birth
	cells       []Cell
	ops         int
	err         error
}

// birth is a finding and when it was.
type birth struct {
	Finding
	at   int // how many ops were run before
	when when
}

// harmless is 1 if nobody has read the changed bytes, else 0.
func (b *birth) harmless() int {
	if b.Between != nil && b.Between.Reader == nobody {
		return 1
	}
	return 0
}

// when is the order of what is found at one op.
type when int

const (
	atRead  when = iota // it reads what has changed
	atWrite             // it writes something wrong
	atStray             // it changes what is not its own
)

// Follow sets a session's Before and Tap until Stop; those that were set are called first. The session must be new or reset: what ops
// read and none of this text has written is a finding. twin is a session of the same model on another backend; its weights, vectors and
// rotary tables stand for the file. It must have room for as many tokens, and have been fed the same passes before where
// the rotary scaling depends on the length (su).
func Follow(s, twin *engine.Session) *Watch {
	w := &Watch{session: s, before: s.Before, tap: s.Tap}
	w.custody = newCustody(w, s.Program(), twin.Program())
	s.Before, s.Tap = w.enter, w.leave
	return w
}

// Stop gives the session back.
func (w *Watch) Stop() { w.session.Before, w.session.Tap = w.before, w.tap }

// Judge says whether ops are judged from here on. Custody is kept all the time.
func (w *Watch) Judge(on bool) { w.judging = on }

// Findings lists the births in their order; last those that nobody has read, and that have done no harm so far.
func (w *Watch) Findings() []Finding {
	slices.SortStableFunc(w.findings, func(a, b *birth) int {
		return cmp.Or(cmp.Compare(a.harmless(), b.harmless()), cmp.Compare(a.at, b.at), cmp.Compare(a.when, b.when))
	})
	list := make([]Finding, len(w.findings))
	for i, b := range w.findings {
		list[i] = b.Finding
	}
	return list
}

// Cells lists what was judged or found, one cell for each step and layer, in the order in which they were run.
func (w *Watch) Cells() []Cell { return slices.Clone(w.cells) }

// Ops is how many ops were judged.
func (w *Watch) Ops() int { return w.ops }

// Worst is the cell whose op came nearest to its bound, or went farthest beyond; nil if none was judged.
func (w *Watch) Worst() *Cell {
	var worst *Cell
	for i := range w.cells {
		if c := &w.cells[i]; worst == nil || c.Ratio > worst.Ratio {
			worst = c
		}
	}
	return worst
}

// Err is the backend's failure, if a buffer could not be read; it names the site. Nothing is followed after it.
func (w *Watch) Err() error { return w.err }

// enter is the session's Before.
func (w *Watch) enter(op engine.Op) {
	if w.before != nil {
		w.before(op)
	}
	if w.err == nil {
		w.err = w.custody.arrive(op)
	}
}

// leave is the session's Tap.
func (w *Watch) leave(op engine.Op) {
	if w.tap != nil {
		w.tap(op)
	}
	if w.err != nil {
		return
	}
	if w.err = w.look(op); w.err == nil && w.judging && w.Progress != nil {
		w.Progress(w.ops)
	}
}

// look judges what op wrote, and takes it into custody. An op that changed what is not its own is judged even where others are not: it may
// have written what is its own elsewhere.
func (w *Watch) look(op engine.Op) error {
	written, err := w.custody.copies(op) // before anyone looks again
	if err != nil {
		return err
	}
	strayed, intact, err := w.custody.sweep(op)
	if err != nil {
		return err
	}
	// An op that changed what it read cannot be judged by it.
	if (w.judging || strayed) && intact {
		if err := w.judge(op, written); err != nil {
			return err
		}
	}
	w.custody.take(op, written)
	return nil
}

// judge holds what op wrote to the oracle.
func (w *Watch) judge(op engine.Op, written [][]byte) error {
	judged, err := oracle.Judge(op)
	if err != nil {
		return err
	}
	w.ops++
	var bad *verdict
	for i, j := range judged {
		got := make([]float64, len(j.Want))
		oracle.Widen(got, j.Operand.Buffer.DType(), written[i])
		report := j.Compare(got)
		w.cell(op.Site(), report.WorstRatio)
		if !report.OK() && bad == nil {
			bad = &verdict{op: op, Judged: j, Report: report, got: got, written: written[i]}
		}
	}
	if bad == nil {
		return nil
	}
	r := w.custody.records[bad.Operand.Buffer]
	bad.held, bad.last = r.part(extents(bad.Operand)[0]), w.custody.history[op]
	f, err := bad.finding()
	if err != nil {
		return err
	}
	w.add(f, atWrite)
	return nil
}

// add takes down a finding that was born at the op that runs now.
func (w *Watch) add(f Finding, when when) *birth {
	b := &birth{f, w.custody.ran, when}
	w.findings = append(w.findings, b)
	w.cell(engine.Site{Step: f.Step, Layer: f.Layer, Name: f.Site}, float64(f.Ratio)).Bad++
	return b
}

// cell notes an op's ratio in the cell of its step and layer.
func (w *Watch) cell(s engine.Site, ratio float64) *Cell {
	i := slices.IndexFunc(w.cells, func(c Cell) bool { return c.Step == s.Step && c.Layer == s.Layer })
	if i < 0 {
		i = len(w.cells)
		w.cells = append(w.cells, Cell{Step: s.Step, Layer: s.Layer, Site: s.Name})
	}
	if c := &w.cells[i]; ratio > float64(c.Ratio) {
		c.Ratio, c.Site = ctconv.Number(ratio), s.Name
	}
	return &w.cells[i]
}

// kind is what an op is called, an activation by its function.
func kind(op engine.Op) string {
	switch o := op.(type) {
	case *engine.Embed:
		return "embed"
	case *engine.RMSNorm:
		return "rms_norm"
	case *engine.LayerNorm:
		return "layer_norm"
	case *engine.Linear:
		return "linear"
	case *engine.RoPE:
		return "rope"
	case *engine.KVWrite:
		return "kv_write"
	case *engine.Scores:
		return "scores"
	case *engine.Softmax:
		return "softmax"
	case *engine.Context:
		return "context"
	case *engine.Activate:
		return o.F.String()
	case *engine.Add:
		return "add"
	case *engine.SoftCap:
		return "soft_cap"
	}
	panic(fmt.Sprintf("BUG: %v: no op %T", op.Site(), op))
}
